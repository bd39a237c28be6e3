//! Points of a stream's life, and its two directions.

use std::fmt;

/// One way through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From client to upstream.
    Request,
    /// From upstream to client.
    Response,
}

impl Direction {
    /// The map of this direction's headers.
    pub fn headers(self) -> HeaderMap {
        match self {
            Self::Request => HeaderMap::RequestHeaders,
            Self::Response => HeaderMap::ResponseHeaders,
        }
    }

    /// The other way.
    pub fn other(self) -> Self {
        match self {
            Self::Request => Self::Response,
            Self::Response => Self::Request,
        }
    }
}

/// A point of a stream's life at which a plugin is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The request's headers are complete.
    RequestHeaders,
    /// The request's body, whole or one chunk of it.
    RequestBody,
    /// The request's trailers are complete.
    RequestTrailers,
    /// The response's headers are complete.
    ResponseHeaders,
    /// The response's body, whole or one chunk of it.
    ResponseBody,
    /// The response's trailers are complete.
    ResponseTrailers,
    /// The stream is over.
    Log,
}

impl Phase {
    /// Every phase, in the order of [`Phase::index`].
    pub const ALL: [Self; 7] = [
        Self::RequestHeaders,
        Self::RequestBody,
        Self::RequestTrailers,
        Self::ResponseHeaders,
        Self::ResponseBody,
        Self::ResponseTrailers,
        Self::Log,
    ];

    /// A number from 0, for tables.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The headers phase of a direction.
    pub fn headers(direction: Direction) -> Self {
        match direction {
            Direction::Request => Self::RequestHeaders,
            Direction::Response => Self::ResponseHeaders,
        }
    }

    /// The body phase of a direction.
    pub fn body(direction: Direction) -> Self {
        match direction {
            Direction::Request => Self::RequestBody,
            Direction::Response => Self::ResponseBody,
        }
    }

    /// The trailers phase of a direction.
    pub fn trailers(direction: Direction) -> Self {
        match direction {
            Direction::Request => Self::RequestTrailers,
            Direction::Response => Self::ResponseTrailers,
        }
    }

    /// The direction a phase belongs to; the log phase counts as a response's.
    pub fn direction(self) -> Direction {
        match self {
            Self::RequestHeaders | Self::RequestBody | Self::RequestTrailers => Direction::Request,
            _ => Direction::Response,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RequestHeaders => "request headers",
            Self::RequestBody => "request body",
            Self::RequestTrailers => "request trailers",
            Self::ResponseHeaders => "response headers",
            Self::ResponseBody => "response body",
            Self::ResponseTrailers => "response trailers",
            Self::Log => "log",
        })
    }
}

/// The four header maps of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderMap {
    /// Request headers, pseudo headers (`:method`, `:path`, `:authority`, `:scheme`) included.
    RequestHeaders,
    /// Request trailers.
    RequestTrailers,
    /// Response headers, `:status` included.
    ResponseHeaders,
    /// Response trailers.
    ResponseTrailers,
}

/// How a plugin wants the body of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BodyMode {
    /// Not at all.
    #[default]
    None,
    /// Once, complete; headers and body wait for the handler.
    Whole,
    /// Chunk by chunk, as it arrives; nothing is held back.
    Stream,
}
