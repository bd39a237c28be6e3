//! Digests that signatures are made of.

use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

/// Bytes that are digested between two checks of the time: some 0.3 ms without instructions for it.
const PIECE: usize = 64 * 1024;

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

    /// Returns the digest of a text, however long it takes.
    pub(crate) fn digest(self, data: &[u8]) -> Vec<u8> {
        self.digest_in_pieces(data, &|| false).unwrap_or_default()
    }

    /// Returns the digest of a text, or `None` once `is_over` returns true, which is asked before each [`PIECE`].
    pub(crate) fn digest_in_pieces(
        self,
        data: &[u8],
        is_over: &dyn Fn() -> bool,
    ) -> Option<Vec<u8>> {
        match self {
            Self::Sha1 => in_pieces::<Sha1>(data, is_over),
            Self::Sha224 => in_pieces::<Sha224>(data, is_over),
            Self::Sha256 => in_pieces::<Sha256>(data, is_over),
            Self::Sha384 => in_pieces::<Sha384>(data, is_over),
            Self::Sha512 => in_pieces::<Sha512>(data, is_over),
        }
    }
}

fn in_pieces<D: sha2::Digest>(data: &[u8], is_over: &dyn Fn() -> bool) -> Option<Vec<u8>> {
    let mut digest = D::new();
    for piece in data.chunks(PIECE) {
        if is_over() {
            return None;
        }
        digest.update(piece);
    }
    Some(digest.finalize().to_vec())
}
