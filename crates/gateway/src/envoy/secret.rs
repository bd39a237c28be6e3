//! Certificates, private keys and authorities: Envoy's *secrets*.
//!
//! With files, each is in a file of its own, which listeners and clusters name by SDS: another content there replaces what
//! new connections are served with, and touches neither listener, cluster nor open connections. A secret's name follows
//! from the paths of its files, so that it stays the same when they are renewed.
//!
//! The trap: Envoy takes one secret for each file of SDS.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{Form, Layout, Secrets, discovery_response, secret_file, source};
use crate::plan::{Certificate, Pem, Plan};

const MESSAGE: &str = "envoy.extensions.transport_sockets.tls.v3.Secret";

/// The own certificates, in a `CommonTlsContext`.
pub(super) fn own(context: &mut Map<String, Value>, certificates: &[Certificate], form: Form<'_>) {
    let (key, list) = match form {
        Form::Files(layout) => {
            let named = |pair: &Certificate| by_name(&name_of(pair), layout);
            (
                "tls_certificate_sds_secret_configs",
                certificates.iter().map(named).collect(),
            )
        }
        Form::Inline => (
            "tls_certificates",
            certificates
                .iter()
                .map(|pair| certificate(pair, Secrets::Named))
                .collect::<Vec<_>>(),
        ),
    };
    context.insert(key.to_owned(), list.into());
}

/// Authorities that peers' certificates are verified with, and what else is checked, in a `CommonTlsContext`.
pub(super) fn authorities(
    context: &mut Map<String, Value>,
    ca: &Pem,
    mut checks: Map<String, Value>,
    form: Form<'_>,
) {
    match form {
        Form::Files(layout) => {
            let validation = json!({
                "default_validation_context": checks,
                "validation_context_sds_secret_config": by_name(&name_of_authorities(ca), layout),
            });
            context.insert("combined_validation_context".to_owned(), validation);
        }
        Form::Inline => {
            checks.insert("trusted_ca".to_owned(), json!({ "filename": ca.path }));
            context.insert("validation_context".to_owned(), checks.into());
        }
    }
}

/// All secrets of a plan by name, each as a response of discovery.
pub(super) fn all(plan: &Plan, form: Secrets) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for pair in plan.certificates() {
        let name = name_of(pair);
        let mut made = certificate(pair, form);
        if let (Secrets::Named, Some(made)) = (form, made.as_object_mut()) {
            made.insert("watched_directory".to_owned(), folder(&pair.certificate));
        }
        let secret = json!({ "name": name, "tls_certificate": made });
        all.insert(name, discovery_response(vec![secret], MESSAGE));
    }
    for ca in plan.authorities() {
        let name = name_of_authorities(ca);
        let mut context = Map::new();
        context.insert("trusted_ca".to_owned(), data(ca, form));
        if form == Secrets::Named {
            context.insert("watched_directory".to_owned(), folder(ca));
        }
        let secret = json!({ "name": name, "validation_context": context });
        all.insert(name, discovery_response(vec![secret], MESSAGE));
    }
    all
}

/// A `TlsCertificate`.
fn certificate(pair: &Certificate, form: Secrets) -> Value {
    let mut made = Map::new();
    made.insert(
        "certificate_chain".to_owned(),
        data(&pair.certificate, form),
    );
    made.insert("private_key".to_owned(), data(&pair.private_key, form));
    Value::Object(made)
}

fn data(pem: &Pem, form: Secrets) -> Value {
    match form {
        Secrets::Copied => json!({ "inline_string": &*pem.text }),
        Secrets::Named => json!({ "filename": pem.path }),
    }
}

fn folder(pem: &Pem) -> Value {
    let folder = Path::new(&pem.path).parent().unwrap_or(Path::new("/"));
    json!({ "path": folder.to_string_lossy() })
}

/// An `SdsSecretConfig`.
fn by_name(name: &str, layout: &Layout) -> Value {
    json!({ "name": name, "sds_config": source(layout, &secret_file(name)) })
}

fn name_of(pair: &Certificate) -> String {
    name(&pair.certificate.path, &pair.private_key.path)
}

fn name_of_authorities(ca: &Pem) -> String {
    name(&ca.path, "authorities")
}

/// A name that people recognize in Envoy's statistics, and that is a file's: `shop-1f2e3d4c`.
fn name(path: &str, other: &str) -> String {
    const LONGEST: usize = 40;
    let digest = Sha256::digest(format!("{path}\0{other}"));
    let mark = digest
        .iter()
        .take(4)
        .fold(0_u32, |mark, byte| mark << 8 | u32::from(*byte));
    let stem = Path::new(path).file_stem().unwrap_or_default();
    let stem: String = (stem.to_string_lossy().chars().take(LONGEST))
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' => c,
            _ => '_',
        })
        .collect();
    format!("{stem}-{mark:08x}")
}
