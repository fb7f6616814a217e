//! `forebay index`: an index that travels with the shards.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use forebay_server::catalog::{self, BuildRequest, Monitor};

use crate::args::Index;
use crate::failure::Failure;
use crate::output;
use crate::shards::{Shards, Watch};
use crate::units::{count, size};
use crate::usage;

/// Set by Ctrl-C: what is learnt is kept.
static INTERRUPT: AtomicBool = AtomicBool::new(false);

pub fn run(args: &Index) -> Result<(), Failure> {
    usage::on_interrupt(&INTERRUPT)?;
    let shards = Shards::find(&args.paths)?;
    let index = args.output.clone().or_else(|| shards.beside.clone()).ok_or_else(|| {
        Failure::usage(match shards.elsewhere() {
            true => {
                "nothing is written to where the shards are: say with --output where on this machine the index goes"
            }
            false => "the shards lie in several folders, or several paths name them: say where to write with --output",
        })
    })?;
    let mut request = BuildRequest::new(&shards.name, shards.sources, index.clone());
    // One that was made elsewhere and copied here: what it knows need not be read again.
    request.portable = index.exists().then(|| index.clone().into());
    request.skip_damaged = args.skip_damaged;
    if let Some(threads) = args.threads {
        request.threads = threads;
    }
    let watch = Watch::new(format!("indexing {}", shards.name));
    let started = Instant::now();
    let built = catalog::build(&request, Monitor { progress: &|now| watch.build(now), cancel: &INTERRUPT });
    watch.clear();
    let built = built.map_err(Failure::from)?;
    if let Some(why) = &built.discarded {
        output::note(format!("the earlier index was of no use and was made anew: {why}"));
    }
    for damage in &built.skipped {
        output::note(format!("left out: {damage}"));
    }
    let (dataset, seconds) = (&built.dataset, started.elapsed().as_secs_f64());
    if dataset.samples() == 0 {
        output::note("there is no sample in these shards: a sample's files are named KEY.FIELD, as img_817.jpg");
    }
    if args.json {
        return output::json(&serde_json::json!({
            "index": index,
            "version": dataset.version().to_string(),
            "samples": dataset.samples(),
            "bytes": dataset.bytes(),
            "shards": dataset.shards().len(),
            "shards_left_out": built.skipped.len(),
            "bytes_read": built.bytes_read,
            "seconds": seconds,
        }));
    }
    let read = match built.bytes_read {
        0 => "nothing: all of it was known".to_owned(),
        read => format!("{} in {seconds:.1} s, {:.2} GB/s", size(read), read as f64 / 1e9 / seconds),
    };
    output::text(&format!(
        "index     {}\nversion   {}\nsamples   {} in {} shards\nbytes     {} ({})\nread      {read}\n",
        index.display(),
        dataset.version(),
        count(dataset.samples()),
        count(dataset.shards().len() as u64),
        count(dataset.bytes()),
        size(dataset.bytes()),
    ))
}
