//! What a build reads, keeps and refuses.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use forebay_server::catalog::{BuildError, Monitor, Progress, SourceFile, build};
use forebay_server::format::Problem;

use super::support::{Place, dump, quiet, samples, tar, watched};

#[test]
fn only_what_changed_is_read_again() {
    let place = Place::new();
    let paths: Vec<_> =
        ["a", "b", "c", "d"].map(|name| place.put(&format!("{name}.tar"), &samples(name, 20, 1000))).into();
    let size = |at: usize| fs::metadata(&paths[at]).expect("there").len();
    let first = place.build().expect("intact shards");
    assert_eq!(first.bytes_read, (0..4).map(size).sum::<u64>());
    let before = (dump(&first.dataset), first.dataset.version());

    assert_eq!(place.build().expect("intact shards").bytes_read, 0, "nothing changed");

    // Touched: read again, and found to be the same.
    let file = File::options().append(true).open(&paths[1]).expect("there");
    file.set_modified(SystemTime::now() + Duration::from_secs(5)).expect("touched");
    let touched = place.build().expect("intact shards");
    assert_eq!(touched.bytes_read, size(1));
    assert_eq!((dump(&touched.dataset), touched.dataset.version()), before);

    // Replaced by a file of the same size.
    let replaced = tar(&[("z.new", vec![1; size(2) as usize - 1536])]);
    assert_eq!(replaced.len() as u64, size(2));
    place.put("new", &replaced);
    fs::rename(place.data().join("new"), &paths[2]).expect("replaced");
    let replaced = place.build().expect("intact shards");
    assert_eq!(replaced.bytes_read, size(2));
    assert_eq!(replaced.dataset.samples(), 61);
    assert_ne!(replaced.dataset.version(), before.1);
    assert_eq!(replaced.dataset.fields().len(), 3, "a field name was added");

    // Appended to, behind the end of the archive: no sample more, but other bytes.
    let mut bytes = fs::read(&paths[3]).expect("there");
    bytes.extend_from_slice(&[7; 100]);
    place.put("d.tar", &bytes);
    let appended = place.build().expect("intact shards");
    assert_eq!((appended.bytes_read, appended.dataset.samples()), (size(3), 61));
    assert_ne!(appended.dataset.version(), replaced.dataset.version());

    // Added in the middle, and taken away.
    place.put("b2.tar", &samples("b2", 1, 10));
    let added = place.build().expect("intact shards");
    assert_eq!(added.bytes_read, fs::metadata(place.data().join("b2.tar")).expect("there").len());
    assert_eq!(added.dataset.sample(40).expect("there").key, b"b2000000");
    dump(&added.dataset);
    fs::remove_file(place.data().join("b2.tar")).expect("removed");
    fs::remove_file(&paths[2]).expect("removed");
    let removed = place.build().expect("intact shards");
    assert_eq!(removed.bytes_read, 0);
    assert_eq!(removed.dataset.samples(), 60);
    assert_eq!(removed.dataset.fields().len(), 2, "a field name is gone");
    let fresh = Place::new();
    for path in [&paths[0], &paths[1], &paths[3]] {
        fs::copy(path, fresh.data().join(path.file_name().expect("a file"))).expect("copied");
    }
    let fresh = fresh.build().expect("intact shards").dataset;
    assert_eq!(dump(&fresh), dump(&removed.dataset));
    assert_eq!(fresh.describe(0), removed.dataset.describe(0), "as if it had been built at once");
}

#[test]
fn an_open_dataset_outlives_the_next_build() {
    let place = Place::new();
    place.put("a.tar", &samples("a", 9, 100));
    let old = place.build().expect("intact shards").dataset;
    place.put("b.tar", &samples("b", 9, 100));
    let new = place.build().expect("intact shards").dataset;
    assert_eq!((old.samples(), new.samples()), (9, 18));
    dump(&old);
}

