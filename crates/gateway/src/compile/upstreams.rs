//! `upstreams`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use outrider_plugin_formats::FilterConfig;
use outrider_yaml::{Field, Located, Location, Shape};

use super::files::Source;
use super::{Context, Origin, tls};
use crate::model::{self, Protocol, text};
use crate::plan::{
    Endpoint, HealthCheck, LoadBalancing, OutlierDetection, Upstream, UpstreamLimits,
    UpstreamProtocol, UpstreamTls,
};

const DEFAULT_CONNECT_TIMEOUT: u64 = 5000;
/// Connections, waiting requests and requests under way. Envoy's own default, 1024, is met by ordinary load.
const DEFAULT_LIMIT: u32 = 10_000;
/// Envoy's own default without a budget is three retries at a time.
const DEFAULT_RETRY_PERCENT: u32 = 25;
const DEFAULT_RETRY_CONCURRENCY: u32 = 50;

/// All upstreams.
#[derive(Default)]
pub(super) struct Upstreams {
    /// Every name that is declared, even if what it names is wrong.
    pub(super) names: BTreeSet<String>,
    /// Those that could be built.
    pub(super) built: Vec<Upstream>,
}

/// Clusters for callouts, by the name of their upstream: one for each upstream that a plugin may call.
pub(super) fn callout_clusters(
    filter: &FilterConfig,
    upstreams: &[Upstream],
) -> BTreeMap<String, String> {
    upstreams
        .iter()
        .map(|upstream| &upstream.name)
        .filter(|name| {
            let mut plugins = filter.plugins.iter();
            plugins.any(|plugin| plugin.allow.upstreams.has(name))
        })
        // No upstream has a slash in its name.
        .map(|name| (name.clone(), format!("{name}/callouts")))
        .collect()
}

pub(super) fn build(context: &mut Context<'_>, sources: &[Source]) -> Upstreams {
    let mut upstreams = Upstreams::default();
    let mut places: BTreeMap<&str, (&Origin, Location)> = BTreeMap::new();
    for source in sources {
        let origin = &source.origin;
        let Some(entries) = source.file.upstreams.value() else {
            continue;
        };
        for (name, upstream) in &entries.0 {
            if let Err(complaint) = text::upstream_name(&name.value) {
                let (message, mend) = complaint.split_once("; ").unwrap_or((&complaint, ""));
                context.problem(origin, name.location, message, mend);
            }
            if let Some((first, place)) = places.insert(&name.value, (origin, name.location)) {
                context.problem(
                    origin,
                    name.location,
                    format!(
                        "two upstreams have the name `{}`, the other is at {}:{}",
                        name.value, first.file, place.line
                    ),
                    "give one of them another name",
                );
            }
            upstreams.names.insert(name.value.clone());
            if let Some(upstream) = upstream.get() {
                let built = one(context, origin, name, &upstream.value);
                upstreams.built.push(built);
            }
        }
    }
    upstreams
}

fn one(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    upstream: &model::Upstream,
) -> Upstream {
    let what = format!("the upstream `{}`", name.value);
    let list = context.required(
        origin,
        name.location,
        &what,
        "endpoints",
        &upstream.endpoints,
    );
    let mut endpoints = Vec::new();
    if let Some(list) = list {
        if list.value.is_empty() {
            context.problem(
                origin,
                list.location,
                format!("{what} has no endpoint"),
                "add one: `- 127.0.0.1:8080`",
            );
        }
        for endpoint in list.value.iter().filter_map(Field::get) {
            let (address, weight) = match &endpoint.value {
                Shape::Text(address) => (Some(address), 1),
                Shape::Mapping(long) => {
                    let address = context.required(
                        origin,
                        endpoint.location,
                        "the endpoint",
                        "address",
                        &long.address,
                    );
                    (
                        address.map(|address| &address.value),
                        long.weight.value().map_or(1, |weight| weight.0),
                    )
                }
            };
            if let Some(address) = address {
                let host = &address.0.host;
                if host.parse::<IpAddr>().is_err()
                    && let Err(why) = context.loader.resolves(host)
                {
                    context.warn(
                        origin,
                        endpoint.location,
                        format!("`{host}` cannot be resolved here: {why}"),
                        "while Envoy cannot either, requests to this endpoint get status 503",
                    );
                }
                endpoints.push(Endpoint {
                    host: address.0.host.clone(),
                    port: address.0.port,
                    weight,
                });
            }
        }
    }
    let health_check = upstream
        .health_check
        .get()
        .and_then(|check| health_check(context, origin, check));
    let tls = upstream
        .tls
        .get()
        .map(|tls| self::tls(context, origin, tls, &endpoints));
    if let Some(timeout) = upstream.connect_timeout.get()
        && timeout.value.0 == 0
    {
        context.problem(
            origin,
            timeout.location,
            format!("{what} gives a connection no time"),
            "write a `connect_timeout` above zero",
        );
    }
    Upstream {
        name: name.value.clone(),
        endpoints,
        load_balancing: upstream
            .load_balancing
            .value()
            .copied()
            .unwrap_or(LoadBalancing::RoundRobin),
        health_check,
        tls,
        protocol: match upstream.protocol.value() {
            Some(Protocol::Http2) => UpstreamProtocol::Http2,
            Some(Protocol::Http1) | None => UpstreamProtocol::Http1,
        },
        connect_timeout: upstream
            .connect_timeout
            .value()
            .map_or(DEFAULT_CONNECT_TIMEOUT, |timeout| timeout.0),
        outlier_detection: upstream
            .outlier_detection
            .get()
            .map(|detection| outlier_detection(context, origin, detection)),
        limits: limits(upstream.limits.value()),
    }
}

