//! The proxy's log and the plugin's own. While a plugin loads, lines go where what loads it says; each
//! is written once, not by the VM of each worker.

use std::borrow::Cow;

use outrider_plugin_api::{LINE_LIMIT, LogLevel, Stream};

use super::super::call::CallState;
use super::super::watch::Watch;
use super::frame::{OVER_TIME, bytes, in_pieces, text, with};
use crate::file_log::FileLog;

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
        with(call, |state| {
            let level = log_level(level);
            i32::from(match (state.stream, state.metrics) {
                // SAFETY: see `with_stream`; the place for what loads is there for as long likewise.
                (Some(stream), _) => stream.as_ref().log_enabled(level),
                // SAFETY: as above.
                (None, Some(load)) => load.as_ref().log_enabled(level),
                (None, None) => false,
            })
        })
    }
}

/// Returns a message as text, or `None` if the call's time is over. A character between two pieces of a long message,
/// of which the log shows the beginning only, is replaced.
fn line<'m>(message: &'m [u8], watch: &Watch) -> Option<Cow<'m, str>> {
    if message.len() <= LINE_LIMIT {
        return Some(text(message));
    }
    let mut line = String::new();
    in_pieces(message, watch, |piece| {
        line.push_str(&text(piece));
        Some(())
    })?;
    Some(Cow::Owned(line))
}

/// 1; [`OVER_TIME`].
pub(super) unsafe extern "C" fn log(
    call: *mut CallState,
    level: i32,
    message: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let level = log_level(level);
            match (state.stream, state.metrics) {
                (Some(stream), _) => {
                    // SAFETY: see `with_stream`.
                    let stream = stream.as_ref();
                    if stream.log_enabled(level) {
                        let Some(line) = line(bytes(message, length), &state.watch) else {
                            return OVER_TIME;
                        };
                        stream.log(level, &line);
                    }
                }
                (None, Some(mut load)) => {
                    // SAFETY: a place for what loads is there only while its borrow lasts.
                    let load = load.as_mut();
                    if load.log_enabled(level) {
                        let Some(line) = line(bytes(message, length), &state.watch) else {
                            return OVER_TIME;
                        };
                        load.log(level, &state.shared.plugin, &line);
                    }
                }
                // The plugin is taken in by another VM; the first has said it.
                (None, None) => {}
            }
            1
        })
    }
}

/// Lines that the file has lost go into the statistics, and now and then into the log, of whichever stream
/// comes next.
fn tell_losses(file: &FileLog, state: &CallState, stream: &mut dyn Stream) {
    let lost = file.untold();
    if lost == 0 {
        return;
    }
    if let Some(dropped) = state.shared.filelog_dropped.get() {
        stream.add_metric(*dropped, i64::try_from(lost).unwrap_or(i64::MAX));
    }
    if let Some(complaint) = file.complaint(stream.unix_millis()) {
        stream.log(LogLevel::Warn, &complaint);
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
                (Some(file), stream) => {
                    file.write(message);
                    if let Some(mut stream) = stream {
                        // SAFETY: see `with_stream`.
                        tell_losses(file, state, stream.as_mut());
                    }
                    1
                }
                (None, Some(stream)) => {
                    // SAFETY: see `with_stream`.
                    stream.as_ref().log(LogLevel::Info, &text(message));
                    1
                }
                (None, None) => {
                    if let Some(mut load) = state.metrics {
                        // SAFETY: as above.
                        let load = load.as_mut();
                        load.log(LogLevel::Info, &state.shared.plugin, &text(message));
                    }
                    1
                }
            }
        })
    }
}
