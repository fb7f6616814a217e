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
        for (key, bytes) in keys.as_flattened_mut().iter_mut().zip(bytes.chunks_exact(8)) {
            *key = u64::from_le_bytes(bytes.try_into().expect("chunks of 8"));
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
        for pair in self.keys[..self.rounds].chunks_exact(2) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn permutation(n: u64, seed: u64) -> Permutation {
        Permutation::new(n, &Version([7; 32]), seed, 0)
    }

    /// Chi-square of `counts` against a uniform distribution, in standard deviations above its mean.
    fn excess(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let chi = counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum::<f64>();
        let freedom = (counts.len() - 1) as f64;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn every_position_has_one_ordinal() {
        let sizes = [1, 2, 3, 4, 5, 7, 13, 101, 127, 128, 129, 1009, 4095, 4096, 4097, 65_535, 65_536, 65_537, 99_991];
        for n in sizes {
            for seed in 0..3 {
                let permutation = permutation(n, seed);
                let mut seen = vec![false; n as usize];
                for position in 0..n {
                    let ordinal = permutation.index(position);
                    assert!(
                        !std::mem::replace(&mut seen[ordinal as usize], true),
                        "n {n}, seed {seed}, twice {ordinal}"
                    );
                }
            }
        }
    }

    #[test]
    fn large_ones_hit_nothing_twice_and_stay_inside() {
        for n in [(1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1 << 62, (1 << 63) - 1, 1 << 63] {
            let permutation = permutation(n, 1);
            let ends = (0..50_000).chain(n - 50_000..n);
            let mut ordinals = ends.map(|position| permutation.index(position)).collect::<Vec<_>>();
            ordinals.sort_unstable();
            assert!(ordinals.windows(2).all(|pair| pair[0] < pair[1]) && *ordinals.last().unwrap() < n, "{n}");
        }
    }

    #[test]
    fn all_orders_are_equally_likely() {
        for n in [3u64, 4, 5] {
            let orders = (1..=n).product::<u64>() as usize;
            let mut counts = vec![0; orders];
            for seed in 0..orders as u64 * 500 {
                let permutation = permutation(n, seed);
                let order = (0..n).map(|position| permutation.index(position)).collect::<Vec<_>>();
                // The order's number in the factorial number system.
                let number = (0..n as usize).fold(0, |number, i| {
                    let smaller = order[i + 1..].iter().filter(|&&later| later < order[i]).count();
                    number * (n as usize - i) + smaller
                });
                counts[number] += 1;
            }
            assert!(excess(&counts).abs() < 4.5, "n {n}: {} in {counts:?}", excess(&counts));
        }
    }

    #[test]
    fn positions_and_neighbours_are_uniform() {
        for n in [97u64, 10_000, 5_000_000] {
            let bins = 32usize;
            let bin = |ordinal: u64| (ordinal as u128 * bins as u128 / n as u128) as usize;
            let (mut joint, mut pairs) = (vec![0; bins * bins], vec![0; bins * bins]);
            for seed in 0..(400_000 / n).clamp(2, 4000) {
                let permutation = permutation(n, seed);
                let step = (n / 100_000).max(1) as usize;
                for position in (0..n - 1).step_by(step) {
                    let (here, next) = (permutation.index(position), permutation.index(position + 1));
                    joint[bin(position) * bins + bin(here)] += 1;
                    pairs[bin(here) * bins + bin(next)] += 1;
                }
            }
            if n % bins as u64 == 0 || n > 1000 {
                // In a permutation bins fill more evenly than by chance, never less.
                assert!(excess(&joint) < 4.5 && excess(&pairs) < 4.5, "n {n}: {} {}", excess(&joint), excess(&pairs));
            } else {
                // Bins of unequal size: only the worst cell is looked at.
                let mean = joint.iter().sum::<u64>() as f64 / joint.len() as f64;
                assert!(joint.iter().chain(&pairs).all(|&count| (count as f64) < 3.0 * mean), "n {n}");
            }
        }
    }

    #[test]
    fn another_seed_epoch_or_version_is_another_order() {
        let order = |version: u8, seed, epoch| {
            let permutation = Permutation::new(1000, &Version([version; 32]), seed, epoch);
            (0..1000).map(|position| permutation.index(position)).collect::<Vec<_>>()
        };
        let orders = [order(1, 1, 1), order(2, 1, 1), order(1, 2, 1), order(1, 1, 2)];
        for (i, a) in orders.iter().enumerate() {
            for b in &orders[..i] {
                let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
                assert!(same < 10, "{same} of 1000 positions agree");
            }
        }
        assert_eq!(orders[0], order(1, 1, 1));
    }

    /// The order is a promise to whoever resumes: it changes only with `PLAN_VERSION`.
    #[test]
    fn the_order_of_version_1_is_kept() {
        let permutation = Permutation::new(1_281_167, &Version([1; 32]), 7, 3);
        let first = (0..6).map(|position| permutation.index(position)).collect::<Vec<_>>();
        assert_eq!(first, GOLDEN, "the plan changed: give it a new PLAN_VERSION");
    }

    const GOLDEN: [u64; 6] = [796_143, 289_398, 170_567, 908_612, 332_397, 638_837];
}
