use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;

use super::*;
use crate::pool::Account;

/// The end of a job.
trait Wait {
    fn wait(self) -> Done;
}

impl Wait for Answer<Done> {
    fn wait(self) -> Done {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(self).expect("every job is ended")
    }
}

fn slab() -> Slab {
    Slab::new(SlabConfig { capacity: 8 << 20, lock: false }).unwrap()
}

fn lease(slab: &Slab, len: usize) -> Lease {
    let mut lease = slab.try_lease(&Account::new("test", usize::MAX), len).unwrap();
    lease.as_mut_slice().fill(0xa5);
    lease
}

fn start(config: Config) -> Engine {
    Engine::start(config).expect("these tests need a machine that allows io_uring")
}

fn byte(offset: usize) -> u8 {
    (offset * 7 + offset / 251) as u8
}

/// A file of `len` bytes on a disk: the usual temporary folder may be memory, which not every kernel reads with `O_DIRECT`.
fn file(len: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.write_all(&(0..len).map(byte).collect::<Vec<_>>()).unwrap();
    file
}

fn source(file: &tempfile::NamedTempFile, direct: Option<Alignment>) -> Source {
    let flags = direct.map_or(0, |_| libc::O_DIRECT);
    let file = File::options().read(true).custom_flags(flags).open(file.path()).unwrap();
    Source { file: Arc::new(file), direct }
}

fn part(offset: u64, len: usize, at: usize) -> Part {
    Part { source: 0, offset, len, at }
}

/// Whether a lease holds what the parts say, and is as it was elsewhere.
fn assert_holds(lease: &Lease, parts: &[Part]) {
    let mut expected = vec![0xa5; lease.len()];
    for part in parts {
        (0..part.len).for_each(|n| expected[part.at + n] = byte(part.offset as usize + n));
    }
    let wrong = lease.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "{parts:?}");
}

/// Everywhere, aligned and not, over the ends of operations, blocks and the file.
fn parts(len: usize) -> Vec<Part> {
    let wanted = [(0, 512), (1, 1), (511, 2), (4096, 4096), (1000, 300_000), (0, 1 << 20), (8192, (2 << 20) + 1)];
    let ends = [(len - 1, 1), (len - 5000, 5000), (len & !4095, len & 4095)];
    let mut at = 0;
    let mut parts = Vec::new();
    for (n, &(offset, len)) in wanted.iter().chain(&ends).enumerate() {
        // Some where they could be read to as they are, some not.
        at = if n % 2 == 0 { at + 3 } else { usize::next_multiple_of(at, 4096) };
        parts.push(part(offset as u64, len, at));
        at += len;
    }
    parts
}

fn read_everywhere(config: Config, direct: Option<Alignment>) {
    let len = (3 << 20) + 777;
    let file = file(len);
    let slab = slab();
    let engine = start(config);
    let source = source(&file, direct);
    for _ in 0..4 {
        let parts = parts(len);
        let lease = lease(&slab, parts.last().map_or(0, |last| last.at + last.len) + 9);
        let done = engine.read(Job { sources: vec![source.clone()], parts, lease }).wait();
        done.result.unwrap();
        assert_holds(&done.lease.unwrap(), &done.parts);
    }
    drop(engine);
    assert_eq!(slab.usage().free, slab.capacity());
}

const DIRECT: Option<Alignment> = Some(Alignment { block: 4096, memory: 4096 });

#[test]
fn buffered_reads_bring_the_right_bytes() {
    for (depth, files) in [(1, 0), (2, 1), (32, 64)] {
        read_everywhere(Config { depth, files, ..Config::default() }, None);
    }
}

#[test]
fn direct_reads_bring_the_right_bytes() {
    for (depth, files) in [(1, 0), (3, 1), (32, 64)] {
        read_everywhere(Config { depth, files, direct: true, ..Config::default() }, DIRECT);
    }
}

#[test]
fn registered_memory_is_read_into_and_other_memory_too() {
    let registered = slab();
    let config = Config { register: Some(registered.clone()), direct: true, ..Config::default() };
    let engine = start(config);
    let Registered { memory, files } = engine.registered();
    // A user with little memlock gets none, which is no failure.
    if let Ok(bytes) = memory {
        assert!(*bytes >= registered.capacity() as u64 + engine.bounce() as u64);
    }
    assert!(*files > 0);
    let file = file(100_000);
    for (slab, direct) in [(&registered, None), (&registered, DIRECT), (&slab(), None), (&slab(), DIRECT)] {
        let parts = vec![part(4096, 8192, 0), part(77, 10_000, 8195)];
        let job = Job { sources: vec![source(&file, direct)], parts, lease: lease(slab, 20_000) };
        let done = engine.read(job).wait();
        done.result.unwrap();
        assert_holds(&done.lease.unwrap(), &done.parts);
    }
}

