//! Requests and answers.
//!
//! | module | holds |
//! | --- | --- |
//! | [`registry`] | which datasets there are, and whether they can be served now |
//! | [`route`] | from a path to what is asked for (pure) |
//! | `group`, `field` | make an answer's bytes, batch by batch, in constant memory |
//! | `read` | chunks from the store into the pool |
//! | `pump` | sends a batch while the next is being made |
//! | [`rdma`] | lets clients in that want samples by RDMA |
//! | `reply` | small, whole answers: documents and problems |

mod field;
mod group;
mod pump;
pub mod rdma;
mod read;
pub mod registry;
mod reply;
pub mod route;

use std::sync::Arc;
use std::time::Duration;

use forebay_transport::Version;
use forebay_transport::exchange::{BodyError, Handler, Handling, Request, Responder, SendError};
use forebay_transport::pool::Slab;
use forebay_transport::wire::describe::{DatasetList, WireRange};
use forebay_transport::wire::problem::Kind;
use forebay_transport::wire::{
    FetchBody, HEADER_CRC, HEADER_VERSION, MAX_REQUEST, TYPE_BYTES, TYPE_FETCH, TYPE_GROUP, WireError,
};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use http::{Method, StatusCode};

use self::field::Field;
use self::group::Group;
use self::pump::Failed;
use self::rdma::Rdma;
use self::read::{Reader, Stop};
pub use self::registry::{Registry, Served, State};
use self::reply::Refusal;
use self::route::{BadPath, Route};
use crate::catalog::{CatalogError, Dataset};
use crate::metrics::Metrics;

/// The most samples that a look-up by key describes: keys need not be unique, but an answer must end.
const MAX_FOUND: usize = 1024;

/// What a service may do.
#[derive(Clone, Copy, Debug)]
pub struct ServiceConfig {
    /// The most payload bytes in the answer to one group; a larger sample can still be fetched alone. Costs no memory.
    /// Default 256 MiB.
    pub max_group_bytes: u64,
    /// The longest wait for memory or storage before an answer is given up, in so far as the client does not name a
    /// shorter one. Default 30 s.
    pub patience: Duration,
}

impl Default for ServiceConfig {
    fn default() -> ServiceConfig {
        ServiceConfig { max_group_bytes: 256 << 20, patience: Duration::from_secs(30) }
    }
}

/// Answers requests for the datasets of a registry, out of one pool.
#[derive(Debug)]
pub struct Service {
    registry: Arc<Registry>,
    slab: Slab,
    metrics: Arc<Metrics>,
    config: ServiceConfig,
    rdma: Rdma,
}

/// A request that got no good answer: either it can still be told, or there is nothing left to say.
enum Unanswered {
    Refused(Refusal, Responder),
    Lost(SendError),
    /// Broken off in the middle.
    Late(Stop),
}

impl From<SendError> for Unanswered {
    fn from(error: SendError) -> Unanswered {
        Unanswered::Lost(error)
    }
}

impl Service {
    pub fn new(registry: Arc<Registry>, slab: Slab, config: ServiceConfig) -> Service {
        Service { registry, slab, metrics: Arc::default(), config, rdma: Rdma::denied() }
    }

