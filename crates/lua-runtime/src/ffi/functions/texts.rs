//! JSON and Base64. These need no stream.

use base64::Engine as _;

use super::super::call::CallState;
use super::super::tape;
use super::frame::{bytes, show_scratch, show_text, with};

/// 1: the document is on the tape; 0: it is none, and here is why.
pub(super) unsafe extern "C" fn json_parse(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| match tape::parse(bytes(value, length)) {
            Ok(document) => {
                state.document = document;
                state.tape.clear();
                tape::write(&state.document, &mut state.tape);
                state.head.tape = state.tape.as_ptr();
                state.head.count = i32::try_from(state.tape.len()).unwrap_or(i32::MAX);
                1
            }
            Err(error) => {
                show_text(state, &error.to_string());
                0
            }
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn base64_encode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let encoded = base64::engine::general_purpose::STANDARD.encode(bytes(value, length));
            state.scratch = encoded.into_bytes();
            show_scratch(state);
            1
        })
    }
}

/// 1: here it is; 0: it is not Base64. Takes both alphabets, with and without padding.
pub(super) unsafe extern "C" fn base64_decode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
            let value = bytes(value, length);
            let unpadded = match value {
                [head @ .., b'=', b'='] | [head @ .., b'='] => head,
                whole => whole,
            };
            let engine = if unpadded.iter().any(|byte| matches!(byte, b'-' | b'_')) {
                &URL_SAFE_NO_PAD
            } else {
                &STANDARD_NO_PAD
            };
            match engine.decode(unpadded) {
                Ok(decoded) => {
                    state.scratch = decoded;
                    show_scratch(state);
                    1
                }
                Err(_) => 0,
            }
        })
    }
}
