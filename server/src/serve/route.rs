//! From a request's path to what is asked for. Pure; the one place that knows what paths look like.

use std::fmt;

use http::Method;

/// The most bytes a path may have, still encoded.
pub const MAX_PATH: usize = 8 << 10;

/// What a path names. Texts are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/v1/datasets`
    Datasets,
    /// `/v1/datasets/{d}`
    Dataset { dataset: String },
    /// `/v1/datasets/{d}/samples/{i}`
    Sample { dataset: String, ordinal: u64 },
    /// `/v1/datasets/{d}/samples/{i}/{field}`
    Field { dataset: String, ordinal: u64, field: String },
    /// `/v1/datasets/{d}/keys/{key}`: keys are bytes, and may hold slashes, encoded or not.
    Keys { dataset: String, key: Vec<u8> },
    /// `/v1/datasets/{d}/fetch`
    Fetch { dataset: String },
    /// `/v1/datasets/{d}/rdma`
    Rdma { dataset: String },
}

/// Why a path names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPath {
    /// No route looks like this.
    Unknown,
    /// It is longer than [`MAX_PATH`].
    TooLong,
    /// A `%` is not followed by two hexadecimal digits.
    Escape,
    /// A part that must be text is not UTF-8.
    NotText,
    /// An ordinal is not a decimal number of 64 bits.
    Ordinal,
}

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BadPath::Unknown => "no such route",
            BadPath::TooLong => "the path is longer than 8192 bytes",
            BadPath::Escape => "a % in the path is not followed by two hexadecimal digits",
            BadPath::NotText => "a part of the path is not UTF-8",
            BadPath::Ordinal => "a sample's ordinal is a decimal number",
        })
    }
}

impl Route {
    /// Reads a path, without its query.
    pub fn parse(path: &str) -> Result<Route, BadPath> {
        if path.len() > MAX_PATH {
            return Err(BadPath::TooLong);
        }
        let rest = path.strip_prefix("/v1/datasets").ok_or(BadPath::Unknown)?;
        if rest.is_empty() {
            return Ok(Route::Datasets);
        }
        let rest = rest.strip_prefix('/').ok_or(BadPath::Unknown)?;
        // Split before decoding, so that an encoded slash belongs to a name.
        let (dataset, rest) = match rest.split_once('/') {
            Some((dataset, rest)) => (dataset, Some(rest)),
            None => (rest, None),
        };
        if dataset.is_empty() {
            return Err(BadPath::Unknown);
        }
        let dataset = text(dataset)?;
        let Some(rest) = rest else { return Ok(Route::Dataset { dataset }) };
        if rest == "fetch" {
            return Ok(Route::Fetch { dataset });
        }
        if rest == "rdma" {
            return Ok(Route::Rdma { dataset });
        }
        if let Some(key) = rest.strip_prefix("keys/").filter(|key| !key.is_empty()) {
            return Ok(Route::Keys { dataset, key: decode(key)? });
        }
        let sample = rest.strip_prefix("samples/").ok_or(BadPath::Unknown)?;
        match sample.split_once('/') {
            None => Ok(Route::Sample { dataset, ordinal: number(sample)? }),
            Some((_, field)) if field.is_empty() || field.contains('/') => Err(BadPath::Unknown),
            Some((ordinal, field)) => Ok(Route::Field { dataset, ordinal: number(ordinal)?, field: text(field)? }),
        }
    }

    pub fn has(&self, method: &Method) -> bool {
        self.methods().split(", ").any(|name| name == method.as_str())
    }

    /// The methods it has, as an `allow` header lists them.
    pub fn methods(&self) -> &'static str {
        match self {
            Route::Fetch { .. } | Route::Rdma { .. } => "POST",
            _ => "GET, HEAD",
        }
    }
}

fn number(digits: &str) -> Result<u64, BadPath> {
    // `parse` takes a sign, which is not ours.
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten().ok_or(BadPath::Ordinal)
}

fn text(part: &str) -> Result<String, BadPath> {
    String::from_utf8(decode(part)?).map_err(|_| BadPath::NotText)
}

/// Never longer than what it decodes.
fn decode(part: &str) -> Result<Vec<u8>, BadPath> {
    let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16)).ok_or(BadPath::Escape);
    let (mut out, mut bytes) = (Vec::with_capacity(part.len()), part.bytes());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => (digit(bytes.next())? << 4 | digit(bytes.next())?) as u8,
            byte => byte,
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dataset() -> String {
        "im net".to_owned()
    }

    #[test]
    fn paths_are_routes() {
        let is = |path: &str, route| assert_eq!(Route::parse(path), Ok(route), "{path}");
        is("/v1/datasets", Route::Datasets);
        is("/v1/datasets/im%20net", Route::Dataset { dataset: dataset() });
        is("/v1/datasets/a%2Fb/fetch", Route::Fetch { dataset: "a/b".into() });
        is("/v1/datasets/im%20net/samples/007", Route::Sample { dataset: dataset(), ordinal: 7 });
        is("/v1/datasets/d/rdma", Route::Rdma { dataset: "d".into() });
        let field = Route::Field { dataset: dataset(), ordinal: u64::MAX, field: "seg.png".into() };
        is("/v1/datasets/im net/samples/18446744073709551615/seg.png", field);
        // Keys may hold slashes, and bytes that are no text.
        is("/v1/datasets/im net/keys/a/b%2fc%FF", Route::Keys { dataset: dataset(), key: b"a/b/c\xff".to_vec() });
    }

    #[test]
    fn other_paths_are_none() {
        let is = |path: &str, why| assert_eq!(Route::parse(path), Err(why), "{path}");
        for path in ["", "/", "/v1", "/v2/datasets", "/v1/datasetsx", "/v1/datasets/", "/v1/datasets//fetch"] {
            is(path, BadPath::Unknown);
        }
        for tail in ["", "fetch/", "rdma/", "samples", "keys", "keys/", "samples/1/", "samples/1/jpg/x", "other"] {
            is(&format!("/v1/datasets/d/{tail}"), BadPath::Unknown);
        }
        for ordinal in ["", "+1", "-1", "1x", "%31", "18446744073709551616"] {
            is(&format!("/v1/datasets/d/samples/{ordinal}"), BadPath::Ordinal);
        }
        for part in ["%", "%4", "%4g", "%%41", "a%"] {
            is(&format!("/v1/datasets/{part}"), BadPath::Escape);
        }
        is("/v1/datasets/%ff", BadPath::NotText);
        is(&format!("/v1/datasets/{}", "d".repeat(MAX_PATH)), BadPath::TooLong);
    }

    proptest! {
        #[test]
        fn any_key_can_be_asked_for(key in prop::collection::vec(any::<u8>(), 1..40)) {
            let encoded: String = key.iter().map(|byte| format!("%{byte:02X}")).collect();
            let route = Route::parse(&format!("/v1/datasets/d/keys/{encoded}"));
            prop_assert_eq!(route, Ok(Route::Keys { dataset: "d".into(), key }));
        }

        #[test]
        fn no_path_does_harm(path in "(/v1/datasets)?[/a-z%0-9é]{0,40}") {
            let _ = Route::parse(&path);
        }
    }
}
