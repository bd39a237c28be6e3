//! Private keys, and the signatures that they make.

use p256::ecdsa::signature::hazmat::PrehashSigner as _;
use pkcs8::PrivateKeyInfoRef;
use ring::rand::SystemRandom;
use ring::signature::{self, RsaEncoding, RsaKeyPair};
use sec1::{EcParameters, EcPrivateKey};
use spki::ObjectIdentifier;
use spki::der::asn1::UintRef;
use spki::der::{Decode, Header, SliceReader, Tag};
use zeroize::Zeroizing;

use crate::{ED25519, ELLIPTIC_CURVE, Hash, P256, P384, P521, RSA, SignatureError, X25519, pem};

/// A private key. `Debug` shows its kind only.
#[derive(Debug)]
pub struct PrivateKey(Kind);

#[derive(Debug)]
enum Kind {
    Rsa(Box<RsaKeyPair>),
    /// One with which nothing is signed.
    OtherRsa,
    P256(p256::ecdsa::SigningKey),
    P384(p384::ecdsa::SigningKey),
    P521(Box<p521::ecdsa::SigningKey>),
    /// Ed25519, or X25519: it signs nothing with a digest from outside, and so nothing here.
    TakesNoHash,
}

impl PrivateKey {
    /// The key in a `PrivateKeyInfo` (PKCS #8); what follows it does not matter.
    ///
    /// # Errors
    /// [`SignatureError::NoPrivateKey`], [`SignatureError::OtherKey`].
    pub fn from_der(der: &[u8]) -> Result<Self, SignatureError> {
        let key: PrivateKeyInfoRef<'_> = read(der)?;
        let bytes = key.private_key.as_bytes();
        match key.algorithm.oid {
            RSA => from_rsa(bytes),
            ED25519 | X25519 => Ok(Self(Kind::TakesNoHash)),
            ELLIPTIC_CURVE => from_elliptic_curve(bytes, key.algorithm.parameters_oid().ok()),
            _ => Err(SignatureError::OtherKey),
        }
    }

    /// The first key in a text: `PRIVATE KEY` (PKCS #8), `RSA PRIVATE KEY` (PKCS #1) or `EC PRIVATE KEY` (SEC 1).
    /// Encrypted keys are none.
    ///
    /// # Errors
    /// As for [`Self::from_der`].
    pub fn from_pem(text: &[u8]) -> Result<Self, SignatureError> {
        const RSA_LABEL: &str = "RSA PRIVATE KEY";
        const CURVE_LABEL: &str = "EC PRIVATE KEY";
        let found = pem::first(text, &["PRIVATE KEY", RSA_LABEL, CURVE_LABEL]);
        let (label, der) = found.ok_or(SignatureError::NoPrivateKey)?;
        let der = Zeroizing::new(der);
        match label {
            RSA_LABEL => from_rsa(&der),
            CURVE_LABEL => from_elliptic_curve(&der, None),
            _ => Self::from_der(&der),
        }
    }

    /// The signature of `data`, made with the digest `hash`: RSA's by PKCS #1 v1.5, ECDSA's in DER.
    ///
    /// # Errors
    /// [`SignatureError::CannotSign`], [`SignatureError::NeedsNoHash`], [`SignatureError::Failed`].
    pub fn sign(&self, hash: Hash, data: &[u8]) -> Result<Vec<u8>, SignatureError> {
        let failed = |_| SignatureError::Failed;
        match &self.0 {
            Kind::Rsa(key) => sign_rsa(key, hash, data),
            Kind::OtherRsa => Err(SignatureError::CannotSign),
            Kind::P256(key) => {
                let made = key.sign_prehash(&hash.digest(data));
                made.map(|made: p256::ecdsa::DerSignature| made.as_bytes().to_vec())
                    .map_err(failed)
            }
            Kind::P384(key) => {
                let made = key.sign_prehash(&hash.digest(data));
                made.map(|made: p384::ecdsa::DerSignature| made.as_bytes().to_vec())
                    .map_err(failed)
            }
            Kind::P521(key) => {
                let made = key.sign_prehash(&hash.digest(data));
                made.map(|made: p521::ecdsa::DerSignature| made.as_bytes().to_vec())
                    .map_err(failed)
            }
            Kind::TakesNoHash => Err(SignatureError::NeedsNoHash),
        }
    }
}

