//! Which plugins a route's streams pass, in order: the gateway's entries with the route's document, or
//! else the project's, laid over.

use std::cmp::Reverse;

use outrider_gateway::plan::{Plan, Project, Route};

/// The names of the plugins, in the order that requests meet them.
pub(crate) fn chain<'a>(plan: &'a Plan, project: &Project, route: &Route) -> Vec<&'a str> {
    let overlay = route.filter.as_ref().or(project.filter.as_ref());
    let mut entries: Vec<_> = plan
        .filter
        .plugins
        .iter()
        .filter(|entry| {
            overlay
                .and_then(|overlay| {
                    overlay
                        .plugins
                        .iter()
                        .find(|plugin| plugin.name == entry.name)
                })
                .and_then(|plugin| plugin.enabled)
                .unwrap_or(entry.enabled)
        })
        .collect();
    entries.sort_by_key(|entry| (entry.group, Reverse(entry.priority), entry.name.as_str()));
    entries
        .into_iter()
        .map(|entry| entry.name.as_str())
        .collect()
}
