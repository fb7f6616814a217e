//! Bytes of one object, in order: asked for again where they did not come, from where they stopped.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange, ObjectMeta};

use super::connect::{Answer, Object};
use super::{DEFAULT_PATIENCE, RemoteError};
use crate::catalog::Identity;

/// Progress slower than this, in bytes per second, is none in the end.
const FLOOR: u64 = 16 << 10;
/// The first pause before asking again; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Of a patience, what one wait for the next byte may take: then it is asked for anew.
const STALL: u32 = 3;
/// After so many attempts without an answer of any kind nobody is taken to be there, when nothing was had from there yet.
const UNHEARD: u32 = 3;
/// What stands in the URLs at which the clouds' machines tell their credentials.
const METADATA: [&str; 4] = ["/latest/api/token", "/latest/meta-data", "/computeMetadata/", "/metadata/identity"];
/// How much of a server's complaint is passed on, in characters.
const COMPLAINT: usize = 300;

/// An object, and which one it has to be.
#[derive(Debug)]
pub(crate) struct Target {
    pub object: Object,
    pub identity: Identity,
    /// Its entity tag, once an answer told it: asked with, a server need not send what cannot be used.
    tag: OnceLock<String>,
}

impl Target {
    pub fn new(object: Object, identity: Identity) -> Target {
        Target { object, identity, tag: OnceLock::new() }
    }

    /// Whether the answer is of the object that was indexed.
    fn check(&self, meta: &ObjectMeta) -> Result<(), RemoteError> {
        let (found, indexed) = (identity_of(meta), &self.identity);
        if found == *indexed {
            // A weak tag never matches when it is asked with.
            if let Some(tag) = meta.e_tag.as_ref().filter(|tag| !tag.starts_with("W/")) {
                self.tag.get_or_init(|| tag.clone());
            }
            return Ok(());
        }
        let detail = if found.size != indexed.size {
            format!("it has {} bytes, {} when indexed", found.size, indexed.size)
        } else if found.mtime_ns != indexed.mtime_ns {
            "it was modified since it was indexed".to_owned()
        } else {
            "its entity tag is another than when it was indexed".to_owned()
        };
        Err(self.changed(detail))
    }

    fn changed(&self, detail: String) -> RemoteError {
        RemoteError::Changed { url: self.object.url.to_string(), detail }
    }
}

fn identity_of(meta: &ObjectMeta) -> Identity {
    Identity::of_object(meta.size, Some(meta.last_modified.timestamp()), meta.e_tag.as_deref())
}

/// What tells this object from what it was or will be.
pub(super) async fn identity(object: &Object) -> Result<Identity, RemoteError> {
    let asked = async |answer: Arc<Answer>| {
        let found = object.store.get_opts(&object.path, options(&answer, None, true)).await?;
        Ok(identity_of(&found.meta))
    };
    asked_until(object, Asked::Head, asked).await
}

/// The keys of all objects whose keys begin with this one's, which is a folder's or empty.
pub(super) async fn list(folder: &Object) -> Result<Vec<String>, RemoteError> {
    let asked = async |_| {
        let found = folder.store.list(Some(&folder.path));
        found.map_ok(|meta| meta.location.to_string()).try_collect().await
    };
    asked_until(folder, Asked::List, asked).await
}

/// A small object whole, at most `limit` bytes of it: a list of shards, a folder's index page. Reading ends early when
/// `enough` says so of what came so far.
pub(super) async fn small(object: &Object, limit: usize, enough: impl Fn(&[u8]) -> bool) -> Result<Bytes, RemoteError> {
    let asked = async |answer: Arc<Answer>| {
        let mut body = object.store.get_opts(&object.path, options(&answer, None, false)).await?.into_stream();
        let mut whole = Vec::new();
        while let Some(bytes) = body.next().await {
            whole.extend_from_slice(&bytes?);
            if whole.len() > limit || enough(&whole) {
                break;
            }
        }
        Ok(whole)
    };
    let whole = asked_until(object, Asked::Whole, asked).await?;
    if whole.len() > limit && !enough(&whole) {
        let detail = format!("it has more than {limit} bytes: no list of shards");
        return Err(RemoteError::Url { url: object.url.to_string(), detail });
    }
    Ok(whole.into())
}

/// What is asked of a server once, before anything is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Head,
    Whole,
    List,
}

