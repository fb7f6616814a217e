//! How shards on this machine are read, as the command line says and the machine allows.

use forebay_client::transport::pool::Slab;
use forebay_server::catalog::SourceFile;
use forebay_server::store::{Direct, Io, LocalConfig, LocalStores};

use crate::args::{DirectArg, DiskArgs, IoArg};
use crate::failure::Failure;

/// Finds out how this process may read shards, and says what could be better.
pub fn stores<'a>(
    args: &DiskArgs,
    sources: impl Iterator<Item = &'a SourceFile>,
    slab: &Slab,
) -> Result<LocalStores, Failure> {
    // What cannot be looked at is found out when it is indexed.
    let file = |source: &SourceFile| source.place.file().and_then(|path| std::fs::metadata(path).ok());
    let size = |source: &SourceFile| file(source).map_or(0, |metadata| metadata.len());
    let mut config = LocalConfig {
        io: match args.io {
            IoArg::Auto => Io::Auto,
            IoArg::Uring => Io::Uring,
            IoArg::Pread => Io::Pread,
        },
        direct: match args.direct {
            DirectArg::Auto => Direct::Auto,
            DirectArg::On => Direct::On,
            DirectArg::Off => Direct::Off,
        },
        bytes: sources.map(size).sum(),
        ..LocalConfig::default()
    };
    if let Some(threads) = args.read_threads {
        config.pread.threads = threads.max(1);
    }
    let stores = LocalStores::new(&config, slab).map_err(Failure::usage)?;
    for note in stores.notes() {
        tracing::warn!("{note}");
    }
    tracing::info!(
        io_uring = stores.is_uring(),
        direct = stores.is_direct(),
        registered_bytes = stores.registered(),
        "how shards are read"
    );
    Ok(stores)
}
