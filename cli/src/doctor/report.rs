//! All findings, for people and for machines.

use serde_json::{Value, json};

use super::facts::Facts;
use super::finding::{Finding, Level};
use super::speed::{Rate, Speed, Trouble};

/// One line each; what mends it stands beneath.
pub fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { check, level, found, mend } in findings {
        text.push_str(&format!("{:<6}  {check:<width$}  {found}\n", level.name()));
        if let Some(mend) = mend {
            text.push_str(&format!("{:<6}  {:<width$}  → {mend}\n", "", ""));
        }
    }
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    text.push_str(&match (of(Level::Wrong), of(Level::Better)) {
        (0, 0) => "\nNothing stands in the way.\n".to_owned(),
        (wrong, better) => format!("\n{wrong} wrong, {better} could be better.\n"),
    });
    text
}

/// The same, and the figures of the way to a server.
pub fn json(facts: &Facts, findings: &[Finding]) -> Value {
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    let reached = facts.server.as_ref().and_then(|server| server.reached.as_ref().ok());
    let server = reached.map(|reached| {
        json!({
            "address": reached.peer.to_string(),
            "certificate": reached.presented.to_string(),
            "round_trip_ms": reached.round_trip.as_secs_f64() * 1e3,
            "udp_payload_bytes": reached.payload,
            "clock_ahead_seconds": reached.ahead,
        })
    });
    let speed = |speed: &Speed| {
        let rate = speed.rate.as_ref().ok();
        json!({
            "fabric": speed.fabric,
            "dataset": speed.dataset,
            "megabytes_per_second": rate.map(|rate| rate.bytes_per_second() / 1e6),
            "samples_per_second": rate.map(Rate::samples_per_second),
            "seconds": rate.map(|rate| rate.elapsed.as_secs_f64()),
            "error": speed.rate.as_ref().err().map(Trouble::why),
        })
    };
    let speeds: Vec<Value> = facts.speeds.iter().map(speed).collect();
    json!({
        "findings": findings,
        "wrong": of(Level::Wrong),
        "better": of(Level::Better),
        "server": server,
        "speeds": speeds,
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::healthy;
    use super::*;

    #[test]
    fn columns_line_up_and_the_end_counts() {
        let findings = [Finding::ok("a", "fine"), Finding::better("longer", "slow", "hurry")];
        let expected =
            "ok      a       fine\nbetter  longer  slow\n                → hurry\n\n0 wrong, 1 could be better.\n";
        assert_eq!(text(&findings), expected);
        assert!(text(&findings[..1]).ends_with("Nothing stands in the way.\n"));
        let json = json(&healthy(), &findings);
        assert_eq!((json["wrong"].as_u64(), json["better"].as_u64()), (Some(0), Some(1)));
        assert_eq!(json["findings"][1]["level"], "better");
        assert_eq!(json["findings"][0]["mend"], Value::Null);
        assert_eq!(json["server"]["address"], "192.0.2.7:4433");
        assert_eq!(
            (json["speeds"][0]["fabric"].as_str(), json["speeds"][0]["megabytes_per_second"].as_f64()),
            (Some("h3"), Some(1e3))
        );
    }
}
