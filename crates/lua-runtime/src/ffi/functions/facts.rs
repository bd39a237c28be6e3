//! What is known about the stream, its clock, and its place among those that the VM knows.

use outrider_plugin_api::{Attribute, AttributeKind};

use super::super::call::{CallState, TapeItem};
use super::frame::{bytes, show_scalar, show_text, text, with, with_stream};

/// The attribute of a number that Lua was given by [`attribute_number`].
fn numbered(which: i32) -> Option<Attribute> {
    Attribute::ALL.get(usize::try_from(which).ok()?).copied()
}

/// As [`show_scalar`]'s.
pub(super) unsafe extern "C" fn attribute(call: *mut CallState, which: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let value = numbered(which).and_then(|which| stream.attribute(which));
            show_scalar(state, value)
        })
    }
}

/// The attribute's number, by which [`attribute`] is asked; [`NO_ATTRIBUTE`]: here is why there is none.
pub(super) unsafe extern "C" fn attribute_number(
    call: *mut CallState,
    name: *const u8,
    length: i32,
) -> i32 {
    const NO_ATTRIBUTE: i32 = -4;
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            if length > MOST_NAME {
                show_text(
                    state,
                    "there is no attribute with such a long name; docs/lua-sdk.md lists them, for example \
                     request.path",
                );
                return NO_ATTRIBUTE;
            }
            let name = text(bytes(name, length));
            let problem = match Attribute::named(&name) {
                Some(found) => match found.kind() {
                    AttributeKind::Hidden(instead) => {
                        format!("Envoy does not show {name} to plugins; {instead}")
                    }
                    _ => return found as i32,
                },
                None => unknown(&name),
            };
            show_text(state, &problem);
            NO_ATTRIBUTE
        })
    }
}

/// Bytes of a name that may be an attribute's: the longest is shorter.
const MOST_NAME: i32 = 128;

/// Returns the message for a name that is no attribute's. The name has at most [`MOST_NAME`] bytes: comparing takes
/// time that grows with its length.
fn unknown(name: &str) -> String {
    const FARTHEST: usize = 5;
    let near = Attribute::ALL
        .iter()
        .filter(|attribute| !matches!(attribute.kind(), AttributeKind::Hidden(_)))
        .map(|attribute| {
            (
                strsim::osa_distance(name, attribute.name()),
                attribute.name(),
            )
        })
        .min()
        .filter(|(distance, _)| *distance <= FARTHEST);
    match near {
        Some((_, near)) => format!("there is no attribute {name}; did you mean {near}?"),
        None => format!(
            "there is no attribute {name}; docs/lua-sdk.md lists them, for example request.path"
        ),
    }
}

/// 1: the times are in the tape's numbers, in milliseconds; those that are none are negative.
pub(super) unsafe extern "C" fn timing(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let timing = stream.timing();
            state.tape.clear();
            for time in [
                timing.complete,
                timing.first_upstream_sent,
                timing.last_upstream_sent,
                timing.first_upstream_received,
                timing.last_upstream_received,
                timing.first_downstream_sent,
                timing.last_downstream_sent,
            ] {
                state.tape.push(TapeItem {
                    kind: 3,
                    length: 0,
                    data: std::ptr::null(),
                    number: time.map_or(-1.0, |time| time.as_secs_f64() * 1000.0),
                });
            }
            state.head.tape = state.tape.as_ptr();
            1
        })
    }
}

/// The status code, or 0.
pub(super) unsafe extern "C" fn response_code(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.response_code().map_or(0, i32::from)
        })
    }
}

/// 1: done; 0: the route cannot change any more.
pub(super) unsafe extern "C" fn clear_route_cache(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe { with_stream(call, |_, stream| i32::from(stream.clear_route_cache())) }
}

/// 1: here it is.
pub(super) unsafe extern "C" fn now(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.head.number = stream.unix_millis() as f64;
            1
        })
    }
}

/// 1: here it is.
pub(super) unsafe extern "C" fn start_time(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.head.number = stream.start_unix_millis() as f64;
            1
        })
    }
}

/// The number of the stream's entry, which is made; -3: it has been lost.
pub(super) unsafe extern "C" fn stream_index(call: *mut CallState) -> i32 {
    const LOST: i32 = -3;
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            match state.streams.entry(&mut state.slot) {
                Some((index, entry)) => {
                    entry.shares = true;
                    i32::try_from(index).unwrap_or(LOST)
                }
                None => LOST,
            }
        })
    }
}
