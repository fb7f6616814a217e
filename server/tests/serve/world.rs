//! Datasets on disk, a service for them, and ways to ask it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_server::catalog::{BuildRequest, Dataset, Monitor, build, resolve};
use forebay_server::serve::{Registry, Served, Service, ServiceConfig, State};
use forebay_server::store::{PreadConfig, PreadStore, Store};
use forebay_transport::exchange::memory::{Answer, Ask, Event, start};
use forebay_transport::link::{Entry, Status};
use forebay_transport::pool::{Account, Slab, SlabConfig};
use forebay_transport::wire::describe::Problem;
use forebay_transport::wire::{AnswerDecoder, FetchRequest};
use http::Method;

/// The fields of one sample, by name.
pub type Fields = BTreeMap<&'static str, Vec<u8>>;
/// Samples in order: key and fields.
pub type Samples = Vec<(String, Fields)>;

/// Bytes that are the same each time and different for each seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn sample(key: impl Into<String>, fields: &[(&'static str, Vec<u8>)]) -> (String, Fields) {
    (key.into(), fields.iter().cloned().collect())
}

/// A ustar archive of the samples' fields.
pub fn tar(samples: &[(String, Fields)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, fields) in samples {
        for (field, bytes) in fields {
            out.extend(header(&format!("{key}.{field}"), bytes.len()));
            out.extend(bytes);
            out.resize(out.len().next_multiple_of(512), 0);
        }
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn header(name: &str, len: usize) -> [u8; 512] {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(124, &format!("{len:011o}\0"));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// A service, its pool, and the folder its datasets lie in.
pub struct World {
    pub service: Arc<Service>,
    pub slab: Slab,
    pub account: Account,
    pub folder: tempfile::TempDir,
}

pub fn quick() -> ServiceConfig {
    ServiceConfig { patience: Duration::from_secs(5), ..ServiceConfig::default() }
}

impl World {
    /// A service without datasets, with a pool of `pool` bytes of which the connection may have a quarter.
    pub fn new(pool: usize, config: ServiceConfig) -> World {
        let slab = Slab::new(SlabConfig { lock: false, ..SlabConfig::new(pool) }).unwrap();
        let service = Arc::new(Service::new(Arc::new(Registry::new()), slab.clone(), config));
        let account = Account::new("test", pool / 4);
        World { service, slab, account, folder: tempfile::tempdir().unwrap() }
    }

    /// Writes the samples into shards of `per_shard`, and indexes them.
    pub fn index(&self, name: &str, samples: &Samples, per_shard: usize) -> Dataset {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        for (number, shard) in samples.chunks(per_shard).enumerate() {
            std::fs::write(folder.join(format!("{number:04}.tar")), tar(shard)).unwrap();
        }
        let sources = resolve(&format!("{}/*.tar", folder.display())).unwrap();
        let request = BuildRequest::new(name, sources, self.folder.path().join(format!("{name}.index")));
        let monitor = Monitor { progress: &|_| (), cancel: &AtomicBool::new(false) };
        build(&request, monitor).unwrap().dataset
    }

    pub fn shard(&self, name: &str, number: usize) -> PathBuf {
        self.folder.path().join(name).join(format!("{number:04}.tar"))
    }

    /// Serves a dataset by a store that `wrap` makes of the ordinary one.
    pub fn serve<S: Store + 'static>(&self, dataset: Dataset, wrap: impl FnOnce(PreadStore) -> S) {
        let store = PreadStore::new(dataset.shard_files(), PreadConfig { threads: 2, files: 8 }).unwrap();
        let (name, store) = (dataset.name().to_owned(), Arc::new(wrap(store)));
        self.service.registry().set(name, State::Ready(Arc::new(Served::new(dataset, store))));
    }

    /// A world with the samples as dataset `d`.
    pub fn with(samples: &Samples, per_shard: usize) -> World {
        let world = World::new(32 << 20, quick());
        world.serve(world.index("d", samples, per_shard), |store| store);
        world
    }

    pub fn served(&self, name: &str) -> Arc<Served> {
        match self.service.registry().get(name) {
            Some(State::Ready(served)) => served,
            other => panic!("{name} is {other:?}"),
        }
    }

    pub async fn ask(&self, ask: Ask) -> Answer {
        self.ask_as(self.account.clone(), ask).await
    }

    /// An answer, read as the network does: copied, and the server's memory given back.
    pub async fn ask_as(&self, account: Account, mut ask: Ask) -> Answer {
        ask.account = account;
        let mut reading = start(self.service.clone(), ask);
        let (mut head, mut body, mut end) = (http::Response::new(()), Vec::new(), Err(0));
        while let Some(event) = reading.next().await {
            match event {
                Event::Head(found) => head = found,
                Event::Chunk(chunk) => body.extend_from_slice(&chunk),
                Event::Finished => end = Ok(()),
                Event::Reset(code) => end = Err(code),
            }
        }
        Answer { head, chunks: vec![body.into()], end }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Ask::get(path)).await
    }

    pub async fn method(&self, method: Method, path: &str) -> Answer {
        self.ask(Ask::new(method, path, Bytes::new())).await
    }

    /// The ask for some samples' fields of dataset `name` as it is now.
    pub fn asking(&self, name: &str, ordinals: &[u64], fields: &[&str], capacity: u64) -> Ask {
        let served = self.served(name);
        let field = |name: &&str| served.dataset.field_id(name).unwrap_or_else(|| panic!("no field {name}"));
        let fields: Vec<_> = fields.iter().map(field).collect();
        let (version, remaining) = (served.dataset.version(), Duration::from_secs(5));
        let mut body = BytesMut::new();
        FetchRequest { version, capacity, remaining, fields: &fields, ordinals }.encode(&mut body).unwrap();
        let mut ask = Ask::post(format!("/v1/datasets/{name}/fetch"), body.freeze());
        ask.account = self.account.clone();
        ask
    }

    /// Some samples' fields of dataset `d`.
    pub async fn fetch(&self, ordinals: &[u64], fields: &[&str], capacity: u64) -> Group {
        let answer = self.ask(self.asking("d", ordinals, fields, capacity)).await;
        assert_eq!(answer.status(), 200, "{}", String::from_utf8_lossy(&answer.body()));
        assert_eq!(answer.end, Ok(()));
        Group::read(&answer.body(), ordinals.len() * fields.len(), capacity)
    }

    /// All that requests held has come back.
    pub async fn assert_nothing_held(&self) {
        for _ in 0..200 {
            if self.slab.usage().leases == 0 && self.account.held() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("still held: {:?}, {:?}", self.slab.usage(), self.account);
    }
}

/// An answer in a lease.
pub struct Group {
    pub entries: Vec<Entry>,
    lease: Vec<u8>,
}

impl Group {
    pub fn read(body: &[u8], entries: usize, capacity: u64) -> Group {
        let (mut decoder, mut lease) = (AnswerDecoder::new(entries, capacity), vec![0xee; capacity as usize]);
        assert_eq!(decoder.copy_into(body, &mut lease), Ok(true));
        Group { entries: decoder.finish().unwrap(), lease }
    }

    /// The bytes of each entry that has some, which match its checksum.
    pub fn bytes(&self) -> Vec<Option<&[u8]>> {
        let bytes = |entry: &Entry| {
            let bytes =
                (entry.status == Status::Ok).then(|| &self.lease[entry.offset as usize..][..entry.len as usize])?;
            assert_eq!(entry.crc, Some(crc32c::crc32c(bytes)));
            Some(bytes)
        };
        self.entries.iter().map(bytes).collect()
    }

    pub fn statuses(&self) -> Vec<Status> {
        self.entries.iter().map(|entry| entry.status).collect()
    }
}

/// The problem in an answer, whose status it must agree with.
pub fn problem(answer: &Answer) -> Problem {
    assert_eq!(answer.end, Ok(()));
    assert_eq!(answer.head.headers()["content-type"], "application/problem+json");
    let problem: Problem = serde_json::from_slice(&answer.body()).unwrap();
    assert_eq!(problem.status, answer.status());
    problem
}

/// The last part of a problem's type.
pub fn kind(answer: &Answer) -> String {
    problem(answer).kind.rsplit(':').next().unwrap_or_default().to_owned()
}
