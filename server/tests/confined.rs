//! Shards on this machine where a process is not allowed everything: the conformance suite of stores under a filter that
//! refuses io_uring, as a user with little locked memory, and without huge pages; and which system calls reading takes.
//!
//! What is confined is a process of its own: this program again, with one test.
#![cfg(all(target_os = "linux", feature = "uring"))]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use forebay_server::catalog::{Identity, ShardFile};
use forebay_server::store::{Direct, Io, LocalConfig, LocalError, LocalStores, Read, conformance};
use forebay_transport::pool::{Account, Slab, SlabConfig};

/// Tells the inner process what to find.
const EXPECT: &str = "FOREBAY_TEST_EXPECT";
/// Tells the inner process how often to read.
const ROUNDS: &str = "FOREBAY_TEST_ROUNDS";
const MEMLOCK: &str = "65536";
const NOBODY: &str = "65534";

fn slab() -> Slab {
    Slab::new(SlabConfig { capacity: 4 << 20, lock: true }).unwrap()
}

fn stores(io: Io, direct: Direct, slab: &Slab) -> Result<LocalStores, LocalError> {
    LocalStores::new(&LocalConfig { io, direct, ..LocalConfig::default() }, slab)
}

/// What the inner processes run, and harmless by itself.
#[tokio::test]
async fn inner_conforms() {
    let expected = std::env::var(EXPECT).unwrap_or_default();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for direct in [Direct::Off, Direct::On] {
        let slab = slab();
        let stores = stores(Io::Auto, direct, &slab).unwrap();
        let notes = stores.notes().join("\n");
        match &expected[..] {
            "threads" => {
                assert!(!stores.is_uring() && !stores.is_direct());
                assert_eq!(stores.notes().len(), 1);
                assert!(notes.contains("threads instead of io_uring") && notes.contains("To mend it: "), "{notes}");
                let error = self::stores(Io::Uring, direct, &slab).unwrap_err().to_string();
                assert!(error.contains("io_uring was asked for") && error.contains("To mend it: "), "{error}");
                println!("seen: {notes}");
            }
            "unregistered" => {
                assert!(stores.is_uring() && !slab.is_locked());
                assert_eq!((stores.registered(), stores.notes().len()), (0, 1));
                assert!(notes.contains("RLIMIT_MEMLOCK is too small") && notes.contains("ulimit -l"), "{notes}");
                assert!(self::stores(Io::Uring, direct, &slab).is_ok());
                println!("seen: {notes}");
            }
            "small pages" => {
                let (smaps, name) = (fs::read_to_string("/proc/self/smaps_rollup").unwrap(), "AnonHugePages:");
                let huge = smaps.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                assert!(huge.trim() == "0 kB" && !slab.is_huge(), "{huge}");
                assert!(stores.is_uring() && notes.is_empty(), "{notes}");
                println!("seen: {name}{huge}");
            }
            _ => {}
        }
        let make = |shards| stores.open(shards).unwrap();
        let dir = dir.path().join(format!("{direct:?}"));
        conformance::bytes_into(&slab, &dir.join("bytes"), make).await;
        conformance::changes(&dir.join("changes"), make).await;
    }
}

/// Reads from many files, many times.
#[tokio::test]
async fn inner_reads() {
    let rounds: u32 = std::env::var(ROUNDS).map_or(1, |rounds| rounds.parse().unwrap());
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let shards = (0..40u8).map(|n| {
        let path = dir.path().join(n.to_string());
        fs::write(&path, vec![n; 20_000]).unwrap();
        ShardFile { name: n.to_string(), identity: Identity::of(&fs::metadata(&path).unwrap()), place: path.into() }
    });
    let (slab, account) = (slab(), Account::new("test", usize::MAX));
    let stores = stores(Io::Auto, Direct::On, &slab).unwrap();
    let store = stores.open(shards.collect()).unwrap();
    for round in 0..rounds * 40 {
        let read =
            |n: u32| Read { shard: (round + n * 3) % 40, offset: 512 * u64::from(n), len: 4000, at: 4096 * n as usize };
        let lease = slab.try_lease(&account, 4 * 4096).unwrap();
        let done = store.read((0..4).map(read).collect(), lease).await;
        done.result.unwrap();
        for n in 0..4 {
            assert!(done.lease[4096 * n as usize..][..4000].iter().all(|&byte| u32::from(byte) == read(n).shard));
        }
    }
}

/// This program, where anybody may run it.
struct Program {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn program() -> Program {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("confined");
    fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    Program { _dir: dir, path }
}

fn run(mut command: Command, what: &str) -> Output {
    let output =
        command.output().unwrap_or_else(|error| panic!("{what}: {error} (scripts/deps installs what is needed)"));
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{what}:\n{text}");
    output
}

fn confined(arguments: &[&str], expect: &str) {
    let program = program();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/python/confined.py");
    // Read here: the other user may not reach it.
    let mut command = Command::new("python3");
    command.arg("-c").arg(fs::read_to_string(script).unwrap()).args(arguments).arg("--").arg(&program.path);
    command.args(["--exact", "inner_conforms", "--nocapture"]).env(EXPECT, expect).current_dir("/");
    let output = run(command, expect);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("seen: ") && text.contains("1 passed"), "{text}");
}

#[test]
fn conforms_where_a_filter_refuses_io_uring() {
    confined(&["--no-uring", &libc::EPERM.to_string()], "threads");
}

#[test]
fn conforms_where_a_filter_hides_io_uring() {
    confined(&["--no-uring", &libc::ENOSYS.to_string()], "threads");
}

#[test]
fn conforms_for_a_user_with_little_locked_memory() {
    confined(&["--memlock", MEMLOCK, "--uid", NOBODY], "unregistered");
}

#[test]
fn conforms_without_huge_pages() {
    confined(&["--no-huge-pages"], "small pages");
}

/// How many `io_uring_register` calls a process makes that reads so often.
fn registrations(rounds: u32) -> usize {
    let program = program();
    let trace = program.path.with_extension("trace");
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=io_uring_register,io_uring_enter", "-o"]).arg(&trace).arg(&program.path);
    command.args(["--exact", "inner_reads"]).env(ROUNDS, rounds.to_string());
    run(command, "strace");
    let trace = fs::read_to_string(trace).unwrap();
    // From the first read on, there are no more.
    let entered = trace.find("io_uring_enter(").expect("reads through the ring");
    assert!(!trace[entered..].contains("io_uring_register("), "registered while reading:\n{trace}");
    trace.lines().filter(|line| line.contains("io_uring_register(")).count()
}

#[test]
fn nothing_is_registered_after_the_start() {
    let least = registrations(1);
    assert!((2..10).contains(&least), "{least}: a probe, memory and files");
    assert_eq!(registrations(20), least);
}
