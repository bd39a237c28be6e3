//! Builds the image of a plugin, that Istio, Envoy Gateway, Higress and Outrider read.
//!
//! Higress's order: its specification, the README, then manifest, schema and licence of ours, and last the tar with the code,
//! which is all that Istio and Envoy Gateway look at. The same plugin gives the same bytes: no times, owners or machine names.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use outrider_plugin_formats::{Group, Manifest, PluginCode, PluginPackage};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::digest_of;
use crate::error::FetchError;
use crate::layout::{
    LICENSE_LAYER, MANIFEST_LAYER, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, README_LAYER, SCHEMA_LAYER,
    SPEC_LAYER,
};
use crate::unpack::MODULE;

/// An image in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The manifest.
    pub manifest: Vec<u8>,
    /// Digest of the manifest.
    pub digest: String,
    /// Config and layers.
    pub(crate) blobs: Vec<Vec<u8>>,
    /// Media type, title and size of each layer, in their order.
    pub layers: Vec<(String, String, usize)>,
}

/// Texts beside a plugin's code, as they are in its folder.
#[derive(Debug, Clone, Default)]
pub(crate) struct Texts {
    pub(crate) manifest: String,
    pub(crate) schema: Option<String>,
    pub(crate) readme: Option<String>,
    pub(crate) license: Option<String>,
}

/// Builds the image of the plugin in a folder, that was opened as `package`.
///
/// # Errors
/// A file cannot be read.
pub fn build(folder: &std::path::Path, package: &PluginPackage) -> Result<Image, FetchError> {
    let read = |name: &str| -> Result<Option<String>, FetchError> {
        let file = folder.join(name);
        if !file.is_file() {
            return Ok(None);
        }
        outrider_plugin_store::read_text(&file)
            .map(Some)
            .map_err(|why| FetchError::new(format!("{} cannot be read: {why}", file.display())))
    };
    let manifest = read(outrider_plugin_store::MANIFEST)?.ok_or_else(|| {
        FetchError::new(format!("there is no plugin.yaml in {}", folder.display()))
            .mend("`outrider plugin new` begins a plugin")
    })?;
    let mut license = None;
    for name in ["LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING"] {
        license = match license {
            None => read(name)?,
            found => found,
        };
    }
    let texts = Texts {
        manifest,
        schema: read(outrider_plugin_store::SCHEMA)?,
        readme: read("README.md")?,
        license,
    };
    assemble(package, &texts)
}

pub(crate) fn assemble(package: &PluginPackage, texts: &Texts) -> Result<Image, FetchError> {
    let tar = code(package, texts)?;
    let packed = gzip(&tar)?;
    let spec = spec(&package.manifest, package.schema.as_ref()).to_string();
    let mut layers: Vec<(&str, &str, Vec<u8>, String)> = Vec::new();
    for (kind, title, text) in [
        (SPEC_LAYER, "spec.yaml", Some(&spec)),
        (README_LAYER, "README.md", texts.readme.as_ref()),
        (MANIFEST_LAYER, "plugin.yaml", Some(&texts.manifest)),
        (SCHEMA_LAYER, "config.schema.json", texts.schema.as_ref()),
        (LICENSE_LAYER, "LICENSE", texts.license.as_ref()),
    ] {
        if let Some(text) = text {
            let digest = digest_of(text.as_bytes());
            layers.push((kind, title, text.clone().into_bytes(), digest));
        }
    }
    layers.push((OCI_LAYER, "plugin.tar.gz", packed, digest_of(&tar)));
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {
            "type": "layers",
            // One for each layer, or go-containerregistry refuses the image; of text, its own digest.
            "diff_ids": layers.iter().map(|(_, _, _, unpacked)| unpacked).collect::<Vec<_>>(),
        },
    })
    .to_string();
    let descriptors: Vec<Value> = layers
        .iter()
        .map(|(kind, title, bytes, _)| {
            json!({
                "mediaType": kind,
                "digest": digest_of(bytes),
                "size": bytes.len(),
                "annotations": {"org.opencontainers.image.title": title},
            })
        })
        .collect();
    let mut annotations = BTreeMap::from([(
        "org.opencontainers.image.title",
        package.manifest.name.clone(),
    )]);
    if matches!(package.code, PluginCode::Module(_)) {
        annotations.insert("module.wasm.image/variant", "compat".to_owned());
    }
    let described = [
        (
            "org.opencontainers.image.version",
            &package.manifest.version,
        ),
        (
            "org.opencontainers.image.description",
            &package.manifest.description,
        ),
    ];
    for (key, value) in described {
        if let Some(value) = value {
            annotations.insert(key, value.clone());
        }
    }
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {
            "mediaType": OCI_CONFIG,
            "digest": digest_of(config.as_bytes()),
            "size": config.len(),
        },
        "layers": descriptors,
        "annotations": annotations,
    })
    .to_string()
    .into_bytes();
    let listed = layers
        .iter()
        .map(|(kind, title, bytes, _)| ((*kind).to_owned(), (*title).to_owned(), bytes.len()));
    Ok(Image {
        digest: digest_of(&manifest),
        layers: listed.collect(),
        blobs: std::iter::once(config.into_bytes())
            .chain(layers.into_iter().map(|(_, _, bytes, _)| bytes))
            .collect(),
        manifest,
    })
}

