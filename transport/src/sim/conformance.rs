//! The contract of [`Link`], as checks that every fabric passes.
//!
//! A fabric provides a [`Rig`]: links to a server whose dataset's bytes are known, and a way to let time pass, be it
//! virtual or real. Each check panics, saying what does not hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::content::Known;
use crate::Version;
use crate::link::{Completion, Entry, Fetch, FieldId, Link, LinkError, Status, Tag};
use crate::pool::{Account, Slab, SlabConfig};

/// What a fabric's links are tested with. Its dataset has at least 64 samples, one field in each at least, no sample
/// larger than 256 KiB, one of at least 200 bytes among the first 64, and a server that places at least 1 MiB for a group.
pub trait Rig {
    fn content(&self) -> &dyn Known;
    /// A new link to the server.
    fn link(&mut self) -> Box<dyn Link>;
    /// Lets a little time pass: to the next thing that happens, or some milliseconds.
    fn pass(&mut self);
    /// Ends the paths of all links made so far. The links may take a while to notice.
    fn cut(&mut self);
    /// The server answers nothing from now on, though the paths stand. Whether the rig can do that.
    fn stall(&mut self) -> bool {
        false
    }
}

/// How often time may pass before something that must happen has not. A rig of real time sleeps at least a millisecond.
const PATIENCE: usize = 20_000;

/// Runs every check, each on links of its own. `rig` is called for each.
pub fn check_all<R: Rig>(mut rig: impl FnMut() -> R) {
    type Check = fn(&mut Bench<'_>);
    let checks: [(&str, Check); 12] = [
        ("every operation completes once", completes_once),
        ("answers are the dataset's bytes", bytes_are_right),
        ("what does not fit says what it needs", not_placed),
        ("an empty lease is answered", empty_lease),
        ("a full window gives back", gives_back),
        ("a cancelled operation completes once", cancel),
        ("cancelling what is not in flight does nothing", cancel_unknown),
        ("another version is a changed dataset", wrong_version),
        ("another dataset is refused", wrong_dataset),
        ("a sample beyond the end is refused", beyond_the_end),
        ("a dead link completes and gives back everything", dies),
        ("an operation without progress ends", deadline),
    ];
    for (name, check) in checks {
        println!("conformance: {name}");
        check(&mut Bench::new(&mut rig()));
    }
}

/// One check's slab and link, and what must hold at its end.
struct Bench<'a> {
    rig: &'a mut dyn Rig,
    slab: Slab,
    account: Account,
    next: u64,
    /// What was accepted: the lease's address and length, the ordinals.
    accepted: BTreeMap<Tag, (usize, usize, Vec<u64>)>,
}

