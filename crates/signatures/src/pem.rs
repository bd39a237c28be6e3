//! Keys as texts: `-----BEGIN …-----`, base64, `-----END …-----`.
//!
//! As lenient as OpenSSL's kin: what stands before, other blocks, and lines of any length do not matter.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The DER of the first public key in a text (`PUBLIC KEY`). None: there is none.
///
/// ```
/// assert_eq!(outrider_signatures::pem::public_key(b"no key"), None);
/// ```
pub fn public_key(text: &[u8]) -> Option<Vec<u8>> {
    blocks(text).find_map(|(label, body)| (label == "PUBLIC KEY").then(|| decoded(body)))?
}

/// The first block whose name is one of `labels`: which one, and its bytes.
pub(crate) fn first<'l>(text: &[u8], labels: &[&'l str]) -> Option<(&'l str, Vec<u8>)> {
    blocks(text).find_map(|(found, body)| {
        let label = labels.iter().find(|label| **label == found)?;
        Some(decoded(body).map(|der| (*label, der)))
    })?
}

fn decoded(body: &str) -> Option<Vec<u8>> {
    let digits: String = body.split_ascii_whitespace().collect();
    STANDARD.decode(digits).ok()
}

/// Blocks, by name, with what is between their first and last lines.
fn blocks(text: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    // What is before the first block may be of any encoding.
    let begin = text
        .windows(BEGIN.len())
        .position(|at| at == BEGIN.as_bytes());
    let text = begin.and_then(|begin| str::from_utf8(text.get(begin..)?).ok());
    let mut rest = text.unwrap_or_default();
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(BEGIN)?;
        let (label, after) = after.split_once("-----")?;
        let (body, after) = after.split_once(&format!("-----END {label}-----"))?;
        rest = after;
        Some((label, body))
    })
}

const BEGIN: &str = "-----BEGIN ";
