//! The renderer to Envoy: a plan as plain Envoy configuration, in two forms.
//!
//! [`files`] is what `outrider up` runs: a bootstrap and one file each for listeners, clusters, routes
//! and the filter's configuration, which Envoy reads again when another file is renamed over it.
//! Whatever may change while connections stay open is outside the listeners' file: routes and projects
//! are in RDS, plugins in ECDS, upstreams in CDS. [`static_bootstrap`] is all of it in one file.
//!
//! One file for each of Envoy's objects. The choices that Envoy leaves to the edge are in `listener`.
//!
//! The trap: the Struct that carries the module's documents holds every number as a double.

mod bootstrap;
mod cluster;
mod filter;
mod listener;
mod route;
mod secret;
mod yaml;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::plan::Plan;

pub use filter::{
    access_logger, admin_pages, discovered_filter, filter_extension, workers_cluster,
};
pub use yaml::to_yaml;

/// Name of the HTTP filter, of its ECDS resource and of the key of its per-route configuration.
pub const FILTER_NAME: &str = "outrider";
/// Name of the one route configuration that all listeners share.
pub const ROUTE_CONFIGURATION: &str = "outrider";
/// File of the listeners.
pub const LDS_FILE: &str = "lds.json";
/// File of the clusters.
pub const CDS_FILE: &str = "cds.json";
/// File of the routes.
pub const RDS_FILE: &str = "rds.json";
/// File of the filter's configuration.
pub const ECDS_FILE: &str = "ecds.json";

/// What the renderer has to know of the machine that Envoy runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Absolute path of the folder that holds the four files; unused in the static form.
    pub directory: String,
    /// Address of Envoy's admin interface.
    pub admin: SocketAddr,
    /// Envoy's node id.
    pub node: String,
    /// How the files of secrets hold certificates and keys.
    pub secrets: Secrets,
}

/// How certificates and private keys reach Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    /// Their content is in Envoy's files: a certificate and its key change in one step, when somebody writes those.
    Copied,
    /// Envoy reads the user's files, and watches the folder that each certificate is in.
    Named,
}

/// Where an object's parts are.
#[derive(Debug, Clone, Copy)]
enum Form<'l> {
    /// In files of their own.
    Files(&'l Layout),
    /// In the object itself.
    Inline,
}

/// The form with files.
#[derive(Debug, Clone, PartialEq)]
pub struct Files {
    /// What Envoy is started with.
    pub bootstrap: Value,
    /// Listeners, for [`LDS_FILE`].
    pub lds: Value,
    /// Clusters, for [`CDS_FILE`].
    pub cds: Value,
    /// Routes, for [`RDS_FILE`].
    pub rds: Value,
    /// The filter's configuration, for [`ECDS_FILE`].
    pub ecds: Value,
    /// Certificates with their keys, and authorities, by the name that listeners and clusters know them by; each for the
    /// file [`secret_file`].
    pub secrets: BTreeMap<String, Value>,
}

/// The file of a secret.
pub fn secret_file(name: &str) -> String {
    format!("{SECRET_PREFIX}{name}.json")
}

/// How the names of secrets' files begin.
pub const SECRET_PREFIX: &str = "secret-";

impl Files {
    /// The four files that Envoy watches, by name, in the order in which a change is best applied:
    /// clusters and plugins before the routes that name them.
    pub fn watched(&self) -> [(&'static str, &Value); 4] {
        [
            (CDS_FILE, &self.cds),
            (ECDS_FILE, &self.ecds),
            (RDS_FILE, &self.rds),
            (LDS_FILE, &self.lds),
        ]
    }
}

/// The plan as a bootstrap and four files.
pub fn files(plan: &Plan, layout: &Layout) -> Files {
    let listeners = plan
        .listeners
        .iter()
        .map(|listener| listener::listener(plan, listener, Form::Files(layout)))
        .collect();
    let clusters = cluster::clusters(plan, Form::Files(layout));
    Files {
        bootstrap: bootstrap::dynamic(plan, layout),
        lds: discovery_response(listeners, "envoy.config.listener.v3.Listener"),
        cds: discovery_response(clusters, "envoy.config.cluster.v3.Cluster"),
        rds: discovery_response(
            vec![route::configuration(plan)],
            "envoy.config.route.v3.RouteConfiguration",
        ),
        ecds: discovery_response(
            vec![filter::extension(&plan.filter)],
            "envoy.config.core.v3.TypedExtensionConfig",
        ),
        secrets: secret::all(plan, layout.secrets),
    }
}

/// The plan as one file that needs no other. `envoy --mode validate` checks all of it.
pub fn static_bootstrap(plan: &Plan, layout: &Layout) -> Value {
    let listeners: Vec<Value> = plan
        .listeners
        .iter()
        .map(|listener| listener::listener(plan, listener, Form::Inline))
        .collect();
    let clusters = cluster::clusters(plan, Form::Inline);
    bootstrap::inline(plan, layout, &listeners, clusters)
}

fn discovery_response(resources: Vec<Value>, message: &str) -> Value {
    let resources = resources
        .into_iter()
        .map(|resource| typed(message, resource))
        .collect();
    object([("resources", resources)])
}

/// An object of values that are large: `json!` would copy them.
fn object<const N: usize>(entries: [(&str, Value); N]) -> Value {
    entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}

/// An object as a `google.protobuf.Any`.
fn typed(message: &str, object: Value) -> Value {
    let mut any = serde_json::Map::new();
    any.insert(
        "@type".to_owned(),
        format!("type.googleapis.com/{message}").into(),
    );
    if let Value::Object(object) = object {
        any.extend(object);
    }
    Value::Object(any)
}

/// A document of the module as a `google.protobuf.Struct` in an Any.
fn structure(document: Value) -> Value {
    typed("google.protobuf.Struct", object([("value", document)]))
}

/// One of Envoy's watched files as a source of configuration.
fn source(layout: &Layout, file: &str) -> Value {
    json!({
        "path_config_source": { "path": format!("{}/{file}", layout.directory.trim_end_matches('/')) },
        "resource_api_version": "V3",
    })
}

/// Options of HTTP/2 for connections of clients: a client that has more to ask waits, or opens another connection, so
/// that what it causes at once is one connection's part of an event loop. The number is that of Envoy's
/// [guide to proxies at the edge](https://www.envoyproxy.io/docs/envoy/latest/configuration/best_practices/edge).
fn downstream_http2_options(plan: &Plan) -> Value {
    let mut options = http2_options(plan);
    if let Value::Object(options) = &mut options {
        let streams = plan.client_limits.concurrent_streams;
        options.insert("max_concurrent_streams".to_owned(), streams.into());
    }
    options
}

/// Options of HTTP/2 for connections to upstreams, too. A peer sends no more of a stream than its window
/// while the stream is held back: Envoy's default of 16 MiB would let each stream of a plugin that waits keep that much,
/// whatever `body_limit` says. An extended `CONNECT` is how HTTP/2 asks for a WebSocket; which routes allow it is said there.
fn http2_options(plan: &Plan) -> Value {
    const LEAST: u32 = 65_535;
    const MOST: u32 = 16 * 1024 * 1024;
    json!({
        "allow_connect": true,
        "initial_stream_window_size": plan.body_limit.clamp(LEAST, MOST),
    })
}

fn socket_address(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": host, "port_value": port } })
}

/// Milliseconds as a `google.protobuf.Duration`.
fn duration(milliseconds: u64) -> Value {
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    if rest == 0 {
        format!("{seconds}s").into()
    } else {
        format!("{seconds}.{rest:03}s").into()
    }
}
