//! The functions that the SDK calls through FFI: flat arguments, an `int32_t` for an answer, and
//! everything larger through the head of the call's state.
//!
//! One list declares them for Rust and for C ([`host_functions`]), so that the two cannot drift.
//! Answers: 0 and above as each function says, [`NO_STREAM`], or [`BROKEN`].
//!
//! The trap: none of these may raise, panic through, or call back into Lua. LuaJIT compiles calls of
//! them into traces, where nothing of that is allowed.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use base64::Engine as _;
use outrider_plugin_api::{
    Attribute, BodyError, CalloutRequest, Direction, HeaderMap, LogLevel, MetadataSource,
    MetadataValue, MetricId, MetricKind, Reply, Stream, Wake, WakeId,
};

use super::call::{CallState, NO_STREAM, Pair, Pending};
use super::tape;

/// The answer when something is wrong with the host itself.
const BROKEN: i32 = -9;
/// The answer of `set_body` when the length has been announced.
const LENGTH_ANNOUNCED: i32 = -4;

macro_rules! host_functions {
    ($($name:ident($($argument:ident: $kind:ident),*);)*) => {
        /// Pointers to all functions, as Lua's `struct outrider_host` lays them out.
        #[repr(C)]
        pub(super) struct HostTable {
            $($name: unsafe extern "C" fn(*mut CallState $(, host_functions!(@rust $kind))*) -> i32,)*
        }

        /// The table whose address Lua is given.
        pub(super) static HOST: HostTable = HostTable { $($name,)* };

        /// The table's declaration in C.
        pub(super) const HOST_DECLARATION: &str = concat!(
            "struct outrider_host {",
            $("int32_t (*", stringify!($name), ")(struct outrider_call*"
                $(, ", ", host_functions!(@c $kind))*, ");",)*
            "};",
        );
    };
    (@rust int) => { i32 };
    (@rust real) => { f64 };
    (@rust text) => { *const u8 };
    (@c int) => { "int32_t" };
    (@c real) => { "double" };
    (@c text) => { "const char*" };
}

host_functions! {
    header(map: int, name: text, length: int, index: int);
    header_count(map: int, name: text, length: int);
    headers(map: int);
    set_header(map: int, name: text, length: int, value: text, value_length: int);
    add_header(map: int, name: text, length: int, value: text, value_length: int);
    remove_header(map: int, name: text, length: int);
    replace_headers(map: int);
    stage_clear();
    stage(name: text, length: int, value: text, value_length: int);
    query(limit: int);
    body_length(direction: int);
    body(direction: int);
    set_body(direction: int, body: text, length: int);
    metadata(source: int, namespace: text, length: int, key: text, key_length: int);
    set_metadata(namespace: text, length: int, key: text, key_length: int,
                 kind: int, value: text, value_length: int, number: real);
    attribute(which: int);
    response_code();
    clear_route_cache();
    callout(cluster: text, length: int, body: text, body_length: int, timeout: real);
    timer(delay: real);
    wait_body();
    wake();
    reply(status: int, body: text, length: int, details: text, details_length: int);
    metric_define(kind: int, name: text, length: int);
    metric_add(id: int, amount: real);
    metric_record(id: int, value: real);
    metric_get(id: int);
    log_enabled(level: int);
    log(level: int, message: text, length: int);
    file_log(message: text, length: int);
    now();
    start_time();
    stream_index();
    argument(index: int);
    result(kind: int, value: text, length: int);
    file(name: text, length: int);
    json_parse(value: text, length: int);
    base64_encode(value: text, length: int);
    base64_decode(value: text, length: int);
}

/// Runs the body of a function with the call's state; a panic becomes [`BROKEN`].
///
/// # Safety
/// `call` is what Lua was given: the address of a live [`CallState`] that nothing else borrows.
unsafe fn with(call: *mut CallState, run: impl FnOnce(&mut CallState) -> i32) -> i32 {
    catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: by contract.
        run(unsafe { &mut *call })
    }))
    .unwrap_or(BROKEN)
}

/// As [`with`], for functions that need a stream.
///
/// # Safety
/// As for [`with`].
unsafe fn with_stream(
    call: *mut CallState,
    run: impl FnOnce(&mut CallState, &mut dyn Stream) -> i32,
) -> i32 {
    // SAFETY: by contract.
    unsafe {
        with(call, |state| match state.stream {
            // SAFETY: a stream is there only while its borrow lasts, and during a call into Lua
            // nothing else uses that borrow.
            Some(mut stream) => run(state, stream.as_mut()),
            None => NO_STREAM,
        })
    }
}

