//! A plugin's code: from the document itself, or from this machine; always checked against its digest
//! before anything of it runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use outrider_plugin_formats::{PluginEntry, PluginSource};
use outrider_wasm_runtime::WasmModule;
use sha2::{Digest, Sha256};

use crate::document::Refusal;

/// The files of a plugin, by path relative to its folder.
pub(crate) type Files = BTreeMap<String, String>;

/// Gets a plugin's text files and checks them.
pub(crate) fn files(entry: &PluginEntry) -> Result<Files, Refusal> {
    let files = match &entry.source {
        PluginSource::Inline(files) => files.clone(),
        PluginSource::Folder(folder) => {
            let mut files = Files::new();
            collect(Path::new(folder), "", &mut files)
                .map_err(|error| Refusal::new(format!("plugin {}: {error}", entry.name)))?;
            files
        }
        PluginSource::Module(_) => return Err(of_another_kind(entry, "text files")),
    };
    check(entry, &digest(&files))?;
    Ok(files)
}

/// A plugin's module. The runtime checks the digest when it reads the file, which it does where it has not kept what
/// it compiled from it.
pub(crate) fn module(entry: &PluginEntry) -> Result<WasmModule, Refusal> {
    let PluginSource::Module(file) = &entry.source else {
        return Err(of_another_kind(entry, "a module"));
    };
    let digest = parse(&entry.digest).ok_or_else(|| {
        Refusal::new(format!(
            "plugin {}: {} is not a digest; it is `sha256:` and 64 hexadecimal digits",
            entry.name, entry.digest
        ))
    })?;
    Ok(WasmModule::in_file(file.into(), digest))
}

/// The bytes of a written digest.
fn parse(digest: &str) -> Option<[u8; 32]> {
    let digits = digest.strip_prefix("sha256:")?.as_bytes();
    let mut bytes = [0; 32];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != bytes.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
    }
    Some(bytes)
}

fn of_another_kind(entry: &PluginEntry, expected: &str) -> Refusal {
    Refusal::new(format!(
        "plugin {}: its source is not what its runtime runs, {expected}",
        entry.name
    ))
}

fn check(entry: &PluginEntry, digest: &str) -> Result<(), Refusal> {
    if digest == entry.digest {
        Ok(())
    } else {
        Err(Refusal::new(format!(
            "plugin {}: its code has the digest {digest}, but the configuration was made for {}; \
             make the configuration anew from the code as it is now",
            entry.name, entry.digest
        )))
    }
}

fn collect(folder: &Path, prefix: &str, files: &mut Files) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", folder.display());
    for found in fs::read_dir(folder).map_err(unreadable)? {
        let found = found.map_err(unreadable)?;
        let Ok(name) = found.file_name().into_string() else {
            continue;
        };
        if name.starts_with('.') {
            // No part of the plugin, as for whoever made the digest.
            continue;
        }
        let path = found.path();
        let relative = format!("{prefix}{name}");
        if path.is_dir() {
            collect(&path, &format!("{relative}/"), files)?;
        } else if path.extension().is_some_and(|extension| extension == "lua") {
            let content = fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            files.insert(relative, content);
        }
    }
    Ok(())
}

/// The digest of files, as `plugin-formats` defines it.
pub(crate) fn digest(files: &Files) -> String {
    let mut hash = Sha256::new();
    for (path, content) in files {
        for part in [path, content] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
    }
    written(&hash.finalize())
}

fn written(hash: &[u8]) -> String {
    hash.iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _written = write!(text, "{byte:02x}");
        text
    })
}
