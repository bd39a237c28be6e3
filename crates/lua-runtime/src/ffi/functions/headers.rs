//! Headers, trailers, staged headers, and the query of the request's path.

use outrider_plugin_api::framing::check_sendable;
use outrider_plugin_api::{HeaderError, HeaderMap, lend_headers};

use super::super::call::CallState;
use super::frame::{OVER_TIME, bytes, pair, show, show_pairs, show_text, with, with_stream};

fn header_map(number: i32) -> HeaderMap {
    match number {
        0 => HeaderMap::RequestHeaders,
        1 => HeaderMap::ResponseHeaders,
        2 => HeaderMap::RequestTrailers,
        _ => HeaderMap::ResponseTrailers,
    }
}

/// The answer for a header that no message may carry.
const UNSENDABLE: i32 = -6;

/// The answer for a header that no plugin may write so; the reason is shown.
const REFUSED_HEADER: i32 = -8;

/// The answer for a change of a header.
#[inline]
fn changed(state: &mut CallState, result: Result<(), HeaderError>) -> i32 {
    match result {
        Ok(()) => 1,
        Err(refused) => not_changed(state, &refused),
    }
}

#[cold]
fn not_changed(state: &mut CallState, refused: &HeaderError) -> i32 {
    match refused {
        HeaderError::Absent => 0,
        HeaderError::Unsendable => UNSENDABLE,
        refused => {
            show_text(state, &refused.to_string());
            REFUSED_HEADER
        }
    }
}

/// 1: found; 0: not.
pub(super) unsafe extern "C" fn header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
    index: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            let Ok(index) = usize::try_from(index) else {
                return 0;
            };
            match stream.header(header_map(map), bytes(name, length), index) {
                Some(value) => {
                    show(state, value);
                    1
                }
                None => 0,
            }
        })
    }
}

/// The number of values.
pub(super) unsafe extern "C" fn header_count(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |_, stream| {
            let count = stream.header_count(header_map(map), bytes(name, length));
            i32::try_from(count).unwrap_or(i32::MAX)
        })
    }
}

/// The number of pairs.
pub(super) unsafe extern "C" fn headers(call: *mut CallState, map: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.pairs.clear();
            let pairs = &mut state.pairs;
            stream.headers(header_map(map), &mut |name, value| {
                pairs.push(pair(name, value));
            });
            show_pairs(state)
        })
    }
}

/// 1: done; 0: the map is not there; [`UNSENDABLE`]; [`REFUSED_HEADER`].
pub(super) unsafe extern "C" fn set_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            // An empty value removes the header, for which the stream takes any name.
            if value.is_empty()
                && let Err(error) = check_sendable(name, value)
            {
                return changed(state, Err(error));
            }
            changed(state, stream.set_header(header_map(map), name, value))
        })
    }
}

/// 1: done; 0: the map is not there; [`UNSENDABLE`]; [`REFUSED_HEADER`].
pub(super) unsafe extern "C" fn add_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            changed(state, stream.add_header(header_map(map), name, value))
        })
    }
}

/// 1: done; 0: the map is not there; [`REFUSED_HEADER`].
pub(super) unsafe extern "C" fn remove_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            let result = stream.remove_header(header_map(map), bytes(name, length));
            changed(state, result)
        })
    }
}

/// Puts the staged headers in place of all that are there. Pseudo headers that are not staged stay:
/// a request without `:path` is none. 1: done; 0: the map is not there.
pub(super) unsafe extern "C" fn replace_headers(call: *mut CallState, map: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let staged = std::mem::take(&mut state.staged);
            let result = stream.replace_headers(header_map(map), &lend_headers(&staged));
            changed(state, result)
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn stage_clear(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            state.staged.clear();
            state.staged_bytes = 0;
            1
        })
    }
}

/// Bytes of the staged headers, with [`STAGED_COST`] for each.
const MOST_STAGED: usize = 256 * 1024;

/// Bytes that a staged header counts beside its name and value.
const STAGED_COST: usize = 64;

/// 1; [`UNSENDABLE`]; [`REFUSED_HEADER`].
pub(super) unsafe extern "C" fn stage(
    call: *mut CallState,
    name: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            let size = state.staged_bytes + STAGED_COST + name.len() + value.len();
            let checked = if size > MOST_STAGED {
                Err(HeaderError::TooLarge)
            } else {
                check_sendable(name, value)
            };
            if checked.is_ok() {
                state.staged_bytes = size;
                state.staged.push((name.to_vec(), value.to_vec()));
            }
            changed(state, checked)
        })
    }
}

/// The number of query parameters, at most `limit`, as pairs; [`OVER_TIME`].
pub(super) unsafe extern "C" fn query(call: *mut CallState, limit: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let path = stream
                .header(HeaderMap::RequestHeaders, b":path", 0)
                .unwrap_or_default();
            let is_over = || state.watch.is_overdue();
            let query = crate::query::of_path(path);
            let limit = limit.max(0) as usize;
            let Some(spans) = crate::query::decode(query, limit, &mut state.scratch, &is_over)
            else {
                return OVER_TIME;
            };
            state.pairs.clear();
            for span in spans {
                let name = state.scratch.get(span.name).unwrap_or_default();
                let value = state.scratch.get(span.value).unwrap_or_default();
                state.pairs.push(pair(name, value));
            }
            show_pairs(state)
        })
    }
}
