//! The ring's thread: takes jobs, keeps the kernel busy with operations, and gives each lease back when nothing can write to it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::ring::{Reading, Ring, WOKEN};
use super::steps::{BOUNCE, Step, step};
use super::table::{Change, Table};
use super::{Config, Done, Failed, Handle, Inbox, Job, Part, Registered, Shared, Source, Target, Unavailable};
use crate::pool::{Account, Lease, Quarantined, Slab};
use crate::reply::{Replies, Reply};

/// Tokens from here on are of changes of the table; below, of operations.
const CHANGES: u64 = 1 << 32;
/// So often an operation is tried again that was interrupted or told to come back.
const TRIES: u32 = 16;
/// How long the thread sleeps when it has nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

pub(super) struct Settings {
    pub depth: u32,
    pub bounce: Option<Slab>,
    pub pieces: usize,
    pub config: Config,
}

type Started = Result<(Arc<Shared>, Registered), Unavailable>;

/// What the thread does.
pub(super) fn run(settings: Settings, tell: &SyncSender<Started>) {
    let Settings { depth, bounce, pieces, config } = settings;
    let slabs = config.register.into_iter().chain(bounce.clone()).collect();
    let made = Ring::new(depth, config.files, slabs)
        .and_then(|(ring, registered)| Ok((ring.bell().map_err(Unavailable::Other)?, ring, registered)));
    let (bell, ring, registered) = match made {
        Ok(made) => made,
        Err(error) => return drop(tell.send(Err(error))),
    };
    let account = Account::new("bounce", usize::MAX);
    let lend = || bounce.as_ref().and_then(|slab| slab.try_lease(&account, BOUNCE));
    let work = Work {
        table: Table::new(registered.files),
        ring,
        shared: Arc::new(Shared { replies: Replies::new(), inbox: Mutex::new(Inbox::default()), bell }),
        depth: depth as usize,
        patience: config.patience,
        bounce: (0..pieces).filter_map(|_| lend()).collect(),
        taken: Vec::new(),
        batches: Vec::new(),
        spare: Vec::new(),
        line: VecDeque::new(),
        operations: (0..depth).map(|_| None).collect(),
        free: (0..depth).collect(),
        changing: 0,
        last: Instant::now(),
        closed: None,
    };
    if tell.send(Ok((work.shared.clone(), registered))).is_ok() {
        work.serve();
    }
}

struct Work {
    table: Table,
    ring: Ring,
    shared: Arc<Shared>,
    depth: usize,
    patience: Duration,
    /// Bounce memory that no operation has.
    bounce: Vec<Lease>,
    /// Empty: memory that takes turns with the inbox's.
    taken: Vec<(Job, Reply<Done>)>,
    /// By number.
    batches: Vec<Option<Batch>>,
    /// Numbers of no batch.
    spare: Vec<u32>,
    /// Batches with something left to ask the kernel for, in the order in which they came.
    line: VecDeque<u32>,
    /// What the kernel has, by token.
    operations: Vec<Option<Operation>>,
    /// Tokens of no operation.
    free: Vec<u32>,
    /// Changes of the table that the kernel has.
    changing: usize,
    /// When an operation last ended.
    last: Instant,
    closed: Option<Instant>,
}

/// A job under way.
struct Batch {
    sources: Vec<Source>,
    parts: Vec<Part>,
    /// Where the kernel writes.
    lease: Held,
    reply: Option<Reply<Done>>,
    /// The part of which the next operation is, and how many of its bytes those before it bring.
    part: usize,
    asked: usize,
    /// Operations that the kernel has.
    flying: u32,
    failed: Option<Failed>,
    since: Instant,
}

enum Held {
    Lease(Lease),
    /// Somebody has been told that it does not come back. Given up when the last operation ends.
    Stuck(Quarantined),
    Gone,
}

/// A read that the kernel has. Nothing in here is touched or let go before its completion.
struct Operation {
    batch: u32,
    part: usize,
    /// Keeps it open.
    _file: Handle,
    target: Target,
    offset: u64,
    /// Where in the lease its bytes are wanted, and how many.
    at: usize,
    len: usize,
    bounce: Option<Bounce>,
    /// A read that ends elsewhere than at a multiple of this has met the file's end.
    block: usize,
    issued: Instant,
    tries: u32,
    overdue: bool,
}

