//! `https://HOST:PORT/DATASET`: where a server is, and which of its datasets is meant.

use std::fmt;
use std::str::FromStr;

/// A server, and perhaps one of its datasets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerUrl {
    /// A name or an address; IPv6 without its brackets.
    pub host: String,
    /// 443 when the URL names none.
    pub port: u16,
    pub dataset: Option<String>,
}

/// Why a text is no such URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` is no server's URL: {reason}; expected https://HOST:PORT or https://HOST:PORT/DATASET")]
pub struct UrlError {
    pub url: String,
    pub reason: &'static str,
}

impl FromStr for ServerUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<ServerUrl, UrlError> {
        parse(url).map_err(|reason| UrlError { url: url.to_owned(), reason })
    }
}

fn parse(url: &str) -> Result<ServerUrl, &'static str> {
    let Some(rest) = url.strip_prefix("https://") else {
        return Err(if url.starts_with("http://") {
            "every path is encrypted"
        } else {
            "it does not begin with https://"
        });
    };
    if rest.contains(['?', '#', '@', ' ', '%']) {
        return Err("it has more than a host, a port and a dataset");
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (host, tail) = inner.split_once(']').ok_or("a bracket is open")?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| "what is in brackets is no IPv6 address")?;
        (host, tail)
    } else {
        let end = authority.find(':').unwrap_or(authority.len());
        authority.split_at(end)
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => 443,
        None => return Err("something follows the host"),
        Some(digits) => digits.parse().ok().filter(|&port| port != 0).ok_or("the port is no number from 1 to 65535")?,
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    let dataset = path.trim_end_matches('/');
    if dataset.contains('/') {
        return Err("the path names more than one dataset");
    }
    Ok(ServerUrl { host: host.to_owned(), port, dataset: (!dataset.is_empty()).then(|| dataset.to_owned()) })
}

impl ServerUrl {
    /// `HOST:PORT`, with an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())?;
        self.dataset.as_ref().map_or(Ok(()), |dataset| write!(f, "/{dataset}"))
    }
}

/// Percent-encodes everything but the unreserved characters of RFC 3986.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let url: ServerUrl = "https://storage:4433/imagenet".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.dataset.as_deref()), ("storage", 4433, Some("imagenet")));
        let url: ServerUrl = "https://[::1]:4433/".parse().unwrap();
        assert_eq!((url.host.as_str(), url.port, url.dataset.as_deref()), ("::1", 4433, None));
        assert_eq!(url.to_string(), "https://[::1]:4433");
        assert_eq!("https://storage".parse::<ServerUrl>().unwrap().port, 443);
    }

    #[test]
    fn what_is_none() {
        for bad in [
            "",
            "storage:4433",
            "http://storage",
            "https://",
            "https://:1",
            "https://a:0",
            "https://a:70000",
            "https://a:b",
            "https://[::1",
            "https://[a]:1",
            "https://[::1]x",
            "https://a/b/c",
            "https://u@a",
            "https://a/b?c",
            "https://a/b%2f",
        ] {
            assert!(bad.parse::<ServerUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_are_encoded() {
        assert_eq!(encode("n01/img_8~.x"), "n01%2Fimg_8~.x");
        assert_eq!(encode("ä%"), "%C3%A4%25");
    }
}
