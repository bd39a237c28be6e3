//! Metadata of routes, upstreams and streams; filter state; the upstream's endpoint.

use outrider_plugin_api::{
    FilterStateKind, MOST_STATE_BYTES, MetadataError, MetadataSource, MetadataTree,
    OverrideHostFallback, Scalar,
};
use serde_json::Value;

use super::super::call::{CallState, TapeItem};
use super::frame::{OVER_TIME, bytes, show, show_scalar, show_text, with_stream};
use crate::json::{self, JsonError};

/// The answer when something is refused, with the reason.
const REFUSED: i32 = -4;

/// The sources in the order of the SDK's numbers.
fn source_of(number: i32) -> MetadataSource {
    match number {
        0 => MetadataSource::Route,
        1 => MetadataSource::Dynamic,
        2 => MetadataSource::Cluster,
        3 => MetadataSource::Host,
        _ => MetadataSource::Locality,
    }
}

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
            let source = source_of(source);
            show_scalar(
                state,
                stream.metadata(source, bytes(namespace, length), bytes(key, key_length)),
            )
        })
    }
}

/// 1: written; [`REFUSED`]: here is why not. Kinds as in [`metadata`].
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
        with_stream(call, |state, stream| {
            let value = match kind {
                1 => Scalar::String(bytes(value, value_length)),
                2 => Scalar::Number(number),
                _ => Scalar::Bool(number != 0.0),
            };
            let namespace = bytes(namespace, length);
            let result = stream.set_metadata(namespace, bytes(key, key_length), value);
            metadata_result(state, result)
        })
    }
}

/// 1, or [`REFUSED`] with the reason shown.
fn metadata_result(state: &mut CallState, result: Result<(), MetadataError>) -> i32 {
    match result {
        Ok(()) => 1,
        Err(error) => {
            show_text(state, &error.to_string());
            REFUSED
        }
    }
}

/// A list, or an object's name, on the tape.
fn item(kind: i32, bytes: &[u8], length: usize, number: f64) -> TapeItem {
    TapeItem {
        kind,
        length: i32::try_from(length).unwrap_or(i32::MAX),
        data: bytes.as_ptr(),
        number,
    }
}

fn show_tape(state: &mut CallState) {
    let length = state.tape.len().saturating_sub(1);
    if let Some(list) = state.tape.first_mut() {
        list.length = i32::try_from(length).unwrap_or(i32::MAX);
    }
    state.head.tape = state.tape.as_ptr();
    state.head.count = i32::try_from(state.tape.len()).unwrap_or(i32::MAX);
}

/// 1: the list is on the tape; 0: there is none.
pub(super) unsafe extern "C" fn metadata_list(
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
            state.tape.clear();
            state.tape.push(item(5, &[], 0, 0.0));
            let tape = &mut state.tape;
            let found = stream.metadata_list(
                source_of(source),
                bytes(namespace, length),
                bytes(key, key_length),
                &mut |value| {
                    tape.push(match value {
                        Scalar::String(text) => item(4, text, text.len(), 0.0),
                        Scalar::Number(number) => item(3, &[], 0, number),
                        Scalar::Bool(truth) => item(1 + i32::from(truth), &[], 0, 0.0),
                    });
                },
            );
            show_tape(state);
            i32::from(found)
        })
    }
}

/// 1: the namespace's keys, or without one the namespaces, are on the tape.
pub(super) unsafe extern "C" fn metadata_names(
    call: *mut CallState,
    source: i32,
    within: i32,
    namespace: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            state.tape.clear();
            state.tape.push(item(5, &[], 0, 0.0));
            let tape = &mut state.tape;
            let namespace = (within != 0).then(|| bytes(namespace, length));
            stream.metadata_names(source_of(source), namespace, &mut |name| {
                tape.push(item(4, name, name.len(), 0.0));
            });
            show_tape(state);
            1
        })
    }
}

fn tree(value: Value) -> MetadataTree {
    match value {
        Value::Null => MetadataTree::Null,
        Value::Bool(truth) => MetadataTree::Bool(truth),
        Value::Number(number) => MetadataTree::Number(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => MetadataTree::String(text.into_bytes()),
        Value::Array(values) => MetadataTree::List(values.into_iter().map(tree).collect()),
        Value::Object(members) => MetadataTree::Map(
            members
                .into_iter()
                .map(|(name, value)| (name.into_bytes(), tree(value)))
                .collect(),
        ),
    }
}

/// 1: written; [`REFUSED`]: here is why not; [`OVER_TIME`].
pub(super) unsafe extern "C" fn set_metadata_json(
    call: *mut CallState,
    namespace: *const u8,
    length: i32,
    key: *const u8,
    key_length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let document = bytes(value, value_length);
            let watch = std::sync::Arc::clone(&state.watch);
            // Larger values are no stream's; so what is made of this one is freed in about a millisecond.
            let memory = state.memory_budget.min(MOST_STATE_BYTES);
            let parsed = json::parse_value(document, memory, &|| watch.is_overdue());
            let value = match parsed {
                Ok(value) => value,
                Err(JsonError::OverTime) => return OVER_TIME,
                Err(JsonError::TooLarge) => {
                    let message = format!("the value takes more than {memory} bytes");
                    show_text(state, &message);
                    return REFUSED;
                }
                Err(JsonError::Syntax(_)) => {
                    show_text(state, "the texts of a metadata value must be UTF-8");
                    return REFUSED;
                }
            };
            let (namespace, key) = (bytes(namespace, length), bytes(key, key_length));
            let result = stream.set_metadata_tree(namespace, key, &tree(value));
            metadata_result(state, result)
        })
    }
}

/// 1: here it is; 0: there is none.
pub(super) unsafe extern "C" fn filter_state(
    call: *mut CallState,
    key: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            match stream.filter_state(bytes(key, length)) {
                Some(value) => {
                    show(state, value);
                    1
                }
                None => 0,
            }
        })
    }
}

/// 1: set; [`REFUSED`]: here is why not.
pub(super) unsafe extern "C" fn set_filter_state(
    call: *mut CallState,
    typed: i32,
    key: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let kind = if typed == 0 {
                FilterStateKind::Bytes
            } else {
                FilterStateKind::Typed
            };
            let (key, value) = (bytes(key, length), bytes(value, value_length));
            match stream.set_filter_state(key, value, kind) {
                Ok(()) => 1,
                Err(error) => {
                    show_text(state, &error.to_string());
                    REFUSED
                }
            }
        })
    }
}

/// 1: chosen; [`REFUSED`]: here is why not.
pub(super) unsafe extern "C" fn override_host(
    call: *mut CallState,
    host: *const u8,
    length: i32,
    strict: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            let otherwise = if strict == 0 {
                OverrideHostFallback::LoadBalancer
            } else {
                OverrideHostFallback::Fail
            };
            match stream.set_upstream_override_host(bytes(host, length), otherwise) {
                Ok(()) => 1,
                Err(error) => {
                    show_text(state, &error.to_string());
                    REFUSED
                }
            }
        })
    }
}
