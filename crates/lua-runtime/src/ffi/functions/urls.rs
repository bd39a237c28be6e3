//! Percent-encoding, and queries. These need no stream.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};

use super::super::call::CallState;
use super::frame::{OVER_TIME, bytes, in_pieces, pair, show_pairs, show_scratch, with};

/// All that RFC 3986 does not leave as it is in every place.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// 1: here it is; [`OVER_TIME`].
pub(super) unsafe extern "C" fn url_encode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let CallState { scratch, watch, .. } = state;
            scratch.clear();
            let made = in_pieces(bytes(value, length), watch, |piece| {
                append(piece, scratch);
                Some(())
            });
            show_scratch(state);
            if made.is_some() { 1 } else { OVER_TIME }
        })
    }
}

/// 1: here it is; [`OVER_TIME`].
pub(super) unsafe extern "C" fn url_decode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let CallState { scratch, watch, .. } = state;
            scratch.clear();
            // An escape of which a part is in the next piece waits for it.
            let mut kept = Vec::new();
            let made = in_pieces(bytes(value, length), watch, |piece| {
                kept.extend_from_slice(piece);
                let tail = kept.len().saturating_sub(2);
                let cut = kept.get(tail..).unwrap_or_default();
                let cut = cut.iter().position(|byte| *byte == b'%');
                let rest = kept.split_off(cut.map_or(kept.len(), |at| tail + at));
                scratch.extend(percent_decode(&kept));
                kept = rest;
                Some(())
            });
            scratch.extend(percent_decode(&kept));
            show_scratch(state);
            if made.is_some() { 1 } else { OVER_TIME }
        })
    }
}

/// The number of parameters, at most `limit`, as pairs; [`OVER_TIME`].
pub(super) unsafe extern "C" fn parse_query(
    call: *mut CallState,
    value: *const u8,
    length: i32,
    limit: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let query = bytes(value, length);
            let query = query.strip_prefix(b"?").unwrap_or(query);
            let is_over = || state.watch.is_overdue();
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

fn append(text: &[u8], out: &mut Vec<u8>) {
    for piece in percent_encode(text, ENCODED) {
        out.extend_from_slice(piece.as_bytes());
    }
}
