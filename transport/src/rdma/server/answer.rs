//! What a handler answers over HTTP, as it is said by RDMA: payload for places in the lease, then entries or a problem.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::StatusCode;
use http::header::RETRY_AFTER;

use crate::exchange::memory::{Event, Reading};
use crate::link::Entry;
use crate::wire::problem::{Kind, MAX_PROBLEM};
use crate::wire::{self, AnswerDecoder};

/// HTTP/3's code for an answer that the server has no memory to finish.
const EXCESSIVE_LOAD: u64 = 0x107;

pub(super) struct Answer {
    reading: Reading,
    /// Of the body: what was not looked at yet.
    rest: Bytes,
    state: State,
    entries: usize,
    capacity: u64,
}

enum State {
    Head,
    /// Where each entry's bytes belong; checked as a client would.
    Group(AnswerDecoder),
    Problem {
        status: u16,
        retry_after: Option<u16>,
        document: Vec<u8>,
    },
    Ended,
}

/// What comes next.
pub(super) enum Step {
    /// For the lease.
    Payload { at: u64, bytes: Bytes },
    /// The last.
    Entries(Vec<Entry>),
    /// The last.
    Problem { status: u16, retry_after: Option<u16>, document: Vec<u8> },
}

impl Answer {
    /// The answer to a fetch of so many entries, into a lease of `capacity` bytes.
    pub(super) fn new(reading: Reading, entries: usize, capacity: u64) -> Answer {
        Answer { reading, rest: Bytes::new(), state: State::Head, entries, capacity }
    }

    /// Not to be called after the last step.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        loop {
            if !self.rest.is_empty() {
                match self.payload() {
                    Ok(Some(step)) => return Poll::Ready(step),
                    Ok(None) => {}
                    Err(step) => return Poll::Ready(step),
                }
            }
            match ready!(self.reading.poll_next(cx)) {
                Some(Event::Head(head)) => self.head(&head),
                Some(Event::Chunk(bytes)) => self.rest = bytes,
                Some(Event::Finished) => return Poll::Ready(self.finish()),
                Some(Event::Reset(EXCESSIVE_LOAD)) => {
                    return Poll::Ready(self.fail(Kind::Busy, "no memory became free"));
                }
                Some(Event::Reset(_)) | None => {
                    return Poll::Ready(self.fail(Kind::Internal, "the answer was broken off"));
                }
            }
        }
    }

    fn head(&mut self, head: &http::Response<()>) {
        self.state = match head.status() {
            StatusCode::OK => State::Group(AnswerDecoder::new(self.entries, self.capacity)),
            status => {
                let retry_after = head.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                State::Problem { status: status.as_u16(), retry_after, document: Vec::new() }
            }
        };
    }

    /// The next payload in what is there.
    fn payload(&mut self) -> Result<Option<Step>, Step> {
        let decoder = match &mut self.state {
            State::Group(decoder) => decoder,
            State::Problem { document, .. } => {
                // One that is too long is none.
                if document.len() + self.rest.len() <= MAX_PROBLEM {
                    document.extend_from_slice(&self.rest);
                }
                self.rest = Bytes::new();
                return Ok(None);
            }
            State::Head | State::Ended => {
                self.rest = Bytes::new();
                return Ok(None);
            }
        };
        let mut input = &self.rest[..];
        let step = decoder.step(&mut input);
        let left = input.len();
        let step = match step {
            Ok(wire::Step::Payload { at, bytes, .. }) => Some(Step::Payload { at, bytes: self.rest.slice_ref(bytes) }),
            Ok(wire::Step::More | wire::Step::End) => None,
            Err(error) => return Err(self.fail(Kind::Internal, &error.to_string())),
        };
        self.rest.advance(self.rest.len() - left);
        Ok(step)
    }

    fn finish(&mut self) -> Step {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Group(decoder) => match decoder.finish() {
                Ok(entries) => Step::Entries(entries),
                Err(error) => self.fail(Kind::Internal, &error.to_string()),
            },
            State::Problem { status, retry_after, document } if (400..600).contains(&status) => {
                Step::Problem { status, retry_after, document }
            }
            _ => self.fail(Kind::Internal, "the answer is none to a fetch"),
        }
    }

    fn fail(&mut self, kind: Kind, why: &str) -> Step {
        self.state = State::Ended;
        let problem = kind.problem(why);
        let retry_after = (kind == Kind::Busy).then_some(1);
        Step::Problem {
            status: problem.status,
            retry_after,
            document: serde_json::to_vec(&problem).unwrap_or_default(),
        }
    }
}
