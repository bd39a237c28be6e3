//! The part of Envoy's dynamic-module ABI, version v0.2.0, that the work needs. Names, types and
//! numbers are those of `source/extensions/dynamic_modules/abi/abi.h`.

use std::ffi::{CStr, c_void};
use std::ptr;

/// The version that this speaks: Envoy 1.40's.
pub(crate) const VERSION: &CStr = c"v0.2.0";

/// A stream's filter in Envoy.
pub(crate) type FilterPtr = *mut c_void;

/// Bytes that Envoy owns.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EnvoyBuffer {
    pointer: *const u8,
    length: usize,
}

impl EnvoyBuffer {
    pub(crate) const EMPTY: Self = Self {
        pointer: ptr::null(),
        length: 0,
    };

    /// How many bytes there are.
    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// The bytes; Envoy says "nothing" with a null pointer.
    ///
    /// # Safety
    /// The buffer is one that Envoy filled in, and lives as long as `'a`.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.pointer.is_null() {
            &[]
        } else {
            // SAFETY: not null; the caller vouches for the rest.
            unsafe { std::slice::from_raw_parts(self.pointer, self.length) }
        }
    }
}

/// Bytes that the module owns, lent for one call.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ModuleBuffer {
    pointer: *const u8,
    length: usize,
}

impl ModuleBuffer {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self {
            pointer: bytes.as_ptr(),
            length: bytes.len(),
        }
    }

    /// What takes a header away when it is set as its value.
    pub(crate) const NOTHING: Self = Self {
        pointer: ptr::null(),
        length: 0,
    };
}

pub(crate) const REQUEST_HEADERS: u32 = 0;
pub(crate) const RESPONSE_HEADERS: u32 = 2;
pub(crate) const RECEIVED_REQUEST_BODY: u32 = 0;
pub(crate) const BUFFERED_REQUEST_BODY: u32 = 1;
pub(crate) const CONTINUE: u32 = 0;
pub(crate) const STOP_ITERATION: u32 = 1;
pub(crate) const STOP_AND_BUFFER: u32 = 1;

unsafe extern "C" {
    #[link_name = "envoy_dynamic_module_callback_http_get_header"]
    pub(crate) fn get_header(
        filter: FilterPtr,
        map: u32,
        key: ModuleBuffer,
        value: *mut EnvoyBuffer,
        index: usize,
        count: *mut usize,
    ) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_set_header"]
    pub(crate) fn set_header(
        filter: FilterPtr,
        map: u32,
        key: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_add_header"]
    pub(crate) fn add_header(
        filter: FilterPtr,
        map: u32,
        key: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_get_body_chunks_size"]
    pub(crate) fn get_body_chunks_size(filter: FilterPtr, body: u32) -> usize;
    #[link_name = "envoy_dynamic_module_callback_http_get_body_chunks"]
    pub(crate) fn get_body_chunks(filter: FilterPtr, body: u32, chunks: *mut EnvoyBuffer) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_append_body"]
    pub(crate) fn append_body(filter: FilterPtr, body: u32, data: ModuleBuffer) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_drain_body"]
    pub(crate) fn drain_body(filter: FilterPtr, body: u32, length: usize) -> bool;
    #[link_name = "envoy_dynamic_module_callback_http_send_response"]
    pub(crate) fn send_response(
        filter: FilterPtr,
        status: u32,
        headers: *const std::ffi::c_void,
        headers_length: usize,
        body: ModuleBuffer,
        details: ModuleBuffer,
    );
    #[link_name = "envoy_dynamic_module_callback_http_received_buffered_request_body"]
    pub(crate) fn received_buffered_request_body(filter: FilterPtr) -> bool;
}
