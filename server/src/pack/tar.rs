//! Writes tars: ustar, and PAX where ustar has no room.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

pub(super) const BLOCK: u64 = 512;
/// What tars are padded to.
const RECORD: u64 = 20 * BLOCK;
/// The most bytes that eleven octal digits can say.
const USTAR_SIZE: u64 = 0o77777777777;

/// Writes the header of a regular file, with an extended one before it if need be; how many bytes that were.
pub(super) fn header(out: &mut impl Write, name: &str, size: u64) -> io::Result<u64> {
    let split = split(name);
    let mut pax = String::new();
    if split.is_none() {
        pax.push_str(&record("path", name));
    }
    if size > USTAR_SIZE {
        pax.push_str(&record("size", &size.to_string()));
    }
    let mut written = BLOCK;
    if !pax.is_empty() {
        let len = pax.len() as u64;
        out.write_all(&block(b"PaxHeaders/member", b"", len, b'x'))?;
        out.write_all(pax.as_bytes())?;
        pad(out, len)?;
        written += BLOCK + len.next_multiple_of(BLOCK);
    }
    // Whoever does not read the extended header finds as much of the name as there is room for.
    let (prefix, rest) = split.unwrap_or_else(|| ("", shorten(name)));
    out.write_all(&block(rest.as_bytes(), prefix.as_bytes(), if size > USTAR_SIZE { 0 } else { size }, b'0'))?;
    Ok(written)
}

/// Fills up the block that `len` bytes leave open.
pub(super) fn pad(out: &mut impl Write, len: u64) -> io::Result<()> {
    out.write_all(&[0; BLOCK as usize][..(len.next_multiple_of(BLOCK) - len) as usize])
}

/// Two blocks of zeros, and as many as are missing to a whole record.
pub(super) fn end(out: &mut impl Write, at: u64) -> io::Result<()> {
    let end = (at + 2 * BLOCK).next_multiple_of(RECORD);
    out.write_all(&vec![0; (end - at) as usize])
}

pub(super) enum CopyError {
    Read(io::Error),
    Write(io::Error),
    /// The file has more or fewer bytes than it had.
    Changed,
    Stopped,
}

/// Copies a file of `len` bytes. `more` is told how many are done, and says whether to go on.
pub(super) fn copy(
    path: &Path,
    len: u64,
    out: &mut impl Write,
    mut more: impl FnMut(u64) -> bool,
) -> Result<(), CopyError> {
    let mut file = File::open(path).map_err(CopyError::Read)?;
    let mut buffer = vec![0; len.clamp(1, 1 << 20) as usize];
    let mut done = 0;
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        done += read as u64;
        if done > len {
            return Err(CopyError::Changed);
        }
        out.write_all(&buffer[..read]).map_err(CopyError::Write)?;
        if !more(done) {
            return Err(CopyError::Stopped);
        }
    }
    if done == len { Ok(()) } else { Err(CopyError::Changed) }
}

/// A name as ustar has it: prefix and rest. `None` when it does not fit, or is more than ASCII.
fn split(name: &str) -> Option<(&str, &str)> {
    if !name.is_ascii() {
        return None;
    }
    if name.len() <= 100 {
        return Some(("", name));
    }
    // The longest prefix there can be leaves the shortest rest.
    let slash = name[..name.len().min(156)].rfind('/')?;
    let rest = &name[slash + 1..];
    (slash > 0 && !rest.is_empty() && rest.len() <= 100).then(|| (&name[..slash], rest))
}

/// As much of a name as a header holds, in whole characters.
fn shorten(name: &str) -> &str {
    let mut end = name.len().min(100);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// `LENGTH KEYWORD=VALUE\n`, where the length counts its own digits.
fn record(keyword: &str, value: &str) -> String {
    let rest = keyword.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    format!("{len} {keyword}={value}\n")
}

fn block(name: &[u8], prefix: &[u8], size: u64, kind: u8) -> [u8; BLOCK as usize] {
    let mut block = [0; BLOCK as usize];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(345, prefix);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tar::TarReader;

    /// Our own reader finds the name and the size that were written.
    #[test]
    fn names_and_sizes_come_back() {
        let long = |len: usize| "d/".repeat(len / 2) + "x.jpg";
        let mut names: Vec<String> = [1, 50, 94, 96, 100, 150, 200, 250, 254, 256, 300, 1000].map(long).into();
        names.extend(["é/x.jpg".to_owned(), "y".repeat(101), "z".repeat(100), format!("{}.é", "q".repeat(99))]);
        names.push(format!("{}/{}", "a".repeat(155), "b".repeat(100)));
        names.push(format!("{}/{}", "a".repeat(156), "b".repeat(100)));
        names.push(format!("{}/{}", "a".repeat(155), "b".repeat(101)));
        for name in names {
            for size in [0u64, 1, 511, 512, 513, USTAR_SIZE, USTAR_SIZE + 1, 1 << 40] {
                let mut out = Vec::new();
                let written = header(&mut out, &name, size).expect("memory");
                assert_eq!((written, written % BLOCK), (out.len() as u64, 0));
                let mut reader = TarReader::new(written + size.next_multiple_of(BLOCK));
                let mut found = Vec::new();
                let mut sink = |member: crate::format::tar::Member<'_>| {
                    found.push((member.name.to_vec(), member.offset, member.size));
                    Ok(())
                };
                reader.push(&out, &mut sink).expect("a good header");
                reader.skip(size, &mut sink).expect("skipped");
                assert_eq!(found, [(name.clone().into_bytes(), written, size)], "{name}");
            }
        }
    }

    #[test]
    fn the_length_of_a_record_counts_itself() {
        for len in 0..2000 {
            let record = record("path", &"x".repeat(len));
            let said: usize = record.split(' ').next().expect("digits").parse().expect("a number");
            assert_eq!(said, record.len());
        }
    }

    #[test]
    fn archives_are_whole_records() {
        for at in [0, 512, 9216, 9728, 10240] {
            let mut out = Vec::new();
            end(&mut out, at).expect("memory");
            assert!(out.len() as u64 >= 2 * BLOCK && (at + out.len() as u64).is_multiple_of(RECORD));
        }
    }
}
