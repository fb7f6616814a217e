//! What the operating system knows about this process, and what it has to say to it.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// User and system time of this process so far.
pub fn cpu() -> Duration {
    // SAFETY: all-zero is a valid `rusage`; it is plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `rusage`, which the call fills.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
        return Duration::ZERO;
    }
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.max(0) as u64) + Duration::from_micros(time.tv_usec.max(0) as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// User and system time of another process so far, from `/proc`.
pub fn cpu_of(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name, in parentheses, may hold anything; what follows it is numbers: utime and stime are 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    // SAFETY: sysconf only reads a constant of the system.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some(Duration::from_secs_f64(ticks as f64 / per_second.max(1) as f64))
}

/// How long the program may take to come to its end by itself after Ctrl-C.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sets `flag` at the first Ctrl-C. A second one ends the process at once, and so does [`PATIENCE`]: what waits for a
/// server that says nothing does not look at the flag.
pub fn on_interrupt(flag: &'static AtomicBool) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                flag.store(true, Ordering::Relaxed);
            }
            if !matches!(tokio::time::timeout(PATIENCE, tokio::signal::ctrl_c()).await, Ok(Err(_))) {
                eprintln!("forebay: interrupted");
                std::process::exit(i32::from(crate::failure::INTERRUPTED));
            }
        });
    })?;
    Ok(())
}
