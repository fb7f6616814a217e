//! What lies between this machine and a server that was named, and how fast that is.

use std::time::Duration;

use forebay_client::Trust;
use forebay_client::transport::h3::client::ConnectError;
use forebay_client::transport::h3::endpoint::TransportConfig;
use forebay_client::transport::h3::tls::TlsError;

use super::super::facts::Facts;
use super::super::finding::Finding;
use super::super::server::{Reached, Server};
use super::super::speed::{Rate, Speed, Trouble};
use super::machine::JUMBO;
use crate::units::size;

/// The largest UDP payload that is looked for, and what goes around it in a packet of IPv4 and of IPv6.
const AROUND: [u32; 2] = [28, 48];
/// Steps in which the largest payload is looked for: a path may carry that much more.
const STEP: u32 = 20;
/// Within a building.
const NEAR: Duration = Duration::from_millis(2);

fn reached(facts: &Facts) -> Option<(&Server, &Reached)> {
    let server = facts.server.as_ref()?;
    Some((server, server.reached.as_ref().ok()?))
}

/// Whether datagrams get there and back.
pub fn udp(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "UDP";
    let server = facts.server.as_ref()?;
    let authority = server.url.authority();
    let port = server.url.port;
    let error = match &server.reached {
        Ok(reached) => return Some(Finding::ok(NAME, format!("{authority} ({}) answers", reached.peer))),
        Err(error) => error,
    };
    let found = error.to_string();
    Some(match error {
        ConnectError::Untrusted { address, .. } => Finding::ok(NAME, format!("{authority} ({address}) answers")),
        // Nobody was asked.
        ConnectError::Tls(_) => return None,
        ConnectError::Resolve { .. } => Finding::wrong(NAME, found, format!("getent hosts {}", server.url.host)),
        ConnectError::Refused { .. } => {
            Finding::wrong(NAME, found, format!("there: forebay serve … --listen 0.0.0.0:{port} --open"))
        }
        ConnectError::Timeout { .. } => {
            let mend = format!(
                "there: ss -lun | grep {port}, and let UDP through to it: ufw allow {port}/udp, or the cloud's rules"
            );
            Finding::wrong(NAME, found, mend)
        }
        _ => Finding::wrong(NAME, found, format!("a Forebay server on UDP port {port} of {}", server.url.host)),
    })
}

/// Whether the server is who it says it is.
pub fn trust(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "TLS trust";
    let server = facts.server.as_ref()?;
    let reached = match &server.reached {
        Ok(reached) => reached,
        Err(ConnectError::Untrusted { reason, presented, .. }) => {
            let found = format!("the certificate is not trusted: {reason}");
            let mend = format!("--trust {presented}, if `forebay serve` printed that there; or --ca FILE");
            return Some(Finding::wrong(NAME, found, mend));
        }
        Err(error @ ConnectError::Tls(TlsError::NoRoots(_))) => {
            let mend = "apt install ca-certificates; or --trust SHA256:…, as `forebay serve` prints it";
            return Some(Finding::wrong(NAME, error.to_string(), mend));
        }
        Err(_) => return None,
    };
    let presented = reached.presented;
    Some(match &server.trust {
        Trust::Insecure => {
            let found = "anyone is trusted: whoever sits on the path can read and change everything";
            Finding::better(NAME, found, format!("--trust {presented} in the place of --insecure"))
        }
        Trust::Pinned(_) => Finding::ok(NAME, format!("{presented} is the certificate that was named")),
        Trust::CaFile(file) => Finding::ok(NAME, format!("an authority of {} vouches for it", file.display())),
        Trust::System => Finding::ok(NAME, "the system's authorities vouch for it"),
    })
}

/// Whether both clocks say the same.
pub fn clock(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "clock";
    /// What is no more than whole seconds and the way there make of equal clocks.
    const SAME: f64 = 2.0;
    /// Object stores refuse requests whose time differs by more, and certificates end and begin.
    const BEARABLE: f64 = 300.0;
    let (_, reached) = reached(facts)?;
    let Some(ahead) = reached.ahead else {
        return Some(Finding::note(NAME, "the server does not say what its clock says"));
    };
    if ahead.abs() <= SAME {
        return Some(Finding::ok(NAME, "the server's and ours agree"));
    }
    let side = if ahead > 0.0 { "ahead of" } else { "behind" };
    let found = format!("the server's is {:.0} s {side} ours", ahead.abs());
    let mend = "timedatectl set-ntp true, on the one that is wrong";
    Some(match ahead.abs() > BEARABLE {
        true => Finding::wrong(NAME, format!("{found}: certificates and object stores go by it"), mend),
        false => Finding::better(NAME, found, mend),
    })
}

