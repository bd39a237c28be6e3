//! Signatures that plugins have checked or made, for the runtimes of both languages: RSA (PKCS #1 v1.5), ECDSA on
//! P-256, P-384 and P-521, and Ed25519, which is checked only.
//!
//! Not here: how plugins name things and are told of errors; that is each runtime's own.
//!
//! `ring` does what it can, because it is fast. What it leaves out is done by the crates of its curves, and, for RSA
//! with SHA-224 (and with SHA-384 for keys below 2048 bits), by the few lines of RFC 8017 that a check needs. No
//! line of ours sees a private key's numbers but to hand them on.

mod hash;
pub mod pem;
mod private;
mod public;
mod rsa;

pub use hash::Hash;
pub use private::PrivateKey;
pub use public::{Form, MOST_UNCHECKED, PublicKey};

use spki::ObjectIdentifier;

/// Why a key is none, or a signature can be neither checked nor made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The bytes are no public key that is understood at all.
    #[error("not a public key in PEM or DER (SubjectPublicKeyInfo)")]
    NoKey,
    /// The bytes are no private key, or its numbers do not belong together.
    #[error("not a private key in PEM or DER (PKCS #8)")]
    NoPrivateKey,
    /// A key, but of an algorithm or on a curve that is not here.
    #[error("a key of another kind than RSA, ECDSA on P-256, P-384 or P-521, and Ed25519")]
    OtherKey,
    /// An RSA key with which nothing is checked.
    #[error("the RSA key has less than 1024 or more than 8192 bits, or an unusual exponent")]
    KeySize,
    /// A digest was named for an Ed25519 key.
    #[error("Ed25519 has a digest of its own, and takes no other")]
    NeedsNoHash,
    /// No digest was named for a key that needs one.
    #[error("this key needs the name of a digest, such as sha256")]
    NeedsHash,
    /// An RSA key or a digest with which nothing is signed.
    #[error(
        "RSA signs with sha256, sha384 and sha512, and with keys of 2048 to 4096 bits whose exponent is at least 65537"
    )]
    CannotSign,
    /// The system gave no random numbers.
    #[error("the signature could not be made")]
    Failed,
    /// A text that cannot be checked in pieces.
    #[error("Ed25519 checks texts of {MOST_UNCHECKED} bytes at most")]
    TooLong,
    /// The caller's time is over.
    #[error("the time for the check is over")]
    OverTime,
}

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ELLIPTIC_CURVE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const P521: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.35");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
const X25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.110");

#[cfg(test)]
mod tests;
