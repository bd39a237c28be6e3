//! Probable mistakes: what Envoy would do as it is written, and hardly anybody means. Warnings only.

use std::collections::BTreeSet;

use outrider_plugin_formats::Problem;

use super::files::Source;
use super::gateway::Built;
use super::plugins::Plugins;
use super::projects::{Project, Route};
use super::upstreams::Upstreams;
use super::{Context, Origin, placed};
use crate::plan::{Action, Condition, Forward, Match, PathMatch, Redirect, Use, ValueMatch};

/// Reasons to retry after which the upstream may have done what it was asked to.
const AFTER_THE_FACT: [&str; 4] = ["5xx", "gateway-error", "reset", "retriable-4xx"];
/// Methods whose requests do something each time (RFC 9110, section 9.2.2).
const NOT_IDEMPOTENT: [&str; 2] = ["POST", "PATCH"];

/// Warns of a project's routes.
pub(super) fn of_routes(context: &mut Context<'_>, origin: &Origin, routes: &[Route]) {
    for (place, route) in routes.iter().enumerate() {
        let (Some(matches), Some(action)) = (&route.matches, &route.action) else {
            continue;
        };
        literal_star(context, origin, route, matches);
        match action {
            Action::Redirect(redirect) => {
                let before = routes.get(..place).unwrap_or_default();
                redirect_loop(context, origin, (before, route), matches, redirect);
            }
            Action::Forward(forward) => {
                retried_twice(context, origin, route, matches, forward);
                short_grpc(context, origin, route, matches, forward);
            }
            Action::Respond(_) => {}
        }
    }
}

fn literal_star(context: &mut Context<'_>, origin: &Origin, route: &Route, matches: &Match) {
    let (key, path) = match &matches.path {
        PathMatch::Exact(path) => ("path", path),
        PathMatch::Prefix(path) => ("prefix", path),
        PathMatch::Regex(_) => return,
    };
    if !path.contains('*') {
        return;
    }
    let before = path.split('*').next().unwrap_or_default();
    context.warn(
        origin,
        route.location,
        format!(
            "the route `{}` takes only paths with a star in them: `*` stands for itself in `{key}: {path}`",
            route.name
        ),
        format!("for any path below it, write `prefix: {before}`; for a pattern, `regex`"),
    );
}

/// Where a redirect leads back to the route: to the same host, by a scheme that the route's listeners serve, to a path that
/// it takes and no route before it.
fn redirect_loop(
    context: &mut Context<'_>,
    origin: &Origin,
    (before, route): (&[Route], &Route),
    matches: &Match,
    redirect: &Redirect,
) {
    if redirect.host.is_some() || redirect.port.is_some() {
        return;
    }
    let leads_back = match (&redirect.path, &redirect.prefix, &matches.path) {
        (Some(to), _, from) => {
            let is_taken = (before.iter().filter_map(|route| route.matches.as_ref()))
                .any(|matches| takes(&matches.path, to));
            takes(from, to) && !is_taken
        }
        (None, Some(to), PathMatch::Prefix(from)) => to.starts_with(from.as_str()),
        (None, Some(_), _) => false,
        (None, None, _) => true,
    };
    let scheme = match redirect.scheme {
        Some(scheme) if !context.schemes.contains(scheme) => return,
        scheme => scheme,
    };
    if !leads_back {
        return;
    }
    let Some(scheme) = scheme else {
        context.warn(
            origin,
            route.location,
            format!(
                "the route `{}` redirects to a path that it takes itself, again and again",
                route.name
            ),
            "redirect from another `path` or `prefix`, or put a route for the new path before it",
        );
        return;
    };
    let excludes = |condition: &Condition| {
        condition.name == "x-forwarded-proto"
            && match &condition.value {
                ValueMatch::Exact(value) => (value == scheme) == condition.invert,
                // Whatever else it says, somebody thought of it.
                _ => true,
            }
    };
    if matches.headers.iter().any(excludes) {
        return;
    }
    let other = if scheme == "https" { "http" } else { "https" };
    context.warn(
        origin,
        route.location,
        format!(
            "the route `{}` redirects requests that come by {scheme} to themselves, again and again",
            route.name
        ),
        format!(
            "add `headers: [{{name: x-forwarded-proto, exact: {other}}}]` to its `match`, and a route for the others"
        ),
    );
}

