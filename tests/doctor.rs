//! `forebay doctor` as its users meet it: the machine it looks at is a real one. What each check makes of machines that are not
//! as they should be is tested where the checks are.
#![cfg(target_os = "linux")]

use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use forebay_client::transport::sim::delay::{DelayConfig, DelayLine};
use forebay_system::program::{Finished, PATIENCE, Running, Server, forebay, run};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes};
use forebay_system::world::{shards, within};
use forebay_transport::exchange::{Request, Responder};
use forebay_transport::h3::{self, Identity, ServerConfig};
use forebay_transport::wire::date;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// The line about `check`.
fn about<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("findings");
    findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check} in {report}"))
}

fn report(finished: &Finished) -> Value {
    let report: Value = serde_json::from_slice(&finished.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", String::from_utf8_lossy(&finished.stdout), finished.stderr);
    });
    let level = |level| report["findings"].as_array().unwrap().iter().filter(|one| one["level"] == level).count();
    assert_eq!(
        (report["wrong"].as_u64(), report["better"].as_u64()),
        (Some(level("wrong") as u64), Some(level("better") as u64))
    );
    assert_eq!(finished.code, Some(if level("wrong") > 0 { 7 } else { 0 }), "{report}");
    report
}

/// The same with less than usual, by `tests/python/confined.py`.
fn confined(flags: &[&str]) -> Value {
    let mut command = Command::new("python3");
    command.arg(forebay_system::root().join("tests/python/confined.py")).args(flags).arg("--");
    command.arg(forebay()).args(["doctor", "--json"]);
    report(&Running::start(command).finish(PATIENCE))
}

#[test]
fn this_machine_is_looked_at_in_a_moment() {
    forebay();
    let started = Instant::now();
    let finished = run(["doctor", "--json"]);
    let elapsed = started.elapsed();
    let report = report(&finished);
    for check in [
        "memory",
        "locked memory",
        "huge pages",
        "io_uring",
        "UDP buffers",
        "UDP offload",
        "packet size",
        "RDMA devices",
    ] {
        let finding = about(&report, check);
        assert!(finding["found"].as_str().is_some_and(|found| !found.is_empty()), "{finding}");
        assert!(finding["mend"].is_string() || finding["level"] == "ok" || finding["level"] == "note", "{finding}");
    }
    assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
    let text = run(["doctor"]);
    assert_eq!(text.code, finished.code);
    assert!(text.text().lines().any(|line| line.starts_with("ok      ") && line.contains("memory")), "{}", text.text());
}

#[test]
fn what_is_wrong_sets_the_exit_code_and_says_what_mends_it() {
    let finished = run(["doctor", "--json", "--memory", "1000TiB"]);
    let report = report(&finished);
    let memory = about(&report, "memory");
    assert_eq!(memory["level"], "wrong", "{memory}");
    assert!(memory["mend"].as_str().unwrap().starts_with("--memory "), "{memory}");
    assert_eq!(finished.code, Some(7));
    assert!(finished.stderr.contains("wrong"), "{}", finished.stderr);
    // What is advised is enough.
    let advice: Vec<&str> = memory["mend"].as_str().unwrap().split(' ').collect();
    let again = run(["doctor", "--json"].iter().chain(&advice));
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(about(&again, "memory")["level"], "ok", "{again}");
}

#[test]
fn a_container_without_io_uring_is_told_of_it() {
    let uring = confined(&["--no-uring", "1"]);
    let uring = about(&uring, "io_uring");
    assert!(uring["level"] == "better" && uring["found"].as_str().unwrap().contains("seccomp"), "{uring}");
    let uring = confined(&["--no-uring", "38"]);
    let uring = about(&uring, "io_uring");
    assert!(uring["level"] == "better" && uring["mend"].as_str().unwrap().contains("5.11"), "{uring}");
}

#[test]
fn a_user_who_may_lock_little_is_told_of_it() {
    let report = confined(&["--memlock", "65536", "--uid", "65534"]);
    let locked = about(&report, "locked memory");
    assert!(locked["level"] == "better" || locked["level"] == "wrong", "{locked}");
    assert!(locked["found"].as_str().unwrap().contains("64.0 KiB"), "{locked}");
    assert!(locked["mend"].as_str().unwrap().contains("ulimit -l"), "{locked}");
}

struct World {
    scratch: Scratch,
    server: Server,
}

impl World {
    fn new(name: &str) -> World {
        let scratch = Scratch::new(name);
        let what = Shards { shards: 2, samples: 200, sizes: Sizes::Fixed(100_000), seed: 5 };
        let (_, pattern) = shards(&scratch.join("data"), &what);
        let server = Server::start(&[("set", &pattern)], &scratch.join("state"), &[]);
        World { scratch, server }
    }
}

fn word<'a>(finding: &'a Value, key: &str) -> &'a str {
    finding[key].as_str().unwrap_or_default()
}

