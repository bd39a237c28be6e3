//! What a runtime may ask of the proxy about the stream that it is called for.

use std::ops::Range;
use std::time::Duration;

use crate::attribute::Attribute;
use crate::callout::{
    CalloutFailure, CalloutId, CalloutRequest, HttpStreamId, HttpStreamRequest, WakeId,
};
use crate::framing::{HeaderError, Rule};
use crate::memory::MemoryExceeded;
use crate::metadata::{MetadataSource, MetadataTree};
use crate::metric::MetricId;
use crate::permissions::MetadataDenied;
use crate::phase::{Direction, HeaderMap};

/// Severity of a log line, in Envoy's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Finest.
    Trace,
    /// For finding faults.
    Debug,
    /// Worth knowing.
    Info,
    /// Something is off.
    Warn,
    /// Something failed.
    Error,
    /// Something failed that the proxy cannot do without.
    Critical,
}

impl LogLevel {
    /// Returns the name of the level, as Envoy's log has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
        }
    }
}

/// A value of an attribute or of metadata.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar<'a> {
    /// Text.
    String(&'a [u8]),
    /// Number.
    Number(f64),
    /// Truth value.
    Bool(bool),
}

/// When what happened on a stream, counted from its beginning; none: not yet, or never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timing {
    /// The stream was complete.
    pub complete: Option<Duration>,
    /// The first byte was sent to the upstream.
    pub first_upstream_sent: Option<Duration>,
    /// The last byte was sent to the upstream.
    pub last_upstream_sent: Option<Duration>,
    /// The first byte came from the upstream.
    pub first_upstream_received: Option<Duration>,
    /// The last byte came from the upstream.
    pub last_upstream_received: Option<Duration>,
    /// The first byte was sent to the client.
    pub first_downstream_sent: Option<Duration>,
    /// The last byte was sent to the client.
    pub last_downstream_sent: Option<Duration>,
}

/// What an object of the filter state is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterStateKind {
    /// Bytes, which access logs and plugins read.
    Bytes,
    /// What the proxy makes of the bytes for a key that it knows.
    Typed,
}

/// Why an object cannot be added to the filter state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FilterStateError {
    /// There is one already.
    #[error("is set already; filter state is written once")]
    Taken,
    /// The plugins have written as much as they may on this stream.
    #[error(
        "would be more than the {most} bytes of metadata and filter state that plugins may write on one stream",
        most = crate::MOST_STATE_BYTES
    )]
    TooLarge,
    /// The plugin's permissions do not have the key.
    #[error(
        "steers Envoy itself, and the plugin may not set it; add it to the plugin's \
         `allow.typed_filter_state` in outrider.yaml"
    )]
    NotAllowed,
    /// The plugin's memory account is full.
    #[error(transparent)]
    Memory(#[from] MemoryExceeded),
    /// The proxy does not know the key, or makes no object of such bytes.
    #[error("names no object that Envoy can make of this value")]
    Unknown,
}

/// Why a value of metadata is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// The plugin's permissions do not have the namespace.
    #[error(transparent)]
    Denied(#[from] MetadataDenied),
    /// The plugin's memory account is full.
    #[error(transparent)]
    Memory(#[from] MemoryExceeded),
}

/// Fallback for a request whose chosen endpoint is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverrideHostFallback {
    /// The load balancer chooses another.
    LoadBalancer,
    /// It fails.
    Fail,
}

/// Why an upstream's endpoint cannot be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverrideHostError {
    /// The plugin's permissions do not have it.
    #[error(
        "the plugin may not choose the upstream's endpoint; set the plugin's `allow.override_host: true` in \
         outrider.yaml"
    )]
    NotAllowed,
    /// The request's headers are on their way.
    #[error("the request's headers are on their way to the upstream, which cannot change any more")]
    TooLate,
    /// It is no address.
    #[error(
        "the address of the upstream's endpoint must be an IP address with a port, such as \
         10.0.0.1:8080 or [2001:db8::1]:8080"
    )]
    NoAddress,
}

/// Why a body cannot be changed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// There is no body in this phase.
    #[error("there is no body in this phase")]
    NoBody,
    /// The length of the body has been announced and cannot change any more.
    #[error(
        "the body's length was announced in `content-length`; remove that header in the headers \
         handler, or ask for whole bodies in plugin.yaml"
    )]
    LengthAnnounced,
    /// It would be larger than the proxy may hold back: so many bytes.
    #[error(
        "the body would be larger than the {0} bytes that may be held back; raise `body_limit` of the \
         gateway"
    )]
    TooLarge(usize),
    /// The plugin's memory account is full.
    #[error(transparent)]
    Memory(#[from] MemoryExceeded),
}

/// The most headers that replace others at once; a proxy passes far fewer.
const MOST_HEADERS: usize = 1000;

