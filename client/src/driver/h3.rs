//! Paths over HTTP/3. The only module of the client's driver that names a fabric.

use std::time::Duration;

use bytes::Bytes;
use forebay_transport::dial::{Asking, Closing, Control, DialError, Dialer, Dialled, Dialling, Document};
use forebay_transport::h3::client::{AskLimits, Connection, Connector};
use http::{HeaderMap, Method};

/// The most bytes of the answer to a POST.
const SMALL: usize = 1 << 20;
/// How long a connection that was closed is kept, so that its last packet goes out. It is not waited for to arrive: a server
/// that never gets it finds out by silence.
const GOODBYE: Duration = Duration::from_millis(50);

/// Dials one server.
pub(crate) struct H3Dialer {
    connector: Connector,
    host: String,
    port: u16,
    authority: String,
    window: usize,
}

impl H3Dialer {
    /// `authority` is host and port for messages; `window` bounds the operations in flight on one link.
    pub(crate) fn new(connector: Connector, host: &str, port: u16, authority: String, window: usize) -> H3Dialer {
        H3Dialer { connector, host: host.to_owned(), port, authority, window }
    }
}

impl Dialer for H3Dialer {
    fn fabric(&self) -> &str {
        "h3"
    }

    fn peer(&self) -> &str {
        &self.authority
    }

    fn dial(&self) -> Dialling {
        let (connector, host, port, window) = (self.connector.clone(), self.host.clone(), self.port, self.window);
        Box::pin(async move {
            let connection = connector.connect(&host, port).await.map_err(DialError::new)?;
            let link = Box::new(connection.link(window));
            Ok(Dialled { link, control: Box::new(H3Control(connection)) })
        })
    }
}

struct H3Control(Connection);

impl H3Control {
    fn ask(&self, method: Method, path: &str, limits: AskLimits) -> Asking {
        let (connection, path) = (self.0.clone(), path.to_owned());
        Box::pin(async move {
            let answer = connection.ask(method, &path, HeaderMap::new(), Bytes::new(), limits).await?;
            Ok(Document { status: answer.status.as_u16(), body: answer.body })
        })
    }
}

impl Control for H3Control {
    fn get(&self, path: &str) -> Asking {
        self.ask(Method::GET, path, AskLimits::default())
    }

    fn post(&self, path: &str) -> Asking {
        self.ask(Method::POST, path, AskLimits { body: SMALL, ..AskLimits::default() })
    }

    fn close(&self) -> Closing {
        let connection = self.0.clone();
        Box::pin(async move {
            connection.close();
            let _ = tokio::time::timeout(GOODBYE, connection.closed()).await;
        })
    }
}
