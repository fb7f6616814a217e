//! Storage that fails, and shards that change.

use std::fs::FileTimes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_server::serve::State;
use forebay_server::store::{Fault, Faulty, Read};
use forebay_transport::exchange::memory::{Event, start};
use forebay_transport::link::{Failure, Status};
use forebay_transport::wire::describe::DatasetState;

use crate::world::{Samples, World, kind, noise, quick, sample, tar};

const FAILED: Status = Status::Failed(Failure::Storage);

fn samples(sizes: &[usize]) -> Samples {
    sizes.iter().zip(0..).map(|(&len, n)| sample(n.to_string(), &[("bin", noise(n, len))])).collect()
}

/// A world whose storage has a bad sector at this byte of its only shard.
fn with_bad_sector(samples: &Samples, at: u64) -> World {
    let world = World::new(4 << 20, quick());
    let hit = move |read: &Read| (read.offset..read.offset + read.len as u64).contains(&at);
    world.serve(world.index("d", samples, samples.len()), |store| {
        Faulty::new(store, move |_, read| hit(read).then_some(Fault::Os(5)))
    });
    world
}

#[tokio::test]
async fn one_unreadable_entry_fails_alone() {
    let samples = samples(&[1000, 2000, 3000, 0, 500]);
    // In the second sample: the first takes 512 + 1024 bytes, the header 512 more.
    let world = with_bad_sector(&samples, 2100);
    let group = world.fetch(&[4, 1, 0, 3, 2, 1], &["bin"], 1 << 20).await;
    assert_eq!(group.statuses(), [Status::Ok, FAILED, Status::Ok, Status::Ok, Status::Ok, FAILED]);
    let bytes = group.bytes();
    let of = |n: usize| Some(samples[n].1["bin"].as_slice());
    assert_eq!(bytes, [of(4), None, of(0), of(3), of(2), None]);
    assert_eq!(world.service.metrics().counts().failed_entries, 2);
    // The only one asked for, and as plain bytes.
    assert_eq!(world.fetch(&[1], &["bin"], 1 << 20).await.statuses(), [FAILED]);
    assert_eq!(kind(&world.get("/v1/datasets/d/samples/1/bin").await), "storage");
    world.assert_nothing_held().await;
}

/// Neighbours are read with what lies between them, but do not depend on it.
#[tokio::test]
async fn what_nobody_asked_for_may_be_unreadable() {
    // The gap that is bad is smaller than the others, so that it is the first to be read along.
    let samples = samples(&[1024, 1025, 1025, 10]);
    // The second sample's header.
    let world = with_bad_sector(&samples, 1600);
    let group = world.fetch(&[0, 1, 2, 3], &["bin"], 1 << 20).await;
    let expected: Vec<_> = samples.iter().map(|(_, fields)| Some(fields["bin"].as_slice())).collect();
    assert_eq!(group.bytes(), expected);
}

/// Samples of many chunks, unreadable at their beginning, in their middle and in their last: nothing else suffers.
#[tokio::test]
async fn a_sample_lost_in_mid_payload_is_taken_back() {
    let large = (2 << 20) + 1000;
    let samples = samples(&[700, large, 800]);
    let first = 512 + 1024 + 512;
    for at in [0, 1 << 20, large as u64 - 1] {
        let world = with_bad_sector(&samples, first + at);
        let group = world.fetch(&[0, 1, 2, 0], &["bin"], 8 << 20).await;
        assert_eq!(group.statuses(), [Status::Ok, FAILED, Status::Ok, Status::Ok], "bad at {at}");
        let of = |n: usize| Some(samples[n].1["bin"].as_slice());
        assert_eq!(group.bytes(), [of(0), None, of(2), of(0)]);
        world.assert_nothing_held().await;
        // As a plain body it cannot be taken back, only broken off.
        let answer = world.get("/v1/datasets/d/samples/1/bin").await;
        if at == 0 {
            assert_eq!(kind(&answer), "storage");
        } else {
            assert_eq!(answer.end, Err(0x102));
        }
    }
}