#[test]
fn damage_is_told_by_shard_and_offset_and_may_be_left_out() {
    let place = Place::new();
    let good = samples("a", 20, 1000);
    place.put("a.tar", &good);
    let mut bad = samples("b", 20, 1000);
    let header = bad.windows(10).position(|bytes| bytes == b"b000013.cl").expect("a member");
    bad[header + 3] ^= 1;
    place.put("b.tar", &bad);
    let gz = [b"\x1f\x8b\x08\0".as_slice(), &[0; 600]].concat();
    place.put("c.tar", &gz);
    place.put("d.tar", &good[..good.len() - 1500]);

    let error = place.build().expect_err("three are damaged");
    let BuildError::Damaged { dataset, damage } = &error else { panic!("{error}") };
    assert_eq!(dataset, "test");
    let found: Vec<_> = damage.iter().map(|damage| (damage.shard.as_str(), damage.error.offset)).collect();
    let last = good.windows(10).rposition(|bytes| bytes == b"a000019.jp").expect("a member") as u64;
    assert_eq!(found, [("b.tar", header as u64), ("c.tar", 0), ("d.tar", last)]);
    assert_eq!(damage[0].error.problem, Problem::Checksum);
    let text = error.to_string();
    assert!(text.contains(&format!("shard b.tar: at byte {header}: bad header checksum")), "{text}");
    assert!(text.contains("unpack it with `gzip -d`"), "{text}");

    let mut request = place.request();
    request.skip_damaged = true;
    let seen = Mutex::new(Progress::default());
    let skipped = watched(&request, &|progress| *seen.lock().expect("whole") = progress.clone());
    let skipped = skipped.expect("the intact one is left");
    assert_eq!(&skipped.skipped, damage);
    let seen = seen.into_inner().expect("whole");
    assert_eq!((seen.shards_done, seen.bytes_done, seen.damaged.len()), (4, seen.bytes_total, 3));
    assert_eq!(skipped.dataset.samples(), 20);
    assert!(skipped.bytes_read <= (bad.len() + gz.len() + good.len()) as u64, "the intact one was known");

    // It is the version of the intact shards.
    let only = Place::new();
    only.put("a.tar", &good);
    assert_eq!(only.build().expect("intact").dataset.version(), skipped.dataset.version());

    // Mended, only the mended ones are read.
    let mended = samples("b", 20, 1000);
    for name in ["b.tar", "c.tar", "d.tar"] {
        place.put(name, &mended);
    }
    let built = place.build().expect("mended");
    assert_eq!((built.bytes_read, built.dataset.samples()), (3 * mended.len() as u64, 80));
    assert_ne!(built.dataset.version(), skipped.dataset.version());
}

#[test]
fn nothing_but_damage_is_an_error_even_if_it_may_be_left_out() {
    let place = Place::new();
    place.put("a.tar", b"");
    let mut request = place.request();
    request.skip_damaged = true;
    let error = quiet(&request).expect_err("nothing is left");
    assert!(error.to_string().contains("shard a.tar: at byte 0: the file is empty"), "{error}");
}

#[test]
fn a_cancelled_build_keeps_what_it_has() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.put(&format!("{name}.tar"), &samples(name, 20, 1000));
    }
    let mut request = place.request();
    request.threads = 1;
    let cancel = AtomicBool::new(false);
    let progress = |progress: &Progress| cancel.store(progress.shards_done == 1, Ordering::Relaxed);
    let error = build(&request, Monitor { progress: &progress, cancel: &cancel }).expect_err("cancelled");
    assert!(matches!(error, BuildError::Cancelled { .. }), "{error}");
    let total: u64 = request
        .sources
        .iter()
        .map(|source| fs::metadata(source.place.file().expect("a file")).expect("there").len())
        .sum();
    let built = place.build().expect("intact shards");
    assert_eq!(built.bytes_read, total / 3 * 2);
    dump(&built.dataset);
}

/// Builds, and calls `change` with the shard's path when a part of it has been read.
fn build_while(change: impl Fn(&Path) + Sync) {
    let place = Place::new();
    let path = place.put("a.tar", &samples("a", 100, 100_000));
    let once = AtomicBool::new(false);
    let progress = |progress: &Progress| {
        if progress.bytes_done > 0 && !once.swap(true, Ordering::Relaxed) {
            change(&path);
        }
    };
    let error = watched(&place.request(), &progress).expect_err("changed");
    assert!(matches!(&error, BuildError::Changed { shard, .. } if shard == "a.tar"), "{error}");
    assert_eq!(place.build().expect("it lies still now").dataset.samples(), 100);
}

#[test]
fn a_shard_that_changes_under_a_build_is_noticed() {
    // In place, of the same size, where the build has been already.
    build_while(|path| {
        File::options().write(true).open(path).expect("there").write_all_at(b"x", 600).expect("written");
    });
    // Replaced: the file being read is intact, but no longer the shard.
    build_while(|path| {
        let other = path.with_extension("new");
        fs::write(&other, samples("b", 100, 100_000)).expect("written");
        fs::rename(other, path).expect("replaced");
    });
    // Grown, and cut in the middle and made whole again.
    build_while(|path| {
        File::options().append(true).open(path).expect("there").write_all(&[0; 512]).expect("written");
    });
    build_while(|path| {
        let whole = fs::read(path).expect("there");
        File::options().write(true).open(path).expect("there").set_len(3 << 20).expect("cut");
        fs::write(path, whole).expect("written");
    });
}

