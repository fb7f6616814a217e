//! Index files that are objects: read whole into memory that only this process has.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{DEFAULT_PATIENCE, Fetching, RemoteError, Target, fetch, locate, wait};
use crate::catalog::{Identity, MAGIC, memory};

/// The most bytes of an index that is read into memory: of some eighty million samples.
const LARGEST: u64 = 8 << 30;

/// What was read, by URL: whoever lists the shards and whoever opens the dataset want the same index.
static READ: OnceLock<Mutex<HashMap<String, (Identity, File)>>> = OnceLock::new();

/// The index at `url`, in a file that nobody writes to any more. Blocks. What was read before is not read again while
/// the object is the same.
pub(crate) fn index(url: &str) -> io::Result<File> {
    let target = wait(async {
        let object = locate(url)?;
        let identity = fetch::identity(&object).await?;
        Ok::<_, RemoteError>(Target::new(object, identity))
    })?;
    let mut read = READ.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, file)) = read.get(url).filter(|(identity, _)| *identity == target.identity) {
        return file.try_clone();
    }
    let file = wait(fetched(&target))?;
    read.insert(url.to_owned(), (target.identity, file.try_clone()?));
    Ok(file)
}

async fn fetched(target: &Target) -> io::Result<File> {
    let size = target.identity.size;
    let no_index = |why: String| {
        let (url, detail) = (target.object.url.to_string(), format!("it is no index that can be used: {why}"));
        RemoteError::Url { url, detail }
    };
    if size > LARGEST {
        return Err(no_index(format!("it has {size} bytes, more than the {LARGEST} that are read into memory")).into());
    }
    let mut file = memory()?;
    let mut fetching = Fetching::new(target, 0..size, DEFAULT_PATIENCE);
    let (mut begin, mut known) = (Vec::new(), false);
    while let Some(bytes) = fetching.next().await? {
        // Nothing else is read to its end.
        if !known {
            begin.extend_from_slice(&bytes[..bytes.len().min(MAGIC.len() - begin.len())]);
            known = begin.len() == MAGIC.len();
            if !MAGIC.starts_with(&begin) {
                return Err(no_index("it begins like something else".to_owned()).into());
            }
        }
        file.write_all(&bytes)?;
    }
    Ok(file)
}
