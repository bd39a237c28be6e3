//! The digest by which a plugin's code is known.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// `sha256:` and 64 hexadecimal digits over the files, as `plugin_formats::PluginSource` defines it.
pub fn digest(files: &BTreeMap<String, String>) -> String {
    let mut hasher = Sha256::new();
    for text in files.iter().flat_map(|(path, content)| [path, content]) {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    written(hasher)
}

/// `sha256:` and 64 hexadecimal digits over a module's file.
pub fn module_digest(module: &[u8]) -> String {
    let mut hasher = Sha256::new();
    hasher.update(module);
    written(hasher)
}

fn written(hasher: Sha256) -> String {
    let mut digest = "sha256:".to_owned();
    for byte in hasher.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}
