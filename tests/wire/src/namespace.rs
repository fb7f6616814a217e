//! A network namespace that goes away with its owner.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::WireError;

/// Where `ip netns` keeps names.
const FOLDER: &str = "/run/netns";
const PREFIX: &str = "wire";

/// A network namespace of this machine.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn new() -> Result<Namespace, WireError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        sweep();
        let name = format!("{PREFIX}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &name])?;
        let namespace = Namespace { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// As `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs in it.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `what` on a thread of its own in the namespace: sockets and devices that it makes are there for good.
    ///
    /// # Panics
    /// When `what` does.
    pub fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> io::Result<T> {
        let file = File::open(Path::new(FOLDER).join(&self.name))?;
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(what())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// `ip` on what the namespace has.
    pub(crate) fn ip(&self, arguments: &[&str]) -> Result<(), WireError> {
        ip(&[&["-n", &self.name], arguments].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(ip(&["netns", "del", &self.name]));
    }
}

/// Takes away what processes left that were killed.
fn sweep() {
    let Ok(entries) = fs::read_dir(FOLDER) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let mut parts = name.split('-');
        let ours = parts.next() == Some(PREFIX);
        let process = parts.next().and_then(|process| process.parse::<u32>().ok());
        if ours && process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            drop(ip(&["netns", "del", name]));
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), WireError> {
    let failed = |detail: String| WireError::Ip { command: format!("ip {}", arguments.join(" ")), detail };
    let output = Command::new("ip").args(arguments).output().map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
