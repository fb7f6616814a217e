//! `forebay get`: one field of one sample.

use crate::args::Get;
use crate::connect::{self, Way};
use crate::failure::Failure;
use crate::output;
use crate::table;
use crate::units::count;

pub fn run(args: &Get) -> Result<(), Failure> {
    let way = Way { trust: &args.trust, fabric: args.fabric };
    let dataset = connect::dataset(&args.url, way, (&args.local, None), Some(args.memory))?;
    let ordinal = match (&args.key, args.sample) {
        (Some(key), _) => dataset.ordinal(key)?,
        (None, Some(ordinal)) => ordinal,
        (None, None) => return Err(Failure::usage("which sample? Say --sample N or --key KEY")),
    };
    let Some(field) = &args.field else {
        let sample = dataset.sample(ordinal)?;
        let rows: Vec<Vec<String>> =
            sample.fields.iter().map(|field| vec![field.name.clone(), count(field.bytes)]).collect();
        output::text(&format!("sample {} of {}, key {}\n\n", sample.ordinal, sample.shard, sample.key))?;
        return output::text(&table::render(&["field", "bytes"], &rows));
    };
    let batch = dataset.fetch(&[ordinal], Some(&[field]))?;
    match batch.field(0, 0) {
        Some(bytes) => output::bytes(bytes),
        None => {
            let sample = dataset.sample(ordinal)?;
            let has: Vec<&str> = sample.fields.iter().map(|field| field.name.as_str()).collect();
            Err(Failure::other(format!(
                "sample {ordinal} (key {}) has no field {field}; it has: {}",
                sample.key,
                has.join(", ")
            )))
        }
    }
}