/// A shard replaced under the server: the dataset says so from then on, others go on, none of the new bytes go out.
#[tokio::test]
async fn a_replaced_shard_stops_its_version() {
    let old = samples(&[3000; 6]);
    let world = World::with(&old, 2);
    world.serve(world.index("other", &old, 2), |store| store);
    assert_eq!(world.fetch(&[5, 0], &["bin"], 1 << 20).await.statuses(), [Status::Ok; 2]);
    let ask = |ordinals: &[u64]| world.asking("d", ordinals, &["bin"], 1 << 20);
    let (hit, unhurt) = (ask(&[0, 3]), ask(&[5]));

    let new: Samples = (0..2).map(|n| sample(n.to_string(), &[("bin", vec![0xab; 3000])])).collect();
    std::fs::write(world.shard("d", 0), tar(&new)).unwrap();
    // Same length, and times as they were: the change time tells.
    let answer = world.ask(hit).await;
    assert_eq!(kind(&answer), "dataset-changed");
    assert!(String::from_utf8(answer.body()).unwrap().contains("0000.tar"));
    // Also what lies in other shards: the version is gone.
    assert_eq!(kind(&world.ask(unhurt).await), "dataset-changed");
    assert_eq!(kind(&world.get("/v1/datasets/d").await), "dataset-changed");
    let lines = world.service.registry().list();
    assert_eq!([lines[0].state, lines[1].state], [DatasetState::Changed, DatasetState::Ready]);
    assert!(lines[0].error.as_ref().unwrap().contains("0000.tar"));
    let answer = world.ask(world.asking("other", &[0, 1, 2], &["bin"], 1 << 20)).await;
    assert_eq!((answer.status(), answer.end), (200, Ok(())));
    // Indexed again, it is another version, and served.
    let version = match world.service.registry().get("d") {
        Some(State::Changed { version, .. }) => version,
        other => panic!("{other:?}"),
    };
    std::fs::write(world.shard("d", 0), tar(&new)).unwrap();
    let all: Samples = new.into_iter().chain(old[2..].iter().cloned()).collect();
    world.serve(world.index("d", &all, 2), |store| store);
    assert_ne!(world.served("d").dataset.version(), version);
    assert_eq!(world.fetch(&[0, 3], &["bin"], 1 << 20).await.statuses(), [Status::Ok; 2]);
    assert_eq!(world.service.metrics().counts().changed, 3);
}

/// Touched is changed: that the bytes are the same cannot be known without reading them all.
#[tokio::test]
async fn a_touched_or_truncated_shard_stops_its_version() {
    for touch in [true, false] {
        let world = World::with(&samples(&[3000; 2]), 2);
        let file = std::fs::File::options().write(true).open(world.shard("d", 0)).unwrap();
        if touch {
            file.set_times(FileTimes::new().set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1))).unwrap();
        } else {
            file.set_len(2000).unwrap();
        }
        assert_eq!(kind(&world.get("/v1/datasets/d/samples/1/bin").await), "dataset-changed");
        assert_eq!(kind(&world.get("/v1/datasets/d").await), "dataset-changed");
    }
}

/// Changed in mid-answer: it is broken off, with what was read before and nothing after.
#[tokio::test]
async fn an_answer_under_way_is_broken_off() {
    let samples = samples(&[300_000; 20]);
    let world = World::new(4 << 20, quick());
    let changed = Arc::new(AtomicBool::new(false));
    let seen = changed.clone();
    world.serve(world.index("d", &samples, 20), |store| {
        Faulty::new(store, move |_, _| seen.load(Ordering::SeqCst).then_some(Fault::Changed))
    });
    let ordinals: Vec<u64> = (0..20).collect();
    let mut reading = start(world.service.clone(), world.asking("d", &ordinals, &["bin"], 8 << 20));
    // Another answer of the same version, which has all its first bytes.
    let mut other = start(world.service.clone(), world.asking("d", &ordinals, &["bin"], 8 << 20));
    assert!(matches!(reading.next().await, Some(Event::Head(_))));
    assert!(matches!(other.next().await, Some(Event::Head(_))));
    changed.store(true, Ordering::SeqCst);
    for reading in [&mut reading, &mut other] {
        let (mut body, mut end) = (Vec::new(), None);
        while let Some(event) = reading.next().await {
            match event {
                Event::Chunk(chunk) => body.extend_from_slice(&chunk),
                event => end = Some(event),
            }
        }
        assert!(matches!(end, Some(Event::Reset(0x102))), "{end:?}");
        let mut decoder = forebay_transport::wire::AnswerDecoder::new(20, 8 << 20);
        let mut lease = vec![0; 8 << 20];
        assert_eq!(decoder.copy_into(&body, &mut lease), Ok(false));
        // The store scribbles over what it read of the changed file.
        assert!(!lease.windows(64).any(|window| window == [0xee; 64]), "new bytes were sent");
        assert!(decoder.finish().is_err());
    }
    drop((reading, other));
    world.assert_nothing_held().await;
}
