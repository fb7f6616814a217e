//! One line on the terminal that says how far a long run is; nothing at all where nobody watches.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Prints at most a few times a second, on standard error, and only once the work has taken longer than people wait gladly.
pub struct Progress {
    started: Instant,
    printed: Option<Instant>,
    terminal: bool,
}

const PATIENCE: Duration = Duration::from_secs(2);
const ON_TERMINAL: Duration = Duration::from_millis(250);
const IN_LOG: Duration = Duration::from_secs(10);

impl Progress {
    pub fn new() -> Progress {
        Progress { started: Instant::now(), printed: None, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows what `text` says, if it is time to.
    pub fn show(&mut self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        let due = match self.printed {
            None => now - self.started >= PATIENCE,
            Some(last) => now - last >= if self.terminal { ON_TERMINAL } else { IN_LOG },
        };
        if due {
            self.printed = Some(now);
            let mut out = std::io::stderr().lock();
            // Nothing depends on the line: a closed standard error must not end the run.
            let _ = if self.terminal { write!(out, "\r\x1b[2K{}", text()) } else { writeln!(out, "{}", text()) };
            let _ = out.flush();
        }
    }

    /// Clears the line, so that what follows begins on an empty one.
    pub fn clear(&mut self) {
        if self.terminal && self.printed.is_some() {
            eprint!("\r\x1b[2K");
        }
    }
}
