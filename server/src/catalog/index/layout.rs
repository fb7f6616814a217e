//! Where things are in an index file. Pure: bytes in, records out, and back. All numbers are little-endian.
//!
//! ```text
//! 0       header, one page: magic, format, totals, version, where the tables are; its CRC-32C in the last four bytes
//! 4096    data, in blocks of 64 KiB with a CRC-32C each:
//!           per shard: (samples + 1) sample records, its field records, its keys, padding to 8 bytes
//!           the key table: (hash, ordinal) of each sample, sorted
//!         tables, each with a CRC-32C in the header: shards, field names, strings, the blocks' CRCs
//! ```
//!
//! Every byte is under some CRC. The header and the tables are checked when the file is opened, which costs what the number
//! of shards costs; a block is checked when it is first touched.

/// What an index file begins with.
pub const MAGIC: [u8; 8] = *b"\x89FBINDX\n";
/// The format that this build reads and writes.
pub const FORMAT: u32 = 1;
/// Bytes of the header, in every format there will ever be; so are the places of magic, format and CRC.
pub(super) const HEADER: usize = 4096;
/// Bytes that one CRC covers in the data.
pub(super) const BLOCK: usize = 64 << 10;

pub(super) const SHARD: usize = 112;
pub(super) const FIELD_NAME: usize = 40;
pub(super) const SAMPLE: usize = 16;
pub(super) const FIELD: usize = 24;
pub(super) const KEY: usize = 16;

/// The tables, in the order in which the header lists them and the file holds them.
pub(super) const TABLES: [&str; 4] = ["shards", "field names", "strings", "block checksums"];

/// A table's place and its CRC-32C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub at: u64,
    pub len: u64,
    pub crc: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// Of the file.
    pub len: u64,
    /// Where the data ends and the tables begin.
    pub data_end: u64,
    pub samples: u64,
    pub bytes: u64,
    pub largest_sample: u64,
    pub version: [u8; 32],
    /// Where the key table begins; it ends at `data_end`.
    pub keys: u64,
    /// Only the shards' headers were read: there are no CRCs, and the version is provisional.
    pub headers_only: bool,
    pub tables: [Table; TABLES.len()],
}

/// Why bytes are no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    Damaged(&'static str),
    Future(u32),
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        let mut put = Put(&mut out, 0);
        put.bytes(&MAGIC);
        put.u32(FORMAT);
        put.u32(HEADER as u32);
        for value in [self.len, self.data_end, self.samples, self.bytes, self.largest_sample] {
            put.u64(value);
        }
        put.bytes(&self.version);
        put.u64(self.keys);
        for table in &self.tables {
            put.u64(table.at);
            put.u64(table.len);
            put.u32(table.crc);
            put.u32(0);
        }
        put.u32(u32::from(self.headers_only));
        let crc = crc32c::crc32c(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Header, HeaderError> {
        let page = bytes.get(..HEADER).ok_or(HeaderError::Damaged("it is shorter than a header"))?;
        let mut get = Get(page);
        if get.array() != MAGIC {
            return Err(HeaderError::Damaged("it does not begin as an index does"));
        }
        // The CRC first: a damaged byte must not be taken for a format of the future.
        if crc32c::crc32c(&page[..HEADER - 4]) != u32::from_le_bytes(Get(&page[HEADER - 4..]).array()) {
            return Err(HeaderError::Damaged("its header's checksum does not match"));
        }
        match get.u32() {
            FORMAT => {}
            0 => return Err(HeaderError::Damaged("its format is 0")),
            future => return Err(HeaderError::Future(future)),
        }
        let _header_len = get.u32();
        let (len, data_end, samples, bytes, largest_sample) = (get.u64(), get.u64(), get.u64(), get.u64(), get.u64());
        let (version, keys) = (get.array(), get.u64());
        let tables = std::array::from_fn(|_| {
            let table = Table { at: get.u64(), len: get.u64(), crc: get.u32() };
            get.u32();
            table
        });
        let headers_only = get.u32() != 0;
        Ok(Header { len, data_end, samples, bytes, largest_sample, version, keys, headers_only, tables })
    }
}

/// A shard's row. Strings are given by place and length in the table of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardRow {
    pub name: (u32, u32),
    pub size: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub inode: u64,
    /// The ordinal of its first sample.
    pub first: u64,
    pub samples: u64,
    pub fields: u64,
    /// Bytes of its keys.
    pub keys: u64,
    /// Where in the file its records begin.
    pub at: u64,
    pub digest: [u8; 32],
}

