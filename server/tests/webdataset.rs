//! Samples are exactly what the `webdataset` package yields: compared with the package itself, on tars of every kind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use forebay_server::catalog::{BuildRequest, Monitor, build, resolve};
use forebay_server::format::tar::TarReader;
use forebay_server::format::webdataset::Grouper;
use forebay_server::format::{Compression, FormatError, Problem};

/// A field: name, length, CRC-32C.
type Field = (Vec<u8>, u64, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Sample {
    key: Vec<u8>,
    /// Sorted by name.
    fields: Vec<Field>,
}

/// What the package makes of a shard: samples, and the exception that ended it, if one did.
#[derive(Debug, Default)]
struct Theirs {
    samples: Vec<Sample>,
    error: Option<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

fn python() -> Command {
    let path = std::env::var_os("FOREBAY_PYTHON").map_or_else(|| repository().join(".venv/bin/python"), PathBuf::from);
    assert!(path.exists(), "{} is missing: run `make deps`, or set FOREBAY_PYTHON", path.display());
    let mut command = Command::new(path);
    command.env("PYTHONUTF8", "1").env_remove("WDS_CACHE").env_remove("WDS_VERBOSE_CACHE");
    command
}

/// Runs one of the repository's Python programs; the result is what it printed.
fn run(program: &str, arguments: &[&str], shards: &[PathBuf]) -> String {
    let script = repository().join("tests/python").join(program);
    let output = python().arg(script).args(arguments).args(shards).output().expect("python starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} failed (is webdataset installed? `make deps` does it): {errors}");
    String::from_utf8(output.stdout).expect("JSON is UTF-8")
}

fn unhex(text: &serde_json::Value) -> Vec<u8> {
    let text = text.as_str().expect("a string");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal")).collect()
}

/// By shard, what the package yields.
fn theirs(together: bool, shards: &[PathBuf]) -> BTreeMap<String, Theirs> {
    let arguments: &[&str] = if together { &["--together"] } else { &[] };
    let mut out = BTreeMap::<String, Theirs>::new();
    for line in run("dump_webdataset.py", arguments, shards).lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("a JSON document per line");
        let theirs = out.entry(line["shard"].as_str().expect("a string").to_owned()).or_default();
        if let Some(error) = line["error"].as_str() {
            theirs.error = Some(error.to_owned());
            continue;
        }
        let fields = line["fields"].as_array().expect("a list").iter().map(|field| {
            let crc = field["crc32c"].as_str().map(|crc| u32::from_str_radix(crc, 16).expect("hexadecimal"));
            (unhex(&field["name_hex"]), field["bytes"].as_u64().expect("a number"), crc.expect("a string"))
        });
        theirs.samples.push(Sample { key: unhex(&line["key_hex"]), fields: fields.collect() });
    }
    out
}

/// What we make of a shard, given to the reader in pieces of `piece` bytes.
fn ours(bytes: &[u8], piece: usize) -> Result<Vec<Sample>, FormatError> {
    let mut tar = TarReader::new(bytes.len() as u64);
    let mut grouper = Grouper::new();
    for piece in bytes.chunks(piece) {
        tar.push(piece, |member| {
            let place = member.offset as usize..(member.offset + member.size) as usize;
            assert_eq!(crc32c::crc32c(&bytes[place]), member.crc, "the CRC is that of the bytes at the offset");
            grouper.push(member)
        })?;
    }
    tar.finish()?;
    let shard = grouper.finish();
    let samples = shard.iter().map(|(key, fields)| {
        let mut fields: Vec<Field> = fields
            .iter()
            .map(|field| {
                let name = shard.names[usize::from(field.name)].clone();
                (name.into_bytes(), field.len, field.crc.expect("always taken"))
            })
            .collect();
        fields.sort();
        Sample { key: key.to_vec(), fields }
    });
    Ok(samples.collect())
}

/// What we refuse although the package does not raise: it would lose samples in silence, or their bytes.
fn is_stricter(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::Checksum
            | Problem::Number { .. }
            | Problem::Size
            | Problem::TruncatedHeader
            | Problem::Pax(_)
            | Problem::Sparse { .. }
            | Problem::FieldName { .. }
    )
}

fn tars(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder was made");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let named = |path: &PathBuf| {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        name.starts_with(prefix) && name.ends_with(".tar")
    };
    let mut paths: Vec<_> = paths.filter(named).collect();
    paths.sort();
    paths
}

fn make(seed: u64, count: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = [folder.path().to_str().expect("UTF-8"), &seed.to_string(), &count.to_string()];
    run("make_tars.py", &arguments, &[]);
    folder
}

