use super::*;

/// A bundle that cosign v3.1.3 made, its key, and the digest that it signed.
const COSIGN_BUNDLE: &str = include_str!("../../testdata/cosign/bundle.json");
const COSIGN_KEY: &[u8] = include_bytes!("../../testdata/cosign/cosign.pub");
const COSIGN_DIGEST: &str =
    "sha256:1cda394f1f7535367e4ccd4f0dfeeebc4bc9c12dc90e6c14e536e4f835cd64e5";

/// Made with `openssl genpkey`.
const PRIVATE: &str = include_str!("../../testdata/key.pem");
const PUBLIC: &[u8] = include_bytes!("../../testdata/key.pub");

fn cosign_key() -> VerifyingKey {
    VerifyingKey::parse("cosign.pub", COSIGN_KEY).unwrap()
}

fn our_keys() -> (SigningKey, VerifyingKey) {
    let key = PrivateKey::from_pem(PRIVATE.as_bytes()).unwrap();
    (
        SigningKey(key),
        VerifyingKey::parse("key.pub", PUBLIC).unwrap(),
    )
}

/// The keys of a document, without its values.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .iter()
            .map(|(key, value)| (key.clone(), shape(value)))
            .collect(),
        Value::Array(items) => items.iter().map(shape).collect(),
        _ => Value::Null,
    }
}

fn check(bundle: &str, digest: &str, keys: &[VerifyingKey]) -> Result<Found, String> {
    let evidence = [Evidence::Bundle(bundle.to_owned())];
    verify(digest, &evidence, keys).map_err(|error| error.message)
}

#[test]
fn bundle_of_the_real_cosign_verifies() {
    let found = check(COSIGN_BUNDLE, COSIGN_DIGEST, &[cosign_key()]).unwrap();
    assert_eq!(
        (found.form, found.key.as_str()),
        ("bundle v0.3", "cosign.pub")
    );
    // One of several keys is enough.
    let (_, other) = our_keys();
    check(COSIGN_BUNDLE, COSIGN_DIGEST, &[other, cosign_key()]).unwrap();
}

#[test]
fn bundle_of_another_key_digest_or_payload_is_refused() {
    let (_, other) = our_keys();
    let error = check(COSIGN_BUNDLE, COSIGN_DIGEST, &[other]).unwrap_err();
    assert_eq!(error, "it is signed by another key");
    let wrong = format!("sha256:{:064}", 0);
    let error = check(COSIGN_BUNDLE, &wrong, &[cosign_key()]).unwrap_err();
    assert_eq!(
        error,
        format!("its signature is of another digest: expected {wrong}, found {COSIGN_DIGEST}")
    );
    // The payload names another digest, and keeps the signature.
    let mut bundle: Value = serde_json::from_str(COSIGN_BUNDLE).unwrap();
    let payload = bundle["dsseEnvelope"]["payload"].as_str().unwrap();
    let payload = String::from_utf8(STANDARD.decode(payload).unwrap()).unwrap();
    let payload = payload.replace(hex_of(COSIGN_DIGEST), hex_of(&wrong));
    bundle["dsseEnvelope"]["payload"] = json!(STANDARD.encode(payload));
    let error = check(&bundle.to_string(), &wrong, &[cosign_key()]).unwrap_err();
    assert_eq!(error, "it is signed by another key");
}

#[test]
fn malformed_bundles_are_refused() {
    let changed = |pointer: &str, value: Value| {
        let mut bundle: Value = serde_json::from_str(COSIGN_BUNDLE).unwrap();
        *bundle.pointer_mut(pointer).unwrap() = value;
        check(&bundle.to_string(), COSIGN_DIGEST, &[cosign_key()]).unwrap_err()
    };
    for (pointer, value, what) in [
        (
            "/mediaType",
            json!("text/plain"),
            "its type is `text/plain`",
        ),
        ("/verificationMaterial", json!({}), "names no key"),
        (
            "/verificationMaterial",
            json!({"certificate": {}}),
            "keyless",
        ),
        (
            "/verificationMaterial",
            json!({"x509CertificateChain": {}}),
            "keyless",
        ),
        ("/dsseEnvelope", Value::Null, "no DSSE envelope"),
        ("/dsseEnvelope/payload", json!("%"), "not in Base64"),
        (
            "/dsseEnvelope/payloadType",
            json!("text/plain"),
            "of type `text/plain`",
        ),
        (
            "/dsseEnvelope/signatures",
            json!([]),
            "exactly one signature",
        ),
        (
            "/dsseEnvelope/signatures/0/sig",
            json!("%"),
            "not in Base64",
        ),
        ("/dsseEnvelope/signatures/0/sig", json!(""), "another key"),
    ] {
        let error = changed(pointer, value);
        assert!(error.contains(what), "{pointer}: {error}");
    }
    for text in ["", "{", "[]", "{}"] {
        let error = check(text, COSIGN_DIGEST, &[cosign_key()]).unwrap_err();
        assert!(error.contains("malformed"), "{text}: {error}");
    }
    let error = verify(COSIGN_DIGEST, &[], &[cosign_key()]).unwrap_err();
    assert_eq!(error.message, "it is not signed");
}

