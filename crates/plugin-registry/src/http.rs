//! One HTTP client for all servers of plugins: bounded, guarded, patient.
//!
//! Redirects are followed here and not by the HTTP library, because each of them decides what may be dialled
//! ([`crate::address`]) and who gets the credentials: the host that was asked first, and no other.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ureq::http::{HeaderMap, Method, Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Proxy};

use crate::address::{GuardedResolver, REFUSED, SeenZones, Zone};
use crate::error::{FetchError, Kind};

/// Tries of one operation, the first one included.
const TRIES: u32 = 5;
/// Time before the second try; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A server that asks for a longer pause is not asked again.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
const MOST_REDIRECTS: usize = 5;
/// Silence after which a server counts as slow.
const SILENCE: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(10);
/// Time for one whole body, in either direction.
const WHOLE_BODY: Duration = Duration::from_mins(5);
/// How often progress of a download is told.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Receives lines about what goes on, for people who wait.
pub trait Progress {
    /// One line.
    fn note(&self, line: &str);
}

/// Times of the client; tests use shorter ones.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Pause before the second try.
    pub first_pause: Duration,
    /// Silence after which a server counts as slow.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_pause: FIRST_PAUSE,
            silence: SILENCE,
        }
    }
}

/// The file of certificate authorities, whether private addresses are refused, and whether no proxy is used.
type AgentKey = (Option<PathBuf>, bool, bool);

/// The client.
pub(crate) struct Http<'p> {
    progress: &'p dyn Progress,
    patience: Patience,
    seen: SeenZones,
    agents: Mutex<BTreeMap<AgentKey, Agent>>,
    /// `Authorization` that servers accepted, by repository and access.
    accepted: Mutex<BTreeMap<String, String>>,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Request<'b> {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: &'b [u8],
    /// `Authorization`, for the host of `url` only.
    pub(crate) authorization: Option<String>,
    /// File of certificate authorities for the host of `url`.
    pub(crate) ca: Option<PathBuf>,
    /// A server that named this URL; if it is public, `url` has to be.
    pub(crate) named_by: Option<String>,
}

impl Request<'_> {
    pub(crate) fn get(url: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            url: url.into(),
            headers: Vec::new(),
            body: &[],
            authorization: None,
            ca: None,
            named_by: None,
        }
    }
}

/// An answer whose body is not read yet.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Host that answered, with its port if one is written.
    pub(crate) host: String,
    body: Body,
}

impl Answer {
    /// The text of a header; `None` if it is missing or no ASCII.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn length(&self) -> Option<u64> {
        self.header("content-length")?.parse().ok()
    }

    /// Reads a body of at most `limit` bytes.
    pub(crate) fn bytes(self, limit: u64) -> Result<Vec<u8>, FetchError> {
        let host = self.host.clone();
        if self.length().is_some_and(|length| length > limit) {
            return Err(too_large(&host, limit));
        }
        let mut bytes = Vec::new();
        let mut reader = self.body.into_reader();
        let read = reader.by_ref().take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|error| cut_off(&host, &error))?;
        if bytes.len() as u64 > limit {
            return Err(too_large(&host, limit));
        }
        Ok(bytes)
    }

    /// Hands a body of at most `limit` bytes to `sink`, in pieces.
    pub(crate) fn copy(
        self,
        limit: u64,
        what: &str,
        progress: &dyn Progress,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), FetchError>,
    ) -> Result<(), FetchError> {
        let host = self.host.clone();
        let length = self.length();
        if length.is_some_and(|length| length > limit) {
            return Err(too_large(&host, limit));
        }
        let mut reader = self.body.into_reader();
        let mut piece = vec![0; 64 * 1024];
        let (mut read, mut told) = (0_u64, Instant::now());
        loop {
            let count = reader.read(&mut piece);
            let count = count.map_err(|error| cut_off(&host, &error))?;
            if count == 0 {
                break;
            }
            read += count as u64;
            if read > limit {
                return Err(too_large(&host, limit));
            }
            sink(piece.get(..count).unwrap_or_default())?;
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                progress.note(&match length {
                    Some(length) => format!("{what}: {} of {}", size(read), size(length)),
                    None => format!("{what}: {}", size(read)),
                });
            }
        }
        if let Some(length) = length
            && length != read
        {
            let message = format!("{host} sent {read} bytes of {length}");
            return Err(FetchError::new(message).kind(Kind::Unavailable(None)));
        }
        Ok(())
    }
}

