//! TLS: the PEM files of certificates, private keys and authorities.
//!
//! A pair that Envoy would refuse is a problem here, so that it is told with its place, and before anything is handed
//! over. What Envoy serves and clients refuse (expired, a chain in the wrong order, a host without a certificate) is a
//! warning: a start must not fail because a certificate has expired.
//!
//! The trap: programs that renew certificates write two files, one after the other. Between them the pair does not belong
//! together; it is refused, and the one before goes on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use outrider_yaml::{Field, Located, Location};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::time::ASN1Time;

use super::projects::Project;
use super::{Context, Origin};
use crate::model::{self, Text};
use crate::plan::{Certificate, ClientVerification, ListenerTls, Pem};

/// Less time than this until a certificate expires is a warning, if it is also less than a third of its life.
const SOON: i64 = 14 * DAY;
const DAY: i64 = 24 * 60 * 60;
/// Hosts that one warning names.
const NAMED: usize = 5;
const SUPPORTED: &str =
    "Envoy serves RSA of 2048 bits or more, and ECDSA on P-256, P-384 and P-521";

/// The DNS names in the certificates of a TLS listener.
pub(super) struct Served {
    origin: Origin,
    location: Location,
    listener: String,
    names: BTreeSet<String>,
}

/// The kinds of keys that Envoy serves. Two certificates with the same names are both of use if theirs differ: a client
/// may understand only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyKind {
    Rsa,
    Ecdsa,
}

/// What an own certificate is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// DNS names, in lower case.
    names: BTreeSet<String>,
    kind: KeyKind,
}

/// TLS of the listener `name`.
pub(super) fn of_listener(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &str,
    tls: &Located<model::ListenerTls>,
) -> Option<ListenerTls> {
    let value = &tls.value;
    if let Some(location) = value.client_certificate.location()
        && value.client_ca.is_missing()
    {
        context.problem(
            origin,
            location,
            "`client_certificate` needs the authorities that clients' certificates are verified with",
            "add `client_ca:` with their PEM file, or remove the key",
        );
    }
    let certificates = certificates(context, origin, name, tls);
    let clients = value.client_ca.get().map(|ca| ClientVerification {
        ca: authorities(context, origin, ca),
        certificate: value
            .client_certificate
            .value()
            .copied()
            .unwrap_or_default(),
    });
    Some(ListenerTls {
        certificates: certificates?,
        clients,
    })
}

/// A listener's certificates, of whichever form; `None`: something is wrong.
fn certificates(
    context: &mut Context<'_>,
    origin: &Origin,
    listener: &str,
    tls: &Located<model::ListenerTls>,
) -> Option<Vec<Certificate>> {
    let value = &tls.value;
    let mut pairs = Vec::new();
    if let Some(list) = value.certificates.get() {
        let single = [value.certificate.location(), value.private_key.location()];
        for location in single.into_iter().flatten() {
            context.problem(
                origin,
                location,
                "there is one certificate here, and a list of them in `certificates`",
                "move it to the top of the list",
            );
        }
        if list.value.is_empty() {
            context.problem(
                origin,
                list.location,
                "`certificates` is empty",
                "name at least one, with `certificate` and `private_key`",
            );
        }
        for item in list.value.iter().filter_map(Field::get) {
            let fields = (&item.value.certificate, &item.value.private_key);
            pairs.push((item.location, "the certificate", fields));
        }
    } else {
        let fields = (&value.certificate, &value.private_key);
        pairs.push((tls.location, "the listener's `tls`", fields));
    }
    let mut all = Vec::new();
    let mut known: Vec<(Location, Identity)> = Vec::new();
    let mut is_complete = !pairs.is_empty();
    for (location, what, (chain, key)) in pairs {
        let chain = context.required(origin, location, what, "certificate", chain);
        let key = context.required(origin, location, what, "private_key", key);
        let (Some(chain), Some(key)) = (chain, key) else {
            is_complete = false;
            continue;
        };
        let (made, identity) = certificate(context, origin, chain, key);
        all.push(made);
        let Some(identity) = identity else { continue };
        if let Some((before, _)) = known.iter().find(|(_, other)| *other == identity) {
            context.warn(
                origin,
                chain.location,
                format!(
                    "this certificate is never served: the one on line {} is for the same names",
                    before.line
                ),
                "remove one of them",
            );
        }
        known.push((chain.location, identity));
    }
    if is_complete && known.len() == all.len() {
        context.served.push(Served {
            origin: origin.clone(),
            location: tls.location,
            listener: listener.to_owned(),
            names: known
                .into_iter()
                .flat_map(|(_, identity)| identity.names)
                .collect(),
        });
    }
    is_complete.then_some(all)
}