#[test]
fn many_files_share_few_numbers_and_many_jobs_the_ring() {
    let files: Vec<_> = (0..20).map(|n| file(10_000 + n)).collect();
    let slab = slab();
    let engine = start(Config { depth: 4, files: 3, ..Config::default() });
    for _ in 0..5 {
        let jobs: Vec<_> = (0..files.len())
            .map(|n| {
                let sources = (0..3).map(|m| source(&files[(n + m * 7) % files.len()], None)).collect();
                let parts = (0..3).map(|m| Part { source: m, ..part(100, 9000, m as usize * 9001) }).collect();
                engine.read(Job { sources, parts, lease: lease(&slab, 27_010) })
            })
            .collect();
        for job in jobs {
            let done = job.wait();
            done.result.unwrap();
            assert_holds(&done.lease.unwrap(), &done.parts);
        }
        engine.sweep();
    }
}

#[test]
fn what_is_not_there_fails_and_says_which() {
    let file = file(10_000);
    let slab = slab();
    let engine = start(Config { direct: true, ..Config::default() });
    for direct in [None, DIRECT] {
        for (offset, len) in [(9_999, 2), (10_000, 1), (8192, 4096), (1 << 20, 1)] {
            let parts = vec![part(0, 10, 0), part(offset, len, 4096)];
            let job = Job { sources: vec![source(&file, direct)], parts, lease: lease(&slab, 10_000) };
            let done = engine.read(job).wait();
            assert!(matches!(done.result, Err(Failed::Ended { part: 1 })), "{offset}+{len}: {:?}", done.result);
            assert!(done.lease.is_some());
        }
    }
    let writable = Source { file: Arc::new(File::options().append(true).open(file.path()).unwrap()), direct: None };
    let job = Job { sources: vec![writable], parts: vec![part(0, 1, 0)], lease: lease(&slab, 1) };
    let done = engine.read(job).wait();
    assert!(matches!(&done.result, Err(Failed::Io { source, .. }) if source.raw_os_error() == Some(libc::EBADF)));
}

#[test]
fn nothing_out_of_bounds_reaches_the_kernel() {
    let file = file(10_000);
    let slab = slab();
    let engine = start(Config::default());
    let odd = Some(Alignment { block: 513, memory: 4 });
    for (wrong, direct) in [
        (part(0, 11, 0), None),
        (part(0, 1, usize::MAX), None),
        (part(0, usize::MAX, 1), None),
        (part(u64::MAX, 2, 0), None),
        (part(1 << 62, 1, 0), None),
        (Part { source: 1, ..part(0, 1, 0) }, None),
        (part(0, 1, 0), odd),
    ] {
        let job = Job { sources: vec![source(&file, None)], parts: vec![wrong], lease: lease(&slab, 10) };
        let job = Job { sources: vec![Source { direct, ..job.sources[0].clone() }], ..job };
        let done = engine.read(job).wait();
        assert!(matches!(done.result, Err(Failed::OutOfBounds { part: 0 })), "{wrong:?}");
    }
}

/// A read that the kernel does not end: from an empty pipe. Writing to the other end ends it.
fn endless() -> (Source, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (Source { file: Arc::new(reader), direct: None }, writer)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}: not so after ten seconds");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_overdue_lease_is_set_aside_until_the_kernel_lets_go_of_it() {
    let (file, slab) = (file(10_000), slab());
    let engine = start(Config { depth: 2, patience: Duration::from_millis(100), ..Config::default() });
    let (source_, mut writer) = endless();
    let job = Job { sources: vec![source_], parts: vec![part(0, 10, 0)], lease: lease(&slab, 10) };
    let done = engine.read(job).wait();
    assert!(matches!(done.result, Err(Failed::Overdue { part: 0, .. })), "{:?}", done.result);
    assert!(done.lease.is_none());
    assert_eq!(slab.usage().quarantined, slab.frame());
    // Others go on meanwhile.
    let job = Job { sources: vec![source(&file, None)], parts: vec![part(5, 10, 0)], lease: lease(&slab, 10) };
    let done = engine.read(job).wait();
    assert_holds(&done.lease.unwrap(), &done.parts);
    writer.write_all(b"0123456789").unwrap();
    until("the lease is back", || slab.usage().free == slab.capacity());
}

