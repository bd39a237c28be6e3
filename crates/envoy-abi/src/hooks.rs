//! The functions that Envoy calls. Envoy resolves every HTTP hook when a filter configuration loads,
//! so all are here, those that nothing is done in too.
//!
//! No panic leaves a hook. One in a hook of a stream ends that stream, with a 500 or a reset: a request never goes on
//! as if no plugin had been there. Later hooks of such a stream do nothing.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;

use outrider_plugin_api::{
    CalloutFailure, CalloutId, Direction, Effects, HttpStreamEvent, HttpStreamId, LogLevel,
    Verdict, Wake,
};
use smallvec::SmallVec;

use crate::access_log;
use crate::background;
use crate::callbacks::callbacks;
use crate::callout::Ended;
use crate::exchanges;
use crate::filter::{Broken, Filter, answer};
use crate::module::{ConfigContext, FilterConfig, RouteConfig, module};
use crate::raw::{ConfigPtr, EnvoyBuffer, EnvoyHeader, FilterPtr, body_status, headers_status};
use crate::worker;

/// Runs a hook's body; a panic is logged and answered with `otherwise`.
pub(crate) fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => {
            log_panic(panic);
            otherwise
        }
    }
}

fn log_panic(panic: Box<dyn Any + Send>) {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    crate::log::log(
        LogLevel::Error,
        &format!("outrider panicked, which is a bug of it: {text}"),
    );
    // What it carries may panic again when it is dropped.
    Box::leak(panic);
}

/// Runs the body of a hook of a stream, unless the stream was broken off before: then `broken` is the hook's answer.
/// A panic is logged and breaks it off, and the answer is `stop`.
///
/// # Safety
/// `module` is what `filter_new` returned, and the filter is alive.
unsafe fn guarded_stream<T>(
    filter: FilterPtr,
    module: *const c_void,
    broken: impl FnOnce(Broken) -> T,
    stop: T,
    body: impl FnOnce(&Rc<Filter>) -> T,
) -> T {
    // SAFETY: the caller's promise is passed on.
    let state = unsafe { state(module) };
    if let Some(how) = state.broken() {
        return broken(how);
    }
    match catch_unwind(AssertUnwindSafe(|| body(&state))) {
        Ok(result) => result,
        Err(panic) => {
            log_panic(panic);
            guarded((), || state.break_off(filter));
            stop
        }
    }
}

/// The answer of a hook of a stream that was broken off: nothing goes on but Outrider's own reply.
fn broken_answer(how: Broken, direction: Direction, go: u32, stop: u32) -> u32 {
    match (how, direction) {
        (Broken::Replied, Direction::Response) => go,
        _ => stop,
    }
}

/// The name that Envoy gave, as text.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// A filter configuration has come.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: ConfigPtr,
    name: EnvoyBuffer,
    document: EnvoyBuffer,
) -> *const c_void {
    guarded(ptr::null(), || {
        let (Some(module), Some(callbacks)) = (module(), callbacks()) else {
            return ptr::null();
        };
        // SAFETY: Envoy's buffers live until the hook returns.
        let (name, document) = unsafe { (name.bytes(), document.bytes()) };
        worker::mark_main_thread();
        let context = ConfigContext::new(config, callbacks);
        match module.filter_config(&context, &text(name), document) {
            Some(made) => {
                let kept = Box::new(made);
                background::add_config(&raw const *kept as usize, config, &kept);
                exchanges::end_all_later();
                Box::into_raw(kept).cast_const().cast()
            }
            None => ptr::null(),
        }
    })
}

/// A filter configuration is gone.
///
/// # Safety
/// Called by Envoy, as its ABI says, once for what the hook above returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: *const c_void) {
    guarded((), || {
        // Envoy frees it when this hook returns: no thread uses its pointer from here on, and what it carried
        // has ended.
        if let Some(pointer) = background::remove_config(config as usize) {
            exchanges::abandon(pointer);
        }
        // SAFETY: made by `Box::into_raw` above, and given back once.
        drop(unsafe { Box::from_raw(config.cast_mut().cast::<Arc<dyn FilterConfig>>()) });
    });
}

