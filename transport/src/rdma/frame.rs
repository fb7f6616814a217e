//! What a client sends: one frame for each SEND, and the 32 bits of immediate data that its answer ends with.
//!
//! Little-endian: a head of 56 bytes, then the body up to the frame's end. A frame says where its answer goes: payload
//! into the lease, then one table (see [`table`](super::table)) to a place of its own, by a write that carries [`Imm`].
//! Every frame is answered exactly once, and every answer gives back the one credit that the frame cost.

use crate::wire::request;

/// The oldest version of the frames that this build speaks, and the newest.
pub const VERSION_MIN: u16 = 1;
pub const VERSION_MAX: u16 = 1;
/// Bytes of a frame before its body.
pub const HEAD: usize = 56;
/// The most bytes of a frame, whatever was agreed on; and the fewest that may be agreed on.
pub const MAX_FRAME: usize = 32 << 10;
pub const MIN_FRAME: usize = 4 << 10;
/// The most bytes that a lease can have: more than any machine's memory. Who claims more talks nonsense.
pub const MAX_LEASE: u64 = 1 << 44;
/// The slot of what belongs to no fetch: heartbeats, echoes, and the answers to them and to cancellations.
pub const CONTROL_SLOT: u16 = u16::MAX;
/// The most bytes an echo asks for.
pub const MAX_ECHO: u64 = 1 << 20;
/// Bytes of an echo's body.
const NONCE: usize = 8;

/// What a frame asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// A group of samples. The body is that of a fetch over HTTP.
    Fetch = 1,
    /// No more interest in what slot and generation name. Answered at once, in the control slot; what was cancelled is answered
    /// as well, as a problem or as it would have been.
    Cancel = 2,
    /// Says that the client is there, and asks whether the server is.
    Heartbeat = 3,
    /// Bytes that [`fill_echo`] makes of the body, as many as the lease has: what a path is tried with.
    Echo = 4,
}

impl Op {
    fn parse(code: u8) -> Option<Op> {
        [Op::Fetch, Op::Cancel, Op::Heartbeat, Op::Echo].into_iter().find(|&op| op as u8 == code)
    }
}

/// Memory of the client's that the server may write to until it has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    pub address: u64,
    pub key: u32,
    pub capacity: u64,
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub op: Op,
    /// Which of the client's places for an operation: `0..credits`, or [`CONTROL_SLOT`].
    pub slot: u16,
    /// Tells one use of a slot from the others.
    pub generation: u32,
    /// Where payload goes. Nothing (all zero) for cancellations and heartbeats.
    pub lease: Target,
    /// Where the answer's table goes. Its capacity is at most [`MAX_TABLE`](super::table::MAX_TABLE).
    pub table: Target,
}

/// A frame, as it is sent and as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub head: Head,
    pub body: &'a [u8],
}

/// What is wrong with a frame. Whoever sends one such cannot be talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    #[error("a frame has {len} bytes, and must have between {HEAD} and {max}")]
    Length { len: usize, max: usize },
    #[error("a frame of {len} bytes says that its body has {body}")]
    Body { len: usize, body: u32 },
    #[error("a frame's body of {len} bytes cannot be that of {op:?}")]
    BodyOf { op: Op, len: usize },
    #[error("frames of version {0} are not spoken here")]
    Version(u16),
    #[error("operation {0} is unknown")]
    Op(u8),
    #[error("reserved bytes are not zero")]
    Reserved,
    #[error("the checksum is {said:#010x} and should be {is:#010x}")]
    Checksum { said: u32, is: u32 },
    #[error("slot {slot} cannot be that of {op:?}")]
    Slot { op: Op, slot: u16 },
    #[error("{capacity} bytes at {address:#x} are no memory that {what} can have")]
    Memory { what: &'static str, address: u64, capacity: u64 },
    #[error("the fetch names a capacity of {body} bytes, the frame one of {frame}")]
    Capacity { body: u64, frame: u64 },
}

