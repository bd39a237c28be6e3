//! Signatures of images, in cosign's formats, with keys.
//!
//! Two forms are read: the bundle v0.3 (a DSSE envelope around an in-toto statement whose subject is the manifest's digest),
//! and the older "simple signing" payload with its signature in an annotation. The bundle is what is written.
//!
//! The trap: a valid signature says only that the key's owner signed *some* text. The text has to name the digest.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrider_signatures::{Form, Hash, PrivateKey, PublicKey, SignatureError, pem};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::error::FetchError;
use crate::hex_of;

pub(crate) const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
pub(crate) const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
pub(crate) const SIMPLE_SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Bytes of a bundle or payload.
pub(crate) const LARGEST: u64 = 1024 * 1024;
const STATEMENT: &str = "application/vnd.in-toto+json";
pub(crate) const PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

/// A signature that a registry holds, not verified yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Evidence {
    /// Text of a bundle.
    Bundle(String),
    /// A payload and the signature of it in Base64.
    Simple { payload: String, signature: String },
}

/// Form of a signature that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// `bundle v0.3`, or `simple signing`.
    pub form: &'static str,
    /// File of the key that made it.
    pub key: String,
}

/// A public key.
#[derive(Debug, Clone)]
pub struct VerifyingKey {
    file: String,
    der: Vec<u8>,
}

impl VerifyingKey {
    /// Reads a public key in PEM.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key.
    pub fn read(file: &Path) -> Result<Self, FetchError> {
        let text = std::fs::read(file).map_err(|error| FetchError::file(file, "read", &error))?;
        Self::parse(&file.display().to_string(), &text)
    }

    /// Reads a public key in PEM, of a file of this name.
    ///
    /// # Errors
    /// It holds no key.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, FetchError> {
        let der = pem::public_key(text);
        let der = der.ok_or_else(|| {
            FetchError::new(format!("{file} holds no public key"))
                .mend("name a PEM file with `-----BEGIN PUBLIC KEY-----`, such as cosign.pub")
        })?;
        PublicKey::from_der(&der).map_err(|error| FetchError::new(format!("{file}: {error}")))?;
        Ok(Self {
            file: file.to_owned(),
            der,
        })
    }

    fn verifies(&self, signature: &[u8], data: &[u8]) -> bool {
        let Ok(key) = PublicKey::from_der(&self.der) else {
            return false;
        };
        let verify = |hash| key.verify(hash, Form::Der, signature, data, &|| false);
        match verify(Some(Hash::Sha256)) {
            Err(SignatureError::NeedsNoHash) => verify(None) == Ok(true),
            result => result == Ok(true),
        }
    }
}

/// A private key.
#[derive(Debug)]
pub struct SigningKey(PrivateKey);

impl SigningKey {
    /// Reads a private key in PEM, without a password.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key that signs.
    pub fn read(file: &Path) -> Result<Self, FetchError> {
        let text = std::fs::read(file).map_err(|error| FetchError::file(file, "read", &error))?;
        let text = Zeroizing::new(text);
        let shown = file.display();
        if text.windows(9).any(|part| part == b"ENCRYPTED") {
            return Err(FetchError::new(format!("the key in {shown} is encrypted"))
                .mend("use a key without a password: `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`"));
        }
        let key = PrivateKey::from_pem(&text);
        key.map(Self)
            .map_err(|error| FetchError::new(format!("{shown}: {error}")))
    }
}

/// Makes a bundle that says that a key's owner signed a manifest. `public` is the other half of the key, for its hint.
pub(crate) fn sign(
    digest: &str,
    key: &SigningKey,
    public: Option<&VerifyingKey>,
) -> Result<String, FetchError> {
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": hex_of(digest)}, "annotations": {}}],
        "predicateType": PREDICATE,
        "predicate": {},
    })
    .to_string();
    let failed = |error: SignatureError| FetchError::new(error.to_string());
    let signature = key
        .0
        .sign(Hash::Sha256, &encoded(STATEMENT, statement.as_bytes()));
    let signature = signature.map_err(failed)?;
    let hint = public.map_or(String::new(), |key| {
        STANDARD.encode(Sha256::digest(&key.der))
    });
    let bundle = json!({
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": hint}},
        "dsseEnvelope": {
            "payload": STANDARD.encode(&statement),
            "payloadType": STATEMENT,
            "signatures": [{"sig": STANDARD.encode(signature)}],
        },
    });
    Ok(bundle.to_string())
}

/// The text that a DSSE signature signs.
fn encoded(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut text = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    text.extend_from_slice(payload);
    text
}

