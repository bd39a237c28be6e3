//! Public keys, and the signatures that they check.

use p256::ecdsa::signature::hazmat::PrehashVerifier as _;
use ring::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use spki::SubjectPublicKeyInfoRef;
use spki::der::{Decode as _, SliceReader};

use crate::rsa::{self, numbers};
use crate::{ED25519, ELLIPTIC_CURVE, Hash, P256, P384, P521, RSA, SignatureError};

/// Whether a digest's signature is that of a point on a curve, which has a crate of its own.
macro_rules! on_curve {
    ($curve:ident, $point:expr, $fixed:expr, $signature:expr, $digest:expr) => {{
        let signature = if $fixed {
            $curve::ecdsa::Signature::from_slice($signature)
        } else {
            $curve::ecdsa::Signature::from_der($signature)
        };
        let key = $curve::ecdsa::VerifyingKey::from_sec1_bytes($point);
        match (key, signature) {
            (Ok(key), Ok(signature)) => key.verify_prehash($digest, &signature).is_ok(),
            _ => false,
        }
    }};
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rsa,
    P256,
    P384,
    P521,
    Ed25519,
}

/// How the two numbers of an ECDSA signature are written. Other signatures have one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As a sequence in DER, as most programs do.
    Der,
    /// So, or one behind the other, as in JSON Web Tokens.
    Any,
}

/// A public key whose DER is somebody else's.
#[derive(Debug, Clone, Copy)]
pub struct PublicKey<'k> {
    kind: Kind,
    /// RSA's numbers in DER, or a point.
    bytes: &'k [u8],
}

impl<'k> PublicKey<'k> {
    /// The key in a `SubjectPublicKeyInfo`; what follows it does not matter.
    ///
    /// # Errors
    /// [`SignatureError::NoKey`], [`SignatureError::OtherKey`], [`SignatureError::KeySize`].
    pub fn from_der(der: &'k [u8]) -> Result<Self, SignatureError> {
        let key = SliceReader::new(der)
            .and_then(|mut reader| SubjectPublicKeyInfoRef::decode(&mut reader))
            .map_err(|_| SignatureError::NoKey)?;
        let kind = match key.algorithm.oid {
            RSA => Kind::Rsa,
            ED25519 => Kind::Ed25519,
            ELLIPTIC_CURVE => match key.algorithm.parameters_oid() {
                Ok(P256) => Kind::P256,
                Ok(P384) => Kind::P384,
                Ok(P521) => Kind::P521,
                _ => return Err(SignatureError::OtherKey),
            },
            _ => return Err(SignatureError::OtherKey),
        };
        let bytes = key.subject_public_key.raw_bytes();
        if kind == Kind::Rsa {
            numbers(bytes)?;
        }
        Ok(Self { kind, bytes })
    }

    /// Whether `signature` is that of `data`, made with the private half of this key and, but for Ed25519, with the
    /// digest `hash`. A point that is not on its curve checks nothing: false.
    ///
    /// # Errors
    /// [`SignatureError::NeedsHash`], [`SignatureError::NeedsNoHash`].
    pub fn verify(
        &self,
        hash: Option<Hash>,
        form: Form,
        signature: &[u8],
        data: &[u8],
    ) -> Result<bool, SignatureError> {
        match (self.kind, hash) {
            (Kind::Ed25519, None) => Ok(self.holds(&signature::ED25519, signature, data)),
            (Kind::Ed25519, Some(_)) => Err(SignatureError::NeedsNoHash),
            (_, None) => Err(SignatureError::NeedsHash),
            (Kind::Rsa, Some(hash)) => self.verify_rsa(hash, signature, data),
            (_, Some(hash)) => Ok(self.verify_ecdsa(hash, form, signature, data)),
        }
    }

    fn holds(
        &self,
        algorithm: &'static dyn VerificationAlgorithm,
        signature: &[u8],
        data: &[u8],
    ) -> bool {
        let key = UnparsedPublicKey::new(algorithm, self.bytes);
        key.verify(data, signature).is_ok()
    }

    fn verify_rsa(
        &self,
        hash: Hash,
        signature: &[u8],
        data: &[u8],
    ) -> Result<bool, SignatureError> {
        let algorithm = match hash {
            Hash::Sha1 => &signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
            Hash::Sha256 => &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
            Hash::Sha512 => &signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
            Hash::Sha384 => {
                let numbers = numbers(self.bytes)?;
                if numbers.modulus.bits() < 2048 {
                    return Ok(numbers.verify(&rsa::SHA384, &hash.digest(data), signature));
                }
                &signature::RSA_PKCS1_2048_8192_SHA384
            }
            Hash::Sha224 => {
                let numbers = numbers(self.bytes)?;
                return Ok(numbers.verify(&rsa::SHA224, &hash.digest(data), signature));
            }
        };
        Ok(self.holds(algorithm, signature, data))
    }

    fn verify_ecdsa(&self, hash: Hash, form: Form, signature: &[u8], data: &[u8]) -> bool {
        let length = match self.kind {
            Kind::P256 => 64,
            Kind::P384 => 96,
            _ => 132,
        };
        let holds = |fixed| self.verify_written(hash, fixed, signature, data);
        (form == Form::Any && signature.len() == length && holds(true)) || holds(false)
    }

    fn verify_written(&self, hash: Hash, fixed: bool, signature: &[u8], data: &[u8]) -> bool {
        let known: Option<&'static dyn VerificationAlgorithm> = match (self.kind, hash, fixed) {
            (Kind::P256, Hash::Sha256, false) => Some(&signature::ECDSA_P256_SHA256_ASN1),
            (Kind::P256, Hash::Sha256, true) => Some(&signature::ECDSA_P256_SHA256_FIXED),
            (Kind::P384, Hash::Sha384, false) => Some(&signature::ECDSA_P384_SHA384_ASN1),
            (Kind::P384, Hash::Sha384, true) => Some(&signature::ECDSA_P384_SHA384_FIXED),
            _ => None,
        };
        // `ring` does not take compressed points.
        if let Some(algorithm) = known
            && self.bytes.first() == Some(&4)
        {
            return self.holds(algorithm, signature, data);
        }
        let digest = hash.digest(data);
        match self.kind {
            Kind::P256 => on_curve!(p256, self.bytes, fixed, signature, &digest),
            Kind::P384 => on_curve!(p384, self.bytes, fixed, signature, &digest),
            Kind::P521 => on_curve!(p521, self.bytes, fixed, signature, &digest),
            Kind::Rsa | Kind::Ed25519 => false,
        }
    }
}
