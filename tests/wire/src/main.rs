//! `wire`: two commands at the two ends of a wire.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use forebay_wire::{Burst, FAR, NEAR, Namespace, Settings, Wire, burst, ceiling, rate, share, time};

/// Runs two shell commands at the two ends of a wire between network namespaces, and ends when the second one does.
///
/// The first command is at 10.77.0.1, the second at 10.77.0.2. The exit status is the second's. What was lost, and why, is
/// printed at the end. Takes root.
#[derive(Parser)]
#[command(
    version,
    after_help = "Example: wire --rtt 150ms --rate 400mbit 'iperf3 -s -1' 'sleep 1; iperf3 -c 10.77.0.1'"
)]
struct Arguments {
    /// Round trip, half of it in each direction
    #[arg(long, value_parser = time, default_value = "0ms", value_name = "TIME")]
    rtt: Duration,
    /// Up to so much longer in each direction, evenly spread; the order stays
    #[arg(long, value_parser = time, default_value = "0ms", value_name = "TIME")]
    jitter: Duration,
    /// Bits of IP packets per second in each direction [default: as fast as this machine is]
    #[arg(long, value_parser = rate, value_name = "RATE")]
    rate: Option<u64>,
    /// Bytes that wait to be sent at most [default: rate × round trip, 64 KiB at least]
    #[arg(long, value_name = "BYTES")]
    queue: Option<u64>,
    /// Share of segments lost, each by itself
    #[arg(long, value_parser = share, default_value = "0", value_name = "SHARE")]
    loss: f64,
    /// Losses that come together: with which share they begin, and how many there are in the mean, as in 0.1%:8
    #[arg(long, value_parser = burst, value_name = "SHARE:LENGTH")]
    burst: Option<Burst>,
    /// Share of segments that come late, behind others
    #[arg(long, value_parser = share, default_value = "0", value_name = "SHARE")]
    reorder: f64,
    /// How late those come
    #[arg(long, value_parser = time, default_value = "5ms", value_name = "TIME")]
    late: Duration,
    /// The largest packet
    #[arg(long, default_value_t = 1500, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(576..=65521))]
    mtu: u32,
    /// What chance depends on
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Say how much a wire without limits carries on this machine, and end
    #[arg(long)]
    ceiling: bool,
    /// At 10.77.0.1; ended when the other one ends
    #[arg(required_unless_present = "ceiling")]
    first: Option<String>,
    /// At 10.77.0.2
    #[arg(required_unless_present = "ceiling")]
    second: Option<String>,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("wire: {error}");
            ExitCode::from(125)
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let Arguments { rtt, jitter, rate, queue, loss, burst, reorder, late, mtu, seed, first, second, .. } = arguments;
    let (Some(first), Some(second)) = (first, second) else {
        let ceiling = ceiling()?;
        println!("TCP {:.0} Mbit/s, UDP {:.0} Mbit/s: measure below half of it", ceiling.tcp / 1e6, ceiling.udp / 1e6);
        return Ok(ExitCode::SUCCESS);
    };
    let settings = Settings { delay: rtt / 2, jitter, rate, queue, loss, burst, reorder, late, mtu, seed };
    let wire = Wire::new(settings)?;
    // A group of its own, so that all of it can be ended.
    let _first = Ended(shell(wire.near(), &first).process_group(0).spawn()?);
    let status = shell(wire.far(), &second).status()?;
    for (carried, (from, to)) in wire.carried().iter().zip([(NEAR, FAR), (FAR, NEAR)]) {
        eprintln!("wire: {from} → {to}: {carried:?}");
    }
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn shell(namespace: &Namespace, command: &str) -> Command {
    let mut shell = namespace.command("sh");
    shell.args(["-c", command]);
    shell
}

/// A child and its own that do not outlive this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        drop(self.0.wait());
    }
}
