//! Public keys and the signatures that they check. Nothing secret is here: no signing, no private keys,
//! so nothing has to take the same time whatever it sees.
//!
//! `ring` does the work. What it leaves out and Envoy's own Lua filter takes, RSA with SHA-224 (and with
//! SHA-384 for keys below 2048 bits), is computed here by the few lines of RFC 8017 that it needs.

use num_bigint::BigUint;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use sha2::{Digest as _, Sha224, Sha384};
use spki::der::asn1::UintRef;
use spki::der::{Decode as _, Document, Reader as _, SliceReader};
use spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};

/// A digest that a signature is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// Why a signature cannot be checked at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    #[error("not a public key in PEM or DER (SubjectPublicKeyInfo)")]
    NoKey,
    #[error("a public key of another kind than RSA, ECDSA on P-256 or P-384, and Ed25519")]
    OtherKey,
    #[error("the RSA key has less than 1024 or more than 8192 bits, or an unusual exponent")]
    KeySize,
    #[error("Ed25519 has a digest of its own: pass nil for the digest's name")]
    NeedsNoHash,
    #[error("this key needs the name of a digest, such as sha256")]
    NeedsHash,
    #[error("ECDSA is checked with sha256 and sha384 only")]
    OtherHash,
}

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ELLIPTIC_CURVE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    Ed25519,
}

/// The DER of a key that is given as DER or PEM, checked to be one that signatures can be checked with.
pub(crate) fn import(key: &[u8]) -> Result<Vec<u8>, SignatureError> {
    let key = der(key)?;
    let (kind, bytes) = parse(&key)?;
    if kind == Kind::Rsa {
        rsa_numbers(bytes)?;
    }
    Ok(key)
}

fn der(key: &[u8]) -> Result<Vec<u8>, SignatureError> {
    if !key.trim_ascii_start().starts_with(b"-----") {
        return Ok(key.to_vec());
    }
    let text = std::str::from_utf8(key).map_err(|_| SignatureError::NoKey)?;
    match Document::from_pem(text.trim()) {
        Ok(("PUBLIC KEY", document)) => Ok(document.into_vec()),
        _ => Err(SignatureError::NoKey),
    }
}

fn parse(der: &[u8]) -> Result<(Kind, &[u8]), SignatureError> {
    let key = SubjectPublicKeyInfoRef::from_der(der).map_err(|_| SignatureError::NoKey)?;
    let kind = match key.algorithm.oid {
        RSA => Kind::Rsa,
        ED25519 => Kind::Ed25519,
        ELLIPTIC_CURVE => match key.algorithm.parameters_oid() {
            Ok(P256) => Kind::P256,
            Ok(P384) => Kind::P384,
            _ => return Err(SignatureError::OtherKey),
        },
        _ => return Err(SignatureError::OtherKey),
    };
    Ok((kind, key.subject_public_key.raw_bytes()))
}

