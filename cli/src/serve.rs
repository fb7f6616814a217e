//! `forebay serve`: from flags to a running server, and to its end.

mod rdma;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_client::transport::h3::server::{Server, ServerConfig};
use forebay_client::transport::h3::tls::Identity;
use forebay_client::transport::pool::{Ledger, Slab, SlabConfig};
use forebay_server::catalog::{self, Found, Place};
use forebay_server::publish::{Publish, PublishError, Published, complete, publish};
use forebay_server::serve::registry::Registry;
use forebay_server::serve::{Service, ServiceConfig};
use forebay_server::store::{RemoteConfig, Stores};

use crate::args::{IndexArg, Serve};
use crate::disk;
use crate::failure::{self, Failure};
use crate::output;
use crate::shards::{self, Watch};
use crate::units::{count, size};

/// What of the memory is for RDMA besides the pool, if that is allowed: one part of so many.
const RDMA_SHARE: u64 = 16;

/// Set when the server ends: indexing then ends too.
static CANCEL: AtomicBool = AtomicBool::new(false);
/// Set when a dataset has damaged shards.
static DAMAGED: AtomicBool = AtomicBool::new(false);

pub fn run(args: &Serve) -> Result<(), Failure> {
    if !args.listen.ip().is_loopback() && !args.open {
        return Err(Failure::usage(format!(
            "--listen {} lets other machines in, and there is no access control: say --open if anyone who reaches it may read",
            args.listen
        )));
    }
    let state = state_dir(args)?;
    let work = datasets(args, &state)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args, &state, work))
}

async fn serve(args: &Serve, state: &Path, work: Vec<Publish>) -> Result<(), Failure> {
    let mut ledger = Ledger::new(args.memory);
    let pool = args.memory / 2;
    ledger.claim("pool", pool).map_err(Failure::usage)?;
    let identity = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => Identity::from_pem(cert, key),
        _ => Identity::self_signed(state, &names(args.listen)),
    };
    let identity = identity.map_err(Failure::usage)?;
    let fingerprint = identity.fingerprint();
    let capacity = usize::try_from(pool).unwrap_or(usize::MAX);
    let slab = Slab::new(SlabConfig::new(capacity)).map_err(Failure::usage)?;
    let local = disk::stores(&args.disk, work.iter().flat_map(|dataset| &dataset.sources), &slab)?;
    ledger.claim("reading unaligned parts", local.bytes()).map_err(Failure::usage)?;
    let stores = Stores { local, remote: RemoteConfig::within(args.memory / 8, elsewhere(&work)) };
    let requests = stores.remote.bytes() * elsewhere(&work) as u64;
    ledger.claim("requests to other stores", requests).map_err(Failure::usage)?;
    let mut config = ServerConfig::new(args.listen, identity, capacity);
    config.transport.max_mtu = args.max_mtu;
    let rdma_budget = if args.rdma.is_empty() { 0 } else { args.memory / RDMA_SHARE };
    ledger.claim("RDMA frames and tables", rdma_budget).map_err(Failure::usage)?;
    let server = Server::bind(config.within(ledger.remaining())).map_err(Failure::other)?;
    for claim in server.claims() {
        ledger.claim(claim.name, claim.bytes).map_err(Failure::usage)?;
    }
    let registry = Arc::new(Registry::new());
    let url = format!("https://{}", server.local_addr());
    output::text(&format!("listening on {url}\n"))?;
    if args.cert.is_none() {
        output::text(&format!("certificate {fingerprint} (self-signed)\n  forebay ls {url} --trust {fingerprint}\n"))?;
    } else {
        output::text(&format!("certificate {fingerprint}\n"))?;
    }
    let service = Service::new(registry.clone(), slab.clone(), ServiceConfig::default());
    let (rdma, listener) = rdma::listen(&args.rdma, server.local_addr(), rdma_budget, &slab);
    let service = Arc::new(service.with_rdma(rdma));
    let hopeless = Arc::new(tokio::sync::Notify::new());
    let indexer = index(work, stores, registry, hopeless.clone())?;
    let failed = Arc::new(AtomicBool::new(false));
    let noticed = failed.clone();
    let shutdown = async move {
        tokio::select! {
            () = asked_to_end() => {}
            () = hopeless.notified() => noticed.store(true, Ordering::Relaxed),
        }
    };
    let listener = listener.map(|listener| listener.start(service.clone()));
    server.serve(service.clone(), shutdown, args.grace).await;
    if let Some(listener) = listener {
        listener.end().await;
    }
    CANCEL.store(true, Ordering::Relaxed);
    // It looks at the flag every few megabytes.
    let _ = tokio::task::spawn_blocking(move || indexer.join()).await;
    tracing::info!("served {}", service.metrics().snapshot(&slab));
    if failed.load(Ordering::Relaxed) {
        let code = if DAMAGED.load(Ordering::Relaxed) { failure::DAMAGED } else { failure::OTHER };
        return Err(Failure::new(code, "there is no dataset that can be served"));
    }
    Ok(())
}