fn compare(folder: &Path, prefix: &str) -> usize {
    let shards = tars(folder, prefix);
    let mut theirs = theirs(false, &shards);
    let mut samples = 0;
    for shard in &shards {
        let name = shard.display().to_string();
        let theirs = theirs.remove(&name).unwrap_or_default();
        let bytes = std::fs::read(shard).expect("the shard is there");
        let whole = ours(&bytes, 1 << 20);
        for piece in [1, 511, 1000] {
            assert_eq!(ours(&bytes, piece), whole, "{name}: the size of the pieces matters");
        }
        match (whole, theirs.error) {
            (Ok(ours), None) => {
                assert_eq!(ours, theirs.samples, "{name}");
                samples += ours.len();
            }
            (Ok(_), Some(error)) => panic!("{name}: the package raises {error}"),
            (Err(_), Some(_)) => {}
            (Err(error), None) => assert!(is_stricter(&error.problem), "{name}: only we refuse it: {error}"),
        }
    }
    samples
}

/// The seed may be given, to look for trouble: `FOREBAY_SEED=7 cargo test -p forebay-server --test webdataset`.
fn seed() -> u64 {
    std::env::var("FOREBAY_SEED").map_or(20_261_201, |seed| seed.parse().expect("FOREBAY_SEED is a number"))
}

#[test]
fn random_tars_agree() {
    let folder = make(seed(), 600);
    let samples = compare(folder.path(), "random-");
    assert!(samples > 500, "only {samples} samples: the generator makes too little of interest");
    compare(folder.path(), "damaged-");
}

#[test]
fn tars_of_known_programs_agree() {
    let folder = make(1, 0);
    let samples = compare(folder.path(), "gnu-");
    assert!(samples >= 14, "only {samples} samples from seven tars");
    assert_eq!(compare(folder.path(), "writer"), 50);
    assert_eq!(compare(folder.path(), "shards-"), 20);
}

/// The package reads these; samples that do not lie in the file as they are cannot be served from there.
#[test]
fn what_cannot_be_served_in_place_is_refused_with_the_reason() {
    let folder = make(3, 0);
    let refused = |name: &str| {
        let bytes = std::fs::read(folder.path().join(name)).expect("it was made");
        ours(&bytes, 1 << 20).expect_err(name)
    };
    for name in ["gnu-sparse-gnu.tar", "gnu-sparse-pax.tar"] {
        let error = refused(name);
        assert!(
            matches!(&error.problem, Problem::Sparse { name, .. } if name.ends_with("holes.bin")),
            "{name}: {error}"
        );
        assert!(error.offset > 0, "{name}: {error}");
    }
    for (name, compression) in [("gzip", Compression::Gzip), ("bz2", Compression::Bzip2), ("lzma", Compression::Xz)] {
        let error = refused(&format!("packed-{name}.tar"));
        assert_eq!(error, FormatError { offset: 0, problem: Problem::Compressed(compression) }, "{name}");
    }
}

/// The same key at the end of a shard and at the start of the next: two samples, and everything is in order.
#[test]
fn a_dataset_agrees_across_borders() {
    let folder = make(2, 0);
    let sources = resolve(&format!("{}/shards-*.tar", folder.path().display())).expect("they were made");
    let shards: Vec<_> = sources.iter().map(|source| source.place.file().expect("a file").to_owned()).collect();
    let request = BuildRequest::new("test", sources, folder.path().join("state/test.idx"));
    let monitor = Monitor { progress: &|_| {}, cancel: &AtomicBool::new(false) };
    let dataset = build(&request, monitor).expect("intact shards").dataset;
    let theirs = theirs(true, &shards);
    let theirs: Vec<_> = theirs.values().flat_map(|shard| shard.samples.clone()).collect();
    assert_eq!(dataset.samples(), 20);
    let ours: Vec<_> = (0..dataset.samples())
        .map(|ordinal| {
            let sample = dataset.sample(ordinal).expect("an intact index");
            let fields = sample.fields.iter().map(|field| {
                let name = dataset.fields()[usize::from(field.field)].name.clone();
                (name.into_bytes(), field.extent.len, field.extent.crc.expect("always taken"))
            });
            Sample { key: sample.key.to_vec(), fields: fields.collect() }
        })
        .collect();
    assert_eq!(ours, theirs);
    // Sample 6 ends the first shard, sample 7 begins the second.
    assert_eq!(dataset.find(b"k6").expect("an intact index"), [6, 7]);
    assert_ne!(dataset.sample(6).expect("there").shard, dataset.sample(7).expect("there").shard);
}
