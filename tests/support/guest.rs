//! Emulated machines with a kernel that has soft-RoCE and netem, where commands run as on this one: `tests/guest/run`.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::program::{Finished, Running, forebay};

/// Exit statuses of `tests/guest/run` that are no command's.
pub const TIME_UP: i32 = 124;
pub const BROKEN: i32 = 125;
const IMPOSSIBLE: i32 = 77;

/// How long a guest takes to boot and to end, with a margin for machines that have other things to do.
const BOOT: Duration = Duration::from_secs(60);

/// Guests take all cores there are: one test has them at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Runs a bash script in one guest, for at most `limit` besides booting. `share` is `/run/guest` there.
///
/// `None` where guests are not possible: said loudly, and an error where `FOREBAY_GUESTS=require` says so.
///
/// # Panics
/// When the guest itself does not work.
pub fn alone(limit: Duration, share: &Path, script: &str) -> Option<Finished> {
    run(limit, share, &["bash", "-c", script])
}

/// Runs a bash script in each of two guests on one wire. The first that fails ends both.
///
/// # Panics
/// When the guests themselves do not work.
pub fn pair(limit: Duration, share: &Path, a: &str, b: &str) -> Option<Finished> {
    run(limit, share, &["--pair", a, b])
}

fn run(limit: Duration, share: &Path, arguments: &[&str]) -> Option<Finished> {
    let program = forebay();
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // The first run fetches the kernel, which is not the guest's time.
    let image = Running::start(Command::new(crate::root().join("tests/guest/image"))).finish(Duration::from_secs(600));
    if image.code == Some(IMPOSSIBLE) {
        skipped(image.stderr.trim());
        return None;
    }
    assert_eq!(image.code, Some(0), "{}", image.stderr);
    let limit = limit + BOOT;
    let mut command = Command::new(crate::root().join("tests/guest/run"));
    command.arg("--limit").arg(limit.as_secs().to_string()).arg("--share").arg(share).args(arguments);
    command.env("FOREBAY_PROGRAM", program).env_remove("FOREBAY_TRUST").env_remove("FOREBAY_CA");
    let finished = Running::start(command).finish(limit + Duration::from_secs(30));
    let output = String::from_utf8_lossy(&finished.stdout);
    assert_ne!(finished.code, Some(BROKEN), "the guest does not work\n{output}\n{}", finished.stderr);
    Some(finished)
}

/// Tests' output is kept from whoever runs them while they pass; this is not.
fn skipped(why: &str) {
    let required = std::env::var("FOREBAY_GUESTS").is_ok_and(|wish| wish == "require");
    assert!(!required, "guests are required (FOREBAY_GUESTS=require): {why}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "!! SKIPPED: {test}: {why}");
}
