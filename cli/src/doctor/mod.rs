//! `forebay doctor`: what stands between this machine and full speed.
//!
//! | module | holds | must not hold |
//! | --- | --- | --- |
//! | `facts` | what the machine says of itself: files below a root, and a few system calls | judgement |
//! | `checks` | what that means (pure): one function for each line of the report | I/O |
//! | `finding`, `report` | a line, and all of them for people and for machines | |

mod args;
mod checks;
mod facts;
mod finding;
mod report;

use std::path::Path;

pub use args::Doctor;
use checks::CHECKS;
use facts::{Facts, Probes};
use finding::{Finding, Level};

use crate::failure::{Failure, UNWELL};
use crate::output;

pub fn run(args: &Doctor) -> Result<(), Failure> {
    let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&folders).collect();
    let facts = Facts::gather(Path::new("/"), &folders, args.memory, Probes::take());
    let findings: Vec<Finding> = CHECKS.iter().filter_map(|check| check(&facts)).collect();
    let wrong = findings.iter().filter(|finding| finding.level == Level::Wrong).count();
    if args.json {
        output::json(&report::json(&findings))?;
    } else {
        output::text(&report::text(&findings))?;
    }
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::new(UNWELL, "one thing is wrong")),
        wrong => Err(Failure::new(UNWELL, format!("{wrong} things are wrong"))),
    }
}