/// A file system's clock is coarse: two changes may leave the same times behind, and the second must be seen all the same.
#[test]
fn a_change_right_after_a_build_is_noticed() {
    let place = Place::new();
    for i in 0..10 {
        let path = place.put("a.tar", &tar(&[("a.x", [i])]));
        place.build().expect("intact");
        // In place: the same size, the same inode.
        File::options().write(true).open(path).expect("there").write_all_at(b"y", 512).expect("written");
        assert!(place.build().expect("intact").bytes_read > 0, "round {i}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_shard_that_cannot_be_read_is_an_error_that_names_it() {
    let place = Place::new();
    let path = place.put("a.tar", &samples("a", 1, 10));
    let mut request = place.request();
    request.threads = 1;
    // Reading at 0 fails there, whoever asks.
    request.sources.push(SourceFile { name: "z.tar".into(), place: Path::new("/proc/self/mem").into() });
    let error = quiet(&request).expect_err("unreadable");
    assert!(matches!(&error, BuildError::Read { shard, offset: 0, .. } if shard == "z.tar"), "{error}");
    request.sources.pop();
    request.sources.push(SourceFile { name: "z.tar".into(), place: Path::new("/dev/null").into() });
    assert!(quiet(&request).expect_err("no file").to_string().contains("not a regular file"));
    request.sources.pop();
    assert_eq!(quiet(&request).expect("the others are kept").bytes_read, 0);
    fs::remove_file(path).expect("removed");
    let error = quiet(&request).expect_err("it is gone");
    assert!(matches!(&error, BuildError::Read { shard, .. } if shard == "a.tar"), "{error}");
}

#[test]
fn a_damaged_index_is_built_again_and_one_of_the_future_is_not() {
    let place = Place::new();
    place.put("a.tar", &samples("a", 20, 1000));
    let before = place.build().expect("intact shards").dataset.version();
    let good = fs::read(place.index()).expect("it was just built");

    // In the header, in the data (noticed when it is read), in a table; cut; not an index at all.
    let mut cases = vec![good[..good.len() - 1].to_vec(), good[..100].to_vec(), Vec::new(), b"hello".to_vec()];
    for at in [9, 300, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        cases.push(bad);
    }
    for bad in cases {
        fs::write(place.index(), &bad).expect("written");
        let built = place.build().expect("the shards are intact");
        assert!(built.discarded.is_some());
        assert_eq!(built.dataset.version(), before);
        assert_eq!(fs::read(place.index()).expect("there").len(), good.len());
    }

    // Records damaged: seen when the next build copies them.
    let mut bad = good.clone();
    bad[4096 + 100] ^= 1;
    fs::write(place.index(), &bad).expect("written");
    place.put("b.tar", &samples("b", 1, 10));
    let built = place.build().expect("the shards are intact");
    assert!(built.discarded.is_some_and(|why| why.contains("do not match their checksum")));
    assert_eq!(dump(&built.dataset).len(), 21);
    fs::remove_file(place.data().join("b.tar")).expect("removed");
    // Or when a sample is asked for: then the next build knows of it, and the one after that has nothing to do.
    fs::write(place.index(), &bad).expect("written");
    assert!(place.build().expect("it opens").dataset.sample(0).is_err(), "and reading says so");
    let built = place.build().expect("the shards are intact");
    assert!(built.bytes_read > 0 && built.discarded.is_some_and(|why| why.contains("do not match their checksum")));
    assert_eq!((dump(&built.dataset).len(), built.dataset.version()), (20, before));
    let built = place.build().expect("the shards are intact");
    assert_eq!((built.bytes_read, built.discarded), (0, None));

    let mut future = good.clone();
    future[8] = 2;
    let crc = crc32c::crc32c(&future[..4092]);
    future[4092..4096].copy_from_slice(&crc.to_le_bytes());
    fs::write(place.index(), &future).expect("written");
    let error = place.build().expect_err("not ours to replace");
    assert!(matches!(error, BuildError::Future { format: 2, .. }), "{error}");
    assert_eq!(fs::read(place.index()).expect("there"), future);
}

#[test]
fn the_index_is_private_and_the_data_is_left_alone() {
    let place = Place::new();
    place.put("a.tar", &samples("a", 20, 1000));
    let list = |path| {
        let entries = fs::read_dir(path).expect("a folder").map(|entry| entry.expect("readable").file_name());
        let mut entries: Vec<_> = entries.collect();
        entries.sort();
        entries
    };
    let before = (list(place.data()), fs::metadata(place.data()).expect("there").modified().expect("a time"));
    place.build().expect("intact shards");
    assert_eq!(before, (list(place.data()), fs::metadata(place.data()).expect("there").modified().expect("a time")));
    assert_eq!(list(place.path().join("state")), ["test.idx", "test.idx.lock"], "nothing else is left");
    let mode = fs::metadata(place.index()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn progress_goes_up_and_ends_at_the_whole() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.put(&format!("{name}.tar"), &samples(name, 100, 100_000));
    }
    let mut request = place.request();
    request.threads = 1;
    let seen = Mutex::new(Vec::new());
    watched(&request, &|progress| seen.lock().expect("whole").push(progress.clone())).expect("intact shards");
    let seen = seen.into_inner().expect("whole");
    assert!(seen.len() > 6, "{} reports", seen.len());
    assert!(seen.windows(2).all(|pair| pair[0].bytes_done <= pair[1].bytes_done));
    let last = seen.last().expect("reports");
    assert_eq!((last.bytes_done, last.shards_done, last.shards_total), (last.bytes_total, 3, 3));
}
