use proptest::prelude::*;

use super::*;

/// A header of `kind` whose checksum is right after `change`.
fn header(name: &[u8], kind: u8, size: u64, change: impl FnOnce(&mut [u8; BLOCK])) -> Vec<u8> {
    let mut block = [0u8; BLOCK];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    change(&mut block);
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.to_vec()
}

fn blocks(data: &[u8]) -> Vec<u8> {
    let mut out = data.to_vec();
    out.resize(data.len().next_multiple_of(BLOCK), 0);
    out
}

fn file(name: &[u8], data: &[u8]) -> Vec<u8> {
    [header(name, b'0', data.len() as u64, |_| {}), blocks(data)].concat()
}

/// An extended header of `kind`.
fn extended(kind: u8, payload: &[u8]) -> Vec<u8> {
    [header(b"ext", kind, payload.len() as u64, |_| {}), blocks(payload)].concat()
}

fn pax(keyword: &str, value: &[u8]) -> Vec<u8> {
    let rest = keyword.len() + value.len() + 3;
    let length = (1..5).map(|digits| rest + digits).find(|length| length.to_string().len() == length - rest);
    let mut out = format!("{} {keyword}=", length.expect("short enough")).into_bytes();
    out.extend_from_slice(value);
    out.push(b'\n');
    out
}

const END: [u8; 1024] = [0; 1024];

type Found = (Vec<u8>, u64, u64, u32);

fn read_in(bytes: &[u8], piece: usize) -> Result<Vec<Found>, FormatError> {
    let mut tar = TarReader::new(bytes.len() as u64);
    let mut found = Vec::new();
    for piece in bytes.chunks(piece) {
        tar.push(piece, |member| {
            found.push((member.name.to_vec(), member.offset, member.size, member.crc));
            Ok(())
        })?;
    }
    tar.finish().map(|()| found)
}

fn read(parts: &[&[u8]]) -> Result<Vec<Found>, FormatError> {
    let bytes = parts.concat();
    let whole = read_in(&bytes, usize::MAX);
    for piece in [1, 7, 512, 513] {
        assert_eq!(read_in(&bytes, piece), whole, "in pieces of {piece}");
    }
    whole
}

/// Names, where the data of each is checked against `offset`, `size` and `crc`.
fn names(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let bytes = parts.concat();
    let found = read(parts).expect("an intact archive");
    let check = |(name, offset, size, crc): Found| {
        assert_eq!(crc32c::crc32c(&bytes[offset as usize..(offset + size) as usize]), crc);
        name
    };
    found.into_iter().map(check).collect()
}

fn problem(parts: &[&[u8]]) -> (u64, Problem) {
    let error = read(parts).expect_err("damaged");
    (error.offset, error.problem)
}

#[test]
fn members_are_where_they_are() {
    let found = read(&[&file(b"a.x", b"hello"), &file(b"b.x", b""), &file(b"c.x", &[7; 513]), &END]).expect("intact");
    assert_eq!(found[0], (b"a.x".to_vec(), 512, 5, crc32c::crc32c(b"hello")));
    assert_eq!(found[1], (b"b.x".to_vec(), 1536, 0, 0));
    assert_eq!(found[2], (b"c.x".to_vec(), 2048, 513, crc32c::crc32c(&[7; 513])));
}

#[test]
fn other_kinds_are_passed_over_with_or_without_data() {
    let (first, last) = (file(b"a", b"1"), file(b"z", b"2"));
    for kind in b'1'..=b'6' {
        // A size there counts for nothing: no data follows.
        assert_eq!(names(&[&first, &header(b"k", kind, 600, |_| {}), &last, &END]), [b"a", b"z"]);
    }
    for kind in *b"VMDNZ8" {
        assert_eq!(names(&[&first, &header(b"k", kind, 600, |_| {}), &blocks(&[1; 600]), &last, &END]), [b"a", b"z"]);
    }
    for kind in *b"7\0" {
        assert_eq!(names(&[&header(b"k", kind, 3, |_| {}), &blocks(b"abc"), &END]), [b"k"]);
    }
    assert_eq!(names(&[&header(b"old/folder/", 0, 0, |_| {}), &last, &END]), [b"z"]);
}

