//! What the workers of one plugin version share. These need no stream; where there is one, its clock
//! says when entries end.

use super::super::call::CallState;
use super::frame::{bytes, show_text, with};
use super::times::now;
use crate::store::{Bucket, Incremented, LONGEST_KEY, LONGEST_VALUE, Lifetime, Taken, Value};

/// The answer when a key or a value is refused; the reason is shown.
const REFUSED: i32 = -4;

/// A number below 0 means no end.
fn lifetime(milliseconds: f64) -> Lifetime {
    if milliseconds < 0.0 {
        Lifetime::Unlimited
    } else {
        Lifetime::Milliseconds(milliseconds as u64)
    }
}

fn refuses(state: &mut CallState, key: &[u8], value: &[u8]) -> bool {
    let (what, length, limit) = if key.len() > LONGEST_KEY {
        ("key", key.len(), LONGEST_KEY)
    } else if value.len() > LONGEST_VALUE {
        ("value", value.len(), LONGEST_VALUE)
    } else {
        return false;
    };
    show_text(
        state,
        &format!("the {what} has {length} bytes; {limit} are allowed"),
    );
    true
}

/// 0: none; 1: text; 2: number; 3: truth value, as number.
pub(super) unsafe extern "C" fn store_get(
    call: *mut CallState,
    key: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let now = now(state);
            let CallState {
                head,
                scratch,
                shared,
                ..
            } = state;
            let shown = shared
                .store
                .get(bytes(key, length), now, |value| match value {
                    Value::Text(text) => {
                        scratch.clear();
                        scratch.extend_from_slice(text);
                        head.data = scratch.as_ptr();
                        head.length = i32::try_from(scratch.len()).unwrap_or(i32::MAX);
                        1
                    }
                    Value::Number(number) => {
                        head.number = *number;
                        2
                    }
                    Value::Bool(truth) => {
                        head.number = f64::from(u8::from(*truth));
                        3
                    }
                });
            shown.unwrap_or(0)
        })
    }
}

/// Kinds as in [`store_get`]; with `only_new` 1 a value that is there stays. 1: stored; 0: there was
/// one; [`REFUSED`].
pub(super) unsafe extern "C" fn store_set(
    call: *mut CallState,
    key: *const u8,
    length: i32,
    kind: i32,
    value: *const u8,
    value_length: i32,
    number: f64,
    time: f64,
    only_new: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let (key, text) = (bytes(key, length), bytes(value, value_length));
            if refuses(state, key, text) {
                return REFUSED;
            }
            let value = match kind {
                1 => Value::Text(text.into()),
                2 => Value::Number(number),
                _ => Value::Bool(number != 0.0),
            };
            let now = now(state);
            let store = &state.shared.store;
            if only_new == 1 {
                return i32::from(store.add(key, value, lifetime(time), now));
            }
            store.set(key, value, lifetime(time), now);
            1
        })
    }
}

/// 1: here is the number as it is now; 0: the value is no number; [`REFUSED`].
pub(super) unsafe extern "C" fn store_increment(
    call: *mut CallState,
    key: *const u8,
    length: i32,
    amount: f64,
    initial: f64,
    time: f64,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let key = bytes(key, length);
            if refuses(state, key, &[]) {
                return REFUSED;
            }
            let (now, store) = (now(state), &state.shared.store);
            match store.increment(key, amount, initial, lifetime(time), now) {
                Incremented::To(number) => {
                    state.head.number = number;
                    1
                }
                Incremented::NoNumber => 0,
            }
        })
    }
}

/// 1: taken, and `number` are left; 2: there are too few, until `number` milliseconds from now; 0: the
/// value is no bucket; [`REFUSED`].
pub(super) unsafe extern "C" fn store_take(
    call: *mut CallState,
    key: *const u8,
    length: i32,
    amount: f64,
    capacity: f64,
    interval: f64,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let key = bytes(key, length);
            if refuses(state, key, &[]) {
                return REFUSED;
            }
            let bucket = Bucket { capacity, interval };
            let (now, store) = (now(state), &state.shared.store);
            let (answer, number) = match store.take(key, amount, bucket, now) {
                Taken::Left(tokens) => (1, tokens),
                Taken::Wait(milliseconds) => (2, milliseconds),
                Taken::NoNumber => (0, 0.0),
            };
            state.head.number = number;
            answer
        })
    }
}

/// 1: it was there; 0: it was not.
pub(super) unsafe extern "C" fn store_delete(
    call: *mut CallState,
    key: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let now = now(state);
            i32::from(state.shared.store.delete(bytes(key, length), now))
        })
    }
}

/// 1: here is how long it lives on, in milliseconds; 2: it has no end; 0: it is not there.
pub(super) unsafe extern "C" fn store_remaining(
    call: *mut CallState,
    key: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let now = now(state);
            match state.shared.store.remaining(bytes(key, length), now) {
                Some(Lifetime::Milliseconds(time)) => {
                    state.head.number = time as f64;
                    1
                }
                Some(Lifetime::Unlimited) => 2,
                None => 0,
            }
        })
    }
}
