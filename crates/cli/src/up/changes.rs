//! What differs between two plans, one line each, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use outrider_gateway::plan::{Plan, Project, Route};
use outrider_plugin_formats::PluginEntry;
use serde::Serialize;

/// How many routes are named before the rest is counted.
const NAMED: usize = 10;

/// Lines such as `added project shop`, `changed route shop/cart`, `plugin headers 1a2b3c → 9f8e7d`.
pub(crate) fn summary(old: &Plan, new: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    let of_gateway = |plan: &Plan| {
        (
            plan.access_log.clone(),
            plan.body_limit,
            plan.filter.log_folder.clone(),
            plan.filter.plugin_time,
            (plan.trusted_hops, plan.trusted_proxies.clone()),
            (plan.timeouts, plan.client_limits),
        )
    };
    if of_gateway(old) != of_gateway(new) {
        lines.push("changed gateway".to_owned());
    }
    lines.extend(compare(
        "listener",
        old.listeners.iter().map(|item| (item.name.as_str(), item)),
        new.listeners.iter().map(|item| (item.name.as_str(), item)),
        same,
    ));
    lines.extend(renewed(old, new));
    lines.extend(plugins(&old.filter.plugins, &new.filter.plugins));
    let (old_projects, new_projects) = (by_name(&old.projects), by_name(&new.projects));
    lines.extend(compare(
        "project",
        old_projects.iter().map(|(name, item)| (*name, *item)),
        new_projects.iter().map(|(name, item)| (*name, *item)),
        |old, new| (&old.hosts, &old.filter) == (&new.hosts, &new.filter),
    ));
    for (name, project) in &new_projects {
        if let Some(before) = old_projects.get(name) {
            lines.extend(routes(before, project));
        }
    }
    lines.extend(compare(
        "upstream",
        old.upstreams.iter().map(|item| (item.name.as_str(), item)),
        new.upstreams.iter().map(|item| (item.name.as_str(), item)),
        same,
    ));
    lines
}

/// Files of certificates and authorities that have another content.
fn renewed(old: &Plan, new: &Plan) -> Vec<String> {
    let files = |plan: &Plan| -> BTreeMap<String, Arc<str>> {
        let certificates = plan.certificates().map(|pair| &pair.certificate);
        certificates
            .chain(plan.authorities())
            .map(|pem| (pem.path.clone(), Arc::clone(&pem.text)))
            .collect()
    };
    let old = files(old);
    files(new)
        .iter()
        .filter(|(path, text)| old.get(*path).is_some_and(|before| before != *text))
        .map(|(path, _)| format!("renewed certificate {path}"))
        .collect()
}

/// Whether two things are told the same way: the content of certificates is no part of what serializes.
fn same<T: PartialEq + Serialize>(old: &T, new: &T) -> bool {
    old == new || serde_json::to_value(old).ok() == serde_json::to_value(new).ok()
}

/// Values that only a restart of the command changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RestartOnly {
    admin: Option<SocketAddr>,
    workers: Option<u32>,
    connections: Option<u32>,
    heap_mib: Option<u32>,
}

impl RestartOnly {
    /// Those of a plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        Self {
            admin: plan.admin,
            workers: plan.workers,
            connections: plan.client_limits.connections,
            heap_mib: plan.client_limits.heap_mib,
        }
    }

    /// Returns the keys that a change from `old` to `new` leaves for a restart. `self` are the values that the command
    /// was started with: a key that is back at its value needs none.
    pub(crate) fn needs_restart(self, old: &Plan, new: &Plan) -> Vec<&'static str> {
        let (old, new) = (Self::of(old), Self::of(new));
        let mut keys = Vec::new();
        if old.admin != new.admin && new.admin != self.admin {
            keys.push("gateway.admin");
        }
        if old.workers != new.workers && new.workers != self.workers {
            keys.push("gateway.workers");
        }
        if old.connections != new.connections && new.connections != self.connections {
            keys.push("gateway.limits.connections");
        }
        if old.heap_mib != new.heap_mib && new.heap_mib != self.heap_mib {
            keys.push("gateway.limits.heap_mib");
        }
        keys
    }
}

