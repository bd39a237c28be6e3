//! A [`Host`] without a proxy: everything that Envoy would keep for one stream, in plain fields that
//! a test reads and writes.
//!
//! The traps are Envoy's: a buffer that it would not have is `None`, and changing it fails, where an
//! empty buffer is something else; setting a header to empty text removes it, adding empty text does nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Attribute, BodyBuffer, CalloutFailure, CalloutId, CalloutRequest, Cause, Chain, Direction,
    Fault, FilterStateError, FilterStateKind, HeaderMap, Host, HttpStreamId, HttpStreamRequest,
    Link, LogLevel, MetadataSource, MetadataTree, MetricId, OverrideHostFallback, Phase, Scalar,
    Timing, WakeId,
};

use crate::clock;
use crate::headers::Headers;

/// When a fake clock begins: a moment in November 2023.
pub const CLOCK_START_MS: u64 = 1_700_000_000_000;

/// A line of a plugin in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// How grave.
    pub level: LogLevel,
    /// Whose.
    pub plugin: String,
    /// What it says.
    pub message: String,
}

/// A plugin's failure, as the chain reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedFault {
    /// Whose.
    pub plugin: String,
    /// At which point.
    pub phase: Phase,
    /// Why.
    pub cause: Cause,
    /// What it says.
    pub message: String,
}

/// A callout that a plugin made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeCallout {
    /// The upstream's name.
    pub upstream: String,
    /// Headers, pseudo headers included.
    pub headers: Headers,
    /// Body; of one that streams all of it, joined.
    pub body: Vec<u8>,
    /// Trailers of one that streams.
    pub trailers: Option<Headers>,
    /// How long it waits; none: as long as the stream.
    pub timeout: Option<Duration>,
}

/// The response to a callout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CalloutAnswer {
    /// Headers, `:status` included.
    pub headers: Headers,
    /// Body, in pieces.
    pub body: Vec<Vec<u8>>,
    /// Trailers, which only a streaming callout sees.
    pub trailers: Option<Headers>,
    /// The time between two pieces, for a streaming callout; another has all of it with the last.
    pub every: Duration,
    /// It breaks off after the last piece.
    pub breaks: Option<CalloutFailure>,
}

/// What a scripted callout gets, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptedAnswer {
    /// How long it takes; a [`CalloutFailure::Timeout`] takes the callout's own time.
    pub after: Duration,
    /// What comes.
    pub answer: Result<CalloutAnswer, CalloutFailure>,
}

/// Something that a plugin waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Callout(CalloutId, Result<CalloutAnswer, CalloutFailure>),
    HttpStream(HttpStreamId, StreamPart),
    Timer(u64),
}

impl Event {
    fn id(&self) -> WakeId {
        match self {
            Self::Callout(id, _) => WakeId::Callout(*id),
            Self::HttpStream(id, _) => WakeId::HttpStream(*id),
            Self::Timer(id) => WakeId::Timer(*id),
        }
    }
}

/// What comes on an HTTP stream; see [`outrider_plugin_api::HttpStreamEvent`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamPart {
    Headers(Headers, bool),
    Data(Vec<u8>, bool),
    Trailers(Headers),
    Complete,
    Failed(CalloutFailure),
}

/// A value of metadata or of an attribute, as it is kept.
pub type Metadata = MetadataTree;

/// What is true of a stream of which a case says nothing: plaintext HTTP/1.1 from this machine.
fn default_attributes() -> BTreeMap<Attribute, Metadata> {
    [
        (Attribute::SourceAddress, "127.0.0.1:50000".into()),
        (Attribute::SourcePort, 50_000.0.into()),
        (Attribute::SourceDirectAddress, "127.0.0.1:50000".into()),
        (Attribute::DestinationAddress, "127.0.0.1:10000".into()),
        (Attribute::DestinationPort, 10_000.0.into()),
        (Attribute::ConnectionId, 1.0.into()),
        (Attribute::RequestProtocol, "HTTP/1.1".into()),
        (Attribute::XdsRouteName, "route-0".into()),
        (Attribute::XdsClusterName, "upstream".into()),
        (Attribute::HealthCheck, false.into()),
    ]
    .into()
}

