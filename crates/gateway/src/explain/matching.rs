//! Envoy's rules of matching, for one request.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Request;
use crate::plan::{Condition, Match, PathMatch, Plan, Project, ValueMatch};

/// Headers that Envoy removes from what clients send: those of a connection, and those by which Envoys speak to each other.
/// Seen on Envoy 1.40, and in its source (`conn_manager_utility.cc`).
const REMOVED: [&str; 25] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "x-envoy-decorator-operation",
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-force-trace",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-internal",
    "x-envoy-ip-tags",
    "x-envoy-max-retries",
    "x-envoy-original-path",
    "x-envoy-original-url",
    "x-envoy-retriable-header-names",
    "x-envoy-retriable-status-codes",
    "x-envoy-retry-grpc-on",
    "x-envoy-retry-on",
    "x-envoy-upstream-alt-stat-name",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-rq-timeout-alt-response",
    "x-envoy-upstream-rq-timeout-ms",
    "x-forwarded-client-cert",
];

/// Headers of which Envoy keeps one line, and joins several values by commas. A condition on any other
/// header is tried on each of its values.
const JOINED: [&str; 24] = [
    "accept",
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "authorization",
    "cache-control",
    "cdn-loop",
    "content-encoding",
    "content-type",
    "expect",
    "grpc-accept-encoding",
    "grpc-timeout",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "origin",
    "pragma",
    "referer",
    "user-agent",
    "via",
    "x-client-trace-id",
    "x-forwarded-for",
    "x-forwarded-host",
];

/// The values of each name.
type Values = BTreeMap<String, Vec<String>>;

/// What the gateway does to each request before it looks for a route.
#[derive(Debug, Default)]
pub(super) struct Entrance {
    trusted_hops: u32,
    trusted_proxies: Vec<IpNet>,
    has_tls: bool,
    has_plain: bool,
}

impl Entrance {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            trusted_hops: plan.trusted_hops,
            trusted_proxies: plan.trusted_proxies.clone(),
            has_tls: plan.listeners.iter().any(|item| item.tls.is_some()),
            has_plain: plan.listeners.iter().any(|item| item.tls.is_none()),
        }
    }
}

impl Entrance {
    /// How many proxies are trusted when this address connects.
    fn trusted_hops_of(&self, address: IpAddr) -> u32 {
        let ranges = &self.trusted_proxies;
        if ranges.is_empty() || ranges.iter().any(|range| range.contains(&address)) {
            self.trusted_hops
        } else {
            0
        }
    }
}

/// A request as Envoy's routes see it.
pub(super) struct Seen {
    /// In lower case, without port.
    pub(super) host: String,
    method: String,
    /// Normalised.
    path: String,
    query_text: Option<String>,
    /// Of several values of one name, the first.
    query: Values,
    /// By name in lower case.
    pub(super) headers: Values,
    /// Of several values of one name, the first.
    cookies: Values,
    /// The protocol that it asks to change to.
    upgrade: Option<String>,
    pub(super) notes: Vec<String>,
}

