//! What an answer says: where each entry lies, or what the problem is.
//!
//! Little-endian: a head of 32 bytes; then 24 bytes for each entry, in the request's order, or the problem document that
//! HTTP would have answered with. The checksum is over all of it, with zeros in its own place.

use super::frame::{u16_at, u32_at, u64_at};
use crate::link::{Entry, Failure, Status};
use crate::place::check_table;
use crate::wire::ALIGN;
use crate::wire::answer::{FLAG_CRC, failure, kind};

/// What a table begins with.
pub const MAGIC: [u8; 4] = *b"FBRT";
/// Bytes of a table before its entries.
pub const HEAD: usize = 32;
/// Bytes of an entry.
pub const ENTRY: usize = 24;
/// The most bytes that a table may have, whatever was agreed on; and the fewest that may be agreed on.
pub const MAX_TABLE: usize = 1 << 20;
pub const MIN_TABLE: usize = 4 << 10;
/// What is agreed on if nobody wants less: 2729 entries.
pub const DEFAULT_TABLE: usize = 64 << 10;
/// How many entries a table of so many bytes has room for.
pub const fn entries_in(bytes: usize) -> usize {
    bytes.saturating_sub(HEAD) / ENTRY
}

/// The values of a table's status.
pub mod status {
    /// Entries follow.
    pub const ENTRIES: u8 = 0;
    /// A problem document follows.
    pub const PROBLEM: u8 = 1;
}

/// Which operation a table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub slot: u16,
    pub generation: u32,
}

/// What a table may say.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub head: Head,
    /// Entries asked for: ordinals times fields.
    pub entries: usize,
    /// Of the lease, as the frame named it.
    pub capacity: u64,
}

/// What a table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The entries are where they were wanted.
    Entries,
    /// As HTTP's: for [`link_error`](crate::wire::problem::link_error).
    Problem { status: u16, retry_after: Option<u16>, document: &'a [u8] },
}

/// Why a table cannot be written, or not be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    #[error("a table of {need} bytes does not fit in {room}")]
    Room { need: u64, room: usize },
    #[error("not a table: it does not begin with the magic bytes")]
    Magic,
    #[error("tables of version {0} are not spoken here")]
    Version(u8),
    #[error("status {0} is unknown")]
    Status(u8),
    #[error("reserved bytes are not zero")]
    Reserved,
    #[error("the checksum is {said:#010x} and should be {is:#010x}")]
    Checksum { said: u32, is: u32 },
    #[error("the table is of slot {}, generation {}; expected was slot {}, generation {}", .got.slot, .got.generation,
        .expected.slot, .expected.generation)]
    Stranger { got: Head, expected: Head },
    #[error("the table has {got} entries where {asked} were asked for")]
    Count { got: u32, asked: usize },
    #[error("entry {entry} is of kind {kind}, flags {flags:#04x}, reason {reason}: unknown")]
    Entry { entry: usize, kind: u8, flags: u8, reason: u16 },
    #[error("entry {entry} has a place, length or checksum that its kind does not have")]
    Surplus { entry: usize },
    #[error("entry {entry} lies at {offset}, which is not aligned")]
    Misaligned { entry: usize, offset: u64 },
    #[error(transparent)]
    Place(#[from] crate::place::TableError),
    #[error("{0} is no status of a problem")]
    NoProblem(u16),
}

