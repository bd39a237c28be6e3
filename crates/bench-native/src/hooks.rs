//! The functions that Envoy calls. It looks up every one of an HTTP filter's when a configuration
//! loads, so all are here; only five have something to do. None can panic.
//!
//! A stream has no state: what Envoy is given for it is its configuration, which outlives it.

use std::ffi::{c_char, c_void};
use std::ptr;

use crate::abi::{CONTINUE, EnvoyBuffer, FilterPtr, STOP_AND_BUFFER, STOP_ITERATION, VERSION};
use crate::work::Work;

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    VERSION.as_ptr()
}

/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    _config: *mut c_void,
    _name: EnvoyBuffer,
    document: EnvoyBuffer,
) -> *const c_void {
    // SAFETY: Envoy's buffer lives until the hook returns.
    let text = String::from_utf8_lossy(unsafe { document.bytes() });
    Work::parse(&text).map_or(ptr::null(), |work| {
        Box::into_raw(Box::new(work)).cast_const().cast()
    })
}

/// # Safety
/// Called by Envoy, as its ABI says, once for what the hook above returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(work: *const c_void) {
    // SAFETY: made by `Box::into_raw` above, and given back once.
    drop(unsafe { Box::from_raw(work.cast_mut().cast::<Work>()) });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_new(
    work: *const c_void,
    _filter: FilterPtr,
) -> *const c_void {
    work
}

/// # Safety
/// `module` is what `filter_new` returned, and the configuration is alive.
unsafe fn work<'a>(module: *const c_void) -> &'a Work {
    // SAFETY: made by `config_new`; Envoy keeps it as long as a filter of it lives.
    unsafe { &*module.cast::<Work>() }
}

/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    filter: FilterPtr,
    module: *const c_void,
    end_of_stream: bool,
) -> u32 {
    // SAFETY: the caller's promise is passed on.
    let work = unsafe { work(module) };
    let goes_on = work.on_request_headers(filter);
    if !goes_on || (work.wants_body() && !end_of_stream) {
        STOP_ITERATION
    } else {
        CONTINUE
    }
}

/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_body(
    filter: FilterPtr,
    module: *const c_void,
    end_of_stream: bool,
) -> u32 {
    // SAFETY: the caller's promise is passed on.
    let work = unsafe { work(module) };
    if !work.wants_body() {
        return CONTINUE;
    }
    if !end_of_stream {
        return STOP_AND_BUFFER;
    }
    work.on_request_body(filter);
    CONTINUE
}

/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    filter: FilterPtr,
    module: *const c_void,
    _end_of_stream: bool,
) -> u32 {
    // SAFETY: the caller's promise is passed on.
    unsafe { work(module) }.on_response_headers(filter);
    CONTINUE
}

type Pointer = *const c_void;

macro_rules! idle_hooks {
    ($($name:ident($($type:ty),*) $(-> $result:ident)?;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $type),*) $(-> $result)? {
            $($result::default())?
        }
    )*};
}

// The zero that those with a result return means "go on" in each of their enumerations.
idle_hooks! {
    envoy_dynamic_module_on_http_filter_destroy(Pointer);
    envoy_dynamic_module_on_http_filter_request_trailers(FilterPtr, Pointer) -> u32;
    envoy_dynamic_module_on_http_filter_response_body(FilterPtr, Pointer, bool) -> u32;
    envoy_dynamic_module_on_http_filter_response_trailers(FilterPtr, Pointer) -> u32;
    envoy_dynamic_module_on_http_filter_stream_complete(FilterPtr, Pointer);
    envoy_dynamic_module_on_http_filter_local_reply(FilterPtr, Pointer, u32, EnvoyBuffer, bool) -> u32;
    envoy_dynamic_module_on_http_filter_scheduled(FilterPtr, Pointer, u64);
    envoy_dynamic_module_on_http_filter_http_callout_done(FilterPtr, Pointer, u64, u32, Pointer, usize, Pointer, usize);
    envoy_dynamic_module_on_http_filter_http_stream_headers(FilterPtr, Pointer, u64, Pointer, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_data(FilterPtr, Pointer, u64, Pointer, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_trailers(FilterPtr, Pointer, u64, Pointer, usize);
    envoy_dynamic_module_on_http_filter_http_stream_complete(FilterPtr, Pointer, u64);
    envoy_dynamic_module_on_http_filter_http_stream_reset(FilterPtr, Pointer, u64, u32);
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(FilterPtr, Pointer);
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(FilterPtr, Pointer);
    envoy_dynamic_module_on_http_filter_config_scheduled(Pointer, Pointer, u64);
    envoy_dynamic_module_on_http_filter_config_http_callout_done(Pointer, Pointer, u64, u32, Pointer, usize, Pointer, usize);
    envoy_dynamic_module_on_http_filter_config_http_stream_headers(Pointer, Pointer, u64, Pointer, usize, bool);
    envoy_dynamic_module_on_http_filter_config_http_stream_data(Pointer, Pointer, u64, Pointer, usize, bool);
    envoy_dynamic_module_on_http_filter_config_http_stream_trailers(Pointer, Pointer, u64, Pointer, usize);
    envoy_dynamic_module_on_http_filter_config_http_stream_complete(Pointer, Pointer, u64);
    envoy_dynamic_module_on_http_filter_config_http_stream_reset(Pointer, Pointer, u64, u32);
    envoy_dynamic_module_on_http_filter_per_route_config_destroy(Pointer);
}

/// There is no configuration of a route; one that comes is refused.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(
    _name: EnvoyBuffer,
    _document: EnvoyBuffer,
) -> *const c_void {
    ptr::null()
}