#[test]
fn long_names_come_from_where_they_may() {
    let long = [b'n'; 300];
    let prefix = header(b"name", b'0', 0, |block| block[345..351].copy_from_slice(b"prefix"));
    assert_eq!(names(&[&prefix, &END]), [b"prefix/name"]);
    let gnu = extended(b'L', &[&long[..], b"\0"].concat());
    assert_eq!(names(&[&gnu, &file(b"short", b"x"), &file(b"next", b""), &END]), [&long[..], b"next"]);
    let path = extended(b'x', &[pax("mtime", b"1.5"), pax("path", &long)].concat());
    assert_eq!(names(&[&path, &file(b"short", b"x"), &file(b"next", b""), &END]), [&long[..], b"next"]);
    // The outermost has the last word.
    assert_eq!(names(&[&gnu, &path, &file(b"s", b""), &END]), [&long[..]]);
    let inner = extended(b'L', b"inner\0");
    assert_eq!(names(&[&path, &inner, &file(b"s", b""), &END]), [&long[..]]);
    assert_eq!(names(&[&inner, &path, &file(b"s", b""), &END]), [b"inner"]);
    // Link names, comments and global comments change nothing.
    let (link, global) = (extended(b'K', b"link\0"), extended(b'g', &pax("comment", b"none")));
    assert_eq!(names(&[&global, &link, &inner, &file(b"s", b""), &END]), [b"inner"]);
    // Any bytes are a name.
    let odd = b"../\xff\n\0.x";
    assert_eq!(names(&[&extended(b'x', &pax("path", odd)), &file(b"s", b""), &END]), [odd]);
}

#[test]
fn sizes_come_from_where_they_may() {
    let data = [3u8; 700];
    let base256 = header(b"a", b'0', 0, |block| {
        block[124..136].fill(0);
        block[124] = 0x80;
        block[134..136].copy_from_slice(&700u16.to_be_bytes());
    });
    assert_eq!(read(&[&base256, &blocks(&data), &END]).expect("intact")[0].2, 700);
    let stated = extended(b'x', &pax("size", b"700"));
    let found =
        read(&[&stated, &header(b"a", b'0', 0, |_| {}), &blocks(&data), &file(b"b", b""), &END]).expect("intact");
    assert_eq!(found.iter().map(|found| found.2).collect::<Vec<_>>(), [700, 0]);
    let spaces = header(b"a", b'0', 0, |block| block[124..136].copy_from_slice(b"     1274 \0x"));
    assert_eq!(read(&[&spaces, &blocks(&data), &END]).expect("intact")[0].2, 0o1274);
    // Times before 1970 and owners beyond what octal can say.
    let odd = header(b"a", b'0', 0, |block| {
        block[136..148].fill(0xff);
        block[108..116].copy_from_slice(b"\x80\0\0\x7f\0\0\0\0");
    });
    assert_eq!(names(&[&odd, &END]), [b"a"]);
}

#[test]
fn checksums_of_signed_bytes_are_right_too() {
    let mut block = header(b"\xff\xfe", b'0', 0, |_| {});
    let sum = block.iter().map(|byte| i32::from(*byte as i8)).sum::<i32>();
    let field: i32 = block[148..156].iter().map(|byte| i32::from(*byte as i8)).sum();
    block[148..156].copy_from_slice(format!("{:06o}\0 ", sum - field + 256).as_bytes());
    assert_eq!(names(&[&block, &END]), [b"\xff\xfe"]);
}

#[test]
fn the_archive_ends_where_tarfile_ends_it() {
    let (a, b) = (file(b"a", b"1"), file(b"b", b"2"));
    assert_eq!(names(&[&a]), [b"a"], "no end at all");
    assert_eq!(names(&[&a, &[0; 512], &b, &END]), [b"a"], "one block of zeros");
    assert_eq!(names(&[&a, &END, b"anything"]), [b"a"]);
    assert_eq!(names(&[&a, &[0; 100]]), [b"a"], "zeros, but no block of them");
    assert_eq!(names(&[&END]), [b""; 0]);
}