impl Seen {
    pub(super) fn new(entrance: &Entrance, request: &Request) -> Self {
        let mut notes = Vec::new();
        if request
            .path
            .contains(|letter: char| letter == '#' || !letter.is_ascii_graphic())
        {
            notes.push(
                "the path holds `#`, a space, or a character that has to be percent-encoded: Envoy \
                 answers with status 400 where a client sends it so"
                    .to_owned(),
            );
        }
        let without_fragment = request.path.split('#').next().unwrap_or_default();
        let (path, query_text) = match without_fragment.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (without_fragment, None),
        };
        let lower = path.to_ascii_lowercase();
        let path = if lower.contains("%2f") || lower.contains("%5c") {
            notes.push(
                "the path holds an escaped slash: Envoy answers with a redirect to the path below"
                    .to_owned(),
            );
            unescape_slashes(path)
        } else {
            path.to_owned()
        };
        if is_only_slashes(&path) {
            notes.push("the path is slashes only: Envoy answers with a redirect to `/`".to_owned());
        }
        let mut query = Values::new();
        for part in query_text.unwrap_or_default().split('&') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if !key.is_empty() {
                query
                    .entry(key.to_owned())
                    .or_insert_with(|| vec![value.to_owned()]);
            }
        }
        let mut headers = Values::new();
        for (name, value) in &request.headers {
            if name.contains('_') {
                notes.push(format!(
                    "the header `{name}` holds an underscore: Envoy drops it"
                ));
                continue;
            }
            let name = name.to_ascii_lowercase();
            let joined = JOINED.contains(&name.as_str());
            let values = headers.entry(name).or_default();
            match values.first_mut() {
                Some(line) if joined => {
                    line.push(',');
                    line.push_str(value);
                }
                _ => values.push(value.clone()),
            }
        }
        let upgrade = headers.get("upgrade").and_then(|all| all.first()).cloned();
        as_envoy_sets(entrance, request, &mut headers, &mut notes);
        let mut cookies = Values::new();
        for (name, value) in &request.headers {
            if !name.eq_ignore_ascii_case("cookie") {
                continue;
            }
            for part in value.split(';') {
                if let Some((name, value)) = part.trim().split_once('=') {
                    let value = value
                        .strip_prefix('"')
                        .and_then(|value| value.strip_suffix('"'))
                        .unwrap_or(value);
                    cookies
                        .entry(name.to_owned())
                        .or_insert_with(|| vec![value.to_owned()]);
                }
            }
        }
        Self {
            host: without_port(&request.host).to_ascii_lowercase(),
            method: request.method.clone(),
            path: normalise(&unescape_unreserved(&path)),
            query_text: query_text.map(str::to_owned),
            query,
            headers,
            cookies,
            upgrade,
            notes,
        }
    }

    pub(super) fn upgrade(&self) -> Option<&str> {
        self.upgrade.as_deref()
    }

    pub(super) fn full_path(&self) -> String {
        match &self.query_text {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}

/// Makes of a client's headers what routes see.
fn as_envoy_sets(
    entrance: &Entrance,
    request: &Request,
    headers: &mut Values,
    notes: &mut Vec<String>,
) {
    // Of an upgrade, Envoy keeps these two.
    let is_upgrade = headers.contains_key("upgrade");
    let named: Vec<String> = headers
        .get("connection")
        .into_iter()
        .flatten()
        .flat_map(|line| line.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    headers.retain(|name, _| {
        let is_kept = is_upgrade && matches!(name.as_str(), "connection" | "upgrade");
        let is_removed = REMOVED.contains(&name.as_str()) || named.contains(name);
        if is_removed && !is_kept {
            notes.push(format!("Envoy removes the header `{name}`"));
        }
        is_kept || !is_removed
    });
    let is_tls = request.tls.unwrap_or_else(|| {
        if entrance.has_tls && entrance.has_plain {
            notes.push(
                "the listeners differ in TLS: this is a plain request; say `https://`, or --tls, for another"
                    .to_owned(),
            );
        }
        !entrance.has_plain
    });
    let mut set = |name: &str, value: String, headers: &mut Values| {
        let before = headers.insert(name.to_owned(), vec![value.clone()]);
        if before.is_some_and(|before| before != [value.as_str()]) {
            notes.push(format!("Envoy sets the header `{name}` to `{value}`"));
        }
    };
    let scheme = if is_tls { "https" } else { "http" };
    let trusted_hops = entrance.trusted_hops_of(request.client);
    if trusted_hops == 0 || !headers.contains_key("x-forwarded-proto") {
        set("x-forwarded-proto", scheme.to_owned(), headers);
    }
    let forwarded = headers
        .get("x-forwarded-for")
        .and_then(|lines| lines.first())
        .cloned();
    let chain = match &forwarded {
        Some(before) => format!("{before},{}", request.client),
        None => request.client.to_string(),
    };
    // The entry that the outermost trusted proxy wrote; without proxies, who connects.
    let hops = usize::try_from(trusted_hops).unwrap_or(usize::MAX);
    let entries: Vec<&str> = chain.split(',').map(str::trim).collect();
    let client = (entries.len().checked_sub(hops.saturating_add(1)))
        .and_then(|place| entries.get(place))
        .filter(|entry| entry.parse::<IpAddr>().is_ok())
        .map_or_else(|| request.client.to_string(), |entry| (*entry).to_owned());
    set("x-envoy-external-address", client, headers);
    headers.insert("x-forwarded-for".to_owned(), vec![chain]);
    set("x-request-id", "(a new one)".to_owned(), headers);
    // Of what a connection may end with, only trailers are passed on.
    if let Some(lines) = headers.remove("te")
        && lines
            .iter()
            .any(|line| line.split(',').any(|word| word.trim() == "trailers"))
    {
        headers.insert("te".to_owned(), vec!["trailers".to_owned()]);
    }
    // Envoy knows these by other names, and by `host`.
    for (name, value) in [
        ("host", &request.host),
        (":authority", &request.host),
        (":method", &request.method),
    ] {
        headers.insert(name.to_owned(), vec![value.clone()]);
    }
    headers.insert(":scheme".to_owned(), vec![scheme.to_owned()]);
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // `[::1]` has colons and no port.
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

fn unescape_slashes(path: &str) -> String {
    path.replace("%2F", "/")
        .replace("%2f", "/")
        .replace("%5C", "/")
        .replace("%5c", "/")
}

/// Characters that need no escape, unescaped (RFC 3986, section 6.2.2.2): `/%61` is `/a`.
fn unescape_unreserved(path: &str) -> String {
    let mut unescaped = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        unescaped.push_str(before);
        let code = after
            .get(..2)
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        match code.map(char::from) {
            Some(letter) if letter.is_ascii_alphanumeric() || "-._~".contains(letter) => {
                unescaped.push(letter);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                unescaped.push('%');
                rest = after;
            }
        }
    }
    unescaped + rest
}

/// Whether a path is two or more slashes and nothing else, once `.` and `..` are resolved.
fn is_only_slashes(path: &str) -> bool {
    let mut segments: Vec<&str> = Vec::new();
    let parts = path.strip_prefix('/').unwrap_or(path).split('/');
    for segment in parts {
        match segment {
            "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    // What is resolved at the end leaves the slash before it.
    if path.ends_with("/.") || path.ends_with("/..") {
        segments.push("");
    }
    segments.len() > 1 && segments.iter().all(|segment| segment.is_empty())
}

/// `.` and `..` resolved, slashes merged.
fn normalise(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_with_slash = true;
    for segment in path.split('/') {
        ends_with_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let joined = segments.join("/");
    match (joined.is_empty(), ends_with_slash) {
        (true, _) => "/".to_owned(),
        (false, true) => format!("/{joined}/"),
        (false, false) => format!("/{joined}"),
    }
}

/// The project that owns a host, with its pattern that says so.
pub(super) fn project<'p>(projects: &'p [Project], host: &str) -> Option<(&'p Project, &'p str)> {
    projects
        .iter()
        .flat_map(|project| {
            project
                .hosts
                .iter()
                .map(move |pattern| (project, pattern.as_str()))
        })
        .filter_map(|(project, pattern)| Some((rank(pattern, host)?, project, pattern)))
        .max_by_key(|(rank, ..)| *rank)
        .map(|(_, project, pattern)| (project, pattern))
}

/// How well a pattern fits: exact, then the longest ending, then the longest beginning, then `*`.
fn rank(pattern: &str, host: &str) -> Option<(u8, usize)> {
    // A `*` stands for one character at least.
    let longer = |part: &str| host.len() > part.len();
    if pattern == "*" {
        return Some((0, 0));
    }
    if pattern == host {
        return Some((3, 0));
    }
    if let Some(suffix) = pattern.strip_prefix('*') {
        return (host.ends_with(suffix) && longer(suffix)).then_some((2, suffix.len()));
    }
    let prefix = pattern.strip_suffix('*')?;
    (host.starts_with(prefix) && longer(prefix)).then_some((1, prefix.len()))
}

/// Why a route does not take the request; none: it does.
pub(super) fn refusal(matches: &Match, seen: &Seen) -> Option<String> {
    let path = match &matches.path {
        PathMatch::Exact(path) if *path != seen.path => Some(format!("the path is not {path}")),
        PathMatch::Prefix(prefix) if !seen.path.starts_with(prefix.as_str()) => {
            Some(format!("the path does not begin with {prefix}"))
        }
        PathMatch::Regex(regex) if !whole(regex, &seen.path) => {
            Some(format!("the path does not match {regex}"))
        }
        _ => None,
    };
    let method = || {
        (!matches.methods.is_empty() && !matches.methods.contains(&seen.method))
            .then(|| format!("the method is not {}", matches.methods.join(" or ")))
    };
    let conditions = || {
        let kinds = [
            ("header", &matches.headers, &seen.headers),
            ("query parameter", &matches.query, &seen.query),
            ("cookie", &matches.cookies, &seen.cookies),
        ];
        kinds.into_iter().find_map(|(kind, conditions, values)| {
            conditions
                .iter()
                .find(|condition| !holds(condition, values.get(&condition.name)))
                .map(|condition| format!("the {kind} `{}` does not fit", condition.name))
        })
    };
    path.or_else(method).or_else(conditions)
}

/// `values`: none when the name is not there.
fn holds(condition: &Condition, values: Option<&Vec<String>>) -> bool {
    if let ValueMatch::Present(present) = condition.value {
        return values.is_some() == present;
    }
    let mut values = values.into_iter().flatten();
    let fits = values.any(|value| match &condition.value {
        ValueMatch::Exact(text) => value == text,
        ValueMatch::Prefix(text) => value.starts_with(text.as_str()),
        ValueMatch::Suffix(text) => value.ends_with(text.as_str()),
        ValueMatch::Contains(text) => value.contains(text.as_str()),
        ValueMatch::Regex(regex) => whole(regex, value),
        ValueMatch::Present(_) => true,
    });
    fits != condition.invert
}

fn whole(regex: &str, text: &str) -> bool {
    regex::Regex::new(&format!("^(?:{regex})$")).is_ok_and(|regex| regex.is_match(text))
}

#[cfg(test)]
mod tests {
    use super::{
        Entrance, Seen, is_only_slashes, normalise, rank, unescape_unreserved, without_port,
    };
    use crate::explain::Request;
    use crate::plan::{Condition, ValueMatch};

    #[test]
    fn hosts() {
        assert_eq!(without_port("a:80"), "a");
        assert_eq!(without_port("[::1]:80"), "[::1]");
        assert_eq!(without_port("[::1]"), "[::1]");
        assert_eq!(rank("*.a.b", "x.a.b"), Some((2, 4)));
        assert_eq!(rank("*.a.b", ".a.b"), None);
        assert_eq!(rank("a.*", "a.b"), Some((1, 2)));
        assert!(rank("*.b", "a.b") > rank("a.*", "a.b"));
        assert!(rank("a.b", "a.b") > rank("*.b", "a.b"));
    }

    /// What the real Envoy 1.40 does.
    #[test]
    fn headers_of_several_values() {
        let holds = |name: &str, value: ValueMatch, invert, values: &[&str]| {
            let request = Request {
                headers: values
                    .iter()
                    .map(|value| (name.to_owned(), (*value).to_owned()))
                    .collect(),
                ..Request::get("a", "/")
            };
            let condition = Condition {
                name: name.to_owned(),
                value,
                invert,
            };
            super::holds(
                &condition,
                Seen::new(&Entrance::default(), &request).headers.get(name),
            )
        };
        let exact = || ValueMatch::Exact("z".to_owned());
        let regex = || ValueMatch::Regex("z,y".to_owned());
        for (values, any, none, together) in [
            (&["z"][..], true, false, false),
            (&["z", "y"], true, false, false),
            (&["y", "z"], true, false, false),
            (&["z,y"], false, true, true),
            (&["y", "y"], false, true, false),
            (&[], false, true, false),
        ] {
            assert_eq!(holds("x-a", exact(), false, values), any, "{values:?}");
            assert_eq!(holds("x-a", exact(), true, values), none, "{values:?}");
            assert_eq!(holds("x-a", regex(), false, values), together, "{values:?}");
        }
        // These are one line.
        assert!(!holds("accept", exact(), false, &["z", "y"]));
        assert!(holds("accept", regex(), false, &["z", "y"]));
    }

    #[test]
    fn paths_of_slashes_only_are_told_from_others() {
        for path in ["//", "///", "/.//", "/..//", "/a/..//", "//.", "//a/.."] {
            assert!(is_only_slashes(path), "{path}");
        }
        for path in ["", "/", "/.", "/a/..", "//a", "/a//", "a", "/./"] {
            assert!(!is_only_slashes(path), "{path}");
        }
    }

    #[test]
    fn paths() {
        for (path, normal) in [
            ("", "/"),
            ("/", "/"),
            ("/a//b", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/a/", "/a/"),
            ("/a/..", "/"),
            ("/../a", "/a"),
        ] {
            assert_eq!(normalise(path), normal, "{path}");
        }
        for (path, unescaped) in [
            ("/%61b%2D%7e", "/ab-~"),
            ("/%2e%2E/a", "/../a"),
            ("/%20%2fa%", "/%20%2fa%"),
            ("/%6", "/%6"),
            ("/%zz%é", "/%zz%é"),
        ] {
            assert_eq!(unescape_unreserved(path), unescaped, "{path}");
        }
    }
}
