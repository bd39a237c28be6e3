//! Requests that a plugin makes while its stream waits, timers, and what wakes a paused plugin.

use std::time::Duration;

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
    /// How long to wait for the whole response.
    pub timeout: Duration,
}

/// The response to a callout. Its bytes are Envoy's, and valid for the call that hands them over.
#[derive(Debug, Clone, Copy)]
pub struct CalloutResponse<'a> {
    /// Headers, `:status` included.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The body, in pieces.
    pub body: &'a [&'a [u8]],
}

/// Why a callout has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CalloutFailure {
    /// The gateway has no upstream of that name.
    #[error("no upstream of that name")]
    ClusterNotFound,
    /// `:method`, `:path` or `:authority` is missing.
    #[error("`:method`, `:path` or `:authority` is missing")]
    MissingHeaders,
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
    /// This stream can make no callout now, for example because it is over.
    #[error("the stream is over")]
    StreamOver,
}

/// What wakes a plugin that answered [`crate::Decision::Pause`].
#[derive(Debug, Clone, Copy)]
pub enum Wake<'a> {
    /// A callout of its own is done.
    Callout(CalloutId, Result<CalloutResponse<'a>, CalloutFailure>),
    /// A timer of its own is due; the number is what `start_timer` returned.
    Timer(u64),
    /// The whole body that it paused for is here (see [`crate::Pause::WholeBody`]).
    Body,
}

/// Names what a paused plugin waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeId {
    /// A callout.
    Callout(CalloutId),
    /// A timer.
    Timer(u64),
}

impl Wake<'_> {
    /// The name of this event; none for [`Wake::Body`], which the chain itself raises.
    pub fn id(&self) -> Option<WakeId> {
        match self {
            Self::Callout(id, _) => Some(WakeId::Callout(*id)),
            Self::Timer(id) => Some(WakeId::Timer(*id)),
            Self::Body => None,
        }
    }
}
