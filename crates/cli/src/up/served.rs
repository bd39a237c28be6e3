//! What a running gateway serves, as a page for people.

use std::net::SocketAddr;

use outrider_gateway::plan::{
    Action, Listener, PathMatch, Plan, Project, Protocols, Route, Upstream,
};

use crate::output::{self, BOLD, DIM, Styled};
use crate::up::chain::chain;

/// How many routes of a project, and how many upstreams, are shown before the rest is counted.
const SHOWN: usize = 20;

/// The lines. `addresses` are those that Envoy really listens at, by listener; they differ from the
/// plan's where it says port 0.
pub(crate) fn page(
    plan: &Plan,
    addresses: &[(String, SocketAddr)],
    admin: SocketAddr,
) -> Vec<String> {
    let mut lines = vec![String::new()];
    for listener in &plan.listeners {
        let address = addresses
            .iter()
            .find(|(name, _)| *name == listener.name)
            .map_or(listener.address, |(_, address)| *address);
        lines.push(format!(
            "  {}  {}",
            Styled(BOLD, url(listener, address)),
            Styled(
                DIM,
                format_args!("listener {}, {}", listener.name, protocols(listener))
            )
        ));
    }
    lines.push(format!(
        "  http://{admin}  {}",
        Styled(DIM, "admin; what plugins do is at /outrider")
    ));
    for project in &plan.projects {
        lines.push(String::new());
        lines.push(format!(
            "  project {}  {}",
            Styled(BOLD, &project.name),
            project.hosts.join(", ")
        ));
        lines.extend(routes(plan, project));
    }
    if !plan.upstreams.is_empty() {
        lines.push(String::new());
        lines.push("  upstreams".to_owned());
        lines.extend(table(
            plan.upstreams.iter().take(SHOWN).map(upstream).collect(),
        ));
        lines.extend(more(plan.upstreams.len()));
    }
    lines.push(String::new());
    lines
}

fn url(listener: &Listener, address: SocketAddr) -> String {
    let scheme = if listener.tls.is_some() {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://{address}")
}

fn protocols(listener: &Listener) -> &'static str {
    match listener.protocols {
        Protocols::Http1 => "HTTP/1.1",
        Protocols::Http2 => "HTTP/2",
        Protocols::Both => "HTTP/1.1 and HTTP/2",
    }
}

fn routes(plan: &Plan, project: &Project) -> Vec<String> {
    let rows = project
        .routes
        .iter()
        .take(SHOWN)
        .map(|route| {
            let chain = chain(plan, project, route).join(" → ");
            vec![route.name.clone(), matches(route), action(route), chain]
        })
        .collect();
    let mut lines = table(rows);
    lines.extend(more(project.routes.len()));
    lines
}

fn more(count: usize) -> Option<String> {
    (count > SHOWN).then(|| format!("    and {} more", count - SHOWN))
}

fn matches(route: &Route) -> String {
    let mut text = match &route.matches.path {
        PathMatch::Exact(path) => path.clone(),
        PathMatch::Prefix(prefix) => format!("{prefix}*"),
        PathMatch::Regex(regex) => format!("~ {regex}"),
    };
    if !route.matches.methods.is_empty() {
        text = format!("{} {text}", route.matches.methods.join(","));
    }
    for (what, conditions) in [
        ("headers", &route.matches.headers),
        ("query", &route.matches.query),
        ("cookies", &route.matches.cookies),
    ] {
        if !conditions.is_empty() {
            text = format!("{text} +{what}");
        }
    }
    text
}

fn action(route: &Route) -> String {
    match &route.action {
        Action::Forward(forward) => match forward.to.as_slice() {
            [(upstream, _)] => upstream.clone(),
            several => several
                .iter()
                .map(|(upstream, weight)| format!("{upstream} {weight}"))
                .collect::<Vec<_>>()
                .join(" | "),
        },
        Action::Redirect(redirect) => format!("redirect {}", redirect.status),
        Action::Respond(respond) => format!("respond {}", respond.status),
    }
}

fn upstream(upstream: &Upstream) -> Vec<String> {
    let endpoints: Vec<String> = upstream
        .endpoints
        .iter()
        .take(4)
        .map(|endpoint| {
            if endpoint.host.contains(':') {
                format!("[{}]:{}", endpoint.host, endpoint.port)
            } else {
                format!("{}:{}", endpoint.host, endpoint.port)
            }
        })
        .collect();
    let mut text = endpoints.join(", ");
    if upstream.endpoints.len() > endpoints.len() {
        text = format!(
            "{text} and {} more",
            upstream.endpoints.len() - endpoints.len()
        );
    }
    vec![upstream.name.clone(), text]
}

/// Columns as wide as their widest cell.
fn table(rows: Vec<Vec<String>>) -> Vec<String> {
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    rows.into_iter()
        .map(|row| {
            let cells: Vec<String> = row
                .into_iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            format!("    {}", cells.join("  ")).trim_end().to_owned()
        })
        .collect()
}

/// Prints the page.
pub(crate) fn print(plan: Option<&Plan>, addresses: &[(String, SocketAddr)], admin: SocketAddr) {
    let lines = match plan {
        Some(plan) => page(plan, addresses, admin),
        None => addresses_only(addresses, admin),
    };
    for line in lines {
        output::line(line);
    }
}

/// The lines of a configuration whose plan is not known.
fn addresses_only(addresses: &[(String, SocketAddr)], admin: SocketAddr) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend((addresses.iter()).map(|(name, address)| format!("  {address}  listener {name}")));
    lines.push(format!("  http://{admin}  admin"));
    lines.push(String::new());
    lines
}
