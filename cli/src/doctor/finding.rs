//! What a check says.

use serde::Serialize;

/// How much it matters. The later, the more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Works, and could be faster.
    Better,
    /// Does not work, or what is there cannot be used. The only one that sets the exit code.
    Wrong,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Better => "better",
            Level::Wrong => "wrong",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    pub level: Level,
    /// What was found, in a line.
    pub found: String,
    /// The command that mends it, or what else does.
    pub mend: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, level: Level::Ok, found: found.into(), mend: None }
    }

    pub fn note(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { level: Level::Note, ..Finding::ok(check, found) }
    }

    pub fn better(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { level: Level::Better, mend: Some(mend.into()), ..Finding::ok(check, found) }
    }

    pub fn wrong(check: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { level: Level::Wrong, ..Finding::better(check, found, mend) }
    }
}
