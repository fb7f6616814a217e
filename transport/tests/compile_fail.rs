//! What the types forbid: each file in `compile_fail/` must not compile, for the reasons written into it.
//!
//! A line that ends in `//~ E0382` must be where the compiler reports that error, and there must be no other errors.
//! Codes and lines stay the same from one compiler to the next; wording does not, so it is not compared. A file
//! without any marks must compile: it shows that the others fail for their reasons and not for another.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes a file not compile: line and error code.
type Reasons = BTreeSet<(u64, String)>;

#[test]
fn what_must_not_compile_does_not() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let library = library(&folder.join("control.rs"));
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    assert!(files.len() > 1);
    let mut complaints = Vec::new();
    for path in files {
        let (expected, found) = (expected(&path), compile(&path, &library));
        if expected != found {
            complaints.push(format!("{}: expected {expected:?}, found {found:?}", path.display()));
        }
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn expected(path: &Path) -> Reasons {
    let text = std::fs::read_to_string(path).unwrap();
    let marks = (1..).zip(text.lines()).filter_map(|(n, line)| Some((n, line.split_once("//~ ")?.1.trim().to_owned())));
    marks.collect()
}

/// Where cargo put the libraries that this test is linked to.
fn dependencies() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

/// The transport library that belongs to this test. Builds with other flags or compilers leave theirs in the same
/// folder: the newest one that works is right.
fn library(control: &Path) -> PathBuf {
    let mut found: Vec<_> = std::fs::read_dir(dependencies()).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libforebay_transport-") && name.ends_with(".rlib")
    });
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    let works = found.iter().find(|library| compile(control, library).is_empty());
    works.unwrap_or_else(|| panic!("{} compiles with none of {found:?}", control.display())).clone()
}

fn compile(path: &Path, library: &Path) -> Reasons {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata", "--error-format=json", "--cap-lints=allow"])
        .arg("--out-dir")
        .arg(env!("CARGO_TARGET_TMPDIR"))
        .arg("--extern")
        .arg(format!("forebay_transport={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", dependencies().display()))
        .arg(path)
        .output()
        .unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    let reasons: Reasons = messages.lines().filter_map(reason).collect();
    assert_eq!(reasons.is_empty(), output.status.success(), "{}: {messages}", path.display());
    reasons
}

/// Line and code of a message of the compiler, if it is an error. One without a code, or a line, is a reason too.
fn reason(message: &str) -> Option<(u64, String)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let text = message["message"].as_str().unwrap_or_default();
    if message["level"] != "error" || text.starts_with("aborting due to") {
        return None;
    }
    let spans = message["spans"].as_array().into_iter().flatten();
    let line = spans.filter(|span| span["is_primary"] == true).find_map(|span| span["line_start"].as_u64());
    let code = message["code"]["code"].as_str().unwrap_or(text);
    Some((line.unwrap_or(0), code.to_owned()))
}
