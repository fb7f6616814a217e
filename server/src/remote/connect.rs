//! From a URL to a client of its store.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::{RemoteError, credentials};

/// How long a connection may take to be made. What follows has deadlines of progress.
const CONNECT: Duration = Duration::from_secs(10);

/// An object: which store, and where in it.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// As users know it, for messages.
    pub url: Arc<str>,
    pub store: Arc<dyn ObjectStore>,
    pub path: Path,
}

/// A URL in parts: `s3://bucket` and `key`.
pub(super) struct Parts<'a> {
    pub scheme: &'a str,
    /// Scheme and host, or bucket, or container; without a slash at the end.
    pub root: &'a str,
    pub key: &'a str,
}

impl Parts<'_> {
    pub fn is_http(&self) -> bool {
        matches!(self.scheme, "http" | "https")
    }
}

pub(super) fn parts(url: &str) -> Result<Parts<'_>, RemoteError> {
    let error = |detail: &str| RemoteError::Url { url: url.to_owned(), detail: detail.to_owned() };
    let (scheme, rest) = url.split_once("://").ok_or_else(|| error("it is not a URL"))?;
    let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
    if host.is_empty() {
        return Err(error("it names no host or bucket"));
    }
    Ok(Parts { scheme, root: &url[..scheme.len() + 3 + host.len()], key })
}

/// The object that `url` names. Talks to nobody yet.
pub(crate) fn locate(url: &str) -> Result<Object, RemoteError> {
    let parts = parts(url)?;
    let path = match parts.is_http() {
        true => Path::from_url_path(parts.key),
        false => Path::parse(parts.key),
    };
    let path = path.map_err(|error| RemoteError::Url { url: url.to_owned(), detail: error.to_string() })?;
    Ok(Object { url: url.into(), store: store(&parts)?, path })
}

/// The client of the store that these parts are in: one for each root, so that its connections and credentials are shared.
pub(super) fn store(parts: &Parts<'_>) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    static STORES: OnceLock<Mutex<HashMap<String, Arc<dyn ObjectStore>>>> = OnceLock::new();
    let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = stores.get(parts.root) {
        return Ok(store.clone());
    }
    let store = connect(parts.scheme, parts.root)?;
    stores.insert(parts.root.to_owned(), store.clone());
    Ok(store)
}

/// A web server's folder, as a store of its own.
pub(super) fn folder(url: &str) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    connect(parts(url)?.scheme, url)
}

fn connect(scheme: &str, root: &str) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    // Another part of the process may have chosen one: any does.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Plain HTTP only where a URL or an endpoint says so, as one of one's own does.
    let options = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT).with_allow_http(true);
    // Retrying is ours: only we know how far a read is, and what it was read from.
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let made: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
        "http" | "https" => {
            let builder = HttpBuilder::new().with_url(root).with_client_options(options).with_retry(once);
            builder.with_http_connector(Connector).build().map(|store| Arc::new(store) as _)
        }
        "s3" | "s3a" => {
            let builder = credentials::aws(AmazonS3Builder::from_env())
                .map_err(|detail| RemoteError::Url { url: root.to_owned(), detail })?;
            let builder = builder.with_url(root).with_client_options(options);
            let builder = builder.with_retry(once).with_http_connector(Connector);
            builder.build().map(|store| Arc::new(store) as _)
        }
        "az" | "azure" | "abfs" | "abfss" | "adl" => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(root).with_client_options(options);
            let builder = builder.with_retry(once).with_http_connector(Connector);
            builder.build().map(|store| Arc::new(store) as _)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(root).with_client_options(options);
            builder.with_retry(once).with_http_connector(Connector).build().map(|store| Arc::new(store) as _)
        }
        _ => {
            let detail = "shards can be at http://, https://, s3://, az:// and gs://".to_owned();
            return Err(RemoteError::Url { url: root.to_owned(), detail });
        }
    };
    made.map_err(|error| {
        let detail = match error.to_string() {
            text if text.contains("Account must be specified") => format!("{text}: set AZURE_STORAGE_ACCOUNT_NAME"),
            text => text,
        };
        RemoteError::Url { url: root.to_owned(), detail }
    })
}

/// What a server answered to one request: `object_store` keeps neither for those who call it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    status: AtomicU16,
    /// Seconds; 0 is none.
    retry_after: AtomicU32,
}

impl Answer {
    /// 0 when there was none.
    pub fn status(&self) -> u16 {
        self.status.load(Ordering::Relaxed)
    }

    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.retry_after.load(Ordering::Relaxed);
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }
}

/// Makes HTTP clients that note answers in the requests' `Arc<Answer>`.
#[derive(Debug)]
struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Noting(client)))
    }
}

#[derive(Debug)]
struct Noting(HttpClient);

type Calling<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Noting {
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Calling<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        let answer = request.extensions().get::<Arc<Answer>>().cloned();
        let whole = request.method() == http::Method::GET && !request.headers().contains_key("range");
        Box::pin(async move {
            let mut response = self.0.execute(request).await?;
            if whole && response.status().is_success() {
                // Pages that are made as they are sent have no length, which `object_store` insists on. Whoever asks for
                // all of something counts what comes.
                response.headers_mut().entry("content-length").or_insert(http::HeaderValue::from_static("0"));
            }
            if let Some(answer) = answer {
                answer.status.store(response.status().as_u16(), Ordering::Relaxed);
                let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
                // A date instead of seconds is not taken: the usual pauses do.
                let seconds = after.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
                answer.retry_after.store(seconds, Ordering::Relaxed);
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_parts() {
        let of = |url| parts(url).map(|parts| (parts.root.to_owned(), parts.key.to_owned())).ok();
        assert_eq!(of("s3://bucket/a/b.tar"), Some(("s3://bucket".into(), "a/b.tar".into())));
        assert_eq!(of("http://[::1]:80"), Some(("http://[::1]:80".into(), String::new())));
        assert_eq!(of("s3:///a"), None);
        assert_eq!(of("/a"), None);
    }

    #[test]
    fn what_cannot_be_a_store_is_refused_at_once() {
        for (url, part) in [("ftp://host/a.tar", "s3://"), ("s3://bucket/a//b.tar", "empty"), ("gs:///x", "bucket")] {
            let error = locate(url).expect_err(url).to_string();
            assert!(error.to_lowercase().contains(part), "{url}: {error}");
        }
    }
}
