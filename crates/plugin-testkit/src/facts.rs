//! What a case says of the stream beyond its messages, and expects to be left of it: attributes, TLS,
//! metadata, filter state, the upstream's endpoint.
//!
//! Not for what a request or a response says already. The trap: no client makes a real Envoy believe
//! such facts, so a case with them runs on the scripted host alone ([`crate::Case::is_scripted`]).

use std::collections::BTreeMap;

use outrider_plugin_api::{Attribute, AttributeKind, MetadataSource};
use serde::Deserialize;
use serde_json::Value;

use crate::host::{Metadata, ScriptedHost};

/// Metadata by namespace and key.
type Namespaces = BTreeMap<String, BTreeMap<String, Value>>;

/// What is true of a stream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Facts {
    /// Attributes by Envoy's names: texts, numbers, truth values.
    pub attributes: BTreeMap<String, Value>,
    /// The connection is one of TLS; members as `envoy.connection.tls()` has them.
    pub tls: Option<BTreeMap<String, String>>,
    /// Metadata by `dynamic`, `route`, `cluster`, `host` or `locality`.
    pub metadata: BTreeMap<Source, Namespaces>,
    /// Filter state that other filters have set.
    pub filter_state: BTreeMap<String, String>,
}

/// Whose metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The stream's.
    Dynamic,
    /// The route's.
    Route,
    /// The upstream's.
    Cluster,
    /// That of the upstream's endpoint.
    Host,
    /// That of the endpoint's locality.
    Locality,
}

/// What a plugin has to leave on a stream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExpectedFacts {
    /// The stream's metadata by namespace and key; what is not said does not matter.
    pub metadata: Namespaces,
    /// Filter state.
    pub filter_state: BTreeMap<String, String>,
    /// The upstream's endpoint that it chose.
    pub override_host: Option<String>,
}

/// A member of `envoy.connection.tls()` as an attribute.
fn tls_attribute(member: &str) -> Option<Attribute> {
    Some(match member {
        "version" => Attribute::ConnectionTlsVersion,
        "server_name" => Attribute::ConnectionRequestedServerName,
        "subject" => Attribute::ConnectionSubjectPeerCertificate,
        "uri_san" => Attribute::ConnectionUriSanPeerCertificate,
        "dns_san" => Attribute::ConnectionDnsSanPeerCertificate,
        "sha256" => Attribute::ConnectionSha256PeerCertificateDigest,
        "local_subject" => Attribute::ConnectionSubjectLocalCertificate,
        "local_uri_san" => Attribute::ConnectionUriSanLocalCertificate,
        "local_dns_san" => Attribute::ConnectionDnsSanLocalCertificate,
        _ => return None,
    })
}

fn metadata(value: &Value) -> Metadata {
    match value {
        Value::Null => Metadata::Null,
        Value::Bool(truth) => Metadata::Bool(*truth),
        Value::Number(number) => Metadata::Number(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => text.as_str().into(),
        Value::Array(values) => Metadata::List(values.iter().map(metadata).collect()),
        Value::Object(members) => Metadata::Map(
            members
                .iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), metadata(value)))
                .collect(),
        ),
    }
}

