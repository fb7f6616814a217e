//! Tar archives: POSIX ustar, PAX, GNU and old v7, read once from front to back in pieces of any size.
//!
//! Which members there are is decided as Python's `tarfile` does in its stream mode, because that is what the `webdataset`
//! package reads with: the first block of zeros ends the archive, whatever lies behind it; a file that simply stops after
//! a member is whole. Where `tarfile` takes damage for the end of the archive (a bad checksum, half a header), samples
//! would be lost in silence: such an archive is refused here.

use super::{Compression, FormatError, Problem, show};

/// The unit of a tar.
const BLOCK: usize = 512;
/// The most bytes an extended header (PAX, GNU long name) may have: what one holds is kept in memory.
pub const EXTENDED_LIMIT: u64 = 1 << 20;
/// The most extended headers before one member.
const EXTENDED_COUNT: usize = 16;

/// A regular file in an archive, reported when its last byte has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// As it stands in the archive; a text of any bytes, never used as a path.
    pub name: &'a [u8],
    /// Where its first header begins: what errors point at.
    pub header: u64,
    /// Where its bytes begin in the archive.
    pub offset: u64,
    pub size: u64,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// Finds the members of one archive in its bytes.
#[derive(Debug)]
pub struct TarReader {
    /// How many bytes the archive has.
    len: u64,
    /// How many of them have been read.
    at: u64,
    state: State,
    /// A header, or the start of one, when it came in more than one piece.
    block: [u8; BLOCK],
    have: usize,
    /// What the member being read is called, and where it lies.
    name: Vec<u8>,
    header: u64,
    offset: u64,
    size: u64,
    crc: u32,
    /// What extended headers say about the next member, outermost first.
    pending: Vec<Extended>,
    /// The payload of the extended header being read.
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    /// `left` bytes of an extended header's blocks.
    Payload {
        kind: Kind,
        left: u64,
    },
    /// `left` bytes of the member's own.
    Data {
        left: u64,
    },
    /// `left` bytes that nobody wants.
    Skip {
        left: u64,
    },
    /// The archive's end has been seen; what follows is not looked at.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    LongName,
    LongLink,
    Pax,
    GlobalPax,
}

/// What one extended header says.
#[derive(Debug, Default)]
struct Extended {
    path: Option<Vec<u8>>,
    size: Option<u64>,
}

