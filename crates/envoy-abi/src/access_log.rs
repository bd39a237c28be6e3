//! The access logger: records of streams that have ended go into the worker's ring.
//!
//! Envoy's configuration of the logger is the same for every listener and never changes, so that no change of telemetry
//! drains connections. What a stream's record has is decided by its chain, which has the access logs of its scope attached.
//! The link is the order of Envoy's calls: when a stream ends, Envoy calls its filters' `stream_complete`, and then its
//! loggers, on one thread with nothing in between. A stream that never had a filter is logged as the gateway's scope says.
//!
//! The traps: a header's bytes are Envoy's and live as long as the call; and counters are Envoy's, too, so that they are
//! given up before Envoy frees the configuration that they were defined by.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrider_plugin_api::Chain;
use outrider_telemetry::stats::Counter;
use outrider_telemetry::worker::StreamLogs;
use outrider_telemetry::{Address, HeaderMap, LogEvent, MetadataValue, Number, Text, exporter};
use smallvec::SmallVec;

use crate::callbacks::{Callbacks, callbacks};
use crate::filter::Filter;
use crate::hooks::guarded;
use crate::module::{Module, module};
use crate::raw::{
    ConfigPtr, DOWNSTREAM_END, EnvoyBuffer, EnvoyHeader, LogBytes, LogTimes, LoggerPtr,
    METRICS_SUCCESS, ModuleBuffer, header_type, log_attribute,
};

/// The scope of the stream that Envoy is about to log.
enum Ending {
    /// No filter has told.
    Unknown,
    /// That of this chain.
    Chain(Arc<Chain>),
    /// One without access logs.
    Unlogged,
}

thread_local! {
    static ENDING: RefCell<Ending> = const { RefCell::new(Ending::Unknown) };
}

/// Notes the scope of a stream whose log call comes next on this thread.
pub(crate) fn stream_ends(filter: &Filter) {
    let ending = match filter.chain() {
        Some(chain) if logs(&chain).is_some() => Ending::Chain(chain),
        Some(_) => Ending::Unlogged,
        // None of its hooks ran.
        None => Ending::Unknown,
    };
    // Not when the thread ends.
    let _ended = ENDING.try_with(|slot| slot.replace(ending));
}

/// The access logs of a chain's scope.
fn logs(chain: &Chain) -> Option<&StreamLogs> {
    let logs: &StreamLogs = chain.attachment()?.downcast_ref()?;
    (!logs.is_empty()).then_some(logs)
}

/// A configuration of the logger in Envoy, with the ids of its counters.
struct Logger {
    config: usize,
    counters: Vec<Option<usize>>,
}

/// The configurations that live; counters belong to the first one.
static LOGGERS: Mutex<Vec<Logger>> = Mutex::new(Vec::new());

fn loggers() -> MutexGuard<'static, Vec<Logger>> {
    // A list is valid between any two statements that change it.
    LOGGERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds to a counter in Envoy, from any thread.
fn publish(counter: Counter, amount: u64) -> bool {
    let Some(callbacks) = callbacks() else {
        return false;
    };
    // Held, so that Envoy does not free the configuration meanwhile.
    let loggers = loggers();
    let Some(logger) = loggers.first() else {
        return false;
    };
    let Some(Some(id)) = logger.counters.get(counter as usize) else {
        return false;
    };
    let config = ptr::with_exposed_provenance_mut(logger.config);
    // SAFETY: the configuration is in the list until Envoy is about to free it, and defined the counter. Envoy's counters
    // take additions from any thread.
    let result = unsafe { (callbacks.access_logger_increment_counter)(config, *id, amount) };
    result == METRICS_SUCCESS
}

/// A logger's configuration has come.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_access_logger_config_new(
    config: ConfigPtr,
    _name: EnvoyBuffer,
    _document: EnvoyBuffer,
) -> *const c_void {
    guarded(ptr::null(), || {
        let Some(callbacks) = callbacks() else {
            return ptr::null();
        };
        let define = |counter: &Counter| {
            let name = format!("outrider.telemetry.{}", counter.name());
            let mut id = 0;
            // SAFETY: the configuration is alive during its own hook; Envoy copies the name.
            let result = unsafe {
                (callbacks.access_logger_config_define_counter)(
                    config,
                    ModuleBuffer::new(name.as_bytes()),
                    &raw mut id,
                )
            };
            (result == METRICS_SUCCESS).then_some(id)
        };
        loggers().push(Logger {
            config: config.expose_provenance(),
            counters: Counter::ALL.iter().map(define).collect(),
        });
        exporter::publish_with(publish);
        config.cast_const()
    })
}

