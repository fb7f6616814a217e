//! What the command line can say. Every flag has a default that serves; `--help` teaches.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::doctor::Doctor;
use crate::units::{parse_duration, parse_size};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed for another reason than those below
  2  the command line or a configuration makes no sense
  3  the server cannot be reached, not over the --fabric asked for, or was lost for longer than allowed
  4  the dataset changed on the server while it was being read
  5  the data is damaged: a sample failed its checksum or its storage, for good
  6  the pool is too small for what was asked of it
  7  `forebay doctor` found something wrong
  130  interrupted";

/// Keeps training loops fed: serves packed samples next to the storage, and reads them anywhere in any order.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = EXIT_CODES, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// What to log, as `level` or `target=level,…` (error, warn, info, debug, trace). Logs go to standard error.
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        env = "FOREBAY_LOG",
        default_value = "warn",
        hide_env_values = true
    )]
    pub log: String,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve datasets from shards on this machine, or in stores elsewhere, over HTTP/3
    Serve(Serve),
    /// List the datasets of a server, or describe one
    Ls(Ls),
    /// Write one field of one sample to standard output
    Get(Get),
    /// Read epochs as a training job would: each sample is fetched, checked and discarded
    Read(Read),
    /// Serve shards on loopback and read a shuffled epoch back, directly and through a 50 ms round trip
    Demo(Demo),
    /// Say what stands between this machine and full speed, and what mends it
    Doctor(Doctor),
    /// Make an index that travels with the shards, so that nobody who serves or reads them need read them first
    Index(Index),
    /// Read every byte of the shards again, and tell which samples are no longer what was indexed
    Verify(Verify),
    /// Make shards of a folder of files
    Pack(Pack),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay serve imagenet='/data/imagenet/*.tar'
  forebay serve imagenet='/data/imagenet-{000000..001281}.tar' --listen 0.0.0.0:4433 --open
  forebay serve imagenet='s3://bucket/imagenet/*.tar'

The shards are never changed, moved or copied. They are indexed once; what is learnt is kept in --state-dir, and only
shards that changed are read again. `listening on …` is printed when requests are accepted, `ready: NAME` when a
dataset is.")]
pub struct Serve {
    /// A dataset as NAME=SHARDS; SHARDS is a file, a folder, a pattern (`*`, `?`, `[…]`), a brace list
    /// (`{000000..001281}`) or a URL of those (https://, s3://, az://, gs://); quote it, so that the shell leaves it alone
    #[arg(required = true, value_name = "NAME=SHARDS", value_parser = parse_dataset)]
    pub datasets: Vec<DatasetArg>,

    /// Address and UDP port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4433")]
    pub listen: SocketAddr,

    /// Let anyone who can reach the address read: needed for any address but loopback, since there is no access control
    #[arg(long)]
    pub open: bool,

    /// Let a dataset be read by RDMA where there is a device for it, by those who may read it: its bytes then travel unencrypted,
    /// on the fabric that the device is on. Can be given several times
    #[arg(long, value_name = "NAME")]
    pub rdma: Vec<String>,

    /// Where indexes and the self-signed certificate are kept [default: $XDG_STATE_HOME/forebay or ~/.local/state/forebay]
    #[arg(long, value_name = "DIR", env = "FOREBAY_STATE_DIR")]
    pub state_dir: Option<PathBuf>,

    /// All memory for data: the pool, and what QUIC may hold beside it
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    pub memory: u64,

    /// Certificate chain (PEM); without it a self-signed certificate is made once and kept in the state directory
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,

    /// Private key (PEM) of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,

    /// Serve a dataset without its damaged shards, instead of not at all. This makes another version of it
    #[arg(long)]
    pub skip_damaged: bool,

    /// An index made by `forebay index`, for shards it knows; for one of several datasets, say which
    /// [default: one that lies beside the shards, if there is one]
    #[arg(long, value_name = "[NAME=]FILE|URL", value_parser = parse_index)]
    pub index: Vec<IndexArg>,

    /// Serve as soon as the headers of the shards are read, without checksums and under a provisional version (`hdr-…`),
    /// and read the rest meanwhile. Epochs that run then go on
    #[arg(long)]
    pub defer_checksums: bool,

    /// With --defer-checksums: the most bytes of shards read in a second
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub checksum_rate: u64,

