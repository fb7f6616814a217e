//! House rules that a compiler does not check: who may depend on whom, what is named where, how long things may grow.
//!
//! Each test lists everything it objects to, as `path:line`, so that one run is enough to mend it all.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines a source file may have. A longer file is more than one thing.
const FILE_LINES: usize = 600;
/// Lines a function may have, tests included.
const FUNCTION_LINES: usize = 80;
/// Functions that had to be longer, with their length: they may shrink, never grow, and leave the list once they fit.
const LONGER_FUNCTIONS: &[(&str, &str, usize)] = &[];
/// rustfmt keeps code at 120; a comment may end its word.
const RUST_WIDTH: usize = 132;
const PROSE_WIDTH: usize = 160;

/// Where `unsafe` may be written: memory shared with devices and the kernel, and the operating system's own calls.
const UNSAFE_ALLOWED: &[&str] = &[
    "transport/src/pool/",
    "transport/src/uring/",
    "transport/src/rdma/",
    "server/src/catalog/index/os.rs",
    "cli/src/usage.rs",
    "tests/support/allocations.rs",
    "tests/wire/src/tun.rs",
    "tests/wire/src/ceiling.rs",
];
/// The client's step machine: time is passed in, randomness is seeded, nothing is spawned.
const PURE: &[&str] =
    &["client/src/plan", "client/src/window", "client/src/fetch", "client/src/loader", "client/src/select"];
const IMPURE_WORDS: &[&str] =
    &["Instant::now", "SystemTime::now", "thread::spawn", "thread::sleep", "tokio::", "std::fs", "std::net"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the project with one of these extensions, as (path relative to the root, text).
fn sources(extensions: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && !name.starts_with("target") {
                    folders.push(path);
                }
            } else if extensions.iter().any(|extension| name.ends_with(extension)) {
                found.push((relative(path), fs::read_to_string(entry.path()).expect("UTF-8 source")));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no sources found under {}", root().display());
    found
}

fn relative(path: PathBuf) -> String {
    path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned()
}

/// A line without its `//` comment. Good enough for rules: a `//` inside a string only makes a rule look at less.
fn code(line: &str) -> &str {
    line.find("//").map_or(line, |at| &line[..at])
}

/// Whether `word` stands in `line` with no identifier character right before it.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn assert_none(complaints: &[String], rule: &str) {
    assert!(complaints.is_empty(), "{rule}:\n  {}", complaints.join("\n  "));
}

