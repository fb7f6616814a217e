//! The one program users run.

mod args;
mod units;

use clap::Parser;

fn main() {
    let _cli = args::Cli::parse();
}
