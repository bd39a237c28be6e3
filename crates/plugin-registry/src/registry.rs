//! One repository of an OCI registry: tokens, manifests, blobs, referrers.
//!
//! The trap: a registry names other servers (redirects, token realms, upload locations). None of them gets credentials but
//! the registry itself and, for a token, the token server that the user named.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use outrider_plugin_formats::{RegistrySettings, is_digest};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use ureq::http::Method;

use crate::credentials::{self, Credentials};
use crate::digest_of;
use crate::error::{FetchError, Kind};
use crate::http::{
    Answer, Http, Request, authority, is_loopback, parse, resolve, shown, status_error,
};

/// Bytes of a manifest, an index, or an answer of a token server.
pub(crate) const LARGEST_MANIFEST: u64 = 4 * 1024 * 1024;
/// Manifests that can be read.
const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json";

/// Registries whose token server is another host of theirs: registry, token server.
const KNOWN_TOKEN_SERVERS: [(&str, &str); 2] = [
    ("registry-1.docker.io", "auth.docker.io"),
    ("registry.gitlab.com", "gitlab.com"),
];

/// A manifest or index, as the registry sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) bytes: Vec<u8>,
    /// Of `bytes`.
    pub(crate) digest: String,
}

/// What a session may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Pull,
    Push,
}

/// A repository.
pub(crate) struct Repository<'h, 'p> {
    http: &'h Http<'p>,
    /// Host and port that are dialled.
    host: String,
    name: String,
    base: String,
    settings: RegistrySettings,
    docker: Option<PathBuf>,
    access: Access,
    /// Why credentials were not sent, for a 401 that follows.
    withheld: RefCell<Option<String>>,
}

/// Whether HTTP is spoken with a host without TLS.
pub(crate) fn is_plain(host: &str, settings: &RegistrySettings) -> bool {
    settings
        .plain_http
        .unwrap_or_else(|| settings.ca.is_none() && is_loopback(host))
}

impl<'h, 'p> Repository<'h, 'p> {
    pub(crate) fn new(
        http: &'h Http<'p>,
        host: &str,
        name: &str,
        settings: RegistrySettings,
        docker: Option<&Path>,
        access: Access,
    ) -> Self {
        let host = match host {
            "docker.io" | "index.docker.io" => "registry-1.docker.io",
            host => host,
        };
        let scheme = if is_plain(host, &settings) {
            "http"
        } else {
            "https"
        };
        Self {
            http,
            host: host.to_owned(),
            name: name.to_owned(),
            base: format!("{scheme}://{host}/v2/{name}"),
            settings,
            docker: docker.map(Path::to_owned),
            access,
            withheld: RefCell::new(None),
        }
    }