/// Writes a table of entries to the front of `out`; how many bytes it took.
pub fn encode_entries(head: Head, entries: &[Entry], out: &mut [u8]) -> Result<usize, TableError> {
    let body = out.get_mut(HEAD..).and_then(|body| body.get_mut(..entries.len().checked_mul(ENTRY)?));
    let (Some(body), Ok(count)) = (body, u32::try_from(entries.len())) else {
        return Err(TableError::Room {
            need: (HEAD as u64).saturating_add(entries.len() as u64 * ENTRY as u64),
            room: out.len(),
        });
    };
    for (entry, bytes) in entries.iter().zip(body.chunks_exact_mut(ENTRY)) {
        let (kind, reason) = match entry.status {
            Status::Ok => (kind::OK, 0),
            Status::Absent => (kind::ABSENT, 0),
            Status::NotPlaced => (kind::NOT_PLACED, 0),
            // A server knows of no other failure: whether bytes are corrupt is found by who reads them.
            Status::Failed(Failure::Storage | Failure::Corrupt) => (kind::FAILED, 1),
        };
        let placed = entry.status == Status::Ok;
        let (offset, crc) = if placed { (entry.offset, entry.crc) } else { (0, None) };
        let len = if placed || entry.status == Status::NotPlaced { entry.len } else { 0 };
        bytes[..8].copy_from_slice(&offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&len.to_le_bytes());
        bytes[16..20].copy_from_slice(&crc.unwrap_or(0).to_le_bytes());
        bytes[20] = kind;
        bytes[21] = if crc.is_some() { FLAG_CRC } else { 0 };
        bytes[22..24].copy_from_slice(&u16::to_le_bytes(reason));
    }
    Ok(seal(head, status::ENTRIES, count, (0, 0), &mut out[..HEAD + entries.len() * ENTRY]))
}

/// Writes a problem to the front of `out`; how many bytes it took. A document that does not fit is left out: its status
/// says what to do.
pub fn encode_problem(
    head: Head,
    (status, retry_after): (u16, Option<u16>),
    document: &[u8],
    out: &mut [u8],
) -> Result<usize, TableError> {
    if !(400..600).contains(&status) {
        return Err(TableError::NoProblem(status));
    }
    if out.len() < HEAD {
        return Err(TableError::Room { need: HEAD as u64, room: out.len() });
    }
    let document = if document.len() > out.len() - HEAD { &[] } else { document };
    out[HEAD..HEAD + document.len()].copy_from_slice(document);
    // It fits: no table is larger than that.
    let count = document.len() as u32;
    let out = &mut out[..HEAD + document.len()];
    Ok(seal(head, status::PROBLEM, count, (status, retry_after.unwrap_or(0)), out))
}

/// Writes the head of a table whose rest is there.
fn seal(head: Head, status: u8, count: u32, (problem, retry_after): (u16, u16), out: &mut [u8]) -> usize {
    out[..4].copy_from_slice(&MAGIC);
    out[4..6].copy_from_slice(&[1, status]);
    out[6..8].copy_from_slice(&head.slot.to_le_bytes());
    out[8..12].copy_from_slice(&head.generation.to_le_bytes());
    out[12..16].copy_from_slice(&count.to_le_bytes());
    out[16..18].copy_from_slice(&problem.to_le_bytes());
    out[18..20].copy_from_slice(&retry_after.to_le_bytes());
    out[20..HEAD].fill(0);
    let crc = crc32c::crc32c(out);
    out[28..32].copy_from_slice(&crc.to_le_bytes());
    out.len()
}