/// Through bounce memory: which bytes are read, and which of them are wanted.
struct Bounce {
    memory: Lease,
    /// Bytes to read, and read already.
    len: usize,
    read: usize,
    /// Of what is read, the wanted ones begin here.
    skip: usize,
}

impl Work {
    fn serve(mut self) {
        let mut ended = Vec::with_capacity(2 * self.depth);
        loop {
            self.accept();
            self.issue();
            let flying = self.depth - self.free.len();
            if let Some(since) = self.closed
                && ((flying == 0 && self.changing == 0) || since.elapsed() > 2 * self.patience)
            {
                break;
            }
            let watched = flying > 0 || !self.line.is_empty() || self.closed.is_some();
            let tick = if watched { (self.patience / 8).max(Duration::from_millis(1)) } else { IDLE };
            if let Err(error) = self.ring.wait(tick, &mut ended) {
                tracing::error!(%error, "the kernel no longer serves the ring: nothing more is read through it");
                break;
            }
            for (token, result) in ended.drain(..) {
                match token {
                    WOKEN => {}
                    CHANGES.. => {
                        self.changing -= 1;
                        self.table.changed((token - CHANGES) as u32, result == 1);
                    }
                    token => self.complete(token as u32, result),
                }
            }
            self.watch();
        }
    }

    /// Takes what is in the inbox. From then on until the next time, the bell is rung for what is put there.
    fn accept(&mut self) {
        let mut jobs = std::mem::take(&mut self.taken);
        let sweep = {
            let mut inbox = self.shared.inbox();
            inbox.asleep = true;
            if inbox.closed && self.closed.is_none() {
                self.closed = Some(Instant::now());
            }
            std::mem::swap(&mut inbox.jobs, &mut jobs);
            std::mem::take(&mut inbox.sweep)
        };
        for (Job { sources, parts, lease }, reply) in jobs.drain(..) {
            let batch = Batch {
                sources,
                parts,
                lease: Held::Lease(lease),
                reply: Some(reply),
                part: 0,
                asked: 0,
                flying: 0,
                failed: None,
                since: Instant::now(),
            };
            let number = self.spare.pop().unwrap_or_else(|| {
                self.batches.push(None);
                self.batches.len() as u32 - 1
            });
            self.batches[number as usize] = Some(batch);
            self.line.push_back(number);
        }
        self.taken = jobs;
        if sweep {
            while let Some(change) = self.table.sweep() {
                self.change(change);
            }
        }
        if self.closed.is_some() {
            for number in std::mem::take(&mut self.line) {
                self.batch(number).failed.get_or_insert(Failed::Closed);
                self.settle(number);
            }
        }
    }

    fn batch(&mut self, number: u32) -> &mut Batch {
        self.batches[number as usize].as_mut().expect("a batch that is in line or has operations")
    }

    fn change(&mut self, change: Change) {
        self.changing += 1;
        // SAFETY: the descriptor lies in the table, which does not touch a slot that is being changed, keeps the file open
        // meanwhile and lives, on the heap, as long as the thread; the thread ends with changes under way only after it gave
        // them twice the patience, and then it forgets the table.
        unsafe { self.ring.change(CHANGES + u64::from(change.slot), change) };
    }

    /// Gives the kernel as much to do as it may have.
    fn issue(&mut self) {
        while let Some(&number) = self.line.front() {
            let batch = self.batches[number as usize].as_mut().expect("in line");
            batch.skip_done();
            let given_up = batch.reply.as_ref().is_none_or(Reply::is_closed);
            if batch.failed.is_some() || given_up || batch.part == batch.parts.len() {
                self.line.pop_front();
                self.settle(number);
                continue;
            }
            let Held::Lease(lease) = &mut batch.lease else {
                unreachable!("a batch whose lease is set aside has failed");
            };
            let Part { source, offset, len, at } = batch.parts[batch.part];
            let Source { file, direct } = &batch.sources[source as usize];
            let (offset, at, left) = (offset + batch.asked as u64, at + batch.asked, len - batch.asked);
            let next = step(*direct, offset, left, lease.as_mut_ptr().addr() + at);
            let Some(token) = self.free.pop() else { return };
            let bounce = match next {
                Step::Place { .. } => None,
                Step::Bounce { len, skip, .. } => {
                    let Some(memory) = self.bounce.pop() else {
                        self.free.push(token);
                        return;
                    };
                    Some(Bounce { memory, len, read: 0, skip })
                }
            };
            let offset = if let Step::Bounce { offset, .. } = next { offset } else { offset };
            let (target, change) = self.table.name(file);
            self.operations[token as usize] = Some(Operation {
                batch: number,
                part: batch.part,
                _file: file.clone(),
                target,
                offset,
                at,
                len: next.brings(),
                bounce,
                block: direct.map_or(1, |direct| direct.block),
                issued: Instant::now(),
                tries: 0,
                overdue: false,
            });
            batch.asked += next.brings();
            batch.flying += 1;
            if let Some(change) = change {
                self.change(change);
            }
            self.ask(token);
        }
    }