/// A route's configuration has come.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(
    name: EnvoyBuffer,
    document: EnvoyBuffer,
) -> *const c_void {
    guarded(ptr::null(), || {
        let Some(module) = module() else {
            return ptr::null();
        };
        // SAFETY: Envoy's buffers live until the hook returns.
        let (name, document) = unsafe { (name.bytes(), document.bytes()) };
        match module.route_config(&text(name), document) {
            Some(made) => Box::into_raw(Box::new(made)).cast_const().cast(),
            None => ptr::null(),
        }
    })
}

/// A route's configuration is gone.
///
/// # Safety
/// Called by Envoy, as its ABI says, once for what the hook above returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_destroy(
    route: *const c_void,
) {
    guarded((), || {
        // SAFETY: made by `Box::into_raw` above, and given back once.
        drop(unsafe { Box::from_raw(route.cast_mut().cast::<RouteConfig>()) });
    });
}

/// A stream begins.
///
/// # Safety
/// Called by Envoy, as its ABI says, with a configuration that `config_new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
    config: *const c_void,
    _filter: FilterPtr,
) -> *const c_void {
    guarded(ptr::null(), || {
        let Some(callbacks) = callbacks() else {
            return ptr::null();
        };
        // SAFETY: made by `config_new`, and alive as long as filters are made of it.
        let config = unsafe { &*config.cast::<Arc<dyn FilterConfig>>() };
        let filter = Filter::new(callbacks, Arc::clone(config));
        Rc::into_raw(filter).cast()
    })
}

/// A stream is gone.
///
/// # Safety
/// Called by Envoy, as its ABI says, once for what the hook above returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(module: *const c_void) {
    guarded((), || {
        // SAFETY: made by `Rc::into_raw` above, and given back once. A hook that is still running
        // further up the stack has a count of its own.
        unsafe { Rc::from_raw(module.cast::<Filter>()) }.retire();
    });
}

/// The state of a stream's filter, kept alive for as long as the hook needs it, whatever becomes of
/// the filter in between.
///
/// # Safety
/// `module` is what `filter_new` returned, and the filter is alive.
unsafe fn state(module: *const c_void) -> Rc<Filter> {
    let module = module.cast::<Filter>();
    // SAFETY: made by `Rc::into_raw`; the count taken here is the returned value's.
    unsafe {
        Rc::increment_strong_count(module);
        Rc::from_raw(module)
    }
}

/// Headers of a direction.
unsafe fn on_headers(
    filter: FilterPtr,
    module: *const c_void,
    direction: Direction,
    end_of_stream: bool,
) -> u32 {
    let (go, stop) = (headers_status::CONTINUE, headers_status::STOP_ITERATION);
    let broken = |how| broken_answer(how, direction, go, stop);
    // SAFETY: the caller's promise is passed on.
    unsafe {
        guarded_stream(filter, module, broken, stop, |state| {
            let verdict = state.pass(
                filter,
                None,
                |run| run.pass_headers(direction, end_of_stream),
                |run, host| run.on_headers(direction, end_of_stream, host),
            );
            if direction == Direction::Response && verdict == Some(Verdict::Continue) {
                state.start_response();
            }
            answer(verdict, go, stop, stop, stop)
        })
    }
}

/// A chunk of a direction.
unsafe fn on_body(
    filter: FilterPtr,
    module: *const c_void,
    direction: Direction,
    end_of_stream: bool,
) -> u32 {
    let (go, stop) = (body_status::CONTINUE, body_status::STOP_NO_BUFFER);
    let broken = |how| broken_answer(how, direction, go, stop);
    // SAFETY: the caller's promise is passed on.
    unsafe {
        guarded_stream(filter, module, broken, stop, |state| {
            let verdict = state.pass(
                filter,
                Some(direction),
                |run| run.lets_pass(direction),
                |run, host| run.on_body(direction, end_of_stream, host),
            );
            answer(
                verdict,
                go,
                body_status::STOP_AND_WATERMARK,
                body_status::STOP_AND_BUFFER,
                stop,
            )
        })
    }
}

/// Trailers of a direction.
unsafe fn on_trailers(filter: FilterPtr, module: *const c_void, direction: Direction) -> u32 {
    let (go, stop) = (headers_status::CONTINUE, headers_status::STOP_ITERATION);
    let broken = |how| broken_answer(how, direction, go, stop);
    // SAFETY: the caller's promise is passed on.
    unsafe {
        guarded_stream(filter, module, broken, stop, |state| {
            let verdict = state.pass(
                filter,
                None,
                |run| run.lets_pass(direction),
                |run, host| run.on_trailers(direction, host),
            );
            answer(verdict, go, stop, stop, stop)
        })
    }
}