/// A structure at the beginning of some bytes.
fn read<'a, T: Decode<'a>>(der: &'a [u8]) -> Result<T, SignatureError> {
    SliceReader::new(der)
        .ok()
        .and_then(|mut reader| T::decode(&mut reader).ok())
        .ok_or(SignatureError::NoPrivateKey)
}

/// From PKCS #1.
fn from_rsa(der: &[u8]) -> Result<PrivateKey, SignatureError> {
    if !signs(der)? {
        return Ok(PrivateKey(Kind::OtherRsa));
    }
    match RsaKeyPair::from_der(der) {
        Ok(key) => Ok(PrivateKey(Kind::Rsa(Box::new(key)))),
        Err(_) => Err(SignatureError::NoPrivateKey),
    }
}

/// Whether `ring` takes an RSA key of this size and with this exponent.
fn signs(der: &[u8]) -> Result<bool, SignatureError> {
    let read = || {
        let mut reader = SliceReader::new(der)?;
        let header = Header::decode(&mut reader)?;
        header.tag().assert_eq(Tag::Sequence)?;
        let _version = UintRef::decode(&mut reader)?;
        let modulus = UintRef::decode(&mut reader)?;
        let exponent = UintRef::decode(&mut reader)?;
        Ok::<_, spki::der::Error>((bits(modulus.as_bytes()), bits(exponent.as_bytes())))
    };
    let (modulus, exponent) = read().map_err(|_| SignatureError::NoPrivateKey)?;
    Ok((2048..=4096).contains(&modulus) && (17..=33).contains(&exponent))
}

/// How many bits a number has whose bytes begin with the most significant one.
fn bits(number: &[u8]) -> usize {
    let first = number
        .first()
        .map_or(8, |first| first.leading_zeros() as usize);
    (number.len() * 8).saturating_sub(first)
}

fn sign_rsa(key: &RsaKeyPair, hash: Hash, data: &[u8]) -> Result<Vec<u8>, SignatureError> {
    let padding: &'static dyn RsaEncoding = match hash {
        Hash::Sha256 => &signature::RSA_PKCS1_SHA256,
        Hash::Sha384 => &signature::RSA_PKCS1_SHA384,
        Hash::Sha512 => &signature::RSA_PKCS1_SHA512,
        Hash::Sha1 | Hash::Sha224 => return Err(SignatureError::CannotSign),
    };
    let mut made = vec![0; key.public().modulus_len()];
    key.sign(padding, &SystemRandom::new(), data, &mut made)
        .map_err(|_| SignatureError::Failed)?;
    Ok(made)
}

/// From SEC 1. The curve may be named outside.
fn from_elliptic_curve(
    der: &[u8],
    curve: Option<ObjectIdentifier>,
) -> Result<PrivateKey, SignatureError> {
    let key: EcPrivateKey<'_> = read(der)?;
    let within = key.parameters.and_then(EcParameters::named_curve);
    let kind = match curve.or(within) {
        Some(P256) => p256::ecdsa::SigningKey::from_slice(key.private_key).map(Kind::P256),
        Some(P384) => p384::ecdsa::SigningKey::from_slice(key.private_key).map(Kind::P384),
        Some(P521) => p521::ecdsa::SigningKey::from_slice(key.private_key)
            .map(|key| Kind::P521(Box::new(key))),
        _ => return Err(SignatureError::OtherKey),
    };
    kind.map(PrivateKey)
        .map_err(|_| SignatureError::NoPrivateKey)
}
