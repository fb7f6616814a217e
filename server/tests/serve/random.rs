//! Random groups over random faults, against a model. A failure prints the seed that replays it.

use std::sync::{Arc, Mutex};

use forebay_server::store::{Fault, Faulty, Read};
use forebay_transport::link::{Failure, Status};
use forebay_transport::place::{check_table, place};
use forebay_transport::wire::ALIGN;

use crate::world::{Samples, World, noise, quick, sample};

/// Random numbers of a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

const FIELDS: [&str; 3] = ["a", "b", "c"];
const SAMPLES: u64 = 60;

/// Sizes from nothing to several chunks of a small pool.
fn samples() -> Samples {
    let mut dice = Dice(1);
    let mut field = |n: u64| match dice.below(10) {
        0 => None,
        1 => Some(noise(n, 0)),
        2 => Some(noise(n, dice.below(300_000) as usize)),
        3..=5 => Some(noise(n, dice.below(20_000) as usize)),
        _ => Some(noise(n, dice.below(300) as usize)),
    };
    let one = |n: u64| {
        let some = FIELDS.iter().zip(0..).filter_map(|(name, f)| Some((*name, field(3 * n + f)?))).collect::<Vec<_>>();
        // A sample without any field would be none.
        let fields = if some.is_empty() { vec![("a", noise(n, 7))] } else { some };
        sample(format!("{n:04}"), &fields)
    };
    (0..SAMPLES).map(one).collect()
}

fn seeds() -> u64 {
    std::env::var("FOREBAY_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200)
}

#[tokio::test]
async fn random_groups_agree_with_a_model() {
    let samples = samples();
    // Chunks of 64 KiB.
    let world = World::new(512 << 10, quick());
    let bad = Arc::new(Mutex::new(Vec::<(u32, u64)>::new()));
    let sectors = bad.clone();
    let hit = move |read: &Read| {
        let range = read.offset..read.offset + read.len as u64;
        sectors.lock().unwrap().iter().any(|(shard, at)| *shard == read.shard && range.contains(at))
    };
    let dataset = world.index("d", &samples, 17);
    world.serve(dataset, |store| Faulty::new(store, move |_, read| hit(read).then_some(Fault::Os(5))));
    let dataset = &world.served("d").dataset;
    for seed in 0..seeds() {
        let mut dice = Dice(seed);
        let fields: Vec<&str> = (0..1 + dice.below(4)).map(|_| FIELDS[dice.below(3) as usize]).collect();
        let mut ordinals = Vec::new();
        for _ in 0..1 + dice.below(12) {
            let first = dice.below(SAMPLES);
            ordinals.extend(first..(first + 1 + dice.below(6)).min(SAMPLES));
        }
        let capacity = [4 << 20, dice.below(2 << 20), dice.below(60_000)][dice.below(3) as usize];
        let faults = (0..dice.below(4)).map(|_| (dice.below(4) as u32, dice.below(200_000)));
        *bad.lock().unwrap() = faults.collect();

        let wanted: Vec<(u64, &str)> =
            ordinals.iter().flat_map(|&ordinal| fields.iter().map(move |&field| (ordinal, field))).collect();
        let bytes: Vec<Option<&[u8]>> =
            wanted.iter().map(|(ordinal, field)| samples[*ordinal as usize].1.get(field).map(Vec::as_slice)).collect();
        let lens: Vec<Option<u64>> = bytes.iter().map(|bytes| bytes.map(|bytes| bytes.len() as u64)).collect();
        let placed = place(&lens, fields.len(), capacity, ALIGN);
        let group = world.fetch(&ordinals, &fields, capacity).await;
        assert_eq!(check_table(&group.entries, capacity), Ok(()), "seed {seed}");
        let found = group.bytes();
        for (at, (ordinal, field)) in wanted.iter().enumerate() {
            let extent = dataset.extent(*ordinal, dataset.field_id(field).unwrap()).unwrap();
            let broken = extent.is_some_and(|extent| {
                let range = extent.offset..extent.offset + extent.len;
                bad.lock().unwrap().iter().any(|(shard, at)| *shard == extent.shard && range.contains(at))
            });
            let status = match (extent, placed[at]) {
                (None, _) => Status::Absent,
                (Some(_), None) => Status::NotPlaced,
                (Some(_), Some(_)) if broken => Status::Failed(Failure::Storage),
                (Some(_), Some(_)) => Status::Ok,
            };
            assert_eq!(group.entries[at].status, status, "seed {seed}, entry {at}");
            let expected = bytes[at].filter(|_| status == Status::Ok);
            assert!(found[at] == expected, "seed {seed}, entry {at}: other bytes");
        }
    }
    world.assert_nothing_held().await;
}
