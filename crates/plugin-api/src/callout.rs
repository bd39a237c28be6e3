//! Requests that a plugin makes beside its stream, timers, and what it is told of them.
//!
//! A callout is one request with one response, both whole. An HTTP stream is one whose parts are sent and
//! received as they come; gRPC rides on it.

use std::time::Duration;

use crate::framing::HeaderError;
use crate::memory::{ENTRY_COST, MemoryExceeded, headers_cost};

/// Names one callout of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CalloutId(pub u64);

/// A request to one of the gateway's upstreams.
#[derive(Debug, Clone, Copy)]
pub struct CalloutRequest<'a> {
    /// The upstream's (Envoy cluster's) name.
    pub cluster: &'a [u8],
    /// Headers; `:method`, `:path` and `:authority` are required.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The body, possibly empty.
    pub body: &'a [u8],
    /// How long to wait for the whole response; none: as long as the plugin's own stream.
    pub timeout: Option<Duration>,
}

/// The response to a callout. Its bytes are Envoy's, and valid for the call that hands them over.
#[derive(Debug, Clone, Copy)]
pub struct CalloutResponse<'a> {
    /// Headers, `:status` included.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The body, in pieces.
    pub body: &'a [&'a [u8]],
}

impl CalloutResponse<'_> {
    /// Returns the bytes that a copy takes.
    pub fn memory_cost(&self) -> usize {
        headers_cost(self.headers) + pieces_cost(self.body)
    }
}

fn pieces_cost(pieces: &[&[u8]]) -> usize {
    pieces.iter().map(|piece| piece.len() + ENTRY_COST).sum()
}

/// Names one HTTP stream that a plugin opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HttpStreamId(pub u64);

/// The beginning of a request whose parts follow as the plugin has them.
#[derive(Debug, Clone, Copy)]
pub struct HttpStreamRequest<'a> {
    /// The upstream's (Envoy cluster's) name.
    pub cluster: &'a [u8],
    /// Headers; `:method`, `:path` and `:authority` are required.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The first part of the body, possibly empty.
    pub body: &'a [u8],
    /// Nothing follows.
    pub end_of_stream: bool,
    /// How long the whole exchange may take; none: as long as the plugin's own stream.
    pub timeout: Option<Duration>,
}

/// Event of an HTTP stream. Its bytes are the proxy's, and valid during the call that delivers them.
#[derive(Debug, Clone, Copy)]
pub enum HttpStreamEvent<'a> {
    /// The response's headers, `:status` included.
    Headers {
        /// Names and values.
        headers: &'a [(&'a [u8], &'a [u8])],
        /// No body and no trailers follow.
        end_of_stream: bool,
    },
    /// A part of the response's body.
    Data {
        /// Its bytes, in pieces.
        pieces: &'a [&'a [u8]],
        /// No more of it and no trailers follow.
        end_of_stream: bool,
    },
    /// The response's trailers.
    Trailers(&'a [(&'a [u8], &'a [u8])]),
    /// Request and response are complete. Nothing follows.
    Complete,
    /// It has come to nothing, or broke off. Nothing follows.
    Failed(CalloutFailure),
}

impl HttpStreamEvent<'_> {
    /// Returns the bytes that a copy takes; 0 for an event that only ends the stream.
    pub fn memory_cost(&self) -> usize {
        match self {
            Self::Headers { headers, .. } => headers_cost(headers),
            Self::Trailers(trailers) => headers_cost(trailers),
            Self::Data { pieces, .. } => pieces_cost(pieces),
            Self::Complete | Self::Failed(_) => 0,
        }
    }
}

/// Why a callout has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CalloutFailure {
    /// The gateway has no upstream of that name.
    #[error("no upstream of that name")]
    ClusterNotFound,
    /// The plugin's permissions do not have the upstream.
    #[error(
        "the plugin may not call this upstream; add it to the plugin's `allow.upstreams` in outrider.yaml"
    )]
    NotAllowed,
    /// `:method`, `:path` or `:authority` is missing.
    #[error("`:method`, `:path` or `:authority` is missing")]
    MissingHeaders,
    /// A header that no request may have.
    #[error("{0}")]
    BadHeader(HeaderError),
    /// No request could be made, for example because no endpoint is healthy.
    #[error("no request could be made: no healthy endpoint")]
    CannotStart,
    /// The connection was refused, reset, or closed before the response was complete.
    #[error("reset before the response was complete")]
    Reset,
    /// The time was over.
    #[error("timeout")]
    Timeout,
    /// The response was larger than Envoy buffers.
    #[error("the response is larger than the buffer limit")]
    TooLarge,
    /// The plugin has as many callouts, timers and HTTP streams under way on this stream as it may.
    #[error(
        "too many are under way: a plugin may have {most} callouts, timers and streaming callouts at once \
         on one stream",
        most = crate::MOST_UNDER_WAY
    )]
    TooMany,
    /// The body of the request is larger than the proxy holds: so many bytes.
    #[error(
        "the body is larger than the {0} bytes that a callout may have; raise `body_limit` of the gateway"
    )]
    BodyTooLarge(usize),
    /// The plugin's memory account is full.
    #[error(transparent)]
    Memory(#[from] MemoryExceeded),
    /// This stream can make no callout now, for example because it is over.
    #[error("the stream is over")]
    StreamOver,
}

/// What a plugin is told of what it started; see [`crate::ConfiguredPlugin`] for who hears of it how.
#[derive(Debug, Clone, Copy)]
pub enum Wake<'a> {
    /// A callout of its own is done.
    Callout(CalloutId, Result<CalloutResponse<'a>, CalloutFailure>),
    /// A timer of its own is due; the number is what `start_timer` returned.
    Timer(u64),
    /// Something has come on an HTTP stream of its own.
    HttpStream(HttpStreamId, HttpStreamEvent<'a>),
    /// The whole body that it paused for is here (see [`crate::Pause::WholeBody`]).
    Body,
}

/// Names something that a plugin has under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WakeId {
    /// A callout.
    Callout(CalloutId),
    /// A timer.
    Timer(u64),
    /// An HTTP stream.
    HttpStream(HttpStreamId),
}

impl Wake<'_> {
    /// Returns the bytes that a copy takes beside the entry itself; 0 for an event without bytes.
    pub fn memory_cost(&self) -> usize {
        match self {
            Self::Callout(_, Ok(response)) => response.memory_cost(),
            Self::HttpStream(_, event) => event.memory_cost(),
            Self::Callout(_, Err(_)) | Self::Timer(_) | Self::Body => 0,
        }
    }

    /// The name of this event; none for [`Wake::Body`], which the chain itself raises.
    pub fn id(&self) -> Option<WakeId> {
        match self {
            Self::Callout(id, _) => Some(WakeId::Callout(*id)),
            Self::Timer(id) => Some(WakeId::Timer(*id)),
            Self::HttpStream(id, _) => Some(WakeId::HttpStream(*id)),
            Self::Body => None,
        }
    }
}
