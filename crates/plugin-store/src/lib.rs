//! Where plugins come from: a folder with `plugin.yaml`, a single Lua file or WebAssembly module, or files in memory.
//! Reads, checks and digests them; whether the code is good Lua or a valid module is the runtime's to
//! say, and whether `config.schema.json` is a good JSON Schema the compiler's.
//!
//! The trap: everything here is something that a user is editing or building right now. Whatever is
//! half-written has to come out as problems with places.

mod digest;
mod folder;
mod manifest;
mod module;
mod problems;
mod read;
mod unpacked;

use std::fs;
use std::path::Path;

use outrider_plugin_formats::{PluginPackage, Problem};

pub use digest::{digest, module_digest};
pub use folder::MANIFEST;
pub use folder::SCHEMA;
pub use manifest::is_name;
pub use read::{LARGEST_INCLUDE, read_text};
pub use unpacked::{Unpacked, check_module, open_unpacked};

/// Opens the plugin at `source`: a folder, or a `.lua` or `.wasm` file. Problems and the package's folder
/// name files as `source` does, so a relative path stays one.
///
/// Of a folder these are read: `plugin.yaml`, `config.schema.json` where there is one, and the code. Of a
/// Lua plugin that is every `*.lua` at any depth, except below names that begin with a dot (editors and
/// file synchronisers keep half-written copies there); of a Wasm plugin, the one module that the manifest
/// names. A single file is a plugin of the file's name, with every default.
///
/// # Errors
/// Everything that is wrong with it.
pub fn open(source: &Path) -> Result<PluginPackage, Vec<Problem>> {
    let metadata = fs::metadata(source).map_err(|error| {
        vec![problems::of_whole(
            source,
            match error.kind() {
                std::io::ErrorKind::NotFound => {
                    format!("there is no file or folder {}", source.display())
                }
                _ => format!("cannot be read: {error}"),
            },
            Some(folder::WHAT_A_PLUGIN_IS),
        )]
    })?;
    if metadata.is_dir() {
        folder::open(source)
    } else {
        folder::open_single(source)
    }
}

#[cfg(test)]
mod tests;
