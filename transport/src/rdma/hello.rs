//! What connecting says, in the connection manager's private data: who may come in, and what is agreed on.
//!
//! Little-endian. Whoever reads one of these ignores the bytes behind it: InfiniBand pads private data with zeros, and a later
//! version may say more.

use std::fmt;
use std::time::Duration;

use super::frame::{CONTROL_SLOT, MAX_FRAME, MIN_FRAME, VERSION_MAX, VERSION_MIN, u16_at, u32_at};
use super::table::{MAX_TABLE, MIN_TABLE};

/// Bytes of what a client says. The connection manager takes 56.
pub const HELLO: usize = 48;
/// Bytes of a welcome.
pub const WELCOME: usize = 24;
/// Bytes of a rejection.
pub const REJECTION: usize = 12;
/// The most operations that may be under way on one connection: what its two ends have memory for.
pub const MAX_CREDITS: u16 = 1024;
/// The bounds of the time between two heartbeats.
pub const HEARTBEAT: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(60);

const HELLO_MAGIC: [u8; 4] = *b"FBRD";
const WELCOME_MAGIC: [u8; 4] = *b"FBRA";
const REJECTION_MAGIC: [u8; 4] = *b"FBRJ";

/// What lets a client in, once: 32 bytes that nobody can guess. Not shown when it is debugged.
#[derive(Clone)]
pub struct Ticket([u8; Ticket::LEN]);

impl Ticket {
    pub const LEN: usize = 32;

    /// The bytes should come from the system's source of randomness.
    pub fn new(bytes: [u8; Ticket::LEN]) -> Ticket {
        Ticket(bytes)
    }

    /// From 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Ticket> {
        Some(Ticket(*blake3::Hash::from_hex(text).ok()?.as_bytes()))
    }

    /// As 64 hexadecimal digits: how it travels over TLS.
    pub fn to_hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// Stands for the ticket where the ticket itself need not be kept. Two of them are compared in constant time.
    pub fn digest(&self) -> blake3::Hash {
        blake3::hash(&self.0)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket")
    }
}

/// Why bytes are no greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    #[error("the private data ends in mid-message, after {0} bytes")]
    Truncated(usize),
    #[error("not a Forebay peer: the private data does not begin with the magic bytes")]
    Magic,
    #[error("the peer speaks versions {min} to {max}, here {VERSION_MIN} to {VERSION_MAX} are spoken")]
    Version { min: u16, max: u16 },
    #[error("flags {0:#06x} are unknown")]
    Flags(u16),
    #[error("{what} is {value}, and must be between {min} and {max}")]
    Range { what: &'static str, value: u64, min: u64, max: u64 },
    #[error("reason {0} is unknown")]
    Reason(u16),
}

/// What a client says.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The versions of the frames that it speaks, both included.
    pub min: u16,
    pub max: u16,
    pub ticket: Ticket,
    /// How many frames it would like to have under way at once.
    pub credits: u16,
}

impl Hello {
    /// Of this build.
    pub fn new(ticket: Ticket, credits: u16) -> Hello {
        Hello { min: VERSION_MIN, max: VERSION_MAX, ticket, credits: credits.clamp(1, MAX_CREDITS) }
    }

    pub fn encode(&self) -> [u8; HELLO] {
        let mut out = [0; HELLO];
        out[..4].copy_from_slice(&HELLO_MAGIC);
        out[4..6].copy_from_slice(&self.min.to_le_bytes());
        out[6..8].copy_from_slice(&self.max.to_le_bytes());
        out[8..40].copy_from_slice(&self.ticket.0);
        out[40..42].copy_from_slice(&self.credits.to_le_bytes());
        out
    }

    /// Reads what a client said. That a version is spoken by both is for [`version`](Hello::version) to say, since a client
    /// is told what would be.
    pub fn decode(bytes: &[u8]) -> Result<Hello, HelloError> {
        let bytes = begins(bytes, HELLO_MAGIC, HELLO)?;
        let (min, max, flags) = (u16_at(bytes, 4), u16_at(bytes, 6), u16_at(bytes, 42));
        // What a later version means by its flags is that version's.
        if flags != 0 && max <= VERSION_MAX {
            return Err(HelloError::Flags(flags));
        }
        let credits = u16_at(bytes, 40);
        range("the count of credits", credits.into(), 1, CONTROL_SLOT.into())?;
        let mut ticket = [0; Ticket::LEN];
        ticket.copy_from_slice(&bytes[8..40]);
        Ok(Hello { min, max, ticket: Ticket(ticket), credits })
    }