/// An event of something that a plugin started.
unsafe fn on_event(filter: FilterPtr, module: *const c_void, wake: Wake<'_>) {
    // SAFETY: the caller's promise is passed on.
    let state = unsafe { state(module) };
    state.queue(filter, &wake);
}

macro_rules! hooks {
    ($($(#[$doc:meta])* $name:ident => $handle:ident($direction:ident $(, $end:ident)?);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Called by Envoy, as its ABI says, with what `filter_new` returned.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(filter: FilterPtr, module: *const c_void $(, $end: bool)?) -> u32 {
            // SAFETY: the caller's promise is passed on.
            unsafe { $handle(filter, module, Direction::$direction $(, $end)?) }
        }
    )*};
}

hooks! {
    /// Request headers.
    envoy_dynamic_module_on_http_filter_request_headers => on_headers(Request, end_of_stream);
    /// A chunk of the request's body.
    envoy_dynamic_module_on_http_filter_request_body => on_body(Request, end_of_stream);
    /// Request trailers.
    envoy_dynamic_module_on_http_filter_request_trailers => on_trailers(Request);
    /// Response headers.
    envoy_dynamic_module_on_http_filter_response_headers => on_headers(Response, end_of_stream);
    /// A chunk of the response's body.
    envoy_dynamic_module_on_http_filter_response_body => on_body(Response, end_of_stream);
    /// Response trailers.
    envoy_dynamic_module_on_http_filter_response_trailers => on_trailers(Response);
}

/// The stream is complete; access logs come next.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(
    filter: FilterPtr,
    module: *const c_void,
) {
    // SAFETY: the caller's promise is passed on.
    let state = unsafe { state(module) };
    access_log::stream_ends(&state);
    // The stream is over: nothing is left to break off.
    if state.broken().is_some() {
        return;
    }
    guarded((), || {
        state.step(
            filter,
            None,
            |run| run.pass_log().then_some(()),
            |run, host| {
                run.on_log(host);
                ((), Effects::default())
            },
        );
    });
}

/// A callout is done.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_http_callout_done(
    filter: FilterPtr,
    module: *const c_void,
    id: u64,
    result: u32,
    headers: *const EnvoyHeader,
    headers_length: usize,
    chunks: *const EnvoyBuffer,
    chunks_length: usize,
) {
    guarded((), || {
        // SAFETY: Envoy's arrays live until the hook returns.
        let ended = unsafe { Ended::new(result, headers, headers_length, chunks, chunks_length) };
        let wake = Wake::Callout(CalloutId(id), ended.outcome());
        // SAFETY: the caller's promise is passed on.
        unsafe { on_event(filter, module, wake) };
    });
}

/// Headers or trailers of a response on an HTTP stream.
///
/// # Safety
/// As Envoy's ABI says of the hooks below.
unsafe fn on_http_stream_headers(
    filter: FilterPtr,
    module: *const c_void,
    headers: (*const EnvoyHeader, usize),
    wake: impl for<'a> FnOnce(&'a [(&'a [u8], &'a [u8])]) -> (u64, HttpStreamEvent<'a>),
) {
    guarded((), || {
        // SAFETY: Envoy's array lives until the hook returns; an empty one may be null.
        let headers = unsafe { fields(headers.0, headers.1) };
        let (id, event) = wake(&headers);
        // SAFETY: the caller's promise is passed on.
        unsafe { on_event(filter, module, Wake::HttpStream(HttpStreamId(id), event)) };
    });
}

/// The headers of a response on an HTTP stream.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_headers(
    filter: FilterPtr,
    module: *const c_void,
    id: u64,
    headers: *const EnvoyHeader,
    length: usize,
    end_of_stream: bool,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        on_http_stream_headers(filter, module, (headers, length), |headers| {
            let event = HttpStreamEvent::Headers {
                headers,
                end_of_stream,
            };
            (id, event)
        });
    }
}