/// A logger's configuration is gone. After the last one, nothing more is logged: what was is written out, for as long as the
/// configuration of telemetry allows.
///
/// # Safety
/// Called by Envoy, as its ABI says, once for what the hook above returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_access_logger_config_destroy(config: *const c_void) {
    guarded((), || {
        // Not while the list is locked: the counters of what is written now are published meanwhile.
        let living = loggers().len();
        if living == 1 {
            exporter::flush_at_stop();
        }
        loggers().retain(|logger| logger.config != config.addr());
    });
}

/// A worker gets its logger.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_access_logger_new(
    config: *const c_void,
    _logger: LoggerPtr,
) -> *const c_void {
    // There is nothing of its own: the worker's ring is the thread's.
    config
}

/// A worker's logger is gone.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_access_logger_destroy(_logger: *const c_void) {}

/// A worker's logger is about to go.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_access_logger_flush(_logger: *const c_void) {}

/// A stream has ended.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn envoy_dynamic_module_on_access_logger_log(
    logger: LoggerPtr,
    _module: *const c_void,
    kind: u32,
) {
    if kind != DOWNSTREAM_END {
        return;
    }
    guarded((), || {
        let ending = ENDING.try_with(|slot| slot.replace(Ending::Unknown));
        let unrouted;
        let (chain, logs) = match ending.unwrap_or(Ending::Unlogged) {
            Ending::Unlogged => return,
            Ending::Chain(chain) => (Some(chain), None),
            Ending::Unknown => {
                unrouted = module().and_then(Module::unrouted_logs);
                (None, unrouted.as_deref())
            }
        };
        let (Some(callbacks), Some(logs)) =
            (callbacks(), chain.as_deref().and_then(self::logs).or(logs))
        else {
            return;
        };
        logs.save(&mut Event {
            callbacks,
            logger,
            request: None,
            response: None,
            trailers: None,
            times: None,
            bytes: None,
        });
    });
}

/// Headers of one map, in Envoy's order.
type Headers<const N: usize> = Option<SmallVec<[EnvoyHeader; N]>>;

/// A stream that has ended, during its log call. What one call of Envoy's tells of several fields is kept.
struct Event {
    callbacks: &'static Callbacks,
    logger: LoggerPtr,
    request: Headers<32>,
    response: Headers<32>,
    trailers: Headers<4>,
    times: Option<LogTimes>,
    bytes: Option<LogBytes>,
}

fn read_headers<const N: usize>(
    callbacks: &Callbacks,
    logger: LoggerPtr,
    map: u32,
) -> SmallVec<[EnvoyHeader; N]>
where
    [EnvoyHeader; N]: smallvec::Array<Item = EnvoyHeader>,
{
    let mut headers = SmallVec::new();
    // SAFETY: the logger is alive during its log call, which this is.
    let size = unsafe { (callbacks.access_logger_get_headers_size)(logger, map) };
    headers.resize(size, EnvoyHeader::EMPTY);
    if size > 0 {
        // SAFETY: as above; Envoy writes as many headers as it said that there are.
        let is_there =
            unsafe { (callbacks.access_logger_get_headers)(logger, map, headers.as_mut_ptr()) };
        if !is_there {
            headers.clear();
        }
    }
    headers
}

/// The first value of a header.
fn first<'e>(headers: &[EnvoyHeader], name: &[u8]) -> Option<&'e [u8]> {
    let found = headers.iter().find(|header| {
        // SAFETY: Envoy's headers live until the log call returns.
        header.name.length == name.len() && unsafe { header.name.bytes() } == name
    })?;
    // SAFETY: as above.
    Some(unsafe { found.value.bytes() })
}

impl Event {
    fn times(&mut self) -> LogTimes {
        let (callbacks, logger) = (self.callbacks, self.logger);
        *self.times.get_or_insert_with(|| {
            let mut times = LogTimes::EMPTY;
            // SAFETY: the logger is alive during its log call, which this is.
            unsafe { (callbacks.access_logger_get_timing_info)(logger, &raw mut times) };
            times
        })
    }

