//! What an echo service remembers of the requests that reached it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::body::BodyError;
use crate::{Headers, Protocol};

/// A request as it reached the echo service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The method.
    pub method: String,
    /// The path with the query, as it was sent.
    pub path: String,
    /// `Host` of HTTP/1.1, `:authority` of HTTP/2.
    pub host: String,
    /// The protocol that it came by.
    pub protocol: Protocol,
    /// Its headers; pseudo-headers of HTTP/2 are not among them.
    pub headers: Headers,
    /// Its body.
    pub body: BodyDigest,
    /// Its trailers.
    pub trailers: Headers,
}

/// What is kept of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyDigest {
    /// How many bytes arrived.
    pub length: u64,
    /// SHA-256 of them, in hexadecimal.
    pub sha256: String,
    /// Whether it arrived whole; not so when the client went away, or the answer did not wait for it.
    pub complete: bool,
}

/// SHA-256 in hexadecimal.
pub(crate) fn hexadecimal(hash: Sha256) -> String {
    use std::fmt::Write as _;
    hash.finalize()
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// What the connections of one service share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) started: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) open: AtomicU64,
    keep: usize,
    recorded: Mutex<VecDeque<RecordedRequest>>,
    changed: watch::Sender<()>,
}

impl Shared {
    pub(crate) fn new(name: String, keep: usize) -> Self {
        Self {
            name,
            started: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
            keep,
            recorded: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RecordedRequest>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn recorded(&self) -> Vec<RecordedRequest> {
        self.lock().iter().cloned().collect()
    }

    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn record(&self, request: RecordedRequest) {
        if self.keep == 0 {
            return;
        }
        {
            let mut recorded = self.lock();
            while recorded.len() >= self.keep {
                recorded.pop_front();
            }
            recorded.push_back(request);
        }
        self.changed.send_replace(());
    }

    /// Counts a connection as open for as long as the result lives.
    pub(crate) fn count_connection(self: &Arc<Self>) -> OpenConnection {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }
}

/// One of [`Shared::open`].
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Shared>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request's body that takes note of what passes and records the request when it ends or is let go.
#[derive(Debug)]
pub(crate) struct RecordingBody {
    incoming: Incoming,
    shared: Arc<Shared>,
    hash: Sha256,
    ended: bool,
    // Taken when recorded.
    request: Option<RecordedRequest>,
}

impl RecordingBody {
    /// `request` without its body's digest and trailers, which are found out here.
    pub(crate) fn new(incoming: Incoming, shared: Arc<Shared>, request: RecordedRequest) -> Self {
        Self {
            incoming,
            shared,
            hash: Sha256::new(),
            ended: false,
            request: Some(request),
        }
    }

    /// Reads to the end. Returns the body where it is no longer than `limit`, and the request as it
    /// is now recorded; `None` when the client went away.
    pub(crate) async fn finish(
        mut self,
        limit: usize,
    ) -> Option<(Option<Vec<u8>>, RecordedRequest)> {
        let mut kept = Some(Vec::new());
        loop {
            let frame =
                std::future::poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await;
            match frame {
                None => return Some((kept, self.digest()?)),
                Some(Err(_)) => return None,
                Some(Ok(frame)) => {
                    if let (Some(content), Some(data)) = (&mut kept, frame.data_ref()) {
                        if content.len() + data.len() <= limit {
                            content.extend_from_slice(data);
                        } else {
                            kept = None;
                        }
                    }
                }
            }
        }
    }

    fn digest(&self) -> Option<RecordedRequest> {
        let mut request = self.request.clone()?;
        request.body.sha256 = hexadecimal(self.hash.clone());
        request.body.complete = self.ended || self.incoming.is_end_stream();
        Some(request)
    }

    fn record(&mut self) {
        if let Some(request) = self.digest() {
            self.request = None;
            self.shared.record(request);
        }
    }
}

impl Body for RecordingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let frame = match Pin::new(&mut this.incoming).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return Poll::Pending,
        };
        match &frame {
            Some(Ok(frame)) => {
                if let Some(request) = &mut this.request {
                    if let Some(data) = frame.data_ref() {
                        this.hash.update(data);
                        request.body.length += data.len() as u64;
                    } else if let Some(trailers) = frame.trailers_ref() {
                        request.trailers = Headers::from(trailers);
                    }
                }
            }
            Some(Err(_)) => {}
            None => this.ended = true,
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    // No size hint: see the trap of `crate::body`.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for RecordingBody {
    fn drop(&mut self) {
        self.record();
    }
}
