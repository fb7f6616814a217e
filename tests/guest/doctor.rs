//! `forebay doctor` on a machine that has an RDMA device, as it should be and not.

use std::time::Duration;

use forebay_system::guest::alone;
use forebay_system::scratch::Scratch;
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
