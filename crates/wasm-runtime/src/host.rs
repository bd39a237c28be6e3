//! The functions that guests import, by name: one list for all versions of the ABI, because a module that
//! imports a function of another version's says with that that it can do without.
//!
//! Each function has a short way, and one that is taken when calls are traced, in a sequence of callbacks, or
//! while the guest's start functions or its allocator run, in which most functions are not to be had.

#![expect(
    clippy::unnecessary_wraps,
    reason = "all of them answer alike: those that call the guest's allocator can end its call"
)]

pub(crate) mod buffers;
pub(crate) mod callouts;
pub(crate) mod contexts;
pub(crate) mod foreign;
pub(crate) mod grpc;
pub(crate) mod headers;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod properties;
pub(crate) mod replies;
pub(crate) mod shared;
pub(crate) mod wasi;

use std::fmt::Write as _;

use outrider_plugin_api::LogLevel;
use wasmtime::{Caller, Engine, Linker, bail};

use crate::guest_memory;
use crate::sequences;
use crate::state::{Gate, State};

/// A host function that guests can import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFunction {
    /// The module that it is imported from.
    pub module: &'static str,
    /// Its name there.
    pub name: &'static str,
}

/// Functions that can be had while a guest's start functions run, beside WASI's.
const STARTING: &[&str] = &["proxy_log"];
/// Functions that can be had while a guest allocates.
const ALLOCATING: &[&str] = &[
    "proxy_log",
    "fd_write",
    "clock_time_get",
    "poll_oneoff",
    "sched_yield",
];

/// A value that passes the boundary, for the trace.
trait Traced: Copy {
    fn number(self) -> i64;
}

impl Traced for i32 {
    fn number(self) -> i64 {
        i64::from(self)
    }
}

impl Traced for i64 {
    fn number(self) -> i64 {
        self
    }
}

macro_rules! functions {
    ($($module:literal { $($name:ident($($argument:ident: $kind:ty),*) = $function:path;)* })*) => {
        /// All of them.
        pub(crate) const FUNCTIONS: &[HostFunction] = &[
            $($(HostFunction { module: $module, name: stringify!($name) },)*)*
        ];

        fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
            $($(
                linker.func_wrap(
                    $module,
                    stringify!($name),
                    |mut caller: Caller<'_, State>, $($argument: $kind),*| -> wasmtime::Result<i32> {
                        if caller.data().gate.is_open() {
                            return Ok($function(&mut caller, $($argument),*)? as i32);
                        }
                        guarded($module, stringify!($name), &mut caller, &[$($argument.number()),*], |caller| {
                            Ok($function(caller, $($argument),*)? as i32)
                        })
                    },
                )?;
            )*)*
            Ok(())
        }
    };
}

