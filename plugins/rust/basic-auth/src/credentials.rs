//! The value of an `authorization` header, taken apart (RFC 7617).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// A user's name and password, as bytes: clients may send any.
pub(crate) struct Credentials {
    pub(crate) name: Vec<u8>,
    pub(crate) password: Vec<u8>,
}

impl Credentials {
    /// `None` when the scheme is not Basic, or what follows it is not base64 of a name, a colon and a
    /// password.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let value = value.trim_ascii_end();
        let space = value.iter().position(|byte| *byte == b' ')?;
        let (scheme, encoded) = value.split_at_checked(space)?;
        if !scheme.eq_ignore_ascii_case(b"basic") {
            return None;
        }
        let decoded = STANDARD.decode(encoded.trim_ascii_start()).ok()?;
        // Only the name cannot contain a colon.
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        let (name, rest) = decoded.split_at_checked(colon)?;
        let password = rest.strip_prefix(b":")?;
        Some(Self {
            name: name.to_vec(),
            password: password.to_vec(),
        })
    }
}
