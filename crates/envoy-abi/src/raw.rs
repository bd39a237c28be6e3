//! Types of Envoy's dynamic-module ABI (`source/extensions/dynamic_modules/abi/abi.h`, ABI v0.2.0),
//! as far as they are used. The numbers of enumerations are the ABI's.

use std::ffi::c_void;
use std::ptr;

use smallvec::SmallVec;

/// A stream's filter in Envoy.
pub(crate) type FilterPtr = *mut c_void;
/// A filter configuration in Envoy.
pub(crate) type ConfigPtr = *mut c_void;
/// A bootstrap extension in Envoy.
pub(crate) type ExtensionPtr = *mut c_void;
/// A cluster in Envoy.
pub(crate) type ClusterPtr = *mut c_void;
/// A stream that has ended, for an access logger.
pub(crate) type LoggerPtr = *mut c_void;
/// A scheduler: calls back to a stream's worker, or to the main thread.
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

    /// The bytes, as the stand-in for Envoy reads them.
    ///
    /// # Safety
    /// They live as long as `'a`.
    #[cfg(test)]
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        let Self { pointer, length } = self;
        // SAFETY: the caller's promise.
        unsafe { EnvoyBuffer { pointer, length }.bytes() }
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

    /// Those of names and values, which have to outlive what is answered.
    pub(crate) fn all<N: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: &[(N, V)]) -> SmallVec<[Self; 16]> {
        pairs
            .iter()
            .map(|(name, value)| Self::new(name.as_ref(), value.as_ref()))
            .collect()
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

/// How many moments [`TimingInfo`] has on Envoy 1.40.
const MOMENTS: usize = 19;

/// `envoy_dynamic_module_type_timing_info_v2`: when what happened, in nanoseconds since the stream began
/// (the first: since 1970), and then whether it did.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TimingInfo {
    moments: [i64; MOMENTS],
    there: [u8; MOMENTS],
    /// Envoy fills in all that it knows of, which a later minor may add to.
    reserve: [u64; 16],
}

impl TimingInfo {
    pub(crate) const EMPTY: Self = Self {
        moments: [0; MOMENTS],
        there: [0; MOMENTS],
        reserve: [0; 16],
    };

    /// The moment at a place (see [`timing`]), if there is one.
    pub(crate) fn moment(&self, place: usize) -> Option<std::time::Duration> {
        let there = self.there.get(place).is_some_and(|there| *there != 0);
        let nanoseconds = u64::try_from(*self.moments.get(place)?).ok()?;
        there.then(|| std::time::Duration::from_nanos(nanoseconds))
    }
}

/// Places in [`TimingInfo`].
pub(crate) mod timing {
    pub(crate) const FIRST_UPSTREAM_SENT: usize = 9;
    pub(crate) const LAST_UPSTREAM_SENT: usize = 10;
    pub(crate) const FIRST_UPSTREAM_RECEIVED: usize = 11;
    pub(crate) const LAST_UPSTREAM_RECEIVED: usize = 13;
    pub(crate) const FIRST_DOWNSTREAM_SENT: usize = 14;
    pub(crate) const LAST_DOWNSTREAM_SENT: usize = 15;
    pub(crate) const COMPLETE: usize = 17;
}

/// `envoy_dynamic_module_type_timing_info`: when a stream began, in nanoseconds since 1970, and how long after that something
/// else happened; -1: it did not.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogTimes {
    pub(crate) start: i64,
    pub(crate) complete: i64,
    pub(crate) first_upstream_sent: i64,
    pub(crate) last_upstream_sent: i64,
    pub(crate) first_upstream_received: i64,
    pub(crate) last_upstream_received: i64,
    pub(crate) first_downstream_sent: i64,
    pub(crate) last_downstream_sent: i64,
}

impl LogTimes {
    pub(crate) const EMPTY: Self = Self {
        start: -1,
        complete: -1,
        first_upstream_sent: -1,
        last_upstream_sent: -1,
        first_upstream_received: -1,
        last_upstream_received: -1,
        first_downstream_sent: -1,
        last_downstream_sent: -1,
    };
}

/// `envoy_dynamic_module_type_bytes_info`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogBytes {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) wire_received: u64,
    pub(crate) wire_sent: u64,
}

/// `envoy_dynamic_module_type_attribute_id`, those that access loggers have.
pub(crate) mod log_attribute {
    pub(crate) const PROTOCOL: u32 = 10;
    pub(crate) const RESPONSE_CODE: u32 = 15;
    pub(crate) const RESPONSE_CODE_DETAILS: u32 = 16;
    pub(crate) const CONNECTION_ID: u32 = 28;
    pub(crate) const REQUESTED_SERVER_NAME: u32 = 30;
    pub(crate) const TLS_VERSION: u32 = 31;
    pub(crate) const PEER_SUBJECT: u32 = 33;
    pub(crate) const TRANSPORT_FAILURE: u32 = 39;
    pub(crate) const TERMINATION_DETAILS: u32 = 40;
    pub(crate) const UPSTREAM_ADDRESS: u32 = 41;
    pub(crate) const UPSTREAM_TLS_VERSION: u32 = 43;
    pub(crate) const UPSTREAM_LOCAL_ADDRESS: u32 = 51;
    pub(crate) const UPSTREAM_TRANSPORT_FAILURE: u32 = 52;
    pub(crate) const UPSTREAM_ATTEMPTS: u32 = 53;
}

/// `envoy_dynamic_module_type_access_log_type_DownstreamEnd`
pub(crate) const DOWNSTREAM_END: u32 = 6;

/// `envoy_dynamic_module_type_metrics_result`
pub(crate) const METRICS_SUCCESS: u32 = 0;
