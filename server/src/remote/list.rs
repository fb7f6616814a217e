//! Which objects a URL names.

use object_store::path::Path;

use super::connect::{Object, Parts, folder, parts, store};
use super::{RemoteError, fetch, locate, wait};
use crate::catalog::{EXTENSION, Found, LIMIT, MAGIC, Place, SourceError, SourceFile, TooMany, expand, shards_of};

/// The most bytes of an index page, or of a list of shards.
const PAGE: usize = 64 << 20;
const WILD: [char; 4] = ['*', '?', '[', '{'];

/// Lists the objects that `spec` names, as [`catalog::resolve`](crate::catalog::resolve) does for files:
///
/// - an object whose name ends in `.tar`: that one;
/// - what ends in `/`: all objects below it whose names end in `.tar`, sorted (on web servers: in that folder only);
/// - a pattern, in the last part of the name on web servers; brace lists;
/// - any other object: an index, whose shards lie in its folder and are all those it names; or a text file that lists
///   shards, one a line, relative to it or as URLs. Empty lines and those that begin with `#` are passed over.
///
/// Indexes seen in the folders that were listed are among what is found. Blocks.
pub(crate) fn find(spec: &str) -> Result<Found, SourceError> {
    let remote = |error: RemoteError| SourceError::Remote { url: spec.to_owned(), detail: inner(&error) };
    let whole = parts(spec).map_err(remote)?;
    let mut names = Vec::new();
    expand(whole.key, &mut names).map_err(|TooMany| SourceError::TooMany { spec: spec.to_owned(), limit: LIMIT })?;
    let wild = whole.key.find(WILD).unwrap_or(whole.key.len());
    let base = whole.key[..wild].rfind('/').map_or(0, |slash| slash + 1);
    let mut found = Found::default();
    for name in &names {
        let keys = match name {
            name if name.is_empty() || name.ends_with('/') => below(&whole, name, None),
            name if name.contains(WILD) => matching(spec, &whole, name)?,
            name if name.ends_with(".tar") || names.len() > 1 => {
                Ok(Keys { shards: vec![name.clone()], ..Keys::default() })
            }
            name => return listed(spec, &format!("{}/{name}", whole.root)),
        };
        let Keys { shards, indexes } = keys.map_err(remote)?;
        if shards.is_empty() {
            return Err(SourceError::Nothing { looked_for: format!("{}/{name}", whole.root) });
        }
        found.shards.extend(shards.into_iter().map(|key| source(&whole, base, &key)));
        found.indexes.extend(indexes.iter().map(|key| source(&whole, 0, key).place));
    }
    Ok(found)
}

/// What a folder has.
#[derive(Default)]
struct Keys {
    shards: Vec<String>,
    /// In the folder itself.
    indexes: Vec<String>,
}

/// An error's own words, without the URL that they begin with.
fn inner(error: &RemoteError) -> String {
    match error {
        RemoteError::Url { detail, .. } => detail.clone(),
        RemoteError::Failed { url, .. } => error.to_string().replacen(&format!("{url}: "), "", 1),
        error => error.to_string(),
    }
}

fn source(whole: &Parts<'_>, base: usize, key: &str) -> SourceFile {
    let name = &key[base.min(key.len())..];
    let name = if whole.is_http() { decoded(name) } else { name.to_owned() };
    SourceFile { name, place: Place::Object(format!("{}/{key}", whole.root).into()) }
}

/// A name without `%`-escapes, if what they stand for is text.
fn decoded(name: &str) -> String {
    Path::from_url_path(name).map_or_else(|_| name.to_owned(), |path| path.to_string())
}

/// The objects that a pattern matches, sorted.
fn matching(spec: &str, whole: &Parts<'_>, pattern: &str) -> Result<Result<Keys, RemoteError>, SourceError> {
    let wild = pattern.find(WILD).unwrap_or(pattern.len());
    let folder = &pattern[..pattern[..wild].rfind('/').map_or(0, |slash| slash + 1)];
    if whole.is_http() && pattern[folder.len()..].contains('/') {
        let detail = "a web server cannot be asked for folders by pattern: name the folder".to_owned();
        return Err(SourceError::Remote { url: spec.to_owned(), detail });
    }
    let pattern = glob::Pattern::new(pattern)
        .map_err(|error| SourceError::Pattern { spec: spec.to_owned(), detail: error.to_string() })?;
    Ok(below(whole, folder, Some(&pattern)))
}

