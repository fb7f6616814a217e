//! Where the processors' time goes: `perf` looks at both processes while an epoch is read.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_system::figures::Figures;
use forebay_system::program::Running;
use forebay_system::scratch::Scratch;
use serde_json::json;

use crate::{NAME, Pairing, loader};

/// Epochs read while `perf` looks.
const EPOCHS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(120);

/// Notes the ten functions in which either process was found most often; says so when that cannot be had.
pub fn note(figures: &Figures, pairing: &Pairing<'_>, scratch: &Scratch) {
    let reader = Running::start(loader::command(
        &pairing.server.dataset(NAME),
        &pairing.server.trust,
        pairing.mtu,
        EPOCHS,
        false,
    ));
    let sides = [("client", reader.id()), ("server", pairing.server.running.id())];
    let recordings = sides.map(|(who, process)| {
        let path = scratch.join(&format!("{who}.perf"));
        // Not cycles, which not every virtual machine counts: the clock of the processor.
        let mut command = Command::new("perf");
        command.args(["record", "-e", "cpu-clock", "-F", "997", "-p", &process.to_string(), "-o"]).arg(&path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        (who, path, command.spawn())
    });
    reader.finish(PATIENCE);
    for (who, path, recording) in recordings {
        let recorded = recording.is_ok_and(|mut recording| {
            // It writes what it has when it is interrupted, and ends by itself with the process it looks at.
            let _ = Command::new("kill").arg("-INT").arg(recording.id().to_string()).stderr(Stdio::null()).status();
            recording.wait().is_ok()
        });
        match top(&path).filter(|_| recorded) {
            Some(top) => {
                let share = top.iter().filter_map(|line| line.split('%').next()?.trim().parse::<f64>().ok()).sum();
                figures.note(&format!("profile of the {who} at {}", pairing.mtu), share, "%", json!({ "top": top }));
            }
            None => eprintln!("epoch: no profile of the {who}: perf is not there (Debian: linux-perf), or not allowed"),
        }
    }
}

/// The first ten lines of `perf report`.
fn top(recording: &Path) -> Option<Vec<String>> {
    let mut command = Command::new("perf");
    command.args(["report", "--stdio", "--no-children", "--percent-limit", "0", "--sort", "dso,symbol", "-i"]);
    let output = command.arg(recording).stdin(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let top: Vec<String> = lines
        .take(10)
        .map(|line| line.split_whitespace().filter(|word| *word != "-").collect::<Vec<_>>().join(" "))
        .collect();
    (!top.is_empty()).then_some(top)
}
