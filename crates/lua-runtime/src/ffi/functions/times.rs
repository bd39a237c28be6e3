//! Clocks, and moments as text. These need no stream, but where there is one its clock is asked.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::super::call::CallState;
use super::frame::{bytes, show_scratch, with};
use crate::moment::{self, Form};

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn form(number: i32) -> Form {
    if number == 0 {
        Form::Rfc3339
    } else {
        Form::Http
    }
}

/// Now, in milliseconds since the Unix epoch: the stream's time, or outside of streams the system's.
///
/// # Safety
/// As for [`with`].
pub(super) unsafe fn now(state: &CallState) -> u64 {
    match state.stream {
        // SAFETY: a stream is there only while its borrow lasts, and during a call into Lua nothing
        // else uses that borrow.
        Some(stream) => unsafe { stream.as_ref() }.unix_millis(),
        None => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64),
    }
}

/// 1: here it is.
pub(super) unsafe extern "C" fn clock(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            state.head.number = now(state) as f64;
            1
        })
    }
}

/// 1: here it is, in microseconds: the stream's time, with what the system's clock adds to it where
/// the two agree.
pub(super) unsafe extern "C" fn clock_micros(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            let system = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_micros() as u64);
            let now = now(state);
            let agree = (system / 1000).abs_diff(now) <= 1;
            state.head.number = if agree { system } else { now * 1000 } as f64;
            1
        })
    }
}

/// 1: here it is, in milliseconds.
pub(super) unsafe extern "C" fn monotonic(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            state.head.number = BEGAN.elapsed().as_secs_f64() * 1000.0;
            1
        })
    }
}

/// 1: here is the text; 0: it is no moment from 1970 to 9999.
pub(super) unsafe extern "C" fn format_time(call: *mut CallState, kind: i32, at: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            state.scratch.clear();
            let done = moment::format(at, form(kind), &mut state.scratch);
            show_scratch(state);
            i32::from(done)
        })
    }
}

/// 1: here is the moment; 0: the text names none.
pub(super) unsafe extern "C" fn parse_time(
    call: *mut CallState,
    kind: i32,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let text = std::str::from_utf8(bytes(value, length)).ok();
            match text.and_then(|text| moment::parse(text, form(kind))) {
                Some(moment) => {
                    state.head.number = moment;
                    1
                }
                None => 0,
            }
        })
    }
}
