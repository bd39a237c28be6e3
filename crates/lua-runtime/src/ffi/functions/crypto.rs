//! Digests, signatures, comparison, hexadecimal digits and random names. These need no stream.

use std::borrow::Cow;

use hmac::{Hmac, KeyInit, Mac};
use outrider_signatures::{Form, Hash, PublicKey, SignatureError, pem};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};
use subtle::{Choice, ConstantTimeEq as _};

use super::super::call::CallState;
use super::super::watch::Watch;
use super::frame::{OVER_TIME, bytes, in_pieces, show_scratch, show_text, with};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Appends the digest of a text. `None`: the call's time is over.
fn digest_of<D: sha2::Digest>(value: &[u8], watch: &Watch, out: &mut Vec<u8>) -> Option<()> {
    let mut digest = D::new();
    in_pieces(value, watch, |piece| {
        digest.update(piece);
        Some(())
    })?;
    out.extend_from_slice(&digest.finalize());
    Some(())
}

/// 1: here is the digest; [`OVER_TIME`]. Digests are numbered as in the SDK.
pub(super) unsafe extern "C" fn digest(
    call: *mut CallState,
    which: i32,
    value: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let value = bytes(value, length);
            let CallState { scratch, watch, .. } = state;
            scratch.clear();
            let made = match which {
                1 => digest_of::<Sha1>(value, watch, scratch),
                2 => digest_of::<Sha256>(value, watch, scratch),
                3 => digest_of::<Sha384>(value, watch, scratch),
                _ => digest_of::<Sha512>(value, watch, scratch),
            };
            show_scratch(state);
            if made.is_some() { 1 } else { OVER_TIME }
        })
    }
}

/// Appends the code of a text. `None`: the call's time is over. Keys may have any length.
fn code_of<M: Mac + KeyInit>(
    key: &[u8],
    value: &[u8],
    watch: &Watch,
    out: &mut Vec<u8>,
) -> Option<()> {
    let mut code = <M as KeyInit>::new_from_slice(key).ok()?;
    in_pieces(value, watch, |piece| {
        code.update(piece);
        Some(())
    })?;
    out.extend_from_slice(&code.finalize().into_bytes());
    Some(())
}

/// 1: here is the code; [`OVER_TIME`].
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
            let CallState {
                scratch: out,
                watch,
                ..
            } = state;
            out.clear();
            let made = match which {
                1 => code_of::<Hmac<Sha1>>(key, value, watch, out),
                2 => code_of::<Hmac<Sha256>>(key, value, watch, out),
                3 => code_of::<Hmac<Sha384>>(key, value, watch, out),
                _ => code_of::<Hmac<Sha512>>(key, value, watch, out),
            };
            show_scratch(state);
            if made.is_some() { 1 } else { OVER_TIME }
        })
    }
}

/// The answer when something is refused, with the reason.
const REFUSED: i32 = -4;

/// Bytes of a key, and of a signature. Each operation with a key of this size takes some milliseconds at most.
const MOST_KEY: usize = 16 * 1024;

/// The DER of a public key that is given as DER or PEM.
fn der(key: &[u8]) -> Result<Cow<'_, [u8]>, SignatureError> {
    if key.len() > MOST_KEY {
        return Err(SignatureError::NoKey);
    }
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

/// 1: the signature is right; 0: it is not; [`REFUSED`]: here is why it cannot be checked; [`OVER_TIME`]. An empty
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
            let is_over = || state.watch.is_overdue();
            let right = der(bytes(key, key_length)).and_then(|key| {
                let key = PublicKey::from_der(&key)?;
                if signature.len() > MOST_KEY {
                    return Ok(false);
                }
                key.verify(hash, Form::Any, signature, value, &is_over)
            });
            match right {
                Ok(right) => i32::from(right),
                Err(SignatureError::OverTime) => OVER_TIME,
                Err(error) => {
                    show_text(state, &error.to_string());
                    REFUSED
                }
            }
        })
    }
}

/// 1: the texts are equal; 0: they are not; [`OVER_TIME`]. How long it takes tells their lengths at most.
pub(super) unsafe extern "C" fn equal(
    call: *mut CallState,
    first: *const u8,
    first_length: i32,
    second: *const u8,
    second_length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with(call, |state| {
            let (first, second) = (bytes(first, first_length), bytes(second, second_length));
            if first.len() != second.len() {
                return 0;
            }
            let mut rest = second;
            let mut is_equal = Choice::from(1);
            let compared = in_pieces(first, &state.watch, |piece| {
                let (other, behind) = rest.split_at_checked(piece.len())?;
                rest = behind;
                is_equal &= piece.ct_eq(other);
                Some(())
            });
            match compared {
                Some(()) => i32::from(bool::from(is_equal)),
                None => OVER_TIME,
            }
        })
    }
}

/// 1: here they are; [`OVER_TIME`].
pub(super) unsafe extern "C" fn hex_encode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    let digit = |value: u8| DIGITS.get(usize::from(value)).copied().unwrap_or(b'0');
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let CallState { scratch, watch, .. } = state;
            scratch.clear();
            let made = in_pieces(bytes(value, length), watch, |piece| {
                let digits = piece.iter();
                scratch.extend(digits.flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
                Some(())
            });
            show_scratch(state);
            if made.is_some() { 1 } else { OVER_TIME }
        })
    }
}

/// 1: here are the bytes; 0: these are no pairs of hexadecimal digits; [`OVER_TIME`].
pub(super) unsafe extern "C" fn hex_decode(
    call: *mut CallState,
    value: *const u8,
    length: i32,
) -> i32 {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let CallState { scratch, watch, .. } = state;
            scratch.clear();
            let made = in_pieces(bytes(value, length), watch, |piece| {
                for pair in piece.chunks(2) {
                    let (high, low) = match pair {
                        [high, low] => digit(*high).zip(digit(*low)),
                        _ => None,
                    }?;
                    scratch.push(high << 4 | low);
                }
                Some(())
            });
            show_scratch(state);
            match made {
                Some(()) => 1,
                None if state.watch.is_overdue() => OVER_TIME,
                None => 0,
            }
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