/// The bytes of a Lua string that is an argument.
///
/// # Safety
/// `data` and `length` are a string that Lua holds for the duration of the call.
unsafe fn bytes<'a>(data: *const u8, length: i32) -> &'a [u8] {
    match usize::try_from(length) {
        Ok(length) if length > 0 && !data.is_null() => {
            // SAFETY: by contract.
            unsafe { std::slice::from_raw_parts(data, length) }
        }
        _ => &[],
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Hands bytes to Lua, which copies them at once.
fn show(state: &mut CallState, bytes: &[u8]) {
    state.head.data = bytes.as_ptr();
    state.head.length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
}

fn show_scratch(state: &mut CallState) {
    state.head.data = state.scratch.as_ptr();
    state.head.length = i32::try_from(state.scratch.len()).unwrap_or(i32::MAX);
}

fn show_text(state: &mut CallState, message: &str) {
    state.scratch.clear();
    state.scratch.extend_from_slice(message.as_bytes());
    show_scratch(state);
}

fn show_pairs(state: &mut CallState) -> i32 {
    state.head.pairs = state.pairs.as_ptr();
    state.head.count = i32::try_from(state.pairs.len()).unwrap_or(i32::MAX);
    state.head.count
}

fn pair(name: &[u8], value: &[u8]) -> Pair {
    Pair {
        name: name.as_ptr(),
        value: value.as_ptr(),
        name_length: i32::try_from(name.len()).unwrap_or(i32::MAX),
        value_length: i32::try_from(value.len()).unwrap_or(i32::MAX),
    }
}

fn header_map(number: i32) -> HeaderMap {
    match number {
        0 => HeaderMap::RequestHeaders,
        1 => HeaderMap::ResponseHeaders,
        2 => HeaderMap::RequestTrailers,
        _ => HeaderMap::ResponseTrailers,
    }
}

fn direction(number: i32) -> Direction {
    if number == 0 {
        Direction::Request
    } else {
        Direction::Response
    }
}

fn log_level(number: i32) -> LogLevel {
    match number {
        0 => LogLevel::Trace,
        1 => LogLevel::Debug,
        2 => LogLevel::Info,
        3 => LogLevel::Warn,
        _ => LogLevel::Error,
    }
}

fn metric_kind(number: i32) -> Option<MetricKind> {
    match number {
        0 => Some(MetricKind::Counter),
        1 => Some(MetricKind::Gauge),
        2 => Some(MetricKind::Histogram),
        _ => None,
    }
}

/// The id of a metric that the SDK calls `number`; it counts from 1.
fn metric_id(number: i32) -> MetricId {
    MetricId(u32::try_from(number.saturating_sub(1)).unwrap_or(0))
}

fn duration(milliseconds: f64) -> Duration {
    const LONGEST: f64 = 24.0 * 3600.0 * 1000.0;
    // What is not a number becomes 0.
    Duration::from_millis(milliseconds.clamp(0.0, LONGEST) as u64)
}

/// 1: found; 0: not.
unsafe extern "C" fn header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
    index: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            let Ok(index) = usize::try_from(index) else {
                return 0;
            };
            match stream.header(header_map(map), bytes(name, length), index) {
                Some(value) => {
                    show(state, value);
                    1
                }
                None => 0,
            }
        })
    }
}

/// The number of values.
unsafe extern "C" fn header_count(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |_, stream| {
            let count = stream.header_count(header_map(map), bytes(name, length));
            i32::try_from(count).unwrap_or(i32::MAX)
        })
    }
}

/// The number of pairs.
unsafe extern "C" fn headers(call: *mut CallState, map: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.pairs.clear();
            let pairs = &mut state.pairs;
            stream.headers(header_map(map), &mut |name, value| {
                pairs.push(pair(name, value));
            });
            show_pairs(state)
        })
    }
}

/// 1: done; 0: the map is not there.
unsafe extern "C" fn set_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |_, stream| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            i32::from(stream.set_header(header_map(map), name, value))
        })
    }
}

/// 1: done; 0: the map is not there.
unsafe extern "C" fn add_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |_, stream| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            i32::from(stream.add_header(header_map(map), name, value))
        })
    }
}

/// 1: done; 0: the map is not there.
unsafe extern "C" fn remove_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |_, stream| {
            i32::from(stream.remove_header(header_map(map), bytes(name, length)))
        })
    }
}

