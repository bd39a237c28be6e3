//! The plan: a checked `outrider.yaml` as plain data, every name resolved, every default filled in.
//!
//! Renderers read it and nothing else. It knows neither files nor Envoy's documents; where something
//! was written is kept only for explanations and is no part of what serializes.

pub mod mesh;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use outrider_plugin_formats::{FilterConfig, Group, RouteConfig};
use outrider_yaml::{Location, Node};
use serde::Serialize;

pub use crate::model::{ClientCertificate, LoadBalancing};

/// One gateway.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Where clients connect; at least one.
    pub listeners: Vec<Listener>,
    /// Address of the admin interface, if the file says one.
    pub admin: Option<std::net::SocketAddr>,
    /// Where requests are written down.
    pub access_log: Option<AccessLog>,
    /// How much of one body may be held back, in bytes.
    pub body_limit: u32,
    /// Proxies in front of it that are trusted.
    pub trusted_hops: u32,
    /// Where they connect from; empty: from everywhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trusted_proxies: Vec<IpNet>,
    /// How long clients may take.
    pub timeouts: ClientTimeouts,
    /// How much clients get at a time.
    pub client_limits: ClientLimits,
    /// Worker threads; none: one for each CPU.
    pub workers: Option<u32>,
    /// What the module reads: the plugins that some scope uses, and the gateway's scope.
    pub filter: FilterConfig,
    /// Limits of each plugin that is declared, by its name.
    #[serde(skip)]
    pub limits: BTreeMap<String, Vec<Limit>>,
    /// Plugins at gateway scope.
    #[serde(skip)]
    pub uses: Vec<Use>,
    /// The projects.
    pub projects: Vec<Project>,
    /// The upstreams.
    pub upstreams: Vec<Upstream>,
}

impl Plan {
    /// The gateway's own certificates: those of listeners, and those that it shows to upstreams.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        let of_listeners = self.listeners.iter().filter_map(|item| item.tls.as_ref());
        let of_upstreams = self.upstreams.iter().filter_map(|item| item.tls.as_ref());
        of_listeners
            .flat_map(|tls| &tls.certificates)
            .chain(of_upstreams.filter_map(|tls| tls.client.as_ref()))
    }

    /// The authorities that clients' and upstreams' certificates are verified with.
    pub fn authorities(&self) -> impl Iterator<Item = &Pem> {
        let of_listeners = self.listeners.iter().filter_map(|item| item.tls.as_ref());
        let of_upstreams = self.upstreams.iter().filter_map(|item| item.tls.as_ref());
        of_listeners
            .filter_map(|tls| Some(&tls.clients.as_ref()?.ca))
            .chain(of_upstreams.filter_map(|tls| tls.ca.as_ref()))
    }
}

/// How long clients may take, in milliseconds; 0: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClientTimeouts {
    /// For the headers of a request.
    pub request_headers: u64,
    /// For a whole request.
    pub request: u64,
    /// Without a byte, while a request is under way.
    pub stream_idle: u64,
    /// For a whole stream.
    pub max_stream_duration: u64,
    /// Without a request on a connection.
    pub idle: u64,
    /// For a connection altogether.
    pub max_connection_duration: u64,
}

/// How much clients get at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ClientLimits {
    /// Connections of all listeners together; none: no limit.
    pub connections: Option<u32>,
    /// Requests at a time on one HTTP/2 connection.
    pub concurrent_streams: u32,
    /// Envoy's memory in MiB; none: no limit.
    pub heap_mib: Option<u32>,
}

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listener {
    /// Unique.
    pub name: String,
    /// Unique, unless the port is 0.
    pub address: std::net::SocketAddr,
    /// Where TLS is served.
    pub tls: Option<ListenerTls>,
    /// The HTTP versions that are served.
    pub protocols: Protocols,
    /// The host of requests in HTTP/1.0 that name none; none: HTTP/1.0 is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http10_default_host: Option<String>,
}

/// TLS of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListenerTls {
    /// The gateway's own, at least one. Envoy chooses by the name that a client asks for; the first is for the rest.
    pub certificates: Vec<Certificate>,
    /// How clients' certificates are verified; none: clients are not asked for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<ClientVerification>,
}

/// How clients' certificates are verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClientVerification {
    /// The authorities.
    pub ca: Pem,
    /// Whether there has to be one.
    pub certificate: ClientCertificate,
}

/// A certificate with its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Certificate {
    /// The chain.
    pub certificate: Pem,
    /// The private key.
    pub private_key: Pem,
}

