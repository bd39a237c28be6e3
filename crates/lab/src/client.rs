//! A client for tests on loopback: one [`Connection`] at a time, HTTP/1.1 or HTTP/2, plain or TLS,
//! which says what came back, whether it came whole, and whether the connection is still open.
//!
//! It does nothing by itself that a test would have to know of: no retries, no redirects, no pool, no
//! decompression, no headers but `host` (`:authority`), `content-length`, `transfer-encoding` and
//! `trailer`.
//!
//! The trap: a connection notices that its peer has closed only when it is polled. After an exchange
//! give it a moment: [`Connection::closed_within`].

mod connect;
mod request;
mod response;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

pub use connect::Connection;
pub use request::{Abort, Request};
pub use response::{Response, StreamedResponse};

use crate::Protocol;
use crate::tls::{Identity, Trust};

/// Where a client connects to, and how.
#[derive(Debug, Clone)]
pub struct Target {
    /// The address.
    pub address: SocketAddr,
    /// What is spoken there.
    pub protocol: Protocol,
    /// TLS: the server's name, and what certificates to accept.
    pub tls: Option<(String, Trust)>,
    /// TLS: the certificate that is shown when the server asks for one.
    pub identity: Option<Identity>,
}

impl Target {
    /// Without TLS.
    pub fn plain(protocol: Protocol, address: SocketAddr) -> Self {
        Self {
            address,
            protocol,
            tls: None,
            identity: None,
        }
    }

    /// HTTP/1.1 without TLS.
    pub fn http1(address: SocketAddr) -> Self {
        Self::plain(Protocol::Http1, address)
    }

    /// HTTP/2 without TLS, by prior knowledge.
    pub fn http2(address: SocketAddr) -> Self {
        Self::plain(Protocol::Http2, address)
    }

    /// The same with TLS; `server_name` is sent as SNI and compared with the certificate.
    pub fn with_tls(mut self, server_name: &str, trust: Trust) -> Self {
        self.tls = Some((server_name.to_owned(), trust));
        self
    }

    /// The same, showing this certificate when the server asks for one.
    pub fn with_identity(mut self, identity: &Identity) -> Self {
        self.identity = Some(identity.clone());
        self
    }

    /// Opens a connection, sends one request, closes.
    pub async fn send(&self, request: Request) -> Result<Response, ClientError> {
        Connection::open(self).await?.send(request).await
    }
}

/// Why there is no whole response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No connection came about.
    #[error("cannot connect to {address}: {detail}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// What the system, or TLS, said.
        detail: String,
    },
    /// The request cannot be put into HTTP.
    #[error("not a request: {0}")]
    Invalid(String),
    /// The connection had ended before anything of the request was sent; the server cannot have
    /// seen it.
    #[error("the connection had been closed before the request was sent: {0}")]
    NotSent(String),
    /// The connection ended before the head of a response came.
    #[error("the connection was closed without a response: {0}")]
    Closed(String),
    /// HTTP/2: the stream was reset before the head of a response came.
    #[error("the stream was reset without a response: {0}")]
    Reset(String),
    /// The response broke off in its body.
    #[error("the response (status {status}) broke off after {received} bytes of body: {detail}")]
    Cut {
        /// The status that had come.
        status: u16,
        /// How many bytes of body had come.
        received: usize,
        /// What ended it.
        detail: String,
    },
    /// It took longer than the request allows: [`Request::timeout`].
    #[error("no whole response within {0:?}")]
    Timeout(Duration),
    /// The request was broken off as it had asked: [`Request::abort_after`].
    #[error("the request was broken off, as asked")]
    Aborted,
}
