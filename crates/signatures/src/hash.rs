//! Digests that signatures are made of.

use sha1::Sha1;
use sha2::{Digest as _, Sha224, Sha256, Sha384, Sha512};

/// A digest that a signature is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// 20 bytes; to check what is old.
    Sha1,
    /// 28 bytes.
    Sha224,
    /// 32 bytes.
    Sha256,
    /// 48 bytes.
    Sha384,
    /// 64 bytes.
    Sha512,
}

impl Hash {
    /// The digest of this name, in small letters: `sha1`, `sha224`, `sha256`, `sha384`, `sha512`. None: another name.
    pub fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"sha1" => Self::Sha1,
            b"sha224" => Self::Sha224,
            b"sha256" => Self::Sha256,
            b"sha384" => Self::Sha384,
            b"sha512" => Self::Sha512,
            _ => return None,
        })
    }

    pub(crate) fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(data).to_vec(),
            Self::Sha224 => Sha224::digest(data).to_vec(),
            Self::Sha256 => Sha256::digest(data).to_vec(),
            Self::Sha384 => Sha384::digest(data).to_vec(),
            Self::Sha512 => Sha512::digest(data).to_vec(),
        }
    }
}
