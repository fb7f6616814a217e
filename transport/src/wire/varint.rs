//! Unsigned integers in as few bytes as they need: LEB128, seven bits a byte, least significant first.

use bytes::BufMut;

/// The most bytes an integer takes.
pub(super) const MAX_LEN: usize = 10;

pub(super) fn put(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// What the bytes so far say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Varint {
    /// A value, and how many bytes it took.
    Value(u64, usize),
    /// The bytes end before the integer does.
    Short,
    /// No integer of 64 bits in its shortest form: it would have two encodings.
    Invalid,
}

pub(super) fn get(bytes: &[u8]) -> Varint {
    let mut value = 0u64;
    for (at, &byte) in bytes.iter().enumerate().take(MAX_LEN) {
        // The tenth byte has room for the topmost bit only.
        if at == MAX_LEN - 1 && byte > 1 {
            return Varint::Invalid;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return if byte == 0 && at > 0 { Varint::Invalid } else { Varint::Value(value, at + 1) };
        }
    }
    // Ten bytes never get here: the tenth ended it, one way or the other.
    Varint::Short
}

/// Small numbers of either sign as small numbers without one.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_shortest_form_is_valid() {
        assert_eq!(get(&[0]), Varint::Value(0, 1));
        assert_eq!(get(&[0x80, 0]), Varint::Invalid);
        assert_eq!(get(&[0x80]), Varint::Short);
        assert_eq!(get(&[]), Varint::Short);
        assert_eq!(get(&[0xff; 9]), Varint::Short);
        assert_eq!(get(&[0xff; 10]), Varint::Invalid);
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Varint::Value(u64::MAX, 10));
    }

    proptest! {
        #[test]
        fn integers_come_back(value: u64, signed: i64, small in 0u64..70_000) {
            for value in [value, small, value >> (small % 64)] {
                let mut bytes = Vec::new();
                put(&mut bytes, value);
                prop_assert_eq!(get(&bytes), Varint::Value(value, bytes.len()));
                prop_assert_eq!(get(&bytes[..bytes.len() - 1]), Varint::Short);
            }
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }
    }
}
