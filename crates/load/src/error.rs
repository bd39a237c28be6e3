//! Reasons for which no load can be generated at all.

use std::net::SocketAddr;

use crate::request::RequestError;

/// Error that ends a run before its first request.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The URL cannot be used.
    #[error(
        "`{url}` is not a URL that can be loaded: {reason}; write for example http://127.0.0.1:10000/path"
    )]
    Url {
        /// The URL as it was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The host name has no address.
    #[error("host `{host}` has no address: {reason}")]
    Resolve {
        /// The host name.
        host: String,
        /// The resolver's words.
        reason: String,
    },
    /// The target does not accept connections.
    #[error("cannot connect to {address}: {reason}; is the target running?")]
    Connect {
        /// The target's address.
        address: SocketAddr,
        /// The system's words.
        reason: String,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake with {address} failed: {reason}")]
    Tls {
        /// The target's address.
        address: SocketAddr,
        /// The TLS library's words.
        reason: String,
    },
    /// The HTTP/2 handshake failed.
    #[error("{address} does not speak HTTP/2: {reason}")]
    Http2 {
        /// The target's address.
        address: SocketAddr,
        /// The HTTP/2 library's words.
        reason: String,
    },
    /// A request cannot be sent.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The settings contradict each other.
    #[error("{0}")]
    Settings(String),
    /// The operating system refused a resource.
    #[error("cannot set up the load generator: {0}")]
    System(#[from] std::io::Error),
}
