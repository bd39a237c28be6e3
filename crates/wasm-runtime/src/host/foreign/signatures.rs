//! `verify_signature` and `sign`, with the messages and the words of Envoy. What cannot be done is said in the
//! result; the status tells only of arguments that are none.

use std::borrow::Cow;

use outrider_signatures::{Form, Hash, MOST_UNCHECKED, PrivateKey, PublicKey, SignatureError, pem};

use crate::abi::Status;
use crate::proto::{self, Value};

/// Bytes of a key, and of a signature.
const MOST_KEY: usize = 16 * 1024;
/// Bytes of a text that is signed or checked.
const MOST_TEXT: usize = MOST_UNCHECKED;
const TOO_LONG: &str = "The text is longer than 524288 bytes.";

/// A key as a guest gives it.
enum Key<'a> {
    Der(&'a [u8]),
    Pem(&'a [u8]),
}

/// A guest's arguments: the name of a digest, a key in one form, and the fields for what else there is.
fn arguments<'a>(
    fields: &[(u64, Value<'a>)],
    der: u64,
    pem: u64,
) -> Option<(Cow<'a, str>, Key<'a>)> {
    let given = |number| proto::bytes(fields, number).unwrap_or_default();
    let name = str::from_utf8(given(1)).ok()?;
    let (der, pem) = (given(der), given(pem));
    if der.len().max(pem.len()) > MOST_KEY {
        return None;
    }
    let pem = str::from_utf8(pem).ok()?;
    let key = match (der.is_empty(), pem.is_empty()) {
        (false, true) => Key::Der(der),
        (true, false) => Key::Pem(pem.as_bytes()),
        _ => return None,
    };
    Some((name.into(), key))
}

/// The digest of a name in letters of any size.
fn hash_of(name: &str) -> Result<Hash, Cow<'static, str>> {
    Hash::named(name.to_ascii_lowercase().as_bytes())
        .ok_or_else(|| format!("{name} is not supported.").into())
}

/// `VerifySignatureArguments`: digest, key in DER, signature, text, key in PEM.
pub(super) fn verify(bytes: &[u8], into: &mut Vec<u8>) -> Status {
    let Some(fields) = proto::fields(bytes) else {
        return Status::BadArgument;
    };
    let Some((name, key)) = arguments(&fields, 2, 5) else {
        return Status::BadArgument;
    };
    let given = |number| proto::bytes(&fields, number).unwrap_or_default();
    if given(3).len() > MOST_KEY {
        return Status::BadArgument;
    }
    let right = hash_of(&name).and_then(|hash| {
        if given(4).len() > MOST_TEXT {
            return Err(TOO_LONG.into());
        }
        let der = match key {
            Key::Der(der) => Some(Cow::Borrowed(der)),
            Key::Pem(text) => pem::public_key(text).map(Cow::Owned),
        };
        let right = der.ok_or(SignatureError::NoKey).and_then(|der| {
            PublicKey::from_der(&der)?.verify(Some(hash), Form::Der, given(3), given(4), &|| false)
        });
        match right {
            Ok(true) => Ok(()),
            Ok(false) => Err("Failed to verify digest. Error code: 0".into()),
            Err(SignatureError::KeySize) => Err(SignatureError::KeySize.to_string().into()),
            Err(_) => Err("Failed to initialize digest verify.".into()),
        }
    });
    // `VerifySignatureResult`: whether it is right, and why not.
    match right {
        Ok(()) => proto::put_number(into, 1, 1),
        Err(error) => proto::put_bytes(into, 2, error.as_bytes()),
    }
    Status::Ok
}

/// `SignArguments`: digest, key in DER, text, key in PEM.
pub(super) fn sign(bytes: &[u8], into: &mut Vec<u8>) -> Status {
    let Some(fields) = proto::fields(bytes) else {
        return Status::BadArgument;
    };
    let Some((name, key)) = arguments(&fields, 2, 4) else {
        return Status::BadArgument;
    };
    let text = proto::bytes(&fields, 3).unwrap_or_default();
    let made = hash_of(&name).and_then(|hash| {
        if text.len() > MOST_TEXT {
            return Err(TOO_LONG.into());
        }
        let key = match key {
            Key::Der(der) => PrivateKey::from_der(der),
            Key::Pem(text) => PrivateKey::from_pem(text),
        };
        key.and_then(|key| key.sign(hash, text))
            .map_err(|error| match error {
                SignatureError::NoPrivateKey | SignatureError::OtherKey => {
                    "Invalid key type: private key required for signing operation.".into()
                }
                SignatureError::NeedsNoHash => {
                    "Invalid private key: key data is corrupted or malformed.".into()
                }
                error => error.to_string().into(),
            })
    });
    // `SignResult`: whether it was made, the signature, and why it was not.
    match made {
        Ok(signature) => {
            proto::put_number(into, 1, 1);
            proto::put_bytes(into, 2, &signature);
        }
        Err(error) => proto::put_bytes(into, 3, error.as_bytes()),
    }
    Status::Ok
}