/// A certificate with its key, and what it is for, if that can be told.
pub(super) fn certificate(
    context: &mut Context<'_>,
    origin: &Origin,
    chain: &Located<Text>,
    key: &Located<Text>,
) -> (Certificate, Option<Identity>) {
    let (chain_file, chain_pem) = read(context, origin, chain);
    let (key_file, key_pem) = read(context, origin, key);
    let ders = chain_pem
        .as_ref()
        .and_then(|pem| chain_of(context, origin, chain.location, &chain_file, pem));
    let private = key_pem
        .as_ref()
        .and_then(|pem| private_key(context, origin, key.location, &key_file, pem));
    let parsed = ders
        .as_deref()
        .and_then(|ders| parse_all(context, origin, chain.location, &chain_file, ders));
    let identity = parsed.as_deref().and_then(|parsed| {
        let leaf = parsed.first()?;
        let kind = match kind(leaf) {
            Ok(kind) => kind,
            Err(what) => {
                context.problem(
                    origin,
                    chain.location,
                    format!("the certificate in `{chain_file}` has {what}"),
                    SUPPORTED,
                );
                return None;
            }
        };
        if let Some(private) = &private {
            let place = (chain_file.as_str(), key_file.as_str());
            belongs(context, origin, key.location, place, parsed, private)?;
        }
        warn_of_order(context, origin, chain.location, &chain_file, parsed);
        for (position, certificate) in parsed.iter().enumerate() {
            let what = match position {
                0 => format!("the certificate in `{chain_file}`"),
                _ => format!("certificate {position} of the chain in `{chain_file}`, from 0,"),
            };
            warn_of_time(context, origin, chain.location, &what, certificate);
        }
        Some(Identity {
            names: names(leaf),
            kind,
        })
    });
    let made = Certificate {
        certificate: file(context, chain_file, chain_pem),
        private_key: file(context, key_file, key_pem),
    };
    (made, identity)
}

/// A file of authorities.
pub(super) fn authorities(context: &mut Context<'_>, origin: &Origin, ca: &Located<Text>) -> Pem {
    let (path, pem) = read(context, origin, ca);
    if let Some(pem) = &pem
        && let Some(ders) = chain_of(context, origin, ca.location, &path, pem)
        && let Some(parsed) = parse_all(context, origin, ca.location, &path, &ders)
    {
        // A bundle with an old authority among many is no news.
        if let [only] = &*parsed {
            let what = format!("the authority in `{path}`");
            warn_of_time(context, origin, ca.location, &what, only);
        }
    }
    file(context, path, pem)
}