/// A part of the body of a response on an HTTP stream.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_data(
    filter: FilterPtr,
    module: *const c_void,
    id: u64,
    pieces: *const EnvoyBuffer,
    length: usize,
    end_of_stream: bool,
) {
    guarded((), || {
        // SAFETY: Envoy's array lives until the hook returns; an empty one may be null.
        let pieces = unsafe { pieces_of(pieces, length) };
        let event = HttpStreamEvent::Data {
            pieces: &pieces,
            end_of_stream,
        };
        // SAFETY: the caller's promise is passed on.
        unsafe { on_event(filter, module, Wake::HttpStream(HttpStreamId(id), event)) };
    });
}

/// The trailers of a response on an HTTP stream.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_trailers(
    filter: FilterPtr,
    module: *const c_void,
    id: u64,
    trailers: *const EnvoyHeader,
    length: usize,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe {
        on_http_stream_headers(filter, module, (trailers, length), |trailers| {
            (id, HttpStreamEvent::Trailers(trailers))
        });
    }
}

/// Request and response of an HTTP stream are complete.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_complete(
    filter: FilterPtr,
    module: *const c_void,
    id: u64,
) {
    guarded((), || {
        let wake = Wake::HttpStream(HttpStreamId(id), HttpStreamEvent::Complete);
        // SAFETY: the caller's promise is passed on.
        unsafe { on_event(filter, module, wake) };
    });
}

/// An HTTP stream was reset. Envoy names the same reason for whatever it was.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_reset(
    filter: FilterPtr,
    module: *const c_void,
    id: u64,
    _reason: u32,
) {
    guarded((), || {
        let event = HttpStreamEvent::Failed(CalloutFailure::Reset);
        // SAFETY: the caller's promise is passed on.
        unsafe { on_event(filter, module, Wake::HttpStream(HttpStreamId(id), event)) };
    });
}

/// Names and values in Envoy's array, which may be null when it is empty.
///
/// # Safety
/// The array has that length; it and what it points at outlive `'a`.
pub(crate) unsafe fn fields<'a>(
    pointer: *const EnvoyHeader,
    length: usize,
) -> SmallVec<[(&'a [u8], &'a [u8]); 16]> {
    // SAFETY: the caller's promise.
    let headers = unsafe { array(pointer, length) }.iter();
    // SAFETY: as above.
    headers
        .map(|header| unsafe { (header.name.bytes(), header.value.bytes()) })
        .collect()
}

/// The pieces of a body in such an array.
///
/// # Safety
/// As for [`fields`].
pub(crate) unsafe fn pieces_of<'a>(
    pointer: *const EnvoyBuffer,
    length: usize,
) -> SmallVec<[&'a [u8]; 8]> {
    // SAFETY: the caller's promise.
    let pieces = unsafe { array(pointer, length) }.iter();
    // SAFETY: as above.
    pieces.map(|piece| unsafe { piece.bytes() }).collect()
}

/// Envoy's array, which may be null when it is empty.
///
/// # Safety
/// The array has that length and outlives `'a`.
unsafe fn array<'a, T>(pointer: *const T, length: usize) -> &'a [T] {
    if pointer.is_null() || length == 0 {
        &[]
    } else {
        // SAFETY: not null; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(pointer, length) }
    }
}

/// A scheduler called back: it is the filter's turn to deliver timers and events.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    filter: FilterPtr,
    module: *const c_void,
    _event: u64,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe { guarded_stream(filter, module, |_| (), (), |state| state.deliver(filter)) }
}

/// A local reply is about to be sent; nothing is changed about it here.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_local_reply(
    _filter: FilterPtr,
    _module: *const c_void,
    _code: u32,
    _details: EnvoyBuffer,
    _reset_imminent: bool,
) -> u32 {
    0
}

macro_rules! unused_hooks {
    ($($name:ident($($type:ty),*);)*) => {$(
        /// Not used: nothing that leads to it is ever asked of Envoy.
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $type),*) {}
    )*};
}

type Pointer = *const c_void;

unused_hooks! {
    envoy_dynamic_module_on_http_filter_config_scheduled(Pointer, Pointer, u64);
    envoy_dynamic_module_on_http_filter_config_http_callout_done(Pointer, Pointer, u64, u32, Pointer, usize, Pointer, usize);
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(Pointer, Pointer);
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(Pointer, Pointer);
}

#[cfg(test)]
mod tests;