/// Metadata by namespace and key.
pub type MetadataMap = BTreeMap<(Vec<u8>, Vec<u8>), Metadata>;

/// The bodies of one direction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buffers {
    /// What was held back; there from the first chunk that is held back until it goes on.
    pub held: Option<Vec<u8>>,
    /// The chunk of the current body call.
    pub received: Option<Vec<u8>>,
}

/// One stream.
#[derive(Debug)]
pub struct ScriptedHost {
    /// The worker that serves it.
    pub worker: usize,
    /// Request headers.
    pub request_headers: Option<Headers>,
    /// Request trailers.
    pub request_trailers: Option<Headers>,
    /// Response headers.
    pub response_headers: Option<Headers>,
    /// Response trailers.
    pub response_trailers: Option<Headers>,
    /// The request's body.
    pub request_body: Buffers,
    /// The response's body.
    pub response_body: Buffers,
    /// How many bytes are held back at most; 0: no limit.
    pub body_limit: usize,
    /// The route's metadata.
    pub route_metadata: MetadataMap,
    /// The stream's own.
    pub dynamic_metadata: MetadataMap,
    /// That of the upstream, of its endpoint, and of the endpoint's locality.
    pub upstream_metadata: BTreeMap<MetadataSource, MetadataMap>,
    /// Objects of the filter state by key.
    pub filter_state: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The keys of the filter state of which the proxy makes objects of its own.
    pub typed_filter_state: Vec<Vec<u8>>,
    /// The upstream's endpoint that a plugin chose.
    pub override_host: Option<(Vec<u8>, OverrideHostFallback)>,
    /// Facts.
    pub attributes: BTreeMap<Attribute, Metadata>,
    /// When what happened.
    pub timing: Timing,
    /// How often the route was to be chosen anew.
    pub route_cache_clearings: usize,
    /// Answers to callouts, in the order in which they will be made.
    pub answers: VecDeque<ScriptedAnswer>,
    /// Callouts that were made, in order.
    pub callouts: Vec<MadeCallout>,
    /// Values of metrics: sums of counters and gauges, last values of histograms.
    pub metrics: BTreeMap<MetricId, i64>,
    /// What plugins logged.
    pub log: RefCell<Vec<LogLine>>,
    /// What plugins failed with.
    pub faults: Vec<ReportedFault>,
    /// Time since the clock began.
    pub elapsed: Duration,
    started: Duration,
    /// By time, and for the same time by order.
    events: BTreeMap<(Duration, u64), Event>,
    last_event: u64,
    /// HTTP streams that are not over, with the place of each among the callouts.
    open_streams: BTreeMap<HttpStreamId, usize>,
}

impl Default for ScriptedHost {
    fn default() -> Self {
        clock::set(Duration::ZERO);
        Self {
            worker: 0,
            request_headers: None,
            request_trailers: None,
            response_headers: None,
            response_trailers: None,
            request_body: Buffers::default(),
            response_body: Buffers::default(),
            body_limit: 1024 * 1024,
            route_metadata: MetadataMap::new(),
            dynamic_metadata: MetadataMap::new(),
            upstream_metadata: BTreeMap::new(),
            filter_state: BTreeMap::new(),
            typed_filter_state: Vec::new(),
            override_host: None,
            attributes: default_attributes(),
            timing: Timing::default(),
            route_cache_clearings: 0,
            answers: VecDeque::new(),
            callouts: Vec::new(),
            metrics: BTreeMap::new(),
            log: RefCell::default(),
            faults: Vec::new(),
            elapsed: Duration::ZERO,
            started: Duration::ZERO,
            events: BTreeMap::new(),
            last_event: 0,
            open_streams: BTreeMap::new(),
        }
    }
}