/// Reads the table at the front of `bytes`, which nobody may be writing to: a copy, or memory that the server has no key of
/// any more. Entries are added to `entries`, which is left as it was when the table is not to be believed: when one
/// is of another operation, is out of the lease, or overlaps another one.
pub fn decode<'a>(bytes: &'a [u8], expected: &Expected, entries: &mut Vec<Entry>) -> Result<Answer<'a>, TableError> {
    let room = bytes.len();
    if room < HEAD {
        return Err(TableError::Room { need: HEAD as u64, room });
    }
    if bytes[..4] != MAGIC {
        return Err(TableError::Magic);
    }
    if bytes[4] != 1 {
        return Err(TableError::Version(bytes[4]));
    }
    let (what, count) = (bytes[5], u32_at(bytes, 12));
    let body = match what {
        status::ENTRIES => u64::from(count) * ENTRY as u64,
        status::PROBLEM => u64::from(count),
        other => return Err(TableError::Status(other)),
    };
    let need = HEAD as u64 + body;
    if need > room as u64 {
        return Err(TableError::Room { need, room });
    }
    let bytes = &bytes[..need as usize];
    let said = u32_at(bytes, 28);
    let is = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&bytes[..28]), &[0; 4]), &bytes[HEAD..]);
    if said != is {
        return Err(TableError::Checksum { said, is });
    }
    if bytes[20..28] != [0; 8] {
        return Err(TableError::Reserved);
    }
    let got = Head { slot: u16_at(bytes, 6), generation: u32_at(bytes, 8) };
    if got != expected.head {
        return Err(TableError::Stranger { got, expected: expected.head });
    }
    let (problem, retry_after) = (u16_at(bytes, 16), u16_at(bytes, 18));
    if what == status::PROBLEM {
        if !(400..600).contains(&problem) {
            return Err(TableError::NoProblem(problem));
        }
        let retry_after = Some(retry_after).filter(|&seconds| seconds > 0);
        return Ok(Answer::Problem { status: problem, retry_after, document: &bytes[HEAD..] });
    }
    if (problem, retry_after) != (0, 0) {
        return Err(TableError::Reserved);
    }
    if count as usize != expected.entries {
        return Err(TableError::Count { got: count, asked: expected.entries });
    }
    let before = entries.len();
    read_entries(&bytes[HEAD..], expected, entries).inspect_err(|_| entries.truncate(before))?;
    Ok(Answer::Entries)
}

fn read_entries(bytes: &[u8], expected: &Expected, entries: &mut Vec<Entry>) -> Result<(), TableError> {
    let before = entries.len();
    // In the order that a server of ours places in, no entry begins before the last one's end.
    let (mut end, mut ordered) = (0, true);
    for (at, bytes) in bytes.chunks_exact(ENTRY).enumerate() {
        let entry = read_entry(at, bytes)?;
        if entry.status == Status::Ok && entry.len > 0 {
            ordered &= entry.offset >= end;
            end = entry.offset.saturating_add(entry.len);
            ordered &= end <= expected.capacity;
        }
        // An empty entry may be said to lie anywhere; it must not be looked for there.
        ordered &= entry.offset <= expected.capacity;
        entries.push(entry);
    }
    if !ordered {
        check_table(&entries[before..], expected.capacity)?;
    }
    Ok(())
}

fn read_entry(at: usize, bytes: &[u8]) -> Result<Entry, TableError> {
    let (offset, len, crc) = (u64_at(bytes, 0), u64_at(bytes, 8), u32_at(bytes, 16));
    let (code, flags, reason) = (bytes[20], bytes[21], u16_at(bytes, 22));
    let unknown = || TableError::Entry { entry: at, kind: code, flags, reason };
    let status = match (code, reason) {
        (kind::OK, 0) => Status::Ok,
        (kind::ABSENT, 0) => Status::Absent,
        (kind::NOT_PLACED, 0) => Status::NotPlaced,
        (kind::FAILED, reason) => {
            let failure = u8::try_from(reason).ok().and_then(failure);
            Status::Failed(failure.ok_or_else(unknown)?)
        }
        _ => return Err(unknown()),
    };
    if flags & !FLAG_CRC != 0 {
        return Err(unknown());
    }
    let has_crc = flags & FLAG_CRC != 0;
    let surplus = match status {
        Status::Ok => !has_crc && crc != 0,
        Status::NotPlaced => has_crc || crc != 0 || offset != 0,
        _ => has_crc || crc != 0 || offset != 0 || len != 0,
    };
    if surplus {
        return Err(TableError::Surplus { entry: at });
    }
    if offset % ALIGN != 0 {
        return Err(TableError::Misaligned { entry: at, offset });
    }
    Ok(Entry { status, offset, len, crc: has_crc.then_some(crc) })
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