#[test]
fn the_way_to_a_server_is_measured() {
    within(LIMIT, || {
        let world = World::new("doctor-server");
        for url in [world.server.dataset("set"), world.server.url.clone()] {
            let started = Instant::now();
            let finished = run(["doctor", &url, "--trust", &world.server.trust, "--memory", "64MiB", "--json"]);
            let report = report(&finished);
            assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
            for check in ["UDP", "TLS trust", "clock", "round trip", "path MTU", "speed"] {
                assert_eq!(about(&report, check)["level"], "ok", "{report}");
            }
            let server = &report["server"];
            assert_eq!(format!("https://{}", word(server, "address")), world.server.url);
            assert_eq!(word(server, "certificate"), world.server.trust);
            let figure = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{report}"));
            assert!((0.0..1000.0).contains(&figure(&server["round_trip_ms"])), "{server}");
            assert!(figure(&server["clock_ahead_seconds"]).abs() < 2.0, "{server}");
            assert!(figure(&server["udp_payload_bytes"]) > 8000.0, "loopback carries jumbo packets: {server}");
            let speed = &report["speeds"][0];
            assert_eq!((word(speed, "fabric"), word(speed, "dataset")), ("h3", "set"));
            assert!(figure(&speed["megabytes_per_second"]) > 1.0 && figure(&speed["seconds"]) >= 2.0, "{speed}");
        }
    });
}

#[test]
fn a_certificate_that_is_not_trusted_is_told_with_the_flag_that_mends_it() {
    within(LIMIT, || {
        let world = World::new("doctor-trust");
        let url = world.server.dataset("set");
        let other = format!("SHA256:{}", "00".repeat(32));
        for flags in [&[][..], &["--trust", &other]] {
            let report = report(&run(["doctor", &url, "--json"].iter().chain(flags)));
            assert_eq!(about(&report, "UDP")["level"], "ok", "{report}");
            let trust = about(&report, "TLS trust");
            assert!(
                trust["level"] == "wrong" && trust["mend"].as_str().unwrap().contains(&world.server.trust),
                "{trust}"
            );
            assert!(
                report["speeds"].as_array().unwrap().is_empty(),
                "nothing is read from who is not trusted: {report}"
            );
        }
        let report = report(&run(["doctor", &url, "--json", "--insecure"]));
        let trust = about(&report, "TLS trust");
        assert!(trust["level"] == "better" && word(trust, "mend").contains(&world.server.trust), "{trust}");
        assert_eq!(run(["doctor", &url, "--trust", "nonsense"]).code, Some(2));
    });
}

#[test]
fn a_server_that_answers_nothing_is_given_up_soon() {
    within(LIMIT, || {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}/set", silent.local_addr().unwrap());
        let started = Instant::now();
        let silence = report(&run(["doctor", &url, "--insecure", "--json"]));
        let elapsed = started.elapsed();
        assert!((Duration::from_secs(4)..Duration::from_secs(15)).contains(&elapsed), "{elapsed:?}");
        let udp = about(&silence, "UDP");
        assert!(udp["level"] == "wrong" && word(udp, "found").contains("did not answer"), "{udp}");
        assert!(word(udp, "mend").contains(&format!("{}/udp", silent.local_addr().unwrap().port())), "{udp}");
        assert!(silence["server"].is_null(), "{silence}");
        drop(silent);
        let closed = report(&run(["doctor", &url, "--insecure", "--json"]));
        let udp = about(&closed, "UDP");
        assert!(udp["level"] == "wrong" && word(udp, "found").contains("nothing listens"), "{udp}");
    });
}

#[test]
fn a_dataset_that_is_not_there_is_told_of() {
    within(LIMIT, || {
        let world = World::new("doctor-nothing");
        let url = world.server.dataset("nothing");
        let report = report(&run(["doctor", &url, "--trust", &world.server.trust, "--json"]));
        let speed = about(&report, "speed");
        assert!(speed["level"] == "wrong" && word(speed, "found").contains("nothing"), "{speed}");
    });
}

#[test]
fn a_long_way_is_measured_as_one() {
    within(LIMIT, || {
        let world = World::new("doctor-far");
        let target = world.server.url.trim_start_matches("https://").parse().unwrap();
        let wire = DelayConfig { one_way: Duration::from_millis(30), ..DelayConfig::default() };
        let line = DelayLine::start(target, wire).unwrap();
        let url = format!("https://{}", line.addr());
        let report = report(&run(["doctor", &url, "--trust", &world.server.trust, "--json"]));
        let trip = report["server"]["round_trip_ms"].as_f64().unwrap();
        assert!((60.0..500.0).contains(&trip), "{report}");
        assert!(report["speeds"][0]["megabytes_per_second"].as_f64().unwrap() > 0.1, "{report}");
    });
}