/// How many datasets are in stores elsewhere.
fn elsewhere(work: &[Publish]) -> usize {
    work.iter().filter(|dataset| dataset.sources.iter().any(|source| source.place.is_object())).count()
}

/// The names that a self-signed certificate is for.
fn names(listen: SocketAddr) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !listen.ip().is_unspecified() && !listen.ip().is_loopback() {
        names.push(listen.ip().to_string());
    }
    if let Ok(host) = std::fs::read_to_string("/proc/sys/kernel/hostname") {
        let host = host.trim();
        if !host.is_empty() && host != "localhost" {
            names.push(host.to_owned());
        }
    }
    names
}

fn state_dir(args: &Serve) -> Result<PathBuf, Failure> {
    let home = || std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let xdg = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let dir = args
        .state_dir
        .clone()
        .or_else(|| xdg.or_else(|| Some(home()?.join(".local/state"))).map(|dir| dir.join("forebay")))
        .ok_or_else(|| {
            Failure::usage("neither $HOME nor $XDG_STATE_HOME says where to keep the index: give --state-dir")
        })?;
    let make = |dir: &Path| std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    let made = make(&dir.join("indexes")).and_then(|()| writable(&dir));
    made.map_err(|error| Failure::usage(format!("cannot use {} as the state directory: {error}", dir.display())))?;
    Ok(dir)
}

fn writable(dir: &Path) -> io::Result<()> {
    let metadata = std::fs::metadata(dir)?;
    if metadata.permissions().mode() & 0o200 == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(())
}

/// The datasets in the order of the command line; shards given under a repeated name follow those before.
fn datasets(args: &Serve, state: &Path) -> Result<Vec<Publish>, Failure> {
    let (mut work, mut seen): (Vec<Publish>, Vec<Place>) = Default::default();
    for dataset in &args.datasets {
        let Found { shards: mut sources, indexes } = catalog::find(&dataset.shards).map_err(Failure::usage)?;
        seen.extend(indexes);
        match work.iter_mut().find(|known| known.name == dataset.name) {
            Some(known) => known.sources.append(&mut sources),
            None => work.push(Publish {
                name: dataset.name.clone(),
                sources,
                index: state.join("indexes").join(format!("{}.fbi", dataset.name)),
                in_memory: false,
                portable: None,
                defer: args.defer_checksums.then_some(args.checksum_rate),
                skip_damaged: args.skip_damaged,
            }),
        }
    }
    for Publish { name, sources, .. } in &work {
        shards::distinct(&format!("dataset {name}"), sources)?;
    }
    let several = work.len() > 1;
    if let Some(name) = args.rdma.iter().find(|name| !work.iter().any(|dataset| dataset.name == **name)) {
        return Err(Failure::usage(format!("--rdma: no dataset {name} is to be served")));
    }
    for IndexArg { dataset, file } in &args.index {
        let known = match dataset {
            Some(name) => work.iter_mut().find(|work| work.name == *name),
            None if several => {
                let file = file.display();
                return Err(Failure::usage(format!("--index {file}: of which dataset? Say --index NAME={file}")));
            }
            None => work.first_mut(),
        };
        let Some(known) = known else {
            let name = dataset.as_deref().unwrap_or_default();
            return Err(Failure::usage(format!("--index: no dataset {name} is to be served")));
        };
        known.portable = Some(Place::of(file));
    }
    for known in work.iter_mut().filter(|work| work.portable.is_none()) {
        known.portable = catalog::beside(&known.sources, &seen);
    }
    Ok(work)
}

