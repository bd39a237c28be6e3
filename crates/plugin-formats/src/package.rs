//! A plugin as it was found: what the plugin store hands to the compiler of gateways.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::manifest::Manifest;
use crate::problem::Places;

/// A plugin's manifest, code and schema, read and digested.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginPackage {
    /// What its author says of it; `entry` is filled in.
    pub manifest: Manifest,
    /// Where the manifest says so; empty if the package has no manifest file.
    pub places: Places,
    /// Digest of `code`, as [`crate::PluginSource`] defines it.
    pub digest: String,
    /// What the runtime loads.
    pub code: PluginCode,
    /// `config.schema.json`, where there is one.
    pub schema: Option<Value>,
    /// The folder, as messages name it.
    pub folder: String,
}

/// A plugin's code.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginCode {
    /// Text files, by path relative to the plugin's folder.
    Files(BTreeMap<String, String>),
    /// A WebAssembly module.
    Module(WasmModule),
}

/// A WebAssembly module, read from its file.
#[derive(Clone, PartialEq, Eq)]
pub struct WasmModule {
    /// Its file, as messages name it.
    pub file: String,
    /// The file's content.
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for WasmModule {
    /// Without the bytes, which may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WasmModule")
            .field("file", &self.file)
            .field("size", &self.bytes.len())
            .finish()
    }
}