impl Frame<'_> {
    /// How many bytes it takes.
    pub fn len(&self) -> usize {
        HEAD + self.body.len()
    }

    /// Never: there is always a head.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes the frame to the front of `out`; how many bytes it took. What could not be decoded is not encoded.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, FrameError> {
        let Head { op, slot, generation, lease, table } = self.head;
        let (len, max) = (self.len(), out.len().min(MAX_FRAME));
        if len > max {
            return Err(FrameError::Length { len, max });
        }
        self.check()?;
        let out = &mut out[..len];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[VERSION_MAX as u8, op as u8]);
        put(2, &slot.to_le_bytes());
        put(4, &generation.to_le_bytes());
        put(8, &lease.address.to_le_bytes());
        put(16, &lease.capacity.to_le_bytes());
        put(24, &table.address.to_le_bytes());
        put(32, &lease.key.to_le_bytes());
        put(36, &table.key.to_le_bytes());
        // Checked to be in range.
        put(40, &(table.capacity as u32).to_le_bytes());
        put(44, &(self.body.len() as u32).to_le_bytes());
        put(48, &[0; 8]);
        put(HEAD, self.body);
        let crc = crc32c::crc32c(out);
        out[48..52].copy_from_slice(&crc.to_le_bytes());
        Ok(len)
    }

    /// Reads a frame: `bytes` is all of it, and no more.
    pub fn decode(bytes: &[u8]) -> Result<Frame<'_>, FrameError> {
        let len = bytes.len();
        if !(HEAD..=MAX_FRAME).contains(&len) {
            return Err(FrameError::Length { len, max: MAX_FRAME });
        }
        let version = u16::from(bytes[0]);
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(FrameError::Version(version));
        }
        let op = Op::parse(bytes[1]).ok_or(FrameError::Op(bytes[1]))?;
        let said = u32_at(bytes, 48);
        let is = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(&bytes[..48]), &[0; 4]), &bytes[52..]);
        if said != is {
            return Err(FrameError::Checksum { said, is });
        }
        if bytes[52..HEAD] != [0; 4] {
            return Err(FrameError::Reserved);
        }
        let body = u32_at(bytes, 44);
        if body as usize != len - HEAD {
            return Err(FrameError::Body { len, body });
        }
        let lease = Target { address: u64_at(bytes, 8), key: u32_at(bytes, 32), capacity: u64_at(bytes, 16) };
        let table = Target { address: u64_at(bytes, 24), key: u32_at(bytes, 36), capacity: u32_at(bytes, 40).into() };
        let head = Head { op, slot: u16_at(bytes, 2), generation: u32_at(bytes, 4), lease, table };
        let frame = Frame { head, body: &bytes[HEAD..] };
        frame.check()?;
        Ok(frame)
    }

    /// What an echo's bytes are made of.
    pub fn nonce(&self) -> Option<u64> {
        (self.head.op == Op::Echo && self.body.len() == NONCE).then(|| u64_at(self.body, 0))
    }

    /// What must hold of a frame that is sent, and of one that arrived.
    fn check(&self) -> Result<(), FrameError> {
        let Head { op, slot, lease, table, .. } = self.head;
        let control = matches!(op, Op::Heartbeat | Op::Echo);
        if control != (slot == CONTROL_SLOT) {
            return Err(FrameError::Slot { op, slot });
        }
        let len = self.body.len();
        let fits = match op {
            Op::Fetch => len >= request::HEAD,
            Op::Cancel | Op::Heartbeat => len == 0,
            Op::Echo => len == NONCE,
        };
        if !fits {
            return Err(FrameError::BodyOf { op, len });
        }
        let most = match op {
            Op::Fetch => MAX_LEASE,
            Op::Echo => MAX_ECHO,
            Op::Cancel | Op::Heartbeat => 0,
        };
        memory("a lease", lease, 0, most)?;
        memory("a table", table, super::table::HEAD as u64, super::table::MAX_TABLE as u64)?;
        if most == 0 && lease != Target::default() {
            return Err(FrameError::Memory { what: "a lease", address: lease.address, capacity: lease.capacity });
        }
        if op == Op::Fetch {
            // What the fetch is answered by must not think that there is more room than there is.
            let body = u64_at(self.body, request::CAPACITY);
            if body != lease.capacity {
                return Err(FrameError::Capacity { body, frame: lease.capacity });
            }
        }
        Ok(())
    }
}

fn memory(what: &'static str, target: Target, least: u64, most: u64) -> Result<(), FrameError> {
    let Target { address, capacity, .. } = target;
    if !(least..=most).contains(&capacity) || address.checked_add(capacity).is_none() {
        return Err(FrameError::Memory { what, address, capacity });
    }
    Ok(())
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The immediate data of the write that ends an answer: which operation it was, before any memory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imm {
    pub slot: u16,
    /// The lowest eight bits of the frame's.
    pub generation: u8,
    /// The table's [status](super::table::status); in the control slot the code of the operation answered.
    pub status: u8,
}

impl Imm {
    /// The answer to a fetch.
    pub fn of_fetch(slot: u16, generation: u32, status: u8) -> Imm {
        Imm { slot, generation: generation as u8, status }
    }

    /// The answer to anything else.
    pub fn of_control(op: Op, generation: u32) -> Imm {
        Imm { slot: CONTROL_SLOT, generation: generation as u8, status: op as u8 }
    }

    /// As a number, which verbs carry most significant byte first.
    pub fn encode(self) -> u32 {
        u32::from(self.slot) << 16 | u32::from(self.generation) << 8 | u32::from(self.status)
    }

    pub fn decode(imm: u32) -> Imm {
        Imm { slot: (imm >> 16) as u16, generation: (imm >> 8) as u8, status: imm as u8 }
    }

    /// What is answered, if it is not a fetch.
    pub fn control(self) -> Option<Op> {
        (self.slot == CONTROL_SLOT).then(|| Op::parse(self.status)).flatten().filter(|&op| op != Op::Fetch)
    }
}

/// The bytes that an echo is answered with: as good as random, so that no piece of them passes for another.
pub fn fill_echo(nonce: u64, out: &mut [u8]) {
    let mut state = nonce;
    for piece in out.chunks_mut(8) {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
