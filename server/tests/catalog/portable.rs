//! Indexes that travel with the shards, and what is found rotten with their help.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use forebay_server::catalog::{BuildError, Dataset, Depth, RotProblem, Verified, beside, open, resolve, root, verify};

use super::support::{Place, dump, quiet, samples, tar};

/// Copies the shards and times of last change, as `cp -p` and `rsync -a` do.
fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("there").flatten() {
        let copy = to.join(entry.file_name());
        fs::copy(entry.path(), &copy).expect("copied");
        let modified = entry.metadata().expect("there").modified().expect("a time");
        File::options().append(true).open(copy).expect("there").set_modified(modified).expect("set");
    }
}

#[test]
fn an_index_serves_a_copy_of_the_data_as_it_lies() {
    let (made, copied) = (Place::new(), Place::new());
    for name in ["a", "b", "c"] {
        made.put(&format!("{name}.tar"), &samples(name, 10, 2000));
    }
    let mut request = made.request();
    request.index = made.data().join("forebay.fbi");
    let built = quiet(&request).expect("intact");
    let expected = (built.dataset.version(), dump(&built.dataset));
    copy(&made.data(), &copied.data());

    let mut request = copied.request();
    let found = beside(&request.sources, &[]).expect("it was copied along");
    assert_eq!(found.file(), Some(&*copied.data().join("forebay.fbi")));
    request.portable = Some(found.clone());
    let built = quiet(&request).expect("intact");
    assert_eq!(built.bytes_read, 0);
    assert_eq!((built.dataset.version(), dump(&built.dataset)), expected);
    assert!(!copied.index().exists(), "nothing was written");
    let identity = built.dataset.shards()[0].file.identity;
    assert_eq!(
        identity,
        quiet(&copied.request()).expect("intact").dataset.shards()[0].file.identity,
        "that of the copy"
    );

    // One shard more, and one that was written to: only these are read, into an index of our own.
    fs::remove_dir_all(copied.index().parent().expect("a folder")).expect("there");
    let added = copied.put("d.tar", &samples("d", 1, 10));
    let changed = copied.put("b.tar", &samples("x", 10, 2000));
    request.sources = resolve(copied.data().to_str().expect("UTF-8")).expect("shards");
    assert_eq!(beside(&request.sources, &[]), Some(found), "it knows some of them");
    let built = quiet(&request).expect("intact");
    assert_eq!(
        built.bytes_read,
        [added, changed].map(|path| fs::metadata(path).expect("there").len()).iter().sum::<u64>()
    );
    assert!(copied.index().exists());
    let fresh = Place::new();
    copy(&copied.data(), &fresh.data());
    assert_eq!(built.dataset.version(), fresh.build().expect("intact").dataset.version());
    assert_eq!(dump(&built.dataset).len(), 31);
}

#[test]
fn an_index_that_is_no_use_is_told_of() {
    let place = Place::new();
    place.put("a.tar", &samples("a", 10, 100));
    let mut request = place.request();
    request.portable = Some(place.path().join("missing.fbi").into());
    assert!(matches!(quiet(&request), Err(BuildError::Open { .. })));
    fs::write(place.path().join("garbage.fbi"), b"garbage").expect("written");
    request.portable = Some(place.path().join("garbage.fbi").into());
    let built = quiet(&request).expect("the shards are intact");
    assert!(built.discarded.expect("why").contains("shorter than a header"));
    assert_eq!(built.dataset.samples(), 10);
}

#[test]
fn shards_are_named_from_their_root() {
    let place = Place::new();
    fs::create_dir(place.data().join("sub")).expect("made");
    place.put("sub/a.tar", &samples("a", 1, 1));
    place.put("b.tar", &samples("b", 1, 1));
    assert_eq!(root(&place.request().sources), Some(place.data()));
    let one = resolve(place.data().join("sub/*.tar").to_str().expect("UTF-8")).expect("one");
    assert_eq!(root(&one), Some(place.data().join("sub")));
    let mixed = [place.request().sources, one].concat();
    assert_eq!((root(&mixed), beside(&mixed, &[])), (None, None));
    let built = place.build().expect("intact");
    let opened = open("test", &place.index(), &place.data()).expect("good");
    assert_eq!(dump(&opened), dump(&built.dataset));
}

/// An index from elsewhere must not lead out of its folder.
#[test]
fn an_index_does_not_name_files_elsewhere() {
    let place = Place::new();
    place.put("a.tar", &samples("a", 1, 1));
    for name in ["../a.tar", "/etc/passwd", "x/../../a.tar"] {
        let mut request = place.request();
        request.sources[0].name = name.to_owned();
        quiet(&request).expect("an index with an odd name");
        let error = open("test", &place.index(), &place.data()).expect_err("refused");
        assert!(error.to_string().contains("does not lie below its folder"), "{error}");
    }
}

