//! JSON Schemas. These need no stream.

use std::sync::Arc;

use super::super::call::CallState;
use super::frame::{bytes, pair, show_pairs, show_text, with};
use crate::json_schemas::Validity;

/// The answer when the schema is none; the reason is shown.
const REFUSED: i32 = -4;
/// The answer when the call's time is over; what the SDK does with it does not matter any more.
const OVER_TIME: i32 = -5;
/// The answer when the schema made room for others: it has to be compiled anew.
const GONE: i32 = -7;

/// The schema's number, above 0; [`REFUSED`].
pub(super) unsafe extern "C" fn schema_compile(
    call: *mut CallState,
    schema: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let watch = Arc::clone(&state.watch);
            let is_over = Arc::new(move || watch.is_overdue());
            let is_on_worker = state.stream.is_some();
            let schema = bytes(schema, length);
            match state.json_schemas.compile(schema, is_on_worker, is_over) {
                Ok(number) => number,
                Err(reason) => {
                    show_text(state, &reason);
                    REFUSED
                }
            }
        })
    }
}

/// 0: the document is valid; above 0: so many messages say what is not, as values of pairs without
/// names. [`OVER_TIME`]; [`GONE`].
pub(super) unsafe extern "C" fn schema_validate(
    call: *mut CallState,
    number: i32,
    document: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let document = bytes(document, length);
            let memory = state.memory_budget;
            match state.json_schemas.validate(number, document, memory) {
                Validity::Valid => 0,
                Validity::Gone => GONE,
                Validity::OverTime => OVER_TIME,
                Validity::Invalid(messages) => {
                    state.scratch.clear();
                    for message in &messages {
                        state.scratch.extend_from_slice(message.as_bytes());
                    }
                    state.pairs.clear();
                    let mut from = 0;
                    for message in &messages {
                        let to = from + message.len();
                        let value = state.scratch.get(from..to).unwrap_or_default();
                        state.pairs.push(pair(&[], value));
                        from = to;
                    }
                    show_pairs(state)
                }
            }
        })
    }
}
