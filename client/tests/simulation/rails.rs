//! A rail beside the path: by seeds, and cases that can be said in words.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay_client::loader::OnError;
use forebay_transport::sim::Faults;

use super::beside::RailCase;
use super::case::Case;
use super::number;
use super::world::{Outcome, Sabotage, World};

/// A case with a rail. With every other seed nothing is wrong with the first path, so that the rail is no excuse for anything.
fn case(seed: u64) -> Case {
    let mut case = Case { rail: Some(RailCase::new(seed)), ..Case::new(seed) };
    if seed.is_multiple_of(2) {
        (case.link.faults, case.lives) = (Faults::default(), None);
    }
    // What is damaged in storage is so over both.
    if let Some(rail) = &mut case.rail {
        rail.link.faults.rotten = case.link.faults.rotten;
    }
    case
}

/// A rail is tried, used, breaks, damages, comes and goes with the path's sessions; only what is wrong with the path itself
/// is an excuse for an error. `FOREBAY_RAIL_SEED=17` replays one.
#[test]
fn whatever_becomes_of_a_rail_the_epoch_goes_on() {
    let run = |seed| World::new(case(seed), seed, None).run();
    if let Some(seed) = number("FOREBAY_RAIL_SEED") {
        println!("{:#?}", case(seed));
        println!("{:#?}", run(seed));
        return;
    }
    let seeds = number("FOREBAY_SEEDS").unwrap_or(2000);
    let (mut failures, mut total, mut finished) = (0, [0; 4], 0);
    for seed in 0..seeds {
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| run(seed))) else {
            println!(
                "FAILED: FOREBAY_RAIL_SEED={seed} cargo test -p forebay-client --test simulation rails -- --nocapture"
            );
            failures += 1;
            continue;
        };
        total.iter_mut().zip(outcome.rail).for_each(|(sum, count)| *sum += count);
        finished += outcome.finished;
    }
    assert_eq!(failures, 0, "of {seeds} seeds; each printed above with the command that replays it");
    let [dials, promotions, failovers, completed] = total;
    println!(
        "{seeds} seeds: {finished} loaders finished; {dials} tries, {promotions} of them used, {failovers} left, {completed} answers"
    );
    if seeds >= 300 {
        assert!(total.iter().all(|&count| count > 300), "{total:?}");
    }
}

/// The checks can fail: what a rail is to blame for is noticed where it is not blamed, and so is what comes twice.
#[test]
fn every_sabotage_of_a_rail_is_noticed() {
    for sabotage in [Sabotage::TrustRail, Sabotage::AnswerTwice] {
        let noticed = (0..100).filter(|seed| {
            let world = || World::new(case(seed * 2), seed * 2, Some(sabotage)).run();
            catch_unwind(AssertUnwindSafe(world)).is_err()
        });
        let noticed = noticed.count();
        println!("{sabotage:?}: noticed on {noticed} of 100 seeds");
        assert!(noticed > 5, "{sabotage:?} goes unnoticed");
    }
}

/// Seeds on which something did not hold once.
#[test]
fn what_failed_before_holds_now() {
    // A batch that fits when packed was given up: what it was packed for failed, and others took its room meanwhile.
    [912, 960].into_iter().for_each(|seed| drop(World::new(case(seed), seed, None).run()));
}

/// 3000 samples in 300 batches over a path of 20 ms, with a rail of 1 ms beside it.
fn run(change: impl FnOnce(&mut Case, &mut RailCase)) -> Outcome {
    let (mut case, mut rail) = (Case::quiet(), RailCase::quiet());
    case.content.samples = 3000;
    case.loaders[0].spec.samples = 3000;
    case.link.latency = Duration::from_millis(20);
    case.loaders[0].config.window.groups = 2;
    change(&mut case, &mut rail);
    case.rail = Some(rail);
    let outcome = World::new(case, 1, None).run();
    assert_eq!((outcome.finished, outcome.batches, &outcome.failed[..]), (1, 300, &[][..]), "{outcome:?}");
    outcome
}

