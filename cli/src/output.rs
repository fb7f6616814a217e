//! Standard output. A reader that has seen enough (`| head`) ends the program quietly.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

use crate::failure::Failure;

pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::other(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Text for people. Keys, names and messages in it come from shards and servers: what would steer a terminal is written out.
pub fn text(text: &str) -> Result<(), Failure> {
    bytes(printable(text).as_bytes())
}

/// A line on standard error. Nothing depends on it: a closed one must not end the run.
pub fn note(message: impl Display) {
    let _ = writeln!(io::stderr().lock(), "forebay: {}", printable(&message.to_string()));
}

/// `text` with its control characters, but for line breaks and tabs, as Rust writes them: `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if steers(c) { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    Cow::Owned(plain)
}

pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string_pretty(value).map_err(Failure::other)?;
    line.push('\n');
    text(&line)
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        assert_eq!(printable("ä\tb\n"), "ä\tb\n");
        assert_eq!(printable("a\0b\u{1b}[2J\r\u{9b}1m"), "a\\u{0}b\\u{1b}[2J\\r\\u{9b}1m");
    }
}
