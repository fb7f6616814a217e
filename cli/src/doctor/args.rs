//! What `forebay doctor` can be told.

use clap::Args;

use crate::units::parse_size;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay doctor
  forebay doctor --memory 8GiB --json

Each line says what was found, and `→` what mends it:
  ok      as it should be
  note    worth knowing; nothing need be done
  better  works, and would be faster with what the line says
  wrong   does not work, or what is there cannot be used: the exit code is then 7

Nothing is changed, and nothing is sent anywhere.")]
pub struct Doctor {
    /// The memory that `serve` or `read` will be given: half of it is the pool, which is what limits are compared with
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    pub memory: u64,
    /// Print what was found as JSON
    #[arg(long)]
    pub json: bool,
}
