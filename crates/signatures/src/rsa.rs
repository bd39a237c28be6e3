//! RSA, as far as `ring` leaves out what Envoy takes: numbers of public keys, and checks of PKCS #1 v1.5 with any
//! digest. Nothing secret is here, so nothing has to take the same time whatever it sees.

use num_bigint::BigUint;
use spki::der::asn1::UintRef;
use spki::der::{Decode as _, Reader as _, SliceReader};

use crate::{Hash, SignatureError};

/// A public key's modulus and exponent.
pub(crate) struct Numbers {
    pub(crate) modulus: BigUint,
    exponent: BigUint,
}

/// A public key's numbers, within the sizes that are worth the time.
pub(crate) fn numbers(key: &[u8]) -> Result<Numbers, SignatureError> {
    let read = || {
        let mut reader = SliceReader::new(key)?;
        reader.sequence(|reader| {
            let modulus = UintRef::decode(reader)?;
            let exponent = UintRef::decode(reader)?;
            Ok::<_, spki::der::Error>(Numbers {
                modulus: BigUint::from_bytes_be(modulus.as_bytes()),
                exponent: BigUint::from_bytes_be(exponent.as_bytes()),
            })
        })
    };
    let numbers = read().map_err(|_| SignatureError::NoKey)?;
    let fits = (1024..=8192).contains(&numbers.modulus.bits())
        && (2..=33).contains(&numbers.exponent.bits())
        // Half as fast, and no key's.
        && numbers.modulus.bit(0);
    if fits {
        Ok(numbers)
    } else {
        Err(SignatureError::KeySize)
    }
}

/// Returns the DER before a digest in a PKCS #1 v1.5 signature, which names the digest (RFC 8017, section 9.2,
/// note 1).
pub(crate) fn prefix(hash: Hash) -> &'static [u8] {
    match hash {
        Hash::Sha1 => &[
            0x30, 0x21, 0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00, 0x04,
            0x14,
        ],
        Hash::Sha224 => &[
            0x30, 0x2d, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02,
            0x04, 0x05, 0x00, 0x04, 0x1c,
        ],
        Hash::Sha256 => &[
            0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02,
            0x01, 0x05, 0x00, 0x04, 0x20,
        ],
        Hash::Sha384 => &[
            0x30, 0x41, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02,
            0x02, 0x05, 0x00, 0x04, 0x30,
        ],
        Hash::Sha512 => &[
            0x30, 0x51, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02,
            0x03, 0x05, 0x00, 0x04, 0x40,
        ],
    }
}

impl Numbers {
    /// RSASSA-PKCS1-v1_5 (RFC 8017, section 8.2.2): the signature, raised to the public exponent, has to be
    /// exactly the padded digest.
    pub(crate) fn verify(&self, prefix: &[u8], digest: &[u8], signature: &[u8]) -> bool {
        let length = usize::try_from(self.modulus.bits().div_ceil(8)).unwrap_or_default();
        let number = BigUint::from_bytes_be(signature);
        if signature.len() != length || number >= self.modulus {
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
        number.modpow(&self.exponent, &self.modulus) == BigUint::from_bytes_be(&expected)
    }
}
