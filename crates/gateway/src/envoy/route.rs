//! Projects as virtual hosts, and their routes.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{ROUTE_CONFIGURATION, cluster, duration, filter, object};
use crate::compile::LONGEST_BODY;
use crate::plan::{
    Action, Condition, Forward, HashKey, Match, Mirror, PathMatch, Plan, Project, Redirect,
    Respond, Retries, Route, ValueMatch,
};

pub(super) fn configuration(plan: &Plan) -> Value {
    // Upstreams that choose by hash need to be told of what.
    let hashing: BTreeSet<&str> = plan
        .upstreams
        .iter()
        .filter(|upstream| upstream.load_balancing.is_by_hash())
        .map(|upstream| upstream.name.as_str())
        .collect();
    let hosts = plan
        .projects
        .iter()
        .map(|project| virtual_host(project, &hashing))
        .collect();
    object([
        ("name", ROUTE_CONFIGURATION.into()),
        ("ignore_port_in_host_matching", true.into()),
        ("max_direct_response_body_size_bytes", LONGEST_BODY.into()),
        ("virtual_hosts", hosts),
    ])
}

fn virtual_host(project: &Project, hashing: &BTreeSet<&str>) -> Value {
    let mut host = Map::new();
    host.insert("name".to_owned(), project.name.as_str().into());
    host.insert("domains".to_owned(), json!(project.hosts));
    if let Some(config) = &project.filter {
        host.insert(
            "typed_per_filter_config".to_owned(),
            filter::per_route(config),
        );
    }
    if !project.metadata.is_empty() {
        host.insert("metadata".to_owned(), metadata(&project.metadata));
    }
    let mut routes = vec![only_slashes()];
    routes.extend((project.routes.iter()).map(|route| self::route(route, hashing)));
    host.insert("routes".to_owned(), routes.into());
    Value::Object(host)
}

/// Envoy's `merge_slashes` makes one slash of several, but of a path without anything else it leaves two. Such a path would
/// pass by a route for exactly `/`.
fn only_slashes() -> Value {
    json!({
        "name": "only-slashes",
        "match": { "path": "//" },
        "redirect": { "path_redirect": "/", "response_code": "TEMPORARY_REDIRECT" },
    })
}

fn route(route: &Route, hashing: &BTreeSet<&str>) -> Value {
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    set("name", route.name.as_str().into());
    set("match", matches(&route.matches));
    match &route.action {
        Action::Forward(action) => set("route", forward(action, &route.matches.path, hashing)),
        Action::Redirect(action) => set("redirect", redirect(action, &route.matches.path)),
        Action::Respond(action) => {
            set("direct_response", respond(action));
            if !action.headers.is_empty() {
                set("response_headers_to_add", response_headers(action));
            }
        }
    }
    if let Some(config) = &route.filter {
        set("typed_per_filter_config", filter::per_route(config));
    }
    if !route.metadata.is_empty() {
        set("metadata", metadata(&route.metadata));
    }
    Value::Object(object)
}

fn metadata(namespaces: &Map<String, Value>) -> Value {
    json!({ "filter_metadata": namespaces })
}

fn matches(matches: &Match) -> Value {
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    match &matches.path {
        PathMatch::Exact(path) => set("path", path.as_str().into()),
        PathMatch::Prefix(prefix) => set("prefix", prefix.as_str().into()),
        PathMatch::Regex(regex) => set("safe_regex", json!({ "regex": regex })),
    }
    let mut headers: Vec<Value> = Vec::new();
    match matches.methods.as_slice() {
        [] => {}
        [only] => headers.push(json!({ "name": ":method", "string_match": { "exact": only } })),
        several => headers.push(json!({
            "name": ":method",
            "string_match": { "safe_regex": { "regex": several.join("|") } },
        })),
    }
    headers.extend(matches.headers.iter().map(header));
    if !headers.is_empty() {
        set("headers", headers.into());
    }
    if !matches.query.is_empty() {
        set(
            "query_parameters",
            matches.query.iter().map(query).collect(),
        );
    }
    if !matches.cookies.is_empty() {
        set("cookies", matches.cookies.iter().map(cookie).collect());
    }
    Value::Object(object)
}

