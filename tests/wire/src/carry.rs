//! Carries packets from one device to the other, as the line says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::line::{Fate, Line};
use crate::packet::{Layout, MOST};
use crate::tun::Tun;

/// Packets taken before those that are due are handed over.
const TURN: usize = 64;
/// Bytes on the way at most, when no rate bounds them.
const ON_THE_WAY: usize = 512 << 20;
/// How long it may take until a thread notices that the wire is to end.
const NOTICE: Duration = Duration::from_millis(20);

/// What went over one direction, in segments.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub arrived: AtomicU64,
    pub bytes: AtomicU64,
    pub lost: AtomicU64,
    pub overflown: AtomicU64,
    pub late: AtomicU64,
}

/// What both directions share with who has the wire.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub stop: AtomicBool,
    /// Nothing gets through, and what is on the way is lost.
    pub down: AtomicBool,
    pub counts: [Counts; 2],
}

/// A packet on its way.
struct Pending {
    at: Duration,
    number: u64,
    bytes: Vec<u8>,
}

impl Pending {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Pending) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Pending) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Pending) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// One direction.
pub(crate) struct Carrier<'a> {
    pub line: Line,
    pub from: &'a Tun,
    pub to: &'a Tun,
    pub shared: &'a Shared,
    pub counts: &'a Counts,
    pub origin: Instant,
    pending: BinaryHeap<Reverse<Pending>>,
    on_the_way: usize,
    number: u64,
}

impl<'a> Carrier<'a> {
    pub(crate) fn new(line: Line, (from, to): (&'a Tun, &'a Tun), shared: &'a Shared, which: usize) -> Carrier<'a> {
        let (counts, origin) = (&shared.counts[which], Instant::now());
        Carrier { line, from, to, shared, counts, origin, pending: BinaryHeap::new(), on_the_way: 0, number: 0 }
    }

    /// Until the wire is to end, or a device is gone.
    pub(crate) fn run(mut self) -> io::Result<()> {
        // Sleeps end when they are to, not up to 50 µs later.
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        let mut buffer = vec![0; MOST];
        while !self.shared.stop.load(Ordering::Relaxed) {
            let mut taken = 0;
            while taken < TURN
                && let Some(len) = self.from.read(&mut buffer)?
            {
                self.take(&buffer[..len]);
                taken += 1;
            }
            self.hand_over();
            let wait = match self.pending.peek() {
                _ if taken == TURN => Duration::ZERO,
                Some(Reverse(next)) => next.at.saturating_sub(self.origin.elapsed()).min(NOTICE),
                None => NOTICE,
            };
            let wait = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
            match poll(&mut [PollFd::new(self.from, PollFlags::IN)], Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Each segment of a packet gets its fate; those that arrive together go on together.
    fn take(&mut self, bytes: &[u8]) {
        let now = self.origin.elapsed();
        let whole = bytes.len().saturating_sub(crate::packet::HEADER) as u64;
        let layout = Layout::of(bytes);
        let segments = layout.map_or(1, |layout| layout.segments());
        let mut cut = Vec::new();
        // The run of segments in order that arrive, and when the last of it does.
        let (mut start, mut arrives) = (0, None);
        for n in 0..=segments {
            let fate = (n < segments).then(|| self.fate(now, layout.map_or(whole, |layout| layout.bytes(n))));
            if let Some(Fate::Arrives(at)) = fate {
                arrives = Some(at);
                continue;
            }
            if let Some(at) = arrives.take() {
                match layout {
                    Some(layout) if start > 0 || n < segments => {
                        layout.cut(bytes, start, n, &mut cut);
                        self.send(at, cut.clone());
                    }
                    _ => self.send(at, bytes.to_vec()),
                }
            }
            if let Some(Fate::Late(at)) = fate {
                match layout {
                    Some(layout) if segments > 1 => {
                        layout.cut(bytes, n, n + 1, &mut cut);
                        self.send(at, cut.clone());
                    }
                    _ => self.send(at, bytes.to_vec()),
                }
            }
            start = n + 1;
        }
    }

    fn fate(&mut self, now: Duration, bytes: u64) -> Fate {
        let fate = match self.on_the_way < ON_THE_WAY {
            _ if self.shared.down.load(Ordering::Relaxed) => Fate::Lost,
            true => self.line.offer(now, bytes),
            false => Fate::Overflow,
        };
        let count = match fate {
            Fate::Arrives(_) => &self.counts.arrived,
            Fate::Late(_) => &self.counts.late,
            Fate::Lost => &self.counts.lost,
            Fate::Overflow => &self.counts.overflown,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if matches!(fate, Fate::Arrives(_) | Fate::Late(_)) {
            self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        fate
    }

    fn send(&mut self, at: Duration, bytes: Vec<u8>) {
        self.on_the_way += bytes.len();
        self.pending.push(Reverse(Pending { at, number: self.number, bytes }));
        self.number += 1;
    }

    fn hand_over(&mut self) {
        let now = self.origin.elapsed();
        while let Some(Reverse(next)) = self.pending.peek()
            && next.at <= now
        {
            let Some(Reverse(packet)) = self.pending.pop() else { break };
            self.on_the_way -= packet.bytes.len();
            if !self.shared.down.load(Ordering::Relaxed) {
                self.to.write(&packet.bytes);
            }
        }
    }
}