/// The bytes per second that the budget allows over the round trip.
fn ceiling(facts: &Facts, reached: &Reached) -> f64 {
    let window = TransportConfig::client().within(facts.memory - facts.pool()).receive_window;
    window.min(facts.pool()) as f64 / reached.round_trip.as_secs_f64().max(1e-6)
}

/// How long a question takes, and what that means for the memory.
pub fn round_trip(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "round trip";
    let (_, reached) = reached(facts)?;
    let most = ceiling(facts, reached);
    let mut found = format!("{:.1} ms", reached.round_trip.as_secs_f64() * 1e3);
    let rates = facts.speeds.iter().filter(|speed| speed.fabric == "h3").filter_map(|speed| speed.rate.as_ref().ok());
    let best = rates.map(Rate::bytes_per_second).fold(0.0, f64::max);
    // Near enough to be what holds it back.
    if best > most * 0.7 {
        found.push_str(&format!(
            ": with --memory {} no more than {:.0} MB/s fit into it",
            size(facts.memory),
            most / 1e6
        ));
        return Some(Finding::better(NAME, found, format!("--memory {}MiB", facts.memory.saturating_mul(2) >> 20)));
    }
    if reached.round_trip > NEAR {
        found.push_str(&format!(", for which --memory {} allows {:.0} MB/s", size(facts.memory), most / 1e6));
    }
    Some(Finding::ok(NAME, found))
}

/// Bytes of the largest packet that is known to arrive.
fn largest(reached: &Reached) -> u32 {
    u32::from(reached.payload) + AROUND[usize::from(!reached.peer.ip().to_canonical().is_ipv4())]
}

/// The server's host, the bytes that a packet on the way there may have at most, and the interface that leads there.
pub fn carried(facts: &Facts) -> Option<(&str, u32, &String)> {
    let (server, reached) = reached(facts)?;
    let interface = facts.net.towards(reached.peer.ip())?;
    Some((&server.url.host, largest(reached) + STEP, &interface.name))
}

/// How large packets may be on the whole way.
pub fn packets(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "path MTU";
    let (server, reached) = reached(facts)?;
    let carried = largest(reached);
    let interface = facts.net.towards(reached.peer.ip());
    let host = &server.url.host;
    let found = format!("packets of {carried} bytes reach {host}");
    if carried >= JUMBO || reached.peer.ip().to_canonical().is_loopback() {
        return Some(Finding::ok(NAME, found));
    }
    match interface.and_then(|interface| Some((&interface.name, interface.mtu?))) {
        Some((name, mtu)) if carried + STEP < mtu.min(JUMBO) => {
            let found = format!("{found}, though {name} would carry {mtu}: something on the way does not");
            let mend = format!("tracepath -n {host} shows where; raise the MTU there");
            Some(Finding::better(NAME, found, mend))
        }
        Some((name, _)) if reached.round_trip < NEAR => {
            let found = format!("{found}: jumbo packets cost less for each byte");
            let mend = format!("ip link set dev {name} mtu 9000, here, there and on all between");
            Some(Finding::better(NAME, found, mend))
        }
        _ => Some(Finding::note(NAME, found)),
    }
}

/// How fast samples come.
pub fn speed(facts: &Facts) -> Option<Finding> {
    const NAME: &str = "speed";
    if facts.speeds.is_empty() {
        let (server, reached) = reached(facts)?;
        let name = server.url.authority();
        return Some(match &reached.datasets {
            Err(why) => {
                Finding { mend: None, ..Finding::wrong(NAME, format!("{name} does not say what it has: {why}"), "") }
            }
            Ok(_) => Finding::note(NAME, format!("{name} has no dataset that can be read now")),
        });
    }
    let mut worst = Finding::ok(NAME, "");
    let mut lines = Vec::new();
    for Speed { fabric, dataset, rate } in &facts.speeds {
        lines.push(match rate {
            Ok(rate) if rate.bytes > 0 => {
                let megabytes = rate.bytes_per_second() / 1e6;
                format!("{fabric} {megabytes:.1} MB/s ({:.0} samples/s)", rate.samples_per_second())
            }
            Ok(rate) => {
                worst = Finding::wrong(NAME, "", "the lines above, and --log info");
                format!("{fabric}: nothing of {dataset} for {:.0} s, after the first bytes", rate.elapsed.as_secs_f64())
            }
            Err(Trouble::Fabric(why)) => {
                if worst.mend.is_none() {
                    worst = Finding::note(NAME, "");
                }
                format!("{fabric} cannot be had: {why}")
            }
            Err(Trouble::Other(why)) => {
                worst = Finding::wrong(
                    NAME,
                    "",
                    format!("forebay verify, for damage; --log info says more about {dataset}"),
                );
                format!("{fabric} fails: {why}")
            }
        });
    }
    Some(Finding { found: lines.join("; "), ..worst })
}

#[cfg(test)]
mod tests;
