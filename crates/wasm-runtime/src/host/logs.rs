//! Logs and the clock.

use outrider_plugin_api::LogLevel;

use crate::abi::Status;
use crate::guest_memory::{Answer, Guest, bytes, split, write_u32, write_u64};

/// Bytes of a line; the rest is dropped.
pub(crate) const MOST_LINE: usize = 8 * 1024;

/// A level's number in the ABI.
pub(crate) fn level(number: i32) -> Option<LogLevel> {
    Some(match number {
        0 => LogLevel::Trace,
        1 => LogLevel::Debug,
        2 => LogLevel::Info,
        3 => LogLevel::Warn,
        4 => LogLevel::Error,
        5 => LogLevel::Critical,
        _ => return None,
    })
}

pub(crate) fn log(guest: &mut Guest<'_>, number: i32, message: i32, length: i32) -> Answer {
    let Some(level) = level(number) else {
        return Ok(Status::BadArgument);
    };
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(message) = bytes(memory, message, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let message = message.get(..MOST_LINE).unwrap_or(message);
    state.note_line(level, message);
    if state.log_enabled(level) {
        state.log(level, &String::from_utf8_lossy(message));
    }
    Ok(Status::Ok)
}

pub(crate) fn get_log_level(guest: &mut Guest<'_>, place: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let lowest = (0..5)
        .find(|number| level(*number).is_some_and(|level| state.log_enabled(level)))
        .unwrap_or(5);
    Ok(write_u32(memory, place, lowest as u32))
}

pub(crate) fn get_current_time(guest: &mut Guest<'_>, place: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let now = state.shared.clock.now().as_nanos();
    Ok(write_u64(
        memory,
        place,
        u64::try_from(now).unwrap_or(u64::MAX),
    ))
}
