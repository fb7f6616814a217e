//! Groups: what is asked for comes, wherever it fits.

use forebay_server::serve::ServiceConfig;
use forebay_server::store::Faulty;
use forebay_transport::link::{Entry, Status};
use forebay_transport::place::{check_table, needed};
use forebay_transport::wire::ALIGN;

use crate::world::{Samples, World, noise, quick, sample};

/// Samples of very different sizes, the third field on every third only.
fn samples(count: u64) -> Samples {
    let one = |n: u64| {
        let mut fields = vec![("jpg", noise(n, (n * n * 37 % 9000) as usize)), ("cls", n.to_string().into_bytes())];
        fields.extend(n.is_multiple_of(3).then(|| ("txt", noise(n + 1000, 20))));
        sample(format!("{n:06}"), &fields)
    };
    (0..count).map(one).collect()
}

fn expected<'a>(samples: &'a Samples, ordinals: &[u64], fields: &[&str]) -> Vec<Option<&'a [u8]>> {
    let pairs = ordinals.iter().flat_map(|&ordinal| fields.iter().map(move |&field| (ordinal, field)));
    pairs.map(|(ordinal, field)| samples[ordinal as usize].1.get(field).map(Vec::as_slice)).collect()
}

#[tokio::test]
async fn shuffled_and_repeated_samples_come_as_they_are() {
    let samples = samples(100);
    let world = World::with(&samples, 13);
    let ordinals: Vec<u64> = (0..150).map(|n| n * 61 % 100).collect();
    let fields = ["txt", "jpg", "cls", "jpg"];
    let group = world.fetch(&ordinals, &fields, 8 << 20).await;
    assert_eq!(group.bytes(), expected(&samples, &ordinals, &fields));
    assert_eq!(check_table(&group.entries, 8 << 20), Ok(()));
    assert!(group.statuses().contains(&Status::Absent));
    let counts = world.service.metrics().counts();
    assert_eq!((counts.groups, counts.samples), (1, 150));
    assert_eq!(counts.bytes, group.bytes().iter().flatten().map(|bytes| bytes.len() as u64).sum::<u64>());
    world.assert_nothing_held().await;
}

/// Whatever the capacity: a prefix of whole samples comes, as long as can be, and the rest says what it needs.
#[tokio::test]
async fn what_fits_is_a_prefix() {
    let samples = samples(40);
    let world = World::with(&samples, 7);
    let (ordinals, fields): (Vec<u64>, _) = ((0..40).rev().collect(), ["jpg", "txt"]);
    let all = expected(&samples, &ordinals, &fields);
    let fits = |count: usize| needed(all[..2 * count].iter().flatten().map(|bytes| bytes.len() as u64), ALIGN).unwrap();
    for count in [0, 1, 2, 20, 39, 40] {
        // One byte less is one sample less, unless that sample is empty.
        for capacity in [fits(count), fits(count).saturating_sub(1)] {
            let group = world.fetch(&ordinals, &fields, capacity).await;
            let placed = (0..=40).rev().find(|&count| fits(count) <= capacity).unwrap();
            for (at, (entry, bytes)) in group.entries.iter().zip(&all).enumerate() {
                let len = bytes.map_or(0, <[u8]>::len) as u64;
                let status = match bytes {
                    None => Status::Absent,
                    Some(_) if at < 2 * placed => Status::Ok,
                    Some(_) => Status::NotPlaced,
                };
                assert_eq!((entry.status, entry.len), (status, len), "entry {at} in {capacity} bytes");
            }
            assert_eq!(group.bytes()[..2 * placed], all[..2 * placed]);
        }
    }
}

#[tokio::test]
async fn a_server_may_answer_less_but_never_nothing() {
    let samples = vec![
        sample("0", &[("bin", noise(1, 5000))]),
        sample("1", &[("bin", noise(2, 300))]),
        sample("2", &[("bin", noise(3, 300))]),
    ];
    let world = World::new(4 << 20, ServiceConfig { max_group_bytes: 1000, ..quick() });
    world.serve(world.index("d", &samples, 3), |store| store);
    let statuses = async |ordinals: &[u64], capacity| world.fetch(ordinals, &["bin"], capacity).await.statuses();
    use Status::{NotPlaced, Ok};
    // Larger than any group: alone, and only where the lease has room.
    assert_eq!(statuses(&[0, 1, 2], 1 << 20).await, [Ok, NotPlaced, NotPlaced]);
    assert_eq!(statuses(&[0, 1], 4999).await, [NotPlaced, NotPlaced]);
    assert_eq!(statuses(&[1, 0, 2], 1 << 20).await, [Ok, NotPlaced, NotPlaced]);
    assert_eq!(statuses(&[1, 2, 1, 2], 1 << 20).await, [Ok, Ok, Ok, NotPlaced]);
}

/// Samples larger than the connection's share of the pool, among small ones.
#[tokio::test]
async fn samples_larger_than_the_pools_share_come_too() {
    let sizes = [100, 3 << 20, 5, 0, (2 << 20) + 1, 1 << 19, 700_000];
    let samples: Samples =
        sizes.iter().zip(0..).map(|(&len, n)| sample(n.to_string(), &[("bin", noise(n, len))])).collect();
    let world = World::new(4 << 20, quick());
    world.serve(world.index("d", &samples, 2), |store| store);
    let ordinals = [1, 0, 4, 2, 5, 3, 6, 1];
    let group = world.fetch(&ordinals, &["bin"], 16 << 20).await;
    assert_eq!(group.bytes(), expected(&samples, &ordinals, &["bin"]));
    world.assert_nothing_held().await;
}

/// Neighbours are read together: a store is not asked ten thousand times for ten thousand tiny samples in order.
#[tokio::test]
async fn tiny_neighbours_are_read_together() {
    let samples: Samples =
        (0..10_000).map(|n| sample(format!("{n:05}"), &[("cls", n.to_string().into_bytes())])).collect();
    let world = World::new(16 << 20, quick());
    let dataset = world.index("d", &samples, 5000);
    let reads = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = reads.clone();
    world.serve(dataset, |store| {
        Faulty::new(store, move |_, _| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            None
        })
    });
    let ordinals: Vec<u64> = (0..10_000).collect();
    let group = world.fetch(&ordinals, &["cls"], 1 << 20).await;
    assert_eq!(group.bytes(), expected(&samples, &ordinals, &["cls"]));
    let reads = reads.load(std::sync::atomic::Ordering::Relaxed);
    assert!(reads <= 40, "{reads} reads");
}

/// The largest request there is, into a lease that holds nothing: told in few bytes, and memory stays flat.
#[tokio::test]
async fn a_huge_group_that_does_not_fit_is_told_compactly() {
    let samples = vec![sample("0", &[("bin", noise(1, 1000)), ("cls", b"1".to_vec())])];
    let world = World::with(&samples, 1);
    let ordinals = vec![0; 65_536];
    let answer = world.ask(world.asking("d", &ordinals, &["bin", "cls"], 64)).await;
    assert!(answer.body().len() < 131_072 * 2, "{} bytes", answer.body().len());
    let group = crate::world::Group::read(&answer.body(), 131_072, 64);
    let told = |entry: &Entry, len| (entry.status, entry.len) == (Status::NotPlaced, len);
    assert!(group.entries.chunks(2).all(|pair| told(&pair[0], 1000) && told(&pair[1], 1)));
}