    /// Asks the kernel for an operation, or for the rest of one.
    fn ask(&mut self, token: u32) {
        let operation = self.operations[token as usize].as_mut().expect("under way");
        let batch = self.batches[operation.batch as usize].as_mut().expect("it has an operation");
        let (start, len, done) = match (&mut operation.bounce, &mut batch.lease) {
            (Some(bounce), _) => {
                let rest = bounce.len - bounce.read;
                debug_assert!(bounce.len <= bounce.memory.len());
                (bounce.memory.as_mut_ptr().wrapping_add(bounce.read), rest, bounce.read)
            }
            (None, Held::Lease(lease)) => {
                debug_assert!(operation.at + operation.len <= lease.len());
                (lease.as_mut_ptr().wrapping_add(operation.at), operation.len, 0)
            }
            (None, _) => unreachable!("what is set aside is not read into again"),
        };
        let aside = operation.tries > 0;
        let reading = Reading { target: operation.target, offset: operation.offset + done as u64, start, len, aside };
        // SAFETY: the memory is of the batch's lease, within bounds (`refusal` checked each part, and `at` and `len` are within
        // one), or of bounce memory that this operation owns. Neither is read, written, given back or unmapped before the
        // completion: the batch keeps the lease, or its quarantine, while it has operations, and `end` forgets them. The
        // operation keeps the file.
        unsafe { self.ring.read(u64::from(token), &reading) };
    }

    /// The kernel has ended an operation: the bytes read, or an error's number below zero.
    fn complete(&mut self, token: u32, result: i32) {
        self.last = Instant::now();
        let operation = self.operations[token as usize].as_mut().expect("each is completed once");
        let batch = self.batches[operation.batch as usize].as_mut().expect("it has an operation");
        let going = batch.failed.is_none() && matches!(batch.lease, Held::Lease(_));
        let part = operation.part;
        let again = |operation: &Operation| going && operation.tries < TRIES;
        let failed = match usize::try_from(result) {
            Ok(0) => Some(Failed::Ended { part }),
            Ok(read) => match operation.progress(read) {
                Progress::Whole => {
                    if let (Some(bounce), Held::Lease(lease), true) = (&operation.bounce, &mut batch.lease, going) {
                        let wanted = &bounce.memory[bounce.skip..][..operation.len];
                        lease.as_mut_slice()[operation.at..][..operation.len].copy_from_slice(wanted);
                    }
                    None
                }
                Progress::Ended => Some(Failed::Ended { part }),
                Progress::More if going => return self.ask(token),
                Progress::More => None,
            },
            Err(_) if matches!(-result, libc::EAGAIN | libc::EINTR) && again(operation) => {
                operation.tries += 1;
                return self.ask(token);
            }
            Err(_) => Some(Failed::Io { part, source: io::Error::from_raw_os_error(-result) }),
        };
        if let Some(failed) = failed {
            batch.failed.get_or_insert(failed);
        }
        batch.flying -= 1;
        let operation = self.operations[token as usize].take().expect("it was there");
        self.free.push(token);
        self.table.release(operation.target);
        self.bounce.extend(operation.bounce.map(|bounce| bounce.memory));
        self.settle(operation.batch);
    }

    /// Ends a batch of which nothing is left to do, unless the kernel still has some of it.
    fn settle(&mut self, number: u32) {
        let Some(batch) = &mut self.batches[number as usize] else { return };
        let given_up = batch.reply.as_ref().is_none_or(Reply::is_closed);
        let asked = batch.part == batch.parts.len() || batch.failed.is_some() || given_up;
        if batch.flying > 0 || !asked {
            return;
        }
        // One that failed may still be in line: it is taken out when its turn comes.
        if let Some(at) = self.line.iter().position(|&waiting| waiting == number) {
            self.line.remove(at);
        }
        self.spare.push(number);
        if let Some(batch) = self.batches[number as usize].take() {
            batch.finish();
        }
    }