/// Checks whether one of some signatures is one of `digest` by one of some keys.
///
/// # Errors
/// Why none of them is.
pub(crate) fn verify(
    digest: &str,
    evidence: &[Evidence],
    keys: &[VerifyingKey],
) -> Result<Found, FetchError> {
    if evidence.is_empty() {
        return Err(FetchError::new("it is not signed"));
    }
    let mut reasons: Vec<String> = Vec::new();
    for one in evidence {
        let checked = match one {
            Evidence::Bundle(text) => verify_bundle(digest, text, keys),
            Evidence::Simple { payload, signature } => {
                verify_simple(digest, payload, signature, keys)
            }
        };
        match checked {
            Ok(found) => return Ok(found),
            Err(reason) if !reasons.contains(&reason) => reasons.push(reason),
            Err(_) => {}
        }
    }
    Err(FetchError::new(reasons.join("; ")))
}

fn by_key(
    signature: &str,
    data: &[u8],
    keys: &[VerifyingKey],
    form: &'static str,
) -> Result<Found, String> {
    let signature = STANDARD.decode(signature.trim());
    let signature =
        signature.map_err(|_| "its signature is malformed: not in Base64".to_owned())?;
    let key = keys.iter().find(|key| key.verifies(&signature, data));
    key.map(|key| Found {
        form,
        key: key.file.clone(),
    })
    .ok_or_else(|| "it is signed by another key".to_owned())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    verification_material: Value,
    dsse_envelope: Option<Envelope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject {
    digest: std::collections::BTreeMap<String, String>,
}

fn verify_bundle(digest: &str, text: &str, keys: &[VerifyingKey]) -> Result<Found, String> {
    let malformed = |why: &str| format!("its bundle is malformed: {why}");
    let bundle: Bundle =
        serde_json::from_str(text).map_err(|error| malformed(&error.to_string()))?;
    if bundle.media_type != BUNDLE {
        return Err(malformed(&format!("its type is `{}`", bundle.media_type)));
    }
    let material = &bundle.verification_material;
    if material.get("certificate").is_some() || material.get("x509CertificateChain").is_some() {
        return Err(
            "it has a keyless signature (Fulcio), which is not verified here; sign it with a key"
                .to_owned(),
        );
    }
    if material.get("publicKey").is_none() {
        return Err(malformed("it names no key"));
    }
    let envelope = bundle
        .dsse_envelope
        .ok_or_else(|| malformed("it has no DSSE envelope"))?;
    if envelope.payload_type != STATEMENT {
        return Err(malformed(&format!(
            "its payload is of type `{}`",
            envelope.payload_type
        )));
    }
    let [signature] = envelope.signatures.as_slice() else {
        return Err(malformed("it has not exactly one signature"));
    };
    let payload = STANDARD.decode(&envelope.payload);
    let payload = payload.map_err(|_| malformed("its payload is not in Base64"))?;
    // The statement is read only after its signature was verified.
    let signed = encoded(&envelope.payload_type, &payload);
    let found = by_key(&signature.sig, &signed, keys, "bundle v0.3")?;
    let statement: Statement =
        serde_json::from_slice(&payload).map_err(|error| malformed(&error.to_string()))?;
    if !statement.kind.starts_with("https://in-toto.io/Statement/") {
        return Err(malformed("its payload is no in-toto statement"));
    }
    if statement.predicate_type != PREDICATE {
        return Err(format!(
            "it has an attestation of type `{}`, and no signature",
            statement.predicate_type
        ));
    }
    let [subject] = statement.subject.as_slice() else {
        return Err(malformed("its statement has not exactly one subject"));
    };
    let signed = subject.digest.get("sha256").map(String::as_str);
    of_digest(digest, signed).map(|()| found)
}

fn verify_simple(
    digest: &str,
    payload: &str,
    signature: &str,
    keys: &[VerifyingKey],
) -> Result<Found, String> {
    let found = by_key(signature, payload.as_bytes(), keys, "simple signing")?;
    let payload: Value = serde_json::from_str(payload)
        .map_err(|error| format!("its signed payload is malformed: {error}"))?;
    let kind = payload.pointer("/critical/type").and_then(Value::as_str);
    if kind != Some("cosign container image signature") {
        return Err("its signed payload is of another type".to_owned());
    }
    let signed = payload.pointer("/critical/image/docker-manifest-digest");
    let signed = signed.and_then(Value::as_str).map(hex_of);
    of_digest(digest, signed).map(|()| found)
}

fn of_digest(expected: &str, signed: Option<&str>) -> Result<(), String> {
    match signed {
        Some(signed) if signed == hex_of(expected) => Ok(()),
        Some(signed) => Err(format!(
            "its signature is of another digest: expected {expected}, found sha256:{signed}"
        )),
        None => Err("its signature names no digest".to_owned()),
    }
}

#[cfg(test)]
mod tests;
