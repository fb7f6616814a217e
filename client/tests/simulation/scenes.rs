//! Cases that can be said in words, each with what must come of it.

use std::time::Duration;

use forebay_client::loader::OnError;
use forebay_transport::sim::Known;

use super::case::{Case, FRAME, need};
use super::world::{Outcome, World};

fn run(change: impl FnOnce(&mut Case)) -> Outcome {
    let mut case = Case::quiet();
    change(&mut case);
    World::new(case, 1, None).run()
}

fn finishes(outcome: Outcome, batches: u64) -> Outcome {
    assert_eq!((outcome.finished, outcome.batches, &outcome.failed[..]), (1, batches, &[][..]), "{outcome:?}");
    outcome
}

fn fails(outcome: Outcome, with: &[&str]) -> Outcome {
    assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
    for text in with {
        assert!(outcome.failed[0].contains(text), "{text:?} in {:?}", outcome.failed[0]);
    }
    outcome
}

fn set_pool(case: &mut Case, pool: u64) {
    case.pool = pool;
    case.loaders[0].limit = pool;
}

#[test]
fn an_epoch_of_a_quiet_path() {
    finishes(run(|_| {}), 30);
}

#[test]
fn epochs_follow_each_other_without_a_round_trip_in_between() {
    let round_trip = Duration::from_millis(100);
    let time = |epochs| {
        let outcome = run(|case| {
            case.link.latency = round_trip;
            case.link.window = 100;
            case.loaders[0].config.epochs = Some(epochs);
        });
        finishes(outcome, 30 * epochs).time
    };
    assert!(time(2) < time(1) + round_trip / 2, "the second epoch is fetched while the first one ends");
}

#[test]
fn a_pool_of_exactly_the_largest_sample_works() {
    let outcome = run(|case| {
        case.content.max_len = 100_000;
        case.loaders[0].spec.batch_size = 1;
        let largest = (0..300).map(|ordinal| need(&case.content, ordinal)).max().unwrap();
        set_pool(case, largest.next_multiple_of(FRAME));
    });
    finishes(outcome, 300);
}

#[test]
fn a_batch_larger_than_the_pool_is_refused_at_once_with_the_figures() {
    let outcome = run(|case| {
        case.content.min_len = 3000;
        set_pool(case, 7 * FRAME);
    });
    let outcome = fails(outcome, &["the pool of 28672 bytes has no room", "30"]);
    assert!(outcome.time < Duration::from_secs(1) && !outcome.failed[0].contains("waited"), "{outcome:?}");
}

#[test]
fn a_consumer_that_keeps_too_much_is_named() {
    let outcome = run(|case| {
        case.content.min_len = 3000;
        set_pool(case, 20 * FRAME);
        case.loaders[0].consumer.keep = 4;
    });
    let outcome = fails(outcome, &["held by batches that the consumer keeps (epoch/step 0/0, 0/1", "waited 30s"]);
    assert!(outcome.time < Duration::from_secs(35), "{outcome:?}");
}

#[test]
fn a_consumer_that_keeps_four_batches_is_served_if_the_pool_holds_five() {
    let outcome = run(|case| {
        case.content.min_len = 3000;
        set_pool(case, 60 * FRAME);
        case.loaders[0].consumer.keep = 4;
    });
    finishes(outcome, 30);
}

#[test]
fn corrupt_bytes_are_asked_for_again_and_never_delivered() {
    let outcome = finishes(run(|case| case.link.faults.corrupt = 0.2), 30);
    assert!(outcome.corrupt > 20, "{outcome:?}");
}

#[test]
fn a_sample_that_is_always_corrupt_is_named() {
    let outcome = run(|case| case.link.faults.rotten = Some(|ordinal| ordinal == 200));
    fails(
        outcome,
        &["sample 200 of dataset sim (shard b.tar), position", "epoch 0, from sim:1 over sim", "CRC", "5 attempts"],
    );
}

#[test]
fn skipping_keeps_batches_equal_and_counts() {
    let skip = |max, rotten: fn(u64) -> bool, batch_size| {
        run(|case| {
            case.link.faults.rotten = Some(rotten);
            case.loaders[0].spec.batch_size = batch_size;
            case.loaders[0].config.on_error = OnError::Skip { max };
        })
    };
    // The reader checks that every batch is full and that substitutes hold a real sample's bytes.
    let outcome = finishes(skip(30, |ordinal| ordinal % 10 == 0, 10), 30);
    assert_eq!((outcome.skipped, outcome.notes.len()), (30, 30));
    assert!(outcome.notes[0].starts_with("skipped sample "), "{:?}", outcome.notes);
    fails(skip(29, |ordinal| ordinal % 10 == 0, 10), &["more than 29 samples were skipped; the last: sample "]);
    // No other sample in the batch to fill in with: one is fetched for it.
    let outcome = finishes(skip(30, |ordinal| ordinal % 10 == 0, 1), 300);
    assert_eq!(outcome.skipped, 30);
    // Nothing to fill in with at all.
    fails(skip(1000, |_| true, 10), &["sample ", "CRC"]);
}

