//! `forebay doctor` on a machine that has an RDMA device, as it should be and not.

use std::time::Duration;

use forebay_system::guest::alone;
use forebay_system::scratch::Scratch;
use forebay_system::tars::{Shards, Sizes};
use forebay_system::world::shards;
use serde_json::Value;

/// Each report is a file of the share.
const SCRIPT: &str = "
look() { \"$FOREBAY_PROGRAM\" doctor --json > /run/guest/$1.json; echo $? > /run/guest/$1.code; }
look well
ip link set dev $GUEST_DEVICE mtu 1500
look small
ip link set dev $GUEST_DEVICE mtu 4200
ip addr flush dev $GUEST_DEVICE scope global
look alone
ip addr add $GUEST_ADDRESS/24 dev $GUEST_DEVICE
mv /dev/infiniband /dev/hidden
look hidden
mv /dev/hidden /dev/infiniband
ip link set dev $GUEST_DEVICE down
look down
";

/// A server and the way to it, over every fabric of the machine.
const FABRICS: &str = "
\"$FOREBAY_PROGRAM\" serve set=/run/guest/data/*.tar --rdma set --listen $GUEST_ADDRESS:4433 --open --state-dir /tmp/state >/tmp/serve &
for _ in $(seq 100); do grep -q '^ready: set' /tmp/serve && break; sleep 0.2; done
trust=$(grep -o 'SHA256:[0-9a-f]*' /tmp/serve | head -1)
\"$FOREBAY_PROGRAM\" doctor https://$GUEST_ADDRESS:4433/set --trust $trust --memory 64MiB --json >/run/guest/report
code=$?
kill %1
exit $code
";

#[test]
fn each_fabric_of_a_machine_is_measured() {
    let share = Scratch::new("guest-fabrics");
    shards(&share.join("data"), &Shards { shards: 1, samples: 50, sizes: Sizes::Fixed(50_000), seed: 5 });
    let Some(finished) = alone(Duration::from_secs(90), share.path(), FABRICS) else { return };
    let report = std::fs::read_to_string(share.join("report")).unwrap_or_default();
    assert_eq!(finished.code, Some(0), "{report}\n{}\n{}", finished.text(), finished.stderr);
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|error| panic!("{error}: {report}"));
    let [h3, rdma] = report["speeds"].as_array().unwrap().as_slice() else { panic!("{report}") };
    assert!(h3["fabric"] == "h3" && h3["megabytes_per_second"].as_f64().unwrap() > 0.1, "{report}");
    assert!(
        rdma["fabric"] == "rdma" && rdma["megabytes_per_second"].as_f64().is_some_and(|rate| rate > 0.1),
        "{report}"
    );
    let findings = report["findings"].as_array().unwrap();
    let way = findings.iter().find(|finding| finding["check"] == "RDMA path MTU").unwrap();
    assert_eq!(way["level"], "ok", "{way}");
}

#[test]
fn an_rdma_device_is_looked_at() {
    let share = Scratch::new("guest-doctor");
    let Some(finished) = alone(Duration::from_secs(60), share.path(), SCRIPT) else { return };
    assert_eq!(finished.code, Some(0), "{}\n{}", finished.text(), finished.stderr);
    let look = |name: &str, check: &str| {
        let text = std::fs::read_to_string(share.join(&format!("{name}.json"))).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"));
        let code = std::fs::read_to_string(share.join(&format!("{name}.code"))).unwrap();
        assert_eq!(code.trim() == "7", report["wrong"] != 0, "{name}: {code} {report}");
        let findings = report["findings"].as_array().unwrap().clone();
        let found = findings.into_iter().find(|finding| finding["check"] == check);
        let found = found.unwrap_or_else(|| panic!("{name}: no {check} in {report}"));
        let word = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        (word("level"), word("found"), word("mend"))
    };
    for check in ["devices", "libraries", "providers", "access", "ports", "addresses", "packet size"] {
        let (level, found, _) = look("well", &format!("RDMA {check}"));
        assert_eq!(level, "ok", "{check}: {found}");
    }
    assert_eq!(look("well", "/dev/infiniband").0, "ok");
    assert_eq!(look("well", "RDMA devices").1, "rd0");
    assert_eq!(look("well", "RDMA providers").1, "rxe");
    assert_eq!(look("well", "RDMA addresses").1, "rd0/1 10.7.0.1");
    assert_eq!(look("well", "RDMA packet size").1, "rd0/1 4096");
    let (level, found, mend) = look("small", "RDMA packet size");
    assert!(level == "better" && found.contains("1024") && mend.contains("mtu 4200"), "{found}");
    let (level, found, mend) = look("alone", "RDMA addresses");
    assert!(level == "wrong" && mend.contains("ip addr add"), "{found}");
    let (level, found, mend) = look("hidden", "/dev/infiniband");
    assert!(level == "wrong" && found.contains("uverbs0: No such file") && mend.contains("--device"), "{found}");
    let (level, found, mend) = look("down", "RDMA ports");
    assert!(level == "better" && found.contains("rd0/1 is DOWN") && mend.contains("ip link set dev d0 up"), "{found}");
}