    /// This, with what the server's owner allows to be read by RDMA.
    pub fn with_rdma(self, rdma: Rdma) -> Service {
        Service { rdma, ..self }
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    async fn answer(&self, request: Request, responder: Responder) {
        self.metrics.requests.one();
        let unanswered = match self.dispatch(request, responder).await {
            Ok(()) => return,
            Err(unanswered) => unanswered,
        };
        let sent = match unanswered {
            Unanswered::Refused(refusal, responder) => {
                self.count(refusal.kind);
                refusal.send(responder).await
            }
            Unanswered::Lost(error) => Err(error),
            Unanswered::Late(stop) => {
                match stop {
                    Stop::Gone => self.metrics.abandoned.one(),
                    Stop::Changed(_) => self.metrics.changed.one(),
                    Stop::Busy => self.metrics.busy.one(),
                    Stop::Storage(_) | Stop::Internal(_) | Stop::Damaged(_) => self.metrics.failed.one(),
                }
                return;
            }
        };
        if sent.is_err() {
            self.metrics.abandoned.one();
        }
    }

    fn count(&self, kind: Kind) {
        match kind {
            Kind::DatasetChanged => self.metrics.changed.one(),
            Kind::Busy | Kind::NotReady => self.metrics.busy.one(),
            kind if kind.status() < 500 => self.metrics.refused.one(),
            _ => self.metrics.failed.one(),
        }
    }

    async fn dispatch(&self, request: Request, responder: Responder) -> Result<(), Unanswered> {
        let route = match Route::parse(&request.path) {
            Ok(route) => route,
            Err(bad) => {
                let kind = if bad == BadPath::Unknown { Kind::NotFound } else { Kind::BadRequest };
                return Err(Unanswered::Refused(Refusal::new(kind, bad.to_string()), responder));
            }
        };
        if !route.has(&request.method) {
            let detail = format!("this route has {}", route.methods());
            let refusal = Refusal { allow: Some(route.methods()), ..Refusal::new(Kind::MethodNotAllowed, detail) };
            return Err(Unanswered::Refused(refusal, responder));
        }
        let name = match &route {
            Route::Datasets => {
                let list = DatasetList { wire: WireRange::ours(), datasets: self.registry.list() };
                return Ok(reply::document(responder, None, &list).await?);
            }
            Route::Dataset { dataset }
            | Route::Sample { dataset, .. }
            | Route::Field { dataset, .. }
            | Route::Keys { dataset, .. }
            | Route::Rdma { dataset }
            | Route::Fetch { dataset } => dataset,
        };
        let served = match self.served(name, pinned(&request)) {
            Ok(served) => served,
            Err(refusal) => return Err(Unanswered::Refused(refusal, responder)),
        };
        match route {
            Route::Fetch { .. } => self.fetch(served, request, responder).await,
            Route::Rdma { .. } => self.rdma(served, &request, responder).await,
            Route::Field { ordinal, field, .. } => self.field(served, ordinal, &field, request, responder).await,
            route => describe(&served.dataset, route, self.config.max_group_bytes, responder).await,
        }
    }

    /// The dataset of this name, if it can be served, and is the version that the request is pinned to.
    fn served(&self, name: &str, pinned: Result<Option<Version>, Refusal>) -> Result<Arc<Served>, Refusal> {
        let pinned = pinned?;
        let Some(state) = self.registry.get(name) else {
            return Err(Refusal::new(Kind::NotFound, format!("there is no dataset {name}")));
        };
        match state {
            State::Ready(served) => match pinned {
                Some(version) if !served.is(version) => Err(changed(&served, version)),
                _ => Ok(served),
            },
            State::Indexing { progress } => {
                let detail = format!("dataset {name} is being indexed: {:.0}% done", progress * 100.0);
                Err(Refusal::new(Kind::NotReady, detail))
            }
            State::Damaged { error } => Err(Refusal::new(Kind::Damaged, format!("dataset {name}: {error}"))),
            State::Changed { version, error } => {
                let detail = format!("dataset {name} is no longer {version}: {error}");
                Err(Refusal::new(Kind::DatasetChanged, detail))
            }
        }
    }

    async fn rdma(&self, served: Arc<Served>, request: &Request, responder: Responder) -> Result<(), Unanswered> {
        match self.rdma.offer(served.dataset.name(), request) {
            Ok(offer) => {
                self.metrics.tickets.one();
                Ok(reply::document(responder, Some(served.dataset.version()), &offer).await?)
            }
            Err(refusal) => Err(Unanswered::Refused(refusal, responder)),
        }
    }

    async fn fetch(&self, served: Arc<Served>, mut request: Request, responder: Responder) -> Result<(), Unanswered> {
        let body = match self.fetch_body(&served, &mut request).await {
            Ok(body) => body,
            Err(refusal) => return Err(Unanswered::Refused(refusal, responder)),
        };
        let (reader, responder) = self.reader(&served, &request, responder)?;
        let patience = Some(body.remaining).filter(|remaining| !remaining.is_zero());
        let patience = patience.unwrap_or(self.config.patience).min(self.config.patience);
        let group = Group::new(&reader, &body, self.config.max_group_bytes);
        let head = reply::head(StatusCode::OK, TYPE_GROUP, Some(body.version));
        let ended = pump::answer(&reader, responder, head, group, patience).await;
        self.ended(&served, ended)?;
        self.metrics.groups.one();
        Ok(())
    }

    /// Reads and checks what a fetch asks for: it is of the version served, and all of it exists.
    async fn fetch_body(&self, served: &Served, request: &mut Request) -> Result<FetchBody, Refusal> {
        if let Some(found) = request.headers.get(CONTENT_TYPE).filter(|found| *found != TYPE_FETCH) {
            return Err(Refusal::new(Kind::UnsupportedType, format!("a fetch is {TYPE_FETCH}, not {found:?}")));
        }
        let body = request.read_body(MAX_REQUEST).await.map_err(|error| {
            let kind = match error {
                BodyError::TooLarge { .. } => Kind::TooLarge,
                BodyError::Timeout => Kind::Timeout,
                _ => Kind::BadRequest,
            };
            Refusal::new(kind, error.to_string())
        })?;
        let body = FetchBody::decode(body).map_err(|error| {
            let kind = if matches!(error, WireError::Version(_)) { Kind::WireVersion } else { Kind::BadRequest };
            Refusal::new(kind, error.to_string())
        })?;
        if !served.is(body.version) {
            return Err(changed(served, body.version));
        }
        let (dataset, samples, fields) = (&served.dataset, served.dataset.samples(), served.dataset.fields().len());
        let stranger = body.fields.iter().find(|&&field| usize::from(field) >= fields);
        if let Some(&field) = stranger {
            let error = CatalogError::NoSuchField { dataset: dataset.name().into(), field, fields };
            return Err(Refusal::new(Kind::NotFound, error.to_string()));
        }
        if let Some(ordinal) = body.ordinals.iter().find(|&ordinal| ordinal >= samples) {
            return Err(catalog(CatalogError::NoSuchSample { dataset: dataset.name().into(), ordinal, samples }));
        }
        Ok(body)
    }

    async fn field(
        &self,
        served: Arc<Served>,
        ordinal: u64,
        field: &str,
        request: Request,
        responder: Responder,
    ) -> Result<(), Unanswered> {
        let dataset = &served.dataset;
        let found = match dataset.field_id(field) {
            Some(id) => dataset.extent(ordinal, id),
            None => Ok(None),
        };
        let extent = match found {
            Ok(Some(extent)) => extent,
            Ok(None) => {
                let detail = format!("sample {ordinal} of dataset {} has no field {field}", dataset.name());
                return Err(Unanswered::Refused(Refusal::new(Kind::NotFound, detail), responder));
            }
            Err(error) => return Err(Unanswered::Refused(catalog(error), responder)),
        };
        let mut head = reply::head(StatusCode::OK, TYPE_BYTES, Some(dataset.version()));
        head.headers_mut().insert(CONTENT_LENGTH, extent.len.into());
        if let Some(crc) = extent.crc {
            reply::set(head.headers_mut(), HeaderName::from_static(HEADER_CRC), &format!("{crc:08x}"));
        }
        if request.method == Method::HEAD {
            return Ok(responder.send_head(head).await?.finish().await?);
        }
        let (reader, responder) = self.reader(&served, &request, responder)?;
        let body = Field::new(&reader, extent);
        let ended = pump::answer(&reader, responder, head, body, self.config.patience).await;
        self.ended(&served, ended)
    }

    fn reader(
        &self,
        served: &Arc<Served>,
        request: &Request,
        responder: Responder,
    ) -> Result<(Reader, Responder), Unanswered> {
        let (slab, account) = (self.slab.clone(), request.account.clone());
        match Reader::new(served.clone(), slab, account, self.metrics.clone()) {
            Some(reader) => Ok((reader, responder)),
            None => {
                let detail = "the server's pool is too small to lend a connection anything";
                Err(Unanswered::Refused(Refusal::new(Kind::Internal, detail), responder))
            }
        }
    }

    /// What the end of an answer means for the dataset, and for whoever asked.
    fn ended(&self, served: &Arc<Served>, ended: Result<(), Failed>) -> Result<(), Unanswered> {
        let Err(failed) = ended else { return Ok(()) };
        let (Failed::Early(stop, _) | Failed::Late(stop)) = &failed;
        let name = served.dataset.name();
        match stop {
            Stop::Changed(why) => {
                if self.registry.stop(served, why) {
                    let version = served.dataset.version();
                    tracing::error!(dataset = name, %version, why, "serves this version no more");
                }
            }
            Stop::Internal(why) => tracing::error!(dataset = name, why, "cannot answer"),
            Stop::Storage(why) => tracing::warn!(dataset = name, why, "cannot answer"),
            // The catalog told of the damage, once.
            Stop::Damaged(_) | Stop::Busy | Stop::Gone => {}
        }
        Err(match failed {
            Failed::Early(Stop::Gone, _) => Unanswered::Late(Stop::Gone),
            Failed::Late(stop) => Unanswered::Late(stop),
            Failed::Early(stop, responder) => {
                let (kind, detail) = match stop {
                    Stop::Changed(why) => (Kind::DatasetChanged, why),
                    Stop::Storage(why) => (Kind::Storage, why),
                    Stop::Busy => (Kind::Busy, "no memory became free in time".to_owned()),
                    Stop::Damaged(why) => (Kind::Damaged, why),
                    Stop::Internal(why) => (Kind::Internal, why),
                    Stop::Gone => (Kind::Internal, String::new()),
                };
                Unanswered::Refused(Refusal::new(kind, detail), responder)
            }
        })
    }
}

impl Handler for Service {
    fn handle(self: Arc<Self>, request: Request, responder: Responder) -> Handling {
        Box::pin(async move { self.answer(request, responder).await })
    }
}

/// Answers a route whose answer is a document about a dataset.
async fn describe(
    dataset: &Dataset,
    route: Route,
    max_group_bytes: u64,
    responder: Responder,
) -> Result<(), Unanswered> {
    let version = Some(dataset.version());
    let missing = match route {
        Route::Sample { ordinal, .. } => match dataset.describe_sample(ordinal) {
            Ok(sample) => return Ok(reply::document(responder, version, &sample).await?),
            Err(error) => error,
        },
        Route::Keys { key, .. } => match find(dataset, &key) {
            Ok(found) if found.is_empty() => {
                let detail = format!("dataset {} has no sample with this key", dataset.name());
                return Err(Unanswered::Refused(Refusal::new(Kind::NotFound, detail), responder));
            }
            Ok(found) => return Ok(reply::document(responder, version, &found).await?),
            Err(error) => error,
        },
        _ => return Ok(reply::document(responder, version, &dataset.describe(max_group_bytes)).await?),
    };
    Err(Unanswered::Refused(catalog(missing), responder))
}

fn find(
    dataset: &Dataset,
    key: &[u8],
) -> Result<Vec<forebay_transport::wire::describe::SampleDescription>, CatalogError> {
    dataset.find(key)?.into_iter().take(MAX_FOUND).map(|ordinal| dataset.describe_sample(ordinal)).collect()
}

/// The version that a request's header pins it to, if it has one.
fn pinned(request: &Request) -> Result<Option<Version>, Refusal> {
    let Some(value) = request.headers.get(HEADER_VERSION) else { return Ok(None) };
    let version = value.to_str().ok().and_then(Version::parse);
    version.map(Some).ok_or_else(|| Refusal::new(Kind::BadRequest, format!("{HEADER_VERSION} is not a version")))
}

fn changed(served: &Served, asked: Version) -> Refusal {
    let detail = format!("dataset {} is {}, not {asked}", served.dataset.name(), served.dataset.version());
    Refusal::new(Kind::DatasetChanged, detail)
}

fn catalog(error: CatalogError) -> Refusal {
    let kind = match error {
        CatalogError::NoSuchSample { .. } | CatalogError::NoSuchField { .. } => Kind::NotFound,
        _ => Kind::Damaged,
    };
    Refusal::new(kind, error.to_string())
}
