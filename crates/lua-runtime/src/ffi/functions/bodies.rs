//! Bodies, as the call may see them.

use outrider_plugin_api::{BodyError, Direction};

use super::super::call::CallState;
use super::frame::{bytes, show_scratch, show_text, with_stream};

/// The answer of `set_body` when the body cannot have that length.
const REFUSED: i32 = -4;

fn direction(number: i32) -> Direction {
    if number == 0 {
        Direction::Request
    } else {
        Direction::Response
    }
}

/// The length, or -1 where there is no body.
pub(super) unsafe extern "C" fn body_length(call: *mut CallState, way: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream
                .body_len(direction(way))
                .map_or(-1, |length| i32::try_from(length).unwrap_or(i32::MAX))
        })
    }
}

/// 1: here it is; 0: there is none.
pub(super) unsafe extern "C" fn body(call: *mut CallState, way: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let way = direction(way);
            if stream.body_len(way).is_none() {
                return 0;
            }
            // One piece needs no copy here: Lua copies it from where it is.
            let mut pieces = 0;
            let mut only = (std::ptr::null(), 0);
            stream.body_pieces(way, &mut |piece| {
                pieces += 1;
                only = (piece.as_ptr(), piece.len());
            });
            if pieces == 1 {
                state.head.data = only.0;
                state.head.length = i32::try_from(only.1).unwrap_or(i32::MAX);
            } else {
                state.scratch.clear();
                let scratch = &mut state.scratch;
                stream.body_pieces(way, &mut |piece| scratch.extend_from_slice(piece));
                show_scratch(state);
            }
            1
        })
    }
}

/// 1: done; 0: there is none; [`REFUSED`].
pub(super) unsafe extern "C" fn set_body(
    call: *mut CallState,
    way: i32,
    body: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            match stream.set_body(direction(way), bytes(body, length)) {
                Ok(()) => 1,
                Err(error @ BodyError::NoBody) => {
                    show_text(state, &error.to_string());
                    0
                }
                Err(error @ (BodyError::LengthAnnounced | BodyError::TooLarge(_))) => {
                    show_text(state, &error.to_string());
                    REFUSED
                }
            }
        })
    }
}