impl<'a> Bench<'a> {
    fn new(rig: &'a mut dyn Rig) -> Bench<'a> {
        let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(8 << 20) }).expect("a slab of 8 MiB");
        let account = Account::new("conformance", slab.capacity());
        Bench { rig, slab, account, next: 0, accepted: BTreeMap::new() }
    }

    fn fields(&self) -> Arc<[FieldId]> {
        (0..self.rig.content().fields()).collect()
    }

    fn fetch(&mut self, ordinals: impl IntoIterator<Item = u64>, capacity: usize) -> Fetch {
        self.next += 1;
        Fetch {
            tag: Tag(self.next << 32 | 7),
            dataset: self.rig.content().dataset(),
            version: self.rig.content().version(),
            ordinals: ordinals.into_iter().collect(),
            fields: self.fields(),
            lease: self.slab.try_lease(&self.account, capacity).expect("the slab is large enough"),
            entries: Vec::new(),
            deadline: Duration::from_secs(20),
        }
    }

    #[allow(clippy::result_large_err)]
    fn submit(&mut self, link: &mut dyn Link, mut fetch: Fetch) -> Result<Tag, Fetch> {
        let (tag, ordinals) = (fetch.tag, fetch.ordinals.clone());
        let place = (fetch.lease.as_mut_ptr() as usize, fetch.lease.len());
        link.submit(fetch)?;
        self.accepted.insert(tag, (place.0, place.1, ordinals));
        Ok(tag)
    }

    fn must_submit(&mut self, link: &mut dyn Link, fetch: Fetch) -> Tag {
        let tag = self.submit(link, fetch).expect("a fresh link takes an operation");
        link.flush();
        tag
    }

    /// The next completion, which must be of something accepted, with its own lease and ordinals.
    fn next(&mut self, link: &mut dyn Link) -> Completion {
        for _ in 0..PATIENCE {
            if let Some(completion) = self.poll(link) {
                return completion;
            }
            self.rig.pass();
        }
        panic!("{} operations never completed: {:?}", self.accepted.len(), self.accepted.keys());
    }

    fn poll(&mut self, link: &mut dyn Link) -> Option<Completion> {
        let Poll::Ready(mut completion) = link.poll(&mut Context::from_waker(Waker::noop())) else { return None };
        let accepted = self.accepted.remove(&completion.tag);
        let (address, len, ordinals) = accepted.expect("completed once, and only what was accepted");
        assert_eq!(completion.lease.as_mut_ptr() as usize, address, "the lease that was given");
        assert_eq!(completion.lease.len(), len, "as long as it was");
        assert_eq!(completion.ordinals, ordinals, "the ordinals that were asked for");
        if let Ok(entries) = &completion.result {
            let fields = self.rig.content().fields() as usize;
            assert_eq!(entries.len(), ordinals.len() * fields, "one entry for each field of each sample");
            crate::place::check_table(entries, len as u64).expect("a table within bounds, without overlaps");
        }
        Some(completion)
    }

    /// Nothing comes any more, and all memory is back.
    fn finish(&mut self, mut link: Box<dyn Link>) {
        assert!(self.accepted.is_empty(), "operations left: {:?}", self.accepted.keys());
        for _ in 0..20 {
            self.rig.pass();
            assert!(self.poll(&mut *link).is_none(), "a completion of nothing");
        }
        assert_eq!(link.stats().in_flight, 0);
        drop(link);
        assert_eq!((self.account.held(), self.slab.usage().quarantined), (0, 0), "memory is not back");
    }

    /// Whether each placed entry is what the dataset has there; how many samples were placed whole.
    fn check(&self, completion: &Completion) -> usize {
        let entries = completion.result.as_ref().expect("an answer");
        let fields = self.rig.content().fields();
        let mut whole = 0;
        for (sample, &ordinal) in completion.ordinals.iter().enumerate() {
            let entries = &entries[sample * fields as usize..][..fields as usize];
            for (field, entry) in (0..fields).zip(entries) {
                self.check_entry(ordinal, field, entry, &completion.lease);
            }
            whole += usize::from(entries.iter().all(|entry| entry.status != Status::NotPlaced));
        }
        whole
    }

    fn check_entry(&self, ordinal: u64, field: FieldId, entry: &Entry, lease: &[u8]) {
        let content = self.rig.content();
        let len = content.len(ordinal, field);
        match entry.status {
            Status::Ok => {
                let bytes = &lease[entry.offset as usize..][..entry.len as usize];
                assert!(content.check(ordinal, field, bytes), "sample {ordinal} field {field}: other bytes");
                assert!(entry.crc.is_none_or(|crc| crc == crc32c::crc32c(bytes)), "sample {ordinal}: another CRC");
            }
            Status::Absent => assert_eq!(len, None, "sample {ordinal} has field {field}"),
            Status::NotPlaced => {
                assert_eq!(Some(entry.len), len, "sample {ordinal} field {field}: what it needs")
            }
            Status::Failed(failure) => panic!("sample {ordinal} field {field} failed: {failure:?}"),
        }
    }
}

fn completes_once(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    let mut waiting = (0..40).map(|i| bench.fetch([i, 63 - i % 64], 64 << 10)).collect::<Vec<_>>();
    waiting.reverse();
    let mut done = 0;
    while done < 40 {
        while let Some(fetch) = waiting.pop() {
            if let Err(fetch) = bench.submit(&mut *link, fetch) {
                waiting.push(fetch);
                break;
            }
        }
        link.flush();
        let completion = bench.next(&mut *link);
        assert!(completion.result.is_ok(), "{:?}", completion.result);
        bench.check(&completion);
        done += 1;
    }
    bench.finish(link);
}

fn bytes_are_right(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    for ordinals in [vec![0], (0..64).collect(), vec![63, 5, 5, 0, 17]] {
        let fetch = bench.fetch(ordinals.iter().copied(), 1 << 20);
        bench.must_submit(&mut *link, fetch);
        let completion = bench.next(&mut *link);
        assert!(bench.check(&completion) > 0, "1 MiB holds at least one sample");
    }
    bench.finish(link);
}

fn not_placed(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    let fields = bench.fields();
    let need = |bench: &Bench<'_>, ordinal| {
        let lens = fields.iter().filter_map(|&field| bench.rig.content().len(ordinal, field));
        crate::place::needed(lens, crate::wire::ALIGN).expect("a small sample") as usize
    };
    let large = (0..64).max_by_key(|&ordinal| need(bench, ordinal)).expect("64 samples");
    let exact = need(bench, large);
    for (capacity, fits) in [(exact - 1, false), (exact, true)] {
        let fetch = bench.fetch([large, large], capacity);
        bench.must_submit(&mut *link, fetch);
        let completion = bench.next(&mut *link);
        assert_eq!(bench.check(&completion), usize::from(fits), "{capacity} bytes of {exact}");
        let entries = completion.result.as_ref().expect("an answer");
        let placed = entries.iter().map(|entry| entry.status == Status::Ok).collect::<Vec<_>>();
        assert!(placed.is_sorted_by(|earlier, later| earlier >= later), "a prefix is placed");
    }
    bench.finish(link);
}

fn empty_lease(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    let fetch = bench.fetch(0..64, 0);
    bench.must_submit(&mut *link, fetch);
    let completion = bench.next(&mut *link);
    bench.check(&completion);
    drop(completion);
    bench.finish(link);
}

