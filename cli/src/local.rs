//! Shards on this machine, read without a server: where client and server meet in one process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_client::ClientConfig;
use forebay_client::blocking::{Client, Dataset};
use forebay_client::transport::pool::{Ledger, Slab, SlabConfig};
use forebay_server::local::LocalFabric;
use forebay_server::publish::{Publish, complete, publish};
use forebay_server::serve::Registry;
use forebay_server::store::{PreadConfig, RemoteConfig, Stores};

use crate::args::{DiskArgs, LocalArgs};
use crate::disk;
use crate::failure::Failure;
use crate::output;
use crate::shards::{Shards, Watch};
use crate::units::size;

/// Indexes what is not indexed yet, and opens it. The index is the one named, or one beside the shards, or one in the
/// user's cache; of shards elsewhere it is in memory, because on the machines that train nothing is written.
pub fn open(path: &str, args: &LocalArgs, disk: Option<&DiskArgs>, memory: Option<u64>) -> Result<Dataset, Failure> {
    let paths = [path.to_owned()];
    let shards = Shards::find(&paths)?;
    let portable = shards.portable(args.index.as_deref());
    let elsewhere = shards.elsewhere();
    let index = if elsewhere { path.into() } else { shards.cached(&paths)? };
    let Shards { name, sources, .. } = shards;
    let work = Publish {
        name: name.clone(),
        sources,
        index,
        in_memory: elsewhere,
        portable,
        skip_damaged: args.skip_damaged,
        defer: args.defer_checksums.then_some(args.checksum_rate),
    };
    // A server's client gives half of its memory to the network; here all of it could be pool, but then the same
    // command line would compare different pools.
    let memory = memory.unwrap_or(ClientConfig::default().memory);
    let (mut ledger, pool) = (Ledger::new(memory), memory / 2);
    ledger.claim("pool", pool).map_err(Failure::usage)?;
    let slab = Slab::new(SlabConfig::new(usize::try_from(pool).unwrap_or(usize::MAX))).map_err(Failure::usage)?;
    let local = match disk {
        Some(disk) if !elsewhere => disk::stores(disk, work.sources.iter(), &slab)?,
        // For a look, anything will do.
        _ => PreadConfig::default().into(),
    };
    ledger.claim("reading unaligned parts", local.bytes()).map_err(Failure::usage)?;
    let stores = Stores { local, remote: RemoteConfig::within(memory / 4, 1) };
    if elsewhere {
        ledger.claim("requests to other stores", stores.remote.bytes()).map_err(Failure::usage)?;
    }
    let registry = Arc::new(Registry::new());
    let watch = Watch::new(format!("indexing {name}"));
    let published = publish(&registry, &work, &stores, &|now| watch.build(now), &AtomicBool::new(false));
    watch.clear();
    let published = published.map_err(Failure::from)?;
    if let Some(why) = &published.discarded {
        output::note(format!("the earlier index of {name} was of no use and was made anew: {why}"));
    }
    for damage in &published.skipped {
        output::note(format!("read without a damaged shard: {damage}"));
    }
    if elsewhere && published.bytes_read > 0 {
        eprintln!(
            "forebay: {} were read to index {path}, in memory alone; `forebay index '{path}' --output FILE` makes an index that \
             is kept: name it with --index, or put it beside the shards",
            size(published.bytes_read)
        );
    }
    if args.defer_checksums && !elsewhere {
        let registry = registry.clone();
        // Ends with the process, wherever it is: what it learnt is kept.
        std::thread::Builder::new().name("index".into()).spawn(move || {
            if let Err(error) = complete(&registry, &work, &|_| {}, &AtomicBool::new(false)) {
                tracing::warn!(%error, "still without checksums");
            }
        })?;
    }
    let fabric = LocalFabric::new(path, registry).map_err(Failure::other)?;
    Ok(Client::with_pool(Box::new(fabric), slab, ledger)?.dataset(&name)?)
}
