//! A proxy of plain fields: the host of one stream, as Envoy behaves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Attribute, BodyBuffer, CalloutFailure, CalloutId, CalloutRequest, Chain, Direction, Fault,
    FilterStateError, FilterStateKind, HeaderMap, Host, HttpStreamId, HttpStreamRequest, Link,
    LogLevel, MetadataSource, MetadataTree, MetricId, OverrideHostFallback, OwnedHeaders, Phase,
    Scalar, Timing, WakeId,
};

/// A header list from text.
pub(super) fn list(pairs: &[(&str, &str)]) -> OwnedHeaders {
    pairs
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

#[derive(Debug, Default)]
pub(super) struct FakeHost {
    pub(super) maps: [Option<OwnedHeaders>; 4],
    pub(super) held: [Option<Vec<u8>>; 2],
    pub(super) received: [Option<Vec<u8>>; 2],
    pub(super) limit: usize,
    pub(super) metadata: BTreeMap<(Vec<u8>, Vec<u8>), MetadataTree>,
    pub(super) filter_state: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Timers that run: number and time at which they fire.
    pub(super) timers: BTreeMap<u64, u64>,
    pub(super) callouts: Vec<OwnedHeaders>,
    pub(super) metrics: BTreeMap<u64, i64>,
    pub(super) faults: Vec<(String, Phase, Fault)>,
    pub(super) logs: RefCell<Vec<String>>,
    pub(super) nanos: u64,
    pub(super) attributes: BTreeMap<Attribute, String>,
    pub(super) routed: usize,
    /// The chain of the route that the request matches after the route was chosen anew.
    pub(super) route: Option<Arc<Chain>>,
    pub(super) next: u64,
}

fn of(direction: Direction) -> usize {
    usize::from(direction == Direction::Response)
}

impl FakeHost {
    pub(super) fn buffer(
        &mut self,
        direction: Direction,
        buffer: BodyBuffer,
    ) -> &mut Option<Vec<u8>> {
        match buffer {
            BodyBuffer::Held => &mut self.held[of(direction)],
            BodyBuffer::Received => &mut self.received[of(direction)],
        }
    }

    fn bytes(&self, direction: Direction, buffer: BodyBuffer) -> &[u8] {
        let bytes = match buffer {
            BodyBuffer::Held => &self.held[of(direction)],
            BodyBuffer::Received => &self.received[of(direction)],
        };
        bytes.as_deref().unwrap_or_default()
    }

    pub(super) fn map(&mut self, map: HeaderMap) -> &mut Option<OwnedHeaders> {
        &mut self.maps[map as usize]
    }

    fn entries(&self, map: HeaderMap) -> &[(Vec<u8>, Vec<u8>)] {
        self.maps[map as usize].as_deref().unwrap_or_default()
    }

    /// The timer that fires next, which is taken out, with the clock set to its time.
    pub(super) fn fire(&mut self) -> Option<u64> {
        let (id, due) = self
            .timers
            .iter()
            .min_by_key(|(_, due)| **due)
            .map(|(id, due)| (*id, *due))?;
        self.timers.remove(&id);
        self.nanos = self.nanos.max(due);
        Some(id)
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Host for FakeHost {
    fn worker(&self) -> usize {
        0
    }

    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        self.entries(map)
            .iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .nth(index)
            .map(|(_, value)| value.as_slice())
    }

    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize {
        let all = self.entries(map).iter();
        all.filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .count()
    }

    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        for (name, value) in self.entries(map) {
            visit(name, value);
        }
    }

    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        self.remove_header(map, name) && self.add_header(map, name, value)
    }

    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        let Some(list) = self.map(map) else {
            return false;
        };
        if !value.is_empty() {
            list.push((name.to_ascii_lowercase(), value.to_vec()));
        }
        true
    }

    fn remove_header(&mut self, map: HeaderMap, name: &[u8]) -> bool {
        let Some(list) = self.map(map) else {
            return false;
        };
        list.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
        true
    }

    fn buffer_len(&self, direction: Direction, buffer: BodyBuffer) -> usize {
        self.bytes(direction, buffer).len()
    }

    fn buffer_pieces(
        &self,
        direction: Direction,
        buffer: BodyBuffer,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        let bytes = self.bytes(direction, buffer);
        let (first, second) = bytes.split_at(bytes.len() / 2);
        visit(first);
        visit(second);
    }

    fn buffer_drain(&mut self, direction: Direction, buffer: BodyBuffer, length: usize) -> bool {
        match self.buffer(direction, buffer) {
            Some(bytes) if bytes.len() >= length => {
                bytes.drain(..length);
                true
            }
            _ => false,
        }
    }

    fn buffer_append(&mut self, direction: Direction, buffer: BodyBuffer, bytes: &[u8]) -> bool {
        match self.buffer(direction, buffer) {
            Some(old) => {
                old.extend_from_slice(bytes);
                true
            }
            // Envoy makes a buffer for what is held back, and none for what is received.
            None if buffer == BodyBuffer::Held => {
                *self.buffer(direction, buffer) = Some(bytes.to_vec());
                true
            }
            None => false,
        }
    }

    fn buffer_limit(&self) -> usize {
        self.limit
    }

    fn metadata(&self, _: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>> {
        self.metadata
            .get(&(namespace.to_vec(), key.to_vec()))
            .and_then(MetadataTree::scalar)
    }

    fn set_metadata(&mut self, namespace: &[u8], key: &[u8], value: Scalar<'_>) {
        self.set_metadata_tree(namespace, key, &value.into());
    }

    fn set_metadata_tree(&mut self, namespace: &[u8], key: &[u8], value: &MetadataTree) {
        let key = (namespace.to_vec(), key.to_vec());
        self.metadata.insert(key, value.clone());
    }

    fn metadata_list(
        &self,
        _: MetadataSource,
        _: &[u8],
        _: &[u8],
        _: &mut dyn FnMut(Scalar<'_>),
    ) -> bool {
        false
    }

    fn metadata_names(&self, _: MetadataSource, _: Option<&[u8]>, _: &mut dyn FnMut(&[u8])) {}

    fn filter_state(&self, key: &[u8]) -> Option<&[u8]> {
        self.filter_state.get(key).map(Vec::as_slice)
    }

    fn set_filter_state(
        &mut self,
        key: &[u8],
        value: &[u8],
        _: FilterStateKind,
    ) -> Result<(), FilterStateError> {
        self.filter_state.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn attribute(&self, attribute: Attribute) -> Option<Scalar<'_>> {
        self.attributes
            .get(&attribute)
            .map(|text| Scalar::String(text.as_bytes()))
    }

    fn timing(&self) -> Timing {
        Timing::default()
    }

    fn response_code(&self) -> Option<u16> {
        None
    }

    fn clear_route_cache(&mut self) {
        self.routed += 1;
    }

    fn route_chain(&self) -> Option<Arc<Chain>> {
        self.route.clone()
    }

    fn set_upstream_override_host(&mut self, _: &[u8], _: OverrideHostFallback) -> bool {
        true
    }

    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure> {
        self.callouts.push(crate::own_headers(request.headers));
        Ok(CalloutId(self.id()))
    }

    fn start_http_stream(
        &mut self,
        request: &HttpStreamRequest<'_>,
    ) -> Result<HttpStreamId, CalloutFailure> {
        self.callouts.push(crate::own_headers(request.headers));
        Ok(HttpStreamId(self.id()))
    }

    fn send_http_stream_data(&mut self, _: HttpStreamId, _: &[u8], _: bool) -> bool {
        true
    }

    fn send_http_stream_trailers(&mut self, _: HttpStreamId, _: &[(&[u8], &[u8])]) -> bool {
        true
    }

    fn start_timer(&mut self, delay: Duration) -> Option<u64> {
        let id = self.id();
        let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.timers.insert(id, self.nanos.saturating_add(delay));
        Some(id)
    }

    fn cancel(&mut self, id: WakeId) {
        if let WakeId::Timer(id) = id {
            self.timers.remove(&id);
        }
    }

    fn add_metric(&mut self, metric: MetricId, amount: i64) {
        *self.metrics.entry(u64::from(metric.0)).or_default() += amount;
    }

    fn record_metric(&mut self, _: MetricId, _: u64) {}

    fn metric(&self, _: MetricId) -> Option<u64> {
        None
    }

    fn log_enabled(&self, _: LogLevel) -> bool {
        true
    }

    fn log(&self, _: LogLevel, plugin: &str, message: &str) {
        self.logs.borrow_mut().push(format!("{plugin}: {message}"));
    }

    fn unix_millis(&self) -> u64 {
        1_700_000_000_000 + self.nanos / 1_000_000
    }

    fn start_unix_millis(&self) -> u64 {
        1_700_000_000_000
    }

    fn monotonic_nanos(&self) -> u64 {
        self.nanos
    }

    fn report_fault(&mut self, link: &Link, phase: Phase, fault: &Fault) {
        self.faults
            .push((link.name.to_string(), phase, fault.clone()));
    }
}