    fn bytes(&mut self) -> LogBytes {
        let (callbacks, logger) = (self.callbacks, self.logger);
        *self.bytes.get_or_insert_with(|| {
            let mut bytes = LogBytes::default();
            // SAFETY: the logger is alive during its log call, which this is.
            unsafe { (callbacks.access_logger_get_bytes_info)(logger, &raw mut bytes) };
            bytes
        })
    }

    fn buffer(
        &self,
        get: unsafe extern "C" fn(LoggerPtr, *mut EnvoyBuffer) -> bool,
    ) -> Option<&[u8]> {
        let mut value = EnvoyBuffer::EMPTY;
        // SAFETY: the logger is alive during its log call, which this is; the text lives as long.
        unsafe { get(self.logger, &raw mut value).then(|| value.bytes()) }
    }

    fn attribute(&self, id: u32) -> Option<&[u8]> {
        let mut value = EnvoyBuffer::EMPTY;
        let get = self.callbacks.access_logger_get_attribute_string;
        // SAFETY: the logger is alive during its log call, which this is; the text lives as long.
        unsafe { get(self.logger, id, &raw mut value).then(|| value.bytes()) }
    }

    fn attribute_number(&self, id: u32) -> Option<i64> {
        let mut value = 0;
        let get = self.callbacks.access_logger_get_attribute_int;
        // SAFETY: the logger is alive during its log call, which this is.
        unsafe { get(self.logger, id, &raw mut value) }.then_some(value.cast_signed())
    }

    fn count(&self, get: unsafe extern "C" fn(LoggerPtr) -> u64) -> i64 {
        // SAFETY: the logger is alive during its log call, which this is.
        unsafe { get(self.logger) }.cast_signed()
    }
}

fn time(time: i64) -> Option<i64> {
    (time >= 0).then_some(time)
}

impl LogEvent for Event {
    fn header(&mut self, map: HeaderMap, name: &[u8]) -> Option<&[u8]> {
        let (callbacks, logger) = (self.callbacks, self.logger);
        match map {
            HeaderMap::Request => {
                let read = || read_headers(callbacks, logger, header_type::REQUEST_HEADER);
                first(self.request.get_or_insert_with(read), name)
            }
            HeaderMap::Response => {
                let read = || read_headers(callbacks, logger, header_type::RESPONSE_HEADER);
                first(self.response.get_or_insert_with(read), name)
            }
            HeaderMap::Trailer => {
                let read = || read_headers(callbacks, logger, header_type::RESPONSE_TRAILER);
                first(self.trailers.get_or_insert_with(read), name)
            }
        }
    }

    fn text(&mut self, text: Text) -> Option<&[u8]> {
        let callbacks = self.callbacks;
        match text {
            Text::Protocol => self.attribute(log_attribute::PROTOCOL),
            Text::ResponseCodeDetails => self.attribute(log_attribute::RESPONSE_CODE_DETAILS),
            Text::RouteName => self.buffer(callbacks.access_logger_get_route_name),
            Text::VirtualCluster => self.buffer(callbacks.access_logger_get_virtual_cluster_name),
            Text::RequestedServerName => self.attribute(log_attribute::REQUESTED_SERVER_NAME),
            Text::ConnectionTerminationDetails => {
                self.attribute(log_attribute::TERMINATION_DETAILS)
            }
            Text::DownstreamTransportFailure => self.attribute(log_attribute::TRANSPORT_FAILURE),
            Text::DownstreamTlsVersion => self.attribute(log_attribute::TLS_VERSION),
            Text::DownstreamPeerSubject => self.attribute(log_attribute::PEER_SUBJECT),
            Text::UpstreamCluster => self.buffer(callbacks.access_logger_get_upstream_cluster),
            Text::UpstreamHost => self.attribute(log_attribute::UPSTREAM_ADDRESS),
            Text::UpstreamLocalAddress => self.attribute(log_attribute::UPSTREAM_LOCAL_ADDRESS),
            Text::UpstreamTransportFailure => {
                self.attribute(log_attribute::UPSTREAM_TRANSPORT_FAILURE)
            }
            Text::UpstreamProtocol => self.buffer(callbacks.access_logger_get_upstream_protocol),
            Text::UpstreamTlsVersion => self.attribute(log_attribute::UPSTREAM_TLS_VERSION),
            Text::TraceId => self.buffer(callbacks.access_logger_get_trace_id),
            Text::SpanId => self.buffer(callbacks.access_logger_get_span_id),
        }
    }

