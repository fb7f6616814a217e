//! Reads samples in any order, as if the data were local.
//!
//! ```no_run
//! use forebay_client::{ClientConfig, LoaderOptions, blocking::Client};
//!
//! let url = "https://storage:4433/imagenet".parse()?;
//! let client = Client::connect(&url, ClientConfig::default())?;
//! let dataset = client.dataset("imagenet")?;
//! let options = LoaderOptions { batch_size: 512, seed: 7, ..LoaderOptions::default() };
//! for batch in dataset.loader(options)? {
//!     for sample in batch?.iter() {
//!         let jpg: &[u8] = sample.field_by_name("jpg").unwrap_or_default();
//!         // A view into the pool: nothing was copied. Its memory goes back when the sample is dropped.
//! #       let _ = jpg;
//!     }
//! }
//! # Ok::<(), forebay_client::Error>(())
//! ```
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | [`client`], [`blocking`] | what programs use: client, dataset, loader | decisions |
//! | [`plan`] | which sample stands at which position of an epoch, for which rank (pure) | I/O, state |
//! | [`window`] | how much to have in flight, and how large a group is (pure) | clocks |
//! | [`fetch`] | attempts, back-off, what an error means (pure) | I/O |
//! | [`select`] | which path samples take, and why: the decision alone (pure) | I/O, clocks |
//! | [`loader`] | the step machine: events in, actions out; batches and samples | I/O, clocks, threads, unseeded randomness |
//! | `driver` | the thread that owns links, sockets and timers | decisions |

pub mod blocking;
pub mod client;
mod config;
mod driver;
mod error;
pub mod fetch;
pub mod loader;
pub mod plan;
pub mod select;
pub mod url;
pub mod window;

pub use client::{Client, Dataset, Loader};
pub use config::{ClientConfig, Fabric, InUse, LoaderOptions};
pub use error::Error;
/// What both ends share; its types appear in this crate's interface.
pub use forebay_transport as transport;
pub use forebay_transport::h3::tls::{Fingerprint, Trust};
pub use loader::{Batch, LoaderError, OnError, Sample};
pub use plan::Shuffle;
pub use url::ServerUrl;