fn string_match(value: &ValueMatch) -> Value {
    match value {
        ValueMatch::Exact(text) => json!({ "exact": text }),
        ValueMatch::Prefix(text) => json!({ "prefix": text }),
        ValueMatch::Suffix(text) => json!({ "suffix": text }),
        ValueMatch::Contains(text) => json!({ "contains": text }),
        ValueMatch::Regex(regex) => json!({ "safe_regex": { "regex": regex } }),
        ValueMatch::Present(_) => json!({ "safe_regex": { "regex": ".*" } }),
    }
}

fn header(condition: &Condition) -> Value {
    match &condition.value {
        ValueMatch::Present(present) => {
            json!({ "name": condition.name, "present_match": present })
        }
        value if condition.invert => json!({
            "name": condition.name,
            "string_match": string_match(value),
            "invert_match": true,
            // Without it, a header that is not there fails an inverted condition too.
            "treat_missing_header_as_empty": true,
        }),
        value => json!({ "name": condition.name, "string_match": string_match(value) }),
    }
}

fn query(condition: &Condition) -> Value {
    match &condition.value {
        ValueMatch::Present(present) => {
            json!({ "name": condition.name, "present_match": present })
        }
        value => json!({ "name": condition.name, "string_match": string_match(value) }),
    }
}

fn cookie(condition: &Condition) -> Value {
    let invert = condition.invert || condition.value == ValueMatch::Present(false);
    let mut cookie = json!({
        "name": condition.name,
        "string_match": string_match(&condition.value),
    });
    if let (true, Some(cookie)) = (invert, cookie.as_object_mut()) {
        cookie.insert("invert_match".to_owned(), true.into());
    }
    cookie
}

/// Protocols that any route may change to.
pub(super) fn upgrades(plan: &Plan) -> BTreeSet<&str> {
    let routes = plan.projects.iter().flat_map(|project| &project.routes);
    routes
        .filter_map(|route| match &route.action {
            Action::Forward(action) => Some(&action.upgrades),
            Action::Redirect(_) | Action::Respond(_) => None,
        })
        .flatten()
        .map(String::as_str)
        .collect()
}

fn forward(action: &Forward, path: &PathMatch, hashing: &BTreeSet<&str>) -> Value {
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    match (action.to.as_slice(), &action.fallback) {
        ([(only, _)], Some(fallback)) => {
            set("cluster", cluster::with_fallback(only, fallback).into());
        }
        ([(only, _)], None) => set("cluster", only.as_str().into()),
        (several, _) => {
            let clusters: Vec<Value> = several
                .iter()
                .map(|(name, weight)| json!({ "name": name, "weight": weight }))
                .collect();
            set("weighted_clusters", json!({ "clusters": clusters }));
        }
    }
    if let Some(rewrite) = &action.rewrite_prefix {
        let (key, value) = self::rewrite(path, rewrite);
        set(key, value);
    }
    if let Some(timeout) = action.timeout {
        set("timeout", duration(timeout));
    }
    if let Some(timeout) = action.idle_timeout {
        set("idle_timeout", duration(timeout));
    }
    if let Some(most) = action.max_stream_duration {
        let most = json!({ "max_stream_duration": duration(most) });
        set("max_stream_duration", most);
    }
    if let Some(retries) = &action.retries {
        set("retry_policy", self::retries(retries));
    }
    if let Some(Mirror {
        upstream,
        percent,
        keeps_host,
    }) = &action.mirror
    {
        let fraction =
            json!({ "default_value": { "numerator": percent, "denominator": "HUNDRED" } });
        let mut policy = json!({ "cluster": upstream, "runtime_fraction": fraction });
        if *keeps_host && let Some(policy) = policy.as_object_mut() {
            policy.insert("disable_shadow_host_suffix_append".to_owned(), true.into());
        }
        set("request_mirror_policies", json!([policy]));
    }
    if !action.upgrades.is_empty() {
        let of = |name: &String| json!({ "upgrade_type": name, "enabled": true });
        let upgrades: Vec<Value> = action.upgrades.iter().map(of).collect();
        set("upgrade_configs", upgrades.into());
    }
    let mut targets = action
        .to
        .iter()
        .map(|(name, _)| name)
        .chain(&action.fallback);
    if targets.any(|name| hashing.contains(name.as_str())) {
        set("hash_policy", hash_policies(&action.hash));
    }
    Value::Object(object)
}