/// Warns of hosts that a TLS listener has no certificate for.
pub(super) fn warn_of_missing_names(context: &mut Context<'_>, projects: &[Project]) {
    for served in std::mem::take(&mut context.served) {
        let missing: Vec<&str> = projects
            .iter()
            .flat_map(|project| &project.hosts)
            .map(String::as_str)
            .filter(|host| !is_covered(host, &served.names))
            .collect();
        let Some(first) = missing.first() else {
            continue;
        };
        let hosts = match missing.len() {
            1 => format!("the host `{first}`"),
            count => {
                let listed: Vec<String> = missing
                    .iter()
                    .take(NAMED)
                    .map(|host| format!("`{host}`"))
                    .collect();
                let more = if count > NAMED { ", …" } else { "" };
                format!("{count} hosts of projects: {}{more}", listed.join(", "))
            }
        };
        let has: Vec<&str> = served
            .names
            .iter()
            .take(NAMED)
            .map(String::as_str)
            .collect();
        let has = match &*has {
            [] => "there is no DNS name in it".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        context.warn(
            &served.origin,
            served.location,
            format!(
                "the listener `{}` has no certificate for {hosts}; {has}",
                served.listener
            ),
            "add it to `certificates`, if clients connect to that host here",
        );
    }
}

/// Whether a certificate with one of these names is for a host, or a pattern of hosts, of a project.
fn is_covered(host: &str, names: &BTreeSet<String>) -> bool {
    // Which names there are is not known, or clients ask for no name.
    if host == "*" || host.ends_with('*') || host.parse::<IpAddr>().is_ok() {
        return true;
    }
    let host = host.to_lowercase();
    let any_first_label = host.split_once('.').map(|(_, rest)| format!("*.{rest}"));
    names.contains(&host) || any_first_label.is_some_and(|name| names.contains(&name))
}

/// Reads a PEM file; its path as the user would write it, and its content.
fn read(
    context: &mut Context<'_>,
    origin: &Origin,
    text: &Located<Text>,
) -> (String, Option<String>) {
    let path = origin.join(&text.value.0);
    let content = match context.loader.read(&path) {
        Ok(content) if content.contains("-----BEGIN ") => Some(content),
        Ok(_) => {
            context.problem(
                origin,
                text.location,
                format!("`{path}` is no PEM file"),
                "name a file with a line `-----BEGIN ...-----`",
            );
            None
        }
        Err(why) => {
            context.problem(
                origin,
                text.location,
                format!("`{path}` cannot be read: {why}"),
                "paths are relative to the file that names them",
            );
            None
        }
    };
    (path, content)
}

fn file(context: &mut Context<'_>, path: String, text: Option<String>) -> Pem {
    let absolute = context.loader.absolute(&path);
    context.files.push(path);
    Pem {
        path: absolute,
        text: Arc::from(text.unwrap_or_default()),
    }
}

/// The certificates of a PEM file; `None`: there are none, which is told.
fn chain_of(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    path: &str,
    text: &str,
) -> Option<Vec<CertificateDer<'static>>> {
    let (message, mend) =
        match CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>() {
            Ok(ders) if !ders.is_empty() => return Some(ders),
            Ok(_) if text.contains(" PRIVATE KEY-----") => (
                format!("`{path}` has a private key and no certificate"),
                "name the file of the certificate; the two may be swapped",
            ),
            Ok(_) => (
                format!("`{path}` has no certificate"),
                "name a file with a line `-----BEGIN CERTIFICATE-----`",
            ),
            Err(why) => malformed(path, &why),
        };
    context.problem(origin, location, message, mend);
    None
}

fn malformed(path: &str, why: &pem::Error) -> (String, &'static str) {
    let why = match why {
        pem::Error::MissingSectionEnd { .. } => "its last line `-----END ...-----` is missing",
        pem::Error::Base64Decode(_) => "what is between its lines `-----` is no Base64",
        _ => "its lines `-----BEGIN ...-----` and `-----END ...-----` do not fit",
    };
    (
        format!("`{path}` is no right PEM file: {why}"),
        "write the file again; it may be cut off",
    )
}

fn private_key(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    path: &str,
    text: &str,
) -> Option<PrivateKeyDer<'static>> {
    let is_encrypted = text.contains("-----BEGIN ENCRYPTED PRIVATE KEY-----")
        || text.contains("Proc-Type: 4,ENCRYPTED");
    let (message, mend) = if is_encrypted {
        (
            format!("the private key in `{path}` is encrypted"),
            "write it without a password (`openssl pkey -in KEY -out FILE`), readable by the gateway's user only",
        )
    } else {
        match PrivateKeyDer::from_pem_slice(text.as_bytes()) {
            Ok(key) => return Some(key),
            Err(pem::Error::NoItemsFound) if text.contains("-----BEGIN CERTIFICATE-----") => (
                format!("`{path}` has a certificate and no private key"),
                "name the file of the private key; the two may be swapped",
            ),
            Err(pem::Error::NoItemsFound) => (
                format!("`{path}` has no private key"),
                "name a file with a line `-----BEGIN PRIVATE KEY-----`",
            ),
            Err(why) => malformed(path, &why),
        }
    };
    context.problem(origin, location, message, mend);
    None
}

fn parse_all<'d>(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    path: &str,
    ders: &'d [CertificateDer<'static>],
) -> Option<Vec<X509Certificate<'d>>> {
    let mut all = Vec::new();
    for (position, der) in ders.iter().enumerate() {
        let Ok((_, certificate)) = X509Certificate::from_der(der) else {
            context.problem(
                origin,
                location,
                format!("certificate {position}, from 0, in `{path}` is none in X.509"),
                "write the file again; it may be damaged",
            );
            return None;
        };
        all.push(certificate);
    }
    Some(all)
}

