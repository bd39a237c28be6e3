//! What a client sends: a request, and the ways in which its body can come or fail to come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, TRAILER};
use http::{HeaderMap, HeaderValue, Uri};
use http_body::Frame;
use tokio::task::AbortHandle;

use super::ClientError;
use crate::body::FedBody;
use crate::{Headers, Protocol};

/// How long an exchange may take unless the request says otherwise.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that were handed to the connection are on the wire after this long, on loopback.
const FLUSH: Duration = Duration::from_millis(30);

/// How a request is broken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// The connection is dropped.
    Connection,
    /// HTTP/2: the stream is reset, the connection lives. HTTP/1.1: as `Connection`.
    Stream,
}

/// One request. Cheap to clone: bodies are shared.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    path: String,
    host: String,
    headers: Headers,
    body: RequestBody,
    trailers: Headers,
    abort: Option<(usize, Abort)>,
    pub(super) timeout: Duration,
}

#[derive(Debug, Clone)]
enum RequestBody {
    /// Sent at once, with its length.
    Whole(Bytes),
    /// Sent piece by piece, each after its delay, without a length.
    Pieces(Vec<(Duration, Bytes)>),
}

impl Request {
    /// A request without body, to host `localhost`, that may take 30 seconds.
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            host: "localhost".to_owned(),
            headers: Headers::default(),
            body: RequestBody::Whole(Bytes::new()),
            trailers: Headers::default(),
            abort: None,
            timeout: PATIENCE,
        }
    }

    /// `GET` of a path, which may have a query.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// `POST` of a body to a path.
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        Self::new("POST", path).body(body)
    }

    /// The host, with port where wanted: `host` of HTTP/1.1, `:authority` of HTTP/2.
    pub fn host(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    /// Adds a header field; the same name may come more than once.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push(name, value);
        self
    }

    /// The body, sent at once, with its length declared.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = RequestBody::Whole(body.into());
        self
    }

    /// The body piece by piece, no length declared (HTTP/1.1: chunked).
    pub fn pieces<P: Into<Bytes>>(self, pieces: impl IntoIterator<Item = P>) -> Self {
        self.delayed_pieces(pieces.into_iter().map(|piece| (Duration::ZERO, piece)))
    }

    /// As [`Request::pieces`], with a pause before each piece.
    pub fn delayed_pieces<P: Into<Bytes>>(
        mut self,
        pieces: impl IntoIterator<Item = (Duration, P)>,
    ) -> Self {
        let pieces = pieces
            .into_iter()
            .map(|(delay, piece)| (delay, piece.into()));
        self.body = RequestBody::Pieces(pieces.collect());
        self
    }

    /// Adds a trailer; the header `trailer` announces it, and no length is declared.
    pub fn trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push(name, value);
        self
    }

    /// Asks for the response's trailers: `te: trailers`.
    pub fn accept_trailers(self) -> Self {
        self.header("te", "trailers")
    }

    /// Breaks off once that many bytes of the body are sent (0: once the head is). What comes back
    /// is [`ClientError::Aborted`], unless a response came before.
    pub fn abort_after(mut self, bytes: usize, abort: Abort) -> Self {
        self.abort = Some((bytes, abort));
        self
    }

    /// How long the whole exchange may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The request as the HTTP library takes it. `driver` is the connection's task, `aborted` is set
    /// when the request breaks itself off.
    pub(super) fn build(
        self,
        protocol: Protocol,
        scheme: &str,
        driver: AbortHandle,
        aborted: &Arc<AtomicBool>,
    ) -> Result<http::Request<FedBody>, ClientError> {
        let trailers = self.trailers.to_map().map_err(ClientError::Invalid)?;
        let mut headers = self.headers.to_map().map_err(ClientError::Invalid)?;
        let uri = match protocol {
            Protocol::Http1 => {
                if !headers.contains_key(HOST) {
                    let host = HeaderValue::try_from(&self.host).map_err(invalid)?;
                    headers.insert(HOST, host);
                }
                self.path.clone()
            }
            Protocol::Http2 => format!("{scheme}://{}{}", self.host, self.path),
        };
        for name in trailers.keys() {
            headers.append(TRAILER, HeaderValue::from(name.clone()));
        }
        let mut request = http::Request::builder()
            .method(self.method.as_str())
            .uri(Uri::try_from(uri).map_err(invalid)?)
            .body(self.feed(trailers, driver, aborted))
            .map_err(invalid)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn feed(self, trailers: HeaderMap, driver: AbortHandle, aborted: &Arc<AtomicBool>) -> FedBody {
        let declared = match &self.body {
            RequestBody::Whole(content) if trailers.is_empty() => Some(content.len() as u64),
            _ => None,
        };
        let pieces = match self.body {
            RequestBody::Whole(content) if self.abort.is_none() => {
                return if declared.is_some() {
                    FedBody::whole(content)
                } else {
                    FedBody::pieces([content], trailers)
                };
            }
            RequestBody::Whole(content) => vec![(Duration::ZERO, content)],
            RequestBody::Pieces(pieces) => pieces,
        };
        // A request that is to break off must not look complete before it does.
        let declared = declared.filter(|length| *length > 0);
        let (feed, body) = FedBody::fed(declared);
        let aborted = Arc::clone(aborted);
        tokio::spawn(async move {
            let mut left = self.abort.map_or(usize::MAX, |(bytes, _)| bytes);
            for (delay, mut piece) in pieces {
                if left == 0 {
                    break;
                }
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                piece.truncate(left);
                left -= piece.len();
                if !piece.is_empty() && feed.send(Ok(Frame::data(piece))).await.is_err() {
                    return;
                }
            }
            match self.abort {
                None => {
                    if !trailers.is_empty() {
                        // Whoever stopped reading has no use for them.
                        let _ = feed.send(Ok(Frame::trailers(trailers))).await;
                    }
                }
                Some((_, abort)) => {
                    tokio::time::sleep(FLUSH).await;
                    aborted.store(true, Ordering::Relaxed);
                    match abort {
                        Abort::Connection => driver.abort(),
                        Abort::Stream => {
                            let _ = feed.send(Err("the request is broken off".into())).await;
                        }
                    }
                }
            }
        });
        body
    }
}

fn invalid(error: impl std::fmt::Display) -> ClientError {
    ClientError::Invalid(error.to_string())
}