#[test]
fn a_changed_dataset_ends_the_loader_at_once() {
    let outcome = run(|case| {
        case.link.faults.change_at = Some(Duration::from_millis(30));
        case.link.latency = Duration::from_millis(20);
        case.loaders[0].config.window.groups = 2;
    });
    let outcome = fails(outcome, &["dataset sim changed on sim:1"]);
    assert!(outcome.batches > 0 && outcome.batches < 30 && outcome.time < Duration::from_millis(100), "{outcome:?}");
}

#[test]
fn a_path_that_does_not_come_back_is_the_cause() {
    let outcome = run(|case| {
        case.lives = Some(Duration::from_millis(3));
        case.link.bandwidth = 1_000_000;
    });
    let outcome = fails(outcome, &["no progress on dataset sim from sim:1 over sim for 60s", "cut"]);
    assert!(outcome.time < Duration::from_secs(62), "{outcome:?}");
}

#[test]
fn a_path_that_comes_back_is_used() {
    let outcome = run(|case| {
        case.lives = Some(Duration::from_millis(40));
        case.back_after = Some(Duration::from_secs(20));
        case.link.bandwidth = 1_000_000;
    });
    finishes(outcome, 30);
}

#[test]
fn a_path_that_is_lost_before_anything_is_complete_is_not_progress() {
    for (latency, bandwidth) in [(50, 1_000_000_000), (1, 1000)] {
        let outcome = run(|case| {
            case.link.latency = Duration::from_millis(latency);
            case.link.bandwidth = bandwidth;
            case.lives = Some(Duration::from_millis(22));
            case.back_after = Some(Duration::from_millis(1));
        });
        let outcome = fails(outcome, &["no progress", "cut"]);
        assert!(outcome.time < Duration::from_secs(62), "{outcome:?}");
    }
}

#[test]
fn a_large_sample_on_a_thin_wire_is_no_failure() {
    let outcome = run(|case| {
        case.content.min_len = 100_000;
        case.content.max_len = 100_000;
        case.content.samples = 20;
        case.loaders[0].spec.samples = 20;
        case.loaders[0].spec.batch_size = 1;
        case.loaders[0].config.window.groups = 1;
        // 50 s for each.
        case.link.bandwidth = 2_000;
        case.loaders[0].config.deadline = Duration::from_secs(3600);
    });
    finishes(outcome, 20);
}

#[test]
fn a_refusal_is_final() {
    let outcome = run(|case| case.link.faults.refused = 1.0);
    assert_eq!(fails(outcome, &["refused with status 403"]).batches, 0);
}

#[test]
fn a_server_that_never_places_ends() {
    let outcome = fails(run(|case| case.link.faults.barren = true), &["the server does not place it", "bytes needed"]);
    assert!(outcome.time < Duration::from_secs(5), "{outcome:?}");
    // One that places at random gets on, or uses up the attempts; it ends either way.
    let outcome = run(|case| case.link.faults.stingy = 1.0);
    assert_eq!(outcome.finished + outcome.failed.len() as u64, 1);
}

#[test]
fn the_pool_is_named_when_it_limits_the_speed() {
    let outcome = run(|case| {
        case.content.samples = 4000;
        case.loaders[0].spec.samples = 4000;
        case.link.latency = Duration::from_millis(150);
        case.link.window = 1000;
        case.loaders[0].config.window.groups = 1000;
        case.loaders[0].config.window.bytes = 1 << 30;
        case.loaders[0].config.epochs = Some(10);
    });
    let outcome = finishes(outcome, 4000);
    assert_eq!(outcome.notes, ["1 MiB limits this path to 7.0 MB/s at 150 ms"]);
    // Not when the window does.
    let outcome = run(|case| {
        case.link.latency = Duration::from_millis(150);
        case.loaders[0].config.window.groups = 2;
    });
    assert_eq!(finishes(outcome, 30).notes, [""; 0]);
}

#[test]
fn an_empty_epoch_is_over_at_once() {
    for drop_last in [true, false] {
        let outcome = run(|case| {
            case.content.samples = 3;
            case.loaders[0].spec.samples = 3;
            case.loaders[0].spec.drop_last = drop_last;
            case.loaders[0].spec.batch_size = 4;
            // Endless epochs of nothing are nothing, not a loop.
            case.loaders[0].config.epochs = if drop_last { None } else { Some(1) };
        });
        finishes(outcome, u64::from(!drop_last));
    }
}

#[test]
fn leaving_gives_everything_back() {
    let outcome = run(|case| {
        case.loaders[0].consumer.leave_after = Some(3);
        case.link.faults.late = 1.0;
        case.link.faults.late_for = Duration::from_secs(5);
        assert_eq!(case.content.samples(), 300);
    });
    assert_eq!((outcome.finished, outcome.failed.len()), (0, 0), "the world checks the memory: {outcome:?}");
    assert!(outcome.batches >= 3);
}
