use std::fs;

use proptest::prelude::*;

use super::*;

/// Samples whose keys are `prefix` and a number; the `n`th has `n % 3` of three fields more than its first.
fn shard(prefix: &str, samples: usize) -> ShardSamples {
    let mut out = ShardSamples { names: ["jpg", "cls", "json", "txt"].map(String::from).into(), ..Default::default() };
    for n in 0..samples {
        out.keys.extend_from_slice(format!("{prefix}{n}").as_bytes());
        for name in 0..=(n % 3) as u16 {
            let (offset, len) = (n as u64 * 2048 + 512 * u64::from(name), 400 + u64::from(name));
            out.fields.push(FieldRow { offset, len, crc: (n % 2 == 0).then_some(n as u32), name });
        }
        let (key_end, fields_end) = (out.keys.len() as u64, out.fields.len() as u64);
        out.samples.push(SampleRow { key_end, fields_end });
    }
    out
}

fn written(name: &str, samples: &ShardSamples, at: u64, hashes: Vec<u64>) -> WrittenShard {
    WrittenShard {
        name: name.to_owned(),
        identity: Identity { size: 1 << 40, mtime_ns: -5, ctime_ns: 1 << 60, inode: 7 },
        digest: *blake3::hash(name.as_bytes()).as_bytes(),
        samples: samples.samples.len() as u64,
        fields: samples.fields.len() as u64,
        keys: samples.keys.len() as u64,
        at,
        hashes,
    }
}

fn write(path: &Path, shards: &[ShardSamples], hash: impl Fn(&ShardSamples) -> Vec<u64>) {
    let mut writer = IndexWriter::create(path, Depth::Content).expect("created");
    let mut encoded = Vec::new();
    let mut rows = Vec::new();
    for (number, samples) in shards.iter().enumerate() {
        // The order of the dataset's names is not the shard's.
        IndexWriter::encode(samples, &[3, 1, 2, 0], &mut encoded);
        let at = writer.append(&encoded).expect("written");
        rows.push(written(&format!("{number}.tar"), samples, at, hash(samples)));
    }
    let fields = ["txt", "cls", "json", "jpg"].map(|name| WrittenField {
        name: name.to_owned(),
        count: 1,
        min: 2,
        max: 3,
        bytes: 4,
    });
    writer.finish(Contents { shards: rows, fields: &fields, bytes: 99, largest_sample: 88 }).expect("written");
}

/// Everything an index says.
type Dump = (Version, [u64; 3], Vec<IndexedShard>, Vec<IndexedField>, Vec<Sample>);
type Sample = (Vec<u8>, Vec<(u16, Extent)>, Vec<u64>);

/// Maps bytes that are in no file.
fn mapped(bytes: &[u8]) -> Mmap {
    // Nothing can be mapped empty; a file that is empty cannot either.
    let mut map = memmap2::MmapMut::map_anon(bytes.len().max(1)).expect("memory");
    map[..bytes.len()].copy_from_slice(bytes);
    map.make_read_only().expect("ours")
}

fn dump(bytes: &[u8]) -> Result<Dump, IndexError> {
    let index = Index::of(mapped(bytes))?;
    let mut samples = Vec::new();
    for ordinal in 0..index.samples() {
        let entry = index.entry(ordinal)?.expect("below the number of samples");
        let key = index.key(&entry)?.to_vec();
        let fields = entry.fields(&index).collect::<Result<Vec<_>, _>>()?;
        for (name, extent) in &fields {
            assert!(entry.field(&index, *name)?.is_some());
            let size = index.shards()[extent.shard as usize].identity.size;
            assert!(extent.offset.checked_add(extent.len).is_some_and(|end| end <= size), "outside its shard");
        }
        let found = index.find(&key)?;
        samples.push((key, fields, found));
    }
    for shard in 0..index.shards().len() {
        index.shard_samples(shard)?;
    }
    let figures = [index.samples(), index.bytes(), index.largest_sample()];
    Ok((index.version(), figures, index.shards().to_vec(), index.fields().to_vec(), samples))
}

fn small() -> (tempfile::TempDir, std::path::PathBuf, Vec<u8>, Dump) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("small.idx");
    write(&path, &[shard("a", 3), shard("b", 0), shard("a", 2)], IndexWriter::hashes);
    let bytes = fs::read(&path).expect("just written");
    let good = dump(&bytes).expect("intact");
    (folder, path, bytes, good)
}

