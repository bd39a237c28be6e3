//! What a chain asks of the proxy, beyond what plugins may.

use crate::attribute::Attribute;
use crate::callout::{
    CalloutFailure, CalloutId, CalloutRequest, HttpStreamId, HttpStreamRequest, WakeId,
};
use crate::chain::{Chain, Link};
use crate::failure::Fault;
use crate::metadata::{MetadataSource, MetadataTree};
use crate::metric::MetricId;
use crate::phase::{Direction, HeaderMap, Phase};
use crate::stream::{
    FilterStateError, FilterStateKind, LogLevel, OverrideHostFallback, Scalar, Timing,
};
use std::sync::Arc;
use std::time::Duration;

/// The two places where the proxy keeps bytes of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyBuffer {
    /// What was held back by earlier calls.
    Held,
    /// What the current body call brought. Empty outside of body calls.
    Received,
}

/// One stream as the proxy shows it. [`crate::ChainRun`] makes from it the [`crate::Stream`] that
/// each plugin sees.
///
/// The header, metadata, callout, metric, log and clock functions mean what their namesakes in
/// [`crate::Stream`] say.
#[expect(
    missing_docs,
    reason = "each function is documented by its namesake in Stream"
)]
pub trait Host {
    fn worker(&self) -> usize;
    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]>;
    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize;
    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8]));
    fn header_map_len(&self, map: HeaderMap) -> Option<usize> {
        let mut count = 0;
        self.headers(map, &mut |_, _| count += 1);
        (count > 0).then_some(count)
    }
    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool;
    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool;
    fn remove_header(&mut self, map: HeaderMap, name: &[u8]) -> bool;

    /// Length in bytes of one of the buffers.
    fn buffer_len(&self, direction: Direction, buffer: BodyBuffer) -> usize;
    /// Visits the pieces of one of the buffers.
    fn buffer_pieces(&self, direction: Direction, buffer: BodyBuffer, visit: &mut dyn FnMut(&[u8]));
    /// Removes the first `length` bytes. `false`: it is not there.
    fn buffer_drain(&mut self, direction: Direction, buffer: BodyBuffer, length: usize) -> bool;
    /// Adds bytes at the end. `false`: it is not there.
    fn buffer_append(&mut self, direction: Direction, buffer: BodyBuffer, bytes: &[u8]) -> bool;
    /// How many bytes of a body the proxy holds back at most, and plugins may make one have; 0: no limit.
    fn buffer_limit(&self) -> usize;

    fn metadata(&self, source: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>>;
    fn set_metadata(&mut self, namespace: &[u8], key: &[u8], value: Scalar<'_>);
    fn set_metadata_tree(&mut self, namespace: &[u8], key: &[u8], value: &MetadataTree);
    fn metadata_list(
        &self,
        source: MetadataSource,
        namespace: &[u8],
        key: &[u8],
        visit: &mut dyn FnMut(Scalar<'_>),
    ) -> bool;
    fn metadata_names(
        &self,
        source: MetadataSource,
        namespace: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8]),
    );
    fn filter_state(&self, key: &[u8]) -> Option<&[u8]>;
    fn set_filter_state(
        &mut self,
        key: &[u8],
        value: &[u8],
        kind: FilterStateKind,
    ) -> Result<(), FilterStateError>;
    /// Asked only for what does not follow from headers, times and the response's code.
    fn attribute(&self, attribute: Attribute) -> Option<Scalar<'_>>;
    fn timing(&self) -> Timing;
    fn response_code(&self) -> Option<u16>;
    /// Asked only while the chain holds the request headers.
    fn usable_hosts(&self) -> usize {
        0
    }
    /// Called only while the chain holds the request headers: an answer to the plugin is the chain's.
    fn clear_route_cache(&mut self);
    /// Returns the chain of the route that the request matches now, or `None` if it matches none. Asked only
    /// while the chain holds the request headers, after `clear_route_cache`.
    fn route_chain(&self) -> Option<Arc<Chain>>;
    /// As `clear_route_cache`. `false`: it is no address.
    fn set_upstream_override_host(&mut self, host: &[u8], otherwise: OverrideHostFallback) -> bool;
    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure>;
    fn start_http_stream(
        &mut self,
        request: &HttpStreamRequest<'_>,
    ) -> Result<HttpStreamId, CalloutFailure>;
    /// Called only while the request on the HTTP stream is not complete.
    fn send_http_stream_data(&mut self, id: HttpStreamId, data: &[u8], end_of_stream: bool)
    -> bool;
    /// As for data.
    fn send_http_stream_trailers(&mut self, id: HttpStreamId, trailers: &[(&[u8], &[u8])]) -> bool;
    /// None: the proxy cannot start one now.
    fn start_timer(&mut self, delay: Duration) -> Option<u64>;
    /// Called for timers and HTTP streams, which are forgotten and reset.
    fn cancel(&mut self, id: WakeId);
    fn add_metric(&mut self, metric: MetricId, amount: i64);
    fn record_metric(&mut self, metric: MetricId, value: u64);
    fn metric(&self, metric: MetricId) -> Option<u64>;
    fn log_enabled(&self, level: LogLevel) -> bool;
    /// Writes a log line of a plugin.
    fn log(&self, level: LogLevel, plugin: &str, message: &str);
    fn unix_millis(&self) -> u64;
    fn start_unix_millis(&self) -> u64;
    /// Nanoseconds of a clock that never goes back, to measure with; its zero means nothing.
    fn monotonic_nanos(&self) -> u64;

    /// A plugin failed on this stream: says so in the log, as often as the link's fault log admits.
    fn report_fault(&mut self, link: &Link, phase: Phase, fault: &Fault);
}
