//! A stream in plain fields, guests in text, and short ways to load and call them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrider_plugin_api::{
    Attribute, BodyError, Call, CalloutFailure, CalloutId, CalloutRequest, ConfiguredPlugin,
    Decision, Direction, Fault, FilterStateError, FilterStateKind, HeaderError, HeaderMap,
    HttpStreamId, HttpStreamRequest, LoadError, LogLevel, MetadataError, MetadataSource,
    MetadataTree, MetricId, MetricKind, Metrics, OverrideHostError, OverrideHostFallback, Phase,
    Plugin, Scalar, ScopedConfig, Slot, Stream, Timing, WakeId,
};

use outrider_lua_runtime::thread_clock;

use crate::shared::Shared;
use crate::shared_data::Owner;
use crate::{Clock, WasmOptions, WasmSource, shared_data};

pub(super) type Headers = Vec<(Vec<u8>, Vec<u8>)>;

/// A callout as the stream was asked for it: upstream, headers, body, timeout.
pub(super) type Asked = (String, Vec<(String, String)>, String, Duration);

#[derive(Debug, Default)]
pub(super) struct FakeStream {
    pub(super) maps: BTreeMap<HeaderMap, Headers>,
    pub(super) bodies: BTreeMap<Direction, Vec<u8>>,
    pub(super) length_announced: bool,
    pub(super) metadata: BTreeMap<(String, String), MetadataTree>,
    pub(super) filter_state: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) callouts: Vec<Asked>,
    pub(super) refuse_callouts: Option<CalloutFailure>,
    pub(super) timers: Vec<Duration>,
    pub(super) sent: Vec<(u64, Vec<u8>, bool)>,
    pub(super) cancelled: Vec<WakeId>,
    pub(super) metrics: BTreeMap<u32, u64>,
    pub(super) route_cleared: usize,
    pub(super) logs: RefCell<Vec<(LogLevel, String)>>,
    pub(super) panics: bool,
    /// CPU time that a log line costs.
    pub(super) log_cost: Duration,
}

