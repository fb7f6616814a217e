//! `forebay ls`: what a server has.

use forebay_client::InUse;
use forebay_client::blocking::Dataset;
use forebay_client::transport::wire::describe::{DatasetState, DatasetSummary, Description};

use crate::args::Ls;
use crate::connect::{self, Place, Way};
use crate::failure::{Failure, UNREACHABLE};
use crate::output;
use crate::table;
use crate::units::{count, size};

/// Listing needs next to no memory.
const MEMORY: u64 = 32 << 20;

pub fn run(args: &Ls) -> Result<(), Failure> {
    let way = Way { trust: &args.trust, fabric: args.fabric };
    let url = match Place::parse(&args.url)? {
        Place::Server(url) => url,
        Place::Here(_) => {
            let dataset = connect::dataset(&args.url, way, (&args.local, None), Some(MEMORY))?;
            return show(&dataset, args.json);
        }
    };
    let client = connect::client(&url, way, Some(MEMORY))?;
    match &url.dataset {
        None => {
            let list = client.datasets()?;
            if args.json {
                return output::json(&list);
            }
            let rows: Vec<Vec<String>> = list.datasets.iter().map(summary).collect();
            output::text(&table::render(&["dataset", "samples", "bytes", "state", "version"], &rows))?;
            for dataset in &list.datasets {
                if let Some(error) = &dataset.error {
                    output::text(&format!("{}: {error}\n", dataset.name))?;
                }
            }
            Ok(())
        }
        Some(name) => show(&client.dataset(name)?, args.json),
    }
}

fn show(dataset: &Dataset, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(dataset.description());
    }
    let in_use = dataset.settled()?;
    output::text(&describe(dataset.description(), &in_use))?;
    match in_use.fabric {
        Some(_) => Ok(()),
        None => Err(Failure::new(
            UNREACHABLE,
            format!("it cannot be read over the one fabric asked for: {}", in_use.reason),
        )),
    }
}

/// The fabric, and why that one.
pub fn fabric(in_use: &InUse) -> String {
    format!("{}: {}", in_use.fabric.as_deref().unwrap_or("none"), in_use.reason)
}

fn summary(dataset: &DatasetSummary) -> Vec<String> {
    let figure = |value: Option<u64>, show: fn(u64) -> String| value.map_or("-".into(), show);
    let state = match (dataset.state, dataset.progress) {
        (DatasetState::Indexing, Some(share)) => format!("indexing {:.0}%", share * 100.0),
        (DatasetState::Indexing, None) => "indexing".into(),
        (DatasetState::Ready, _) => "ready".into(),
        (DatasetState::Damaged, _) => "damaged".into(),
        (DatasetState::Changed, _) => "changed".into(),
    };
    // Enough of the version to tell two apart.
    let version = dataset.version.as_ref().map_or("-".into(), |version| version.chars().take(15).collect());
    vec![dataset.name.clone(), figure(dataset.samples, count), figure(dataset.bytes, size), state, version]
}

fn describe(description: &Description, in_use: &InUse) -> String {
    let mut text = format!(
        "dataset   {}\nversion   {}\nsamples   {}\nbytes     {} ({})\nlargest   {}\nshards    {}\nfabric    {}\n\n",
        description.name,
        description.version,
        count(description.samples),
        count(description.bytes),
        size(description.bytes),
        size(description.largest_sample),
        count(description.shards.len() as u64),
        fabric(in_use),
    );
    let rows: Vec<Vec<String>> = description
        .fields
        .iter()
        .map(|field| {
            let mean = field.bytes.checked_div(field.count).unwrap_or(0);
            vec![field.name.clone(), count(field.count), count(field.min), count(mean), count(field.max)]
        })
        .collect();
    text.push_str(&table::render(&["field", "samples", "min bytes", "mean bytes", "max bytes"], &rows));
    text
}
