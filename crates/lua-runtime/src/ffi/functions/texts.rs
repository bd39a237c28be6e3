//! JSON and Base64. These need no stream.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::super::call::CallState;
use super::super::tape;
use super::frame::{OVER_TIME, bytes, in_pieces, show_scratch, show_text, with};
use crate::json::JsonError;

/// The answer when the text is larger than the VM may hold.
const OVER_MEMORY: i32 = -7;

/// 1: the document is on the tape; 0: it is none, and here is why; [`OVER_MEMORY`], and here is why;
/// [`OVER_TIME`].
pub(super) unsafe extern "C" fn json_parse(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let CallState {
                tape,
                tape_texts,
                tape_shapes,
                watch,
                memory_budget,
                ..
            } = state;
            let is_over = || watch.is_overdue();
            let document = bytes(value, length);
            let parsed = tape::parse(
                document,
                tape,
                tape_texts,
                tape_shapes,
                *memory_budget,
                &is_over,
            );
            match parsed {
                Ok(()) => {
                    state.head.tape = state.tape.as_ptr();
                    state.head.count = i32::try_from(state.tape.len()).unwrap_or(i32::MAX);
                    1
                }
                Err(JsonError::Syntax(error)) => {
                    show_text(state, &error.to_string());
                    0
                }
                Err(JsonError::TooLarge) => {
                    let message = format!(
                        "the document takes more than the memory budget of {} bytes",
                        state.memory_budget
                    );
                    show_text(state, &message);
                    OVER_MEMORY
                }
                Err(JsonError::OverTime) => OVER_TIME,
            }
        })
    }
}

/// Begins a text of JSON. 0.
pub(super) unsafe extern "C" fn json_begin(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            state.json.clear();
            0
        })
    }
}

/// Appends what is JSON already. 0; [`OVER_MEMORY`].
pub(super) unsafe extern "C" fn json_raw(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let value = bytes(value, length);
            if state.json.len() + value.len() > state.memory_budget {
                return OVER_MEMORY;
            }
            state.json.extend_from_slice(value);
            0
        })
    }
}

/// Appends a number that is finite: the fewest digits that are read as the same number again, with an exponent where it is
/// shorter, as [ECMA-262](https://tc39.es/ecma262/#sec-numeric-types-number-tostring) has it. 0; [`OVER_MEMORY`].
pub(super) unsafe extern "C" fn json_number(call: *mut CallState, value: f64) -> i32 {
    /// The longest form is that of `-1.7976931348623157e308`.
    const LONGEST: usize = 32;
    /// Below it, all integers are numbers of this kind.
    const WHOLE: f64 = 9_007_199_254_740_992.0;
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            if state.json.len() + LONGEST > state.memory_budget {
                return OVER_MEMORY;
            }
            let size = value.abs();
            #[expect(clippy::cast_possible_truncation, reason = "smaller than 2^53")]
            let whole = if size < WHOLE { value as i64 } else { 0 };
            // A write to memory does not fail. The sign of a negative zero is kept.
            #[expect(
                clippy::float_cmp,
                clippy::cast_precision_loss,
                reason = "exact below 2^53"
            )]
            let _ = if whole as f64 == value && (whole != 0 || value.is_sign_positive()) {
                write!(state.json, "{whole}")
            } else if size >= 1e21 || (size < 1e-6 && size > 0.0) {
                write!(state.json, "{value:e}")
            } else {
                write!(state.json, "{value}")
            };
            0
        })
    }
}

/// Appends a text, quoted. 0; [`OVER_MEMORY`]; [`OVER_TIME`].
pub(super) unsafe extern "C" fn json_string(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let CallState {
                json,
                watch,
                memory_budget,
                ..
            } = state;
            json.push(b'"');
            let mut fits = true;
            let quoted = in_pieces(bytes(value, length), watch, |piece| {
                // Each byte takes six at most; the quotation mark follows.
                fits = json.len() + 6 * piece.len() < *memory_budget
                    || json.len() + quoted_length(piece) < *memory_budget;
                fits.then(|| quote(piece, json))
            });
            json.push(b'"');
            match quoted {
                Some(()) => 0,
                None if fits => OVER_TIME,
                None => OVER_MEMORY,
            }
        })
    }
}

/// Shows the text. 0.
pub(super) unsafe extern "C" fn json_end(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            std::mem::swap(&mut state.scratch, &mut state.json);
            show_scratch(state);
            0
        })
    }
}

/// What a byte is escaped by; none: it stands for itself. Bytes that are not UTF-8 pass, as Lua's texts do.
fn escaped(byte: u8) -> Option<&'static str> {
    Some(match byte {
        b'"' => "\\\"",
        b'\\' => "\\\\",
        0x08 => "\\b",
        0x0c => "\\f",
        b'\n' => "\\n",
        b'\r' => "\\r",
        b'\t' => "\\t",
        _ => return None,
    })
}

fn needs_number(byte: u8) -> bool {
    byte.is_ascii_control()
}

fn quoted_length(text: &[u8]) -> usize {
    let length = |byte: u8| match escaped(byte) {
        Some(escape) => escape.len(),
        None if needs_number(byte) => 6,
        None => 1,
    };
    text.iter().map(|byte| length(*byte)).sum()
}

fn quote(text: &[u8], out: &mut Vec<u8>) {
    for piece in
        text.split_inclusive(|byte| matches!(byte, b'"' | b'\\') || byte.is_ascii_control())
    {
        match piece.split_last() {
            Some((last, plain)) if escaped(*last).is_some() || needs_number(*last) => {
                out.extend_from_slice(plain);
                match escaped(*last) {
                    Some(escape) => out.extend_from_slice(escape.as_bytes()),
                    None => out.extend_from_slice(format!("\\u{last:04x}").as_bytes()),
                }
            }
            _ => out.extend_from_slice(piece),
        }
    }
}

/// 1: here it is; [`OVER_TIME`].
pub(super) unsafe extern "C" fn base64_encode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let CallState { scratch, watch, .. } = state;
            let mut encoded = String::from_utf8(std::mem::take(scratch)).unwrap_or_default();
            encoded.clear();
            let made = in_pieces(bytes(value, length), watch, |piece| {
                STANDARD.encode_string(piece, &mut encoded);
                Some(())
            });
            *scratch = encoded.into_bytes();
            show_scratch(state);
            if made.is_some() { 1 } else { OVER_TIME }
        })
    }
}

/// 1: here it is; 0: it is not Base64; [`OVER_TIME`]. Takes both alphabets, with and without padding.
pub(super) unsafe extern "C" fn base64_decode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let value = bytes(value, length);
            let unpadded = match value {
                [head @ .., b'=', b'='] | [head @ .., b'='] => head,
                whole => whole,
            };
            let CallState { scratch, watch, .. } = state;
            scratch.clear();
            let mut is_for_urls = false;
            let read = in_pieces(unpadded, watch, |piece| {
                is_for_urls |= piece.iter().any(|byte| matches!(byte, b'-' | b'_'));
                Some(())
            });
            let engine = if is_for_urls {
                &URL_SAFE_NO_PAD
            } else {
                &STANDARD_NO_PAD
            };
            let made = read.and_then(|()| {
                in_pieces(unpadded, watch, |piece| {
                    engine.decode_vec(piece, scratch).ok()
                })
            });
            show_scratch(state);
            match made {
                Some(()) => 1,
                None if state.watch.is_overdue() => OVER_TIME,
                None => 0,
            }
        })
    }
}
