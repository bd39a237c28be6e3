//! Regular expressions. These need no stream. Each compiles its pattern, or finds it compiled.

use super::super::call::{CallState, Pair};
use super::frame::{bytes, pair, show_pairs, show_scratch, show_text, with};
use crate::patterns::PatternError;

/// The answer when the pattern is none, or is refused; the reason is shown.
const REFUSED: i32 = -4;
/// The answer when the call's time is over; what the SDK does with it does not matter any more.
const OVER_TIME: i32 = -5;

fn refused(state: &mut CallState, error: &PatternError) -> i32 {
    match error {
        PatternError::Refused(reason) => {
            show_text(state, reason);
            REFUSED
        }
        PatternError::Time => OVER_TIME,
    }
}

fn place(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// 1: the first match at `from` or after it begins at `number` and ends before `count`, counted from
/// 0; 0: there is none; [`REFUSED`]; [`OVER_TIME`].
pub(super) unsafe extern "C" fn re_find(
    call: *mut CallState,
    pattern: *const u8,
    pattern_length: i32,
    subject: *const u8,
    length: i32,
    from: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let subject = bytes(subject, length);
            let CallState {
                patterns, watch, ..
            } = state;
            let is_over_time = || watch.is_overdue();
            let pattern = patterns.get(bytes(pattern, pattern_length));
            match pattern.and_then(|pattern| pattern.find(subject, place(from), &is_over_time)) {
                Ok(Some((start, end))) => {
                    state.head.number = start as f64;
                    state.head.count = i32::try_from(end).unwrap_or(i32::MAX);
                    1
                }
                Ok(None) => 0,
                Err(error) => refused(state, &error),
            }
        })
    }
}

/// The number of groups, the first of which is the whole match, as pairs of the group's name and what
/// it matched; a group that took no part has a value of length -1. 0: no match; [`REFUSED`];
/// [`OVER_TIME`].
pub(super) unsafe extern "C" fn re_captures(
    call: *mut CallState,
    pattern: *const u8,
    pattern_length: i32,
    subject: *const u8,
    length: i32,
    from: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let subject = bytes(subject, length);
            let CallState {
                patterns,
                scratch,
                pairs,
                watch,
                ..
            } = state;
            pairs.clear();
            // The whole match, which is the first group and holds all others, is copied: Lua may collect
            // the subject while it takes the groups.
            scratch.clear();
            let pattern = patterns.get(bytes(pattern, pattern_length));
            let pattern = match pattern {
                Ok(pattern) => pattern,
                Err(error) => return refused(state, &error),
            };
            match pattern.capture(subject, place(from), &|| watch.is_overdue()) {
                Ok(true) => {}
                Ok(false) => return 0,
                Err(error) => return refused(state, &error),
            }
            let mut offset = 0;
            for group in pattern.groups() {
                let name = group.name.unwrap_or_default().as_bytes();
                let Some((start, end)) = group.place else {
                    let value_length = -1;
                    pairs.push(Pair {
                        value_length,
                        ..pair(name, &[])
                    });
                    continue;
                };
                if pairs.is_empty() {
                    scratch.extend_from_slice(subject.get(start..end).unwrap_or_default());
                    offset = start;
                }
                let value = scratch.get(start - offset..end - offset);
                pairs.push(pair(name, value.unwrap_or_default()));
            }
            show_pairs(state)
        })
    }
}

/// The number of matches that were replaced, at most `limit`; the result is shown. [`REFUSED`];
/// [`OVER_TIME`].
pub(super) unsafe extern "C" fn re_replace(
    call: *mut CallState,
    pattern: *const u8,
    pattern_length: i32,
    subject: *const u8,
    length: i32,
    replacement: *const u8,
    replacement_length: i32,
    limit: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let CallState {
                patterns,
                scratch,
                watch,
                memory_budget,
                ..
            } = state;
            scratch.clear();
            let pattern = patterns.get(bytes(pattern, pattern_length));
            let replaced = pattern.and_then(|pattern| {
                pattern.replace(
                    bytes(subject, length),
                    bytes(replacement, replacement_length),
                    place(limit),
                    *memory_budget,
                    &|| watch.is_overdue(),
                    scratch,
                )
            });
            match replaced {
                Ok(count) => {
                    show_scratch(state);
                    i32::try_from(count).unwrap_or(i32::MAX)
                }
                Err(error) => refused(state, &error),
            }
        })
    }
}
