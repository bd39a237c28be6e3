//! Digests, signatures, comparison, hexadecimal digits and random names. These need no stream.

use std::borrow::Cow;

use hmac::{Hmac, KeyInit, Mac};
use outrider_signatures::{Form, Hash, PublicKey, SignatureError, pem};
use sha1::Sha1;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq as _;

use super::super::call::CallState;
use super::frame::{bytes, show_scratch, show_text, with};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The digests in the order of the SDK's numbers.
fn digest_of(number: i32, value: &[u8], out: &mut Vec<u8>) {
    match number {
        1 => out.extend_from_slice(&Sha1::digest(value)),
        2 => out.extend_from_slice(&Sha256::digest(value)),
        3 => out.extend_from_slice(&Sha384::digest(value)),
        _ => out.extend_from_slice(&Sha512::digest(value)),
    }
}

/// 1: here is the digest.
pub(super) unsafe extern "C" fn digest(
    call: *mut CallState,
    which: i32,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            state.scratch.clear();
            digest_of(which, bytes(value, length), &mut state.scratch);
            show_scratch(state);
            1
        })
    }
}

/// The code of a value. None would mean that keys have lengths that are wrong, which they have not.
fn code_of<M: Mac + KeyInit>(key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut code = <M as KeyInit>::new_from_slice(key).ok()?;
    code.update(value);
    out.extend_from_slice(&code.finalize().into_bytes());
    Some(())
}

/// 1: here is the code; 0: no code can be made.
pub(super) unsafe extern "C" fn hmac(
    call: *mut CallState,
    which: i32,
    key: *const u8,
    key_length: i32,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let (key, value) = (bytes(key, key_length), bytes(value, length));
            state.scratch.clear();
            let out = &mut state.scratch;
            let made = match which {
                1 => code_of::<Hmac<Sha1>>(key, value, out),
                2 => code_of::<Hmac<Sha256>>(key, value, out),
                3 => code_of::<Hmac<Sha384>>(key, value, out),
                _ => code_of::<Hmac<Sha512>>(key, value, out),
            };
            show_scratch(state);
            i32::from(made.is_some())
        })
    }
}

/// The answer when something is refused, with the reason.
const REFUSED: i32 = -4;

/// The DER of a public key that is given as DER or PEM.
fn der(key: &[u8]) -> Result<Cow<'_, [u8]>, SignatureError> {
    // A sequence, as which a key in DER begins.
    if key.first() == Some(&0x30) {
        return Ok(Cow::Borrowed(key));
    }
    pem::public_key(key)
        .map(Cow::Owned)
        .ok_or(SignatureError::NoKey)
}

/// 1: here is the key as DER; [`REFUSED`]: here is why it is none.
pub(super) unsafe extern "C" fn import_key(
    call: *mut CallState,
    key: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let imported = der(bytes(key, length)).and_then(|key| {
                PublicKey::from_der(&key)?;
                Ok(key.into_owned())
            });
            match imported {
                Ok(key) => {
                    state.scratch = key;
                    show_scratch(state);
                    1
                }
                Err(error) => {
                    show_text(state, &error.to_string());
                    REFUSED
                }
            }
        })
    }
}

/// 1: the signature is right; 0: it is not; [`REFUSED`]: here is why it cannot be checked. An empty
/// name is no digest.
pub(super) unsafe extern "C" fn verify(
    call: *mut CallState,
    hash: *const u8,
    hash_length: i32,
    key: *const u8,
    key_length: i32,
    signature: *const u8,
    signature_length: i32,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let hash = Hash::named(bytes(hash, hash_length));
            let (signature, value) = (bytes(signature, signature_length), bytes(value, length));
            let right = der(bytes(key, key_length)).and_then(|key| {
                PublicKey::from_der(&key)?.verify(hash, Form::Any, signature, value)
            });
            match right {
                Ok(right) => i32::from(right),
                Err(error) => {
                    show_text(state, &error.to_string());
                    REFUSED
                }
            }
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