/// Whether a path is one of those that a route takes, as far as the path decides.
fn takes(matches: &PathMatch, path: &str) -> bool {
    match matches {
        PathMatch::Exact(exact) => exact == path,
        PathMatch::Prefix(prefix) => path.starts_with(prefix.as_str()),
        // It may, and nobody is to be warned for nothing.
        PathMatch::Regex(_) => false,
    }
}

fn retried_twice(
    context: &mut Context<'_>,
    origin: &Origin,
    route: &Route,
    matches: &Match,
    forward: &Forward,
) {
    let Some(retries) = &forward.retries else {
        return;
    };
    let Some(after) = (retries.on.iter()).find(|on| AFTER_THE_FACT.contains(on)) else {
        return;
    };
    let methods = &matches.methods;
    let Some(method) = (NOT_IDEMPOTENT.iter())
        .find(|method| methods.is_empty() || methods.iter().any(|name| name == *method))
    else {
        return;
    };
    context.warn(
        origin,
        route.location,
        format!(
            "the route `{}` sends requests of {method} again after `{after}`, when the upstream may have done what they ask",
            route.name
        ),
        "retry on `[connect-failure, refused-stream]`, or name idempotent methods in `match.methods`",
    );
}

fn short_grpc(
    context: &mut Context<'_>,
    origin: &Origin,
    route: &Route,
    matches: &Match,
    forward: &Forward,
) {
    let is_grpc = |condition: &Condition| {
        condition.name == "content-type"
            && match &condition.value {
                ValueMatch::Exact(text)
                | ValueMatch::Prefix(text)
                | ValueMatch::Contains(text)
                | ValueMatch::Suffix(text)
                | ValueMatch::Regex(text) => text.contains("grpc"),
                ValueMatch::Present(_) => false,
            }
    };
    if forward.timeout.is_none() && matches.headers.iter().any(is_grpc) {
        context.warn(
            origin,
            route.location,
            format!(
                "the route `{}` takes gRPC, and ends its streams after 15 seconds, the default",
                route.name
            ),
            "add `timeout: 0s`, or how long a call may take",
        );
    }
}

/// Warnings of plugins and upstreams that are declared and not used.
pub(super) fn unused(
    sources: &[Source],
    gateway: &Built,
    plugins: &Plugins,
    projects: &[Project],
    upstreams: &Upstreams,
) -> Vec<Problem> {
    let mut warnings = Vec::new();
    let routes = || projects.iter().flat_map(|project| &project.routes);
    let uses: Vec<&Use> = (gateway.uses.iter())
        .chain(projects.iter().flat_map(|project| &project.uses))
        .chain(routes().flat_map(|route| &route.uses))
        .collect();
    let used: BTreeSet<&str> = uses.iter().map(|item| item.plugin.as_str()).collect();
    for (name, declared) in plugins {
        if !used.contains(name.as_str()) {
            warnings.push(placed(
                &declared.origin,
                declared.location,
                format!("no scope uses the plugin `{name}`"),
                "name it under `use:` of the gateway, a project or a route, or remove it"
                    .to_owned(),
            ));
        }
    }
    // A plugin that may call an upstream is its user; which of those it may call it does, nobody can tell.
    let is_allowed = |name: &str| {
        (plugins
            .values()
            .filter_map(|declared| declared.loaded.as_ref()))
        .any(|loaded| loaded.entry.allow.upstreams.has(name))
    };
    let is_forwarded = |name: &str| {
        routes().any(|route| match &route.action {
            Some(Action::Forward(forward)) => {
                forward.to.iter().any(|(to, _)| to == name)
                    || (forward.mirror.as_ref()).is_some_and(|mirror| mirror.upstream == name)
            }
            None | Some(Action::Redirect(_) | Action::Respond(_)) => false,
        })
    };
    for source in sources {
        let entries = source.file.upstreams.value().map(|entries| &entries.0);
        for (name, _) in entries.into_iter().flatten() {
            if upstreams.names.contains(&name.value)
                && !is_forwarded(&name.value)
                && !is_allowed(&name.value)
            {
                warnings.push(placed(
                    &source.origin,
                    name.location,
                    format!("no route and no plugin uses the upstream `{}`", name.value),
                    "name it in `to:` of a route or `allow:` of a plugin, or remove it".to_owned(),
                ));
            }
        }
    }
    warnings
}
