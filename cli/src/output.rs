//! Standard output. A reader that has seen enough (`| head`) ends the program quietly.

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

pub fn text(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())
}

pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string_pretty(value).map_err(Failure::other)?;
    line.push('\n');
    text(&line)
}
