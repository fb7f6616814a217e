//! In one guest: the transport's own tests, on another kernel.

use std::path::PathBuf;
use std::time::Duration;

use forebay_system::guest::alone;
use forebay_system::program::test_programs;
use forebay_system::scratch::Scratch;

/// One of the transport's test programs.
fn transport(target: &str) -> PathBuf {
    let programs = test_programs("forebay-transport");
    let found = programs.iter().find(|(name, _)| name == target);
    found.unwrap_or_else(|| panic!("no test program {target} among {programs:?}")).1.clone()
}

/// How many tests have passed, by the lines of the test programs in `text`.
fn passed(text: &str) -> u32 {
    let count = |line: &str| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok();
    text.lines().filter_map(count).sum()
}

/// Nothing of RDMA: that a link's tests, which know about time, pass here says that those of another link can.
#[test]
fn an_http3_link_keeps_the_contract_of_links() {
    let share = Scratch::new("guest-h3");
    let script = format!("exec {} link::", transport("h3").display());
    let Some(finished) = alone(Duration::from_secs(180), share.path(), &script) else { return };
    assert_eq!(finished.code, Some(0), "{}\n{}", finished.text(), finished.stderr);
    assert!(passed(finished.text()) >= 10, "{}", finished.text());
}

#[test]
fn verbs_work_on_soft_roce() {
    let share = Scratch::new("guest-rdma");
    // One at a time: some of them count what the guest's one device has.
    let script = format!(
        "set -e; export FOREBAY_RDMA_TESTS=1; {} --test-threads 1; {} --test-threads 1 rdma::device_tests:: rdma::queue_tests:: \
         rdma::link_tests:: rdma::rude_tests::",
        transport("rdma").display(),
        transport("forebay_transport").display()
    );
    let Some(finished) = alone(Duration::from_secs(420), share.path(), &script) else { return };
    assert_eq!(finished.code, Some(0), "{}\n{}", finished.text(), finished.stderr);
    assert!(passed(finished.text()) >= 29, "{}", finished.text());
    assert!(!finished.text().contains("SKIPPED"), "{}", finished.text());
}