#[test]
fn a_rail_that_works_is_faster_than_none() {
    let with = run(|_, _| {});
    let without = run(|_, rail| rail.fails = 1.0);
    assert_eq!((with.rail[..3].to_vec(), without.rail[1]), (vec![1, 1, 0], 0));
    assert!(with.time < without.time / 5, "{:?}, {:?}", with.time, without.time);
    // The path was not used after that, but for what was under way.
    assert!(with.rail[3] > 100, "{with:?}");
}

#[test]
fn one_that_breaks_costs_a_moment() {
    let whole = run(|case, _| case.loaders[0].consumer.think = Duration::from_millis(20));
    let broken = run(|case, rail| {
        case.loaders[0].consumer.think = Duration::from_millis(20);
        rail.lives = Some(Duration::from_millis(700));
    });
    let [dials, promotions, failovers, _] = broken.rail;
    assert!(failovers >= 2 && promotions >= 2 && dials >= promotions, "{broken:?}");
    assert!(broken.time < whole.time * 3, "{:?}, {:?}", broken.time, whole.time);
}

#[test]
fn one_that_breaks_at_once_is_tried_less_and_less() {
    let outcome = run(|case, rail| {
        case.loaders[0].consumer.think = Duration::from_secs(2);
        rail.lives = Some(Duration::from_millis(1));
    });
    // In about 300 seconds: after 1 s, 2 s, 4 s, …, of which at least half is waited.
    assert!(outcome.time > Duration::from_secs(250) && (7..=10).contains(&outcome.rail[0]), "{outcome:?}");
}

#[test]
fn one_that_damages_everything_costs_no_attempt() {
    let outcome = run(|case, rail| {
        case.loaders[0].config.retry.attempts = 1;
        rail.link.faults.corrupt = 1.0;
    });
    assert_eq!((outcome.corrupt, outcome.rail[2]), (0, outcome.rail[1]), "{outcome:?}");
    assert!(outcome.rail[1] > 0);
}

#[test]
fn one_that_brings_what_is_damaged_in_storage_is_tried_again_soon() {
    let outcome = run(|case, rail| {
        let rotten: fn(u64) -> bool = |ordinal| ordinal % 100 == 0;
        (case.link.faults.rotten, rail.link.faults.rotten) = (Some(rotten), Some(rotten));
        case.loaders[0].config.on_error = OnError::Skip { max: 30 };
        case.loaders[0].consumer.think = Duration::from_secs(2);
    });
    // About one of them every ten seconds: pauses that grow would have been too long for most.
    assert!(outcome.skipped == 30 && outcome.rail[1] > 20, "{outcome:?}");
}

#[test]
fn one_that_says_nothing_is_left_after_the_deadline() {
    let outcome = run(|case, rail| {
        case.loaders[0].config.deadline = Duration::from_secs(5);
        rail.link.faults.silent = 1.0;
    });
    assert!(outcome.rail[2] > 0 && outcome.time > Duration::from_secs(5), "{outcome:?}");
}

#[test]
fn one_that_never_answers_is_given_up_without_being_waited_for() {
    let without = run(|_, rail| rail.fails = 1.0);
    let hanging = run(|_, rail| rail.hangs = 1.0);
    assert_eq!(hanging.rail[1], 0);
    assert_eq!(hanging.time, without.time);
}

#[test]
fn one_that_is_healthy_ends_with_the_session_and_begins_with_the_next() {
    let outcome = run(|case, rail| {
        case.loaders[0].consumer.think = Duration::from_millis(100);
        case.lives = Some(Duration::from_secs(3));
        case.back_after = Some(Duration::from_secs(1));
        // A device may go on writing for a while to what was cancelled.
        (rail.link.faults.late, rail.link.faults.late_for) = (1.0, Duration::from_millis(500));
    });
    assert!(outcome.rail[2] >= 3 && outcome.rail[0] == outcome.rail[1], "{outcome:?}");
}

#[test]
fn nothing_comes_over_the_path_where_the_rail_is_the_only_way() {
    let outcome = run(|case, rail| {
        rail.only = true;
        rail.lives = Some(Duration::from_millis(20));
        // It would end everything.
        case.link.faults.refused = 1.0;
    });
    assert!(outcome.rail[2] > 0, "{outcome:?}");
}