    /// The newest version that both ends speak.
    pub fn version(&self) -> Result<u16, HelloError> {
        let (min, max) = (self.min, self.max);
        let newest = max.min(VERSION_MAX);
        if min > max || newest < min.max(VERSION_MIN) { Err(HelloError::Version { min, max }) } else { Ok(newest) }
    }
}

/// What a server agrees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub version: u16,
    /// How many frames may be under way: so many receives are posted already.
    pub credits: u16,
    /// The most bytes of one frame.
    pub frame: u32,
    /// The most bytes of one table.
    pub table: u32,
    /// Who is not heard of for three times this is gone.
    pub heartbeat: Duration,
}

impl Welcome {
    pub fn encode(&self) -> [u8; WELCOME] {
        let mut out = [0; WELCOME];
        let heartbeat = u32::try_from(self.heartbeat.as_millis()).unwrap_or(u32::MAX);
        out[..4].copy_from_slice(&WELCOME_MAGIC);
        out[4..6].copy_from_slice(&self.version.to_le_bytes());
        out[6..8].copy_from_slice(&self.credits.to_le_bytes());
        out[8..12].copy_from_slice(&self.frame.to_le_bytes());
        out[12..16].copy_from_slice(&self.table.to_le_bytes());
        out[16..20].copy_from_slice(&heartbeat.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Welcome, HelloError> {
        let bytes = begins(bytes, WELCOME_MAGIC, WELCOME)?;
        let (version, credits, flags) = (u16_at(bytes, 4), u16_at(bytes, 6), u32_at(bytes, 20));
        let (frame, table, heartbeat) = (u32_at(bytes, 8), u32_at(bytes, 12), u32_at(bytes, 16));
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(HelloError::Version { min: version, max: version });
        }
        if flags != 0 {
            return Err(HelloError::Flags(flags as u16));
        }
        range("the count of credits", credits.into(), 1, MAX_CREDITS.into())?;
        range("the largest frame", frame.into(), MIN_FRAME as u64, MAX_FRAME as u64)?;
        range("the largest table", table.into(), MIN_TABLE as u64, MAX_TABLE as u64)?;
        let millis = |time: &Duration| time.as_millis() as u64;
        let (min, max) = (millis(HEARTBEAT.start()), millis(HEARTBEAT.end()));
        range("the milliseconds between heartbeats", heartbeat.into(), min, max)?;
        Ok(Welcome { version, credits, frame, table, heartbeat: Duration::from_millis(heartbeat.into()) })
    }
}

/// Why a server does not let a client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u16)]
pub enum Reason {
    #[error("the ticket is unknown")]
    UnknownTicket = 1,
    #[error("the ticket was used before")]
    UsedTicket = 2,
    #[error("the ticket has expired")]
    ExpiredTicket = 3,
    #[error("no version of the frames is spoken by both ends")]
    Version = 4,
    #[error("the server has no room for another connection")]
    Busy = 5,
    #[error("what the client said makes no sense")]
    Malformed = 6,
    #[error("the session that got the ticket is over")]
    SessionOver = 7,
}

impl Reason {
    const ALL: [Reason; 7] = [
        Reason::UnknownTicket,
        Reason::UsedTicket,
        Reason::ExpiredTicket,
        Reason::Version,
        Reason::Busy,
        Reason::Malformed,
        Reason::SessionOver,
    ];
}

/// What a server says that does not let a client in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Reason,
    /// The versions of the frames that it speaks.
    pub min: u16,
    pub max: u16,
}

impl Rejection {
    /// Of this build.
    pub fn new(reason: Reason) -> Rejection {
        Rejection { reason, min: VERSION_MIN, max: VERSION_MAX }
    }

