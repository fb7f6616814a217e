//! Samples as the `webdataset` package (1.0) makes them of a tar's members.
//!
//! - A member's name up to the first dot of its last component is the key, what follows that dot the field's name, in lower
//!   case. A name without such a dot is passed over; so are `__name__` and what lies under a folder `__name__`.
//! - Consecutive members with the same key are one sample. The same key further on, or in the next shard, is another one:
//!   samples never cross the border of a shard.
//! - A second field of the same name in a sample is an error there, and so is the shard here.
//! - A sample whose field `__bad__` is not empty is dropped.

use std::collections::HashMap;

use super::tar::Member;
use super::{FormatError, Problem, show};

/// The most field names a shard, and a dataset, may have: a field's id has 16 bits.
pub const FIELD_LIMIT: usize = u16::MAX as usize;

/// Names that the package sets in each sample itself.
const RESERVED: [&str; 3] = ["__key__", "__url__", "__local_path__"];
/// A field that drops its sample.
const BAD: &str = "__bad__";

/// The samples of one shard, in order, in a few flat lists.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ShardSamples {
    /// All keys, one after the other.
    pub keys: Vec<u8>,
    pub samples: Vec<SampleRow>,
    /// All fields, sample by sample, in the shard's order.
    pub fields: Vec<FieldRow>,
    /// Field names, in order of appearance.
    pub names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRow {
    /// Where its key ends in `keys`.
    pub key_end: u64,
    /// Where its fields end in `fields`.
    pub fields_end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRow {
    /// Byte offset in the shard.
    pub offset: u64,
    pub len: u64,
    pub crc: Option<u32>,
    /// Index in `names`.
    pub name: u16,
}

impl ShardSamples {
    /// Key and fields of each sample, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[FieldRow])> {
        let mut begin = SampleRow { key_end: 0, fields_end: 0 };
        self.samples.iter().map(move |row| {
            let key = &self.keys[begin.key_end as usize..row.key_end as usize];
            let fields = &self.fields[begin.fields_end as usize..row.fields_end as usize];
            begin = *row;
            (key, fields)
        })
    }
}

/// Makes samples of the members of one shard.
#[derive(Debug, Default)]
pub struct Grouper {
    out: ShardSamples,
    ids: HashMap<String, u16>,
    /// By name: the number of the sample that had it last, so that a second one is noticed.
    seen: Vec<u64>,
    /// The number of the open sample, from 1 on; 0 before the first.
    current: u64,
    /// Whether a sample is open: its key ends `out.keys`, its fields end `out.fields`.
    open: bool,
    /// Whether the open sample will be dropped.
    bad: bool,
    /// The field's name in lower case, when it was not so before.
    lower: String,
}

impl Grouper {
    pub fn new() -> Grouper {
        Grouper::default()
    }

    /// Takes the shard's next member.
    pub fn push(&mut self, member: Member<'_>) -> Result<(), FormatError> {
        if is_meta(member.name) {
            return Ok(());
        }
        let Some((key, field)) = split(member.name) else { return Ok(()) };
        let fail = |problem| FormatError { offset: member.header, problem };
        let Ok(field) = std::str::from_utf8(field) else {
            return Err(fail(Problem::FieldName { name: show(member.name) }));
        };
        let (begin, _) = self.closed();
        if !self.open || self.out.keys[begin..] != *key {
            self.close();
            self.current += 1;
            self.open = true;
            self.out.keys.extend_from_slice(key);
        }
        let name = self.name(field).map_err(fail)?;
        let field = &self.out.names[usize::from(name)];
        if RESERVED.contains(&field.as_str()) {
            return Err(fail(Problem::ReservedField { name: show(member.name), field: field.clone() }));
        }
        if std::mem::replace(&mut self.seen[usize::from(name)], self.current) == self.current {
            return Err(fail(Problem::DuplicateField { name: show(member.name), field: show(field.as_bytes()) }));
        }
        self.bad |= field == BAD && member.size > 0;
        let Member { offset, size: len, crc, .. } = member;
        self.out.fields.push(FieldRow { offset, len, crc: Some(crc), name });
        Ok(())
    }

    /// Says that there are no more members.
    pub fn finish(mut self) -> ShardSamples {
        self.close();
        self.out
    }

    /// Where the keys and the fields of the closed samples end.
    fn closed(&self) -> (usize, usize) {
        self.out.samples.last().map_or((0, 0), |row| (row.key_end as usize, row.fields_end as usize))
    }

    fn close(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        if std::mem::take(&mut self.bad) {
            let (keys, fields) = self.closed();
            self.out.keys.truncate(keys);
            self.out.fields.truncate(fields);
            return;
        }
        let (key_end, fields_end) = (self.out.keys.len() as u64, self.out.fields.len() as u64);
        self.out.samples.push(SampleRow { key_end, fields_end });
    }

    /// The place in the list of names of `field` in lower case.
    fn name(&mut self, field: &str) -> Result<u16, Problem> {
        let lower = if field.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase()) {
            field
        } else {
            self.lower.clear();
            self.lower.push_str(&field.to_lowercase());
            &self.lower
        };
        if let Some(id) = self.ids.get(lower) {
            return Ok(*id);
        }
        if self.out.names.len() >= FIELD_LIMIT {
            return Err(Problem::TooManyFields { limit: FIELD_LIMIT, field: show(lower.as_bytes()) });
        }
        let id = self.out.names.len() as u16;
        self.ids.insert(lower.to_owned(), id);
        self.out.names.push(lower.to_owned());
        self.seen.push(0);
        Ok(id)
    }
}

/// Whether the package takes a member for metadata and passes it over.
fn is_meta(name: &[u8]) -> bool {
    if !name.starts_with(b"__") {
        return false;
    }
    match name.iter().position(|byte| *byte == b'/') {
        // The component is `__`, anything, `__`: the two pairs do not overlap.
        Some(slash) => slash >= 4 && name[..slash].ends_with(b"__"),
        // Here they may overlap; and a `$` in Python also matches before a newline at the end.
        None => name.ends_with(b"__") || (name.len() >= 5 && name.ends_with(b"__\n")),
    }
}

/// Splits a name into key and field as `^((?:.*/|)[^.]+)[.]([^/]*)$` does in Python.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].iter().position(|byte| *byte == b'.')?;
    // `[^.]+` must reach back from the dot to the start of the name, or to a slash that only a line without a break precedes.
    let clear = match name[..dot].iter().rposition(|byte| *byte == b'.') {
        None => dot > 0,
        Some(earlier) => {
            let slash = earlier + name[earlier..dot].iter().position(|byte| *byte == b'/')?;
            slash + 1 < dot && !name[..slash].contains(&b'\n')
        }
    };
    clear.then(|| (&name[..dot], &name[dot + 1..]))
}

#[cfg(test)]
mod tests;