impl ShardRow {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut row = [0; SHARD];
        let mut put = Put(&mut row, 0);
        put.u32(self.name.0);
        put.u32(self.name.1);
        put.u64(self.size);
        put.u64(self.mtime_ns as u64);
        put.u64(self.ctime_ns as u64);
        for value in [self.inode, self.first, self.samples, self.fields, self.keys, self.at] {
            put.u64(value);
        }
        put.bytes(&self.digest);
        out.extend_from_slice(&row);
    }

    pub fn decode(row: &[u8; SHARD]) -> ShardRow {
        let mut get = Get(row);
        ShardRow {
            name: (get.u32(), get.u32()),
            size: get.u64(),
            mtime_ns: get.u64() as i64,
            ctime_ns: get.u64() as i64,
            inode: get.u64(),
            first: get.u64(),
            samples: get.u64(),
            fields: get.u64(),
            keys: get.u64(),
            at: get.u64(),
            digest: get.array(),
        }
    }

    /// Where its field records, its keys and its end lie, if they are where numbers can be.
    pub fn parts(&self) -> Option<(u64, u64, u64)> {
        let fields = self.samples.checked_add(1)?.checked_mul(SAMPLE as u64)?.checked_add(self.at)?;
        let keys = self.fields.checked_mul(FIELD as u64)?.checked_add(fields)?;
        Some((fields, keys, self.keys.checked_add(keys)?))
    }
}

/// A field name's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FieldNameRow {
    pub name: (u32, u32),
    pub count: u64,
    pub min: u64,
    pub max: u64,
    pub bytes: u64,
}

impl FieldNameRow {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut row = [0; FIELD_NAME];
        let mut put = Put(&mut row, 0);
        put.u32(self.name.0);
        put.u32(self.name.1);
        for value in [self.count, self.min, self.max, self.bytes] {
            put.u64(value);
        }
        out.extend_from_slice(&row);
    }

    pub fn decode(row: &[u8; FIELD_NAME]) -> FieldNameRow {
        let mut get = Get(row);
        FieldNameRow {
            name: (get.u32(), get.u32()),
            count: get.u64(),
            min: get.u64(),
            max: get.u64(),
            bytes: get.u64(),
        }
    }
}

/// Where a sample's key and fields begin, counted within its shard; they end where the next row's begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampleStart {
    pub key: u64,
    pub field: u64,
}

impl SampleStart {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(&self.field.to_le_bytes());
    }

    pub fn decode(row: &[u8; SAMPLE]) -> SampleStart {
        let mut get = Get(row);
        SampleStart { key: get.u64(), field: get.u64() }
    }
}

/// A field's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FieldRecord {
    pub offset: u64,
    pub len: u64,
    pub crc: Option<u32>,
    /// Row in the table of field names.
    pub name: u16,
}

impl FieldRecord {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut row = [0; FIELD];
        let mut put = Put(&mut row, 0);
        put.u64(self.offset);
        put.u64(self.len);
        put.u32(self.crc.unwrap_or(0));
        put.bytes(&self.name.to_le_bytes());
        put.bytes(&u16::from(self.crc.is_some()).to_le_bytes());
        out.extend_from_slice(&row);
    }

    pub fn decode(row: &[u8; FIELD]) -> FieldRecord {
        let mut get = Get(row);
        let (offset, len, crc) = (get.u64(), get.u64(), get.u32());
        let (name, flags) = (u16::from_le_bytes(get.array()), u16::from_le_bytes(get.array()));
        FieldRecord { offset, len, crc: (flags & 1 != 0).then_some(crc), name }
    }
}

/// One element of the key table: [`hash`] of a key, and the ordinal of a sample that has it.
pub(super) fn decode_key(row: &[u8; KEY]) -> (u64, u64) {
    let mut get = Get(row);
    (get.u64(), get.u64())
}

/// What the key table is sorted by. Equal hashes are told apart by the keys themselves.
pub(super) fn hash(key: &[u8]) -> u64 {
    u64::from_le_bytes(Get(blake3::hash(key).as_bytes()).array())
}

/// Reads fixed-width fields off the front of a slice that is long enough for them.
struct Get<'a>(&'a [u8]);

impl Get<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_first_chunk().expect("records are as long as their fields");
        self.0 = tail;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// Writes fixed-width fields one after the other.
struct Put<'a>(&'a mut [u8], usize);

impl Put<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0[self.1..self.1 + bytes.len()].copy_from_slice(bytes);
        self.1 += bytes.len();
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }
}