/// Complaints about every line of Rust for which `wrong(path, line)` holds. This file is exempt: it names what it bans.
fn lines_where(wrong: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in sources(&[".rs"]).iter().filter(|(path, _)| path != "tests/style.rs") {
        for (index, line) in text.lines().enumerate() {
            if wrong(path, code(line)) {
                complaints.push(format!("{path}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    complaints
}

#[test]
fn crates_depend_in_one_direction() {
    let mut complaints = Vec::new();
    for (krate, banned) in [
        ("transport", &["forebay-server", "forebay-client"] as &[&str]),
        ("server", &["forebay-client"]),
        ("client", &["forebay-server"]),
    ] {
        let manifest = fs::read_to_string(root().join(krate).join("Cargo.toml")).expect("a manifest");
        for line in manifest.lines() {
            if banned.iter().any(|name| line.trim_start().starts_with(name)) {
                complaints.push(format!("{krate}/Cargo.toml: {line}"));
            }
        }
    }
    assert_none(&complaints, "client and server meet only in cli, tests and benches; transport knows neither");
}

#[test]
fn fabrics_are_named_only_in_transport() {
    let verbs = lines_where(|path, line| {
        // Whether the kernel's file of that name can be opened is looked at where the machine is.
        let file = path.starts_with("cli/src/doctor/") && names(line, "rdma_cm");
        !path.starts_with("transport/src/rdma/")
            && (names(line, "ibv_") || names(line, "rdma_sys") || (names(line, "rdma_cm") && !file))
    });
    assert_none(&verbs, "verbs are named only in transport/src/rdma");
    let quic = lines_where(|path, line| {
        (path.starts_with("client/src/") || path.starts_with("server/src/"))
            && (names(line, "quinn::") || names(line, "h3_quinn"))
    });
    assert_none(&quic, "QUIC is named only in transport");
    let uring = lines_where(|path, line| !path.starts_with("transport/src/uring/") && names(line, "io_uring::"));
    assert_none(&uring, "io_uring is named only in transport/src/uring");
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    let complaints = lines_where(|path, line| {
        let written = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait", "unsafe extern", "allow(unsafe_code)"];
        !UNSAFE_ALLOWED.iter().any(|room| path.starts_with(room)) && written.iter().any(|form| line.contains(form))
    });
    assert_none(&complaints, "unsafe code is allowed only where UNSAFE_ALLOWED says");
}

#[test]
fn the_clients_core_reads_no_clock() {
    let complaints = lines_where(|path, line| {
        PURE.iter().any(|room| path.starts_with(room)) && IMPURE_WORDS.iter().any(|word| names(line, word))
    });
    assert_none(&complaints, "plan, window, fetch and loader do no I/O and are given the time");
}

#[test]
fn nothing_is_left_unfinished() {
    let complaints = lines_where(|_, line| {
        ["todo!(", "unimplemented!(", "dbg!("].iter().any(|word| names(line, word)) || line.contains("#[ignore]")
    });
    assert_none(&complaints, "no stubs, and an ignored test says why");
    let mut complaints = Vec::new();
    for (path, text) in sources(&[".rs", ".md", ".py", ".toml"]).iter().filter(|(path, _)| path != "tests/style.rs") {
        for (index, line) in text.lines().enumerate() {
            if ["TODO", "FIXME", "XXX"].iter().any(|word| names(line, word)) {
                complaints.push(format!("{path}:{}: {}", index + 1, line.trim()));
            }
        }
    }
    assert_none(&complaints, "unfinished work is finished, or is an issue, not a comment");
}

#[test]
fn files_and_lines_stay_readable() {
    let mut complaints = Vec::new();
    for (path, text) in sources(&[".rs", ".md", ".py"]) {
        let (width, prose) = if path.ends_with(".md") { (PROSE_WIDTH, true) } else { (RUST_WIDTH, false) };
        let lines = text.lines().count();
        if !prose && lines > FILE_LINES {
            complaints.push(format!("{path}: {lines} lines; at most {FILE_LINES}"));
        }
        for (index, line) in text.lines().enumerate() {
            let wide = line.chars().count();
            // A table's row or a link cannot be broken, and rustfmt leaves strings as they are.
            let text = line.contains('"');
            if wide > width && !text && !(prose && (line.starts_with('|') || line.contains("](http"))) {
                complaints.push(format!("{path}:{}: {wide} characters; at most {width}", index + 1));
            }
            if line.ends_with([' ', '\t']) || (line.contains('\t') && !prose) {
                complaints.push(format!("{path}:{}: a tab or trailing space", index + 1));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            complaints.push(format!("{path}: no newline at the end"));
        }
    }
    assert_none(&complaints, "files are short and lines fit a screen");
}

/// The functions of a source in rustfmt's form, as (name, first line, lines): a body ends at the first `}` indented as
/// its `fn` is; a declaration without a body, or all on one line, is none.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let trimmed = code(line).trim_start();
        let indent = &line[..line.len() - line.trim_start().len()];
        let words: Vec<&str> = trimmed.split_whitespace().collect();
        let Some(at) = words.iter().position(|word| *word == "fn") else { continue };
        let qualifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"C\""];
        if !words[..at].iter().all(|word| qualifiers.contains(word)) {
            continue;
        }
        let name = words.get(at + 1).map_or("", |word| word.split(['(', '<']).next().unwrap_or(""));
        if trimmed.trim_end().ends_with([';', '}']) {
            continue;
        }
        let (closing, declared) = (format!("{indent}}}"), format!("{indent})"));
        let end = lines[start..]
            .iter()
            .position(|line| *line == closing || (line.starts_with(&declared) && line.ends_with(';')));
        if let Some(length) = end.filter(|end| lines[start + end] == closing) {
            found.push((name.to_owned(), start + 1, length + 1));
        }
    }
    found
}

#[test]
fn functions_stay_short() {
    let mut complaints = Vec::new();
    let mut still_long = Vec::new();
    for (path, text) in sources(&[".rs"]) {
        for (name, line, length) in functions(&text) {
            let listed = LONGER_FUNCTIONS.iter().find(|(file, function, _)| *file == path && *function == name);
            let limit = listed.map_or(FUNCTION_LINES, |(_, _, lines)| *lines);
            if length > limit {
                complaints.push(format!("{path}:{line}: {name} has {length} lines; at most {limit}"));
            }
            if length > FUNCTION_LINES {
                still_long.push((path.clone(), name));
            }
        }
    }
    for (file, function, _) in LONGER_FUNCTIONS {
        if !still_long.iter().any(|(path, name)| path == file && name == function) {
            complaints.push(format!("{file}: {function} fits by now: take it off LONGER_FUNCTIONS"));
        }
    }
    assert_none(&complaints, "a function is one thought");
}

#[test]
fn every_crate_is_on_the_map() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).expect("a members line");
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let complaints: Vec<String> = members
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|member| !map.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{member}/`"))))
        .map(|member| format!("{member}: no row in ARCHITECTURE.md's table"))
        .collect();
    assert_none(&complaints, "ARCHITECTURE.md shows the whole house");
}

/// The rules above are only as good as the little parser under them.
#[test]
fn the_parser_sees_functions_and_comments() {
    let text = "trait T {\n    fn short(&self);\n}\nimpl A {\n    pub async fn long(&self) {\n        x();\n    }\n}\n\nconst fn f() -> u8 {\n    1\n}\n";
    let found = functions(text);
    assert_eq!(found, [("long".to_owned(), 5, 3), ("f".to_owned(), 10, 3)]);
    assert_eq!(code("let x = 1; // unsafe {"), "let x = 1; ");
    assert!(names("std::Instant::now()", "Instant::now") && !names("MyInstant::now()", "Instant::now"));
}