/// A PEM file. Its content is no part of what serializes or of what `Debug` shows: it may be a private key.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// Absolute path.
    pub path: String,
    /// The content when it was read.
    pub text: Arc<str>,
}

impl Serialize for Pem {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.path)
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// HTTP versions of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocols {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2 alone.
    Http2,
    /// Both.
    Both,
}

/// Where requests are written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccessLog {
    /// An absolute path; none: standard output.
    pub path: Option<String>,
    /// What is written for each request.
    pub format: LogFormat,
}

/// What is written for each request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LogFormat {
    /// One line with Envoy's command operators, its line break included.
    Text(String),
    /// One object of JSON on a line; its texts have Envoy's command operators.
    Json(serde_json::Map<String, serde_json::Value>),
}

/// A project.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Project {
    /// Unique.
    pub name: String,
    /// In lower case, with a `*` first or last or not at all; unique in the gateway.
    pub hosts: Vec<String>,
    /// What differs from the gateway's scope on all of it.
    pub filter: Option<RouteConfig>,
    /// Metadata by namespace; that of its routes has it, too.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Plugins at its scope.
    #[serde(skip)]
    pub uses: Vec<Use>,
    /// Tried in this order; at least one.
    pub routes: Vec<Route>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Route {
    /// Unique in the project.
    pub name: String,
    /// Which requests it takes.
    #[serde(rename = "match")]
    pub matches: Match,
    /// What happens to them.
    pub action: Action,
    /// What differs from the gateway's scope, the project's part included; none: as in the project.
    pub filter: Option<RouteConfig>,
    /// Metadata by namespace, the project's included.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Plugins at its scope.
    #[serde(skip)]
    pub uses: Vec<Use>,
}

/// Which requests a route takes; all conditions have to hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Match {
    /// On the path, without query.
    pub path: PathMatch,
    /// Empty: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// On headers; names in lower case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<Condition>,
    /// On query parameters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<Condition>,
    /// On cookies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cookies: Vec<Condition>,
}

/// Which paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathMatch {
    /// This one.
    Exact(String),
    /// All that begin so.
    Prefix(String),
    /// All that this matches as a whole.
    Regex(String),
}

/// A condition on one header, query parameter or cookie.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Condition {
    /// Of what.
    pub name: String,
    /// On its value.
    pub value: ValueMatch,
    /// Whether it has to fail instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub invert: bool,
}

/// What a value has to be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueMatch {
    /// This.
    Exact(String),
    /// Beginning so.
    Prefix(String),
    /// Ending so.
    Suffix(String),
    /// Having this somewhere.
    Contains(String),
    /// Matched as a whole.
    Regex(String),
    /// There, or not there.
    Present(bool),
}

/// What a route does with a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Send it to an upstream.
    Forward(Forward),
    /// Answer with a redirect.
    Redirect(Redirect),
    /// Answer with a fixed response.
    Respond(Respond),
}

/// Sending a request to an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forward {
    /// Upstreams with their weights; one of them is above zero.
    #[serde(serialize_with = "weighted")]
    pub to: Vec<(String, u32)>,
    /// Upstream in place of the only one of `to`, while no machine of that is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// In place of the matched path or beginning.
    pub rewrite_prefix: Option<String>,
    /// For the whole response, in milliseconds; none: Envoy's default of 15 seconds; 0: no limit.
    pub timeout: Option<u64>,
    /// Without a byte, in milliseconds; none: as for all; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<u64>,
    /// For the whole stream, in milliseconds; none: as for all; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_stream_duration: Option<u64>,
    /// When it is sent again.
    pub retries: Option<Retries>,
    /// Where a part of the requests is sent, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
    /// What decides among the machines of an upstream that balances by hash; none: the client's address.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hash: Vec<HashKey>,
    /// Protocols that it may change to, in lower case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upgrades: Vec<String>,
}

/// Where requests are mirrored to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mirror {
    /// The upstream.
    pub upstream: String,
    /// How many of the requests, in per cent.
    pub percent: u32,
    /// The copies have the host of the originals; otherwise Envoy adds `-shadow`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keeps_host: bool,
}

/// A part of a request that decides where it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HashKey {
    /// A header.
    Header(String),
    /// A cookie.
    Cookie(String),
    /// A query parameter.
    Query(String),
    /// The client's address.
    SourceIp,
}

/// Each with its parts named.
fn weighted<S: serde::Serializer>(to: &[(String, u32)], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Weighted<'a> {
        upstream: &'a str,
        weight: u32,
    }
    serializer.collect_seq(to.iter().map(|(upstream, weight)| Weighted {
        upstream,
        weight: *weight,
    }))
}

