//! What `forebay doctor` can be told.

use clap::Args;

use crate::args::{DiskArgs, LocalArgs, TrustArgs};
use crate::units::parse_size;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay doctor
  forebay doctor --memory 8GiB --json
  forebay doctor https://storage:4433/imagenet --trust SHA256:…
  forebay doctor /data/imagenet

Each line says what was found, and `→` what mends it:
  ok      as it should be
  note    worth knowing; nothing need be done
  better  works, and would be faster with what the line says
  wrong   does not work, or what is there cannot be used: the exit code is then 7

Nothing is changed on this machine, but for the index of shards that have none. With a URL the server is connected to, and samples
are read from it for two seconds over each fabric; nothing is sent to anyone else.")]
pub struct Doctor {
    /// Look at the way to this server too: `https://HOST:PORT`, or `https://HOST:PORT/DATASET`; or at how fast shards are read
    #[arg(value_name = "URL|SHARDS")]
    pub url: Option<String>,
    #[command(flatten)]
    pub trust: TrustArgs,
    #[command(flatten)]
    pub local: LocalArgs,
    #[command(flatten)]
    pub disk: DiskArgs,
    /// The memory that `serve` or `read` will be given: half of it is the pool, which is what limits are compared with
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    pub memory: u64,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}
