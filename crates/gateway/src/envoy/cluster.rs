//! An upstream as a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{Form, duration, http2_options, secret, socket_address, typed};
use crate::plan::{
    Action, Endpoint, HealthCheck, LoadBalancing, OutlierDetection, Plan, Upstream, UpstreamLimits,
    UpstreamProtocol, UpstreamTls,
};

/// The clusters of all upstreams, each followed by its cluster for callouts where it has one.
pub(super) fn clusters(plan: &Plan, form: Form<'_>) -> Vec<Value> {
    let mut clusters = Vec::new();
    for upstream in &plan.upstreams {
        clusters.push(cluster(plan, upstream, form));
        if let Some(name) = plan.filter.callout_clusters.get(&upstream.name) {
            clusters.push(cluster(plan, &for_callouts(upstream, name), form));
        }
    }
    let limits: BTreeMap<&str, UpstreamLimits> = plan
        .upstreams
        .iter()
        .map(|upstream| (upstream.name.as_str(), upstream.limits))
        .collect();
    for (first, second) in fallbacks(plan) {
        let limits = limits.get(first).copied();
        clusters.push(aggregate(first, second, limits, plan));
    }
    clusters
}

/// Name of the cluster that sends requests to the upstream `second` while no machine of `first` is healthy. No upstream has a
/// slash in its name.
pub(super) fn with_fallback(first: &str, second: &str) -> String {
    format!("{first}/or/{second}")
}

/// The pairs of upstreams of which the second stands in for the first.
fn fallbacks(plan: &Plan) -> BTreeSet<(&str, &str)> {
    let routes = plan.projects.iter().flat_map(|project| &project.routes);
    let forwards = routes.filter_map(|route| match &route.action {
        Action::Forward(forward) => Some(forward),
        _ => None,
    });
    forwards
        .filter_map(|forward| {
            let (first, _) = forward.to.first()?;
            Some((first.as_str(), forward.fallback.as_deref()?))
        })
        .collect()
}

/// Two clusters as one: Envoy takes the first for its highest priority. Connections, and what they speak, are those of the
/// cluster that serves; requests and retries are limited here, too.
fn aggregate(first: &str, second: &str, limits: Option<UpstreamLimits>, plan: &Plan) -> Value {
    let mut cluster = json!({
        "name": with_fallback(first, second),
        "lb_policy": "CLUSTER_PROVIDED",
        "per_connection_buffer_limit_bytes": plan.body_limit,
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": typed(
                "envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                json!({ "clusters": [first, second] }),
            ),
        },
    });
    if let (Some(limits), Some(cluster)) = (limits, cluster.as_object_mut()) {
        cluster.insert("circuit_breakers".to_owned(), self::limits(limits));
    }
    cluster
}

/// The upstream of callouts: the same settings under another name. Where there is one endpoint, checking its
/// health a second time would choose no other.
fn for_callouts(upstream: &Upstream, name: &str) -> Upstream {
    let mut upstream = upstream.clone();
    name.clone_into(&mut upstream.name);
    if let [only] = &*upstream.endpoints
        && only.host.parse::<IpAddr>().is_ok()
    {
        upstream.health_check = None;
    }
    upstream
}

