//! The Envoy that is measured: one listener for each variant, alike but for its filters.
//!
//! What ticks by the clock is slowed down: under callgrind a second is long, and a tick is counted.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::workload::Shape;

const UPSTREAM: &str = "upstream";

/// Server that answers the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Envoy itself.
    Envoy,
    /// The upstream.
    Upstream,
}

impl From<Shape> for Answers {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::Plain | Shape::TenHeaders | Shape::Browser | Shape::Traced => Self::Envoy,
            Shape::Body => Self::Upstream,
        }
    }
}

/// One listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    pub(crate) answers: Answers,
    pub(crate) filters: Vec<Value>,
    /// Routes in front of the one that takes everything, each a path with its
    /// `typed_per_filter_config`; Envoy answers them.
    pub(crate) routes: Vec<(String, Option<Value>)>,
    /// Cluster of the upstream.
    pub(crate) cluster: String,
    /// Further fields of the HTTP connection manager.
    pub(crate) manager: serde_json::Map<String, Value>,
}

impl Listener {
    pub(crate) fn new(address: SocketAddr, answers: Answers, filters: Vec<Value>) -> Self {
        Self {
            address,
            answers,
            filters,
            routes: Vec::new(),
            cluster: UPSTREAM.to_owned(),
            manager: serde_json::Map::new(),
        }
    }

    /// The listener as Envoy's configuration has it.
    pub(crate) fn render(self, number: usize) -> Value {
        let direct = json!({ "status": 200, "body": { "inline_string": "ok" } });
        let mut routes: Vec<_> = self
            .routes
            .into_iter()
            .map(|(path, filters)| {
                let mut route = json!({ "match": { "path": path }, "direct_response": direct });
                if let (Some(filters), Some(route)) = (filters, route.as_object_mut()) {
                    route.insert("typed_per_filter_config".to_owned(), filters);
                }
                route
            })
            .collect();
        let everything = json!({ "prefix": "/" });
        routes.push(match self.answers {
            Answers::Envoy => json!({ "match": everything, "direct_response": direct }),
            // On a busy machine an answer may take longer than the usual 15 seconds.
            Answers::Upstream => json!({
                "match": everything,
                "route": { "cluster": self.cluster, "timeout": "600s" },
            }),
        });
        let mut filters = self.filters;
        filters.push(json!({
            "name": "router",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            },
        }));
        let mut manager = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": format!("listener-{number}"),
            "codec_type": "HTTP1",
            "generate_request_id": false,
            "route_config": {
                "name": format!("routes-{number}"),
                "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": routes }],
            },
            "http_filters": filters,
        });
        if let Some(manager) = manager.as_object_mut() {
            manager.extend(self.manager);
        }
        json!({
            "name": format!("listener-{number}"),
            "address": address(self.address),
            "filter_chains": [{ "filters": [{ "name": "http", "typed_config": manager }] }],
        })
    }
}

/// The whole bootstrap; `admin` has a port of Envoy's own choice.
pub(crate) fn bootstrap(
    listeners: Vec<Listener>,
    upstream: Option<SocketAddr>,
    admin: bool,
) -> Value {
    let clusters: Vec<_> = upstream
        .iter()
        .map(|upstream| {
            json!({
                "name": UPSTREAM,
                "type": "STATIC",
                "load_assignment": {
                    "cluster_name": UPSTREAM,
                    "endpoints": [{ "lb_endpoints": [
                        { "endpoint": { "address": address(*upstream) } },
                    ] }],
                },
            })
        })
        .collect();
    let listeners: Vec<_> = listeners
        .into_iter()
        .enumerate()
        .map(|(number, listener)| listener.render(number))
        .collect();
    let patient = json!({ "miss_timeout": "600s", "megamiss_timeout": "600s" });
    let mut bootstrap = json!({
        "node": { "id": "bench", "cluster": "bench" },
        "stats_flush_interval": "299s",
        "watchdogs": { "main_thread_watchdog": patient, "worker_watchdog": patient },
        "static_resources": { "listeners": listeners, "clusters": clusters },
    });
    if let (true, Some(bootstrap)) = (admin, bootstrap.as_object_mut()) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        bootstrap.insert("admin".to_owned(), json!({ "address": address(any) }));
    }
    bootstrap
}

fn address(address: SocketAddr) -> Value {
    json!({ "socket_address": {
        "address": address.ip().to_string(),
        "port_value": address.port(),
    } })
}