/// Asks until there is an answer, or patience ends; sooner when there is not even a refusal, for then it is most likely the
/// wrong place.
async fn asked_until<T>(
    object: &Object,
    asked: Asked,
    ask: impl AsyncFn(Arc<Answer>) -> object_store::Result<T>,
) -> Result<T, RemoteError> {
    let mut waiting = Waiting::new(DEFAULT_PATIENCE);
    loop {
        let answer = Arc::new(Answer::default());
        let trouble = match waiting.on(ask(answer.clone())).await {
            Some(Ok(found)) => return Ok(found),
            // What is missing is not what was asked for, but where it should be.
            Some(Err(error @ object_store::Error::NotFound { .. })) if asked == Asked::List => {
                Trouble::Other(complaint(&error))
            }
            Some(Err(error)) => Trouble::of(&error, &answer),
            None => Trouble::stalled(),
        };
        // Of a head no part can be lost: an answer that is of no use stays so.
        let last = match asked {
            Asked::Head => answer.status() == 200,
            Asked::Whole | Asked::List => false,
        };
        match trouble {
            Trouble::Passing { detail, .. } if last || (answer.status() == 0 && waiting.attempts >= UNHEARD) => {
                return Err(waiting.failed(object, detail, false));
            }
            Trouble::Passing { detail, pause } => waiting.pause(object, detail, pause).await?,
            Trouble::Gone => return Err(waiting.failed(object, "there is no such object".to_owned(), true)),
            Trouble::Other(detail) | Trouble::Changed(detail) => return Err(waiting.failed(object, detail, false)),
        }
    }
}

/// What a server, or the way to it, has to say: with the cause, which the error's own text may leave out.
fn complaint(error: &object_store::Error) -> String {
    let mut detail = error.to_string();
    if let Some((end, _)) = detail.char_indices().nth(COMPLAINT) {
        detail.truncate(end);
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let cause = cause.to_string();
    if !detail.contains(&cause) && cause.len() < COMPLAINT {
        detail = format!("{}: {cause}", detail.trim_end());
    }
    // Whoever has no credentials is told of the last place that was asked for some: say what that means.
    if METADATA.iter().any(|part| detail.contains(part)) {
        detail =
            format!("no credentials are in the environment or in profile files, and this machine gives none: {detail}");
    }
    detail
}

fn options(answer: &Arc<Answer>, range: Option<Range<u64>>, head: bool) -> GetOptions {
    let mut options = GetOptions { head, range: range.map(GetRange::Bounded), ..GetOptions::default() };
    options.extensions.insert(answer.clone());
    options
}

/// What went wrong with one attempt.
enum Trouble {
    /// Another attempt may do; not before this pause, if the server said so.
    Passing {
        detail: String,
        pause: Option<Duration>,
    },
    Gone,
    Changed(String),
    Other(String),
}

impl Trouble {
    fn stalled() -> Trouble {
        Trouble::Passing { detail: "no answer, or no byte more".to_owned(), pause: None }
    }

    fn of(error: &object_store::Error, answer: &Answer) -> Trouble {
        let detail = complaint(error);
        match error {
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                return Trouble::Other(detail);
            }
            object_store::Error::NotFound { .. } => return Trouble::Gone,
            object_store::Error::Precondition { .. } => {
                return Trouble::Changed("its entity tag is another than when it was indexed".to_owned());
            }
            _ => {}
        }
        match answer.status() {
            416 => Trouble::Changed("it is shorter than when it was indexed".to_owned()),
            408 | 425 | 429 => Trouble::Passing { detail, pause: answer.retry_after() },
            300..=499 => Trouble::Other(detail),
            _ => Trouble::Passing { detail, pause: answer.retry_after() },
        }
    }
}

/// Attempts, and the time spent waiting for the network in all of them.
struct Waiting {
    patience: Duration,
    started: Instant,
    attempts: u32,
    /// Attempts since there was progress.
    failures: u32,
    waited: Duration,
    /// Bytes that came.
    got: u64,
}

impl Waiting {
    fn new(patience: Duration) -> Waiting {
        Waiting { patience, started: Instant::now(), attempts: 1, failures: 0, waited: Duration::ZERO, got: 0 }
    }

    /// What may still be waited: the patience, and what the bytes that came may have taken.
    fn left(&self) -> Duration {
        let earned = Duration::from_secs_f64(self.got as f64 / FLOOR as f64);
        self.patience.saturating_add(earned).saturating_sub(self.waited).min(self.patience)
    }

