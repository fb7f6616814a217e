//! A random order of any number of samples, in constant memory.
//!
//! The construction is the generalised Feistel cipher of J. Black and P. Rogaway, "Ciphers with Arbitrary Finite
//! Domains" (CT-RSA 2002), their FE1: a number below `a·b` is split into a digit below `a` and one below `b`, each round
//! adds a keyed function of one digit to the other (modulo its base), and what falls outside `0..n` is enciphered again
//! until it falls inside ("cycle walking"). With `a` = ⌈√n⌉ and `b` = ⌈n/a⌉ hardly anything falls outside.

use forebay_transport::Version;

/// Rounds for large `n`. Even, so that the digits end where they began.
const ROUNDS: usize = 12;
/// Rounds where the digits are so small that each round mixes little.
const ROUNDS_SMALL: usize = 32;
/// Below this many samples `ROUNDS_SMALL` are used: there they cost nothing that would be noticed.
const SMALL: u64 = 1 << 12;

/// A pseudorandom permutation of `0..n`.
#[derive(Clone)]
pub struct Permutation {
    n: u64,
    a: u64,
    b: u64,
    rounds: usize,
    keys: [[u64; 2]; ROUNDS_SMALL],
}

impl Permutation {
    /// The largest `n`.
    pub const MAX: u64 = 1 << 63;

    /// The permutation of `0..n` named by (version, seed, epoch, plan version).
    ///
    /// # Panics
    /// When `n` is more than [`MAX`](Permutation::MAX).
    pub fn new(n: u64, version: &Version, seed: u64, epoch: u64) -> Permutation {
        assert!(n <= Permutation::MAX, "a permutation of {n} is too large");
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&super::PLAN_VERSION.to_le_bytes());
        hasher.update(&version.0);
        hasher.update(&seed.to_le_bytes());
        hasher.update(&epoch.to_le_bytes());
        let mut bytes = [0; ROUNDS_SMALL * 16];
        hasher.finalize_xof().fill(&mut bytes);
        let mut keys = [[0; 2]; ROUNDS_SMALL];
        for (key, bytes) in keys.as_flattened_mut().iter_mut().zip(bytes.as_chunks::<8>().0) {
            *key = u64::from_le_bytes(*bytes);
        }
        let a = ceil_sqrt(n).max(1);
        let b = n.div_ceil(a).max(1);
        let rounds = if n < SMALL { ROUNDS_SMALL } else { ROUNDS };
        Permutation { n, a, b, rounds, keys }
    }

    pub fn len(&self) -> u64 {
        self.n
    }

    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Where `position` is sent.
    ///
    /// # Panics
    /// When `position` is not below `n`.
    pub fn index(&self, position: u64) -> u64 {
        assert!(position < self.n, "position {position} of {}", self.n);
        let mut x = position;
        loop {
            x = self.encipher(x);
            // The cycle through `position` comes back to it at the latest, so this ends.
            if x < self.n {
                return x;
            }
        }
    }

    fn encipher(&self, x: u64) -> u64 {
        let (mut left, mut right) = (x % self.a, x / self.a);
        for pair in self.keys[..self.rounds].as_chunks::<2>().0 {
            left = add(left, digit(mix(right, pair[0]), self.a), self.a);
            right = add(right, digit(mix(left, pair[1]), self.b), self.b);
        }
        self.a * right + left
    }
}

const CONTEXT: &str = "forebay plan: permutation of an epoch";

/// `x + y` modulo `base`, both below it. No overflow: a base is below 2^33.
fn add(x: u64, y: u64, base: u64) -> u64 {
    let sum = x + y;
    if sum >= base { sum - base } else { sum }
}

/// 64 random bits as a number below `base`; the bias is below `base` / 2^64.
fn digit(bits: u64, base: u64) -> u64 {
    ((bits as u128 * base as u128) >> 64) as u64
}

/// The round function: a keyed bijection of 64 bits, two rounds of multiply and xor-shift with 128 bits of key, each
/// input bit reaching every output bit.
fn mix(x: u64, key: [u64; 2]) -> u64 {
    let mut x = (x ^ key[0]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    x = x.wrapping_add(key[1]).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 29;
    x.wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// The smallest `r` with `r·r ≥ n`.
fn ceil_sqrt(n: u64) -> u64 {
    let floor = n.isqrt();
    floor + u64::from(floor * floor < n)
}
