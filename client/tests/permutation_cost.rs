//! What a position costs: a measurement, not a check.

#![allow(clippy::disallowed_methods)] // A clock is what it is for.

use std::time::Instant;

use forebay_client::plan::Permutation;
use forebay_client::transport::Version;

/// `cargo test --release -p forebay-client --test permutation_cost -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_of_a_position() {
    for n in [1000, 1_281_167, 1 << 40] {
        let permutation = Permutation::new(n, &Version([7; 32]), 1, 0);
        let begin = Instant::now();
        let sum = (0..1_000_000).fold(0u64, |sum, at| sum.wrapping_add(permutation.index(at % n)));
        println!("{n} samples: {} ns per position ({sum})", begin.elapsed().as_nanos() / 1_000_000);
    }
}
