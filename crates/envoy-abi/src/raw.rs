//! Types of Envoy's dynamic-module ABI (`source/extensions/dynamic_modules/abi/abi.h`, ABI v0.2.0),
//! as far as they are used. The numbers of enumerations are the ABI's.

use std::ffi::c_void;
use std::ptr;

/// A stream's filter in Envoy.
pub(crate) type FilterPtr = *mut c_void;
/// A filter configuration in Envoy.
pub(crate) type ConfigPtr = *mut c_void;
/// A bootstrap extension in Envoy.
pub(crate) type ExtensionPtr = *mut c_void;
/// A scheduler: calls back to a stream's worker.
pub(crate) type SchedulerPtr = *mut c_void;

/// Bytes that Envoy owns.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EnvoyBuffer {
    pub(crate) pointer: *const u8,
    pub(crate) length: usize,
}

impl EnvoyBuffer {
    pub(crate) const EMPTY: Self = Self {
        pointer: ptr::null(),
        length: 0,
    };

    /// The bytes. Envoy says "nothing" with a null pointer, which no slice may have.
    ///
    /// # Safety
    /// The buffer is one that Envoy filled in, and lives as long as `'a`.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.pointer.is_null() || self.length == 0 {
            &[]
        } else {
            // SAFETY: not null; the caller vouches for the rest.
            unsafe { std::slice::from_raw_parts(self.pointer, self.length) }
        }
    }
}

/// Bytes that the module owns, lent for one callback.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ModuleBuffer {
    pointer: *const u8,
    length: usize,
}

impl ModuleBuffer {
    pub(crate) const EMPTY: Self = Self {
        pointer: ptr::null(),
        length: 0,
    };

    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self {
            pointer: bytes.as_ptr(),
            length: bytes.len(),
        }
    }
}

/// A header that Envoy owns.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EnvoyHeader {
    pub(crate) name: EnvoyBuffer,
    pub(crate) value: EnvoyBuffer,
}

impl EnvoyHeader {
    pub(crate) const EMPTY: Self = Self {
        name: EnvoyBuffer::EMPTY,
        value: EnvoyBuffer::EMPTY,
    };
}

/// A header that the module owns, lent for one callback.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ModuleHeader {
    name: ModuleBuffer,
    value: ModuleBuffer,
}

impl ModuleHeader {
    pub(crate) fn new(name: &[u8], value: &[u8]) -> Self {
        Self {
            name: ModuleBuffer::new(name),
            value: ModuleBuffer::new(value),
        }
    }
}

/// `envoy_dynamic_module_type_http_header_type`
pub(crate) mod header_type {
    pub(crate) const REQUEST_HEADER: u32 = 0;
    pub(crate) const REQUEST_TRAILER: u32 = 1;
    pub(crate) const RESPONSE_HEADER: u32 = 2;
    pub(crate) const RESPONSE_TRAILER: u32 = 3;
}

/// `envoy_dynamic_module_type_http_body_type`
pub(crate) mod body_type {
    pub(crate) const RECEIVED_REQUEST: u32 = 0;
    pub(crate) const BUFFERED_REQUEST: u32 = 1;
    pub(crate) const RECEIVED_RESPONSE: u32 = 2;
    pub(crate) const BUFFERED_RESPONSE: u32 = 3;
}

/// `envoy_dynamic_module_type_on_http_filter_{request,response}_headers_status`; of trailers, the
/// first two.
pub(crate) mod headers_status {
    pub(crate) const CONTINUE: u32 = 0;
    pub(crate) const STOP_ITERATION: u32 = 1;
}

/// `envoy_dynamic_module_type_on_http_filter_{request,response}_body_status`
pub(crate) mod body_status {
    pub(crate) const CONTINUE: u32 = 0;
    pub(crate) const STOP_AND_BUFFER: u32 = 1;
    pub(crate) const STOP_AND_WATERMARK: u32 = 2;
    pub(crate) const STOP_NO_BUFFER: u32 = 3;
}

/// `envoy_dynamic_module_type_http_callout_init_result`
pub(crate) mod callout_start {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const MISSING_HEADERS: u32 = 1;
    pub(crate) const CLUSTER_NOT_FOUND: u32 = 2;
    pub(crate) const CANNOT_CREATE: u32 = 4;
}

/// `envoy_dynamic_module_type_http_callout_result`
pub(crate) mod callout_result {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const RESET: u32 = 1;
}

/// `envoy_dynamic_module_type_metadata_source`
pub(crate) mod metadata_source {
    pub(crate) const DYNAMIC: u32 = 0;
    pub(crate) const ROUTE: u32 = 1;
    pub(crate) const CLUSTER: u32 = 2;
    pub(crate) const HOST: u32 = 3;
    pub(crate) const HOST_LOCALITY: u32 = 4;
}

/// `envoy_dynamic_module_type_timing_info`: nanoseconds; all but the first since that first, and
/// negative where there is none.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct TimingInfo {
    /// Since 1970.
    pub(crate) start: i64,
    pub(crate) request_complete: i64,
    pub(crate) first_upstream_sent: i64,
    pub(crate) last_upstream_sent: i64,
    pub(crate) first_upstream_received: i64,
    pub(crate) last_upstream_received: i64,
    pub(crate) first_downstream_sent: i64,
    pub(crate) last_downstream_sent: i64,
}

/// `envoy_dynamic_module_type_metrics_result`
pub(crate) const METRICS_SUCCESS: u32 = 0;