#[test]
fn our_bundle_has_cosigns_form_and_verifies() {
    let (key, public) = our_keys();
    let bundle = sign(COSIGN_DIGEST, &key, Some(&public)).unwrap();
    let found = check(&bundle, COSIGN_DIGEST, std::slice::from_ref(&public)).unwrap();
    assert_eq!(found.form, "bundle v0.3");
    assert!(check(&bundle, COSIGN_DIGEST, &[cosign_key()]).is_err());
    // The same keys at the same places as in cosign's own, and the same hint of a key.
    let ours: Value = serde_json::from_str(&bundle).unwrap();
    let theirs: Value = serde_json::from_str(COSIGN_BUNDLE).unwrap();
    assert_eq!(shape(&ours), shape(&theirs));
    let statement = |bundle: &Value| -> Value {
        let payload = bundle["dsseEnvelope"]["payload"].as_str().unwrap();
        serde_json::from_slice(&STANDARD.decode(payload).unwrap()).unwrap()
    };
    assert_eq!(statement(&ours), statement(&theirs));
    let hint = STANDARD.encode(Sha256::digest(&cosign_key().der));
    assert_eq!(
        theirs["verificationMaterial"]["publicKey"]["hint"],
        hint.as_str()
    );
}

/// An attestation is about the image and vouches for something else.
#[test]
fn attestation_is_no_signature() {
    let (key, public) = our_keys();
    let bundle = sign(COSIGN_DIGEST, &key, Some(&public)).unwrap();
    let mut bundle: Value = serde_json::from_str(&bundle).unwrap();
    let payload = bundle["dsseEnvelope"]["payload"].as_str().unwrap();
    let payload = String::from_utf8(STANDARD.decode(payload).unwrap()).unwrap();
    let payload = payload.replace(PREDICATE, "https://slsa.dev/provenance/v1");
    let signature = key
        .0
        .sign(Hash::Sha256, &encoded(STATEMENT, payload.as_bytes()))
        .unwrap();
    bundle["dsseEnvelope"]["payload"] = json!(STANDARD.encode(payload));
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = json!(STANDARD.encode(signature));
    let error = check(&bundle.to_string(), COSIGN_DIGEST, &[public]).unwrap_err();
    assert!(
        error.contains("attestation of type `https://slsa.dev/provenance/v1`"),
        "{error}"
    );
}

#[test]
fn simple_signing_verifies() {
    let (key, public) = our_keys();
    let make = |digest: &str, kind: &str| {
        let payload = json!({
            "critical": {
                "identity": {"docker-reference": "r.example/x"},
                "image": {"docker-manifest-digest": digest},
                "type": kind,
            },
            "optional": null,
        })
        .to_string();
        let signature = STANDARD.encode(key.0.sign(Hash::Sha256, payload.as_bytes()).unwrap());
        Evidence::Simple { payload, signature }
    };
    let kind = "cosign container image signature";
    let check = |evidence: Evidence, key: &VerifyingKey| {
        verify(COSIGN_DIGEST, &[evidence], std::slice::from_ref(key)).map_err(|error| error.message)
    };
    assert_eq!(
        check(make(COSIGN_DIGEST, kind), &public).unwrap().form,
        "simple signing"
    );
    assert!(check(make(COSIGN_DIGEST, kind), &cosign_key()).is_err());
    let other = format!("sha256:{:064}", 0);
    assert!(
        check(make(&other, kind), &public)
            .unwrap_err()
            .contains("another digest")
    );
    assert!(
        check(make(COSIGN_DIGEST, "other"), &public)
            .unwrap_err()
            .contains("another type")
    );
}

#[test]
fn wrong_key_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n").unwrap();
    assert!(
        SigningKey::read(&file)
            .unwrap_err()
            .message
            .contains("is encrypted")
    );
    std::fs::write(&file, "hello").unwrap();
    assert!(SigningKey::read(&file).is_err());
    assert!(
        VerifyingKey::read(&file)
            .unwrap_err()
            .message
            .contains("holds no public key")
    );
    assert!(VerifyingKey::read(&folder.path().join("none")).is_err());
}