pub(super) fn pairs(list: &[(&str, &str)]) -> Headers {
    list.iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

impl FakeStream {
    pub(super) fn new() -> Self {
        let request = pairs(&[
            (":method", "GET"),
            (":path", "/cart?item=1"),
            (":authority", "shop.example.com"),
            ("x-one", "1"),
        ]);
        let response = pairs(&[(":status", "200"), ("server", "upstream")]);
        let maps = [
            (HeaderMap::RequestHeaders, request),
            (HeaderMap::ResponseHeaders, response),
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

    pub(super) fn body(&self, direction: Direction) -> String {
        let body = self.bodies.get(&direction).cloned().unwrap_or_default();
        String::from_utf8(body).unwrap()
    }

    pub(super) fn logged(&self) -> Vec<String> {
        let logs = self.logs.borrow();
        logs.iter().map(|(_, line)| line.clone()).collect()
    }
}

impl Stream for FakeStream {
    fn worker(&self) -> usize {
        0
    }

    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        let named = |(key, _): &&(Vec<u8>, Vec<u8>)| key.eq_ignore_ascii_case(name);
        let found = self.maps.get(&map)?.iter().filter(named).nth(index)?;
        Some(&found.1)
    }

    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize {
        let named = |(key, _): &&(Vec<u8>, Vec<u8>)| key.eq_ignore_ascii_case(name);
        self.maps
            .get(&map)
            .into_iter()
            .flatten()
            .filter(named)
            .count()
    }

    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        for (name, value) in self.maps.get(&map).into_iter().flatten() {
            visit(name, value);
        }
    }

    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        self.remove_header(map, name)?;
        self.add_header(map, name, value)
    }

    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        let Some(pairs) = self.maps.get_mut(&map) else {
            return Err(HeaderError::Absent);
        };
        pairs.push((name.to_ascii_lowercase(), value.to_vec()));
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
        self.bodies.get(&direction).map(Vec::len)
    }

    fn body_pieces(&self, direction: Direction, visit: &mut dyn FnMut(&[u8])) {
        // In two pieces, as Envoy may have it.
        if let Some(body) = self.bodies.get(&direction) {
            let (first, second) = body.split_at(body.len() / 2);
            visit(first);
            visit(second);
        }
    }

    fn splice_body(
        &mut self,
        direction: Direction,
        part: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BodyError> {
        if self.length_announced {
            return Err(BodyError::LengthAnnounced);
        }
        let body = self.bodies.get_mut(&direction).ok_or(BodyError::NoBody)?;
        let end = part.end.min(body.len());
        body.splice(part.start.min(end)..end, bytes.iter().copied());
        Ok(())
    }

    fn metadata(&self, source: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let found = self.metadata.get(&(text(namespace), text(key)))?;
        found.scalar().filter(|_| source == MetadataSource::Dynamic)
    }

    fn set_metadata(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: Scalar<'_>,
    ) -> Result<(), MetadataError> {
        self.set_metadata_tree(namespace, key, &value.into())
    }

    fn set_metadata_tree(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: &MetadataTree,
    ) -> Result<(), MetadataError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.metadata
            .insert((text(namespace), text(key)), value.clone());
        Ok(())
    }

    fn metadata_list(
        &self,
        _source: MetadataSource,
        _namespace: &[u8],
        _key: &[u8],
        _visit: &mut dyn FnMut(Scalar<'_>),
    ) -> bool {
        false
    }

    fn metadata_names(
        &self,
        _source: MetadataSource,
        _namespace: Option<&[u8]>,
        _visit: &mut dyn FnMut(&[u8]),
    ) {
    }

    fn filter_state(&self, key: &[u8]) -> Option<&[u8]> {
        self.filter_state.get(key).map(Vec::as_slice)
    }

    fn set_filter_state(
        &mut self,
        key: &[u8],
        value: &[u8],
        _kind: FilterStateKind,
    ) -> Result<(), FilterStateError> {
        if self.filter_state.contains_key(key) {
            return Err(FilterStateError::Taken);
        }
        self.filter_state.insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn attribute(&self, attribute: Attribute) -> Option<Scalar<'_>> {
        if attribute.follows_from_headers() {
            return attribute.of_headers(|map, name| self.header(map, name, 0));
        }
        Some(match attribute {
            Attribute::SourceAddress => Scalar::String(b"10.0.0.9:4711"),
            Attribute::SourcePort => Scalar::Number(4711.0),
            Attribute::RequestTime => Scalar::Number(1.5),
            Attribute::ConnectionMtls => Scalar::Bool(true),
            Attribute::XdsRouteName => Scalar::String(b"cart"),
            _ => return None,
        })
    }

    fn timing(&self) -> Timing {
        Timing::default()
    }

    fn response_code(&self) -> Option<u16> {
        Some(200)
    }

    fn clear_route_cache(&mut self) -> bool {
        self.route_cleared += 1;
        true
    }

    fn set_upstream_override_host(
        &mut self,
        _host: &[u8],
        _otherwise: OverrideHostFallback,
    ) -> Result<(), OverrideHostError> {
        Err(OverrideHostError::TooLate)
    }

    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure> {
        if let Some(failure) = self.refuse_callouts {
            return Err(failure);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = request.headers.iter();
        self.callouts.push((
            text(request.cluster),
            headers
                .map(|(name, value)| (text(name), text(value)))
                .collect(),
            text(request.body),
            request.timeout.unwrap_or_default(),
        ));
        Ok(CalloutId(self.callouts.len() as u64))
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
        Ok(HttpStreamId(started.0))
    }

    fn send_http_stream_data(
        &mut self,
        id: HttpStreamId,
        data: &[u8],
        end_of_stream: bool,
    ) -> Result<(), CalloutFailure> {
        self.sent.push((id.0, data.to_vec(), end_of_stream));
        Ok(())
    }

    fn send_http_stream_trailers(
        &mut self,
        _id: HttpStreamId,
        _trailers: &[(&[u8], &[u8])],
    ) -> Result<(), CalloutFailure> {
        Err(CalloutFailure::StreamOver)
    }

    fn start_timer(&mut self, delay: Duration) -> Result<u64, CalloutFailure> {
        self.timers.push(delay);
        Ok(self.timers.len() as u64)
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
        assert!(!self.panics, "the test has the host panic");
        level >= LogLevel::Info
    }

    fn log(&self, level: LogLevel, message: &str) {
        let end = cpu_time() + self.log_cost;
        while !self.log_cost.is_zero() && cpu_time() < end {
            std::hint::spin_loop();
        }
        self.logs.borrow_mut().push((level, message.to_owned()));
    }

    fn unix_millis(&self) -> u64 {
        0
    }

    fn start_unix_millis(&self) -> u64 {
        0
    }
}

#[derive(Debug, Default)]
pub(super) struct FakeMetrics {
    pub(super) defined: Vec<String>,
    pub(super) logs: Vec<String>,
}

impl Metrics for FakeMetrics {
    fn define(&mut self, _kind: MetricKind, name: &str) -> Option<MetricId> {
        let known = self.defined.iter().position(|known| known == name);
        let index = known.unwrap_or(self.defined.len());
        if known.is_none() {
            self.defined.push(name.to_owned());
        }
        Some(MetricId(index as u32))
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        level >= LogLevel::Info
    }

    fn log(&mut self, _level: LogLevel, _plugin: &str, message: &str) {
        self.logs.push(message.to_owned());
    }
}

/// The functions of `env` that guests in tests use, a memory, an allocator that only grows, and the marker
/// of ABI 0.2.1.
const PRELUDE: &str = r#"
  (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_value" (func $get (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_add_header_map_value" (func $add (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_replace_header_map_value" (func $replace (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_remove_header_map_value" (func $remove (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_pairs" (func $pairs (param i32 i32 i32) (result i32)))
  (import "env" "proxy_set_header_map_pairs" (func $set_pairs (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_buffer_bytes" (func $buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_buffer_bytes" (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_property" (func $property (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_property" (func $set_property (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_send_local_response"
    (func $reply (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
  (import "env" "proxy_close_stream" (func $close (param i32) (result i32)))
  (import "env" "proxy_http_call"
    (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_status" (func $status (param i32 i32 i32) (result i32)))
  (import "env" "proxy_set_effective_context" (func $effective (param i32) (result i32)))
  (import "env" "proxy_set_tick_period_milliseconds" (func $tick (param i32) (result i32)))
  (import "env" "proxy_done" (func $done (result i32)))
  (import "env" "proxy_define_metric" (func $define (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
  (import "env" "proxy_grpc_call" (func $grpc_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_grpc_stream" (func $grpc_stream (param i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_grpc_send" (func $grpc_send (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_grpc_close" (func $grpc_close (param i32) (result i32)))
  (import "env" "proxy_grpc_cancel" (func $grpc_cancel (param i32) (result i32)))
  (import "env" "proxy_call_foreign_function" (func $foreign (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_register_shared_queue" (func $register (param i32 i32 i32) (result i32)))
  (import "env" "proxy_enqueue_shared_queue" (func $enqueue (param i32 i32 i32) (result i32)))
  (import "env" "proxy_dequeue_shared_queue" (func $dequeue (param i32 i32 i32) (result i32)))
  (import "env" "proxy_record_metric" (func $record (param i32 i64) (result i32)))
  (import "env" "proxy_get_metric" (func $value (param i32 i32) (result i32)))
  (memory (export "memory") 2)
  (global $top (mut i32) (i32.const 65536))
  (func (export "proxy_on_memory_allocate") (param $n i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $top))
    (global.set $top (i32.add (global.get $top) (local.get $n)))
    (local.get $at))
  (func (export "proxy_abi_version_0_2_1"))
  ;; Logs bytes at "info".
  (func $say (param $at i32) (param $n i32)
    (drop (call $log (i32.const 2) (local.get $at) (local.get $n))))
  ;; Logs what a host function handed over to 0 and 4.
  (func $say_given (call $say (i32.load (i32.const 0)) (i32.load (i32.const 4))))
  ;; Logs a status as a digit or two.
  (func $say_number (param $n i32)
    (i32.store8 (i32.const 16) (i32.add (i32.const 48) (i32.div_u (local.get $n) (i32.const 10))))
    (i32.store8 (i32.const 17) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
    (call $say (i32.const 16) (i32.const 2)))
"#;

/// A guest: what is in `body`, after the prelude.
pub(super) fn guest(body: &str) -> Vec<u8> {
    wat::parse_str(guest_text(body)).unwrap()
}

/// The same as text.
pub(super) fn guest_text(body: &str) -> String {
    format!("(module {PRELUDE} {body})")
}

/// The same with the text's lines, as those of a file.
pub(super) fn guest_with_lines(file: &str, body: &str) -> Vec<u8> {
    wat::Parser::new()
        .generate_dwarf(wat::GenerateDwarf::Lines)
        .parse_str(Some(file.as_ref()), format!("(module {PRELUDE} {body})"))
        .unwrap()
}

/// In which line of its text a guest has something.
pub(super) fn line_of(what: &str, body: &str) -> usize {
    let before = format!("(module {PRELUDE} {body})");
    1 + before.split(what).next().unwrap().matches('\n').count()
}

pub(super) fn source(module: &[u8]) -> WasmSource {
    WasmSource {
        name: "probe".to_owned(),
        file: "probe.wasm".to_owned(),
        module: Arc::<[u8]>::from(module).into(),
        memory_budget: 4 * 1024 * 1024,
        time_budget: Duration::from_millis(50),
        compiled_folder: None,
        options: WasmOptions::default(),
        clock: Clock::default(),
        background: None,
        late_metrics: None,
        share: 100,
        cpu_clock: thread_clock(),
    }
}

/// Returns the `Shared` state of VMs of a plugin without a module.
pub(super) fn shared() -> Shared {
    Shared {
        background: None,
        late_metrics: None,
        plugin: String::new(),
        file: String::new(),
        options: WasmOptions::default(),
        clock: Clock::default(),
        environment: Vec::new(),
        memory_budget: 0,
        time_budget: Duration::ZERO,
        load_budget: Duration::ZERO,
        namespace: shared_data::namespace(Owner::Plugin("hostile".to_owned()), 0),
        metrics: Mutex::default(),
        tick_failures: Mutex::default(),
        cpu_clock: thread_clock(),
        account: None,
    }
}

/// Returns the CPU time that this thread has used.
pub(super) fn cpu_time() -> Duration {
    thread_clock().this_thread_time().unwrap()
}

pub(super) fn config(text: &str) -> ScopedConfig {
    ScopedConfig {
        scope: "gateway".to_owned(),
        effective: text.into(),
        ..ScopedConfig::default()
    }
}

/// A clock that stands until it is put forward, in milliseconds.
pub(super) fn clock() -> (Clock, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(1_000_000));
    let read = Arc::clone(&now);
    let clock = Clock::new(move || Duration::from_millis(read.load(Ordering::Relaxed)));
    (clock, now)
}

#[derive(Debug)]
pub(super) struct Probe {
    pub(super) plugin: Arc<dyn Plugin>,
    pub(super) configured: Arc<dyn ConfiguredPlugin>,
    pub(super) metrics: FakeMetrics,
}

pub(super) fn load(source: WasmSource, text: &str) -> Result<Probe, LoadError> {
    let mut metrics = FakeMetrics::default();
    let plugin = crate::load(source, 1, &mut metrics)?;
    let configured = plugin.configure(&config(text), &mut metrics)?;
    Ok(Probe {
        plugin,
        configured,
        metrics,
    })
}

pub(super) fn probe(body: &str) -> Probe {
    load(source(&guest(body)), "{}").unwrap()
}

pub(super) fn refused(module: &[u8]) -> String {
    load(source(module), "{}").unwrap_err().to_string()
}

impl Probe {
    pub(super) fn call(
        &self,
        phase: Phase,
        slot: &mut Slot,
        stream: &mut FakeStream,
    ) -> Result<Decision, Fault> {
        self.call_with(phase, false, slot, stream)
    }

    pub(super) fn call_with(
        &self,
        phase: Phase,
        end_of_stream: bool,
        slot: &mut Slot,
        stream: &mut FakeStream,
    ) -> Result<Decision, Fault> {
        let call = Call {
            phase,
            end_of_stream,
        };
        self.configured.call(slot, call, stream)
    }

    /// What a stream logs on which the guest is called for request headers only.
    pub(super) fn said(&self) -> Vec<String> {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        self.call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
        self.configured.end(slot, 0);
        stream.logged()
    }
}
