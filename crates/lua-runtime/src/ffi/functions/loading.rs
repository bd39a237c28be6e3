//! What the host hands to the SDK's own functions, and what these hand back.

use super::super::call::CallState;
use super::frame::{bytes, show, text, with};

/// 1: here it is; 0: there is no such argument.
pub(super) unsafe extern "C" fn argument(call: *mut CallState, index: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            match state.arguments.get(index).cloned() {
                Some(value) => {
                    show(state, value.as_bytes());
                    1
                }
                None => 0,
            }
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn result(
    call: *mut CallState,
    kind: i32,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            state
                .results
                .push((kind, text(bytes(value, length)).into_owned()));
            1
        })
    }
}

/// 1: here is the file's text; 0: the plugin has no such file.
pub(super) unsafe extern "C" fn file(call: *mut CallState, name: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let shared = std::sync::Arc::clone(&state.shared);
            match shared.files.get(&*text(bytes(name, length))) {
                Some(source) => {
                    show(state, source.as_bytes());
                    1
                }
                None => 0,
            }
        })
    }
}