/// The kind of a certificate's key; the error says what it is where Envoy does not serve it.
fn kind(certificate: &X509Certificate<'_>) -> Result<KeyKind, String> {
    let key = certificate.public_key();
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) if rsa.key_size() >= 2048 => Ok(KeyKind::Rsa),
        Ok(PublicKey::RSA(rsa)) => Err(format!("an RSA key of {} bits", rsa.key_size())),
        Ok(PublicKey::EC(_)) => {
            let curve = key
                .algorithm
                .parameters
                .as_ref()
                .and_then(|parameters| parameters.as_oid().ok());
            let is_served = [
                oid_registry::OID_EC_P256,
                oid_registry::OID_NIST_EC_P384,
                oid_registry::OID_NIST_EC_P521,
            ]
            .iter()
            .any(|known| curve.as_ref() == Some(known));
            if is_served {
                Ok(KeyKind::Ecdsa)
            } else {
                Err("a key on another elliptic curve".to_owned())
            }
        }
        _ => Err("a key that is neither RSA nor ECDSA".to_owned()),
    }
}

/// Tells whether the key is that of the first certificate; `None`: it is not.
fn belongs(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    (chain_file, key_file): (&str, &str),
    chain: &[X509Certificate<'_>],
    key: &PrivateKeyDer<'_>,
) -> Option<()> {
    let leaf = chain.first()?;
    let signing = any_supported_type(key).ok();
    let Some(public) = signing.as_ref().and_then(|key| key.public_key()) else {
        // The library that compares knows fewer kinds than Envoy; Envoy compares, too.
        let is_other = match leaf.public_key().parsed() {
            Ok(PublicKey::RSA(rsa)) => rsa.key_size() > 4096,
            Ok(PublicKey::EC(point)) => point.key_size() > 384,
            _ => false,
        };
        if is_other {
            return Some(());
        }
        context.problem(
            origin,
            location,
            format!("`{key_file}` has no private key that can be read"),
            "write the file again, as PKCS #8 (`openssl pkey -in KEY -out FILE`)",
        );
        return None;
    };
    let place = (chain.iter()).position(|other| other.public_key().raw == &*public);
    match place {
        Some(0) => Some(()),
        Some(position) => {
            context.problem(
                origin,
                location,
                format!(
                    "the certificate of the key `{key_file}` is number {position}, from 0, in `{chain_file}`"
                ),
                "put it first, and those of the authorities behind it",
            );
            None
        }
        None => {
            context.problem(
                origin,
                location,
                format!("the private key `{key_file}` does not belong to `{chain_file}`"),
                "name the key that the certificate was made for; if it was renewed, replace both files",
            );
            None
        }
    }
}

/// Each certificate is signed by the one that follows; most clients take any order, some do not.
fn warn_of_order(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    path: &str,
    chain: &[X509Certificate<'_>],
) {
    for (position, pair) in chain.windows(2).enumerate() {
        if let [certificate, next] = pair
            && certificate.issuer() != next.subject()
        {
            context.warn(
                origin,
                location,
                format!(
                    "the chain in `{path}` is broken: certificate {position}, from 0, is issued by `{}`, and the next is `{}`",
                    certificate.issuer(),
                    next.subject()
                ),
                "behind the certificate, list its authority, then that one's",
            );
            return;
        }
    }
}

fn warn_of_time(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    what: &str,
    certificate: &X509Certificate<'_>,
) {
    let now = context.loader.now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let validity = certificate.validity();
    let (from, until) = (
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    );
    let left = until.saturating_sub(now);
    let (message, mend) = if left < 0 {
        (
            format!("{what} expired on {}", day(validity.not_after)),
            "renew it: clients refuse it",
        )
    } else if from > now {
        (
            format!("{what} is valid only from {}", day(validity.not_before)),
            "check the machine's clock; clients refuse it until then",
        )
    } else if left < SOON && left < until.saturating_sub(from) / 3 {
        let days = left / DAY;
        let unit = if days == 1 { "day" } else { "days" };
        (
            format!(
                "{what} expires in {days} {unit}, on {}",
                day(validity.not_after)
            ),
            "renew it; files that are replaced are served at once",
        )
    } else {
        return;
    };
    context.warn(origin, location, message, mend);
}

fn day(time: ASN1Time) -> String {
    time.to_datetime().date().to_string()
}

/// The DNS names of a certificate; without any, its common name, as Envoy has it.
fn names(certificate: &X509Certificate<'_>) -> BTreeSet<String> {
    use x509_parser::extensions::GeneralName;
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let dns: BTreeSet<String> = alternative
        .iter()
        .flat_map(|names| &names.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_lowercase()),
            _ => None,
        })
        .collect();
    if !dns.is_empty() {
        return dns;
    }
    let common = certificate.subject().iter_common_name();
    common
        .filter_map(|name| Some(name.as_str().ok()?.to_lowercase()))
        .collect()
}
