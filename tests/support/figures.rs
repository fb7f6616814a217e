//! Results of benches: JSON lines, each with where it comes from.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value, json};

/// The middle one of `values` (the lower of the two middle ones).
///
/// # Panics
/// When there are none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}

/// A bench's results, appended to `target/bench/{name}.jsonl`.
#[derive(Debug)]
pub struct Figures {
    bench: &'static str,
    command: String,
    path: PathBuf,
    smoke: bool,
}

impl Figures {
    /// With `smoke`, figures are printed and go nowhere: they mean nothing.
    ///
    /// # Panics
    /// When the folder cannot be made.
    pub fn new(bench: &'static str, smoke: bool) -> Figures {
        let folder = crate::root().join("target/bench");
        fs::create_dir_all(&folder).expect("target/bench");
        let command = format!("cargo bench -p forebay-system --bench {bench}");
        Figures { bench, command, path: folder.join(format!("{bench}.jsonl")), smoke }
    }

    /// Notes one figure. `more` says what else belongs to it: the single runs, a profile, the settings.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn note(&self, figure: &str, value: f64, unit: &str, more: Value) {
        println!("{}: {figure}: {value:.3} {unit}", self.bench);
        if self.smoke {
            return;
        }
        let mut line = Map::new();
        for (key, field) in [
            ("bench", json!(self.bench)),
            ("figure", json!(figure)),
            ("value", json!(value)),
            ("unit", json!(unit)),
            ("commit", json!(commit())),
            ("machine", json!(machine())),
            ("command", json!(self.command)),
            ("more", more),
        ] {
            line.insert(key.to_owned(), field);
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path).expect("a file for figures");
        writeln!(file, "{}", Value::Object(line)).expect("a figure is written");
    }
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir(crate::root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The commit that is measured, with a `+` when there are changes on top of it.
fn commit() -> String {
    let hash = output("git", &["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    let changed =
        output("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    if changed { hash + "+" } else { hash }
}

fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, {cores} cores, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}