impl TarReader {
    /// A reader of an archive of `len` bytes.
    pub fn new(len: u64) -> TarReader {
        TarReader {
            len,
            at: 0,
            state: State::Header,
            block: [0; BLOCK],
            have: 0,
            name: Vec::new(),
            header: 0,
            offset: 0,
            size: 0,
            crc: 0,
            pending: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Reads the archive's next bytes and hands each regular file that ends in them to `sink`.
    pub fn push<F>(&mut self, mut bytes: &[u8], mut sink: F) -> Result<(), FormatError>
    where
        F: FnMut(Member<'_>) -> Result<(), FormatError>,
    {
        while !bytes.is_empty() {
            let used = match self.state {
                State::Header => self.push_header(bytes, &mut sink)?,
                State::Payload { kind, left } => {
                    let piece = first(bytes, left);
                    self.payload.extend_from_slice(piece);
                    let left = left - piece.len() as u64;
                    self.state = State::Payload { kind, left };
                    if left == 0 {
                        self.extend(kind)?;
                        self.state = State::Header;
                    }
                    piece.len()
                }
                State::Data { left } => {
                    let piece = first(bytes, left);
                    self.crc = crc32c::crc32c_append(self.crc, piece);
                    let left = left - piece.len() as u64;
                    self.state = State::Data { left };
                    if left == 0 {
                        self.emit(&mut sink)?;
                    }
                    piece.len()
                }
                State::Skip { left } => {
                    let piece = first(bytes, left);
                    self.state = skip(left - piece.len() as u64);
                    piece.len()
                }
                State::End => bytes.len(),
            };
            self.at += used as u64;
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// How many of the next bytes need not be read to find members: they may be passed over with
    /// [`skip`](TarReader::skip).
    pub fn skippable(&self) -> u64 {
        match self.state {
            State::Data { left } | State::Skip { left } => left,
            State::End => self.len.saturating_sub(self.at),
            State::Header | State::Payload { .. } => 0,
        }
    }

    /// Passes over the next `count` bytes, at most [`skippable`](TarReader::skippable). The CRC of the member that they
    /// belong to is then of no use.
    pub fn skip<F>(&mut self, count: u64, mut sink: F) -> Result<(), FormatError>
    where
        F: FnMut(Member<'_>) -> Result<(), FormatError>,
    {
        let count = count.min(self.skippable());
        self.at += count;
        match self.state {
            State::Data { left } => {
                self.state = State::Data { left: left - count };
                if left == count {
                    // As if its last byte had just been read: what is counted from there are the bytes before it.
                    self.emit(&mut sink)?;
                }
            }
            State::Skip { left } => self.state = skip(left - count),
            State::Header | State::Payload { .. } | State::End => {}
        }
        Ok(())
    }

    /// Says that there are no more bytes.
    pub fn finish(&self) -> Result<(), FormatError> {
        let begun = &self.block[..self.have];
        let begin = self.at - self.have as u64;
        match self.state {
            _ if self.at < self.len => Err(at(self.at, Problem::Short { end: self.at, expected: self.len })),
            State::Header if self.at == 0 => Err(at(0, Problem::Empty)),
            State::Header if !self.pending.is_empty() => Err(at(self.header, Problem::Dangling)),
            State::Header if begin == 0 => {
                let problem = Compression::sniff(begun).map_or(Problem::NotTar, Problem::Compressed);
                Err(at(0, problem))
            }
            // Also when nothing of a header has come: a file may end after a member.
            State::Header if begun.iter().all(|byte| *byte == 0) => Ok(()),
            State::Header => Err(at(begin, Problem::TruncatedHeader)),
            State::End => Ok(()),
            // Members that reach beyond `len` are refused at their header; only more than `len` bytes get here.
            _ => Err(at(self.at, Problem::Short { end: self.at, expected: self.len })),
        }
    }

    /// Takes a header's bytes from `bytes`, and reads the header when it is whole.
    fn push_header<F>(&mut self, bytes: &[u8], sink: &mut F) -> Result<usize, FormatError>
    where
        F: FnMut(Member<'_>) -> Result<(), FormatError>,
    {
        if self.have == 0
            && let Some(block) = bytes.first_chunk::<BLOCK>()
        {
            self.read_header(block, self.at, sink)?;
            return Ok(BLOCK);
        }
        let piece = &bytes[..bytes.len().min(BLOCK - self.have)];
        self.block[self.have..self.have + piece.len()].copy_from_slice(piece);
        self.have += piece.len();
        if self.have == BLOCK {
            let block = self.block;
            self.have = 0;
            self.read_header(&block, self.at + piece.len() as u64 - BLOCK as u64, sink)?;
        }
        Ok(piece.len())
    }

    /// Reads the header that begins at `begin`.
    fn read_header<F>(&mut self, block: &[u8; BLOCK], begin: u64, sink: &mut F) -> Result<(), FormatError>
    where
        F: FnMut(Member<'_>) -> Result<(), FormatError>,
    {
        if self.pending.is_empty() {
            self.header = begin;
        }
        if block.iter().all(|byte| *byte == 0) {
            if !self.pending.is_empty() {
                return Err(at(self.header, Problem::Dangling));
            }
            self.state = State::End;
            return Ok(());
        }
        let header = Header::parse(block).map_err(|problem| match problem {
            Problem::Checksum if begin == 0 => {
                at(0, Compression::sniff(block).map_or(Problem::NotTar, Problem::Compressed))
            }
            problem => at(begin, problem),
        })?;
        let data = begin + BLOCK as u64;
        let extended = match header.kind {
            b'L' => Some(Kind::LongName),
            b'K' => Some(Kind::LongLink),
            b'x' | b'X' => Some(Kind::Pax),
            b'g' => Some(Kind::GlobalPax),
            _ => None,
        };
        if let Some(kind) = extended {
            return self.begin_extended(kind, header.size, begin);
        }
        self.name.clear();
        header.name(&mut self.name);
        let mut size = header.size;
        // Of two that say the same, the outermost is the last word.
        for extended in self.pending.drain(..).rev() {
            size = extended.size.unwrap_or(size);
            if let Some(path) = extended.path {
                self.name = path;
            }
        }
        if header.kind == b'S' {
            return Err(at(begin, Problem::Sparse { name: show(&self.name), how: "GNU" }));
        }
        if !header.has_data() {
            self.state = State::Header;
            return Ok(());
        }
        let padded = padded(size);
        if padded > self.len.saturating_sub(data) {
            return Err(at(self.header, Problem::PastEnd { name: show(&self.name), data, size, end: self.len }));
        }
        if !header.is_regular() {
            self.state = skip(padded);
            return Ok(());
        }
        (self.offset, self.size, self.crc) = (data, size, 0);
        if size == 0 {
            return self.emit(sink);
        }
        self.state = State::Data { left: size };
        Ok(())
    }

    /// The member's last byte has been read.
    fn emit<F>(&mut self, sink: &mut F) -> Result<(), FormatError>
    where
        F: FnMut(Member<'_>) -> Result<(), FormatError>,
    {
        self.state = skip(padded(self.size) - self.size);
        let Self { header, offset, size, crc, .. } = *self;
        sink(Member { name: &self.name, header, offset, size, crc })
    }

    fn begin_extended(&mut self, kind: Kind, size: u64, begin: u64) -> Result<(), FormatError> {
        if size > EXTENDED_LIMIT {
            return Err(at(begin, Problem::ExtendedTooLong { size, limit: EXTENDED_LIMIT }));
        }
        if self.pending.len() == EXTENDED_COUNT {
            return Err(at(begin, Problem::ExtendedTooMany { limit: EXTENDED_COUNT }));
        }
        let (data, padded) = (begin + BLOCK as u64, padded(size));
        if padded > self.len.saturating_sub(data) {
            let name = "an extended header".to_owned();
            return Err(at(begin, Problem::PastEnd { name, data, size, end: self.len }));
        }
        self.payload.clear();
        self.state = State::Payload { kind, left: padded };
        if padded == 0 {
            self.extend(kind)?;
            self.state = State::Header;
        }
        Ok(())
    }

    /// Reads the payload of an extended header, padding included: that is what `tarfile` does too.
    fn extend(&mut self, kind: Kind) -> Result<(), FormatError> {
        // Global headers leave an element too, an empty one: something must follow them as well.
        let mut extended = Extended::default();
        match kind {
            Kind::LongName => extended.path = Some(until_nul(&self.payload).to_vec()),
            Kind::LongLink => {}
            Kind::Pax => extended = parse_pax(&self.payload).map_err(|problem| at(self.header, problem))?,
            Kind::GlobalPax => {
                let global = parse_pax(&self.payload).map_err(|problem| at(self.header, problem))?;
                if global.size.is_some() || global.path.is_some() {
                    return Err(at(self.header, Problem::Pax("one name or size for all members")));
                }
            }
        }
        self.pending.push(extended);
        Ok(())
    }
}

fn at(offset: u64, problem: Problem) -> FormatError {
    FormatError { offset, problem }
}

fn skip(left: u64) -> State {
    if left == 0 { State::Header } else { State::Skip { left } }
}

/// `size` in whole blocks. Sizes are below 2^63: no overflow.
fn padded(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64)
}

/// At most `left` bytes of `bytes`.
fn first(bytes: &[u8], left: u64) -> &[u8] {
    &bytes[..usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))]
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A header block whose checksum is right.
struct Header<'a> {
    block: &'a [u8; BLOCK],
    kind: u8,
    size: u64,
}

impl<'a> Header<'a> {
    fn parse(block: &'a [u8; BLOCK]) -> Result<Header<'a>, Problem> {
        let stated = number(&block[148..156]).ok_or(Problem::Checksum)?;
        let stated_sum: u32 = block[148..156].iter().map(|byte| u32::from(*byte)).sum();
        let sum = block.iter().map(|byte| u32::from(*byte)).sum::<u32>() - stated_sum + 8 * u32::from(b' ');
        if stated != i128::from(sum) {
            // Some old tars summed signed bytes.
            let signed = |bytes: &[u8]| bytes.iter().map(|byte| i32::from(*byte as i8)).sum::<i32>();
            let sum = signed(block) - signed(&block[148..156]) + 8 * i32::from(b' ');
            if stated != i128::from(sum) {
                return Err(Problem::Checksum);
            }
        }
        // `tarfile` reads all of these, and takes a header where it cannot for the end of the archive.
        for (field, range) in [
            ("mode", 100..108),
            ("owner", 108..116),
            ("group", 116..124),
            ("time", 136..148),
            ("device", 329..337),
            ("device", 337..345),
        ] {
            number(&block[range]).ok_or(Problem::Number { field })?;
        }
        let size = number(&block[124..136]).ok_or(Problem::Number { field: "size" })?;
        let size = u64::try_from(size).ok().filter(|size| *size < 1 << 63).ok_or(Problem::Size)?;
        let mut kind = block[156];
        // Old v7 archives mark a folder by its name only.
        if kind == 0 && until_nul(&block[..100]).ends_with(b"/") {
            kind = b'5';
        }
        Ok(Header { block, kind, size })
    }

    fn is_regular(&self) -> bool {
        matches!(self.kind, b'0' | 0 | b'7' | b'S')
    }

    /// Whether blocks of data follow: for regular files, and for kinds that nobody knows.
    fn has_data(&self) -> bool {
        self.is_regular() || !matches!(self.kind, b'1'..=b'6')
    }

    fn name(&self, out: &mut Vec<u8>) {
        let prefix = until_nul(&self.block[345..500]);
        if !prefix.is_empty() && self.kind != b'S' {
            out.extend_from_slice(prefix);
            out.push(b'/');
        }
        out.extend_from_slice(until_nul(&self.block[..100]));
    }
}

/// A number field: octal digits, or big-endian base 256 behind a first byte of 0x80 (0xff: negative).
fn number(field: &[u8]) -> Option<i128> {
    let (head, tail) = field.split_first()?;
    if matches!(head, 0x80 | 0xff) {
        let value = tail.iter().fold(0i128, |value, byte| value << 8 | i128::from(*byte));
        return Some(if *head == 0x80 { value } else { value - (1i128 << (8 * tail.len())) });
    }
    let text = until_nul(field).trim_ascii();
    let (negative, digits) = match text {
        [b'-', digits @ ..] if !digits.is_empty() => (true, digits),
        digits => (false, digits),
    };
    let mut value = 0i128;
    for digit in digits {
        if !matches!(digit, b'0'..=b'7') {
            return None;
        }
        value = value << 3 | i128::from(digit - b'0');
    }
    Some(if negative { -value } else { value })
}

/// Reads `length keyword=value\n` records until the padding.
fn parse_pax(payload: &[u8]) -> Result<Extended, Problem> {
    let mut extended = Extended::default();
    let mut sparse = None;
    let mut rest = payload;
    while rest.first().is_some_and(|byte| *byte != 0) {
        let digits = rest.iter().take(20).take_while(|byte| byte.is_ascii_digit()).count();
        let length = decimal(&rest[..digits]).ok_or(Problem::Pax("a record without a length"))?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if rest.get(digits) != Some(&b' ') || length < digits + 4 || length > rest.len() {
            return Err(Problem::Pax("a record whose length is wrong"));
        }
        let (record, behind) = rest.split_at(length);
        let text =
            record[digits + 1..].strip_suffix(b"\n").ok_or(Problem::Pax("a record that does not end in a newline"))?;
        let equals = text.iter().position(|byte| *byte == b'=').filter(|equals| *equals > 0);
        let equals = equals.ok_or(Problem::Pax("a record without a keyword"))?;
        let (keyword, value) = (&text[..equals], &text[equals + 1..]);
        match keyword {
            b"path" => {
                let end = value.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
                extended.path = Some(value[..end].to_vec());
            }
            b"size" => {
                let size =
                    decimal(value).filter(|size| *size < 1 << 63).ok_or(Problem::Pax("a size that is no number"))?;
                extended.size = Some(size);
            }
            b"GNU.sparse.name" => sparse = Some(show(value)),
            _ if keyword.starts_with(b"GNU.sparse.") => {
                sparse.get_or_insert_with(|| "a member".to_owned());
            }
            _ => {}
        }
        rest = behind;
    }
    match sparse {
        Some(name) => Err(Problem::Sparse { name, how: "PAX" }),
        None => Ok(extended),
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests;
