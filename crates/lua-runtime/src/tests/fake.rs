//! A stream in plain fields, and short ways to load and call a plugin.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::framing::check_sendable;
use outrider_plugin_api::{
    Attribute, BodyError, BodyMode, Call, CalloutFailure, CalloutId, CalloutRequest,
    ConfiguredPlugin, Decision, Direction, Fault, FilterStateError, FilterStateKind, HeaderError,
    HeaderMap, HttpStreamId, HttpStreamRequest, LoadError, LogLevel, MetadataError, MetadataSource,
    MetadataTree, MetricId, MetricKind, Metrics, OverrideHostError, OverrideHostFallback, Phase,
    Plugin, Scalar, ScopedConfig, Slot, Stream, Timing, Wake, WakeId,
};

use crate::LuaSource;

pub(super) type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// A callout as the stream was asked for it: upstream, headers, body, timeout.
pub(super) type Asked = (String, Vec<(String, String)>, String, Duration);

pub(super) type Metadata = MetadataTree;

#[expect(clippy::struct_excessive_bools, reason = "switches of a test")]
#[derive(Debug, Default)]
pub(super) struct FakeStream {
    pub(super) worker: usize,
    pub(super) maps: BTreeMap<HeaderMap, Headers>,
    pub(super) request_body: Option<Vec<Vec<u8>>>,
    pub(super) response_body: Option<Vec<Vec<u8>>>,
    pub(super) length_announced: bool,
    pub(super) route_metadata: BTreeMap<(String, String), Metadata>,
    pub(super) metadata: BTreeMap<(String, String), Metadata>,
    pub(super) filter_state: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) override_host: Option<(String, OverrideHostFallback)>,
    pub(super) callouts: Vec<Asked>,
    pub(super) refuse_callouts: Option<CalloutFailure>,
    pub(super) timers: Vec<Duration>,
    /// What was sent on HTTP streams.
    pub(super) sent: Vec<(u64, String)>,
    pub(super) cancelled: Vec<WakeId>,
    pub(super) metrics: BTreeMap<u32, u64>,
    pub(super) route_cleared: usize,
    pub(super) logs: RefCell<Vec<(LogLevel, String)>>,
    pub(super) debug: bool,
    /// The connection is one of TLS, with a client's certificate.
    pub(super) tls: bool,
    /// Has the runtime panic where it asks whether a level is logged.
    pub(super) panics: bool,
    /// Since when the clock runs; none: it stands.
    pub(super) clock: Option<std::time::Instant>,
    /// How long the thread spins in each look at a header.
    pub(super) spins: Duration,
    /// How far on the clock is, in milliseconds.
    pub(super) offset: u64,
}

impl FakeStream {
    pub(super) fn new() -> Self {
        let pairs = |list: &[(&str, &str)]| {
            list.iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect::<Headers>()
        };
        let request = pairs(&[
            (":method", "GET"),
            (":path", "/cart?item=a%20b&item=2&flag"),
            (":authority", "shop.example.com"),
            ("x-one", "1"),
            ("x-two", "first"),
            ("x-two", "second"),
        ]);
        let response = pairs(&[(":status", "200"), ("server", "upstream")]);
        let maps = [
            (HeaderMap::RequestHeaders, request),
            (HeaderMap::ResponseHeaders, response),
            (HeaderMap::RequestTrailers, pairs(&[("t", "1")])),
        ];
        Self {
            maps: maps.into_iter().collect(),
            ..Self::default()
        }
    }

    pub(super) fn get(&self, map: HeaderMap, name: &str) -> Option<String> {
        self.header(map, name.as_bytes(), 0)
            .map(|value| String::from_utf8_lossy(value).into_owned())
    }

    pub(super) fn logged(&self) -> Vec<String> {
        self.logs
            .borrow()
            .iter()
            .map(|(_, line)| line.clone())
            .collect()
    }

    fn metadata_of(&self, source: MetadataSource) -> &BTreeMap<(String, String), Metadata> {
        match source {
            MetadataSource::Dynamic => &self.metadata,
            _ => &self.route_metadata,
        }
    }

    fn body(&self, direction: Direction) -> Option<&Vec<Vec<u8>>> {
        match direction {
            Direction::Request => self.request_body.as_ref(),
            Direction::Response => self.response_body.as_ref(),
        }
    }
}

fn place(namespace: &[u8], key: &[u8]) -> (String, String) {
    (
        String::from_utf8_lossy(namespace).into_owned(),
        String::from_utf8_lossy(key).into_owned(),
    )
}