/// What a runtime may ask of the proxy while it is being called for a stream. Bytes that are handed
/// out are the proxy's, and valid until the next call that takes `&mut self`.
pub trait Stream {
    /// The worker, from 0, that serves this stream from beginning to end.
    fn worker(&self) -> usize;

    /// The value of a header at `index` among those of that name. Names compare without case.
    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]>;

    /// How many values a header has; 0 also when the map is not there (yet).
    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize;

    /// How many headers a map has; none: it is not there.
    fn header_map_len(&self, map: HeaderMap) -> Option<usize> {
        let mut count = 0;
        self.headers(map, &mut |_, _| count += 1);
        (count > 0).then_some(count)
    }

    /// Visits every header, name and value, in the map's order.
    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8]));

    /// Replaces all values of a header by one; an empty value removes it, as in Envoy. The present value of a
    /// header of the connection is no change. A `content-length` stands until the headers go on to the next
    /// plugin: then the chain makes it the body's, where the body is complete, or drops it. Once the headers
    /// have gone on, it and `:status` do not change any more.
    ///
    /// # Errors
    /// The map is not there in this phase, or the change would break the message; see [`HeaderError`].
    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError>;

    /// Adds a value to those that a header has; an empty value is not added.
    ///
    /// # Errors
    /// As for `set_header`; and pseudo headers and `content-length` have one value.
    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError>;

    /// Removes a header with all its values.
    ///
    /// # Errors
    /// As for `set_header`; and pseudo headers stay.
    fn remove_header(&mut self, map: HeaderMap, name: &[u8]) -> Result<(), HeaderError>;

    /// Puts headers in place of all that are there. Pseudo headers and headers of the connection that are not
    /// among them stay.
    ///
    /// # Errors
    /// As for `set_header`; what was changed before the error stays changed.
    fn replace_headers(
        &mut self,
        map: HeaderMap,
        headers: &[(&[u8], &[u8])],
    ) -> Result<(), HeaderError> {
        if headers.len() > MOST_HEADERS {
            return Err(HeaderError::TooLarge);
        }
        let mut present: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        self.headers(map, &mut |name, value| {
            present.push((name.to_vec(), value.to_vec()));
        });
        let has = |list: &[(&[u8], &[u8])], name: &[u8]| {
            list.iter()
                .any(|(known, _)| known.eq_ignore_ascii_case(name))
        };
        for (name, _) in &present {
            let goes = match Rule::in_map(map, name) {
                Rule::Plain => true,
                Rule::Length => !has(headers, name),
                _ => false,
            };
            if goes {
                self.remove_header(map, name)?;
            }
        }
        for (name, value) in headers {
            match Rule::in_map(map, name) {
                Rule::Plain => self.add_header(map, name, value)?,
                Rule::Connection(rule) => {
                    let stays = present
                        .iter()
                        .any(|(known, old)| known.eq_ignore_ascii_case(name) && old == value);
                    if !stays {
                        return Err(HeaderError::Connection(rule));
                    }
                }
                _ => self.set_header(map, name, value)?,
            }
        }
        Ok(())
    }

    /// Length in bytes of the body that this call may see: the whole one, or one chunk. `None`:
    /// there is none in this phase.
    fn body_len(&self, direction: Direction) -> Option<usize>;

    /// Visits the pieces of the body that this call may see. Unlike other bytes, they stay valid until
    /// the call ends, or a body is changed.
    fn body_pieces(&self, direction: Direction, visit: &mut dyn FnMut(&[u8]));

    /// Replaces a part of the body, or of the chunk, that this call may see; what of the part lies
    /// beyond it does not count. An empty part is a place where `bytes` are put in. In a headers phase of a
    /// message without a body it makes one, but of a response to `HEAD` and one whose status has none.
    ///
    /// # Errors
    /// See [`BodyError`].
    fn splice_body(
        &mut self,
        direction: Direction,
        part: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BodyError>;

    /// Replaces the body, or the chunk, that this call may see.
    ///
    /// # Errors
    /// See [`BodyError`].
    fn set_body(&mut self, direction: Direction, body: &[u8]) -> Result<(), BodyError> {
        self.splice_body(direction, 0..usize::MAX, body)
    }

    /// A value of metadata, if it is there and text, number or truth value.
    fn metadata(&self, source: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>>;

    /// Writes a value of the stream's dynamic metadata.
    ///
    /// # Errors
    /// See [`MetadataError`].
    fn set_metadata(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: Scalar<'_>,
    ) -> Result<(), MetadataError>;

    /// Writes a value of any depth.
    ///
    /// # Errors
    /// As for [`Stream::set_metadata`].
    fn set_metadata_tree(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: &MetadataTree,
    ) -> Result<(), MetadataError>;

    /// Visits the values of a list in metadata; such as are lists or maps themselves are left out.
    /// `false`: there is no list.
    fn metadata_list(
        &self,
        source: MetadataSource,
        namespace: &[u8],
        key: &[u8],
        visit: &mut dyn FnMut(Scalar<'_>),
    ) -> bool;

    /// Visits the keys of a namespace of metadata, or, without one, the namespaces.
    fn metadata_names(
        &self,
        source: MetadataSource,
        namespace: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8]),
    );

    /// An object of the stream's filter state, as bytes.
    fn filter_state(&self, key: &[u8]) -> Option<&[u8]>;

    /// Adds an object to the stream's filter state.
    ///
    /// # Errors
    /// See [`FilterStateError`].
    fn set_filter_state(
        &mut self,
        key: &[u8],
        value: &[u8],
        kind: FilterStateKind,
    ) -> Result<(), FilterStateError>;

    /// A fact about the stream, of the kind that the attribute names.
    fn attribute(&self, attribute: Attribute) -> Option<Scalar<'_>>;

    /// When what happened, counted from the stream's beginning.
    fn timing(&self) -> Timing;

    /// Status code of the response, once there is one.
    fn response_code(&self) -> Option<u16>;

    /// Has the proxy choose the route anew, by the request headers as they are now. `false`: they are
    /// on their way to the upstream, and the route cannot change any more.
    fn clear_route_cache(&mut self) -> bool;

    /// Hosts of the cluster that the request's route leads to, as far as they are healthy or degraded; 0 also without a
    /// route or a known cluster, and when the request headers are gone.
    fn usable_hosts(&self) -> usize {
        0
    }

    /// Has the request go to the upstream's endpoint of this address (`ip:port`).
    ///
    /// # Errors
    /// See [`OverrideHostError`].
    fn set_upstream_override_host(
        &mut self,
        host: &[u8],
        otherwise: OverrideHostFallback,
    ) -> Result<(), OverrideHostError>;

    /// Returns the sentence about an upstream that the plugin may not call.
    fn upstream_denied(&self, upstream: &[u8]) -> String {
        let _ = upstream;
        CalloutFailure::NotAllowed.to_string()
    }

    /// Starts a callout. The plugin is told of its end, whether or not it pauses for it. It ends with the
    /// stream.
    ///
    /// # Errors
    /// See [`CalloutFailure`].
    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure>;

    /// Opens an HTTP stream. The plugin is told of all that comes on it, as [`HttpStreamEvent`]s, from the
    /// next call on. The proxy does not hold back what comes: who cannot keep it has to cancel.
    ///
    /// # Errors
    /// See [`CalloutFailure`].
    ///
    /// [`HttpStreamEvent`]: crate::HttpStreamEvent
    fn start_http_stream(
        &mut self,
        request: &HttpStreamRequest<'_>,
    ) -> Result<HttpStreamId, CalloutFailure>;

    /// Sends a part of the request's body on an HTTP stream.
    ///
    /// # Errors
    /// [`CalloutFailure::StreamOver`] if the HTTP stream is over or its request is complete;
    /// [`CalloutFailure::Memory`], and nothing was sent.
    fn send_http_stream_data(
        &mut self,
        id: HttpStreamId,
        data: &[u8],
        end_of_stream: bool,
    ) -> Result<(), CalloutFailure>;

    /// Sends the request's trailers on an HTTP stream, which completes the request.
    ///
    /// # Errors
    /// As for data.
    fn send_http_stream_trailers(
        &mut self,
        id: HttpStreamId,
        trailers: &[(&[u8], &[u8])],
    ) -> Result<(), CalloutFailure>;

    /// Starts a timer. The plugin is told when it is due. Returns the timer's name.
    ///
    /// # Errors
    /// There are too many, or the stream is over.
    fn start_timer(&mut self, delay: Duration) -> Result<u64, CalloutFailure>;

    /// The plugin does not want to hear any more of something that it started: a timer is taken back, an
    /// HTTP stream is reset, of a callout the outcome is dropped. What is over, or another plugin's, is
    /// passed over.
    fn cancel(&mut self, id: WakeId);

    /// Adds to a counter or a gauge (a gauge also takes negative amounts).
    fn add_metric(&mut self, metric: MetricId, amount: i64);

    /// Sets a gauge, or records a value of a histogram.
    fn record_metric(&mut self, metric: MetricId, value: u64);

    /// The value of a counter or a gauge as this process counted it.
    fn metric(&self, metric: MetricId) -> Option<u64>;

    /// Whether lines of this level are written at all.
    fn log_enabled(&self, level: LogLevel) -> bool;

    /// Writes a line to the proxy's log, with the plugin's name.
    fn log(&self, level: LogLevel, message: &str);

    /// Now, in milliseconds since the Unix epoch.
    fn unix_millis(&self) -> u64;

    /// When the stream began, in milliseconds since the Unix epoch.
    fn start_unix_millis(&self) -> u64;
}