/// The objects in a folder, and below it where the store can tell: those that match, or the tars.
fn below(whole: &Parts<'_>, folder: &str, pattern: Option<&glob::Pattern>) -> Result<Keys, RemoteError> {
    let options =
        glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let wanted = |key: &str| match pattern {
        Some(pattern) => pattern.matches_with(&if whole.is_http() { decoded(key) } else { key.to_owned() }, options),
        None => is_shard(key, folder),
    };
    let mut keys = if whole.is_http() { page(whole, folder)? } else { prefix(whole, folder)? };
    keys.sort();
    keys.dedup();
    let is_index = |key: &str| {
        let name = key.strip_prefix(folder).filter(|name| !name.contains('/'));
        name.and_then(|name| name.rsplit_once('.')).is_some_and(|(_, extension)| extension == EXTENSION)
    };
    let indexes = keys.iter().filter(|key| is_index(key)).cloned().collect();
    keys.retain(|key| wanted(key));
    Ok(Keys { shards: keys, indexes })
}

/// Whether this is a shard below a folder; hidden ones are none, nor is an object that stands for the folder itself.
fn is_shard(key: &str, folder: &str) -> bool {
    let below = key.strip_prefix(folder).filter(|name| name.ends_with(".tar"));
    below.is_some_and(|name| !name.split('/').any(|part| part.starts_with('.')))
}

/// All objects with a prefix that ends in a slash, or is empty.
fn prefix(whole: &Parts<'_>, folder: &str) -> Result<Vec<String>, RemoteError> {
    let url = format!("{}/{folder}", whole.root);
    let failed = |detail: String| RemoteError::Url { url: url.clone(), detail };
    let path = Path::parse(folder).map_err(|error| failed(error.to_string()))?;
    let object = Object { url: url.as_str().into(), store: store(whole)?, path };
    wait(fetch::list(&object)).map_err(|error| failed(format!("it cannot be listed: {}", inner(&error))))
}

/// The files that a web server's index page of a folder leads to.
fn page(whole: &Parts<'_>, key: &str) -> Result<Vec<String>, RemoteError> {
    let url = format!("{}/{key}", whole.root);
    let page = Object { url: url.as_str().into(), store: folder(&url)?, path: Path::default() };
    let bytes = wait(fetch::small(&page, PAGE, |_| false)).map_err(|error| {
        let detail = inner(&error);
        // Most web servers show no folder unless they are told to.
        let refused = matches!(error, RemoteError::Failed { missing: true, .. }) || detail.contains("403");
        let instead = if refused { ", so name the shards by brace lists, an index or a list" } else { "" };
        RemoteError::Url { url: url.clone(), detail: format!("it cannot be listed{instead}: {detail}") }
    })?;
    Ok(links(&String::from_utf8_lossy(&bytes)).map(|link| format!("{key}{link}")).collect())
}

/// The links of a page that lead to something in the same folder.
fn links(page: &str) -> impl Iterator<Item = String> {
    page.split("href=").skip(1).filter_map(|rest| {
        let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\''))?;
        let link = rest[1..].split(quote).next()?;
        let link = link.strip_prefix("./").unwrap_or(link);
        // Sorting links, parents, folders, and other places.
        let here = !link.is_empty() && !link.contains(['/', '?', '#', ':', '<']);
        here.then(|| link.replace("&amp;", "&"))
    })
}

/// The shards that an index or a text file lists.
fn listed(spec: &str, url: &str) -> Result<Found, SourceError> {
    let remote = |detail: String| SourceError::Remote { url: spec.to_owned(), detail };
    // Of an index no more is read than shows that it is one: it may be large.
    let text = locate(url).and_then(|object| wait(fetch::small(&object, PAGE, |begin| begin.starts_with(&MAGIC))));
    let text = text.map_err(|error| remote(inner(&error)))?;
    let folder = &url[..url.rfind('/').map_or(0, |slash| slash + 1)];
    if text.starts_with(&MAGIC) {
        return indexed(spec, url, folder);
    }
    let text = std::str::from_utf8(&text).map_err(|_| remote("it is no list of shards: it is not text".to_owned()))?;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        found.push(entry(folder, line).ok_or_else(|| {
            remote(format!("it is no list of shards: {:?} names none", line.chars().take(100).collect::<String>()))
        })?);
        if found.len() > LIMIT {
            return Err(SourceError::TooMany { spec: spec.to_owned(), limit: LIMIT });
        }
    }
    if found.is_empty() {
        return Err(remote("it lists no shards".to_owned()));
    }
    Ok(Found { shards: found, indexes: Vec::new() })
}