    /// How long requests in flight may go on after SIGTERM or Ctrl-C
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub grace: Duration,

    /// The largest UDP payload to look for on a path, in bytes; less where a network promises more than it carries
    #[arg(long, value_name = "BYTES", default_value_t = 8952, value_parser = clap::value_parser!(u16).range(1200..=65_527))]
    pub max_mtu: u16,

    #[command(flatten)]
    pub disk: DiskArgs,
}

/// How shards on this machine are read.
#[derive(Clone, Debug, Args)]
pub struct DiskArgs {
    /// By which means to read shards on this machine
    #[arg(long, value_enum, value_name = "MEANS", default_value_t = IoArg::Auto)]
    pub io: IoArg,

    /// Whether to go past the page cache (O_DIRECT), which saves copying what would not stay cached anyway; needs io_uring
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = DirectArg::Auto)]
    pub direct: DirectArg,

    /// Threads that read shards where io_uring does not [default: twice the processors, at most 16]
    #[arg(long, value_name = "N")]
    pub read_threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoArg {
    /// io_uring, or threads where the kernel or a container does not allow it
    Auto,
    /// io_uring, or fail and say why not
    Uring,
    /// A pool of threads
    Pread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectArg {
    /// When all shards together are larger than the memory available for caching them
    Auto,
    /// Wherever the file system can
    On,
    /// Never
    Off,
}

/// `NAME=SHARDS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetArg {
    pub name: String,
    pub shards: String,
}

/// `[NAME=]FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexArg {
    pub dataset: Option<String>,
    pub file: PathBuf,
}

/// How to know that the server is who it says it is.
#[derive(Clone, Debug, Default, Args)]
#[group(multiple = false)]
pub struct TrustArgs {
    /// Trust certificates signed by those in this file (PEM) [default: the system's]
    #[arg(long, value_name = "FILE", env = "FOREBAY_CA")]
    pub ca: Option<PathBuf>,

    /// Trust the one certificate with this fingerprint, as `forebay serve` prints it
    #[arg(long, value_name = "SHA256:…", env = "FOREBAY_TRUST")]
    pub trust: Option<String>,

    /// Trust anyone. Whoever sits on the path can read and change everything
    #[arg(long)]
    pub insecure: bool,
}

/// Which fabric samples come over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FabricArg {
    /// From a server: HTTP/3 from the first sample on, RDMA beside it once and as long as that proves itself; else `local`
    Auto,
    /// RDMA, or fail and say why not
    Rdma,
    /// HTTP/3 alone
    H3,
    /// None: the shards are read from here
    Local,
}

/// For shards that are read without a server.
#[derive(Clone, Debug, Args)]
pub struct LocalArgs {
    /// With shards: an index made by `forebay index`, a file or a URL [default: one that lies beside the shards, else one
    /// that is kept in $XDG_CACHE_HOME/forebay; of shards elsewhere, one in memory]
    #[arg(long, value_name = "FILE|URL")]
    pub index: Option<PathBuf>,
    /// With shards: leave damaged ones out. This makes another version of the dataset
    #[arg(long)]
    pub skip_damaged: bool,
    /// With shards on this machine that are not indexed: begin when their headers are read, without checksums; the rest
    /// is read meanwhile, for this time or the next
    #[arg(long)]
    pub defer_checksums: bool,
    /// With --defer-checksums: the most bytes of shards read in a second for that
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub checksum_rate: u64,
}

