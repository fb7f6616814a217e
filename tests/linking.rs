//! What our programs are linked with: nothing of RDMA. The libraries are looked for when they are needed, and a machine
//! without them runs the very same program.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_system::program::{PATIENCE, Running, forebay};

/// The names of the shared libraries that the system's loader must find before `program` runs.
fn needed(program: &Path) -> Vec<String> {
    let output = Command::new("readelf").arg("--dynamic").arg("--wide").arg(program).output().expect("readelf runs");
    assert!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("readelf prints text");
    let name = |line: &str| Some(line.split_once("(NEEDED)")?.1.split_once('[')?.1.split_once(']')?.0.to_owned());
    text.lines().filter_map(name).collect()
}

#[test]
fn no_program_needs_the_rdma_libraries() {
    // This test's own program has the whole of both ends in it, and so has each bench.
    for program in [forebay().to_path_buf(), std::env::current_exe().expect("our own path")] {
        let needed = needed(&program);
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "readelf shows what is needed: {needed:?}");
        let rdma = needed.iter().filter(|name| name.contains("ibverbs") || name.contains("rdmacm")).collect::<Vec<_>>();
        assert!(rdma.is_empty(), "{} needs {rdma:?}", program.display());
    }
}

/// Where the system keeps the libraries of RDMA, their plug-ins included.
fn rdma_libraries() -> Vec<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let rdma = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("libibverbs") || name.starts_with("librdmacm")
    };
    // What links lead to is in the same folder, and found by itself.
    entries.map(|entry| entry.path()).filter(rdma).filter(|path| !path.is_symlink()).collect()
}

#[test]
fn the_program_starts_where_there_are_none() {
    let hide = |path: PathBuf| match path.is_dir() {
        true => format!("mount -t tmpfs none {}", path.display()),
        false => format!("mount --bind /dev/null {}", path.display()),
    };
    let hidden = rdma_libraries().into_iter().map(hide).collect::<Vec<_>>();
    let alone = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-ec", script]).env("F", forebay());
        command
    };
    if hidden.is_empty() {
        println!("this machine has no RDMA libraries to hide");
    }
    let hide = format!(":; {}", hidden.join("; "));
    if !alone(&hide).output().is_ok_and(|output| output.status.success()) {
        eprintln!("!! SKIPPED: starting without RDMA libraries: this machine lets nobody hide them");
        return;
    }
    let script =
        format!("{hide}; ! ldd \"$F\" | grep -E 'ibverbs|rdmacm'; \"$F\" --version; \"$F\" demo --help >/dev/null");
    let finished = Running::start(alone(&script)).finish(PATIENCE);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.text().starts_with("forebay "), "{}", finished.text());
}