/// The shards that an index knows, in its folder.
fn indexed(spec: &str, url: &str, folder: &str) -> Result<Found, SourceError> {
    let remote = |detail: String| SourceError::Remote { url: spec.to_owned(), detail };
    let file = super::index(url).map_err(|error| remote(error.to_string()))?;
    let names = shards_of(&file).map_err(|error| remote(error.to_string()))?;
    if names.is_empty() {
        return Err(remote("it is an index of no shards".to_owned()));
    }
    let is_http = folder.starts_with("http");
    let shards = names.into_iter().map(|name| {
        let path = if is_http { encoded(&name) } else { name.clone() };
        SourceFile { name, place: Place::Object(format!("{folder}{path}").into()) }
    });
    Ok(Found { shards: shards.collect(), indexes: vec![Place::Object(url.into())] })
}

/// A name as it stands in a URL.
fn encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The shard that a line of a list names: by a URL, or relative to the list's folder.
fn entry(folder: &str, line: &str) -> Option<SourceFile> {
    if crate::catalog::is_url(line) {
        let name = line.rsplit('/').next()?.to_owned();
        return Some(SourceFile { name, place: Place::Object(line.into()) });
    }
    let climbs = line.split('/').any(|part| matches!(part, "" | "." | ".."));
    let plain = !climbs && !line.contains(['<', '>', '\0']);
    plain.then(|| SourceFile { name: line.to_owned(), place: Place::Object(format!("{folder}{line}").into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(spec: &str) -> Result<Vec<SourceFile>, SourceError> {
        Ok(find(spec)?.shards)
    }

    #[test]
    fn names_are_encoded_as_they_are_decoded() {
        for name in ["a.tar", "d/b c.tar", "100%.tar", "é?#&.tar"] {
            assert_eq!(decoded(&encoded(name)), name);
        }
    }

    #[test]
    fn shards_lie_below_their_folder() {
        for (key, folder, expected) in [
            ("d/a.tar", "d/", true),
            ("d/e/a.tar", "d/", true),
            ("a.tar", "", true),
            ("d/.a.tar", "d/", false),
            ("d/.e/a.tar", "d/", false),
            ("d/a.tgz", "d/", false),
            // What consoles put there for an empty folder, without the slash at its end.
            ("d.tar", "d.tar/", false),
        ] {
            assert_eq!(is_shard(key, folder), expected, "{key} in {folder}");
        }
    }

    #[test]
    fn index_pages_lead_to_files() {
        let nginx = "<html>\r\n<h1>Index of /d/</h1><hr><pre><a href=\"../\">../</a>\r\n\
            <a href=\"a%20b.tar\">a b.tar</a>   01-Dec-2026 10240\r\n<a href=\"sub/\">sub/</a>\n<a href='c.tar'>c</a>";
        assert_eq!(links(nginx).collect::<Vec<_>>(), ["a%20b.tar", "c.tar"]);
        let apache = "<a href=\"?C=N;O=D\">Name</a><a href=\"/\">up</a><a href=\"./x&amp;y.tar\">x</a>\
            <a href=\"https://else/z.tar\">z</a><a href=\"#top\">";
        assert_eq!(links(apache).collect::<Vec<_>>(), ["x&y.tar"]);
        assert_eq!(links("href=href=\"").count(), 0);
    }

    #[test]
    fn brace_lists_need_no_listing() {
        let found = resolve("https://host/data/t-{08..10}.tar").expect("nobody is asked");
        let names: Vec<_> = found.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["t-08.tar", "t-09.tar", "t-10.tar"]);
        assert_eq!(found[2].place, Place::Object("https://host/data/t-10.tar".into()));
        let found = resolve("s3://bucket/{a,b}/x.tar").expect("nobody is asked");
        assert_eq!(found.iter().map(|source| source.name.as_str()).collect::<Vec<_>>(), ["a/x.tar", "b/x.tar"]);
        let one = resolve("http://host/a/b%20c.tar").expect("nobody is asked");
        assert_eq!((one[0].name.as_str(), one[0].place.to_string().as_str()), ("b c.tar", "http://host/a/b%20c.tar"));
    }

    #[test]
    fn lists_name_what_lies_beside_them_or_elsewhere() {
        let of = |line| entry("http://h/d/", line).map(|source| (source.name, source.place.to_string()));
        assert_eq!(of("a/b.tar"), Some(("a/b.tar".into(), "http://h/d/a/b.tar".into())));
        assert_eq!(of("s3://x/y/c.tar"), Some(("c.tar".into(), "s3://x/y/c.tar".into())));
        for bad in ["../up.tar", "/etc/passwd", "a//b.tar", "<html>", "a\0b"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_listed_says_so() {
        for (spec, part) in [("https://host/*/a.tar", "by pattern"), ("ftp://host/a/", "s3://"), ("s3:///", "bucket")] {
            let error = resolve(spec).expect_err(spec).to_string();
            assert!(error.contains(part), "{spec}: {error}");
        }
    }
}
