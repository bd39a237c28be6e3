//! What one request meets: its project, its route, its chain, and where each value of each plugin's
//! configuration was written.
//!
//! The rules are Envoy's, told again: hosts by exact name, longest ending, longest beginning, `*`;
//! routes from top to bottom. Not a simulation of the plugins themselves.

mod lanes;
mod matching;
mod text;

use std::net::{IpAddr, Ipv4Addr};

use outrider_plugin_formats::{Allow, FailurePolicy, Group, PluginEntry, Runtime};
use outrider_yaml::{Node, PathSegment};
use serde::Serialize;
use serde_json::Value;

use crate::annotations::without_secrets;
use crate::merge::merge;
use crate::plan::{Action, Limit, Plan, Switch, Use, chain_key};

/// A request to be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The host, with or without a port.
    pub host: String,
    /// The path with its query.
    pub path: String,
    /// The method.
    pub method: String,
    /// Headers, cookies among them; letter case of names counts for nothing.
    pub headers: Vec<(String, String)>,
    /// Whether it comes over TLS; none: as the listeners have it, plain where they differ.
    pub tls: Option<bool>,
    /// The address that it comes from: the client's, or the last trusted proxy's.
    pub client: IpAddr,
}

impl Request {
    /// A request of GET from this machine, without headers of its own.
    pub fn get(host: &str, path: &str) -> Self {
        Self {
            host: host.to_owned(),
            path: path.to_owned(),
            method: "GET".to_owned(),
            headers: Vec::new(),
            tls: None,
            client: IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }
}

/// What a request meets. `Display` is for people, `Serialize` for scripts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The host, method and path that were looked at, the path as Envoy normalises it.
    pub host: String,
    /// See `host`.
    pub method: String,
    /// See `host`.
    pub path: String,
    /// The project; none: Envoy answers 404.
    pub project: Option<String>,
    /// The project's host that took the request.
    pub matched_host: Option<String>,
    /// The route; none: Envoy answers 404.
    pub route: Option<String>,
    /// Routes before it that did not match, each with why.
    pub passed_over: Vec<PassedOver>,
    /// What the route does.
    pub action: Option<Action>,
    /// The plugins that the request passes, in this order; the response passes them in reverse. Without a route:
    /// the gateway's.
    pub chain: Vec<Link>,
    /// Plugins that a wider scope uses, and a narrower one turned off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub off: Vec<TurnedOff>,
    /// What else there is to know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A plugin that the request does not pass, as a scope turned it off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TurnedOff {
    /// Its name.
    pub plugin: String,
    /// The scope that turned it off.
    pub by: Origin,
}

/// A route that did not match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    /// Its name.
    pub route: String,
    /// The first condition that failed.
    pub why: String,
}

/// One plugin of a chain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// Its name.
    pub plugin: String,
    /// Its phase group.
    pub group: Group,
    /// Its priority in the group.
    pub priority: i32,
    /// What runs it.
    pub runtime: Runtime,
    /// The narrowest scope that uses it.
    pub used_by: Origin,
    /// Its effective configuration; what its schema marks `writeOnly` is `***`.
    pub config: Value,
    /// Each value of the configuration, with who set it.
    pub settings: Vec<Setting>,
    /// The limits that hold for it: its budgets, and its circuit unless that is off.
    pub limits: Vec<Limit>,
    /// What a stream gets when it fails.
    pub failure_policy: FailurePolicy,
    /// What it may do beyond its own streams.
    pub allow: Allow,
    /// Bytes of log lines that it may write each second, unless it has the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_rate: Option<u32>,
}

/// One value of an effective configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Setting {
    /// Its keys, joined by dots; empty where the configuration is a string, and this is all of it.
    pub key: String,
    /// The value.
    pub value: Value,
    /// Who set it.
    pub set_by: Origin,
}

/// Where something was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// `gateway`, `project shop` or `route cart`.
    pub scope: String,
    /// The file.
    pub file: String,
    /// From 1.
    pub line: usize,
}

/// Explains `request`.
pub fn explain(plan: &Plan, request: &Request) -> Explanation {
    let mut seen = matching::Seen::new(&matching::Entrance::of(plan), request);
    let mut explanation = Explanation {
        host: seen.host.clone(),
        method: request.method.clone(),
        path: seen.full_path(),
        project: None,
        matched_host: None,
        route: None,
        passed_over: Vec::new(),
        action: None,
        chain: Vec::new(),
        off: Vec::new(),
        notes: seen.notes.clone(),
    };
    let Some((project, host)) = matching::project(&plan.projects, &seen.host) else {
        (explanation.chain, explanation.off) = chain(plan, &[]);
        return explanation;
    };
    explanation.project = Some(project.name.clone());
    explanation.matched_host = Some(host.to_owned());
    lanes::apply(plan, project, &mut seen);
    explanation.notes.clone_from(&seen.notes);
    for route in &project.routes {
        let Some(why) = matching::refusal(&route.matches, &seen) else {
            explanation.route = Some(route.name.clone());
            explanation.action = Some(route.action.clone());
            let project_scope = (format!("project {}", project.name), &project.uses);
            let route_scope = (format!("route {}", route.name), &route.uses);
            (explanation.chain, explanation.off) = chain(plan, &[project_scope, route_scope]);
            explanation.notes.extend(upgrade_note(&route.action, &seen));
            return explanation;
        };
        explanation.passed_over.push(PassedOver {
            route: route.name.clone(),
            why,
        });
    }
    // Without a route, Envoy has no configuration of a project or a route for the filter.
    (explanation.chain, explanation.off) = chain(plan, &[]);
    explanation
}