    /// Finds what takes too long.
    fn watch(&mut self) {
        let now = Instant::now();
        let late = |since: Instant| now.saturating_duration_since(since) > self.patience;
        for operation in self.operations.iter_mut().flatten() {
            if operation.overdue || !late(operation.issued) {
                continue;
            }
            operation.overdue = true;
            let batch = self.batches[operation.batch as usize].as_mut().expect("it has an operation");
            batch.set_aside(Failed::Overdue { part: operation.part, after: self.patience });
        }
        // Nothing moves, so that those in line have no hope either. They were not begun, and get their leases back.
        if late(self.last) {
            let hopeless: Vec<u32> = self.line.iter().copied().collect();
            for number in hopeless {
                let after = self.patience;
                let batch = self.batch(number);
                if batch.flying == 0 && now.saturating_duration_since(batch.since) > after {
                    batch.failed.get_or_insert(Failed::Overdue { part: batch.part, after });
                    self.settle(number);
                }
            }
        }
    }
}

impl Drop for Work {
    /// The ring goes, also when the thread panics. What the kernel has not ended by now it may still write, even when the ring
    /// is gone: that memory is never used again.
    fn drop(&mut self) {
        self.shared.inbox().closed = true;
        self.accept();
        let mut lost = 0;
        for operation in self.operations.drain(..).flatten() {
            lost += 1;
            if let Some(bounce) = operation.bounce {
                let _lost = bounce.memory.quarantine();
            }
        }
        for mut batch in self.batches.drain(..).flatten() {
            // Never released.
            batch.set_aside(Failed::Closed);
        }
        if lost > 0 {
            tracing::error!(
                operations = lost,
                "the kernel has not ended all reads: their memory is lost to this process"
            );
        }
        if self.changing > 0 {
            std::mem::forget(std::mem::replace(&mut self.table, Table::new(0)));
        }
    }
}

impl Batch {
    /// Goes to the first part with something left to ask for.
    fn skip_done(&mut self) {
        while self.parts.get(self.part).is_some_and(|part| part.len == self.asked) {
            self.part += 1;
            self.asked = 0;
        }
    }

    /// The kernel is through with it.
    fn finish(self) {
        let Batch { sources, parts, lease, reply, failed, .. } = self;
        let lease = match lease {
            Held::Lease(lease) => Some(lease),
            Held::Stuck(lease) => {
                drop(lease.release());
                None
            }
            Held::Gone => None,
        };
        if let Some(reply) = reply {
            let result = failed.map_or(Ok(()), Err);
            drop(reply.send(Done { lease, sources, parts, result }));
        }
    }

    /// Tells whoever waits that it failed, while the kernel may still write to the lease.
    fn set_aside(&mut self, failed: Failed) {
        match std::mem::replace(&mut self.lease, Held::Gone) {
            Held::Lease(lease) => {
                tracing::error!(
                    reason = %failed,
                    bytes = lease.len(),
                    "memory that the kernel may still write to is set aside until it has let go of it"
                );
                self.lease = Held::Stuck(lease.quarantine());
            }
            other => self.lease = other,
        }
        let Some(reply) = self.reply.take() else { return };
        let (sources, parts) = (self.sources.clone(), self.parts.clone());
        drop(reply.send(Done { lease: None, sources, parts, result: Err(failed) }));
        self.failed.get_or_insert(Failed::Closed);
    }
}

enum Progress {
    /// All that is wanted is there.
    Whole,
    More,
    /// The file has no more.
    Ended,
}

impl Operation {
    /// So many bytes more have been read.
    fn progress(&mut self, read: usize) -> Progress {
        let whole = match &mut self.bounce {
            Some(bounce) => {
                bounce.read += read;
                bounce.read >= bounce.skip + self.len
            }
            None => {
                self.offset += read as u64;
                self.at += read;
                self.len -= read;
                self.len == 0
            }
        };
        match whole {
            true => Progress::Whole,
            false if read.is_multiple_of(self.block) => Progress::More,
            false => Progress::Ended,
        }
    }
}
