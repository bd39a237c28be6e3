//! Layouts of plugin images, and which of their layers hold what.
//!
//! | layout | recognised by | module |
//! |---|---|---|
//! | compat, of Docker or OCI; Higress; Outrider | the last layer is a tar | `plugin.wasm` in it, or a folder of Lua |
//! | Solo | a layer of type `application/vnd.module.wasm.content.layer.v1+wasm` | that layer, raw; exactly two layers |
//! | CNCF | config of type `application/vnd.wasm.config.v0+json` | the layer `application/wasm`, raw |

use outrider_plugin_formats::is_digest;
use serde::Deserialize;

use crate::error::FetchError;
use crate::http::size;
use crate::unpack::LARGEST_PACKED;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Types of layers that are tar, with gzip or without.
const TARS: [&str; 4] = [
    OCI_LAYER,
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar",
];
const SOLO_MODULE: &str = "application/vnd.module.wasm.content.layer.v1+wasm";
const CNCF_CONFIG: &str = "application/vnd.wasm.config.v0+json";
const CNCF_MODULE: &str = "application/wasm";
/// `plugin.yaml` as a layer of its own.
pub(crate) const MANIFEST_LAYER: &str = "application/vnd.outrider.plugin.manifest.v1+yaml";
/// `config.schema.json` as a layer of its own.
pub(crate) const SCHEMA_LAYER: &str = "application/vnd.outrider.plugin.schema.v1+json";
/// The licence as a layer of its own.
pub(crate) const LICENSE_LAYER: &str = "application/vnd.outrider.plugin.license.v1+text";
/// Higress's types of a specification and of a page for people.
pub(crate) const SPEC_LAYER: &str = "application/vnd.module.wasm.spec.v1+yaml";
pub(crate) const README_LAYER: &str = "application/vnd.module.wasm.doc.v1+markdown";
const MOST_LAYERS: usize = 128;
const MOST_ENTRIES: usize = 256;
/// Bytes of a layer with text.
pub(crate) const LARGEST_TEXT_LAYER: u64 = 1024 * 1024;

/// A blob that a manifest names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) annotations: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

/// A manifest of an image or artifact.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageManifest {
    #[serde(default)]
    pub(crate) media_type: String,
    #[serde(default)]
    pub(crate) config: Option<Descriptor>,
    #[serde(default)]
    pub(crate) layers: Vec<Descriptor>,
    #[serde(default)]
    pub(crate) annotations: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

/// How the module or the Lua files are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// A tar, with gzip or without.
    Tar,
    /// The module itself.
    Raw,
}

/// Layers of a plugin.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Name of the layout, for people.
    pub(crate) name: &'static str,
    pub(crate) packing: Packing,
    pub(crate) code: Descriptor,
    pub(crate) manifest: Option<Descriptor>,
    pub(crate) schema: Option<Descriptor>,
}

/// What a document of a registry is.
#[derive(Debug)]
pub(crate) enum Document {
    Image(Box<ImageManifest>),
    /// An index, with the digest of the manifest to read.
    Index(String),
}

/// Reads a manifest or an index.
pub(crate) fn read(bytes: &[u8]) -> Result<Document, FetchError> {
    let manifest: ImageManifest = serde_json::from_slice(bytes).map_err(|error| {
        FetchError::new(format!("its manifest is not one of an image: {error}"))
    })?;
    let is_index = matches!(manifest.media_type.as_str(), OCI_INDEX | DOCKER_LIST)
        || (manifest.layers.is_empty() && !manifest.manifests.is_empty());
    if is_index {
        return chosen(&manifest.manifests).map(Document::Index);
    }
    if manifest.layers.len() > MOST_LAYERS {
        return Err(FetchError::new(format!(
            "it has {} layers, more than {MOST_LAYERS}",
            manifest.layers.len()
        )));
    }
    for layer in manifest.layers.iter().chain(&manifest.config) {
        if !is_digest(&layer.digest) {
            return Err(FetchError::new("a digest in its manifest is malformed"));
        }
    }
    Ok(Document::Image(Box::new(manifest)))
}

