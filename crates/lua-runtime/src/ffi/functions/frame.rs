//! What all host functions are made of: the call's state, checked and caught, arguments as bytes, and
//! the ways to hand something back.

use std::panic::{AssertUnwindSafe, catch_unwind};

use outrider_plugin_api::{Scalar, Stream};

use super::super::call::{CallState, NO_STREAM, Pair};
use super::super::watch::Watch;

/// The answer when something is wrong with the host itself.
const BROKEN: i32 = -9;

/// Runs the body of a function with the call's state; a panic becomes [`BROKEN`].
///
/// # Safety
/// `call` is what Lua was given: the address of a live [`CallState`] that nothing else borrows.
#[inline]
pub(super) unsafe fn with(call: *mut CallState, run: impl FnOnce(&mut CallState) -> i32) -> i32 {
    catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: by contract.
        run(unsafe { &mut *call })
    }))
    .unwrap_or(BROKEN)
}

/// As [`with`], for functions that need a stream.
///
/// # Safety
/// As for [`with`].
#[inline]
pub(super) unsafe fn with_stream(
    call: *mut CallState,
    run: impl FnOnce(&mut CallState, &mut dyn Stream) -> i32,
) -> i32 {
    // SAFETY: by contract.
    unsafe {
        with(call, |state| match state.stream {
            // SAFETY: a stream is there only while its borrow lasts, and during a call into Lua
            // nothing else uses that borrow.
            Some(mut stream) => run(state, stream.as_mut()),
            None => NO_STREAM,
        })
    }
}

/// The bytes of a Lua string that is an argument.
///
/// # Safety
/// `data` and `length` are a string that Lua holds for the duration of the call.
#[inline]
pub(super) unsafe fn bytes<'a>(data: *const u8, length: i32) -> &'a [u8] {
    match usize::try_from(length) {
        Ok(length) if length > 0 && !data.is_null() => {
            // SAFETY: by contract.
            unsafe { std::slice::from_raw_parts(data, length) }
        }
        _ => &[],
    }
}

/// The answer when the call's time is over. What the SDK does with it hardly matters: the hook takes over.
pub(super) const OVER_TIME: i32 = -5;

/// Bytes that a function works on between two checks of the time.
const PIECE: usize = 48 * 1024;

/// Gives `work` the bytes in pieces whose length divides by 12, but for the last. Returns `None` if the call's
/// time is over or `work` returns `None`.
pub(super) fn in_pieces(
    bytes: &[u8],
    watch: &Watch,
    mut work: impl FnMut(&[u8]) -> Option<()>,
) -> Option<()> {
    for piece in bytes.chunks(PIECE) {
        if watch.is_overdue() {
            return None;
        }
        work(piece)?;
    }
    Some(())
}

pub(super) fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Hands bytes to Lua, which copies them at once.
pub(super) fn show(state: &mut CallState, bytes: &[u8]) {
    state.head.data = bytes.as_ptr();
    state.head.length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
}

/// Hands a value to Lua. 0: none; 1: text; 2: number; 3: truth value, as number.
pub(super) fn show_scalar(state: &mut CallState, value: Option<Scalar<'_>>) -> i32 {
    match value {
        None => 0,
        Some(Scalar::String(value)) => {
            show(state, value);
            1
        }
        Some(Scalar::Number(value)) => {
            state.head.number = value;
            2
        }
        Some(Scalar::Bool(value)) => {
            state.head.number = f64::from(u8::from(value));
            3
        }
    }
}

pub(super) fn show_scratch(state: &mut CallState) {
    state.head.data = state.scratch.as_ptr();
    state.head.length = i32::try_from(state.scratch.len()).unwrap_or(i32::MAX);
}

pub(super) fn show_text(state: &mut CallState, message: &str) {
    state.scratch.clear();
    state.scratch.extend_from_slice(message.as_bytes());
    show_scratch(state);
}

pub(super) fn show_pairs(state: &mut CallState) -> i32 {
    state.head.pairs = state.pairs.as_ptr();
    state.head.count = i32::try_from(state.pairs.len()).unwrap_or(i32::MAX);
    state.head.count
}

pub(super) fn pair(name: &[u8], value: &[u8]) -> Pair {
    Pair {
        name: name.as_ptr(),
        value: value.as_ptr(),
        name_length: i32::try_from(name.len()).unwrap_or(i32::MAX),
        value_length: i32::try_from(value.len()).unwrap_or(i32::MAX),
    }
}
