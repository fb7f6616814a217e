//! All findings, for people and for machines.

use serde_json::{Value, json};

use super::finding::{Finding, Level};

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

pub fn json(findings: &[Finding]) -> Value {
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    json!({ "findings": findings, "wrong": of(Level::Wrong), "better": of(Level::Better) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_the_end_counts() {
        let findings = [Finding::ok("a", "fine"), Finding::better("longer", "slow", "hurry")];
        let expected =
            "ok      a       fine\nbetter  longer  slow\n                → hurry\n\n0 wrong, 1 could be better.\n";
        assert_eq!(text(&findings), expected);
        assert!(text(&findings[..1]).ends_with("Nothing stands in the way.\n"));
        let json = json(&findings);
        assert_eq!((json["wrong"].as_u64(), json["better"].as_u64()), (Some(0), Some(1)));
        assert_eq!(json["findings"][1]["level"], "better");
        assert_eq!(json["findings"][0]["mend"], Value::Null);
    }
}