/// Puts the staged headers in place of all that are there. Pseudo headers that are not staged stay:
/// a request without `:path` is none. 1: done; 0: the map is not there.
unsafe extern "C" fn replace_headers(call: *mut CallState, map: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let map = header_map(map);
            let mut present: Vec<Vec<u8>> = Vec::new();
            stream.headers(map, &mut |name, _| present.push(name.to_vec()));
            present.dedup();
            for name in present.iter().filter(|name| !name.starts_with(b":")) {
                stream.remove_header(map, name);
            }
            let mut done = true;
            for (name, value) in state.staged.drain(..) {
                done &= if name.starts_with(b":") {
                    stream.set_header(map, &name, &value)
                } else {
                    stream.add_header(map, &name, &value)
                };
            }
            i32::from(done)
        })
    }
}

/// 1.
unsafe extern "C" fn stage_clear(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            state.staged.clear();
            1
        })
    }
}

/// 1.
unsafe extern "C" fn stage(
    call: *mut CallState,
    name: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            state.staged.push((name.to_vec(), value.to_vec()));
            1
        })
    }
}

/// The number of query parameters, at most `limit`, as pairs.
unsafe extern "C" fn query(call: *mut CallState, limit: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let path = stream
                .header(HeaderMap::RequestHeaders, b":path", 0)
                .unwrap_or_default();
            let spans = crate::query::decode(path, limit.max(0) as usize, &mut state.scratch);
            state.pairs.clear();
            for span in spans {
                let name = state.scratch.get(span.name).unwrap_or_default();
                let value = state.scratch.get(span.value).unwrap_or_default();
                state.pairs.push(pair(name, value));
            }
            show_pairs(state)
        })
    }
}

/// The length, or -1 where there is no body.
unsafe extern "C" fn body_length(call: *mut CallState, way: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream
                .body_len(direction(way))
                .map_or(-1, |length| i32::try_from(length).unwrap_or(i32::MAX))
        })
    }
}

/// 1: here it is; 0: there is none.
unsafe extern "C" fn body(call: *mut CallState, way: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let way = direction(way);
            if stream.body_len(way).is_none() {
                return 0;
            }
            // One piece needs no copy here: Lua copies it from where it is.
            let mut pieces = 0;
            let mut only = (std::ptr::null(), 0);
            stream.body_pieces(way, &mut |piece| {
                pieces += 1;
                only = (piece.as_ptr(), piece.len());
            });
            if pieces == 1 {
                state.head.data = only.0;
                state.head.length = i32::try_from(only.1).unwrap_or(i32::MAX);
            } else {
                state.scratch.clear();
                let scratch = &mut state.scratch;
                stream.body_pieces(way, &mut |piece| scratch.extend_from_slice(piece));
                show_scratch(state);
            }
            1
        })
    }
}

/// 1: done; 0: there is none; [`LENGTH_ANNOUNCED`].
unsafe extern "C" fn set_body(call: *mut CallState, way: i32, body: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            match stream.set_body(direction(way), bytes(body, length)) {
                Ok(()) => 1,
                Err(error @ BodyError::NoBody) => {
                    show_text(state, &error.to_string());
                    0
                }
                Err(error @ BodyError::LengthAnnounced) => {
                    show_text(state, &error.to_string());
                    LENGTH_ANNOUNCED
                }
            }
        })
    }
}

/// 0: none; 1: text; 2: number; 3: truth value, as number.
unsafe extern "C" fn metadata(
    call: *mut CallState,
    source: i32,
    namespace: *const u8,
    length: i32,
    key: *const u8,
    key_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let source = if source == 0 {
                MetadataSource::Route
            } else {
                MetadataSource::Dynamic
            };
            match stream.metadata(source, bytes(namespace, length), bytes(key, key_length)) {
                None => 0,
                Some(MetadataValue::String(value)) => {
                    show(state, value);
                    1
                }
                Some(MetadataValue::Number(value)) => {
                    state.head.number = value;
                    2
                }
                Some(MetadataValue::Bool(value)) => {
                    state.head.number = f64::from(u8::from(value));
                    3
                }
            }
        })
    }
}

/// 1. Kinds as in [`metadata`].
unsafe extern "C" fn set_metadata(
    call: *mut CallState,
    namespace: *const u8,
    length: i32,
    key: *const u8,
    key_length: i32,
    kind: i32,
    value: *const u8,
    value_length: i32,
    number: f64,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |_, stream| {
            let value = match kind {
                1 => MetadataValue::String(bytes(value, value_length)),
                2 => MetadataValue::Number(number),
                _ => MetadataValue::Bool(number != 0.0),
            };
            stream.set_metadata(bytes(namespace, length), bytes(key, key_length), value);
            1
        })
    }
}

