//! The proxy's log and the plugin's own.

use outrider_plugin_api::LogLevel;

use super::super::call::CallState;
use super::frame::{bytes, text, with, with_stream};

fn log_level(number: i32) -> LogLevel {
    match number {
        0 => LogLevel::Trace,
        1 => LogLevel::Debug,
        2 => LogLevel::Info,
        3 => LogLevel::Warn,
        _ => LogLevel::Error,
    }
}

/// Whether lines of a level are written.
pub(super) unsafe extern "C" fn log_enabled(call: *mut CallState, level: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            i32::from(stream.log_enabled(log_level(level)))
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn log(
    call: *mut CallState,
    level: i32,
    message: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |_, stream| {
            let level = log_level(level);
            if stream.log_enabled(level) {
                stream.log(level, &text(bytes(message, length)));
            }
            1
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn file_log(
    call: *mut CallState,
    message: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let message = bytes(message, length);
            match (&state.shared.file_log, state.stream) {
                (Some(file), _) => {
                    file.write(message);
                    1
                }
                (None, Some(stream)) => {
                    // SAFETY: see `with_stream`.
                    stream.as_ref().log(LogLevel::Info, &text(message));
                    1
                }
                (None, None) => 1,
            }
        })
    }
}