impl Stream for FakeStream {
    fn worker(&self) -> usize {
        self.worker
    }

    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        if !self.spins.is_zero() {
            let began = std::time::Instant::now();
            while began.elapsed() < self.spins {
                std::hint::spin_loop();
            }
        }
        self.maps
            .get(&map)?
            .iter()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .nth(index)
            .map(|(_, value)| value.as_slice())
    }

    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize {
        let pairs = self.maps.get(&map).into_iter().flatten();
        pairs
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .count()
    }

    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        for (name, value) in self.maps.get(&map).into_iter().flatten() {
            visit(name, value);
        }
    }

    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        check_sendable(name, value)?;
        self.remove_header(map, name)?;
        self.add_header(map, name, value)
    }

    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        check_sendable(name, value)?;
        let Some(pairs) = self.maps.get_mut(&map) else {
            return Err(HeaderError::Absent);
        };
        pairs.push((name.to_vec(), value.to_vec()));
        Ok(())
    }

    fn remove_header(&mut self, map: HeaderMap, name: &[u8]) -> Result<(), HeaderError> {
        let Some(pairs) = self.maps.get_mut(&map) else {
            return Err(HeaderError::Absent);
        };
        pairs.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
        Ok(())
    }

    fn body_len(&self, direction: Direction) -> Option<usize> {
        self.body(direction)
            .map(|pieces| pieces.iter().map(Vec::len).sum())
    }

    fn body_pieces(&self, direction: Direction, visit: &mut dyn FnMut(&[u8])) {
        for piece in self.body(direction).into_iter().flatten() {
            visit(piece);
        }
    }

    fn splice_body(
        &mut self,
        direction: Direction,
        part: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BodyError> {
        let mut whole = self.body(direction).ok_or(BodyError::NoBody)?.concat();
        if self.length_announced {
            return Err(BodyError::LengthAnnounced);
        }
        let end = part.end.min(whole.len());
        whole.splice(part.start.min(end)..end, bytes.iter().copied());
        let pieces = Some(vec![whole]);
        match direction {
            Direction::Request => self.request_body = pieces,
            Direction::Response => self.response_body = pieces,
        }
        Ok(())
    }

    fn metadata(&self, source: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>> {
        self.metadata_of(source)
            .get(&place(namespace, key))?
            .scalar()
    }

    fn set_metadata(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: Scalar<'_>,
    ) -> Result<(), MetadataError> {
        self.metadata.insert(place(namespace, key), value.into());
        Ok(())
    }

    fn set_metadata_tree(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: &Metadata,
    ) -> Result<(), MetadataError> {
        self.metadata.insert(place(namespace, key), value.clone());
        Ok(())
    }

    fn metadata_list(
        &self,
        source: MetadataSource,
        namespace: &[u8],
        key: &[u8],
        visit: &mut dyn FnMut(Scalar<'_>),
    ) -> bool {
        match self.metadata_of(source).get(&place(namespace, key)) {
            Some(Metadata::List(values)) => {
                values.iter().filter_map(Metadata::scalar).for_each(visit);
                true
            }
            _ => false,
        }
    }

    fn metadata_names(
        &self,
        source: MetadataSource,
        namespace: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        for (space, key) in self.metadata_of(source).keys() {
            match namespace {
                Some(namespace) if namespace == space.as_bytes() => visit(key.as_bytes()),
                Some(_) => {}
                None => visit(space.as_bytes()),
            }
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
        if kind == FilterStateKind::Typed && !key.starts_with(b"envoy.") {
            return Err(FilterStateError::Unknown);
        }
        if self.filter_state.contains_key(key) {
            return Err(FilterStateError::Taken);
        }
        self.filter_state.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn set_upstream_override_host(
        &mut self,
        host: &[u8],
        otherwise: OverrideHostFallback,
    ) -> Result<(), OverrideHostError> {
        if host.contains(&b'x') {
            return Err(OverrideHostError::NoAddress);
        }
        self.override_host = Some((String::from_utf8_lossy(host).into_owned(), otherwise));
        Ok(())
    }

    fn attribute(&self, attribute: Attribute) -> Option<Scalar<'_>> {
        if attribute.follows_from_headers() {
            return attribute.of_headers(|map, name| self.header(map, name, 0));
        }
        Some(match attribute {
            Attribute::SourceAddress | Attribute::SourceDirectAddress => {
                Scalar::String(b"10.0.0.9:4711")
            }
            Attribute::SourcePort => Scalar::Number(4711.0),
            Attribute::DestinationAddress => Scalar::String(b"10.0.0.1:443"),
            Attribute::XdsClusterName => Scalar::String(b"shop-v1"),
            Attribute::XdsRouteName => Scalar::String(b"cart"),
            Attribute::RequestProtocol => Scalar::String(b"HTTP/2"),
            Attribute::RequestId => Scalar::String(b"4c0f"),
            Attribute::ResponseCode => Scalar::Number(200.0),
            Attribute::HealthCheck => Scalar::Bool(false),
            other => match self.tls.then_some(other)? {
                Attribute::ConnectionMtls => Scalar::Bool(true),
                Attribute::ConnectionTlsVersion => Scalar::String(b"TLSv1.3"),
                Attribute::ConnectionRequestedServerName
                | Attribute::ConnectionDnsSanLocalCertificate => {
                    Scalar::String(b"shop.example.com")
                }
                Attribute::ConnectionSubjectPeerCertificate => Scalar::String(b"CN=client"),
                Attribute::ConnectionUriSanPeerCertificate => Scalar::String(b"spiffe://shop/cart"),
                Attribute::ConnectionDnsSanPeerCertificate => Scalar::String(b"client.example.com"),
                Attribute::ConnectionSha256PeerCertificateDigest => Scalar::String(b"ab01"),
                Attribute::ConnectionSubjectLocalCertificate => Scalar::String(b"CN=shop"),
                _ => return None,
            },
        })
    }

    fn timing(&self) -> Timing {
        Timing {
            first_upstream_sent: Some(Duration::from_millis(2)),
            first_upstream_received: Some(Duration::from_micros(7500)),
            ..Timing::default()
        }
    }

    fn response_code(&self) -> Option<u16> {
        Some(200)
    }

    fn clear_route_cache(&mut self) -> bool {
        self.route_cleared += 1;
        true
    }

    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure> {
        if let Some(failure) = self.refuse_callouts {
            return Err(failure);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut headers: Vec<_> = request
            .headers
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect();
        headers.sort();
        self.callouts.push((
            text(request.cluster),
            headers,
            text(request.body),
            request.timeout.unwrap_or_default(),
        ));
        Ok(CalloutId(self.callouts.len() as u64))
    }

    fn start_timer(&mut self, delay: Duration) -> Result<u64, CalloutFailure> {
        if let Some(failure) = self.refuse_callouts {
            return Err(failure);
        }
        self.timers.push(delay);
        Ok(self.timers.len() as u64)
    }

    fn start_http_stream(
        &mut self,
        request: &HttpStreamRequest<'_>,
    ) -> Result<HttpStreamId, CalloutFailure> {
        let started = self.start_callout(&CalloutRequest {
            cluster: request.cluster,
            headers: request.headers,
            body: request.body,
            timeout: request.timeout,
        })?;
        if request.end_of_stream {
            self.sent.push((started.0, "end".to_owned()));
        }
        Ok(HttpStreamId(started.0))
    }

    fn send_http_stream_data(
        &mut self,
        id: HttpStreamId,
        data: &[u8],
        end_of_stream: bool,
    ) -> Result<(), CalloutFailure> {
        if let Some(failure) = self.refuse_callouts {
            return Err(failure);
        }
        self.sent
            .push((id.0, String::from_utf8_lossy(data).into_owned()));
        if end_of_stream {
            self.sent.push((id.0, "end".to_owned()));
        }
        Ok(())
    }

    fn send_http_stream_trailers(
        &mut self,
        id: HttpStreamId,
        trailers: &[(&[u8], &[u8])],
    ) -> Result<(), CalloutFailure> {
        self.sent
            .push((id.0, format!("{} trailers", trailers.len())));
        Ok(())
    }

    fn cancel(&mut self, id: WakeId) {
        self.cancelled.push(id);
    }

    fn add_metric(&mut self, metric: MetricId, amount: i64) {
        let value = self.metrics.entry(metric.0).or_default();
        *value = value.saturating_add_signed(amount);
    }

    fn record_metric(&mut self, metric: MetricId, value: u64) {
        self.metrics.insert(metric.0, value);
    }

    fn metric(&self, metric: MetricId) -> Option<u64> {
        self.metrics.get(&metric.0).copied()
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        assert!(!self.panics, "as it was told to");
        self.debug || level > LogLevel::Debug
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.logs.borrow_mut().push((level, message.to_owned()));
    }

    fn unix_millis(&self) -> u64 {
        let since = self
            .clock
            .map_or(500, |clock| clock.elapsed().as_millis() as u64);
        1_700_000_000_000 + since + self.offset
    }

    fn start_unix_millis(&self) -> u64 {
        1_700_000_000_000
    }
}

/// Metrics by kind and name; the id is the place.
#[derive(Debug, Default)]
pub(super) struct FakeMetrics(
    pub(super) Vec<(MetricKind, String)>,
    pub(super) Vec<(LogLevel, String)>,
);

impl Metrics for FakeMetrics {
    fn define(&mut self, kind: MetricKind, name: &str) -> Option<MetricId> {
        if let Some(place) = self.0.iter().position(|(_, known)| known == name) {
            return (self.0[place].0 == kind).then_some(MetricId(place as u32));
        }
        self.0.push((kind, name.to_owned()));
        Some(MetricId((self.0.len() - 1) as u32))
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        level >= LogLevel::Info
    }

    fn log(&mut self, level: LogLevel, plugin: &str, message: &str) {
        self.1.push((level, format!("{plugin}: {message}")));
    }
}

pub(super) fn source(files: &[(&str, &str)]) -> LuaSource {
    LuaSource {
        plugin: "probe".to_owned(),
        folder: "probe".to_owned(),
        files: files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect(),
        entry: "main.lua".to_owned(),
        request_body: BodyMode::Whole,
        response_body: BodyMode::Whole,
        time_budget: Duration::from_millis(50),
        memory_budget: 8 * 1024 * 1024,
        share: 100,
        off_worker: false,
        log_folder: None,
    }
}

pub(super) fn try_load(files: &[(&str, &str)]) -> Result<Arc<dyn Plugin>, LoadError> {
    crate::load(source(files), 2, &mut FakeMetrics::default())
}

/// A loaded plugin and one configuration of it.
pub(super) struct Probe {
    pub(super) plugin: Arc<dyn Plugin>,
    pub(super) configured: Arc<dyn ConfiguredPlugin>,
    pub(super) metrics: FakeMetrics,
}

pub(super) fn config(effective: &str) -> ScopedConfig {
    ScopedConfig {
        scope: "gateway".to_owned(),
        base: Some(effective.into()),
        route: None,
        effective: effective.into(),
        place: None,
    }
}

/// Loads `main.lua`, with `{}` for a configuration.
pub(super) fn probe(main: &str) -> Probe {
    probe_with(source(&[("main.lua", main)]), "{}")
}

pub(super) fn probe_with(source: LuaSource, effective: &str) -> Probe {
    let mut metrics = FakeMetrics::default();
    let plugin = crate::load(source, 2, &mut metrics).unwrap();
    let configured = plugin.configure(&config(effective), &mut metrics).unwrap();
    Probe {
        plugin,
        configured,
        metrics,
    }
}

/// A plugin whose handler of request headers has this body.
pub(super) fn on_request(body: &str) -> Probe {
    probe(&format!(
        "local handler = {{}}\nfunction handler:on_request_header()\n{body}\nend\nreturn handler"
    ))
}

pub(super) fn call(phase: Phase) -> Call {
    Call {
        phase,
        end_of_stream: false,
    }
}

impl Probe {
    pub(super) fn call(
        &self,
        phase: Phase,
        slot: &mut Slot,
        stream: &mut FakeStream,
    ) -> Result<Decision, Fault> {
        self.configured.call(slot, call(phase), stream)
    }

    pub(super) fn wake(
        &self,
        wake: Wake<'_>,
        slot: &mut Slot,
        stream: &mut FakeStream,
    ) -> Result<Decision, Fault> {
        self.configured
            .resume(slot, Direction::Request, wake, stream)
    }

    /// Calls the handler of request headers on a new stream, which goes on.
    pub(super) fn request(&self, stream: &mut FakeStream) -> Result<Decision, Fault> {
        let mut slot = Slot::default();
        let decision = self.call(Phase::RequestHeaders, &mut slot, stream);
        self.configured.end(slot, stream.worker);
        decision
    }
}

/// Runs `body` as a handler of request headers and answers what it logs.
pub(super) fn logs_of(body: &str) -> Vec<String> {
    let mut stream = FakeStream::new();
    on_request(body).request(&mut stream).unwrap();
    stream.logged()
}

/// Runs `body` as a handler of request headers and answers its fault.
pub(super) fn fault_of(body: &str) -> Fault {
    on_request(body)
        .request(&mut FakeStream::new())
        .unwrap_err()
}