/// Whether `signature` is that of `data`, made with the private half of `key`.
pub(crate) fn verify(
    hash: Option<Hash>,
    key: &[u8],
    signature: &[u8],
    data: &[u8],
) -> Result<bool, SignatureError> {
    let copy;
    let key = if key.first() == Some(&0x30) {
        key
    } else {
        copy = der(key)?;
        &copy
    };
    let (kind, key) = parse(key)?;
    let holds = |algorithm: &'static dyn VerificationAlgorithm| {
        UnparsedPublicKey::new(algorithm, key)
            .verify(data, signature)
            .is_ok()
    };
    if kind == Kind::Ed25519 {
        return match hash {
            None => Ok(holds(&signature::ED25519)),
            Some(_) => Err(SignatureError::NeedsNoHash),
        };
    }
    let hash = hash.ok_or(SignatureError::NeedsHash)?;
    // ECDSA's two numbers come in DER, or, as in JSON Web Tokens, one behind the other.
    let ecdsa = |length: usize, der, fixed| {
        let looks_fixed = signature.len() == length;
        Ok((looks_fixed && holds(fixed)) || holds(der))
    };
    match (kind, hash) {
        (Kind::P256, Hash::Sha256) => ecdsa(
            64,
            &signature::ECDSA_P256_SHA256_ASN1,
            &signature::ECDSA_P256_SHA256_FIXED,
        ),
        (Kind::P256, Hash::Sha384) => Ok(holds(&signature::ECDSA_P256_SHA384_ASN1)),
        (Kind::P384, Hash::Sha256) => Ok(holds(&signature::ECDSA_P384_SHA256_ASN1)),
        (Kind::P384, Hash::Sha384) => ecdsa(
            96,
            &signature::ECDSA_P384_SHA384_ASN1,
            &signature::ECDSA_P384_SHA384_FIXED,
        ),
        (Kind::P256 | Kind::P384 | Kind::Ed25519, _) => Err(SignatureError::OtherHash),
        (Kind::Rsa, hash) => {
            let (modulus, exponent) = rsa_numbers(key)?;
            Ok(match hash {
                Hash::Sha1 => holds(&signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY),
                Hash::Sha256 => holds(&signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY),
                Hash::Sha384 if modulus.bits() >= 2048 => {
                    holds(&signature::RSA_PKCS1_2048_8192_SHA384)
                }
                Hash::Sha384 => rsa(
                    &modulus,
                    &exponent,
                    &SHA384,
                    &Sha384::digest(data),
                    signature,
                ),
                Hash::Sha512 => holds(&signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY),
                Hash::Sha224 => rsa(
                    &modulus,
                    &exponent,
                    &SHA224,
                    &Sha224::digest(data),
                    signature,
                ),
            })
        }
    }
}

/// Modulus and public exponent, within the sizes that are worth the time.
fn rsa_numbers(key: &[u8]) -> Result<(BigUint, BigUint), SignatureError> {
    let read = || {
        let mut reader = SliceReader::new(key)?;
        reader.sequence(|reader| {
            let modulus = UintRef::decode(reader)?;
            let exponent = UintRef::decode(reader)?;
            Ok::<_, spki::der::Error>((
                BigUint::from_bytes_be(modulus.as_bytes()),
                BigUint::from_bytes_be(exponent.as_bytes()),
            ))
        })
    };
    let (modulus, exponent) = read().map_err(|_| SignatureError::NoKey)?;
    if (1024..=8192).contains(&modulus.bits()) && (2..=33).contains(&exponent.bits()) {
        Ok((modulus, exponent))
    } else {
        Err(SignatureError::KeySize)
    }
}

/// What stands before the digest: which one it is (RFC 8017, section 9.2, note 1).
const SHA224: [u8; 19] = [
    0x30, 0x2d, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x04, 0x05,
    0x00, 0x04, 0x1c,
];
const SHA384: [u8; 19] = [
    0x30, 0x41, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, 0x05,
    0x00, 0x04, 0x30,
];

/// RSASSA-PKCS1-v1_5 (RFC 8017, section 8.2.2): the signature, raised to the public exponent, has to be
/// exactly the padded digest.
fn rsa(
    modulus: &BigUint,
    exponent: &BigUint,
    prefix: &[u8],
    digest: &[u8],
    signature: &[u8],
) -> bool {
    let length = usize::try_from(modulus.bits().div_ceil(8)).unwrap_or_default();
    let number = BigUint::from_bytes_be(signature);
    if signature.len() != length || number >= *modulus {
        return false;
    }
    let Some(padding) = length.checked_sub(prefix.len() + digest.len() + 3) else {
        return false;
    };
    let mut expected = vec![0, 1];
    expected.resize(2 + padding, 0xff);
    expected.push(0);
    expected.extend_from_slice(prefix);
    expected.extend_from_slice(digest);
    number.modpow(exponent, modulus) == BigUint::from_bytes_be(&expected)
}

/// A digest's name, as plugins write it.
pub(crate) fn hash_named(name: &[u8]) -> Option<Hash> {
    Some(match name {
        b"sha1" => Hash::Sha1,
        b"sha224" => Hash::Sha224,
        b"sha256" => Hash::Sha256,
        b"sha384" => Hash::Sha384,
        b"sha512" => Hash::Sha512,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