#[derive(Debug, Args)]
pub struct Ls {
    /// `https://HOST:PORT`, or `https://HOST:PORT/DATASET` or shards to describe a dataset
    #[arg(value_name = "URL|SHARDS")]
    pub url: String,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Which fabric samples come over
    #[arg(long, value_enum, value_name = "FABRIC", default_value_t = FabricArg::Auto)]
    pub fabric: FabricArg,
    #[command(flatten)]
    pub local: LocalArgs,
    /// Print JSON, as the server sends it
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay get https://storage:4433/imagenet --sample 817 --field jpg > 817.jpg
  forebay get https://storage:4433/imagenet --key n01440764/img_817 --field cls")]
pub struct Get {
    /// `https://HOST:PORT/DATASET`, or shards: see `forebay read --help`
    #[arg(value_name = "URL|SHARDS")]
    pub url: String,
    #[command(flatten)]
    pub local: LocalArgs,
    /// The sample's ordinal, from 0
    #[arg(long, value_name = "N", required_unless_present = "key", conflicts_with = "key")]
    pub sample: Option<u64>,
    /// The sample's key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The field; without it, a list of the sample's fields is printed
    #[arg(long, value_name = "NAME")]
    pub field: Option<String>,
    /// All memory for data: the dataset's largest sample must fit into half of it
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    pub memory: u64,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Which fabric samples come over
    #[arg(long, value_enum, value_name = "FABRIC", default_value_t = FabricArg::Auto)]
    pub fabric: FabricArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShuffleArg {
    /// In the order of the shards
    None,
    /// A uniform permutation of all samples, another one each epoch
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnErrorArg {
    /// End with an error that names the sample
    Raise,
    /// Put a neighbouring sample in its place, and count it; see --max-skips
    Skip,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay read https://storage:4433/imagenet --epochs 1 --batch-size 512 --shuffle full --seed 7
  forebay read https://storage:4433/imagenet --rank 3 --world-size 8 --drop-last --json
  forebay read s3://bucket/imagenet/ --shuffle full --seed 7
  forebay read https://host/imagenet/forebay.fbi
  forebay read /data/imagenet --shuffle full --seed 7

Nothing is written to disk, but for the index of shards on this machine (of others it is in memory). With --json the summary is one JSON object on standard output.")]
pub struct Read {
    /// `https://HOST:PORT/DATASET`, or shards: a file, a folder, a pattern or a brace list on this machine, or a URL of
    /// those (https://, s3://, az://, gs://), or the URL of an index or of a list of shards
    #[arg(value_name = "URL|SHARDS")]
    pub url: String,
    #[command(flatten)]
    pub local: LocalArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// How many times to go through the data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub epochs: u64,
    /// Samples in a batch of this rank
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// In which order
    #[arg(long, value_enum, default_value_t = ShuffleArg::Full)]
    pub shuffle: ShuffleArg,
    /// What the shuffled order is a function of
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// This process's data-parallel rank, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rank: u32,
    /// How many data-parallel ranks share each epoch
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub world_size: u32,
    /// Leave out the last batches that not every rank can fill
    #[arg(long)]
    pub drop_last: bool,
    /// Which fields, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// All memory for data: the pool of pinned buffers (half), and what QUIC may hold beside it (nothing, with shards on
    /// this machine)
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    pub memory: u64,
    /// What to do about a sample that cannot be had
    #[arg(long, value_enum, default_value_t = OnErrorArg::Raise)]
    pub on_error: OnErrorArg,
    /// With --on-error skip: how many such samples to bear
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub max_skips: u64,
    /// Keep this many batches before giving the oldest back, as a training job that works on several at once would
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_batches: u32,
    /// How long to wait for memory that only giving kept batches back can free
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub pool_timeout: Duration,
    /// How long to wait for a server from which nothing arrives
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub stall_timeout: Duration,
    /// Print a digest of all delivered samples: of their order and bytes, and one that does not depend on the order
    #[arg(long)]
    pub digest: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub trust: TrustArgs,
    /// Which fabric samples come over
    #[arg(long, value_enum, value_name = "FABRIC", default_value_t = FabricArg::Auto)]
    pub fabric: FabricArg,
}

#[derive(Debug, Args)]
pub struct Demo {
    /// Shards: files, folders, patterns or brace lists, as for `serve`
    #[arg(required = true, value_name = "SHARDS")]
    pub shards: Vec<String>,
    /// All memory for data, for the server and the client each; half of it is the client's pool
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    pub memory: u64,
    /// Samples in a batch
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// Round trip of the second pass
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = parse_duration)]
    pub rtt: Duration,
    /// Where the index is kept [default: a temporary folder, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay index /data/imagenet
  forebay index '/data/imagenet-train-{000000..001281}.tar' --output /srv/indexes/imagenet-train.fbi
  forebay index s3://bucket/imagenet/ --output imagenet.fbi

The index lies beside the shards, where `serve` and `read` find it by themselves, or wherever --output says: then
name it to them with --index. Shards are named in it relative to their folder, so that it serves any copy of the data
whose files have the same sizes and times of last change (`cp -p`, `rsync -a`). An index that is there already is
brought up to date: only shards that are new or changed are read. A build that was killed goes on where it was.")]
pub struct Index {
    /// Shards: files, folders, patterns, brace lists or URLs, as for `serve`
    #[arg(required = true, value_name = "SHARDS")]
    pub paths: Vec<String>,
    /// Where to write it [default: beside the shards, named after what their names have in common, or `forebay.fbi`]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Leave damaged shards out. This makes another version of the dataset
    #[arg(long)]
    pub skip_damaged: bool,
    /// Threads that read shards [default: as many as there are processors]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay verify /data/imagenet
  forebay verify --index /data/imagenet/forebay.fbi --json
  forebay verify s3://bucket/imagenet/ --index imagenet.fbi

Every byte is read again, from the disk or from where the shards are, and compared with the checksums of the index,
whatever the files' times say. What does not match is told by shard, sample, key, field and offset; the exit code is then 5.")]
pub struct Verify {
    /// Shards, as for `serve` [default: those that the index names, in its folder]
    #[arg(value_name = "SHARDS", required_unless_present = "index")]
    pub paths: Vec<String>,
    /// The index to compare with [default: the one beside the shards, or the one that `read` made]
    #[arg(long, value_name = "FILE|URL")]
    pub index: Option<PathBuf>,
    /// Threads that read shards [default: as many as there are processors]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay pack photos/ shards/ --labels folders
  forebay serve photos=shards/
  forebay pack photos/ shards/ --labels labels.csv --shuffle --seed 7 --samples-per-shard 10000

Files with the same path up to the extension become one sample: `cats/7.jpg` and `cats/7.json` are fields jpg and json of
sample `cats/7`. The shards are tars as the webdataset package reads them, the same for the same files and flags.")]
pub struct Pack {
    /// The folder to pack; hidden files are left out
    pub folder: PathBuf,
    /// Where the shards go
    pub out: PathBuf,
    /// Bytes of samples in a shard
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub shard_size: u64,
    /// Samples in a shard, whatever their size
    #[arg(long, value_name = "N", conflicts_with = "shard_size", value_parser = clap::value_parser!(u64).range(1..))]
    pub samples_per_shard: Option<u64>,
    /// Put the samples in a shuffled order, so that readers that go through shards in order see them mixed
    #[arg(long)]
    pub shuffle: bool,
    /// What the shuffled order is a function of
    #[arg(long, value_name = "N", default_value_t = 0, requires = "shuffle")]
    pub seed: u64,
    /// Where each sample's field `cls` comes from: `folders` (the topmost folder it lies in) or a CSV file of FILE,LABEL
    #[arg(long, value_name = "folders|FILE")]
    pub labels: Option<String>,
    /// Begin a field's name at the first dot of a file's name, not the last: `7.seg.png` is then field seg.png of 7
    #[arg(long)]
    pub first_dot: bool,
    /// What the shards' names begin with
    #[arg(long, value_name = "NAME", default_value = "shard", value_parser = parse_prefix)]
    pub name: String,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.starts_with('.') || !text.chars().all(plain) {
        return Err("letters, digits, `-`, `_` and `.`, not beginning with `.`".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_index(text: &str) -> Result<IndexArg, String> {
    let (dataset, file) = match text.split_once('=') {
        Some((name, file)) if !name.contains('/') => (Some(name.to_owned()), file),
        _ => (None, text),
    };
    if file.is_empty() {
        return Err("expected FILE or NAME=FILE".to_owned());
    }
    Ok(IndexArg { dataset, file: file.into() })
}

fn parse_dataset(text: &str) -> Result<DatasetArg, String> {
    let (name, shards) = text.split_once('=').ok_or("expected NAME=SHARDS, as in imagenet='/data/imagenet/*.tar'")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!(
            "`{name}` is no dataset name: 1 to 64 letters, digits, `-`, `_` and `.`, not beginning with `.`"
        ));
    }
    if shards.is_empty() {
        return Err(format!("no shards are named for `{name}`"));
    }
    Ok(DatasetArg { name: name.to_owned(), shards: shards.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn dataset_names_are_plain() {
        assert_eq!(parse_dataset("a=/b=c").unwrap(), DatasetArg { name: "a".into(), shards: "/b=c".into() });
        for bad in ["", "a", "=x", "a=", "a/b=x", "..=x", ".a=x", "é=x"] {
            assert!(parse_dataset(bad).is_err(), "{bad}");
        }
    }
}
