//! What a guest exports: its callbacks, each looked up once and called by its type.

use outrider_plugin_api::{BodyMode, Interest};
use wasmtime::{AsContextMut, ExternType, Instance, Module, TypedFunc};

use crate::abi::Version;
use crate::sequences::Sequences;

type Void<P> = Option<TypedFunc<P, ()>>;
type Answering<P> = Option<TypedFunc<P, i32>>;

/// A headers callback: versions differ in whether they are told of the end of the stream.
pub(crate) enum OnHeaders {
    Absent,
    Counted(TypedFunc<(i32, i32), i32>),
    CountedAndEnd(TypedFunc<(i32, i32, i32), i32>),
}

/// The callbacks; absent ones are never called.
pub(crate) struct Exports {
    pub(crate) on_context_create: Void<(i32, i32)>,
    pub(crate) on_vm_start: Answering<(i32, i32)>,
    pub(crate) on_configure: Answering<(i32, i32)>,
    pub(crate) on_tick: Void<i32>,
    pub(crate) on_queue_ready: Void<(i32, i32)>,
    pub(crate) on_request_headers: OnHeaders,
    pub(crate) on_request_body: Answering<(i32, i32, i32)>,
    pub(crate) on_request_trailers: Answering<(i32, i32)>,
    pub(crate) on_response_headers: OnHeaders,
    pub(crate) on_response_body: Answering<(i32, i32, i32)>,
    pub(crate) on_response_trailers: Answering<(i32, i32)>,
    pub(crate) on_http_call_response: Void<(i32, i32, i32, i32, i32)>,
    pub(crate) on_grpc_receive_initial_metadata: Void<(i32, i32, i32)>,
    pub(crate) on_grpc_receive: Void<(i32, i32, i32)>,
    pub(crate) on_grpc_receive_trailing_metadata: Void<(i32, i32, i32)>,
    pub(crate) on_grpc_close: Void<(i32, i32, i32)>,
    pub(crate) on_done: Answering<i32>,
    pub(crate) on_log: Void<i32>,
    pub(crate) on_delete: Void<i32>,
    /// Callbacks that are called as one.
    pub(crate) sequences: Option<Sequences>,
}

impl std::fmt::Debug for Exports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exports").finish_non_exhaustive()
    }
}

fn find<P, R>(
    instance: &Instance,
    store: &mut impl AsContextMut,
    name: &str,
) -> Result<Option<TypedFunc<P, R>>, String>
where
    P: wasmtime::WasmParams,
    R: wasmtime::WasmResults,
{
    let Some(function) = instance.get_func(&mut *store, name) else {
        return Ok(None);
    };
    function
        .typed::<P, R>(&*store)
        .map(Some)
        .map_err(|error| format!("its export {name} has not the type of the interface: {error}"))
}

fn on_headers(
    instance: &Instance,
    store: &mut impl AsContextMut,
    name: &str,
) -> Result<OnHeaders, String> {
    if let Ok(Some(function)) = find(instance, store, name) {
        return Ok(OnHeaders::CountedAndEnd(function));
    }
    Ok(match find(instance, store, name)? {
        Some(function) => OnHeaders::Counted(function),
        None => OnHeaders::Absent,
    })
}

impl Exports {
    /// Looks them up.
    ///
    /// # Errors
    /// One of them has another type.
    pub(crate) fn find(instance: &Instance, store: &mut impl AsContextMut) -> Result<Self, String> {
        let trailing = match find(instance, store, "proxy_on_grpc_receive_trailing_metadata")? {
            Some(function) => Some(function),
            // The name by which AssemblyScript's SDK exports it.
            None => find(instance, store, "proxy_on_grpc_trailing_metadata")?,
        };
        Ok(Self {
            on_context_create: find(instance, store, "proxy_on_context_create")?,
            on_vm_start: find(instance, store, "proxy_on_vm_start")?,
            on_configure: find(instance, store, "proxy_on_configure")?,
            on_tick: find(instance, store, "proxy_on_tick")?,
            on_queue_ready: find(instance, store, "proxy_on_queue_ready")?,
            on_request_headers: on_headers(instance, store, "proxy_on_request_headers")?,
            on_request_body: find(instance, store, "proxy_on_request_body")?,
            on_request_trailers: find(instance, store, "proxy_on_request_trailers")?,
            on_response_headers: on_headers(instance, store, "proxy_on_response_headers")?,
            on_response_body: find(instance, store, "proxy_on_response_body")?,
            on_response_trailers: find(instance, store, "proxy_on_response_trailers")?,
            on_http_call_response: find(instance, store, "proxy_on_http_call_response")?,
            on_grpc_receive_initial_metadata: find(
                instance,
                store,
                "proxy_on_grpc_receive_initial_metadata",
            )?,
            on_grpc_receive: find(instance, store, "proxy_on_grpc_receive")?,
            on_grpc_receive_trailing_metadata: trailing,
            on_grpc_close: find(instance, store, "proxy_on_grpc_close")?,
            on_done: find(instance, store, "proxy_on_done")?,
            on_log: find(instance, store, "proxy_on_log")?,
            on_delete: find(instance, store, "proxy_on_delete")?,
            sequences: None,
        })
    }
}

/// The newest version of the ABI whose marker a module exports.
pub(crate) fn version(module: &Module) -> Option<Version> {
    Version::ALL
        .into_iter()
        .rev()
        .find(|version| module.get_export(version.marker()).is_some())
}

/// What a module's callbacks are for.
pub(crate) fn interest(module: &Module) -> Interest {
    let has = |name| matches!(module.get_export(name), Some(ExternType::Func(_)));
    let body = |name| {
        if has(name) {
            BodyMode::Stream
        } else {
            BodyMode::None
        }
    };
    Interest {
        request_headers: has("proxy_on_request_headers"),
        request_body: body("proxy_on_request_body"),
        request_trailers: has("proxy_on_request_trailers"),
        response_headers: has("proxy_on_response_headers"),
        response_body: body("proxy_on_response_body"),
        response_trailers: has("proxy_on_response_trailers"),
        // A context has a beginning and an end, also on a stream of which nothing else is told.
        log: has("proxy_on_log") || has("proxy_on_done") || has("proxy_on_delete"),
    }
}