/// 1: here it is; 0: none.
unsafe extern "C" fn attribute(call: *mut CallState, which: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let which = match which {
                0 => Attribute::SourceAddress,
                1 => Attribute::DestinationAddress,
                2 => Attribute::UpstreamAddress,
                3 => Attribute::UpstreamCluster,
                4 => Attribute::RouteName,
                5 => Attribute::Protocol,
                _ => Attribute::ResponseCodeDetails,
            };
            match stream.attribute(which) {
                Some(value) => {
                    show(state, value);
                    1
                }
                None => 0,
            }
        })
    }
}

/// The status code, or 0.
unsafe extern "C" fn response_code(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.response_code().map_or(0, i32::from)
        })
    }
}

/// 1.
unsafe extern "C" fn clear_route_cache(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.clear_route_cache();
            1
        })
    }
}

/// Starts a callout with the staged headers. 1: done; 0: it failed, and here is why.
unsafe extern "C" fn callout(
    call: *mut CallState,
    cluster: *const u8,
    length: i32,
    body: *const u8,
    body_length: i32,
    timeout: f64,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let headers: Vec<(&[u8], &[u8])> = state
                .staged
                .iter()
                .map(|(name, value)| (name.as_slice(), value.as_slice()))
                .collect();
            let started = stream.start_callout(&CalloutRequest {
                cluster: bytes(cluster, length),
                headers: &headers,
                body: bytes(body, body_length),
                timeout: duration(timeout),
            });
            state.staged.clear();
            match started {
                Ok(id) => {
                    state.pending = Pending::Event(WakeId::Callout(id));
                    1
                }
                Err(failure) => {
                    show_text(state, &failure.to_string());
                    0
                }
            }
        })
    }
}

/// 1: started; 0: the stream is over.
unsafe extern "C" fn timer(call: *mut CallState, delay: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            match stream.start_timer(duration(delay)) {
                Some(id) => {
                    state.pending = Pending::Event(WakeId::Timer(id));
                    1
                }
                None => 0,
            }
        })
    }
}

/// 1: the handler may yield now, to be woken when the body is here.
unsafe extern "C" fn wait_body(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            state.pending = Pending::Body;
            1
        })
    }
}

/// What woke the handler. 1: a callout, with headers as pairs and its body; 2: a callout that
/// failed, with the reason; 3: a timer; 4: the body; 0: nothing.
unsafe extern "C" fn wake(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            let Some(wake) = state.wake else { return 0 };
            // SAFETY: a wake is there only while its borrow lasts.
            match *wake.as_ref() {
                Wake::Callout(_, Ok(response)) => {
                    state.pairs.clear();
                    state.pairs.extend(
                        response
                            .headers
                            .iter()
                            .map(|(name, value)| pair(name, value)),
                    );
                    show_pairs(state);
                    if let [piece] = response.body {
                        show(state, piece);
                    } else {
                        state.scratch.clear();
                        for piece in response.body {
                            state.scratch.extend_from_slice(piece);
                        }
                        show_scratch(state);
                    }
                    1
                }
                Wake::Callout(_, Err(failure)) => {
                    show_text(state, &failure.to_string());
                    2
                }
                Wake::Timer(_) => 3,
                Wake::Body => 4,
            }
        })
    }
}

/// 1: the staged headers and this body are the reply, once the handler yields or returns.
unsafe extern "C" fn reply(
    call: *mut CallState,
    status: i32,
    body: *const u8,
    length: i32,
    details: *const u8,
    details_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, _| {
            state.pending = Pending::Reply(Box::new(Reply {
                status: u16::try_from(status).unwrap_or(500),
                headers: std::mem::take(&mut state.staged),
                body: bytes(body, length).to_vec(),
                details: text(bytes(details, details_length)).into_owned(),
            }));
            1
        })
    }
}

/// The metric's number, from 1; 0: the proxy has no room, or has it as another kind; -1: metrics are
/// defined while a plugin loads.
unsafe extern "C" fn metric_define(
    call: *mut CallState,
    kind: i32,
    name: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let Some(kind) = metric_kind(kind) else {
                return 0;
            };
            let name = text(bytes(name, length));
            let number = |id: MetricId| i32::try_from(id.0).map_or(0, |id| id.saturating_add(1));
            if let Some(id) = state.shared.find_metric(kind, &name) {
                return number(id);
            }
            match state.metrics {
                // SAFETY: it is there only while its borrow lasts.
                Some(mut metrics) => state
                    .shared
                    .define_metric(metrics.as_mut(), kind, &name)
                    .map_or(0, number),
                None => -1,
            }
        })
    }
}

/// 1.
unsafe extern "C" fn metric_add(call: *mut CallState, id: i32, amount: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.add_metric(metric_id(id), amount as i64);
            1
        })
    }
}