#[test]
fn who_waits_behind_a_stuck_ring_is_told_and_gets_the_lease_back() {
    let (file, slab) = (file(10_000), slab());
    let engine = start(Config { depth: 1, patience: Duration::from_millis(100), ..Config::default() });
    let (source_, writer) = endless();
    let job = |source, len| Job { sources: vec![source], parts: vec![part(0, len, 0)], lease: lease(&slab, len) };
    let stuck = engine.read(job(source_, 10));
    let behind = engine.read(job(source(&file, None), 20));
    assert!(stuck.wait().lease.is_none());
    let behind = behind.wait();
    assert!(matches!(behind.result, Err(Failed::Overdue { .. })), "{:?}", behind.result);
    assert_eq!(behind.lease.map(|lease| lease.len()), Some(20));
    // The other end is gone: the read ends, if with nothing.
    drop(writer);
    until("the lease is back", || slab.usage().free == slab.capacity());
    assert!(engine.read(job(source(&file, None), 20)).wait().result.is_ok());
}

#[test]
fn a_job_given_up_keeps_its_lease_until_the_kernel_is_through() {
    let slab = slab();
    let engine = start(Config::default());
    let (source, writer) = endless();
    let file = source.file.clone();
    let job = Job { sources: vec![source], parts: vec![part(0, 10, 0)], lease: lease(&slab, 10) };
    let reading = engine.read(job);
    until("the kernel has it", || Arc::strong_count(&file) > 2);
    drop(reading);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(slab.usage().free, slab.capacity() - slab.frame());
    drop(writer);
    until("the lease is back", || slab.usage().free == slab.capacity());
}

#[test]
fn closing_ends_what_waits_and_waits_for_what_flies() {
    let (file, slab) = (file(10_000), slab());
    let engine = start(Config { depth: 1, ..Config::default() });
    let (source_, mut writer) = endless();
    let pipe = source_.file.clone();
    let flying = Job { sources: vec![source_], parts: vec![part(0, 10, 0)], lease: lease(&slab, 10) };
    let flying = engine.read(flying);
    let job = || Job { sources: vec![source(&file, None)], parts: vec![part(0, 10, 0)], lease: lease(&slab, 10) };
    let waiting: Vec<_> = (0..20).map(|_| engine.read(job())).collect();
    until("the kernel has it", || Arc::strong_count(&pipe) > 2);
    engine.close();
    for waiting in waiting {
        let done = waiting.wait();
        assert!(matches!(done.result, Err(Failed::Closed)) && done.lease.is_some());
    }
    assert!(matches!(engine.read(job()).wait().result, Err(Failed::Closed)));
    writer.write_all(b"0123456789").unwrap();
    let done = flying.wait();
    done.result.unwrap();
    assert_eq!(&done.lease.unwrap()[..], b"0123456789");
    until("all leases are back", || slab.usage().free == slab.capacity());
}

#[test]
fn memory_that_the_kernel_never_lets_go_of_is_never_lent_again() {
    let slab = slab();
    let engine = start(Config { patience: Duration::from_millis(50), ..Config::default() });
    let (source, mut writer) = endless();
    let job = Job { sources: vec![source.clone()], parts: vec![part(0, 10, 0)], lease: lease(&slab, 10) };
    let done = engine.read(job);
    until("the kernel has it", || Arc::strong_count(&source.file) > 2);
    drop(engine);
    assert!(done.wait().lease.is_none());
    // The thread gives up after a while; the file is let go of, the lease is not.
    until("the thread is gone", || Arc::strong_count(&source.file) == 1);
    assert_eq!(slab.usage().quarantined, slab.frame());
    let _ = writer.write_all(b"late");
    assert_eq!(slab.usage().quarantined, slab.frame());
}

#[test]
fn a_closed_file_is_let_go_of_by_the_ring_too() {
    // A pipe tells its writer when nobody can read from it any more.
    let (source, mut writer) = endless();
    let slab = slab();
    let engine = start(Config::default());
    for _ in 0..2 {
        writer.write_all(b"0123456789").unwrap();
        let job = Job { sources: vec![source.clone()], parts: vec![part(0, 10, 0)], lease: lease(&slab, 10) };
        engine.read(job).wait().result.unwrap();
    }
    drop(source);
    engine.sweep();
    until("the pipe is broken", || (&writer).write(b"x").is_err());
}

#[test]
fn a_file_that_shrinks_under_a_long_read_is_noticed() {
    let file = file(3 << 20);
    let slab = slab();
    let engine = start(Config { depth: 1, ..Config::default() });
    file.as_file().set_len((2 << 20) + 100).unwrap();
    file.as_file().rewind().unwrap();
    let job =
        Job { sources: vec![source(&file, None)], parts: vec![part(0, 3 << 20, 0)], lease: lease(&slab, 3 << 20) };
    let done = engine.read(job).wait();
    assert!(matches!(done.result, Err(Failed::Ended { part: 0 })), "{:?}", done.result);
}