#[test]
fn what_was_written_is_read() {
    let (_folder, path, _, good) = small();
    let (_, figures, shards, fields, samples) = good;
    assert_eq!(figures, [5, 99, 88]);
    assert_eq!(shards.iter().map(|shard| (shard.first, shard.samples)).collect::<Vec<_>>(), [(0, 3), (3, 0), (3, 2)]);
    assert_eq!(fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>(), ["txt", "cls", "json", "jpg"]);
    let extent = |shard, offset, len, crc| Extent { shard, offset, len, crc };
    assert_eq!(samples[0], (b"a0".to_vec(), vec![(3, extent(0, 0, 400, Some(0)))], vec![0, 3]));
    let second = vec![(3, extent(2, 2048, 400, None)), (1, extent(2, 2560, 401, None))];
    assert_eq!(samples[4], (b"a1".to_vec(), second, vec![1, 4]));
    let index = Index::open(&path).expect("intact");
    assert!(index.entry(5).expect("intact").is_none());
    let entry = index.entry(4).expect("intact").expect("there");
    let found = [0, 1, 2, 3].map(|name| entry.field(&index, name).expect("intact"));
    assert_eq!(found, [None, Some(samples[4].1[1].1), None, Some(samples[4].1[0].1)]);
    let mut expected = shard("a", 3);
    expected.names.truncate(3);
    assert_eq!(index.shard_samples(0).expect("intact"), expected);
}

/// Damage in any byte is noticed, or changes nothing.
#[test]
fn every_byte_is_guarded() {
    let (_folder, _, bytes, good) = small();
    let mut noticed = 0;
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80] {
            let mut bad = bytes.clone();
            bad[at] ^= flip;
            match dump(&bad) {
                Ok(found) => assert_eq!(found, good, "byte {at}"),
                Err(IndexError::Damaged(_)) => noticed += 1,
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }
    assert_eq!(noticed, 2 * bytes.len(), "there is no byte without a checksum");
}

#[test]
fn every_length_is_guarded() {
    let (_folder, path, bytes, _) = small();
    for len in 0..bytes.len() {
        assert!(matches!(dump(&bytes[..len]), Err(IndexError::Damaged(_))), "cut to {len}");
    }
    assert!(matches!(dump(&[&bytes[..], b"x"].concat()), Err(IndexError::Damaged(_))), "longer by one");
    fs::write(&path, "").expect("written");
    assert!(matches!(Index::open(&path), Err(IndexError::Damaged(_))));
    fs::remove_file(&path).expect("removed");
    assert!(matches!(Index::open(&path), Err(IndexError::Missing)));
    fs::create_dir(&path).expect("made");
    assert!(matches!(Index::open(&path), Err(IndexError::Damaged(_))));
}

/// Makes all checksums right again, and the version too, where the bytes still say where to.
fn sign(bytes: &mut [u8]) {
    let signed = |bytes: &mut [u8]| {
        let crc = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..HEADER].copy_from_slice(&crc.to_le_bytes());
    };
    if bytes.len() < HEADER {
        return;
    }
    signed(bytes);
    let Ok(mut header) = Header::decode(bytes) else { return };
    let inside =
        |at: u64, len: u64| at.checked_add(len).filter(|end| *end <= bytes.len() as u64 && at >= HEADER as u64);
    if inside(header.data_end, 0).is_none() || header.tables.iter().any(|table| inside(table.at, table.len).is_none()) {
        return;
    }
    let crcs = header.tables[3];
    for block in 0..blocks(&header).min(crcs.len as usize / 4) {
        let begin = HEADER + block * BLOCK;
        let crc = crc32c::crc32c(&bytes[begin..(begin + BLOCK).min(header.data_end as usize)]);
        let at = crcs.at as usize + 4 * block;
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    for table in &mut header.tables {
        table.crc = crc32c::crc32c(&bytes[table.at as usize..(table.at + table.len) as usize]);
    }
    let part = |table: layout::Table| &bytes[table.at as usize..(table.at + table.len) as usize];
    let mut fingerprint = Fingerprint::new();
    for row in rows(part(header.tables[0])).map(ShardRow::decode) {
        fingerprint.shard(&string(part(header.tables[2]), row.name).unwrap_or_default(), row.size, &row.digest);
    }
    header.version = fingerprint.finish().0;
    bytes[..HEADER].copy_from_slice(&header.encode());
}

