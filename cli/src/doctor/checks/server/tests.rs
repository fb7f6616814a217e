use forebay_client::Fingerprint;

use super::super::super::finding::Level;
use super::super::CHECKS;
use super::super::tests::{after, says};
use super::*;

fn reached(facts: &mut Facts) -> &mut Reached {
    facts.server.as_mut().unwrap().reached.as_mut().unwrap()
}

/// A server that could not be connected to, for this reason.
fn lost(facts: &mut Facts, error: ConnectError) {
    facts.server.as_mut().unwrap().reached = Err(error);
    facts.speeds.clear();
}

fn untrusted() -> ConnectError {
    ConnectError::Untrusted {
        host: "storage".into(),
        port: 4433,
        address: "192.0.2.7:4433".parse().unwrap(),
        reason: "UnknownIssuer".into(),
        presented: Fingerprint([0xab; 32]),
    }
}

fn timed_out() -> ConnectError {
    let (host, address, elapsed) = ("storage".into(), "192.0.2.7:4433".parse().unwrap(), Duration::from_secs(5));
    ConnectError::Timeout { host, port: 4433, address, elapsed }
}

#[test]
fn without_a_server_nothing_is_said_of_one() {
    for check in [udp, trust, clock, round_trip, packets, speed] {
        let mut facts = super::super::super::facts::tests::healthy();
        (facts.server, facts.speeds) = (None, Vec::new());
        assert_eq!(check(&facts), None);
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_told_of_once() {
    let finding = after(udp, |facts| lost(facts, timed_out()));
    says(&finding, Level::Wrong, "did not answer within 5.0s", "ufw allow 4433/udp");
    let mut facts = super::super::super::facts::tests::healthy();
    lost(&mut facts, timed_out());
    let wrong = CHECKS.iter().filter_map(|check| check(&facts)).filter(|finding| finding.level == Level::Wrong);
    assert_eq!(wrong.count(), 1);
    let (host, address, elapsed) = ("storage".into(), "192.0.2.7:4433".parse().unwrap(), Duration::ZERO);
    let refused = ConnectError::Refused { host, port: 4433, address, elapsed };
    says(&after(udp, |facts| lost(facts, refused)), Level::Wrong, "nothing listens", "--listen 0.0.0.0:4433");
    let nowhere = ConnectError::Resolve { host: "storage".into(), reason: "no such name".into() };
    says(&after(udp, |facts| lost(facts, nowhere)), Level::Wrong, "no such name", "getent hosts storage");
    let (host, address, elapsed) = ("storage".into(), "192.0.2.7:4433".parse().unwrap(), Duration::ZERO);
    let other = ConnectError::Failed { host, port: 4433, address, elapsed, reason: "no HTTP/3".into() };
    says(&after(udp, |facts| lost(facts, other)), Level::Wrong, "no HTTP/3", "a Forebay server on UDP port 4433");
}

#[test]
fn a_certificate_that_is_not_trusted() {
    let finding = after(trust, |facts| lost(facts, untrusted()));
    says(&finding, Level::Wrong, "not trusted: UnknownIssuer", "--trust SHA256:abab");
    says(&after(udp, |facts| lost(facts, untrusted())), Level::Ok, "answers", "");
    let none = || ConnectError::Tls(TlsError::NoRoots("no file".into()));
    says(&after(trust, |facts| lost(facts, none())), Level::Wrong, "no certificate authorities", "ca-certificates");
    let finding = after(trust, |facts| facts.server.as_mut().unwrap().trust = Trust::Insecure);
    says(&finding, Level::Better, "anyone is trusted", "--trust SHA256:0707");
    let finding = after(trust, |facts| facts.server.as_mut().unwrap().trust = Trust::CaFile("ca.pem".into()));
    says(&finding, Level::Ok, "authority of ca.pem", "");
}

#[test]
fn clocks_that_differ() {
    let clock = |ahead| after(clock, |facts| reached(facts).ahead = ahead);
    says(&clock(Some(90.2)), Level::Better, "90 s ahead of ours", "timedatectl");
    says(&clock(Some(-90.2)), Level::Better, "90 s behind ours", "timedatectl");
    says(&clock(Some(-4000.0)), Level::Wrong, "4000 s behind ours", "timedatectl set-ntp true");
    says(&clock(None), Level::Note, "does not say", "");
}

#[test]
fn a_long_way_for_little_memory() {
    let far = |facts: &mut Facts| {
        (reached(facts).round_trip, facts.memory) = (Duration::from_millis(150), 64 << 20);
    };
    // 1 GB/s was measured: more than fits, so that it can only be what held it back.
    let finding = after(round_trip, far);
    says(&finding, Level::Better, "150.0 ms: with --memory 64.0 MiB no more than", "--memory 128MiB");
    let finding = after(round_trip, |facts| {
        far(facts);
        facts.speeds.clear();
    });
    says(&finding, Level::Ok, "150.0 ms, for which --memory 64.0 MiB allows", "");
}

#[test]
fn small_packets() {
    let finding = after(packets, |facts| {
        reached(facts).payload = 1452;
    });
    says(&finding, Level::Better, "1480 bytes reach storage, though eth0 would carry 9000", "tracepath -n storage");
    let ordinary = |facts: &mut Facts| {
        reached(facts).payload = 1472;
        facts.net.interfaces[0].mtu = Some(1500);
    };
    says(&after(packets, ordinary), Level::Better, "jumbo", "ip link set dev eth0 mtu 9000");
    let finding = after(packets, |facts| {
        ordinary(facts);
        reached(facts).round_trip = Duration::from_millis(30);
    });
    says(&finding, Level::Note, "1500 bytes reach storage", "");
    let finding = after(packets, |facts| {
        ordinary(facts);
        reached(facts).payload = 1200;
    });
    says(&finding, Level::Better, "1228 bytes reach storage, though eth0 would carry 1500", "tracepath");
    let finding = after(packets, |facts| {
        reached(facts).payload = 1200;
        reached(facts).peer = "[::1]:4433".parse().unwrap();
    });
    says(&finding, Level::Ok, "packets of 1248 bytes", "");
}

#[test]
fn what_could_not_be_measured() {
    let rate = |rate| after(speed, |facts| facts.speeds[0].rate = rate);
    says(&rate(Err(Trouble::Other("damaged".into()))), Level::Wrong, "h3 fails: damaged", "forebay verify");
    let none = Rate { samples: 0, bytes: 0, elapsed: Duration::from_secs(2) };
    says(&rate(Ok(none)), Level::Wrong, "nothing of imagenet for 2 s", "--log info");
    let finding = after(speed, |facts| {
        let rate = Err(Trouble::Fabric("the server does not allow it".into()));
        facts.speeds.push(Speed { fabric: "rdma", dataset: "imagenet".into(), rate });
    });
    says(&finding, Level::Note, "h3 1000.0 MB/s (10000 samples/s); rdma cannot be had: the server", "");
    says(&after(speed, |facts| facts.speeds.clear()), Level::Note, "no dataset that can be read", "");
    let finding = after(speed, |facts| {
        facts.speeds.clear();
        reached(facts).datasets = Err("it answers with status 500".into());
    });
    says(&finding, Level::Wrong, "status 500", "");
}