    /// Host and port.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    fn request<'b>(&self, method: Method, url: String, body: &'b [u8]) -> Request<'b> {
        Request {
            method,
            url,
            headers: Vec::new(),
            body,
            authorization: None,
            ca: self.settings.ca.as_ref().map(PathBuf::from),
            named_by: None,
        }
    }

    /// Sends a request; after a 401 once more, with a token or credentials.
    fn send(&self, mut request: Request<'_>) -> Result<Answer, FetchError> {
        let key = format!("{:?} {}", self.access, self.base);
        request.authorization = self.http.accepted(&key);
        let answer = self.http.send(&request)?;
        if answer.status != 401 {
            return Ok(answer);
        }
        if answer.host != self.host {
            return Err(FetchError::new(format!(
                "{}, to which {} redirects, asks for credentials, which are sent to {} only",
                answer.host, self.host, self.host
            )));
        }
        let challenge = answer.header("www-authenticate").map(str::to_owned);
        drop(answer);
        let authorization = self.authenticate(challenge.as_deref().unwrap_or_default())?;
        if authorization.is_none() && request.authorization.is_none() {
            return Err(self.refused());
        }
        request.authorization = authorization;
        let answer = self.http.send(&request)?;
        if answer.status == 401 {
            return Err(self.refused());
        }
        if let Some(authorization) = request.authorization {
            self.http.accept(&key, authorization);
        }
        Ok(answer)
    }

    /// The error of a 401 that no credentials help against.
    fn refused(&self) -> FetchError {
        let host = &self.host;
        if let Some(withheld) = self.withheld.borrow().as_ref() {
            return FetchError::new(format!("{host} refuses `{}` (401), and {withheld}", self.name))
                .mend(format!(
                    "if that token server belongs to the registry, name it: `registries: {{\"{host}\": {{token_server: …}}}}`"
                ));
        }
        let found = credentials::for_host(host, &self.settings, self.docker.as_deref());
        match found {
            Ok(Some((_, origin))) => FetchError::new(format!(
                "{host} refuses `{}` (401) to the credentials of {origin}",
                self.name
            ))
            .mend("renew them, or ask for access"),
            Ok(None) => FetchError::new(format!(
                "{host} asks for credentials for `{}` (401), and there are none",
                self.name
            ))
            .mend(format!(
                "`docker login {host}`, or `registries: {{\"{host}\": {{username: …, password: …}}}}`"
            )),
            Err(error) => error,
        }
    }

    /// Answers a challenge; `None` if there is nothing to answer it with.
    fn authenticate(&self, challenge: &str) -> Result<Option<String>, FetchError> {
        let found = credentials::for_host(&self.host, &self.settings, self.docker.as_deref())?;
        let found = found.map(|(credentials, _)| credentials);
        if let Some(Credentials::Bearer(token)) = &found {
            return Ok(Some(format!("Bearer {token}")));
        }
        let challenge = Challenge::read(challenge);
        match challenge.scheme.as_str() {
            "basic" => Ok(match found {
                Some(Credentials::Basic(user, password)) => {
                    Some(Credentials::basic_header(&user, &password))
                }
                _ => None,
            }),
            "bearer" => self.token(&challenge, found).map(Some),
            other => Err(FetchError::new(format!(
                "{} asks for authentication by `{other}`, which is not there",
                self.host
            ))),
        }
    }

    /// Gets a token from the server that a challenge names.
    fn token(
        &self,
        challenge: &Challenge,
        found: Option<Credentials>,
    ) -> Result<String, FetchError> {
        let realm = challenge.parameter("realm").unwrap_or_default();
        let uri =
            parse(realm).map_err(|error| error.context(format!("{}: token realm", self.host)))?;
        let server = authority(&uri);
        if self.base.starts_with("https://") && uri.scheme_str() != Some("https") {
            return Err(FetchError::new(format!(
                "{} names the token server {}, which is not encrypted",
                self.host,
                shown(realm)
            )));
        }
        let is_trusted = server == self.host
            || self.settings.token_server.as_deref() == Some(server.as_str())
            || KNOWN_TOKEN_SERVERS.contains(&(self.host.as_str(), server.as_str()));
        let found = found.filter(|_| {
            if !is_trusted {
                self.withheld.replace(Some(format!(
                    "its token server is {server}, another host, to which no credentials are sent"
                )));
            }
            is_trusted
        });
        let actions = match self.access {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        };
        let scope = format!("repository:{}:{actions}", self.name);
        let service = challenge.parameter("service").unwrap_or_default();
        let named_by = (server != self.host).then(|| {
            let host = parse(&self.base).ok();
            host.and_then(|uri| uri.host().map(str::to_owned))
                .unwrap_or_default()
        });
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let form;
        let mut request = if let Some(Credentials::Identity(token)) = &found {
            form = format!(
                "grant_type=refresh_token&client_id=outrider&service={}&scope={}&refresh_token={}",
                encoded(service),
                encoded(&scope),
                encoded(token)
            );
            let mut request = self.request(Method::POST, realm.to_owned(), form.as_bytes());
            let kind = "application/x-www-form-urlencoded".to_owned();
            request.headers.push(("content-type", kind));
            request
        } else {
            let separator = if realm.contains('?') { '&' } else { '?' };
            let url = format!(
                "{realm}{separator}service={}&scope={}",
                encoded(service),
                encoded(&scope)
            );
            self.request(Method::GET, url, &[])
        };
        if let Some(Credentials::Basic(user, password)) = &found {
            request.authorization = Some(Credentials::basic_header(user, password));
        }
        if server != self.host {
            request.ca = None;
        }
        request.named_by = named_by;
        let answer = self.http.send(&request)?;
        if answer.status != 200 {
            let is_refusal = matches!(answer.status, 401 | 403);
            let error = status_error(&answer, &format!("a token for `{}`", self.name));
            return Err(if is_refusal { self.refused() } else { error });
        }
        let bytes = answer.bytes(LARGEST_MANIFEST)?;
        let token: Option<Token> = serde_json::from_slice(&bytes).ok();
        token
            .and_then(|token| token.token.or(token.access_token))
            .filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()))
            .map(|token| format!("Bearer {token}"))
            .ok_or_else(|| FetchError::new(format!("the token server {server} sent no token")))
    }

    /// Gets the manifest or index of a tag or digest.
    pub(crate) fn manifest(&self, reference: &str) -> Result<Manifest, FetchError> {
        self.http.retry(|| self.manifest_once(reference))
    }

    fn manifest_once(&self, reference: &str) -> Result<Manifest, FetchError> {
        let url = format!("{}/manifests/{reference}", self.base);
        let mut request = self.request(Method::GET, url, &[]);
        request.headers.push(("accept", ACCEPTED.to_owned()));
        let answer = self.send(request)?;
        let what = format!("`{}:{reference}`", self.name);
        if answer.status != 200 {
            return Err(status_error(&answer, &what));
        }
        let announced = answer.header("docker-content-digest").map(str::to_owned);
        let bytes = answer.bytes(LARGEST_MANIFEST)?;
        let digest = digest_of(&bytes);
        let expected = if is_digest(reference) {
            Some(reference.to_owned())
        } else {
            announced.filter(|digest| is_digest(digest))
        };
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            return Err(FetchError::new(format!(
                "the manifest of {what} from {} has another digest: expected {expected}, found {digest}",
                self.host
            )));
        }
        Ok(Manifest { bytes, digest })
    }

    /// Hands the bytes of a blob to `sink`, which is made anew for each try and checks digest and size.
    pub(crate) fn blob<S>(
        &self,
        digest: &str,
        limit: u64,
        what: &str,
        mut start: impl FnMut() -> Result<S, FetchError>,
        write: impl Fn(&mut S, &[u8]) -> Result<(), FetchError>,
    ) -> Result<S, FetchError> {
        let progress = self.http.progress();
        self.http.retry(|| {
            let url = format!("{}/blobs/{digest}", self.base);
            let answer = self.send(self.request(Method::GET, url, &[]))?;
            if answer.status != 200 {
                return Err(status_error(&answer, what));
            }
            let mut sink = start()?;
            answer.copy(limit, what, progress, &mut |piece| write(&mut sink, piece))?;
            Ok(sink)
        })
    }

    /// Manifests that name `digest` as their subject, of an artifact type: from the referrers API, or where the registry
    /// has none, from the tag `sha256-HEX`. Newest last, at most 64.
    pub(crate) fn referrers(&self, digest: &str) -> Result<Vec<Referrer>, FetchError> {
        let url = format!("{}/referrers/{digest}", self.base);
        let bytes = self.http.retry(|| {
            let mut request = self.request(Method::GET, url.clone(), &[]);
            let kind = "application/vnd.oci.image.index.v1+json".to_owned();
            request.headers.push(("accept", kind));
            let answer = self.send(request)?;
            match answer.status {
                200 => answer.bytes(LARGEST_MANIFEST).map(Some),
                // Some registries do not know the path at all.
                400 | 404 | 405 => Ok(None),
                _ => Err(status_error(&answer, "referrers")),
            }
        })?;
        let mut found = Vec::new();
        if let Some(index) = bytes.and_then(|bytes| serde_json::from_slice::<Index>(&bytes).ok()) {
            found.extend(index.manifests);
        }
        // Registries that got the API later still have older signatures under the tag.
        match self.manifest(&referrers_tag(digest)) {
            Ok(tagged) => {
                let index = serde_json::from_slice::<Index>(&tagged.bytes);
                found.extend(index.map(|index| index.manifests).unwrap_or_default());
            }
            Err(error) if error.kind == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
        found.retain(|referrer| is_digest(&referrer.digest));
        let mut seen = std::collections::BTreeSet::new();
        found.retain(|referrer| seen.insert(referrer.digest.clone()));
        let excess = found.len().saturating_sub(MOST_REFERRERS);
        found.drain(..excess);
        Ok(found)
    }

    /// Stores a blob, unless the registry has it.
    pub(crate) fn push_blob(&self, bytes: &[u8]) -> Result<(), FetchError> {
        let digest = digest_of(bytes);
        self.http.retry(|| {
            let url = format!("{}/blobs/{digest}", self.base);
            if self.send(self.request(Method::HEAD, url, &[]))?.status == 200 {
                return Ok(());
            }
            let url = format!("{}/blobs/uploads/", self.base);
            let answer = self.send(self.request(Method::POST, url.clone(), &[]))?;
            if answer.status != 202 {
                return Err(status_error(&answer, "an upload"));
            }
            let location = answer.header("location").unwrap_or_default();
            let target = resolve(&parse(&url)?, location)?;
            let uri = parse(&target)?;
            if authority(&uri) != self.host || uri.scheme_str() != parse(&self.base)?.scheme_str() {
                return Err(FetchError::new(format!(
                    "{} wants the upload at {}, another host",
                    self.host,
                    shown(&target)
                )));
            }
            drop(answer);
            let separator = if target.contains('?') { '&' } else { '?' };
            let digest = digest.replace(':', "%3A");
            let target = format!("{target}{separator}digest={digest}");
            let mut request = self.request(Method::PUT, target, bytes);
            let kind = "application/octet-stream".to_owned();
            request.headers.push(("content-type", kind));
            let answer = self.send(request)?;
            match answer.status {
                201 => Ok(()),
                _ => Err(status_error(&answer, "an upload")),
            }
        })
    }

    /// Stores a manifest under a tag or its digest. Returns whether the registry says that it keeps referrers.
    pub(crate) fn push_manifest(
        &self,
        reference: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Result<bool, FetchError> {
        self.http.retry(|| {
            let url = format!("{}/manifests/{reference}", self.base);
            let mut request = self.request(Method::PUT, url, bytes);
            request
                .headers
                .push(("content-type", media_type.to_owned()));
            let answer = self.send(request)?;
            match answer.status {
                200..=202 => Ok(answer.header("oci-subject").is_some()),
                _ => Err(status_error(
                    &answer,
                    &format!("the manifest `{reference}`"),
                )),
            }
        })
    }
}

/// Answer of a token server.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// Referrers that are looked at.
const MOST_REFERRERS: usize = 64;

/// The tag under which a registry without the referrers API keeps an index of them.
pub(crate) fn referrers_tag(digest: &str) -> String {
    digest.replace(':', "-")
}

#[derive(Debug, Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Referrer>,
}