fn check(dataset: &Dataset) -> Verified {
    verify(dataset, 2, &|_| {}, &AtomicBool::new(false)).expect("an intact index")
}

#[test]
fn rot_is_found_where_it_is() {
    let place = Place::new();
    let a = place.put("a.tar", &samples("a", 20, 7000));
    let b = place.put("b.tar", &samples("b", 20, 7000));
    let c = place.put("c.tar", &samples("c", 20, 7000));
    let d = place.put("d.tar", &tar(&[("k.txt", "text")]));
    let dataset = place.build().expect("intact").dataset;
    let sound = check(&dataset);
    let size: u64 = [&a, &b, &c, &d].iter().map(|path| fs::metadata(path).expect("there").len()).sum();
    assert_eq!((sound.rot.len(), sound.found, sound.shards, sound.bytes), (0, 0, 4, size));

    let flip = |path: &Path, offset: u64| {
        let file = File::options().read(true).write(true).open(path).expect("there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).expect("there");
        file.write_all_at(&[byte[0] ^ 1], offset).expect("there");
    };
    let sample = dataset.sample(25).expect("there");
    let jpg = sample.fields[1].extent;
    assert!(jpg.len > 0);
    flip(&b, jpg.offset + jpg.len - 1);
    // Also a byte of the last block, which no sample owns.
    flip(&c, fs::metadata(&c).expect("there").len() - 1);
    fs::remove_file(&a).expect("removed");
    File::options().write(true).open(&d).expect("there").set_len(514).expect("cut");

    let found = check(&dataset);
    let told: Vec<String> = found.rot.iter().map(ToString::to_string).collect();
    assert_eq!(found.found, 4, "{told:#?}");
    assert!(matches!(found.rot[0].problem, RotProblem::Missing(_)), "{told:#?}");
    let field = found.rot[1].field.as_ref().expect("a field");
    assert_eq!((field.ordinal, field.key.as_str(), field.name.as_str()), (25, "b000005", "jpg"));
    assert_eq!((found.rot[1].shard.as_str(), found.rot[1].offset, found.rot[1].len), ("b.tar", jpg.offset, jpg.len));
    assert_eq!(found.rot[2].problem, RotProblem::Between);
    assert_eq!(found.rot[3].problem, RotProblem::Size { indexed: 2048, found: 514 });
}

/// Headers only: little is read, the samples are the same but for their checksums, and the version says what it is.
#[test]
fn headers_tell_where_everything_lies() {
    let place = Place::new();
    let path = place.put("a.tar", &samples("a", 50, 700_000));
    place.put("b.tar", &tar(&[("p/__bad__", "x"), ("p.x", ""), ("q.a.b", "1"), ("q.c", &"y".repeat(5000))]));
    let whole = place.build().expect("intact");
    let mut request = place.request();
    (request.index, request.depth) = (place.path().join("headers.fbi"), Depth::Headers);
    let headers = quiet(&request).expect("intact");
    let size = fs::metadata(&path).expect("there").len();
    assert!(headers.bytes_read < size / 20, "{} of {size}", headers.bytes_read);
    let (headers, whole) = (headers.dataset, whole.dataset);
    assert!(headers.version().is_provisional() && headers.version().to_string().starts_with("hdr-"));
    assert_eq!(
        (headers.samples(), headers.bytes(), headers.fields()),
        (whole.samples(), whole.bytes(), whole.fields())
    );
    for ordinal in 0..whole.samples() {
        let mut expected = whole.sample(ordinal).expect("there");
        expected.fields.iter_mut().for_each(|field| field.extent.crc = None);
        assert_eq!(headers.sample(ordinal).expect("there"), expected);
    }
    assert_eq!(quiet(&request).expect("intact").bytes_read, 0, "it is known");
    // Another file in its place is another version, though its headers are the same.
    place.put("a.tar", &samples("a", 50, 700_000));
    assert_ne!(quiet(&request).expect("intact").dataset.version(), headers.version());
    assert!(verify(&headers, 1, &|_| {}, &AtomicBool::new(false)).is_err(), "nothing to compare with");
    // Damage that headers show is found.
    File::options().write(true).open(&path).expect("there").set_len(size / 2).expect("cut");
    assert!(matches!(quiet(&request), Err(BuildError::Damaged { .. })));
}

/// A bounded rate is kept.
#[test]
fn a_build_is_no_faster_than_it_may_be() {
    let place = Place::new();
    place.put("a.tar", &samples("a", 20, 1 << 20));
    let mut request = place.request();
    request.rate = Some(40 << 20);
    let begun = std::time::Instant::now();
    let built = quiet(&request).expect("intact");
    let least = (built.bytes_read - (4 << 20)) as f64 / f64::from(40 << 20);
    assert!(begun.elapsed().as_secs_f64() >= least, "{:?}", begun.elapsed());
}