/// What Envoy makes of a request that asks for another protocol.
fn upgrade_note(action: &Action, seen: &matching::Seen) -> Option<String> {
    let asked = seen.upgrade()?;
    let allowed: &[String] = match action {
        Action::Forward(forward) => &forward.upgrades,
        Action::Redirect(_) | Action::Respond(_) => return None,
    };
    if allowed.iter().any(|name| name.eq_ignore_ascii_case(asked)) {
        return None;
    }
    Some(format!(
        "the route does not allow the upgrade to `{asked}`: Envoy answers 403; `upgrades: [{asked}]` allows it"
    ))
}

/// The chain of the gateway's scope and the narrower ones, from wide to narrow; and the plugins that are turned off.
fn chain(plan: &Plan, narrower: &[(String, &Vec<Use>)]) -> (Vec<Link>, Vec<TurnedOff>) {
    let mut plugins: Vec<&PluginEntry> = plan.filter.plugins.iter().collect();
    plugins.sort_by_key(|entry| chain_key(entry.group, entry.priority, &entry.name));
    let mut scopes = vec![("gateway".to_owned(), &plan.uses)];
    scopes.extend_from_slice(narrower);
    let (mut links, mut off) = (Vec::new(), Vec::new());
    for entry in plugins {
        let trail: Vec<(&str, &Use)> = scopes
            .iter()
            .filter_map(|(scope, uses)| {
                let item = uses.iter().find(|item| item.plugin == entry.name)?;
                Some((scope.as_str(), item))
            })
            .collect();
        let Some((scope, last)) = trail.last() else {
            continue;
        };
        if last.switch == Switch::On {
            let limits = plan.limits.get(&entry.name).cloned();
            links.push(Link {
                limits: limits.unwrap_or_default(),
                ..link(entry, &trail, scope, last)
            });
        } else if trail.iter().any(|(_, item)| item.switch == Switch::On) {
            off.push(TurnedOff {
                plugin: entry.name.clone(),
                by: origin(scope, last, None),
            });
        }
    }
    (links, off)
}

fn link(entry: &PluginEntry, trail: &[(&str, &Use)], scope: &str, last: &Use) -> Link {
    let empty = Value::Object(serde_json::Map::new());
    let config = trail
        .iter()
        .filter_map(|(_, item)| item.config.as_ref())
        .map(Node::to_json)
        .filter(|patch| patch.as_object().is_none_or(|patch| !patch.is_empty()))
        .fold(empty, |config, patch| merge(&config, &patch));
    let config = match &entry.schema {
        Some(schema) => without_secrets(schema, &config),
        None => config,
    };
    let mut settings = Vec::new();
    leaves(&config, &mut Vec::new(), &mut |path, value| {
        let setter = trail.iter().rev().find_map(|(scope, item)| {
            let node = item.config.as_ref()?.at(path)?;
            Some(origin(scope, item, Some(node)))
        });
        settings.push(Setting {
            key: dotted(path),
            value: value.clone(),
            set_by: setter.unwrap_or_else(|| origin(scope, last, None)),
        });
    });
    Link {
        plugin: entry.name.clone(),
        group: entry.group,
        priority: entry.priority,
        runtime: entry.runtime,
        used_by: origin(scope, last, None),
        config,
        settings,
        limits: Vec::new(),
        failure_policy: entry.failure_policy.clone(),
        allow: entry.allow.clone(),
        log_rate: entry.log_rate,
    }
}

fn origin(scope: &str, item: &Use, node: Option<&Node>) -> Origin {
    Origin {
        scope: scope.to_owned(),
        file: item.file.to_string(),
        line: node.map_or(item.location.line, |node| node.location.line),
    }
}

/// Calls `each` for everything in `value` that is not a mapping with keys.
fn leaves(
    value: &Value,
    path: &mut Vec<PathSegment>,
    each: &mut dyn FnMut(&[PathSegment], &Value),
) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                path.push(PathSegment::Key(key.clone()));
                leaves(value, path, each);
                path.pop();
            }
        }
        Value::Object(_) if path.is_empty() => {}
        _ => each(path, value),
    }
}

fn dotted(path: &[PathSegment]) -> String {
    path.iter()
        .map(|segment| match segment {
            PathSegment::Key(key) => key.clone(),
            PathSegment::Index(index) => index.to_string(),
        })
        .collect::<Vec<_>>()
        .join(".")
}
