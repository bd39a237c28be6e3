//! An upstream that tells what reached it, over HTTP/1.1 and HTTP/2 on one port (without TLS, HTTP/2
//! by prior knowledge).
//!
//! It answers 200 with a JSON description of the request; these paths do something else, and the
//! request header `x-echo-path` stands in for the path where a route dictates it:
//!
//! | path | answer |
//! |---|---|
//! | `/status/NNN` | the description, with that status |
//! | `/delay/MS` | the description, after that many milliseconds |
//! | `/bytes/N` | N bytes of [`pattern`], with `content-length`; `?chunked`: without |
//! | `/echo` | the request's body and trailers, as they arrive, with its `content-type` |
//! | `/echo?whole` | the same, once the request is complete |
//! | `/trailers` | a body, then the trailers `x-echo-trailer: done`, or those of the query |
//! | `/headers?a=b&a=c` | the description, with these response headers added |
//! | `/slow-body?chunks=N&interval_ms=M&size=S` | N pieces of S bytes, M milliseconds apart |
//! | `/reset` | none: the connection is closed |
//! | `/reset-stream` | none: HTTP/2 resets the stream; HTTP/1.1 as `/reset` |
//! | `/cut/N` | a head and N bytes, then the connection is closed |
//!
//! On any of them `x-echo-status: NNN` and `x-echo-delay-ms: MS` do what they say. What it cannot
//! make sense of gets a 400 that says so.
//!
//! The trap: a request is recorded when its body has ended, which may be a moment after the client
//! has its response; [`Echo::wait_for_requests`] waits for it.
//!
//! Another trap: `/echo` answers before the request is complete, and Envoy closes an HTTP/1.1
//! connection of a client to which that happens (`connection: close`). Where that is not wanted,
//! `/echo?whole`.

mod answer;
mod plan;
mod record;

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub use plan::pattern;
pub use record::{BodyDigest, RecordedRequest};

use record::Shared;
pub(crate) use record::hexadecimal;

/// How long open requests get when the service is stopped.
const DRAIN: Duration = Duration::from_secs(1);

/// Bytes of a request's headers that the service takes over HTTP/2.
const LARGEST_HEADERS: u32 = 1024 * 1024;

/// What an echo service is started with.
#[derive(Debug, Clone)]
pub struct EchoOptions {
    /// Its name: the response header `x-upstream`, and `upstream` in the description.
    pub name: String,
    /// Where it listens; port 0 for any that is free.
    pub listen: SocketAddr,
    /// How many of the last requests are kept for [`Echo::requests`].
    pub keep: usize,
    /// With this it speaks TLS and nothing else.
    pub tls: Option<crate::tls::Identity>,
}

impl EchoOptions {
    /// A service of this name on any free port of 127.0.0.1, without TLS, which keeps 1,000 requests.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            keep: 1_000,
            tls: None,
        }
    }
}

/// An echo service that runs in the current Tokio runtime. Dropping it ends it at once, requests
/// included; [`Echo::stop`] lets them finish.
#[derive(Debug)]
pub struct Echo {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    // Its abort, when dropped, takes the listener and all connections along.
    listener: JoinSet<()>,
}

impl Echo {
    /// Starts a service of this name: [`EchoOptions::named`].
    pub async fn start(name: &str) -> anyhow::Result<Self> {
        Self::start_with(EchoOptions::named(name)).await
    }

    /// Starts a service; it accepts connections when this returns. Fails when the address cannot be
    /// bound or the TLS identity cannot be used.
    pub async fn start_with(options: EchoOptions) -> anyhow::Result<Self> {
        let acceptor = match &options.tls {
            Some(identity) => Some(TlsAcceptor::from(Arc::new(identity.server()?))),
            None => None,
        };
        let socket = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        let address = socket.local_addr()?;
        let shared = Arc::new(Shared::new(options.name, options.keep));
        let (stop, stopped) = watch::channel(false);
        let mut listener = JoinSet::new();
        listener.spawn(accept(socket, acceptor, Arc::clone(&shared), stopped));
        Ok(Self {
            address,
            shared,
            stop,
            listener,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests have begun.
    pub fn request_count(&self) -> u64 {
        self.shared.started.load(Ordering::Relaxed)
    }

    /// How many connections were accepted.
    pub fn connection_count(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> u64 {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// The last requests, oldest first, in the order in which their bodies ended.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.recorded()
    }

    /// Forgets the recorded requests; counts go on.
    pub fn forget_requests(&self) {
        self.shared.forget();
    }

    /// Waits until that many requests are recorded (and kept); `None` when they are not in time.
    pub async fn wait_for_requests(
        &self,
        count: usize,
        within: Duration,
    ) -> Option<Vec<RecordedRequest>> {
        let mut changes = self.shared.changes();
        tokio::time::timeout(within, async {
            loop {
                changes.borrow_and_update();
                let recorded = self.shared.recorded();
                if recorded.len() >= count {
                    return Some(recorded);
                }
                changes.changed().await.ok()?;
            }
        })
        .await
        .ok()
        .flatten()
    }

    /// Takes no more connections, lets requests finish for a second, then ends.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.listener.join_next().await.is_some() {}
    }
}

async fn accept(
    socket: TcpListener,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(
                        stream,
                        acceptor.clone(),
                        Arc::clone(&shared),
                        stopped.clone(),
                    ));
                }
                // Out of descriptors, most likely: the next accept may do better.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
            _ = stopped.changed() => break,
        }
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
) {
    let _counted = shared.count_connection();
    // Small answers leave at once; a socket that refuses this still works.
    let _ = stream.set_nodelay(true);
    match acceptor {
        None => serve(stream, shared, stopped).await,
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream, shared, stopped).await;
            }
        }
    }
}

async fn serve<S>(stream: S, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let cut = Arc::new(Notify::new());
    let service = service_fn({
        let cut = Arc::clone(&cut);
        move |request| answer::answer(Arc::clone(&shared), Arc::clone(&cut), request)
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).max_headers(512);
    // Envoy resets streams that its clients left, many of them before this service saw them, and forwards up to 60 KiB of
    // a client's headers and what plugins add. A limit would end the connection, and with it the streams of others.
    builder
        .http2()
        .max_header_list_size(LARGEST_HEADERS)
        .timer(TokioTimer::new())
        .max_pending_accept_reset_streams(usize::MAX)
        .max_local_error_reset_streams(usize::MAX);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    // How a connection ends is the client's to judge, so results are dropped.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = cut.notified() => {}
        () = async { if stopped.wait_for(|stopped| *stopped).await.is_err() { std::future::pending::<Infallible>().await; } } => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                _ = connection => {}
                () = cut.notified() => {}
                () = tokio::time::sleep(DRAIN) => {}
            }
        }
    }
}