#[test]
fn shards_on_this_machine_are_measured() {
    within(LIMIT, || {
        let world = World::new("doctor-here");
        let mut command = Command::new(forebay());
        command.args(["doctor", "--json"]).arg(world.scratch.join("data"));
        command.env("XDG_CACHE_HOME", world.scratch.join("cache"));
        let report = report(&Running::start(command).finish(PATIENCE));
        assert_eq!(about(&report, "speed")["level"], "ok", "{report}");
        assert_eq!(report["speeds"][0]["fabric"], "local");
        assert!(report["speeds"][0]["megabytes_per_second"].as_f64().unwrap() > 1.0, "{report}");
    });
}

/// Two hosts on one wire, in network namespaces: each report is a file of the scratch folder.
const WIRE: &str = "
mount -t sysfs none /sys
ip link set lo up
unshare --net sleep 100 & THERE=$!
trap 'kill $THERE $SERVER' EXIT
until [ \"$(readlink /proc/$THERE/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.1; done
there() { nsenter --target $THERE --net \"$@\"; }
ip link add v0 type veth peer name v1
ip link set v1 netns $THERE
ip addr add 10.9.0.1/24 dev v0; ip link set v0 up
there ip addr add 10.9.0.2/24 dev v1; there ip link set v1 up
nsenter --target $THERE --net \"$F\" serve set=$S/data --listen 10.9.0.2:4433 --open --state-dir $S/state >$S/log & SERVER=$!
for _ in $(seq 300); do grep -q '^ready: set' $S/log && break; sleep 0.1; done
trust=$(grep -o 'SHA256:[0-9a-f]*' $S/log | head -1)
look() { \"$F\" doctor https://10.9.0.2:4433/set --trust $trust --json >$S/$1.json; }
look small
ip link set v0 mtu 9000; there ip link set v1 mtu 9000
look large
there ip link set v1 mtu 1500
look mixed
";

#[test]
fn packets_that_a_path_does_not_carry_are_told_of() {
    within(LIMIT, || {
        let scratch = Scratch::new("doctor-wire");
        let alone = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--net", "--map-root-user", "sh", "-ec", script]);
            command.env("F", forebay()).env("S", scratch.path());
            Running::start(command).finish(PATIENCE)
        };
        let possible = alone("mount -t sysfs none /sys; ip link add v0 type veth peer name v1");
        if possible.code != Some(0) {
            eprintln!("!! SKIPPED: a path that drops packets: no network namespaces here: {}", possible.stderr);
            return;
        }
        shards(&scratch.join("data"), &Shards { shards: 1, samples: 20, sizes: Sizes::Fixed(50_000), seed: 5 });
        let done = alone(WIRE);
        let look = |name: &str| -> Value {
            let text = std::fs::read_to_string(scratch.join(&format!("{name}.json"))).unwrap_or_default();
            let report: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", done.stderr));
            about(&report, "path MTU").clone()
        };
        let small = look("small");
        assert!(small["level"] == "better" && word(&small, "mend").contains("ip link set dev v0 mtu 9000"), "{small}");
        assert_eq!(look("large")["level"], "ok");
        let mixed = look("mixed");
        assert!(mixed["level"] == "better" && word(&mixed, "found").contains("though v0 would carry 9000"), "{mixed}");
    });
}

/// A server of somebody else's making, with a clock that is an hour late, and then with none.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_is_told_of() {
    let scratch = Scratch::new("doctor-clock");
    let identity = Identity::self_signed(scratch.path(), &["127.0.0.1".to_owned()]).unwrap();
    let trust = identity.fingerprint().to_string();
    let server = h3::Server::bind(ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity, 64 << 20)).unwrap();
    let url = format!("https://{}", server.local_addr());
    let told = Arc::new(AtomicBool::new(true));
    let tells = told.clone();
    let late = move |_: Request, responder: Responder| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut head = http::Response::new(());
        if tells.load(Ordering::Relaxed) {
            head.headers_mut().insert("date", date::format(now - 3600).parse().unwrap());
        }
        async move {
            drop(responder.send(head, Bytes::from_static(b"{\"wire\":{\"min\":1,\"max\":1},\"datasets\":[]}")).await)
        }
    };
    let serving = tokio::spawn(server.serve(Arc::new(late), std::future::pending(), Duration::ZERO));
    let look = || {
        let arguments = ["doctor", "--json", "--trust", &trust, &url].map(str::to_owned);
        tokio::task::spawn_blocking(move || report(&run(arguments)))
    };
    let report = look().await.unwrap();
    let clock = about(&report, "clock");
    assert!(clock["level"] == "wrong" && word(clock, "found").contains("3600 s behind"), "{clock}");
    assert_eq!(about(&report, "speed")["level"], "note", "it has no dataset: {report}");
    told.store(false, Ordering::Relaxed);
    assert_eq!(about(&look().await.unwrap(), "clock")["level"], "note");
    serving.abort();
}