fn too_large(host: &str, limit: u64) -> FetchError {
    FetchError::new(format!("{host} sends more than {}, the limit", size(limit)))
}

fn cut_off(host: &str, error: &std::io::Error) -> FetchError {
    let message = format!("the answer of {host} broke off: {error}");
    FetchError::new(message).kind(Kind::Unavailable(None))
}

/// Bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    if bytes >= MIB {
        let tenths = bytes.saturating_mul(10) / MIB;
        format!("{}.{} MiB", tenths / 10, tenths % 10)
    } else if bytes >= 1024 {
        format!("{} KiB", bytes.div_ceil(1024))
    } else {
        format!("{bytes} bytes")
    }
}

impl<'p> Http<'p> {
    pub(crate) fn new(progress: &'p dyn Progress, patience: Patience) -> Self {
        Self {
            progress,
            patience,
            seen: SeenZones::default(),
            agents: Mutex::default(),
            accepted: Mutex::default(),
        }
    }

    pub(crate) fn progress(&self) -> &'p dyn Progress {
        self.progress
    }

    /// The `Authorization` that a server accepted for a repository and access.
    pub(crate) fn accepted(&self, repository: &str) -> Option<String> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.get(repository).cloned()
    }

    /// Keeps an `Authorization` for a repository and access.
    pub(crate) fn accept(&self, repository: &str, authorization: String) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.insert(repository.to_owned(), authorization);
    }

    /// Does `work` until it succeeds, fails for good, or was tried five times.
    pub(crate) fn retry<T>(
        &self,
        mut work: impl FnMut() -> Result<T, FetchError>,
    ) -> Result<T, FetchError> {
        let mut pause = self.patience.first_pause;
        for tried in 1.. {
            let error = match work() {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let Kind::Unavailable(asked) = error.kind else {
                return Err(error);
            };
            if asked.is_some_and(|asked| asked > LONGEST_PAUSE) || tried == TRIES {
                return Err(error);
            }
            let wait = asked.unwrap_or(pause).max(pause);
            self.progress.note(&format!(
                "{error}; trying again in {:.1} s ({} of {TRIES})",
                wait.as_secs_f64(),
                tried + 1
            ));
            thread::sleep(wait);
            pause *= 2;
        }
        Err(FetchError::new("nothing was tried"))
    }

    /// Sends a request once, and follows redirects of GET and HEAD. Statuses are the caller's.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Answer, FetchError> {
        let mut url = request.url.clone();
        let first = parse(&url)?;
        let first_host = authority(&first);
        let mut named_by = request.named_by.clone();
        for _ in 0..=MOST_REDIRECTS {
            let uri = parse(&url)?;
            let host = authority(&uri);
            let is_first = host == first_host && uri.scheme() == first.scheme();
            let answer = self.send_once(request, &uri, is_first, named_by.as_deref())?;
            let is_redirect = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let follows = matches!(request.method, Method::GET | Method::HEAD);
            let location = answer.headers().get("location");
            let Some(location) = location.filter(|_| is_redirect && follows) else {
                let status = answer.status().as_u16();
                let (parts, body) = answer.into_parts();
                return Ok(Answer {
                    status,
                    headers: parts.headers,
                    host,
                    body,
                });
            };
            let location = location.to_str().unwrap_or_default();
            let next = resolve(&uri, location)?;
            if uri.scheme_str() == Some("https") && !next.starts_with("https://") {
                return Err(FetchError::new(format!(
                    "{host} redirects to {}, which is not encrypted",
                    shown(&next)
                )));
            }
            named_by = named_by.or_else(|| uri.host().map(str::to_owned));
            url = next;
        }
        Err(FetchError::new(format!(
            "{first_host} redirects more than {MOST_REDIRECTS} times"
        )))
    }

    fn send_once(
        &self,
        request: &Request<'_>,
        uri: &Uri,
        is_first: bool,
        named_by: Option<&str>,
    ) -> Result<Response<Body>, FetchError> {
        let host = authority(uri);
        let only_public = named_by.is_some_and(|host| self.seen.of(host) == Zone::Public);
        // A proxy would reach its own loopback address, not this machine's.
        let is_direct = is_loopback(&host);
        let ca = request.ca.as_ref().filter(|_| is_first);
        let agent = self.agent(ca, only_public, is_direct)?;
        let mut built = ureq::http::Request::builder()
            .method(request.method.clone())
            .uri(uri.clone());
        for (name, value) in &request.headers {
            built = built.header(*name, value);
        }
        if let Some(authorization) = request.authorization.as_deref().filter(|_| is_first) {
            built = built.header("authorization", authorization);
        }
        let malformed = |error: ureq::http::Error| FetchError::new(format!("{host}: {error}"));
        let answer = if matches!(request.method, Method::GET | Method::HEAD) {
            agent.run(built.body(()).map_err(malformed)?)
        } else {
            agent.run(built.body(request.body).map_err(malformed)?)
        };
        answer.map_err(|error| failure(&host, &error, self.patience.silence))
    }

    fn agent(
        &self,
        ca: Option<&PathBuf>,
        only_public: bool,
        is_direct: bool,
    ) -> Result<Agent, FetchError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (ca.cloned(), only_public, is_direct);
        if let Some(agent) = agents.get(&key) {
            return Ok(agent.clone());
        }
        let tls = TlsConfig::builder()
            .root_certs(root_certificates(ca)?)
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("outrider/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(self.patience.silence))
            .timeout_per_read(Some(self.patience.silence))
            .timeout_send_body(Some(WHOLE_BODY))
            .timeout_recv_body(Some(WHOLE_BODY))
            .max_response_header_size(64 * 1024)
            .proxy(Proxy::try_from_env().filter(|_| !is_direct))
            .build();
        let resolver = GuardedResolver {
            only_public,
            seen: self.seen.clone(),
        };
        let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
        agents.insert(key, agent.clone());
        Ok(agent)
    }
}

