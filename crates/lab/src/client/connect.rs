//! One connection: how it is opened, used, and found closed.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::{ClientError, Request, Response, StreamedResponse, Target};
use crate::Protocol;
use crate::body::FedBody;
use crate::tls;

/// How long connecting may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// A connection on which requests are sent one after the other. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    protocol: Protocol,
    scheme: &'static str,
    local_address: SocketAddr,
    driver: AbortHandle,
    end: watch::Receiver<Option<String>>,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<FedBody>),
    Http2(http2::SendRequest<FedBody>),
}

impl Connection {
    /// Connects, with TLS where the target has it.
    pub async fn open(target: &Target) -> Result<Self, ClientError> {
        let failed = |detail: String| ClientError::Connect {
            address: target.address,
            detail,
        };
        tokio::time::timeout(CONNECT, Self::open_patiently(target))
            .await
            .unwrap_or_else(|_| Err(format!("nothing happened for {CONNECT:?}")))
            .map_err(failed)
    }

    async fn open_patiently(target: &Target) -> Result<Self, String> {
        let stream = TcpStream::connect(target.address)
            .await
            .map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let local_address = stream.local_addr().map_err(|error| error.to_string())?;
        let Some((server_name, trust)) = &target.tls else {
            return Self::handshake(stream, target.protocol, "http", local_address).await;
        };
        let config = tls::client(trust, target.protocol, target.identity.as_ref())
            .map_err(|error| format!("{error:#}"))?;
        let name = ServerName::try_from(server_name.clone())
            .map_err(|error| format!("server name {server_name:?}: {error}"))?;
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
            .map_err(|error| format!("TLS: {error}"))?;
        Self::handshake(stream, target.protocol, "https", local_address).await
    }

    async fn handshake<S>(
        stream: S,
        protocol: Protocol,
        scheme: &'static str,
        local_address: SocketAddr,
    ) -> Result<Self, String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        let (announce, end) = watch::channel(None);
        let finish = move |result: hyper::Result<()>| {
            announce.send_replace(Some(match result {
                Ok(()) => "closed".to_owned(),
                Err(error) => chain(&error),
            }));
        };
        let (sender, driver) = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::Builder::new()
                    .max_headers(512)
                    .handshake(stream)
                    .await
                    .map_err(|error| chain(&error))?;
                let driver = tokio::spawn(async move { finish(connection.await) });
                (Sender::Http1(sender), driver)
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .handshake(stream)
                    .await
                    .map_err(|error| chain(&error))?;
                let driver = tokio::spawn(async move { finish(connection.await) });
                (Sender::Http2(sender), driver)
            }
        };
        Ok(Self {
            sender,
            protocol,
            scheme,
            local_address,
            driver: driver.abort_handle(),
            end,
        })
    }

    /// This end's address: the same port means the same connection.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Whether the connection has ended, as far as is known by now.
    pub fn is_closed(&self) -> bool {
        // An aborted driver drops its end of the channel without a word.
        self.end.has_changed().is_err() || self.end.borrow().is_some()
    }

    /// Why it has ended; `None` while it is open.
    pub fn end(&self) -> Option<String> {
        let said = self.end.borrow().clone();
        said.or_else(|| self.is_closed().then(|| "dropped".to_owned()))
    }

    /// Waits for the connection to end, at most this long; whether it did.
    pub async fn closed_within(&mut self, within: Duration) -> bool {
        // An error of `wait_for` says that the driver is gone: ended, too.
        tokio::time::timeout(within, self.end.wait_for(Option::is_some))
            .await
            .is_ok()
    }

    /// Sends a request and waits for the whole response.
    pub async fn send(&mut self, request: Request) -> Result<Response, ClientError> {
        self.start(request).await?.finish().await
    }

    /// Sends a request and waits for the head of the response. Its body has to be read to the end
    /// before the next request on HTTP/1.1.
    pub async fn start(&mut self, request: Request) -> Result<StreamedResponse, ClientError> {
        let timeout = request.timeout;
        let deadline = Instant::now() + timeout;
        let aborted = Arc::new(AtomicBool::new(false));
        let request = request.build(self.protocol, self.scheme, self.driver.clone(), &aborted)?;
        let answer = tokio::time::timeout_at(deadline, self.sender.send(request))
            .await
            .map_err(|_| ClientError::Timeout(timeout))?;
        match answer {
            Ok(response) => Ok(StreamedResponse::new(response, deadline, timeout)),
            Err(_) if aborted.load(Ordering::Relaxed) => Err(ClientError::Aborted),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Sender {
    async fn send(
        &mut self,
        request: http::Request<FedBody>,
    ) -> Result<http::Response<Incoming>, ClientError> {
        let not_sent = |error: hyper::Error| ClientError::NotSent(chain(&error));
        let answer = match self {
            Self::Http1(sender) => {
                sender.ready().await.map_err(not_sent)?;
                sender.try_send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await.map_err(not_sent)?;
                sender.try_send_request(request).await
            }
        };
        answer.map_err(|mut failure| {
            let unsent = failure.take_message().is_some();
            let error = failure.into_error();
            if unsent {
                ClientError::NotSent(chain(&error))
            } else if was_reset(&error) {
                ClientError::Reset(chain(&error))
            } else {
                ClientError::Closed(chain(&error))
            }
        })
    }
}

fn was_reset(error: &hyper::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_reset();
        }
        cause = error.source();
    }
    false
}

/// An error with its causes, each said once.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}
