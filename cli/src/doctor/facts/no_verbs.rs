//! In the place of `verbs`, where it is not built in.

use super::Opened;

pub fn open() -> Option<Result<Vec<Opened>, String>> {
    None
}
