//! Bodies that are sent piece by piece, for the client's requests and the echo service's responses.
//!
//! The trap: a body whose length is known says that it has ended as soon as that many bytes are out,
//! and trailers after that are lost. Whoever sends trailers leaves the length unknown.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

/// The error of a body; it ends the exchange, the text is for logs.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Sends the pieces of a [`FedBody`]. Dropping it ends the body in good order.
pub(crate) type Feed = mpsc::Sender<Result<Frame<Bytes>, BodyError>>;

/// A body made of pieces that are there already, then of pieces that are fed.
#[derive(Debug)]
pub(crate) struct FedBody {
    ready: VecDeque<Frame<Bytes>>,
    fed: Option<mpsc::Receiver<Result<Frame<Bytes>, BodyError>>>,
    remaining: Option<u64>,
}

impl FedBody {
    /// A body that is complete; its length is known.
    pub(crate) fn whole(content: Bytes) -> Self {
        Self {
            remaining: Some(content.len() as u64),
            ready: if content.is_empty() {
                VecDeque::new()
            } else {
                VecDeque::from([Frame::data(content)])
            },
            fed: None,
        }
    }

    /// A body that is complete, of unknown length to the peer, with trailers.
    pub(crate) fn pieces(content: impl IntoIterator<Item = Bytes>, trailers: HeaderMap) -> Self {
        let mut ready: VecDeque<_> = content
            .into_iter()
            .filter(|piece| !piece.is_empty())
            .map(Frame::data)
            .collect();
        if !trailers.is_empty() {
            ready.push_back(Frame::trailers(trailers));
        }
        Self {
            ready,
            fed: None,
            remaining: None,
        }
    }

    /// A body that is fed; `length` is declared when given.
    pub(crate) fn fed(length: Option<u64>) -> (Feed, Self) {
        // One piece of slack: a feeder learns soon that nobody reads on.
        let (feed, receiver) = mpsc::channel(1);
        let body = Self {
            ready: VecDeque::new(),
            fed: Some(receiver),
            remaining: length,
        };
        (feed, body)
    }
}

impl Body for FedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = match (self.ready.pop_front(), self.fed.as_mut()) {
            (Some(frame), _) => Some(Ok(frame)),
            (None, Some(fed)) => match fed.poll_recv(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => return Poll::Pending,
            },
            (None, None) => None,
        };
        if let (Some(Ok(frame)), Some(remaining)) = (&next, self.remaining.as_mut())
            && let Some(data) = frame.data_ref()
        {
            *remaining = remaining.saturating_sub(data.len() as u64);
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == Some(0) || (self.ready.is_empty() && self.fed.is_none())
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