/// The tar of a plugin's code: the module, or the folder of Lua with its manifest.
fn code(package: &PluginPackage, texts: &Texts) -> Result<Vec<u8>, FetchError> {
    let mut files: BTreeMap<&str, &[u8]> = BTreeMap::new();
    match &package.code {
        PluginCode::Module(module) => {
            files.insert(MODULE, &module.bytes);
        }
        PluginCode::Files(lua) => {
            files.extend(
                lua.iter()
                    .map(|(path, text)| (path.as_str(), text.as_bytes())),
            );
            files.insert(outrider_plugin_store::MANIFEST, texts.manifest.as_bytes());
            if let Some(schema) = &texts.schema {
                files.insert(outrider_plugin_store::SCHEMA, schema.as_bytes());
            }
        }
    }
    let failed = |error: std::io::Error| FetchError::new(format!("the archive: {error}"));
    let mut builder = Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        builder
            .append_data(&mut header, path, bytes)
            .map_err(failed)?;
    }
    builder.into_inner().map_err(failed)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>, FetchError> {
    const UNKNOWN_SYSTEM: u8 = 255;
    let failed = |error: std::io::Error| FetchError::new(format!("the archive: {error}"));
    let mut encoder = GzBuilder::new()
        .mtime(0)
        .operating_system(UNKNOWN_SYSTEM)
        .write(Vec::new(), Compression::best());
    encoder.write_all(bytes).map_err(failed)?;
    encoder.finish().map_err(failed)
}

/// Higress's `spec.yaml`, as JSON, which is YAML.
fn spec(manifest: &Manifest, schema: Option<&Value>) -> Value {
    let phase = match manifest.group {
        Group::Authn => "AUTHN",
        Group::Authz => "AUTHZ",
        Group::Observe => "STATS",
        Group::Traffic | Group::Transform => "UNSPECIFIED_PHASE",
    };
    let empty = json!({"type": "object"});
    json!({
        "apiVersion": "1.0.0",
        "info": {
            "gatewayMinVersion": "",
            "category": "custom",
            "name": manifest.name,
            "title": manifest.name,
            "description": manifest.description.as_deref().unwrap_or_default(),
            "version": manifest.version.as_deref().unwrap_or("0.0.0"),
        },
        "spec": {
            "phase": phase,
            "priority": manifest.priority.clamp(1, 1000),
            "configSchema": {"openAPIV3Schema": schema.unwrap_or(&empty)},
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::layout::{self, Document};
    use crate::unpack::{self, Limits};

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("plugin.yaml", "name: hello\nruntime: lua\nversion: 1.2.0\n"),
            ("config.schema.json", "{\"type\": \"object\"}"),
            ("README.md", "# Hello\n"),
            ("LICENSE", "Apache-2.0\n"),
            ("main.lua", "return require 'lib.a'\n"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        fs::create_dir(folder.path().join("lib")).unwrap();
        fs::write(folder.path().join("lib/a.lua"), "return {}\n").unwrap();
        folder
    }

    fn image(folder: &std::path::Path) -> Image {
        let package = outrider_plugin_store::open(folder).unwrap();
        build(folder, &package).unwrap()
    }

    #[test]
    fn image_is_the_same_to_the_byte_wherever_and_whenever_it_is_built() {
        let (one, other) = (folder(), folder());
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let file = fs::File::options()
            .append(true)
            .open(other.path().join("main.lua"));
        file.unwrap().set_modified(old).unwrap();
        assert_eq!(image(one.path()), image(other.path()));
        fs::write(other.path().join("main.lua"), "return {}\n").unwrap();
        assert_ne!(image(one.path()).digest, image(other.path()).digest);
    }

    #[test]
    fn layers_are_in_higresses_order_and_the_code_is_last() {
        let folder = folder();
        let image = image(folder.path());
        let titles: Vec<&str> = image
            .layers
            .iter()
            .map(|(_, title, _)| title.as_str())
            .collect();
        assert_eq!(
            titles,
            [
                "spec.yaml",
                "README.md",
                "plugin.yaml",
                "config.schema.json",
                "LICENSE",
                "plugin.tar.gz"
            ]
        );
        let Document::Image(manifest) = layout::read(&image.manifest).unwrap() else {
            panic!("an index");
        };
        let layout = manifest.layout().unwrap();
        assert_eq!(layout.name, "Outrider");
        let files = unpack::layer(image.blobs.last().unwrap(), Limits::default()).unwrap();
        assert_eq!(
            files.lua.keys().collect::<Vec<_>>(),
            ["lib/a.lua", "main.lua"]
        );
        assert_eq!(
            files.manifest.unwrap(),
            "name: hello\nruntime: lua\nversion: 1.2.0\n"
        );
        assert_eq!(
            manifest.annotations["org.opencontainers.image.version"],
            "1.2.0"
        );
        assert!(
            !manifest
                .annotations
                .contains_key("module.wasm.image/variant")
        );
    }

    #[test]
    fn image_of_a_module_is_compat() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("plugin.yaml"),
            "name: guard\nruntime: wasm\nentry: out/g.wasm\n",
        )
        .unwrap();
        fs::create_dir(folder.path().join("out")).unwrap();
        fs::write(folder.path().join("out/g.wasm"), b"\0asm\x01\0\0\0").unwrap();
        let image = image(folder.path());
        let Document::Image(manifest) = layout::read(&image.manifest).unwrap() else {
            panic!("an index");
        };
        assert_eq!(manifest.annotations["module.wasm.image/variant"], "compat");
        let last = manifest.layers.last().unwrap();
        assert_eq!(last.media_type, OCI_LAYER);
        let files = unpack::layer(image.blobs.last().unwrap(), Limits::default()).unwrap();
        assert_eq!(files.module.as_deref(), Some(&b"\0asm\x01\0\0\0"[..]));
        let config: Value = serde_json::from_slice(&image.blobs[0]).unwrap();
        let count = config["rootfs"]["diff_ids"].as_array().unwrap().len();
        assert_eq!(count, manifest.layers.len());
    }
}