impl ScriptedHost {
    /// A stream that begins when the clock has run for `elapsed`.
    pub fn starting_at(elapsed: Duration) -> Self {
        let host = Self {
            elapsed,
            started: elapsed,
            ..Self::default()
        };
        clock::set(elapsed);
        host
    }

    /// How long the stream has lasted.
    pub fn age(&self) -> Duration {
        self.elapsed.saturating_sub(self.started)
    }

    /// The headers or trailers of a map.
    pub fn map(&self, map: HeaderMap) -> Option<&Headers> {
        match map {
            HeaderMap::RequestHeaders => self.request_headers.as_ref(),
            HeaderMap::RequestTrailers => self.request_trailers.as_ref(),
            HeaderMap::ResponseHeaders => self.response_headers.as_ref(),
            HeaderMap::ResponseTrailers => self.response_trailers.as_ref(),
        }
    }

    /// The same, to be changed; also where there is none yet.
    pub fn map_slot(&mut self, map: HeaderMap) -> &mut Option<Headers> {
        match map {
            HeaderMap::RequestHeaders => &mut self.request_headers,
            HeaderMap::RequestTrailers => &mut self.request_trailers,
            HeaderMap::ResponseHeaders => &mut self.response_headers,
            HeaderMap::ResponseTrailers => &mut self.response_trailers,
        }
    }

    /// The bodies of a direction.
    pub fn buffers(&mut self, direction: Direction) -> &mut Buffers {
        match direction {
            Direction::Request => &mut self.request_body,
            Direction::Response => &mut self.response_body,
        }
    }

    fn buffer(&self, direction: Direction, buffer: BodyBuffer) -> Option<&Vec<u8>> {
        let buffers = match direction {
            Direction::Request => &self.request_body,
            Direction::Response => &self.response_body,
        };
        match buffer {
            BodyBuffer::Held => buffers.held.as_ref(),
            BodyBuffer::Received => buffers.received.as_ref(),
        }
    }

    fn buffer_mut(&mut self, direction: Direction, buffer: BodyBuffer) -> Option<&mut Vec<u8>> {
        let buffers = self.buffers(direction);
        match buffer {
            BodyBuffer::Held => buffers.held.as_mut(),
            BodyBuffer::Received => buffers.received.as_mut(),
        }
    }

    fn metadata_map(&self, source: MetadataSource) -> Option<&MetadataMap> {
        match source {
            MetadataSource::Dynamic => Some(&self.dynamic_metadata),
            MetadataSource::Route => Some(&self.route_metadata),
            MetadataSource::Cluster | MetadataSource::Host | MetadataSource::Locality => {
                self.upstream_metadata.get(&source)
            }
        }
    }

    /// Sets a fact.
    pub fn set_attribute(&mut self, attribute: Attribute, value: impl Into<Metadata>) {
        self.attributes.insert(attribute, value.into());
    }

    /// The value of a metric; 0 where nothing was counted.
    pub fn metric_value(&self, metric: Option<MetricId>) -> i64 {
        metric
            .and_then(|metric| self.metrics.get(&metric).copied())
            .unwrap_or_default()
    }

    fn schedule(&mut self, after: Duration, event: impl FnOnce(u64) -> Event) -> u64 {
        self.last_event += 1;
        let id = self.last_event;
        self.events.insert((self.elapsed + after, id), event(id));
        id
    }

