//! Which fabric samples come over, as the program says it, and as it is told.

use forebay_system::program::{Finished, PATIENCE, Server, run};
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes};
use forebay_system::world::shards;

struct World {
    server: Server,
    pattern: String,
    _scratch: Scratch,
}

impl World {
    fn new(name: &str, extra: &[&str]) -> World {
        let scratch = Scratch::new(name);
        let what = Shards { shards: 2, samples: 20, sizes: Sizes::Cycle(vec![1000, 40_000]), seed: 3 };
        let (_, pattern) = shards(&scratch.join("data"), &what);
        let server = Server::start(&[("set", &pattern)], &scratch.join("state"), extra);
        World { server, pattern, _scratch: scratch }
    }

    fn client(&self, verb: &str, extra: &[&str]) -> Finished {
        self.server.client(verb, "set", extra).finish(PATIENCE)
    }
}

/// The line of text that begins with `fabric`.
fn fabric(finished: &Finished) -> &str {
    let line = finished.text().lines().find_map(|line| line.strip_prefix("fabric "));
    line.unwrap_or_else(|| panic!("no fabric is named: {}, {}", finished.text(), finished.stderr)).trim()
}

/// What there is to say about RDMA depends on the machine: without a device for it, or libraries, that; else the server's word.
const WHY_NOT: [&str; 3] = ["RDMA needs", "this machine has no RDMA device", "the server says 403"];

fn says_why_not(text: &str) -> bool {
    WHY_NOT.iter().any(|why| text.contains(why))
}

#[test]
fn the_fabric_and_the_reason_for_it_are_told() {
    let world = World::new("fabric-told", &[]);
    let ls = world.client("ls", &["--log", "info"]);
    assert!(fabric(&ls).starts_with("h3: rdma is not used: ") && says_why_not(fabric(&ls)), "{}", ls.text());
    let logged: Vec<&str> = ls.stderr.lines().filter(|line| line.contains("samples of set come over h3: ")).collect();
    assert!(logged.len() == 1 && says_why_not(logged[0]), "{}", ls.stderr);
    let read = world.client("read", &[]);
    // It may have been over before that was known.
    let known = |text: &str| says_why_not(text) || text == "h3: rdma is being tried";
    assert!(read.code == Some(0) && known(fabric(&read)), "{}", read.text());
    let read = world.client("read", &["--json"]);
    let json: serde_json::Value = serde_json::from_str(read.text()).unwrap();
    assert_eq!((&json["fabric"], &json["fabric_failovers"]), (&"h3".into(), &0.into()));
    assert!(json["fabric_reason"].as_str().unwrap().contains("rdma"), "{json}");
    let local = run(["read", &world.pattern]);
    assert!(local.code == Some(0) && fabric(&local).starts_with("local: "), "{}", local.text());
}

#[test]
fn who_insists_on_rdma_is_told_why_it_cannot_be() {
    // Also where it is allowed: then there is nothing that listens, or nothing here to take it with.
    for extra in [&[][..], &["--rdma", "set"]] {
        let world = World::new("fabric-rdma", extra);
        for verb in ["read", "ls", "get"] {
            let more: &[&str] = if verb == "get" { &["--sample", "0", "--field", "jpg"] } else { &[] };
            let finished = world.client(verb, &[&["--fabric", "rdma"], more].concat());
            let says = finished.stderr.as_str();
            assert_eq!(finished.code, Some(3), "{verb}: {says}");
            let why = says_why_not(says) || extra.len() == 2 && says.contains("the server says 501");
            assert!(says.contains("over") && says.contains("rdma is not used") && why, "{verb}: {says}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new("fabric-nonsense", &[]);
    let server = world.client("read", &["--fabric", "local"]);
    assert!(server.code == Some(2) && server.stderr.contains("--fabric local is for shards"), "{}", server.stderr);
    for name in ["rdma", "h3"] {
        let here = run(["read", &world.pattern, "--fabric", name]);
        assert!(here.code == Some(2) && here.stderr.contains("is for servers"), "{}", here.stderr);
    }
    assert_eq!(run(["read", &world.pattern, "--fabric", "local"]).code, Some(0));
    let h3 = world.client("read", &["--fabric", "h3"]);
    assert!(h3.code == Some(0) && fabric(&h3) == "h3: no other is to be taken", "{}", h3.text());
    assert_eq!(world.client("read", &["--fabric", "carrier-pigeon"]).code, Some(2));
}
