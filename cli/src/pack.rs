//! `forebay pack`: a folder of files becomes shards.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use forebay_server::pack::{self, Labels, Limit, PackError, PackRequest};

use crate::args::Pack;
use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use crate::shards::Watch;
use crate::units::{count, size};
use crate::usage;

/// Set by Ctrl-C: whole shards stay.
static INTERRUPT: AtomicBool = AtomicBool::new(false);

pub fn run(args: &Pack) -> Result<(), Failure> {
    usage::on_interrupt(&INTERRUPT)?;
    let request = PackRequest {
        name: args.name.clone(),
        limit: args.samples_per_shard.map_or(Limit::Bytes(args.shard_size), Limit::Samples),
        shuffle: args.shuffle.then_some(args.seed),
        labels: match args.labels.as_deref() {
            None => Labels::None,
            Some("folders") => Labels::Folders,
            Some(file) => Labels::Csv(PathBuf::from(file)),
        },
        first_dot: args.first_dot,
        ..PackRequest::new(&args.folder, &args.out)
    };
    let watch = Watch::new("packing");
    let started = Instant::now();
    let packed = pack::pack(&request, &|done, total| watch.show(done, total, ""), &INTERRUPT);
    watch.clear();
    let packed = packed.map_err(|error| match error {
        PackError::Cancelled => Failure::new(INTERRUPTED, "interrupted; shards that are whole stay"),
        error @ (PackError::Read { .. } | PackError::Write { .. } | PackError::Changed { .. }) => Failure::other(error),
        error => Failure::usage(error),
    })?;
    if args.json {
        return output::json(&serde_json::json!({
            "shards": packed.shards,
            "samples": packed.samples,
            "bytes": packed.bytes,
            "classes": packed.classes,
            "passed_over": packed.passed_over,
            "seconds": started.elapsed().as_secs_f64(),
        }));
    }
    let mut text = format!(
        "samples   {}\nbytes     {} ({})\nshards    {}\n",
        count(packed.samples),
        count(packed.bytes),
        size(packed.bytes),
        count(packed.shards.len() as u64),
    );
    if !packed.classes.is_empty() {
        text.push_str(&format!("classes   {} (see classes.txt)\n", count(packed.classes.len() as u64)));
    }
    if packed.passed_over > 0 {
        text.push_str(&format!("left out  {} files without an extension\n", count(packed.passed_over)));
    }
    let out = args.out.display();
    text.push_str(&format!("\n  forebay read {out}\n  forebay serve {}={out}\n", name(&args.out)));
    output::text(&text)
}

/// A dataset's name for shards in this folder: the folder's, as far as that can be one.
fn name(out: &Path) -> String {
    let path = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
    let folder = path.file_name().unwrap_or_default().to_string_lossy();
    let plain: String = folder.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
    if plain.is_empty() { "packed".to_owned() } else { plain.chars().take(64).collect() }
}
