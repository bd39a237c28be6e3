//! Plugins from elsewhere: fetched, verified, kept, built and pushed.
//!
//! A plugin comes from an OCI registry, an HTTPS server or an archive. All of them are untrusted: what they send is bounded
//! before it is read, compared with a digest before it is used, and checked against the signature policy before anything of
//! it is parsed. What was fetched is kept in a private [`Store`] by digest, from which a gateway starts without a network.
//!
//! Not here: what a plugin is (`plugin-store`), and how the command prints.
//!
//! Keyless signatures (Fulcio, Rekor) are not verified; a bundle that has one is refused by name.

mod address;
mod credentials;
mod error;
mod fetch;
mod http;
mod image;
mod layout;
mod lock;
mod policy;
mod publish;
mod reference;
mod registry;
mod signature;
mod store;
mod strip;
mod unpack;

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

pub use error::FetchError;
pub use fetch::{Fetcher, Inspected, InspectedLayer, Options, Resolved};
pub use http::{Patience, Progress};
pub use image::{Image, build};
pub use lock::{LOCK, LockFile};
pub use publish::Pushed;
pub use reference::Reference;
pub use signature::{Found, SigningKey, VerifyingKey};
pub use store::{DEFAULT_LIMIT, Store};
pub use strip::{Stripped, strip};

/// `sha256:` and 64 hexadecimal digits.
pub fn digest_of(bytes: &[u8]) -> String {
    written(&Sha256::digest(bytes))
}

fn written(digest: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in digest {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The digits of a digest.
fn hex_of(digest: &str) -> &str {
    digest.strip_prefix("sha256:").unwrap_or(digest)
}