/// Indexes one dataset after the other on a thread of its own: together they would only compete for the disk.
fn index(
    work: Vec<Publish>,
    stores: Stores,
    registry: Arc<Registry>,
    hopeless: Arc<tokio::sync::Notify>,
) -> io::Result<std::thread::JoinHandle<()>> {
    for dataset in &work {
        registry.set(&dataset.name, forebay_server::serve::registry::State::Indexing { progress: 0.0 });
    }
    std::thread::Builder::new().name("index".into()).spawn(move || {
        let served = AtomicUsize::new(0);
        for dataset in &work {
            if CANCEL.load(Ordering::Relaxed) {
                return;
            }
            let watch = Watch::new(format!("indexing {}", dataset.name));
            let started = std::time::Instant::now();
            let done = publish(&registry, dataset, &stores, &|now| watch.build(now), &CANCEL);
            watch.clear();
            match done {
                Ok(published) => {
                    served.fetch_add(1, Ordering::Relaxed);
                    announce(&dataset.name, &published, started.elapsed());
                }
                Err(_) if CANCEL.load(Ordering::Relaxed) => return,
                Err(error) => {
                    let damaged = matches!(error, PublishError::Build(catalog::BuildError::Damaged { .. }));
                    DAMAGED.fetch_or(damaged, Ordering::Relaxed);
                    output::note(Failure::from(error).message);
                }
            }
        }
        if served.load(Ordering::Relaxed) == 0 {
            return hopeless.notify_one();
        }
        work.iter().for_each(|dataset| finish(&registry, dataset));
    })
}

/// Reads what was left for later.
fn finish(registry: &Registry, dataset: &Publish) {
    let watch = Watch::new(format!("reading the content of {}", dataset.name));
    let started = std::time::Instant::now();
    let done = complete(registry, dataset, &|now| watch.build(now), &CANCEL);
    watch.clear();
    match done {
        Ok(Some(published)) => announce(&dataset.name, &published, started.elapsed()),
        Ok(None) => {}
        Err(_) if CANCEL.load(Ordering::Relaxed) => {}
        Err(error) => output::note(format!("still without checksums: {error}")),
    }
}

fn announce(name: &str, published: &Published, took: Duration) {
    if let Some(reason) = &published.discarded {
        output::note(format!("the earlier index of {name} was of no use and was made anew: {reason}"));
    }
    for damage in &published.skipped {
        output::note(format!("dataset {name} is served without a damaged shard: {damage}"));
    }
    // A closed standard output must not end a server.
    let _ = io::Write::write_all(
        &mut io::stdout().lock(),
        format!(
            "{name}: {} samples, {} in {} shards, version {}, indexed in {:.1} s ({} read)\nready: {name}\n",
            count(published.samples),
            size(published.bytes),
            count(published.shards as u64),
            published.version,
            took.as_secs_f64(),
            size(published.bytes_read),
        )
        .as_bytes(),
    );
}

/// SIGTERM or Ctrl-C. The second ends the process at once.
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    eprintln!("forebay: ending; what is in flight may finish (a second signal ends at once)");
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        std::process::exit(i32::from(failure::INTERRUPTED));
    });
}
