//! The guests themselves: what other tests rely on.

use std::time::Duration;

use forebay_system::guest::{TIME_UP, alone, pair};
use forebay_system::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn output_and_status_come_back_as_they_are() {
    let share = Scratch::new("guest");
    let script = r"echo to standard error >&2; printf 'a\r\n\0\377b'; exit 3";
    let Some(finished) = alone(LIMIT, share.path(), script) else { return };
    assert_eq!(finished.code, Some(3), "{}", finished.stderr);
    assert_eq!(finished.stdout, b"to standard error\na\r\n\0\xffb", "{}", finished.stderr);
}

#[test]
fn what_a_guest_writes_stays_in_it_and_soft_roce_is_there() {
    let share = Scratch::new("guest");
    let here = share.path().with_extension("written");
    let script = format!(
        "set -e; echo x >{0}; cat {0}; echo y >/run/guest/told; cat /sys/class/infiniband/rd0/ports/1/state; \
         cat /sys/class/net/d0/mtu; tc qdisc replace dev d0 root netem delay 1ms; ls /dev/infiniband",
        here.display()
    );
    let Some(finished) = alone(LIMIT, share.path(), &script) else { return };
    assert_eq!(finished.code, Some(0), "{}", finished.text());
    assert_eq!(finished.text().lines().take(3).collect::<Vec<_>>(), ["x", "4: ACTIVE", "4200"]);
    assert!(finished.text().contains("uverbs0"), "{}", finished.text());
    assert!(!here.exists(), "{} is written on this machine", here.display());
    assert_eq!(std::fs::read_to_string(share.join("told")).expect("what was told"), "y\n");
}

#[test]
fn a_guests_time_is_up_when_it_is() {
    // That it does not take longer is watched wherever guests run.
    let share = Scratch::new("guest");
    let Some(finished) = alone(Duration::ZERO, share.path(), "echo $$; sleep 1000") else { return };
    assert_eq!(finished.code, Some(TIME_UP), "{}", finished.stderr);
}

#[test]
fn two_guests_meet_and_one_that_fails_ends_both() {
    let share = Scratch::new("guest");
    let a = "set -e; meet here; ping -c 1 -W 5 -M do -s 4100 $PEER_ADDRESS >/dev/null; netem delay 30ms; \
             [ $(ping -c 2 -W 5 $PEER_ADDRESS | sed -n 's|^rtt min.*= \\([0-9]*\\)\\..*|\\1|p') -ge 30 ]; say slow; sleep 1000";
    let b = "set -e; meet here; hear slow; exit 9";
    let Some(finished) = pair(LIMIT, share.path(), a, b) else { return };
    assert_eq!(finished.code, Some(9), "{}{}", finished.text(), finished.stderr);
}