/// The entry of an index for this machine: the only image, else that of this platform.
fn chosen(entries: &[Descriptor]) -> Result<String, FetchError> {
    if entries.len() > MOST_ENTRIES {
        return Err(FetchError::new(format!(
            "its index has more than {MOST_ENTRIES} entries"
        )));
    }
    // Builders add attestations, whose platform is `unknown`.
    let is_image = |entry: &&Descriptor| {
        is_digest(&entry.digest)
            && entry
                .platform
                .as_ref()
                .is_none_or(|platform| platform.os != "unknown")
    };
    let images: Vec<&Descriptor> = entries.iter().filter(is_image).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let of_platform = |os: &str, architecture: &str| {
        images.iter().find(|entry| {
            entry
                .platform
                .as_ref()
                .is_some_and(|platform| platform.os == os && platform.architecture == architecture)
        })
    };
    let found = match images.as_slice() {
        [only] => Some(only),
        _ => of_platform("wasi", "wasm")
            .or_else(|| of_platform("linux", architecture))
            .or_else(|| of_platform("linux", "amd64")),
    };
    found
        .map(|entry| entry.digest.clone())
        .ok_or_else(|| FetchError::new(format!("its index has no image for linux/{architecture}")))
}

impl ImageManifest {
    /// The layers that hold a plugin.
    pub(crate) fn layout(&self) -> Result<Layout, FetchError> {
        let of_type = |kind: &str| -> Vec<&Descriptor> {
            self.layers
                .iter()
                .filter(|layer| layer.media_type == kind)
                .collect()
        };
        let only = |kind: &str| match of_type(kind).as_slice() {
            [] => Ok(None),
            [only] => Ok(Some((*only).clone())),
            several => Err(FetchError::new(format!(
                "it has {} layers of type {kind}, and one is expected",
                several.len()
            ))),
        };
        let manifest = only(MANIFEST_LAYER)?;
        let schema = only(SCHEMA_LAYER)?;
        let config = self
            .config
            .as_ref()
            .map_or("", |config| config.media_type.as_str());
        let (name, packing, code) = if let Some(module) = only(SOLO_MODULE)? {
            if self.layers.len() != 2 {
                return Err(FetchError::new(format!(
                    "an image with a layer of type {SOLO_MODULE} has two layers, and this one has {}",
                    self.layers.len()
                )));
            }
            ("Solo", Packing::Raw, module)
        } else if config == CNCF_CONFIG {
            let module = only(CNCF_MODULE)?;
            let missing = || FetchError::new(format!("it has no layer of type {CNCF_MODULE}"));
            (
                "CNCF Wasm artifact",
                Packing::Raw,
                module.ok_or_else(missing)?,
            )
        } else {
            let last = self.layers.last();
            let last = last.ok_or_else(|| FetchError::new("it has no layers"))?;
            if !TARS.contains(&last.media_type.as_str()) {
                return Err(FetchError::new(format!(
                    "its last layer is of type `{}`, and a plugin's is {OCI_LAYER}",
                    last.media_type
                )));
            }
            let name = if manifest.is_some() {
                "Outrider"
            } else if !of_type(SPEC_LAYER).is_empty() {
                "Higress"
            } else {
                "compat"
            };
            (name, Packing::Tar, last.clone())
        };
        for (layer, limit) in [
            (Some(&code), LARGEST_PACKED),
            (manifest.as_ref(), LARGEST_TEXT_LAYER),
            (schema.as_ref(), LARGEST_TEXT_LAYER),
        ] {
            if let Some(layer) = layer.filter(|layer| layer.size > limit) {
                return Err(FetchError::new(format!(
                    "its layer {} has {}, more than the limit of {}",
                    layer.digest,
                    size(layer.size),
                    size(limit)
                )));
            }
        }
        Ok(Layout {
            name,
            packing,
            code,
            manifest,
            schema,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn layer(kind: &str) -> Value {
        json!({"mediaType": kind, "digest": format!("sha256:{:064}", kind.len()), "size": 10})
    }

    fn image(config: &str, layers: &[&str]) -> Result<Layout, FetchError> {
        let layers: Vec<Value> = layers.iter().map(|kind| layer(kind)).collect();
        let text = json!({"config": layer(config), "layers": layers}).to_string();
        match read(text.as_bytes())? {
            Document::Image(manifest) => manifest.layout(),
            Document::Index(_) => panic!("an index"),
        }
    }

    #[test]
    fn every_layout_is_recognised() {
        let docker_layer = "application/vnd.docker.image.rootfs.diff.tar.gzip";
        let solo_config = "application/vnd.module.wasm.config.v1+json";
        for (config, layers, name, packing, code) in [
            (
                "application/vnd.docker.container.image.v1+json",
                &[docker_layer, docker_layer][..],
                "compat",
                Packing::Tar,
                docker_layer,
            ),
            (
                OCI_CONFIG,
                &[OCI_LAYER][..],
                "compat",
                Packing::Tar,
                OCI_LAYER,
            ),
            (
                OCI_CONFIG,
                &[solo_config, SOLO_MODULE][..],
                "Solo",
                Packing::Raw,
                SOLO_MODULE,
            ),
            (
                OCI_CONFIG,
                &[SPEC_LAYER, README_LAYER, OCI_LAYER][..],
                "Higress",
                Packing::Tar,
                OCI_LAYER,
            ),
            (
                OCI_CONFIG,
                &[
                    SPEC_LAYER,
                    README_LAYER,
                    MANIFEST_LAYER,
                    SCHEMA_LAYER,
                    OCI_LAYER,
                ][..],
                "Outrider",
                Packing::Tar,
                OCI_LAYER,
            ),
            (
                CNCF_CONFIG,
                &[CNCF_MODULE][..],
                "CNCF Wasm artifact",
                Packing::Raw,
                CNCF_MODULE,
            ),
            ("", &[OCI_LAYER][..], "compat", Packing::Tar, OCI_LAYER),
        ] {
            let layout = image(config, layers).unwrap();
            assert_eq!((layout.name, layout.packing), (name, packing));
            assert_eq!(layout.code.media_type, code);
        }
    }

    #[test]
    fn wrong_layers_are_refused() {
        for (config, layers, what) in [
            (
                OCI_CONFIG,
                &["text/plain"][..],
                "its last layer is of type `text/plain`",
            ),
            (OCI_CONFIG, &[][..], "no layers"),
            (
                OCI_CONFIG,
                &[SOLO_MODULE, SOLO_MODULE][..],
                "2 layers of type",
            ),
            (
                OCI_CONFIG,
                &[SOLO_MODULE][..],
                "has two layers, and this one has 1",
            ),
            (
                CNCF_CONFIG,
                &[CNCF_MODULE, CNCF_MODULE][..],
                "2 layers of type application/wasm",
            ),
            (
                CNCF_CONFIG,
                &[OCI_LAYER][..],
                "no layer of type application/wasm",
            ),
            (
                OCI_CONFIG,
                &[MANIFEST_LAYER, MANIFEST_LAYER, OCI_LAYER][..],
                "2 layers of type",
            ),
            (OCI_CONFIG, &[OCI_LAYER; 200][..], "200 layers"),
        ] {
            let error = image(config, layers).unwrap_err();
            assert!(error.message.contains(what), "{error}");
        }
        assert!(read(b"<html>").is_err());
        assert!(read(br#"{"layers": [{"digest": "../../x", "size": 1}]}"#).is_err());
    }

    #[test]
    fn layer_over_the_limit_is_refused_before_it_is_fetched() {
        let text = json!({"layers": [{"mediaType": OCI_LAYER, "digest": format!("sha256:{:064}", 1), "size": 300 << 20}]});
        let Document::Image(manifest) = read(text.to_string().as_bytes()).unwrap() else {
            panic!("an index");
        };
        let error = manifest.layout().unwrap_err();
        assert!(
            error
                .message
                .contains("300.0 MiB, more than the limit of 256.0 MiB"),
            "{error}"
        );
    }

    #[test]
    fn index_leads_to_the_image_of_this_platform() {
        let entry = |number: u8, os: &str, architecture: &str| {
            json!({"digest": format!("sha256:{number:064}"), "size": 1,
                   "platform": {"os": os, "architecture": architecture}})
        };
        let of = |entries: &[Value]| read(json!({"manifests": entries}).to_string().as_bytes());
        let unknown = entry(9, "unknown", "unknown");
        for (entries, number) in [
            (vec![unknown.clone(), entry(1, "linux", "s390x")], 1),
            (
                vec![entry(1, "linux", "s390x"), entry(2, "wasi", "wasm")],
                2,
            ),
            (
                vec![
                    entry(1, "linux", "s390x"),
                    entry(2, "linux", "amd64"),
                    entry(3, "linux", "arm64"),
                ],
                if cfg!(target_arch = "aarch64") { 3 } else { 2 },
            ),
        ] {
            let Document::Index(digest) = of(&entries).unwrap() else {
                panic!("no index");
            };
            assert_eq!(digest, format!("sha256:{number:064}"));
        }
        let error = of(&[
            unknown.clone(),
            entry(1, "windows", "amd64"),
            entry(2, "linux", "s390x"),
        ]);
        assert!(error.unwrap_err().message.contains("no image for linux/"));
        assert!(of(&[unknown]).is_err());
    }
}