static SMALL: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| small().2);

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// A file made to deceive: its checksums are right, its contents are not. No panic, no read out of bounds, an end.
    #[test]
    fn malice_ends_well(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0usize..9), 1..6)) {
        let mut bytes = SMALL.clone();
        for (at, value, width) in changes {
            // Half of them hit the header's fields, the other half the rest.
            let at = match at.index(2 * bytes.len()) {
                at if at < bytes.len() => 16 + at % 200,
                at => HEADER + at % (bytes.len() - HEADER),
            };
            let value = if value % 3 == 0 { value % 8 } else { value };
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        sign(&mut bytes);
        let _ = dump(&bytes);
    }
}

#[test]
fn damage_is_noticed_where_it_is_touched() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.idx");
    write(&path, &[shard("a", 30_000)], IndexWriter::hashes);
    let mut bytes = fs::read(&path).expect("just written");
    let at = HEADER + 5 * BLOCK + 17;
    bytes[at] ^= 4;
    fs::write(&path, &bytes).expect("written");
    let index = Index::open(&path).expect("opening does not read the data");
    let bad = index.entry((5 * BLOCK / SAMPLE) as u64 + 10).expect_err("its record is in the block").to_string();
    assert!(bad.contains(&format!("bytes {} to {}", at - 17, at - 17 + BLOCK)), "{bad}");
    assert!(index.entry(0).expect("elsewhere").is_some());
}

/// Equal hashes are told apart by the keys themselves.
#[test]
fn hashes_may_collide() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("collide.idx");
    let all_alike = |samples: &ShardSamples| vec![layout::hash(b"b1"); samples.samples.len()];
    write(&path, &[shard("a", 3), shard("b", 3)], all_alike);
    let index = Index::open(&path).expect("intact");
    assert_eq!(index.find(b"b1").expect("intact"), [4]);
    assert_eq!(index.find(b"a1").expect("intact"), [0u64; 0], "under another hash");
}

/// The key table is sorted a range of hashes at a time (in tests: of about 8), and is in order all the same.
#[test]
fn ranges_of_keys_make_one_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ranges.idx");
    write(&path, &[shard("a", 500), shard("b", 0), shard("c", 501), shard("a", 2)], IndexWriter::hashes);
    let index = Index::open(&path).expect("intact");
    let rows: Vec<_> = (0..index.samples()).map(|place| index.key_row(place).expect("intact")).collect();
    assert!(rows.len() == 1003 && rows.is_sorted());
    for n in 0..500u64 {
        let expected = if n < 2 { vec![n, 1001 + n] } else { vec![n] };
        assert_eq!(index.find(format!("a{n}").as_bytes()).expect("intact"), expected);
        assert_eq!(index.find(format!("c{n}").as_bytes()).expect("intact"), [500 + n]);
    }
}

/// By hand, for the figures: `cargo test --release -p forebay-server ten_million -- --ignored --nocapture`.
#[test]
#[ignore = "writes an index of 1.3 GB"]
fn ten_million_samples_open_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("huge.idx");
    let shards: Vec<_> = (0..1000).map(|number| shard(&format!("train/n{number:08}/image_"), 10_000)).collect();
    let begun = std::time::Instant::now();
    write(&path, &shards, IndexWriter::hashes);
    println!("written in {:?}, {} bytes", begun.elapsed(), fs::metadata(&path).expect("there").len());
    let begun = std::time::Instant::now();
    let index = Index::open(&path).expect("intact");
    let opened = begun.elapsed();
    let begun = std::time::Instant::now();
    let mut found = 0;
    for n in 0..1_000_000u64 {
        let entry = index.entry(n * 7_919 % index.samples()).expect("intact").expect("there");
        found += usize::from(entry.field(&index, 3).expect("intact").is_some());
    }
    println!(
        "opened in {opened:?}; {found} random extents in {:?}, the first touch of each block included",
        begun.elapsed()
    );
    let begun = std::time::Instant::now();
    for n in 0..100_000 {
        let key = format!("train/n{:08}/image_{}", n % 1000, n / 10);
        assert_eq!(index.find(key.as_bytes()).expect("intact").len(), 1);
    }
    println!("100000 keys found in {:?}", begun.elapsed());
    assert!(opened.as_secs_f64() < 1.0);
}