fn by_name(projects: &[Project]) -> BTreeMap<&str, &Project> {
    projects
        .iter()
        .map(|project| (project.name.as_str(), project))
        .collect()
}

/// Added, changed and removed things of one kind.
fn compare<'a, T: 'a>(
    noun: &str,
    old: impl Iterator<Item = (&'a str, &'a T)>,
    new: impl Iterator<Item = (&'a str, &'a T)>,
    equal: impl Fn(&T, &T) -> bool,
) -> Vec<String> {
    let old: BTreeMap<&str, &T> = old.collect();
    let new: BTreeMap<&str, &T> = new.collect();
    let mut lines = Vec::new();
    for (name, item) in &new {
        match old.get(name) {
            None => lines.push(format!("added {noun} {name}")),
            Some(before) if !equal(before, item) => lines.push(format!("changed {noun} {name}")),
            Some(_) => {}
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        lines.push(format!("removed {noun} {name}"));
    }
    if lines.len() > NAMED {
        let rest = lines.len() - NAMED;
        lines.truncate(NAMED);
        lines.push(format!("and {rest} more {noun}s"));
    }
    lines
}

fn routes(old: &Project, new: &Project) -> Vec<String> {
    let (old_routes, new_routes) = (named_routes(old), named_routes(new));
    let mut lines = compare(
        "route",
        old_routes
            .iter()
            .map(|(name, route)| (name.as_str(), *route)),
        new_routes
            .iter()
            .map(|(name, route)| (name.as_str(), *route)),
        same_route,
    );
    if common(&old_routes, &new_routes) != common(&new_routes, &old_routes) {
        lines.push(format!(
            "changed the order of project {}'s routes",
            new.name
        ));
    }
    lines
}

fn named_routes(project: &Project) -> Vec<(String, &Route)> {
    project
        .routes
        .iter()
        .map(|route| (format!("{}/{}", project.name, route.name), route))
        .collect()
}

/// The names of `routes` that are among `others` too, in the order of `routes`.
fn common<'a>(routes: &'a [(String, &Route)], others: &[(String, &Route)]) -> Vec<&'a str> {
    let others: BTreeSet<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
    routes
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| others.contains(name))
        .collect()
}

/// Places in the file are no part of it.
fn same_route(old: &Route, new: &Route) -> bool {
    (&old.matches, &old.action, &old.filter) == (&new.matches, &new.action, &new.filter)
}

fn plugins(old: &[PluginEntry], new: &[PluginEntry]) -> Vec<String> {
    let old: BTreeMap<&str, &PluginEntry> = old
        .iter()
        .map(|entry| (entry.name.as_str(), entry))
        .collect();
    let mut lines = Vec::new();
    for entry in new {
        let Some(before) = old.get(entry.name.as_str()) else {
            lines.push(format!("added plugin {} {}", entry.name, short(entry)));
            continue;
        };
        if before.digest != entry.digest {
            lines.push(format!(
                "plugin {} {} → {}",
                entry.name,
                short(before),
                short(entry)
            ));
        }
        if (before.enabled, &before.config) != (entry.enabled, &entry.config) {
            lines.push(format!("changed plugin {} at the gateway", entry.name));
        }
        let settings = |entry: &PluginEntry| PluginEntry {
            digest: String::new(),
            version: None,
            source: outrider_plugin_formats::PluginSource::Folder(String::new()),
            enabled: false,
            config: None,
            ..entry.clone()
        };
        if settings(before) != settings(entry) {
            lines.push(format!("changed the settings of plugin {}", entry.name));
        }
    }
    for name in old.keys() {
        if !new.iter().any(|entry| entry.name == **name) {
            lines.push(format!("removed plugin {name}"));
        }
    }
    lines
}

/// The beginning of a digest, enough to tell two versions apart.
fn short(entry: &PluginEntry) -> String {
    let digest = entry.digest.strip_prefix("sha256:");
    digest.unwrap_or(&entry.digest).chars().take(6).collect()
}

#[cfg(test)]
pub(crate) mod tests;
