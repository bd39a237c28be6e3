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

/// Bytes of a text that is digested at once; it takes about a millisecond.
pub const MOST_UNCHECKED: usize = 512 * 1024;

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
    /// Texts of more than [`MOST_UNCHECKED`] bytes are digested in pieces, and `is_over` is asked before each of
    /// them whether to stop.
    ///
    /// # Errors
    /// [`SignatureError::NeedsHash`], [`SignatureError::NeedsNoHash`]; [`SignatureError::TooLong`] for Ed25519, which
    /// has no digest that could be made in pieces; [`SignatureError::OverTime`].
    pub fn verify(
        &self,
        hash: Option<Hash>,
        form: Form,
        signature: &[u8],
        data: &[u8],
        is_over: &dyn Fn() -> bool,
    ) -> Result<bool, SignatureError> {
        match (self.kind, hash) {
            (Kind::Ed25519, Some(_)) => Err(SignatureError::NeedsNoHash),
            (Kind::Ed25519, None) if data.len() > MOST_UNCHECKED => Err(SignatureError::TooLong),
            (Kind::Ed25519, None) => Ok(self.holds(&signature::ED25519, signature, data)),
            (_, None) => Err(SignatureError::NeedsHash),
            (_, Some(hash)) if data.len() > MOST_UNCHECKED => {
                let digest = hash.digest_in_pieces(data, is_over);
                let digest = digest.ok_or(SignatureError::OverTime)?;
                self.verify_digest(hash, form, signature, &digest)
            }
            (Kind::Rsa, Some(hash)) => self.verify_rsa(hash, signature, data),
            (_, Some(hash)) => Ok(self.verify_ecdsa(hash, form, signature, data)),
        }
    }

    /// As [`PublicKey::verify`], with the digest in place of the text.
    pub(crate) fn verify_digest(
        &self,
        hash: Hash,
        form: Form,
        signature: &[u8],
        digest: &[u8],
    ) -> Result<bool, SignatureError> {
        if self.kind == Kind::Rsa {
            return Ok(numbers(self.bytes)?.verify(rsa::prefix(hash), digest, signature));
        }
        let holds = |fixed| self.verify_point(fixed, signature, digest);
        Ok(
            (form == Form::Any && signature.len() == self.fixed_length() && holds(true))
                || holds(false),
        )
    }

    /// Bytes of an ECDSA signature whose numbers are one behind the other.
    fn fixed_length(&self) -> usize {
        match self.kind {
            Kind::P256 => 64,
            Kind::P384 => 96,
            _ => 132,
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
                    return Ok(numbers.verify(rsa::prefix(hash), &hash.digest(data), signature));
                }
                &signature::RSA_PKCS1_2048_8192_SHA384
            }
            Hash::Sha224 => {
                let numbers = numbers(self.bytes)?;
                return Ok(numbers.verify(rsa::prefix(hash), &hash.digest(data), signature));
            }
        };
        Ok(self.holds(algorithm, signature, data))
    }

    fn verify_ecdsa(&self, hash: Hash, form: Form, signature: &[u8], data: &[u8]) -> bool {
        let holds = |fixed| self.verify_written(hash, fixed, signature, data);
        (form == Form::Any && signature.len() == self.fixed_length() && holds(true)) || holds(false)
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
        self.verify_point(fixed, signature, &hash.digest(data))
    }

    fn verify_point(&self, fixed: bool, signature: &[u8], digest: &[u8]) -> bool {
        match self.kind {
            Kind::P256 => on_curve!(p256, self.bytes, fixed, signature, digest),
            Kind::P384 => on_curve!(p384, self.bytes, fixed, signature, digest),
            Kind::P521 => on_curve!(p521, self.bytes, fixed, signature, digest),
            Kind::Rsa | Kind::Ed25519 => false,
        }
    }
}
