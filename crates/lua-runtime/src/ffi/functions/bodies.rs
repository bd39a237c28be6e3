//! Bodies, as the call may see them.
//!
//! Reading the same body again costs no more than its first piece's address: what a call has seen is
//! kept until the call ends or a body changes, which is as long as its bytes stay where they are.

use std::ops::Range;

use outrider_plugin_api::{BodyError, Direction, Stream};

use super::super::call::{CallState, SeenBody};
use super::frame::{bytes, show, show_scratch, show_text, with_stream};

/// The answer when the body cannot have that length.
const REFUSED: i32 = -4;

fn direction(number: i32) -> Direction {
    if number == 0 {
        Direction::Request
    } else {
        Direction::Response
    }
}

/// The length, or -1 where there is no body.
pub(super) unsafe extern "C" fn body_length(call: *mut CallState, way: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream
                .body_len(direction(way))
                .map_or(-1, |length| i32::try_from(length).unwrap_or(i32::MAX))
        })
    }
}

/// Where the whole body lies; a body in several pieces is copied together, once for the call.
fn whole(state: &mut CallState, way: Direction, stream: &dyn Stream) -> Option<(*const u8, usize)> {
    if let Some(seen) = &state.seen_body
        && seen.direction == way
    {
        return Some((seen.data, seen.length));
    }
    let length = stream.body_len(way)?;
    let mut pieces = 0;
    let mut data = std::ptr::null();
    stream.body_pieces(way, &mut |piece| {
        pieces += 1;
        data = piece.as_ptr();
    });
    if pieces > 1 {
        let copy = &mut state.body_copy;
        copy.clear();
        copy.reserve(length);
        stream.body_pieces(way, &mut |piece| copy.extend_from_slice(piece));
        data = copy.as_ptr();
    }
    state.seen_body = Some(SeenBody {
        direction: way,
        data,
        length,
    });
    Some((data, length))
}

/// 1: here it is; 0: there is none.
pub(super) unsafe extern "C" fn body(call: *mut CallState, way: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            match whole(state, direction(way), stream) {
                Some((data, length)) => {
                    state.head.data = data;
                    state.head.length = i32::try_from(length).unwrap_or(i32::MAX);
                    1
                }
                None => 0,
            }
        })
    }
}

/// The part from byte `first` (counted from 1) to byte `last`, where negative numbers count from the
/// end, as in `string.sub`.
fn part_of(first: i32, last: i32, length: usize) -> Range<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let place = |number: i32| {
        let number = i64::from(number);
        if number < 0 {
            length + number + 1
        } else {
            number
        }
    };
    let start = place(first).max(1) - 1;
    let end = place(last).min(length);
    let start = usize::try_from(start.min(end)).unwrap_or(0);
    start..usize::try_from(end).unwrap_or(0)
}

/// What of a piece that begins at `offset` lies in the part; moves `offset` behind the piece.
fn cut<'p>(piece: &'p [u8], part: &Range<usize>, offset: &mut usize) -> &'p [u8] {
    let from = part.start.saturating_sub(*offset).min(piece.len());
    let to = part.end.saturating_sub(*offset).min(piece.len());
    *offset += piece.len();
    piece.get(from..to).unwrap_or_default()
}

/// 1: here is the part; 0: there is no body. No more than the part is copied.
pub(super) unsafe extern "C" fn body_part(
    call: *mut CallState,
    way: i32,
    first: i32,
    last: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let way = direction(way);
            let Some(length) = stream.body_len(way) else {
                return 0;
            };
            let part = part_of(first, last, length);
            let (mut offset, mut pieces) = (0, 0);
            stream.body_pieces(way, &mut |piece| {
                let within = cut(piece, &part, &mut offset);
                if !within.is_empty() {
                    pieces += 1;
                    // It stays where it is until a body changes.
                    show(state, within);
                }
            });
            if pieces != 1 {
                state.scratch.clear();
                let scratch = &mut state.scratch;
                let mut offset = 0;
                stream.body_pieces(way, &mut |piece| {
                    scratch.extend_from_slice(cut(piece, &part, &mut offset));
                });
                show_scratch(state);
            }
            1
        })
    }
}

fn answer(state: &mut CallState, result: Result<(), BodyError>) -> i32 {
    match result {
        Ok(()) => 1,
        Err(error) => {
            show_text(state, &error.to_string());
            match error {
                BodyError::NoBody => 0,
                BodyError::LengthAnnounced | BodyError::TooLarge(_) | BodyError::Memory(_) => {
                    REFUSED
                }
            }
        }
    }
}

/// 1: done; 0: there is none; [`REFUSED`].
pub(super) unsafe extern "C" fn set_body(
    call: *mut CallState,
    way: i32,
    body: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            state.forget_body();
            let result = stream.set_body(direction(way), bytes(body, length));
            answer(state, result)
        })
    }
}

/// Replaces `length` bytes (negative: all) from `start` (counted from 0; negative: at the end). Answers
/// as [`set_body`].
pub(super) unsafe extern "C" fn splice_body(
    call: *mut CallState,
    way: i32,
    start: i32,
    length: i32,
    body: *const u8,
    body_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with_stream(call, |state, stream| {
            state.forget_body();
            let start = usize::try_from(start).unwrap_or(usize::MAX);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let part = start..start.saturating_add(length);
            let result = stream.splice_body(direction(way), part, bytes(body, body_length));
            answer(state, result)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::part_of;

    #[test]
    fn parts_are_those_of_string_sub() {
        for (first, last, expected) in [
            (1, 3, 0..3),
            (2, -1, 1..5),
            (-2, -1, 3..5),
            (0, 2, 0..2),
            (-9, 2, 0..2),
            (4, 9, 3..5),
            (4, 2, 2..2),
            (9, 9, 5..5),
            (1, 0, 0..0),
            (1, -9, 0..0),
        ] {
            let part = part_of(first, last, 5);
            assert_eq!(part.len(), expected.len(), "{first} {last}: {part:?}");
            if !part.is_empty() {
                assert_eq!(part, expected, "{first} {last}");
            }
        }
    }
}