    /// Notes a callout down, and takes the answer that the script has for it.
    fn ask(
        &mut self,
        cluster: &[u8],
        headers: &[(&[u8], &[u8])],
        body: &[u8],
        timeout: Option<Duration>,
    ) -> Result<ScriptedAnswer, CalloutFailure> {
        let mut map = Headers::new();
        for (name, value) in headers {
            map.add(name, value);
        }
        let complete = [":method", ":path", ":authority"]
            .iter()
            .all(|name| map.get(name.as_bytes()).is_some());
        self.callouts.push(MadeCallout {
            upstream: String::from_utf8_lossy(cluster).into_owned(),
            headers: map,
            body: body.to_vec(),
            trailers: None,
            timeout,
        });
        let scripted = self.answers.pop_front();
        if !complete {
            return Err(CalloutFailure::MissingHeaders);
        }
        // Nobody there whom the script does not name.
        let scripted = scripted.ok_or(CalloutFailure::ClusterNotFound)?;
        match scripted.answer {
            Err(
                failure @ (CalloutFailure::ClusterNotFound
                | CalloutFailure::MissingHeaders
                | CalloutFailure::StreamOver),
            ) => Err(failure),
            _ => Ok(scripted),
        }
    }

    /// Schedules what the script has for an HTTP stream, up to its timeout.
    fn schedule_stream(&mut self, scripted: ScriptedAnswer, timeout: Option<Duration>) -> u64 {
        let ScriptedAnswer { after, answer } = scripted;
        let mut parts = Vec::new();
        match answer {
            Err(CalloutFailure::Timeout) => {}
            Err(failure) => parts.push((after, StreamPart::Failed(failure))),
            Ok(answer) => {
                let mut at = after;
                let ends = answer.trailers.is_none() && answer.breaks.is_none();
                let count = answer.body.len();
                parts.push((at, StreamPart::Headers(answer.headers, ends && count == 0)));
                for (index, piece) in answer.body.into_iter().enumerate() {
                    if index > 0 {
                        at += answer.every;
                    }
                    parts.push((at, StreamPart::Data(piece, ends && index + 1 == count)));
                }
                match (answer.breaks, answer.trailers) {
                    (Some(failure), _) => {
                        at += answer.every;
                        parts.push((at, StreamPart::Failed(failure)));
                    }
                    (None, trailers) => {
                        parts.extend(trailers.map(|map| (at, StreamPart::Trailers(map))));
                        parts.push((at, StreamPart::Complete));
                    }
                }
            }
        }
        if let Some(timeout) = timeout
            && parts.last().is_none_or(|(at, _)| *at >= timeout)
        {
            parts.retain(|(at, _)| *at < timeout);
            parts.push((timeout, StreamPart::Failed(CalloutFailure::Timeout)));
        }
        self.last_event += 1;
        let id = self.last_event;
        for (at, part) in parts {
            self.schedule(at, |_| Event::HttpStream(HttpStreamId(id), part));
        }
        id
    }

    /// The next thing that happens, with the clock put forward to it.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        let ((at, _), event) = self.events.pop_first()?;
        self.elapsed = self.elapsed.max(at);
        clock::set(self.elapsed);
        if let Event::HttpStream(id, StreamPart::Complete | StreamPart::Failed(_)) = &event {
            self.open_streams.remove(id);
        }
        Some(event)
    }
}

