//! A plugin as it was found: what the plugin store hands to the compiler of gateways.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::manifest::Manifest;

/// A plugin's manifest, code and schema, read and digested.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginPackage {
    /// What its author says of it; `entry` is filled in.
    pub manifest: Manifest,
    /// Digest of `files`, as [`crate::PluginSource`] defines it.
    pub digest: String,
    /// The files that the runtime loads, by path relative to the plugin's folder.
    pub files: BTreeMap<String, String>,
    /// `config.schema.json`, where there is one.
    pub schema: Option<Value>,
    /// The folder, as messages name it.
    pub folder: String,
}