fn outlier_detection(
    context: &mut Context<'_>,
    origin: &Origin,
    detection: &Located<model::OutlierDetection>,
) -> OutlierDetection {
    let value = &detection.value;
    for (key, field) in [
        ("interval", &value.interval),
        ("base_ejection_time", &value.base_ejection_time),
    ] {
        if let Some(field) = field.get()
            && field.value.0 == 0
        {
            context.problem(
                origin,
                field.location,
                format!("the `{key}` of `outlier_detection` is zero"),
                "write a duration above zero",
            );
        }
    }
    // Envoy's own defaults.
    OutlierDetection {
        consecutive_5xx: value.consecutive_5xx.value().map_or(5, |count| count.0),
        interval: value.interval.value().map_or(10_000, |time| time.0),
        base_ejection_time: value
            .base_ejection_time
            .value()
            .map_or(30_000, |time| time.0),
        max_ejection_percent: value
            .max_ejection_percent
            .value()
            .map_or(10, |percent| percent.0),
    }
}

fn limits(written: Option<&model::UpstreamLimits>) -> UpstreamLimits {
    let budget = written.and_then(|limits| limits.retry_budget.value());
    UpstreamLimits {
        connections: written
            .and_then(|limits| limits.connections.value())
            .map_or(DEFAULT_LIMIT, |limit| limit.0),
        pending_requests: written
            .and_then(|limits| limits.pending_requests.value())
            .map_or(DEFAULT_LIMIT, |limit| limit.0),
        requests: written
            .and_then(|limits| limits.requests.value())
            .map_or(DEFAULT_LIMIT, |limit| limit.0),
        retry_percent: budget
            .and_then(|budget| budget.percent.value())
            .map_or(DEFAULT_RETRY_PERCENT, |percent| percent.0),
        retry_min_concurrency: budget
            .and_then(|budget| budget.min_concurrency.value())
            .map_or(DEFAULT_RETRY_CONCURRENCY, |count| count.0),
    }
}

fn health_check(
    context: &mut Context<'_>,
    origin: &Origin,
    check: &Located<model::HealthCheck>,
) -> Option<HealthCheck> {
    let path = context.required(
        origin,
        check.location,
        "the health check",
        "path",
        &check.value.path,
    );
    for (key, field) in [
        ("interval", &check.value.interval),
        ("timeout", &check.value.timeout),
    ] {
        if let Some(field) = field.get()
            && field.value.0 == 0
        {
            context.problem(
                origin,
                field.location,
                format!("the health check's `{key}` is zero"),
                "write a duration above zero",
            );
        }
    }
    Some(HealthCheck {
        path: path?.value.0.clone(),
        interval: check.value.interval.value().map_or(5000, |time| time.0),
        timeout: check.value.timeout.value().map_or(1000, |time| time.0),
        healthy_threshold: check
            .value
            .healthy_threshold
            .value()
            .map_or(1, |number| number.0),
        unhealthy_threshold: check
            .value
            .unhealthy_threshold
            .value()
            .map_or(3, |number| number.0),
    })
}

fn tls(
    context: &mut Context<'_>,
    origin: &Origin,
    tls: &Located<model::UpstreamTls>,
    endpoints: &[Endpoint],
) -> UpstreamTls {
    let value = &tls.value;
    let what = "the upstream's `tls`";
    if value.ca.is_missing() {
        context.problem(
            origin,
            tls.location,
            format!("{what} does not say which authorities it trusts"),
            "add `ca:` with their PEM file, or `ca: none` to leave certificates unchecked",
        );
    }
    let ca = match value.ca.get() {
        Some(ca) if ca.value.0 != "none" => Some(tls::authorities(context, origin, ca)),
        _ => None,
    };
    let sni = match (value.sni.value(), endpoints) {
        (Some(sni), _) => Some(sni.0.clone()),
        (None, [only]) if only.host.parse::<IpAddr>().is_err() => Some(only.host.clone()),
        _ => None,
    };
    if ca.is_some() && sni.is_none() && value.sni.is_missing() && !endpoints.is_empty() {
        context.problem(
            origin,
            tls.location,
            format!("{what} does not say whose certificate it expects"),
            "add `sni:` with the server's name",
        );
    }
    let client = match (value.certificate.get(), value.private_key.get()) {
        (Some(certificate), Some(private_key)) => {
            Some(tls::certificate(context, origin, certificate, private_key).0)
        }
        _ => None,
    };
    for (one, other, key) in [
        (&value.certificate, &value.private_key, "private_key"),
        (&value.private_key, &value.certificate, "certificate"),
    ] {
        if let Some(location) = one.location()
            && other.is_missing()
        {
            context.problem(
                origin,
                location,
                "a client certificate needs its private key, and the key its certificate",
                format!("add `{key}:`"),
            );
        }
    }
    UpstreamTls { sni, ca, client }
}