/// What a machine is chosen by: the first that the request has.
fn hash_policies(keys: &[HashKey]) -> Value {
    let policy = |key: &HashKey| match key {
        HashKey::Header(name) => json!({ "header": { "header_name": name }, "terminal": true }),
        HashKey::Cookie(name) => json!({ "cookie": { "name": name }, "terminal": true }),
        HashKey::Query(name) => json!({ "query_parameter": { "name": name }, "terminal": true }),
        HashKey::SourceIp => {
            json!({ "connection_properties": { "source_ip": true }, "terminal": true })
        }
    };
    if keys.is_empty() {
        json!([{ "connection_properties": { "source_ip": true } }])
    } else {
        keys.iter().map(policy).collect()
    }
}

/// The key and value that replace the matched path or its beginning.
///
/// Plain replacement of `/api` by `/` would make `//cart` of `/api/cart`, so the slash that follows
/// is replaced with it; and `/api/` by `/v2` would make `/v2cart`, so the slash stays.
fn rewrite(path: &PathMatch, by: &str) -> (&'static str, Value) {
    match path {
        PathMatch::Prefix(prefix) if by.ends_with('/') && !prefix.ends_with('/') => (
            "regex_rewrite",
            json!({
                "pattern": { "regex": format!("^{}/?", regex::escape(prefix)) },
                "substitution": by.replace('\\', "\\\\"),
            }),
        ),
        PathMatch::Prefix(prefix) if prefix.ends_with('/') && !by.ends_with('/') => {
            ("prefix_rewrite", format!("{by}/").into())
        }
        _ => ("prefix_rewrite", by.into()),
    }
}

fn retries(retries: &Retries) -> Value {
    let mut policy = json!({
        "retry_on": retries.on.join(","),
        "num_retries": retries.attempts,
    });
    if let (Some(timeout), Some(policy)) = (retries.per_try_timeout, policy.as_object_mut()) {
        policy.insert("per_try_timeout".to_owned(), duration(timeout));
    }
    policy
}

fn redirect(action: &Redirect, path: &PathMatch) -> Value {
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    if let Some(scheme) = action.scheme {
        set("scheme_redirect", scheme.into());
    }
    if let Some(host) = &action.host {
        set("host_redirect", host.as_str().into());
    }
    if let Some(port) = action.port {
        set("port_redirect", port.into());
    }
    if let Some(path) = &action.path {
        set("path_redirect", path.as_str().into());
    }
    if let Some(prefix) = &action.prefix {
        let (key, value) = rewrite(path, prefix);
        set(key, value);
    }
    let status = match action.status {
        302 => "FOUND",
        303 => "SEE_OTHER",
        307 => "TEMPORARY_REDIRECT",
        308 => "PERMANENT_REDIRECT",
        _ => "MOVED_PERMANENTLY",
    };
    set("response_code", status.into());
    Value::Object(object)
}

fn respond(action: &Respond) -> Value {
    let mut response = json!({ "status": action.status });
    if let (Some(body), Some(response)) = (&action.body, response.as_object_mut())
        && !body.is_empty()
    {
        response.insert("body".to_owned(), json!({ "inline_string": body }));
    }
    response
}

fn response_headers(action: &Respond) -> Value {
    action
        .headers
        .iter()
        .map(|(name, value)| {
            json!({
                // A `%` begins one of Envoy's command operators.
                "header": { "key": name, "value": value.replace('%', "%%") },
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                "keep_empty_value": true,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::rewrite;
    use crate::plan::PathMatch;

    #[test]
    fn slashes_at_the_seam() {
        let prefix = |text: &str| PathMatch::Prefix(text.to_owned());
        for (path, by, key, value) in [
            (prefix("/api"), "/v2", "prefix_rewrite", json!("/v2")),
            (prefix("/api/"), "/v2/", "prefix_rewrite", json!("/v2/")),
            (prefix("/api/"), "/v2", "prefix_rewrite", json!("/v2/")),
            (
                prefix("/a.b"),
                "/",
                "regex_rewrite",
                json!({"pattern": {"regex": "^/a\\.b/?"}, "substitution": "/"}),
            ),
            (
                PathMatch::Exact("/a".to_owned()),
                "/",
                "prefix_rewrite",
                json!("/"),
            ),
        ] {
            assert_eq!(rewrite(&path, by), (key, value));
        }
    }
}