fn gives_back(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    let mut given = None;
    for i in 0..1500 {
        let fetch = bench.fetch([i % 64], 1);
        if let Err(fetch) = bench.submit(&mut *link, fetch) {
            given = Some(fetch);
            break;
        }
    }
    link.flush();
    // A window may be larger than the slab has leases for: then there is nothing to see.
    let Some(fetch) = given else {
        while !bench.accepted.is_empty() {
            bench.next(&mut *link);
        }
        return bench.finish(link);
    };
    assert!(link.is_alive(), "it gave back because it is full");
    bench.next(&mut *link);
    bench.submit(&mut *link, fetch).expect("room for one after one has completed");
    link.flush();
    while !bench.accepted.is_empty() {
        bench.next(&mut *link);
    }
    bench.finish(link);
}

fn cancel(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    for passes in [0, 1, 3, 50] {
        let fetch = bench.fetch(0..64, 1 << 20);
        let tag = bench.must_submit(&mut *link, fetch);
        let fetch = bench.fetch([1], 1 << 20);
        bench.must_submit(&mut *link, fetch);
        (0..passes).for_each(|_| bench.rig.pass());
        link.cancel(tag);
        link.cancel(tag);
        for _ in 0..2 {
            let completion = bench.next(&mut *link);
            match &completion.result {
                Ok(_) => _ = bench.check(&completion),
                Err(error) => assert_eq!((completion.tag, error), (tag, &LinkError::Cancelled)),
            }
        }
        link.cancel(tag);
    }
    // Also before the bell has rung.
    let fetch = bench.fetch([2], 1 << 20);
    let tag = bench.submit(&mut *link, fetch).expect("an idle link takes an operation");
    link.cancel(tag);
    link.flush();
    bench.next(&mut *link);
    bench.finish(link);
}

fn cancel_unknown(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    link.cancel(Tag(1));
    let fetch = bench.fetch([1], 1 << 20);
    bench.must_submit(&mut *link, fetch);
    link.cancel(Tag(2));
    let completion = bench.next(&mut *link);
    assert_eq!(bench.check(&completion), 1);
    drop(completion);
    bench.finish(link);
}

/// The one operation's error; the link must go on working.
fn fails(bench: &mut Bench<'_>, change: impl FnOnce(&mut Fetch)) -> LinkError {
    let mut link = bench.rig.link();
    let mut fetch = bench.fetch([0], 1 << 20);
    change(&mut fetch);
    bench.must_submit(&mut *link, fetch);
    let error = bench.next(&mut *link).result.expect_err("this cannot be answered");
    let fetch = bench.fetch([3], 1 << 20);
    bench.must_submit(&mut *link, fetch);
    let completion = bench.next(&mut *link);
    assert_eq!(bench.check(&completion), 1, "the link goes on");
    drop(completion);
    bench.finish(link);
    error
}

fn wrong_version(bench: &mut Bench<'_>) {
    let error = fails(bench, |fetch| fetch.version = Version([0xee; 32]));
    assert!(matches!(error, LinkError::DatasetChanged(_)), "{error:?}");
}

fn wrong_dataset(bench: &mut Bench<'_>) {
    let error = fails(bench, |fetch| fetch.dataset = "no-such-dataset".into());
    assert!(matches!(error, LinkError::Refused { .. }), "{error:?}");
}

fn beyond_the_end(bench: &mut Bench<'_>) {
    let samples = bench.rig.content().samples();
    let error = fails(bench, |fetch| fetch.ordinals[0] = samples);
    assert!(matches!(error, LinkError::Refused { .. }), "{error:?}");
}

fn dies(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    for i in 0..8 {
        let fetch = bench.fetch([i, i + 8], 512 << 10);
        bench.must_submit(&mut *link, fetch);
    }
    bench.rig.cut();
    let mut tries = 0;
    while !bench.accepted.is_empty() {
        let completion = bench.next(&mut *link);
        match &completion.result {
            Ok(_) => _ = bench.check(&completion),
            Err(error) => assert!(matches!(error, LinkError::Closed(_)), "{error:?}"),
        }
    }
    while link.is_alive() {
        bench.rig.pass();
        tries += 1;
        assert!(bench.poll(&mut *link).is_none() && tries < PATIENCE, "a cut path is noticed");
    }
    let fetch = bench.fetch([0], 1 << 20);
    assert!(bench.submit(&mut *link, fetch).is_err(), "a dead link takes nothing");
    bench.finish(link);
}

fn deadline(bench: &mut Bench<'_>) {
    let mut link = bench.rig.link();
    if !bench.rig.stall() {
        println!("conformance: NOT CHECKED: this rig cannot stall its server");
        return;
    }
    let mut fetch = bench.fetch([0], 1 << 20);
    fetch.deadline = Duration::from_millis(200);
    bench.must_submit(&mut *link, fetch);
    let error = bench.next(&mut *link).result.expect_err("nobody answers");
    assert!(matches!(error, LinkError::Deadline(_) | LinkError::Closed(_)), "{error:?}");
    bench.finish(link);
}
