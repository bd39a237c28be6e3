//! Lua's own patterns. These need no stream. The SDK's `strings.lua` makes `string.find`, `match`,
//! `gmatch` and `gsub` of them.

use super::super::call::{CallState, Pair};
use super::frame::{bytes, show_scratch, show_text, with};
use crate::lua_pattern::{Anchor, Capture, Matcher, Stop, find_text, is_pattern};

/// The answer when the pattern is wrong; the reason is shown.
const WRONG: i32 = -4;
/// The answer when the call's time is over; what the SDK does with it does not matter any more.
const OVER_TIME: i32 = -5;
/// The answer when the result is larger than the VM may hold.
const OVER_MEMORY: i32 = -7;

/// What asks for a match; `strings.lua` has the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Find,
    FindText,
    Match,
    GlobalMatch,
    ReplaceByFunction,
    ReplaceByTable,
}

impl Kind {
    fn of(number: i32) -> Self {
        match number {
            0 => Self::Find,
            1 => Self::FindText,
            2 => Self::Match,
            3 => Self::GlobalMatch,
            4 => Self::ReplaceByFunction,
            _ => Self::ReplaceByTable,
        }
    }

    fn anchor(self) -> Anchor {
        match self {
            Self::GlobalMatch => Anchor::Ignored,
            _ => Anchor::Minded,
        }
    }
}

fn stopped(state: &mut CallState, stop: Stop) -> i32 {
    match stop {
        Stop::Wrong(reason) => {
            show_text(state, reason);
            WRONG
        }
        Stop::Time => OVER_TIME,
        Stop::Memory => OVER_MEMORY,
    }
}

/// A capture as the SDK reads it: its beginning, from 0, as `name_length`, its length as
/// `value_length`, or -2 for a position.
fn shown(capture: Capture) -> Pair {
    Pair {
        name: std::ptr::null(),
        value: std::ptr::null(),
        name_length: i32::try_from(capture.start).unwrap_or(i32::MAX),
        value_length: i32::try_from(capture.length).unwrap_or(i32::MAX),
    }
}

/// 0: no match at `from` (counted from 0) or after it; else one more than there are captures: the match
/// begins at `number` and ends before `count`, both counted from 0. [`WRONG`]; [`OVER_TIME`].
pub(super) unsafe extern "C" fn lua_match(
    call: *mut CallState,
    kind: i32,
    subject: *const u8,
    length: i32,
    pattern: *const u8,
    pattern_length: i32,
    from: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let (subject, pattern) = (bytes(subject, length), bytes(pattern, pattern_length));
            let kind = Kind::of(kind);
            let from = usize::try_from(from).unwrap_or(0).min(subject.len());
            state.pairs.clear();
            let found = if kind == Kind::FindText || kind == Kind::Find && !is_pattern(pattern) {
                find_text(subject, pattern, from)
            } else {
                let CallState { pairs, watch, .. } = &mut *state;
                let mut matcher = Matcher::new(subject, pattern, || watch.is_overdue());
                let found = matcher.search(from, kind.anchor()).and_then(|found| {
                    let Some(place) = found else { return Ok(None) };
                    match kind {
                        Kind::ReplaceByTable => pairs.push(shown(matcher.capture(0, place)?)),
                        Kind::Find => pairs.extend(matcher.captures(None)?.map(shown)),
                        _ => pairs.extend(matcher.captures(Some(place))?.map(shown)),
                    }
                    Ok(Some(place))
                });
                match found {
                    Ok(found) => found,
                    Err(stop) => return stopped(state, stop),
                }
            };
            let Some((start, end)) = found else { return 0 };
            state.head.number = start as f64;
            state.head.count = i32::try_from(end).unwrap_or(i32::MAX);
            state.head.pairs = state.pairs.as_ptr();
            i32::try_from(state.pairs.len()).map_or(1, |count| count + 1)
        })
    }
}

/// The number of matches that were replaced, at most `most`; the result is shown. [`WRONG`];
/// [`OVER_TIME`]; [`OVER_MEMORY`].
pub(super) unsafe extern "C" fn lua_replace(
    call: *mut CallState,
    subject: *const u8,
    length: i32,
    pattern: *const u8,
    pattern_length: i32,
    replacement: *const u8,
    replacement_length: i32,
    most: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let CallState {
                scratch,
                watch,
                memory_budget,
                ..
            } = &mut *state;
            scratch.clear();
            let (subject, pattern) = (bytes(subject, length), bytes(pattern, pattern_length));
            let mut matcher = Matcher::new(subject, pattern, || watch.is_overdue());
            let replaced = matcher.replace(
                bytes(replacement, replacement_length),
                usize::try_from(most).unwrap_or(0),
                *memory_budget,
                scratch,
            );
            match replaced {
                Ok(count) => {
                    show_scratch(state);
                    i32::try_from(count).unwrap_or(i32::MAX)
                }
                Err(stop) => stopped(state, stop),
            }
        })
    }
}