/// An entry of an index of referrers.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Referrer {
    pub(crate) digest: String,
}

/// `WWW-Authenticate`.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    /// In lower case.
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    fn read(text: &str) -> Self {
        let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let mut parameters = Vec::new();
        while let Some((name, value)) = rest.trim_start_matches([',', ' ']).split_once('=') {
            let (value, after) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
                None => value.split_once(',').unwrap_or((value, "")),
            };
            parameters.push((name.trim().to_ascii_lowercase(), value.to_owned()));
            rest = after;
        }
        Self {
            scheme: scheme.to_ascii_lowercase(),
            parameters,
        }
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_has_quoted_and_plain_parameters() {
        let read = Challenge::read(
            r#"Bearer realm="https://a.example/token",service="r, x",scope=repository:a:pull"#,
        );
        assert_eq!(read.scheme, "bearer");
        assert_eq!(read.parameter("realm"), Some("https://a.example/token"));
        assert_eq!(read.parameter("service"), Some("r, x"));
        assert_eq!(read.parameter("scope"), Some("repository:a:pull"));
        assert_eq!(Challenge::read("Basic").scheme, "basic");
        assert_eq!(Challenge::read("").scheme, "");
        assert_eq!(
            Challenge::read("Bearer realm=\"open").parameter("realm"),
            Some("open")
        );
    }

    #[test]
    fn only_loopback_is_plain_by_default() {
        let settings = RegistrySettings::default();
        for plain in [
            "localhost:5000",
            "127.0.0.1:5000",
            "[::1]:5000",
            "localhost",
        ] {
            assert!(is_plain(plain, &settings), "{plain}");
        }
        for encrypted in [
            "10.0.0.1:5000",
            "r.example",
            "localhost.example",
            "127.0.0.1.example",
        ] {
            assert!(!is_plain(encrypted, &settings), "{encrypted}");
        }
        let with_ca = RegistrySettings {
            ca: Some("ca.pem".to_owned()),
            ..RegistrySettings::default()
        };
        assert!(!is_plain("localhost:5000", &with_ca));
    }
}