/// When a request is sent again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// How often at most, after the first time.
    pub attempts: u32,
    /// After what, in Envoy's words.
    pub on: Vec<&'static str>,
    /// How long one may take, in milliseconds.
    pub per_try_timeout: Option<u64>,
}

/// A redirect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Redirect {
    /// `http` or `https`.
    pub scheme: Option<&'static str>,
    /// The new host.
    pub host: Option<String>,
    /// The new port.
    pub port: Option<u32>,
    /// The new path.
    pub path: Option<String>,
    /// In place of the matched path or beginning.
    pub prefix: Option<String>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// A fixed response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Respond {
    /// Status code.
    pub status: u32,
    /// Body.
    pub body: Option<String>,
    /// Headers; names in lower case.
    pub headers: Vec<(String, String)>,
}

/// Where requests are sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upstream {
    /// Unique; also the name of Envoy's cluster.
    pub name: String,
    /// At least one.
    pub endpoints: Vec<Endpoint>,
    /// How one of them is chosen.
    pub load_balancing: LoadBalancing,
    /// How they are asked whether they are well.
    pub health_check: Option<HealthCheck>,
    /// How TLS is spoken to them.
    pub tls: Option<UpstreamTls>,
    /// Whether they speak HTTP/2.
    pub protocol: UpstreamProtocol,
    /// In milliseconds.
    pub connect_timeout: u64,
    /// When one of the machines is left out because of its answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier_detection: Option<OutlierDetection>,
    /// How much it gets at a time.
    pub limits: UpstreamLimits,
}

/// When a machine is left out because of its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OutlierDetection {
    /// Bad responses in a row.
    pub consecutive_5xx: u32,
    /// Time between two looks, in milliseconds.
    pub interval: u64,
    /// How long it is left out the first time, in milliseconds.
    pub base_ejection_time: u64,
    /// How many of the machines may be left out, in per cent.
    pub max_ejection_percent: u32,
}

/// How much an upstream gets at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct UpstreamLimits {
    /// Connections.
    pub connections: u32,
    /// Requests that wait for a connection.
    pub pending_requests: u32,
    /// Requests under way.
    pub requests: u32,
    /// Retries under way, in per cent of the requests under way and waiting.
    pub retry_percent: u32,
    /// Retries that may be under way in any case.
    pub retry_min_concurrency: u32,
}

/// HTTP version of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A machine of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// An IP address (IPv6 without brackets) or a name.
    pub host: String,
    /// From 1.
    pub port: u16,
    /// Its share, from 1.
    pub weight: u32,
}

/// A health check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HealthCheck {
    /// The path that is asked for.
    pub path: String,
    /// Milliseconds between two.
    pub interval: u64,
    /// Milliseconds that an answer may take.
    pub timeout: u64,
    /// Good answers that make it healthy.
    pub healthy_threshold: u32,
    /// Bad ones that make it unhealthy.
    pub unhealthy_threshold: u32,
}

/// TLS to an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UpstreamTls {
    /// Server name.
    pub sni: Option<String>,
    /// The authorities; none: the certificate is not checked.
    pub ca: Option<Pem>,
    /// The gateway's own certificate.
    pub client: Option<Certificate>,
}

/// A limit that holds for a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// Its key below `plugins.<name>`: `budgets.time_ms`.
    pub key: &'static str,
    /// Its value.
    pub value: u32,
    /// Where it was written: in `outrider.yaml`, or in the plugin's manifest; `None` for the default.
    pub set_by: Option<Place>,
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The file, as the user named it.
    pub file: String,
    /// From 1.
    pub line: usize,
}

/// A plugin in a scope's `use` list.
#[derive(Debug, Clone, PartialEq)]
pub struct Use {
    /// Its name.
    pub plugin: String,
    /// Whether it is turned on or off.
    pub switch: Switch,
    /// Its configuration there: a merge patch, with the places of its values.
    pub config: Option<Node>,
    /// The file that says so.
    pub file: Arc<str>,
    /// Where in it.
    pub location: Location,
}

/// What a `use` item does to a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Switch {
    /// Streams of this scope pass it.
    On,
    /// They do not.
    Off,
}

/// What a chain is ordered by: phase group, then priority, high first, then name.
pub(crate) fn chain_key(
    group: Group,
    priority: i32,
    name: &str,
) -> (Group, std::cmp::Reverse<i32>, &str) {
    (group, std::cmp::Reverse(priority), name)
}
