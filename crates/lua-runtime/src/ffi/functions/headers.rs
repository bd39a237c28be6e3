//! Headers, trailers, staged headers, and the query of the request's path.

use outrider_plugin_api::HeaderMap;

use super::super::call::CallState;
use super::frame::{bytes, pair, show, show_pairs, with, with_stream};

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

/// Whether a message may carry a header: its name is a token of HTTP (RFC 9110, section 5.6.2) or that
/// of a pseudo header, and its value holds no NUL and no line break, which would begin another header.
#[inline]
fn is_sendable(name: &[u8], value: &[u8]) -> bool {
    let token = name.strip_prefix(b":").unwrap_or(name);
    !token.is_empty() && token.iter().all(|byte| is_token_byte(*byte)) && !holds_break(value)
}

/// Whether a value holds a byte that no value may; eight bytes at a time, the last of which overlap where
/// they do not come out even.
#[inline]
fn holds_break(value: &[u8]) -> bool {
    let zero_in = |word: u64| word.wrapping_sub(LOWS) & !word & HIGHS;
    let breaks = |word: u64| {
        // Values mostly have no byte as low as any of these, which is quickly seen.
        let lowest = LOWS * u64::from(b'\r' + 1);
        if word.wrapping_sub(lowest) & !word & HIGHS == 0 {
            return false;
        }
        let returns = LOWS * u64::from(b'\r');
        let newlines = LOWS * u64::from(b'\n');
        zero_in(word) | zero_in(word ^ returns) | zero_in(word ^ newlines) != 0
    };
    if let Some(last) = value.last_chunk::<8>() {
        let (words, _) = value.as_chunks::<8>();
        words.iter().any(|word| breaks(u64::from_le_bytes(*word)))
            || breaks(u64::from_le_bytes(*last))
    } else if let (Some(first), Some(last)) = (value.first_chunk::<4>(), value.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        breaks(u64::from(first) << 32 | u64::from(last))
    } else {
        value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
    }
}

const LOWS: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Whether each byte may stand in a token; a table, for it is asked for every header that is set.
static IN_TOKEN: [bool; 256] = in_token();

#[expect(
    clippy::indexing_slicing,
    reason = "runs while this is compiled, where a wrong index is an error"
)]
const fn in_token() -> [bool; 256] {
    const OTHERS: &[u8] = b"!#$%&'*+-.^_`|~";
    let mut table = [false; 256];
    let mut index = 0;
    while index < table.len() {
        table[index] = (index as u8).is_ascii_alphanumeric();
        index += 1;
    }
    index = 0;
    while index < OTHERS.len() {
        table[OTHERS[index] as usize] = true;
        index += 1;
    }
    table
}

#[inline]
#[expect(
    clippy::indexing_slicing,
    reason = "the table has a place for every byte"
)]
fn is_token_byte(byte: u8) -> bool {
    IN_TOKEN[usize::from(byte)]
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

/// 1: done; 0: the map is not there; [`UNSENDABLE`].
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
        with_stream(call, |_, stream| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            if !is_sendable(name, value) {
                return UNSENDABLE;
            }
            i32::from(stream.set_header(header_map(map), name, value))
        })
    }
}

/// As [`set_header`], with a name that [`set_header`] has taken before: the SDK remembers those.
pub(super) unsafe extern "C" fn set_known_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
    value: *const u8,
    value_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |_, stream| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            if holds_break(value) {
                return UNSENDABLE;
            }
            i32::from(stream.set_header(header_map(map), name, value))
        })
    }
}

/// 1: done; 0: the map is not there; [`UNSENDABLE`].
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
        with_stream(call, |_, stream| {
            let (name, value) = (bytes(name, length), bytes(value, value_length));
            if !is_sendable(name, value) {
                return UNSENDABLE;
            }
            i32::from(stream.add_header(header_map(map), name, value))
        })
    }
}

/// 1: done; 0: the map is not there.
pub(super) unsafe extern "C" fn remove_header(
    call: *mut CallState,
    map: i32,
    name: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |_, stream| {
            i32::from(stream.remove_header(header_map(map), bytes(name, length)))
        })
    }
}

/// Puts the staged headers in place of all that are there. Pseudo headers that are not staged stay:
/// a request without `:path` is none. 1: done; 0: the map is not there.
pub(super) unsafe extern "C" fn replace_headers(call: *mut CallState, map: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let map = header_map(map);
            let mut present: Vec<Vec<u8>> = Vec::new();
            stream.headers(map, &mut |name, _| present.push(name.to_vec()));
            present.dedup();
            for name in present.iter().filter(|name| !name.starts_with(b":")) {
                stream.remove_header(map, name);
            }
            let mut done = true;
            for (name, value) in state.staged.drain(..) {
                done &= if name.starts_with(b":") {
                    stream.set_header(map, &name, &value)
                } else {
                    stream.add_header(map, &name, &value)
                };
            }
            i32::from(done)
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn stage_clear(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            state.staged.clear();
            1
        })
    }
}

/// 1; or [`UNSENDABLE`].
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
            if !is_sendable(name, value) {
                return UNSENDABLE;
            }
            state.staged.push((name.to_vec(), value.to_vec()));
            1
        })
    }
}

/// The number of query parameters, at most `limit`, as pairs.
pub(super) unsafe extern "C" fn query(call: *mut CallState, limit: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let path = stream
                .header(HeaderMap::RequestHeaders, b":path", 0)
                .unwrap_or_default();
            let spans = crate::query::decode(
                crate::query::of_path(path),
                limit.max(0) as usize,
                &mut state.scratch,
            );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_are_found_wherever_they_are() {
        for length in 0..=20 {
            assert!(!holds_break(&vec![b'x'; length]));
            assert!(!holds_break(&vec![0xff; length]));
            for place in 0..length {
                for byte in [0, b'\r', b'\n'] {
                    let mut value = vec![b'x'; length];
                    if let Some(found) = value.get_mut(place) {
                        *found = byte;
                    }
                    assert!(holds_break(&value), "{byte} at {place} of {length}");
                }
            }
        }
    }
}
