//! Digests, comparison, hexadecimal digits and random names. These need no stream.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::super::call::CallState;
use super::frame::{bytes, show_scratch, with};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// 1: here is the digest.
pub(super) unsafe extern "C" fn sha256(call: *mut CallState, value: *const u8, length: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let digest = Sha256::digest(bytes(value, length));
            state.scratch.clear();
            state.scratch.extend_from_slice(&digest);
            show_scratch(state);
            1
        })
    }
}

/// 1: here is the code; 0: no code can be made.
pub(super) unsafe extern "C" fn hmac_sha256(
    call: *mut CallState,
    key: *const u8,
    key_length: i32,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            // A key may have any length.
            let Ok(mut code) = Hmac::<Sha256>::new_from_slice(bytes(key, key_length)) else {
                return 0;
            };
            code.update(bytes(value, length));
            state.scratch.clear();
            state
                .scratch
                .extend_from_slice(&code.finalize().into_bytes());
            show_scratch(state);
            1
        })
    }
}

/// 1: the texts are equal; 0: they are not. How long it takes tells their lengths at most.
pub(super) unsafe extern "C" fn equal(
    call: *mut CallState,
    first: *const u8,
    first_length: i32,
    second: *const u8,
    second_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |_| {
            let (first, second) = (bytes(first, first_length), bytes(second, second_length));
            i32::from(bool::from(first.ct_eq(second)))
        })
    }
}

/// 1: here they are.
pub(super) unsafe extern "C" fn hex_encode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    let digit = |value: u8| DIGITS.get(usize::from(value)).copied().unwrap_or(b'0');
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            state.scratch.clear();
            let digits = bytes(value, length)
                .iter()
                .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
            state.scratch.extend(digits);
            show_scratch(state);
            1
        })
    }
}

/// 1: here are the bytes; 0: these are no pairs of hexadecimal digits.
pub(super) unsafe extern "C" fn hex_decode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            state.scratch.clear();
            for pair in bytes(value, length).chunks(2) {
                let decoded = match pair {
                    [high, low] => digit(*high).zip(digit(*low)),
                    _ => None,
                };
                let Some((high, low)) = decoded else { return 0 };
                state.scratch.push(high << 4 | low);
            }
            show_scratch(state);
            1
        })
    }
}

/// 1: here is a random UUID, of version 4.
pub(super) unsafe extern "C" fn uuid(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with(call, |state| {
            let mut buffer = uuid::Uuid::encode_buffer();
            let text = uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer);
            state.scratch.clear();
            state.scratch.extend_from_slice(text.as_bytes());
            show_scratch(state);
            1
        })
    }
}