    fn address(&mut self, address: Address) -> Option<(&[u8], u32)> {
        let callbacks = self.callbacks;
        let get = match address {
            Address::DownstreamRemote => callbacks.access_logger_get_downstream_remote_address,
            Address::DownstreamLocal => callbacks.access_logger_get_downstream_local_address,
            Address::DownstreamDirectRemote => {
                callbacks.access_logger_get_downstream_direct_remote_address
            }
            Address::DownstreamDirectLocal => {
                callbacks.access_logger_get_downstream_direct_local_address
            }
        };
        let (mut text, mut port) = (EnvoyBuffer::EMPTY, 0);
        // SAFETY: the logger is alive during its log call, which this is; the text lives as long.
        unsafe { get(self.logger, &raw mut text, &raw mut port).then(|| (text.bytes(), port)) }
    }

    fn number(&mut self, number: Number) -> Option<i64> {
        let callbacks = self.callbacks;
        match number {
            Number::Start => time(self.times().start),
            Number::Complete => time(self.times().complete),
            Number::FirstUpstreamSent => time(self.times().first_upstream_sent),
            Number::LastUpstreamSent => time(self.times().last_upstream_sent),
            Number::FirstUpstreamReceived => time(self.times().first_upstream_received),
            Number::LastUpstreamReceived => time(self.times().last_upstream_received),
            Number::FirstDownstreamSent => time(self.times().first_downstream_sent),
            Number::LastDownstreamSent => time(self.times().last_downstream_sent),
            Number::ResponseCode => self.attribute_number(log_attribute::RESPONSE_CODE),
            Number::ResponseFlags => Some(self.count(callbacks.access_logger_get_response_flags)),
            Number::BytesReceived => Some(self.bytes().received.cast_signed()),
            Number::BytesSent => Some(self.bytes().sent.cast_signed()),
            Number::UpstreamWireBytesReceived => Some(self.bytes().wire_received.cast_signed()),
            Number::UpstreamWireBytesSent => Some(self.bytes().wire_sent.cast_signed()),
            Number::RequestHeadersBytes => {
                Some(self.count(callbacks.access_logger_get_request_headers_bytes))
            }
            Number::ResponseHeadersBytes => {
                Some(self.count(callbacks.access_logger_get_response_headers_bytes))
            }
            Number::ResponseTrailersBytes => {
                Some(self.count(callbacks.access_logger_get_response_trailers_bytes))
            }
            Number::ConnectionId => self.attribute_number(log_attribute::CONNECTION_ID),
            Number::UpstreamConnectionId => {
                let id = self.count(callbacks.access_logger_get_upstream_connection_id);
                (id != 0).then_some(id)
            }
            Number::UpstreamAttempts => self.attribute_number(log_attribute::UPSTREAM_ATTEMPTS),
        }
    }

    fn metadata(&mut self, namespace: &[u8], path: &[u8]) -> Option<MetadataValue<'_>> {
        let (callbacks, logger) = (self.callbacks, self.logger);
        let (namespace, path) = (ModuleBuffer::new(namespace), ModuleBuffer::new(path));
        let (mut text, mut number, mut yes) = (EnvoyBuffer::EMPTY, 0.0, false);
        // SAFETY: the logger is alive during its log call, which this is; the names outlive the calls, and a text lives
        // until the log call returns.
        unsafe {
            let get = callbacks.access_logger_get_dynamic_metadata;
            if get(logger, namespace, path, &raw mut text) {
                return Some(MetadataValue::Text(text.bytes()));
            }
            let get = callbacks.access_logger_get_dynamic_metadata_number;
            if get(logger, namespace, path, &raw mut number) {
                return Some(MetadataValue::Number(number));
            }
            let get = callbacks.access_logger_get_dynamic_metadata_bool;
            get(logger, namespace, path, &raw mut yes).then_some(MetadataValue::Bool(yes))
        }
    }
}
