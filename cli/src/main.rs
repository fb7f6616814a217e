//! The one program users run.

mod args;
mod connect;
mod demo;
mod disk;
mod doctor;
mod failure;
mod get;
mod index;
mod local;
mod ls;
mod output;
mod pack;
mod progress;
mod read;
mod serve;
mod shards;
mod table;
mod units;
mod usage;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = logging(&cli.log).and_then(|()| match &cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Get(args) => get::run(args),
        Command::Read(args) => read::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Index(args) => index::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Verify(args) => verify::run(args),
    });
    connect::close();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, message }) => {
            output::note(message);
            ExitCode::from(code)
        }
    }
}

fn logging(filter: &str) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure::usage(format!("--log {filter}: {error}")))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    Ok(())
}