#[test]
fn damage_is_named_and_placed() {
    let a = file(b"a", b"1");
    let mut bad = file(b"b", b"2");
    bad[3] = b'x';
    assert_eq!(problem(&[b""]), (0, Problem::Empty));
    assert_eq!(problem(&[&[b'g'; 2000]]), (0, Problem::NotTar));
    assert_eq!(problem(&[b"short"]), (0, Problem::NotTar));
    assert_eq!(problem(&[&a, &bad, &END]), (1024, Problem::Checksum));
    assert_eq!(problem(&[&a, &[b'g'; 2000]]), (1024, Problem::Checksum));
    assert_eq!(problem(&[&a, &a[..100]]), (1024, Problem::TruncatedHeader));
    let past = |size, data, end| Problem::PastEnd { name: "a".into(), data, size, end };
    assert_eq!(problem(&[&a, &header(b"a", b'0', 600, |_| {}), &[1; 599]]), (1024, past(600, 1536, 2135)));
    assert_eq!(
        problem(&[&a, &header(b"a", b'0', 600, |_| {}), &[1; 600]]),
        (1024, past(600, 1536, 2136)),
        "no padding"
    );
    assert_eq!(
        problem(&[&a, &header(b"a", b'0', (8 << 30) - 1, |_| {}), &END]),
        (1024, past((8 << 30) - 1, 1536, 2560))
    );
    let huge = extended(b'x', &pax("size", b"9223372036854775807"));
    assert_eq!(problem(&[&huge, &file(b"a", b""), &END]), (0, past(i64::MAX as u64, 1536, 2560)));
    for size in [[0xff; 12], [0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]] {
        let bad = header(b"a", b'0', 0, |block| block[124..136].copy_from_slice(&size));
        assert_eq!(problem(&[&a, &bad, &END]), (1024, Problem::Size));
    }
    for (at, field) in [(100, "mode"), (108, "owner"), (116, "group"), (124, "size"), (136, "time"), (329, "device")] {
        let bad = header(b"a", b'0', 0, |block| block[at] = b'9');
        assert_eq!(problem(&[&a, &bad, &END]), (1024, Problem::Number { field }));
    }
}

#[test]
fn extended_headers_are_bounded_and_well_formed() {
    let a = file(b"a", b"1");
    for dangling in [extended(b'L', b"n\0"), extended(b'x', &pax("path", b"n")), extended(b'g', b"")] {
        assert_eq!(problem(&[&a, &dangling, &END]), (1024, Problem::Dangling));
        assert_eq!(problem(&[&a, &dangling]), (1024, Problem::Dangling));
    }
    let size = EXTENDED_LIMIT + 1;
    let long = Problem::ExtendedTooLong { size, limit: EXTENDED_LIMIT };
    assert_eq!(problem(&[&a, &header(b"e", b'L', size, |_| {}), &END]), (1024, long));
    let most = extended(b'L', &vec![b'n'; EXTENDED_LIMIT as usize]);
    assert_eq!(read_in(&[&most[..], &a, &END].concat(), 4096).expect("just so")[0].0.len(), EXTENDED_LIMIT as usize);
    let many = extended(b'L', b"n\0").repeat(EXTENDED_COUNT + 1);
    let at = 1024 * EXTENDED_COUNT as u64;
    assert_eq!(problem(&[&many, &a, &END]), (at, Problem::ExtendedTooMany { limit: EXTENDED_COUNT }));
    let cut = problem(&[&header(b"e", b'x', 600, |_| {}), &[b'1'; 600]]);
    assert!(matches!(cut, (0, Problem::PastEnd { size: 600, .. })), "{cut:?}");
    for bad in [
        "x",
        "5 a=b\n",
        "99 path=x\n",
        "9 path=x",
        "8 path=x\n",
        " path=x\n",
        "6 =ab\n",
        "10 sizeab\n",
        "12 size=1x2\n",
        "0 \n",
    ] {
        let (at, problem) = problem(&[&a, &extended(b'x', bad.as_bytes()), &a, &END]);
        assert!(at == 1024 && matches!(problem, Problem::Pax(_)), "{bad:?}: {problem:?}");
    }
    let global = problem(&[&extended(b'g', &pax("path", b"n")), &a, &END]);
    assert!(matches!(global, (0, Problem::Pax(_))), "{global:?}");
}