    /// `None` when it takes too long.
    async fn on<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let begun = Instant::now();
        let done = tokio::time::timeout(self.left().min(self.patience / STALL), work).await.ok();
        self.waited += begun.elapsed();
        done
    }

    /// Waits before the next attempt, or says that there is none.
    async fn pause(&mut self, object: &Object, detail: String, asked: Option<Duration>) -> Result<(), RemoteError> {
        let usual = PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        // Many reads fail at once; they shall not all come back at once.
        let noise = self.started.elapsed().subsec_nanos() % 1000;
        let pause = asked.unwrap_or(usual.mul_f64(0.5 + f64::from(noise) / 1000.0));
        if pause >= self.left() {
            return Err(self.failed(object, detail, false));
        }
        tracing::debug!(url = %object.url, attempt = self.attempts, detail, ?pause, "asking again");
        tokio::time::sleep(pause).await;
        self.waited += pause;
        self.failures += 1;
        self.attempts += 1;
        Ok(())
    }

    fn failed(&self, object: &Object, detail: String, missing: bool) -> RemoteError {
        let (attempts, elapsed) = (self.attempts, self.started.elapsed());
        RemoteError::Failed { url: object.url.to_string(), attempts, elapsed, detail, missing }
    }
}

/// Bytes on their way.
pub(crate) struct Fetching<'a> {
    target: &'a Target,
    /// What is still to come.
    range: Range<u64>,
    /// An answer said that the object is the one meant. Of an empty range only that is asked.
    checked: bool,
    body: Option<Body>,
    waiting: Waiting,
}

type Body = BoxStream<'static, object_store::Result<Bytes>>;

impl<'a> Fetching<'a> {
    /// `range` lies within the object. Nothing is asked for yet.
    pub fn new(target: &'a Target, range: Range<u64>, patience: Duration) -> Fetching<'a> {
        Fetching { target, range, checked: false, body: None, waiting: Waiting::new(patience) }
    }

    /// The next bytes; `None` after the last. All of them are of the object that is meant.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RemoteError> {
        loop {
            if self.range.is_empty() && self.checked {
                return Ok(None);
            }
            let answer = Arc::new(Answer::default());
            let step = step(self.target, &self.range, &mut self.body, &answer);
            let trouble = match self.waiting.on(step).await {
                Some(Ok(mut bytes)) => {
                    self.checked = true;
                    bytes.truncate(usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX));
                    self.range.start += bytes.len() as u64;
                    self.waiting.got += bytes.len() as u64;
                    self.waiting.failures = 0;
                    return Ok(Some(bytes));
                }
                Some(Err(Broken::Here(error))) => return Err(error),
                // It was asked for a part, and gives the whole.
                Some(Err(Broken::There(_))) if answer.status() == 200 && !self.range.is_empty() => {
                    return Err(RemoteError::NoRanges { url: self.target.object.url.to_string() });
                }
                Some(Err(Broken::There(error))) => Trouble::of(&error, &answer),
                Some(Err(Broken::Short)) => {
                    Trouble::Passing { detail: "the answer ended before its end".to_owned(), pause: None }
                }
                None => Trouble::stalled(),
            };
            self.body = None;
            let object = &self.target.object;
            match trouble {
                Trouble::Passing { detail, pause } => self.waiting.pause(object, detail, pause).await?,
                Trouble::Gone => return Err(self.target.changed("it is gone".to_owned())),
                Trouble::Changed(detail) => return Err(self.target.changed(detail)),
                Trouble::Other(detail) => return Err(self.waiting.failed(object, detail, false)),
            }
        }
    }
}

/// Why a step brought nothing.
enum Broken {
    Here(RemoteError),
    There(object_store::Error),
    Short,
}

/// The next bytes of `range`, of the answer that is being read or of a new one.
async fn step(
    target: &Target,
    range: &Range<u64>,
    body: &mut Option<Body>,
    answer: &Arc<Answer>,
) -> Result<Bytes, Broken> {
    if body.is_none() {
        let part = (!range.is_empty()).then(|| range.clone());
        let mut options = options(answer, part, range.is_empty());
        options.if_match = target.tag.get().cloned();
        let Object { store, path, .. } = &target.object;
        let got = store.get_opts(path, options).await.map_err(Broken::There)?;
        target.check(&got.meta).map_err(Broken::Here)?;
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        *body = Some(got.into_stream());
    }
    let Some(reading) = body else { return Err(Broken::Short) };
    match reading.next().await {
        Some(Ok(bytes)) => Ok(bytes),
        Some(Err(error)) => Err(Broken::There(error)),
        None => Err(Broken::Short),
    }
}
