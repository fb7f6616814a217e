//! `forebay doctor` as its users meet it: the machine it looks at is a real one. What each check makes of machines that are not
//! as they should be is tested where the checks are.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::{Duration, Instant};

use forebay_system::program::{Finished, PATIENCE, Running, forebay, run};
use serde_json::Value;

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