/// Places of the system's certificate authorities.
const SYSTEM_CA: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificates of the named file; without one those of `$SSL_CERT_FILE` or the system, or Mozilla's.
fn root_certificates(ca: Option<&PathBuf>) -> Result<RootCerts, FetchError> {
    let named = ca
        .cloned()
        .or_else(|| std::env::var_os("SSL_CERT_FILE").map(PathBuf::from));
    if let Some(file) = named {
        let text = std::fs::read(&file).map_err(|error| FetchError::file(&file, "read", &error))?;
        let found = certificates(&text);
        if found.is_empty() {
            let message = format!("{} has no certificate", file.display());
            return Err(FetchError::new(message).mend("name a PEM file of certificate authorities"));
        }
        return Ok(RootCerts::new_with_certs(&found));
    }
    for file in SYSTEM_CA {
        let found = std::fs::read(file).map(|text| certificates(&text));
        if let Ok(found) = found
            && !found.is_empty()
        {
            return Ok(RootCerts::new_with_certs(&found));
        }
    }
    Ok(RootCerts::WebPki)
}

fn certificates(text: &[u8]) -> Vec<Certificate<'static>> {
    parse_pem(text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect()
}

/// What a failed exchange means.
fn failure(host: &str, error: &ureq::Error, silence: Duration) -> FetchError {
    let unavailable = |message: String| FetchError::new(message).kind(Kind::Unavailable(None));
    match error {
        ureq::Error::Timeout(_) => unavailable(format!(
            "{host} did not answer within {:.0} s",
            silence.as_secs_f64().max(1.0)
        )),
        ureq::Error::HostNotFound => unavailable(format!("there is no host {host}")),
        ureq::Error::Rustls(why) => {
            let message = format!("the certificate of {host} is not accepted: {why}");
            FetchError::new(message)
                .mend("name its certificate authority with `ca:` under `registries`, or `--ca`")
        }
        ureq::Error::Io(why) if why.to_string().contains(REFUSED) => {
            FetchError::new(format!("{host} leads to {why}"))
        }
        // rustls reports certificates through the connection, too.
        ureq::Error::Io(why) if why.kind() == std::io::ErrorKind::InvalidData => {
            let message = format!("{host} cannot be spoken to by TLS: {why}");
            FetchError::new(message).mend(
                "name its certificate authority with `ca:`, or set `plain_http: true` if it has no TLS",
            )
        }
        ureq::Error::Io(why) if why.to_string().contains("failed to lookup") => {
            unavailable(format!("the name of {host} cannot be resolved"))
        }
        why => unavailable(format!("{host} cannot be reached: {why}")),
    }
}

