//! The tests' Python environment: other people's writers, readers and HTTP/3 clients.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The environment's interpreter. Made by `scripts/python-env` where it is missing, which needs the network once.
///
/// # Panics
/// When it cannot be made: a test that needs it must not pass without it.
pub fn interpreter() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let output = Command::new(crate::root().join("scripts/python-env"))
            .stderr(Stdio::inherit())
            .output()
            .expect("scripts/python-env runs");
        assert!(output.status.success(), "scripts/python-env: {}", output.status);
        PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
    })
}

/// Runs `tests/python/{script}` and returns what it printed.
///
/// # Panics
/// When it fails; its own complaints are on standard error.
pub fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(script: &str, arguments: I) -> String {
    let path = crate::root().join("tests/python").join(script);
    let output = Command::new(interpreter())
        .arg(&path)
        .args(arguments)
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(output.status.success(), "{script}: {}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8 output")
}