impl Facts {
    /// What is wrong with them: names that mean nothing, values of another kind than the attribute's.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, value) in &self.attributes {
            let Some(attribute) = Attribute::named(name) else {
                problems.push(format!("there is no attribute `{name}`"));
                continue;
            };
            let fits = match attribute.kind() {
                AttributeKind::String => value.is_string(),
                AttributeKind::Number => value.is_number(),
                AttributeKind::Bool => value.is_boolean(),
                AttributeKind::Hidden(_) => false,
            };
            if attribute.follows_from_headers() {
                problems.push(format!("the attribute `{name}` follows from the headers"));
            } else if !fits {
                problems.push(format!(
                    "the attribute `{name}` is {}",
                    match attribute.kind() {
                        AttributeKind::String => "a text",
                        AttributeKind::Number => "a number",
                        AttributeKind::Bool => "`true` or `false`",
                        AttributeKind::Hidden(_) => "not shown to plugins",
                    }
                ));
            }
        }
        for member in self.tls.iter().flat_map(BTreeMap::keys) {
            if tls_attribute(member).is_none() {
                problems.push(format!("TLS has no member `{member}`"));
            }
        }
        problems
    }

    /// Makes them true of a stream.
    pub(crate) fn apply(&self, host: &mut ScriptedHost) {
        if let Some(tls) = &self.tls {
            let presented = ["subject", "uri_san", "dns_san", "sha256"];
            let presented = presented.iter().any(|member| tls.contains_key(*member));
            host.set_attribute(Attribute::ConnectionMtls, presented);
            host.set_attribute(Attribute::ConnectionTlsVersion, "TLSv1.3");
            for (member, value) in tls {
                if let Some(attribute) = tls_attribute(member) {
                    host.set_attribute(attribute, value.as_str());
                }
            }
        }
        for (name, value) in &self.attributes {
            if let Some(attribute) = Attribute::named(name) {
                host.set_attribute(attribute, metadata(value));
            }
        }
        for (source, namespaces) in &self.metadata {
            let map = match source {
                Source::Dynamic => &mut host.dynamic_metadata,
                Source::Route => &mut host.route_metadata,
                Source::Cluster => host
                    .upstream_metadata
                    .entry(MetadataSource::Cluster)
                    .or_default(),
                Source::Host => host
                    .upstream_metadata
                    .entry(MetadataSource::Host)
                    .or_default(),
                Source::Locality => host
                    .upstream_metadata
                    .entry(MetadataSource::Locality)
                    .or_default(),
            };
            for (namespace, values) in namespaces {
                for (key, value) in values {
                    let place = (namespace.as_bytes().to_vec(), key.as_bytes().to_vec());
                    map.insert(place, metadata(value));
                }
            }
        }
        for (key, value) in &self.filter_state {
            host.filter_state
                .insert(key.as_bytes().to_vec(), value.as_bytes().to_vec());
        }
    }
}

impl ExpectedFacts {
    /// What differs: what, expected, got.
    pub(crate) fn differences(&self, host: &ScriptedHost) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        let mut compare = |what: String, expected: String, got: String| {
            if expected != got {
                found.push((what, expected, got));
            }
        };
        for (namespace, values) in &self.metadata {
            for (key, value) in values {
                let place = (namespace.as_bytes().to_vec(), key.as_bytes().to_vec());
                let got = host.dynamic_metadata.get(&place);
                compare(
                    format!("the metadata {namespace}: {key}"),
                    value.to_string(),
                    got.map_or_else(|| "nothing".to_owned(), |got| json(got).to_string()),
                );
            }
        }
        for (key, value) in &self.filter_state {
            let got = host.filter_state.get(key.as_bytes());
            compare(
                format!("the filter state {key}"),
                format!("{value:?}"),
                got.map_or_else(
                    || "nothing".to_owned(),
                    |got| format!("{:?}", String::from_utf8_lossy(got)),
                ),
            );
        }
        if let Some(expected) = &self.override_host {
            let got = host.override_host.as_ref();
            compare(
                "the upstream's endpoint".to_owned(),
                format!("{expected:?}"),
                got.map_or_else(
                    || "none chosen".to_owned(),
                    |(got, _)| format!("{:?}", String::from_utf8_lossy(got)),
                ),
            );
        }
        found
    }
}

/// Metadata as JSON; whole numbers are written as such.
fn json(value: &Metadata) -> Value {
    match value {
        Metadata::Null => Value::Null,
        Metadata::Bool(truth) => Value::Bool(*truth),
        Metadata::Number(number) if number.fract() == 0.0 && number.abs() < 1e15 => {
            Value::from(*number as i64)
        }
        Metadata::Number(number) => Value::from(*number),
        Metadata::String(text) => Value::from(String::from_utf8_lossy(text).into_owned()),
        Metadata::List(values) => values.iter().map(json).collect(),
        Metadata::Map(members) => members
            .iter()
            .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), json(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
    }
}
