//! Sends what a source makes, while the source makes more.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use forebay_transport::exchange::{BodyWriter, Responder, SendError};
use tokio::time::timeout;

use super::read::{Reader, Stop};

/// HTTP/3's code for an answer that the server cannot finish (RFC 9114, section 8.1).
const INTERNAL_ERROR: u64 = 0x102;
/// HTTP/3's code for an answer that the server has no memory to finish.
const EXCESSIVE_LOAD: u64 = 0x107;

/// Some bytes of a body, in order.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub chunks: Vec<Bytes>,
    /// How many of the bytes are samples'.
    pub payload: u64,
}

/// What makes a body, batch by batch.
pub(super) trait Source: Send {
    /// The next bytes; `None` after the last. Holds at most a chunk of the pool besides what it has handed out.
    fn next(&mut self) -> impl Future<Output = Result<Option<Batch>, Stop>> + Send;
}

/// How an answer ended that did not go well.
#[derive(Debug)]
pub(super) enum Failed {
    /// Before anything was sent: the responder is still there to say why.
    Early(Stop, Responder),
    /// In mid-answer, which has been broken off.
    Late(Stop),
}

/// Sends an answer whose body is what `source` makes. The head is sent when the first bytes are there, so that what
/// goes wrong before can still be said in an answer. While a batch is being sent the next one is being made. `patience`
/// bounds each wait for bytes to send; the transport bounds each wait for room to send them.
pub(super) async fn answer(
    reader: &Reader,
    mut responder: Responder,
    head: http::Response<()>,
    mut source: impl Source,
    patience: Duration,
) -> Result<(), Failed> {
    let first = tokio::select! {
        biased;
        made = timeout(patience, source.next()) => made.unwrap_or_else(|_| Err(reader.overdue())),
        () = responder.gone() => Err(Stop::Gone),
    };
    let mut batch = match first {
        Ok(batch) => batch,
        Err(stop) => return Err(Failed::Early(stop, responder)),
    };
    let mut writer = responder.send_head(head).await.map_err(lost)?;
    while let Some(now) = batch {
        let payload = now.payload;
        let next = send_and_make(reader, &mut writer, now, &mut source, patience).await;
        match next {
            Ok(next) => batch = next,
            Err(stop) => {
                let code = if matches!(stop, Stop::Busy) { EXCESSIVE_LOAD } else { INTERNAL_ERROR };
                writer.reset(code);
                return Err(Failed::Late(stop));
            }
        }
        reader.metrics.bytes.add(payload);
    }
    writer.finish().await.map_err(lost)
}

fn lost(error: SendError) -> Failed {
    if let SendError::Head(_) = error {
        return Failed::Late(Stop::Internal(error.to_string()));
    }
    Failed::Late(Stop::Gone)
}

/// Sends a batch and makes the next at the same time.
async fn send_and_make(
    reader: &Reader,
    writer: &mut BodyWriter,
    mut batch: Batch,
    source: &mut impl Source,
    patience: Duration,
) -> Result<Option<Batch>, Stop> {
    let mut making = pin!(source.next());
    let mut made = None;
    {
        let mut sending = pin!(writer.write_all(&mut batch.chunks));
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => {
                    sent.map_err(|_| Stop::Gone)?;
                    break;
                }
                next = &mut making, if made.is_none() => match next {
                    // Nothing of a version that is gone goes out any more, not even what waits to.
                    Err(stop @ Stop::Changed(_)) => return Err(stop),
                    next => made = Some(next),
                },
            }
        }
    }
    drop(batch);
    // Only now does time count: as long as bytes are under way there is progress, or the transport finds there is none.
    match made {
        Some(made) => made,
        None => tokio::select! {
            biased;
            made = timeout(patience, making) => made.unwrap_or_else(|_| Err(reader.overdue())),
            () = writer.gone() => Err(Stop::Gone),
        },
    }
}
