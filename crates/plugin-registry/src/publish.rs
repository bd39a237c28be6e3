//! Pushes images and signatures.

use outrider_plugin_formats::Distribution;
use serde_json::{Value, json};

use crate::digest_of;
use crate::error::{FetchError, Kind};
use crate::fetch::{Fetcher, Resolved};
use crate::image::Image;
use crate::layout::{OCI_INDEX, OCI_MANIFEST};
use crate::reference::Reference;
use crate::registry::{Access, Repository, referrers_tag};
use crate::signature::{self, BUNDLE, PREDICATE, SigningKey, VerifyingKey};

/// What was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Normalised name.
    pub source: String,
    /// Digest of the manifest.
    pub digest: String,
}

/// The empty config of an artifact.
const EMPTY: &[u8] = b"{}";

impl Fetcher<'_> {
    /// Pushes an image under a tag.
    ///
    /// # Errors
    /// The registry refuses, or cannot be reached.
    pub fn push(
        &self,
        target: &str,
        image: &Image,
        distribution: &Distribution,
    ) -> Result<Pushed, FetchError> {
        let reference = Reference::parse(target)?;
        let Some(tag) = reference
            .tag
            .as_deref()
            .filter(|_| reference.digest.is_none())
        else {
            return Err(FetchError::new(
                "an image is pushed under a tag, and not under a digest",
            ));
        };
        let repository =
            self.repository(&reference.host, &reference.name, distribution, Access::Push);
        for blob in &image.blobs {
            repository.push_blob(blob)?;
        }
        repository.push_manifest(tag, OCI_MANIFEST, &image.manifest)?;
        // A registry that stored anything else is found here, and not by those who pull.
        let stored = repository.manifest(tag)?;
        if stored.digest != image.digest {
            return Err(FetchError::new(format!(
                "{} stored another manifest: expected {}, found {}",
                reference.host, image.digest, stored.digest
            )));
        }
        Ok(Pushed {
            source: reference.to_string(),
            digest: image.digest.clone(),
        })
    }

    /// Signs what a name leads to now, and stores the signature beside it.
    ///
    /// # Errors
    /// The registry refuses, cannot be reached, or has no such image.
    pub fn sign(
        &self,
        target: &str,
        key: &SigningKey,
        public: Option<&VerifyingKey>,
        distribution: &Distribution,
    ) -> Result<Resolved, FetchError> {
        let reference = Reference::parse(target)?;
        let repository =
            self.repository(&reference.host, &reference.name, distribution, Access::Push);
        let wanted = reference.digest.as_ref().or(reference.tag.as_ref());
        let subject = repository.manifest(wanted.map_or("latest", String::as_str))?;
        let document: Value = serde_json::from_slice(&subject.bytes)
            .map_err(|error| FetchError::new(format!("its manifest is malformed: {error}")))?;
        let media_type = document.get("mediaType").and_then(Value::as_str);
        let bundle = signature::sign(&subject.digest, key, public)?;
        if let Some(public) = public {
            // The wrong half of a key would make a signature that nobody can verify.
            let made = [signature::Evidence::Bundle(bundle.clone())];
            signature::verify(&subject.digest, &made, std::slice::from_ref(public)).map_err(
                |_| FetchError::new("the public key does not belong to the private one"),
            )?;
        }
        repository.push_blob(EMPTY)?;
        repository.push_blob(bundle.as_bytes())?;
        let annotations = json!({
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": PREDICATE,
        });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": BUNDLE,
            "config": {
                "mediaType": "application/vnd.oci.empty.v1+json",
                "digest": digest_of(EMPTY),
                "size": EMPTY.len(),
            },
            "layers": [{
                "mediaType": BUNDLE,
                "digest": digest_of(bundle.as_bytes()),
                "size": bundle.len(),
            }],
            "annotations": annotations,
            "subject": {
                "mediaType": media_type.unwrap_or(OCI_MANIFEST),
                "digest": subject.digest,
                "size": subject.bytes.len(),
            },
        })
        .to_string()
        .into_bytes();
        let digest = digest_of(&manifest);
        let keeps_referrers = repository.push_manifest(&digest, OCI_MANIFEST, &manifest)?;
        let is_listed = |referrers: Vec<crate::registry::Referrer>| {
            referrers.iter().any(|referrer| referrer.digest == digest)
        };
        if !keeps_referrers && !is_listed(repository.referrers(&subject.digest)?) {
            add_to_tag(
                &repository,
                &subject.digest,
                &json!({
                    "mediaType": OCI_MANIFEST,
                    "digest": digest,
                    "size": manifest.len(),
                    "artifactType": BUNDLE,
                    "annotations": annotations,
                }),
            )?;
        }
        Ok(Resolved {
            source: reference.to_string(),
            digest: subject.digest,
        })
    }
}

/// Adds an entry to the index of referrers under the tag `sha256-HEX`, for registries without the referrers API.
fn add_to_tag(
    repository: &Repository<'_, '_>,
    subject: &str,
    entry: &Value,
) -> Result<(), FetchError> {
    let tag = referrers_tag(subject);
    let mut entries = match repository.manifest(&tag) {
        Ok(found) => serde_json::from_slice::<Value>(&found.bytes)
            .ok()
            .and_then(|index| index.get("manifests")?.as_array().cloned())
            .unwrap_or_default(),
        Err(error) if error.kind == Kind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    entries.push(entry.clone());
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries});
    let index = index.to_string().into_bytes();
    repository
        .push_manifest(&tag, OCI_INDEX, &index)
        .map(|_| ())
}