fn cluster(plan: &Plan, upstream: &Upstream, form: Form<'_>) -> Value {
    let mut cluster = Map::new();
    let mut set = |key: &str, value: Value| {
        cluster.insert(key.to_owned(), value);
    };
    set("name", upstream.name.as_str().into());
    let fixed = upstream
        .endpoints
        .iter()
        .all(|endpoint| endpoint.host.parse::<IpAddr>().is_ok());
    if fixed {
        set("type", "STATIC".into());
    } else {
        set("type", "STRICT_DNS".into());
        set("dns_lookup_family", "V4_PREFERRED".into());
    }
    set("connect_timeout", duration(upstream.connect_timeout));
    set("per_connection_buffer_limit_bytes", plan.body_limit.into());
    let policy = match upstream.load_balancing {
        LoadBalancing::RoundRobin => "ROUND_ROBIN",
        LoadBalancing::LeastRequest => "LEAST_REQUEST",
        LoadBalancing::Random => "RANDOM",
        LoadBalancing::RingHash => "RING_HASH",
        LoadBalancing::Maglev => "MAGLEV",
    };
    set("lb_policy", policy.into());
    set("circuit_breakers", limits(upstream.limits));
    let endpoints: Vec<Value> = upstream.endpoints.iter().map(endpoint).collect();
    set(
        "load_assignment",
        json!({
            "cluster_name": upstream.name,
            "endpoints": [{ "lb_endpoints": endpoints }],
        }),
    );
    if let Some(check) = &upstream.health_check {
        set(
            "health_checks",
            json!([health_check(check, upstream.protocol)]),
        );
    }
    if let Some(detection) = upstream.outlier_detection {
        set("outlier_detection", outlier_detection(detection));
    }
    if let Some(tls) = &upstream.tls {
        set("transport_socket", self::tls(tls, upstream.protocol, form));
    }
    let protocol = match upstream.protocol {
        // Envoy drops the trailers of HTTP/1.1 unless told otherwise.
        UpstreamProtocol::Http1 => json!({ "http_protocol_options": { "enable_trailers": true } }),
        UpstreamProtocol::Http2 => json!({ "http2_protocol_options": http2_options(plan) }),
    };
    let options = typed(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        json!({ "explicit_http_config": protocol }),
    );
    set(
        "typed_extension_protocol_options",
        json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options }),
    );
    Value::Object(cluster)
}

fn outlier_detection(detection: OutlierDetection) -> Value {
    json!({
        "consecutive_5xx": detection.consecutive_5xx,
        "interval": duration(detection.interval),
        "base_ejection_time": duration(detection.base_ejection_time),
        "max_ejection_percent": detection.max_ejection_percent,
        // Compared with the others' it would depend on how many machines there are.
        "enforcing_success_rate": 0,
    })
}

fn limits(limits: UpstreamLimits) -> Value {
    json!({
        "thresholds": [{
            "max_connections": limits.connections,
            "max_pending_requests": limits.pending_requests,
            "max_requests": limits.requests,
            "retry_budget": {
                "budget_percent": { "value": limits.retry_percent },
                "min_retry_concurrency": limits.retry_min_concurrency,
            },
        }],
    })
}

fn endpoint(endpoint: &Endpoint) -> Value {
    json!({
        "endpoint": { "address": socket_address(&endpoint.host, endpoint.port) },
        "load_balancing_weight": endpoint.weight,
    })
}

fn health_check(check: &HealthCheck, protocol: UpstreamProtocol) -> Value {
    let mut http = json!({ "path": check.path });
    if let (UpstreamProtocol::Http2, Some(http)) = (protocol, http.as_object_mut()) {
        http.insert("codec_client_type".to_owned(), "HTTP2".into());
    }
    json!({
        "interval": duration(check.interval),
        // Without it, an upstream that has had no request yet is asked once a minute.
        "no_traffic_interval": duration(check.interval),
        "timeout": duration(check.timeout),
        "healthy_threshold": check.healthy_threshold,
        "unhealthy_threshold": check.unhealthy_threshold,
        "http_health_check": http,
    })
}

fn tls(tls: &UpstreamTls, protocol: UpstreamProtocol, form: Form<'_>) -> Value {
    let mut common = Map::new();
    if protocol == UpstreamProtocol::Http2 {
        common.insert("alpn_protocols".to_owned(), json!(["h2"]));
    }
    if let Some(ca) = &tls.ca {
        let mut checks = Map::new();
        if let Some(sni) = &tls.sni {
            let kind = if sni.parse::<IpAddr>().is_ok() {
                "IP_ADDRESS"
            } else {
                "DNS"
            };
            // Signed by the authority is not enough: it has to be this server's certificate.
            checks.insert(
                "match_typed_subject_alt_names".to_owned(),
                json!([{ "san_type": kind, "matcher": { "exact": sni } }]),
            );
        }
        secret::authorities(&mut common, ca, checks, form);
    }
    if let Some(client) = &tls.client {
        secret::own(&mut common, std::slice::from_ref(client), form);
    }
    let mut context = json!({ "common_tls_context": common });
    if let (Some(sni), Some(context)) = (&tls.sni, context.as_object_mut())
        && sni.parse::<IpAddr>().is_err()
    {
        context.insert("sni".to_owned(), sni.as_str().into());
    }
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed(
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            context,
        ),
    })
}
