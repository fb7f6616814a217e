//! `forebay verify`: every byte is read again and compared with the index.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use forebay_server::catalog::{self, Dataset, Place, Rot, VerifyError};

use crate::args::Verify;
use crate::failure::{DAMAGED, Failure, INTERRUPTED};
use crate::output;
use crate::shards::{Shards, Watch};
use crate::units::{count, size};
use crate::usage;

/// Set by Ctrl-C.
static INTERRUPT: AtomicBool = AtomicBool::new(false);

pub fn run(args: &Verify) -> Result<(), Failure> {
    usage::on_interrupt(&INTERRUPT)?;
    let (index, dataset) = find(args)?;
    let name = dataset.name();
    let total: u64 = dataset.shards().iter().map(|shard| shard.file.identity.size).sum();
    let watch = Watch::new(format!("verifying {name}"));
    let started = Instant::now();
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let verified = catalog::verify(&dataset, threads, &|done| watch.show(done, total, ""), &INTERRUPT);
    watch.clear();
    let verified = verified.map_err(|error| match error {
        VerifyError::Cancelled => Failure::new(INTERRUPTED, "interrupted"),
        error => Failure::other(error),
    })?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        output::json(&serde_json::json!({
            "index": index.to_string(),
            "version": dataset.version().to_string(),
            "bytes": verified.bytes,
            "shards": verified.shards,
            "seconds": seconds,
            "found": verified.found,
            "rot": verified.rot.iter().map(json).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut text = String::new();
        for rot in &verified.rot {
            text.push_str(&format!("{rot}\n"));
        }
        text.push_str(&format!(
            "{} in {} shards read in {seconds:.1} s: {}\n",
            size(verified.bytes),
            count(verified.shards as u64),
            match verified.found {
                0 => "all as it was indexed".to_owned(),
                found => format!("{} damaged", count(found)),
            }
        ));
        output::text(&text)?;
    }
    match verified.found {
        0 => Ok(()),
        1 => Err(Failure::new(DAMAGED, "one place is not as it was indexed")),
        found => Err(Failure::new(DAMAGED, format!("{} places are not as they were indexed", count(found)))),
    }
}

/// The index, and the dataset as the index has it.
fn find(args: &Verify) -> Result<(Place, Dataset), Failure> {
    if args.paths.is_empty() {
        let Some(index) = &args.index else {
            return Err(Failure::usage("which shards? Name them, or their index with --index"));
        };
        let place = Place::of(index);
        let name = index.file_stem().map_or_else(|| "shards".into(), |stem| stem.to_string_lossy().into_owned());
        let dataset = match &place {
            Place::Object(url) => catalog::open_at(&name, &place, &Shards::find(&[url.to_string()])?.sources),
            Place::File(index) => {
                let root = index.parent().filter(|root| !root.as_os_str().is_empty()).unwrap_or(Path::new("."));
                catalog::open(&name, index, root)
            }
        };
        return Ok((place, dataset.map_err(Failure::other)?));
    }
    let shards = Shards::find(&args.paths)?;
    let cached = || shards.cached(&args.paths).ok().filter(|path| path.exists()).map(Place::from);
    let index = shards.portable(args.index.as_deref()).or_else(cached).ok_or_else(|| {
        Failure::usage(
            "there is no index of these shards to compare with: `forebay index` makes one, or name one with --index",
        )
    })?;
    let dataset = match (catalog::root(&shards.sources), &index) {
        // All that the index names there, not only what was named.
        (Some(root), Place::File(index)) => catalog::open(&shards.name, index, &root),
        _ => catalog::open_at(&shards.name, &index, &shards.sources),
    };
    let dataset = dataset.map_err(Failure::other)?;
    Ok((index, dataset))
}

fn json(rot: &Rot) -> serde_json::Value {
    serde_json::json!({
        "shard": rot.shard,
        "offset": rot.offset,
        "bytes": rot.len,
        "sample": rot.field.as_ref().map(|field| field.ordinal),
        "key": rot.field.as_ref().map(|field| &field.key),
        "field": rot.field.as_ref().map(|field| &field.name),
        "problem": rot.problem.to_string(),
    })
}
