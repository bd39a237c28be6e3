//! Metadata of routes and streams.

use outrider_plugin_api::{MetadataSource, Scalar};

use super::super::call::CallState;
use super::frame::{bytes, show_scalar, with_stream};

/// 0: none; 1: text; 2: number; 3: truth value, as number.
pub(super) unsafe extern "C" fn metadata(
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
            show_scalar(
                state,
                stream.metadata(source, bytes(namespace, length), bytes(key, key_length)),
            )
        })
    }
}

/// 1. Kinds as in [`metadata`].
pub(super) unsafe extern "C" fn set_metadata(
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
                1 => Scalar::String(bytes(value, value_length)),
                2 => Scalar::Number(number),
                _ => Scalar::Bool(number != 0.0),
            };
            stream.set_metadata(bytes(namespace, length), bytes(key, key_length), value);
            1
        })
    }
}