/// 1.
unsafe extern "C" fn metric_record(call: *mut CallState, id: i32, value: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.record_metric(metric_id(id), value as u64);
            1
        })
    }
}

/// 1: here it is; 0: it has none.
unsafe extern "C" fn metric_get(call: *mut CallState, id: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| match stream.metric(metric_id(id)) {
            Some(value) => {
                state.head.number = value as f64;
                1
            }
            None => 0,
        })
    }
}

/// Whether lines of a level are written.
unsafe extern "C" fn log_enabled(call: *mut CallState, level: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            i32::from(stream.log_enabled(log_level(level)))
        })
    }
}

/// 1.
unsafe extern "C" fn log(call: *mut CallState, level: i32, message: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |_, stream| {
            let level = log_level(level);
            if stream.log_enabled(level) {
                stream.log(level, &text(bytes(message, length)));
            }
            1
        })
    }
}

/// 1.
unsafe extern "C" fn file_log(call: *mut CallState, message: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let message = bytes(message, length);
            match (&state.shared.file_log, state.stream) {
                (Some(file), _) => {
                    file.write(message);
                    1
                }
                (None, Some(stream)) => {
                    // SAFETY: see `with_stream`.
                    stream.as_ref().log(LogLevel::Info, &text(message));
                    1
                }
                (None, None) => 1,
            }
        })
    }
}

/// 1: here it is.
unsafe extern "C" fn now(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.head.number = stream.unix_millis() as f64;
            1
        })
    }
}

/// 1: here it is.
unsafe extern "C" fn start_time(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.head.number = stream.start_unix_millis() as f64;
            1
        })
    }
}

/// The number of the stream's entry, which is made; -3: it has been lost.
unsafe extern "C" fn stream_index(call: *mut CallState) -> i32 {
    const LOST: i32 = -3;
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            match state.streams.entry(&mut state.slot) {
                Some((index, entry)) => {
                    entry.shares = true;
                    i32::try_from(index).unwrap_or(LOST)
                }
                None => LOST,
            }
        })
    }
}

/// 1: here it is; 0: there is no such argument.
unsafe extern "C" fn argument(call: *mut CallState, index: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            match state.arguments.get(index).cloned() {
                Some(value) => {
                    show(state, value.as_bytes());
                    1
                }
                None => 0,
            }
        })
    }
}

/// 1.
unsafe extern "C" fn result(call: *mut CallState, kind: i32, value: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            state
                .results
                .push((kind, text(bytes(value, length)).into_owned()));
            1
        })
    }
}

/// 1: here is the file's text; 0: the plugin has no such file.
unsafe extern "C" fn file(call: *mut CallState, name: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let shared = std::sync::Arc::clone(&state.shared);
            match shared.files.get(&*text(bytes(name, length))) {
                Some(source) => {
                    show(state, source.as_bytes());
                    1
                }
                None => 0,
            }
        })
    }
}

/// 1: the document is on the tape; 0: it is none, and here is why.
unsafe extern "C" fn json_parse(call: *mut CallState, value: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| match tape::parse(bytes(value, length)) {
            Ok(document) => {
                state.document = document;
                state.tape.clear();
                tape::write(&state.document, &mut state.tape);
                state.head.tape = state.tape.as_ptr();
                state.head.count = i32::try_from(state.tape.len()).unwrap_or(i32::MAX);
                1
            }
            Err(error) => {
                show_text(state, &error.to_string());
                0
            }
        })
    }
}

/// 1.
unsafe extern "C" fn base64_encode(call: *mut CallState, value: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let encoded = base64::engine::general_purpose::STANDARD.encode(bytes(value, length));
            state.scratch = encoded.into_bytes();
            show_scratch(state);
            1
        })
    }
}

/// 1: here it is; 0: it is not Base64. Takes both alphabets, with and without padding.
unsafe extern "C" fn base64_decode(call: *mut CallState, value: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
            let value = bytes(value, length);
            let unpadded = match value {
                [head @ .., b'=', b'='] | [head @ .., b'='] => head,
                whole => whole,
            };
            let engine = if unpadded.iter().any(|byte| matches!(byte, b'-' | b'_')) {
                &URL_SAFE_NO_PAD
            } else {
                &STANDARD_NO_PAD
            };
            match engine.decode(unpadded) {
                Ok(decoded) => {
                    state.scratch = decoded;
                    show_scratch(state);
                    1
                }
                Err(_) => 0,
            }
        })
    }
}

/// The address of [`HOST`], for Lua.
pub(super) fn host_address() -> *mut c_void {
    (&raw const HOST).cast_mut().cast()
}
