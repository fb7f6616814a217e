//! Where processes run, and what they hold.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A process's core.
#[derive(Clone, Copy)]
pub enum Core {
    Server = 0,
    Client = 1,
}

impl Core {
    /// A command that runs `program` on this core and no other, where that can be done.
    pub fn command(self, program: &Path) -> Command {
        if !can_pin() {
            return Command::new(program);
        }
        // `taskset` becomes the program: its process is ours to watch and end.
        let mut command = Command::new("taskset");
        command.arg("-c").arg((self as u8).to_string()).arg(program);
        command
    }

    /// The bench itself, in another role.
    pub fn role(self, role: &str) -> Command {
        let mut command = self.command(&std::env::current_exe().expect("our own path"));
        command.args(["--role", role]);
        command
    }
}

/// Whether both cores are there, and `taskset` to choose them.
pub fn can_pin() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let mut command = Command::new("taskset");
        let status = command.args(["-c", "0,1", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cores >= 2 && status.is_ok_and(|status| status.success())
    })
}

/// Seconds of processor time that a process has used, where the system tells.
pub fn cpu(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field, in brackets, may hold anything; user and system time are the 14th and 15th.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

/// The kernel's unit of processor time, in programs' eyes: a hundredth of a second, whatever its own is.
const TICKS: f64 = 100.0;

/// The most bytes that a process ever held in memory, where the system tells.
pub fn peak(process: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? * 1024.0)
}