impl Host for ScriptedHost {
    fn worker(&self) -> usize {
        self.worker
    }

    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        self.map(map)?.values(name).nth(index)
    }

    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize {
        self.map(map)
            .map_or(0, |headers| headers.values(name).count())
    }

    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        for (name, value) in self.map(map).iter().flat_map(|headers| headers.iter()) {
            visit(name, value);
        }
    }

    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        if value.is_empty() {
            return self.remove_header(map, name);
        }
        self.map_slot(map)
            .as_mut()
            .map(|headers| headers.set(name, value))
            .is_some()
    }

    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        let map = self.map_slot(map).as_mut();
        if value.is_empty() {
            return map.is_some();
        }
        map.map(|headers| headers.add(name, value)).is_some()
    }

    fn remove_header(&mut self, map: HeaderMap, name: &[u8]) -> bool {
        self.map_slot(map)
            .as_mut()
            .map(|headers| headers.remove(name))
            .is_some()
    }

    fn buffer_len(&self, direction: Direction, buffer: BodyBuffer) -> usize {
        self.buffer(direction, buffer).map_or(0, Vec::len)
    }

    fn buffer_pieces(
        &self,
        direction: Direction,
        buffer: BodyBuffer,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        // Envoy's buffers come in slices; pieces this small find whoever counts on one.
        const PIECE: usize = 7;
        for piece in self
            .buffer(direction, buffer)
            .into_iter()
            .flat_map(|bytes| bytes.chunks(PIECE))
        {
            visit(piece);
        }
    }

    fn buffer_drain(&mut self, direction: Direction, buffer: BodyBuffer, length: usize) -> bool {
        match self.buffer_mut(direction, buffer) {
            Some(bytes) => {
                bytes.drain(..length.min(bytes.len()));
                true
            }
            None => false,
        }
    }

    fn buffer_append(&mut self, direction: Direction, buffer: BodyBuffer, bytes: &[u8]) -> bool {
        self.buffer_mut(direction, buffer)
            .map(|buffer| buffer.extend_from_slice(bytes))
            .is_some()
    }

    fn buffer_limit(&self) -> usize {
        self.body_limit
    }

    fn metadata(&self, source: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>> {
        self.metadata_map(source)?
            .get(&(namespace.to_vec(), key.to_vec()))?
            .scalar()
    }

    fn set_metadata(&mut self, namespace: &[u8], key: &[u8], value: Scalar<'_>) {
        self.dynamic_metadata
            .insert((namespace.to_vec(), key.to_vec()), value.into());
    }

    fn attribute(&self, attribute: Attribute) -> Option<Scalar<'_>> {
        self.attributes.get(&attribute)?.scalar()
    }

    fn timing(&self) -> Timing {
        self.timing
    }

    fn response_code(&self) -> Option<u16> {
        let status = self.response_headers.as_ref()?.get(b":status")?;
        std::str::from_utf8(status).ok()?.parse().ok()
    }

    fn set_metadata_tree(&mut self, namespace: &[u8], key: &[u8], value: &MetadataTree) {
        self.dynamic_metadata
            .insert((namespace.to_vec(), key.to_vec()), value.clone());
    }

    fn metadata_list(
        &self,
        source: MetadataSource,
        namespace: &[u8],
        key: &[u8],
        visit: &mut dyn FnMut(Scalar<'_>),
    ) -> bool {
        let place = (namespace.to_vec(), key.to_vec());
        let Some(Metadata::List(values)) = self
            .metadata_map(source)
            .and_then(|metadata| metadata.get(&place))
        else {
            return false;
        };
        values.iter().filter_map(Metadata::scalar).for_each(visit);
        true
    }

    fn metadata_names(
        &self,
        source: MetadataSource,
        namespace: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        let mut last = None;
        for (space, key) in self
            .metadata_map(source)
            .into_iter()
            .flat_map(BTreeMap::keys)
        {
            match namespace {
                Some(namespace) if namespace == space => visit(key),
                None if last != Some(space) => visit(space),
                _ => {}
            }
            last = Some(space);
        }
    }

    fn filter_state(&self, key: &[u8]) -> Option<&[u8]> {
        self.filter_state.get(key).map(Vec::as_slice)
    }

    fn set_filter_state(
        &mut self,
        key: &[u8],
        value: &[u8],
        kind: FilterStateKind,
    ) -> Result<(), FilterStateError> {
        if self.filter_state.contains_key(key) {
            return Err(FilterStateError::Taken);
        }
        let known = || self.typed_filter_state.iter().any(|known| known == key);
        if kind == FilterStateKind::Typed && !known() {
            return Err(FilterStateError::Unknown);
        }
        self.filter_state.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn set_upstream_override_host(&mut self, host: &[u8], otherwise: OverrideHostFallback) -> bool {
        // As in Envoy, an address may come without a port.
        let is_address = std::str::from_utf8(host)
            .is_ok_and(|host| host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok());
        if is_address {
            self.override_host = Some((host.to_vec(), otherwise));
        }
        is_address
    }

    fn clear_route_cache(&mut self) {
        self.route_cache_clearings += 1;
    }

    /// There is but one route.
    fn route_chain(&self) -> Option<Arc<Chain>> {
        None
    }

    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure> {
        let timeout = request.timeout;
        let ScriptedAnswer { mut after, answer } =
            self.ask(request.cluster, request.headers, request.body, timeout)?;
        let answer = answer.and_then(|answer| {
            // It is there when its last piece is.
            let pauses = u32::try_from(answer.body.len().saturating_sub(1)).unwrap_or(u32::MAX);
            after += answer.every * pauses;
            answer.breaks.map_or(Ok(answer), Err)
        });
        let (after, answer) = match answer {
            Err(CalloutFailure::Timeout) => (timeout.unwrap_or(after), answer),
            _ => match timeout.filter(|timeout| after >= *timeout) {
                Some(timeout) => (timeout, Err(CalloutFailure::Timeout)),
                None => (after, answer),
            },
        };
        let id = self.schedule(after, |id| Event::Callout(CalloutId(id), answer));
        Ok(CalloutId(id))
    }

    fn start_http_stream(
        &mut self,
        request: &HttpStreamRequest<'_>,
    ) -> Result<HttpStreamId, CalloutFailure> {
        let scripted = self.ask(
            request.cluster,
            request.headers,
            request.body,
            request.timeout,
        )?;
        let id = HttpStreamId(self.schedule_stream(scripted, request.timeout));
        self.open_streams.insert(id, self.callouts.len() - 1);
        Ok(id)
    }

    fn send_http_stream_data(
        &mut self,
        id: HttpStreamId,
        data: &[u8],
        _end_of_stream: bool,
    ) -> bool {
        let made = self.open_streams.get(&id).copied();
        match made.and_then(|index| self.callouts.get_mut(index)) {
            Some(made) => {
                made.body.extend_from_slice(data);
                true
            }
            None => false,
        }
    }

    fn send_http_stream_trailers(&mut self, id: HttpStreamId, trailers: &[(&[u8], &[u8])]) -> bool {
        let made = self.open_streams.get(&id).copied();
        match made.and_then(|index| self.callouts.get_mut(index)) {
            Some(made) => {
                let map = made.trailers.insert(Headers::new());
                for (name, value) in trailers {
                    map.add(name, value);
                }
                true
            }
            None => false,
        }
    }

    fn start_timer(&mut self, delay: Duration) -> Option<u64> {
        Some(self.schedule(delay, Event::Timer))
    }

    fn cancel(&mut self, id: WakeId) {
        self.events.retain(|_, event| event.id() != id);
        if let WakeId::HttpStream(id) = id {
            self.open_streams.remove(&id);
        }
    }

    fn add_metric(&mut self, metric: MetricId, amount: i64) {
        *self.metrics.entry(metric).or_default() += amount;
    }

    fn record_metric(&mut self, metric: MetricId, value: u64) {
        self.metrics
            .insert(metric, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn metric(&self, metric: MetricId) -> Option<u64> {
        u64::try_from(self.metrics.get(&metric).copied().unwrap_or_default()).ok()
    }

    fn log_enabled(&self, _level: LogLevel) -> bool {
        true
    }

    fn log(&self, level: LogLevel, plugin: &str, message: &str) {
        self.log.borrow_mut().push(LogLine {
            level,
            plugin: plugin.to_owned(),
            message: message.to_owned(),
        });
    }

    fn unix_millis(&self) -> u64 {
        CLOCK_START_MS + u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX)
    }

    fn monotonic_nanos(&self) -> u64 {
        u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX)
    }

    fn start_unix_millis(&self) -> u64 {
        CLOCK_START_MS + u64::try_from(self.started.as_millis()).unwrap_or(u64::MAX)
    }

    fn report_fault(&mut self, link: &Link, phase: Phase, fault: &Fault) {
        self.faults.push(ReportedFault {
            plugin: link.name.to_string(),
            phase,
            cause: fault.cause,
            message: fault.message.clone(),
        });
    }
}