#[test]
fn sparse_and_compressed_are_refused_with_the_reason() {
    let old = problem(&[&header(b"holes", b'S', 0, |_| {}), &END]);
    assert_eq!(old, (0, Problem::Sparse { name: "holes".into(), how: "GNU" }));
    let records = [pax("GNU.sparse.major", b"1"), pax("GNU.sparse.name", b"holes")].concat();
    let new = problem(&[&extended(b'x', &records), &file(b"GNUSparse.0/holes", b""), &END]);
    assert_eq!(new, (0, Problem::Sparse { name: "holes".into(), how: "PAX" }));
    let cases: [(&[u8], Compression, &str); 7] = [
        (b"\x1f\x8b\x08\0", Compression::Gzip, "gzip -d"),
        (b"BZh91AY&SY", Compression::Bzip2, "bzip2 -d"),
        (b"\xfd7zXZ\0", Compression::Xz, "xz -d"),
        (b"\x5d\0\0\x80\0", Compression::Lzma, "xz -d"),
        (b"\x28\xb5\x2f\xfd", Compression::Zstd, "zstd -d"),
        (b"\x04\x22\x4d\x18", Compression::Lz4, "lz4 -d"),
        (b"\x1f\x9d\x90", Compression::Compress, "gzip -d"),
    ];
    for (magic, compression, how) in cases {
        // Also when there is less than a block of it.
        for rest in [&[b'?'; 3000][..], &[b'?'; 50]] {
            let (at, problem) = problem(&[magic, rest]);
            assert_eq!((at, &problem), (0, &Problem::Compressed(compression)));
            assert!(problem.to_string().contains(how), "{problem}");
        }
    }
    assert_eq!(names(&[&file(b"BZh.x", b""), &END]), [b"BZh.x"], "a member's name is no magic");
}

#[test]
fn a_file_that_ends_early_is_not_whole() {
    let bytes = [file(b"a", &[1; 600]), END.to_vec()].concat();
    for end in 0..bytes.len() {
        let mut tar = TarReader::new(bytes.len() as u64);
        tar.push(&bytes[..end], |_| Ok(())).expect("so far so good");
        let expected = Problem::Short { end: end as u64, expected: bytes.len() as u64 };
        assert_eq!(tar.finish().expect_err("cut").problem, expected);
    }
}

/// Parts of archives, to be put together at random.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::collection::vec(any::<u8>(), 0..100);
    let data = prop::collection::vec(any::<u8>(), 0..1500);
    prop_oneof![
        4 => (name.clone(), data.clone()).prop_map(|(name, data)| file(&name, &data)),
        1 => (prop::sample::select(b"LKxgXS1257VZ\0".to_vec()), data.clone()).prop_map(|(kind, data)| extended(kind, &data)),
        1 => name.prop_map(|name| extended(b'x', &pax("path", &name))),
        1 => any::<u32>().prop_map(|size| extended(b'x', &pax("size", size.to_string().as_bytes()))),
        1 => (any::<u64>(), any::<u8>()).prop_map(|(size, kind)| header(b"n", kind, size >> 31, |_| {})),
        1 => data,
        1 => Just(END.to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever the bytes are: no panic, an end, memory bounded by what an extended header may hold, members within the file,
    /// and the same answer in pieces of any size.
    #[test]
    fn anything_ends_well(
        parts in prop::collection::vec(part(), 0..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        piece in 1usize..2000,
    ) {
        let mut bytes = parts.concat();
        if let (Some(cut), false) = (cut, bytes.is_empty()) {
            bytes.truncate(cut.index(bytes.len()));
        }
        if !bytes.is_empty() {
            for (at, value) in flips {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        let mut tar = TarReader::new(bytes.len() as u64);
        let mut last = 0;
        let mut found = Vec::new();
        let mut result = Ok(());
        for piece in bytes.chunks(piece) {
            result = tar.push(piece, |member| {
                assert!(member.header < member.offset && member.header >= last);
                last = member.offset + member.size;
                assert!(last <= bytes.len() as u64);
                found.push((member.name.to_vec(), member.offset, member.size, member.crc));
                Ok(())
            });
            assert!(tar.payload.capacity() <= 2 * EXTENDED_LIMIT as usize);
            if result.is_err() {
                break;
            }
        }
        let result = result.and_then(|()| tar.finish()).map(|()| found);
        assert_eq!(result, read_in(&bytes, usize::MAX));
        if let Err(error) = result {
            assert!(error.offset <= bytes.len() as u64);
            assert!(error.to_string().len() < 2000);
        }
    }
}
