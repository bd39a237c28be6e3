//! Metadata of routes and streams.

use outrider_plugin_api::{MetadataSource, MetadataValue};

use super::super::call::CallState;
use super::frame::{bytes, show, with_stream};

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
                1 => MetadataValue::String(bytes(value, value_length)),
                2 => MetadataValue::Number(number),
                _ => MetadataValue::Bool(number != 0.0),
            };
            stream.set_metadata(bytes(namespace, length), bytes(key, key_length), value);
            1
        })
    }
}