    pub fn encode(&self) -> [u8; REJECTION] {
        let mut out = [0; REJECTION];
        out[..4].copy_from_slice(&REJECTION_MAGIC);
        out[4..6].copy_from_slice(&(self.reason as u16).to_le_bytes());
        out[6..8].copy_from_slice(&self.min.to_le_bytes());
        out[8..10].copy_from_slice(&self.max.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Rejection, HelloError> {
        let bytes = begins(bytes, REJECTION_MAGIC, REJECTION)?;
        let code = u16_at(bytes, 4);
        let reason = Reason::ALL.into_iter().find(|&reason| reason as u16 == code).ok_or(HelloError::Reason(code))?;
        Ok(Rejection { reason, min: u16_at(bytes, 6), max: u16_at(bytes, 8) })
    }
}

/// The message at the front of private data.
fn begins(bytes: &[u8], magic: [u8; 4], len: usize) -> Result<&[u8], HelloError> {
    let known = bytes.len().min(magic.len());
    if bytes.is_empty() || bytes[..known] != magic[..known] {
        return Err(HelloError::Magic);
    }
    bytes.get(..len).ok_or(HelloError::Truncated(bytes.len()))
}

fn range(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), HelloError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(HelloError::Range { what, value, min, max }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn welcome() -> Welcome {
        Welcome { version: 1, credits: 32, frame: 32 << 10, table: 64 << 10, heartbeat: Duration::from_millis(500) }
    }

    #[test]
    fn greetings_come_back_from_padded_private_data() {
        let padded = |bytes: &[u8]| [bytes, &[0; 9]].concat();
        let hello = Hello::new(Ticket::new([7; 32]), 40);
        let read = Hello::decode(&padded(&hello.encode())).unwrap();
        assert_eq!((read.min, read.max, read.credits, read.version()), (1, 1, 40, Ok(1)));
        assert_eq!(read.ticket.digest(), hello.ticket.digest());
        assert_eq!(Welcome::decode(&padded(&welcome().encode())), Ok(welcome()));
        for reason in Reason::ALL {
            let rejection = Rejection::new(reason);
            assert_eq!(Rejection::decode(&padded(&rejection.encode())), Ok(rejection));
        }
    }

    #[test]
    fn greetings_of_no_use_say_why() {
        assert_eq!(Hello::decode(b"").err(), Some(HelloError::Magic));
        assert_eq!(Hello::decode(b"NVMe").err(), Some(HelloError::Magic));
        let good = Hello::new(Ticket::new([7; 32]), 40).encode();
        for cut in 1..HELLO {
            assert_eq!(Hello::decode(&good[..cut]).err(), Some(HelloError::Truncated(cut)));
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = good;
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            Hello::decode(&bad)
        };
        assert!(matches!(with(40, &[0, 0]), Err(HelloError::Range { value: 0, .. })));
        assert_eq!(with(42, &[1, 0]).err(), Some(HelloError::Flags(1)));
        // A later client's flags are its own, as long as it speaks a version of ours.
        assert_eq!(with(6, &[9, 0]).map(|hello| hello.version()).unwrap(), Ok(1));
        for (min, max) in [(2, 9), (0, 0), (3, 1)] {
            let hello = Hello { min, max, ..Hello::decode(&good).unwrap() };
            assert_eq!(hello.version(), Err(HelloError::Version { min, max }));
        }
        let beyond = [
            Welcome { version: 2, ..welcome() },
            Welcome { credits: 0, ..welcome() },
            Welcome { credits: MAX_CREDITS + 1, ..welcome() },
            Welcome { frame: 4095, ..welcome() },
            Welcome { frame: MAX_FRAME as u32 + 1, ..welcome() },
            Welcome { table: 0, ..welcome() },
            Welcome { table: u32::MAX, ..welcome() },
            Welcome { heartbeat: Duration::ZERO, ..welcome() },
            Welcome { heartbeat: Duration::from_secs(61), ..welcome() },
        ];
        for bad in beyond {
            assert!(Welcome::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn tickets_are_digits_on_the_wire_and_nothing_in_a_log() {
        let ticket = Ticket::new([0xab; 32]);
        assert_eq!(ticket.to_hex(), "ab".repeat(32));
        assert_eq!(Ticket::parse(&ticket.to_hex()).map(|parsed| parsed.0), Some(ticket.0));
        for bad in ["", "ab", &"ab".repeat(33), &"xy".repeat(32)] {
            assert!(Ticket::parse(bad).is_none());
        }
        assert!(!format!("{:?}", Hello::new(ticket, 1)).contains("ab"));
    }

    proptest! {
        /// Whatever arrives: no panic, and what is accepted is in range.
        #[test]
        fn hostile_private_data_is_refused_or_in_range(magic in 0usize..4, rest in prop::collection::vec(any::<u8>(), 0..60)) {
            let magics = [&b""[..], &HELLO_MAGIC, &WELCOME_MAGIC, &REJECTION_MAGIC];
            let bytes = [magics[magic], &rest].concat();
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert!(hello.credits > 0);
                let _ = hello.version();
            }
            if let Ok(welcome) = Welcome::decode(&bytes) {
                prop_assert_eq!(&welcome.encode()[..], &bytes[..WELCOME]);
                prop_assert!(welcome.frame as usize <= MAX_FRAME && welcome.table as usize <= MAX_TABLE);
            }
            let _ = Rejection::decode(&bytes);
        }
    }
}