functions! {
    "env" {
        proxy_log(level: i32, message: i32, length: i32) = logs::log;
        proxy_get_log_level(level: i32) = logs::get_log_level;
        proxy_get_current_time_nanoseconds(time: i32) = logs::get_current_time;
        proxy_get_status(code: i32, message: i32, length: i32) = callouts::get_status;

        proxy_get_property(path: i32, path_length: i32, value: i32, length: i32) = properties::get;
        proxy_set_property(path: i32, path_length: i32, value: i32, length: i32) = properties::set;

        proxy_get_header_map_value(map: i32, key: i32, key_length: i32, value: i32, length: i32) = headers::get;
        proxy_add_header_map_value(map: i32, key: i32, key_length: i32, value: i32, length: i32) = headers::add;
        proxy_replace_header_map_value(map: i32, key: i32, key_length: i32, value: i32, length: i32)
            = headers::replace;
        proxy_remove_header_map_value(map: i32, key: i32, key_length: i32) = headers::remove;
        proxy_get_header_map_pairs(map: i32, pairs: i32, length: i32) = headers::get_pairs;
        proxy_set_header_map_pairs(map: i32, pairs: i32, length: i32) = headers::set_pairs;
        proxy_get_header_map_size(map: i32, size: i32) = headers::size;

        proxy_get_buffer_bytes(buffer: i32, start: i32, most: i32, value: i32, length: i32) = buffers::get;
        proxy_set_buffer_bytes(buffer: i32, start: i32, size: i32, value: i32, length: i32) = buffers::set;
        proxy_get_buffer_status(buffer: i32, length: i32, flags: i32) = buffers::status;
        proxy_get_configuration(value: i32, length: i32) = buffers::configuration;

        proxy_send_local_response(
            status: i32, details: i32, details_length: i32, body: i32, body_length: i32, headers: i32,
            headers_length: i32, grpc_status: i32
        ) = replies::send;
        proxy_continue_stream(stream: i32) = replies::continue_stream;
        proxy_close_stream(stream: i32) = replies::close_stream;
        proxy_continue_request() = replies::continue_request;
        proxy_continue_response() = replies::continue_response;
        proxy_clear_route_cache() = replies::clear_route_cache;

        proxy_http_call(
            upstream: i32, upstream_length: i32, headers: i32, headers_length: i32, body: i32, body_length: i32,
            trailers: i32, trailers_length: i32, timeout: i32, token: i32
        ) = callouts::http_call;

        proxy_grpc_call(
            upstream: i32, upstream_length: i32, service: i32, service_length: i32, method: i32,
            method_length: i32, metadata: i32, metadata_length: i32, message: i32, message_length: i32,
            timeout: i32, token: i32
        ) = grpc::call;
        proxy_grpc_stream(
            upstream: i32, upstream_length: i32, service: i32, service_length: i32, method: i32,
            method_length: i32, metadata: i32, metadata_length: i32, token: i32
        ) = grpc::stream;
        proxy_grpc_send(token: i32, message: i32, length: i32, end_of_stream: i32) = grpc::send;
        proxy_grpc_cancel(token: i32) = grpc::cancel;
        proxy_grpc_close(token: i32) = grpc::close;

        proxy_call_foreign_function(
            name: i32, name_length: i32, arguments: i32, arguments_length: i32, result: i32, length: i32
        ) = foreign::call;

        proxy_set_effective_context(context: i32) = contexts::set_effective;
        proxy_done() = contexts::done;
        proxy_set_tick_period_milliseconds(period: i32) = contexts::set_tick_period;

        proxy_get_shared_data(key: i32, key_length: i32, value: i32, length: i32, cas: i32) = shared::get;
        proxy_set_shared_data(key: i32, key_length: i32, value: i32, length: i32, cas: i32) = shared::set;
        proxy_register_shared_queue(name: i32, length: i32, token: i32) = shared::register_queue;
        proxy_resolve_shared_queue(vm: i32, vm_length: i32, name: i32, length: i32, token: i32)
            = shared::resolve_queue;
        proxy_dequeue_shared_queue(token: i32, value: i32, length: i32) = shared::dequeue;
        proxy_enqueue_shared_queue(token: i32, value: i32, length: i32) = shared::enqueue;

        proxy_define_metric(kind: i32, name: i32, length: i32, id: i32) = metrics::define;
        proxy_increment_metric(id: i32, amount: i64) = metrics::increment;
        proxy_record_metric(id: i32, value: i64) = metrics::record;
        proxy_get_metric(id: i32, value: i32) = metrics::get;
    }
}

/// The long way.
#[cold]
pub(crate) fn guarded(
    module: &'static str,
    name: &'static str,
    caller: &mut Caller<'_, State>,
    arguments: &[i64],
    call: impl FnOnce(&mut Caller<'_, State>) -> wasmtime::Result<i32>,
) -> wasmtime::Result<i32> {
    let gate = caller.data().gate;
    if gate.has(Gate::INSTANTIATING) {
        guest_memory::find_memory(caller);
    }
    if gate.has(Gate::BEGINNING) || gate.has(Gate::ENDING) {
        sequences::follow(caller);
    }
    if gate.has(Gate::ALLOCATING) && !ALLOCATING.contains(&name) {
        bail!("{name} cannot be called while the guest's allocator runs");
    }
    if gate.has(Gate::STARTING) && module == "env" && !STARTING.contains(&name) {
        bail!("{name} cannot be called while the guest starts (_initialize, _start, main)");
    }
    if !gate.has(Gate::TRACE) {
        return call(caller);
    }
    let answer = call(caller);
    let mut line = format!("[vm->host] {module}.{name}({}) -> ", listed(arguments));
    let written = match &answer {
        Ok(answer) => write!(line, "{answer}"),
        Err(error) => write!(line, "{error}"),
    };
    if written.is_ok() {
        caller.data_mut().log(LogLevel::Info, &line);
    }
    answer
}

/// Numbers with commas between them.
pub(crate) fn listed(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

/// What guests can import.
///
/// # Errors
/// None that a caller could mend: two functions have one name.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    define(&mut linker)?;
    wasi::define(&mut linker)?;
    Ok(linker)
}

/// All functions that guests can import, with the modules that they are imported from.
pub fn all() -> impl Iterator<Item = HostFunction> {
    let other = [
        HostFunction {
            module: "env",
            name: "emscripten_notify_memory_growth",
        },
        HostFunction {
            module: "env",
            name: "pthread_equal",
        },
    ];
    FUNCTIONS
        .iter()
        .copied()
        .chain(other)
        .chain(wasi::functions())
}