/// The error of a status that is not a success.
pub(crate) fn status_error(answer: &Answer, what: &str) -> FetchError {
    let host = &answer.host;
    match answer.status {
        404 => FetchError::new(format!("{host} has no {what} (404)")).kind(Kind::NotFound),
        401 => FetchError::new(format!("{host} asks who wants {what} (401)")),
        403 => FetchError::new(format!("{host} refuses {what} to this user (403)")),
        429 => FetchError::new(format!("{host} answers 429, too many requests"))
            .kind(Kind::Unavailable(retry_after(answer))),
        status @ 500..=599 => FetchError::new(format!("{host} answers {status} for {what}"))
            .kind(Kind::Unavailable(retry_after(answer))),
        status => FetchError::new(format!("{host} answers {status} for {what}")),
    }
}

/// The pause that a server asks for, in seconds or as a date.
fn retry_after(answer: &Answer) -> Option<Duration> {
    let text = answer.header("retry-after")?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    date.duration_since(SystemTime::now()).ok()
}

/// Reads a URL of HTTP that has a host and no user.
pub(crate) fn parse(url: &str) -> Result<Uri, FetchError> {
    let wrong = || FetchError::new(format!("`{}` is not a URL of HTTP", shown(url)));
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_user = uri
        .authority()
        .is_some_and(|all| all.as_str().contains('@'));
    if !is_http || uri.host().is_none_or(str::is_empty) {
        return Err(wrong());
    }
    if has_user {
        return Err(FetchError::new(format!("`{}` holds a user", shown(url)))
            .mend("write user and password under `registries`"));
    }
    Ok(uri)
}

/// Host and port, as they are written.
pub(crate) fn authority(uri: &Uri) -> String {
    uri.authority().map(ToString::to_string).unwrap_or_default()
}

/// A URL without its query, which may hold a signature, and without a user.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split_once('?').map_or(url, |(before, _)| before);
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority
                .rsplit_once('@')
                .map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}

/// Whether a host, with its port or without, is of this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name == "localhost"
        || name
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// What a `Location` leads to from a URL.
pub(crate) fn resolve(base: &Uri, location: &str) -> Result<String, FetchError> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return Ok(location.to_owned());
    }
    let scheme = base.scheme_str().unwrap_or("https");
    if let Some(rest) = location.strip_prefix("//") {
        return Ok(format!("{scheme}://{rest}"));
    }
    let root = format!("{scheme}://{}", authority(base));
    if location.starts_with('/') {
        return Ok(format!("{root}{location}"));
    }
    if location.is_empty() || location.contains("://") {
        return Err(FetchError::new(format!(
            "{} redirects to `{}`, which is not a URL of HTTP",
            authority(base),
            shown(location)
        )));
    }
    let folder = base
        .path()
        .rsplit_once('/')
        .map_or("", |(folder, _)| folder);
    Ok(format!("{root}{folder}/{location}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_is_resolved_against_its_base() {
        let base = parse("https://a.example:5000/v2/x/blobs/y?z").unwrap();
        for (location, url) in [
            ("https://b.example/q", "https://b.example/q"),
            ("//b.example/q", "https://b.example/q"),
            ("/q?r", "https://a.example:5000/q?r"),
            ("q", "https://a.example:5000/v2/x/blobs/q"),
        ] {
            assert_eq!(resolve(&base, location).unwrap(), url);
        }
        assert!(resolve(&base, "gopher://x").is_err());
        assert!(resolve(&base, "").is_err());
    }

    #[test]
    fn shown_url_has_no_query_and_no_user() {
        assert_eq!(
            shown("https://u:p@h.example/x?sig=1"),
            "https://h.example/x"
        );
        assert!(parse("https://u:p@h.example/").is_err());
        assert!(parse("file:///etc/passwd").is_err());
        assert!(parse("/relative").is_err());
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(size(10), "10 bytes");
        assert_eq!(size(1025), "2 KiB");
        assert_eq!(size(3 * 1024 * 1024 / 2), "1.5 MiB");
    }
}
