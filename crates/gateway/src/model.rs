//! What a user may write in `outrider.yaml`: the types that it is read into.
//!
//! One source for three things: reading (serde over `outrider-yaml`), the published JSON Schema and
//! `docs/configuration.md` (both from the comments here, which users therefore read). What one value
//! alone has to be is checked by its type in [`text`]; what values mean together, in `crate::compile`.

pub(crate) mod lanes;
pub(crate) mod mesh;
pub(crate) mod telemetry;
pub(crate) mod text;

use outrider_plugin_formats::{
    All, CircuitOff, FailureAction, Group, PluginTime, PullPolicy, WasmResults,
};
use outrider_yaml::{Entries, Field, Node, Shape};
use schemars::JsonSchema;
use serde::Deserialize;

pub(crate) use lanes::{LaneGroup, LaneTarget, LaneWhen, ProjectLane, ProjectLaneRole};
pub(crate) use mesh::{KubernetesUpstream, Mesh};
pub use mesh::{LaneMode, MeshTraffic, ModuleSource};
pub(crate) use telemetry::{ScopeTelemetry, Telemetry};
pub(crate) use text::{
    Address, AddressRange, Duration, HeaderName, HostPattern, IpAddress, Method, Name, Number,
    Path, PluginName, Regex, Size, Text, Upgrade,
};

/// Outrider's configuration: one gateway, its plugins, projects, lanes and upstreams.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    /// More files, relative to this one; `*` matches within one folder. They hold `plugins`,
    /// `projects`, `lanes` and `upstreams`; only the first file holds `gateway`, `mesh` and `include`.
    #[serde(default)]
    pub(crate) include: Field<Vec<Field<Text>>>,
    /// Where the gateway listens, and what holds for all of it. Required in the first file, but for `outrider render istio`.
    #[serde(default)]
    pub(crate) gateway: Field<Gateway>,
    /// The plugins, by the names under which `use` lists name them. A name has lower-case letters,
    /// digits and hyphens.
    #[serde(default)]
    pub(crate) plugins: Field<Entries<Field<Plugin>>>,
    /// Registries and servers that plugins are fetched from, by `HOST` or `HOST:PORT`: credentials, certificate
    /// authorities, mirrors (`docs/distribution.md`). Only the first file holds it.
    #[serde(default)]
    pub(crate) registries: Field<Entries<Field<Registry>>>,
    /// Whose signatures fetched plugins need. The first rule with a pattern that matches a plugin's `source` judges it; a
    /// source that no rule matches is refused. Plugins inside the binary and local ones are not judged. Default: every
    /// plugin is accepted. Only the first file holds it.
    #[serde(default)]
    pub(crate) plugin_policy: Field<Vec<Field<PolicyRule>>>,
    /// The projects. Each owns some hosts (an Envoy virtual host).
    #[serde(default)]
    pub(crate) projects: Field<Vec<Field<Project>>>,
    /// Lanes, by the name of their group: versions of a whole chain of services, one of which serves a request from its
    /// first hop to its last (`docs/lanes.md`). A name has lower-case letters, digits and hyphens.
    #[serde(default)]
    pub(crate) lanes: Field<Entries<Field<LaneGroup>>>,
    /// What `outrider render istio` prints resources for (`docs/istio.md`); the other commands leave it alone. Only the
    /// first file holds it.
    #[serde(default)]
    pub(crate) mesh: Field<Mesh>,
    /// Where requests are sent, by name. Each becomes an Envoy cluster of the same name, which is also
    /// the name by which plugins call it. For an upstream that some plugin may call there is a second
    /// cluster, `<name>/callouts`, so that callouts share no connection with requests of routes.
    #[serde(default)]
    pub(crate) upstreams: Field<Entries<Field<Upstream>>>,
}

/// Where the gateway listens, and what holds for all of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["listeners"]))]
pub(crate) struct Gateway {
    /// Where clients connect. At least one.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) listeners: Field<Vec<Field<Listener>>>,
    /// Address of Envoy's admin interface. It has no authentication: keep it on loopback. Default:
    /// `127.0.0.1` with a port that is free.
    #[serde(default)]
    pub(crate) admin: Field<IpAddress>,
    /// Where each request is written down: `off` (the default), `stdout`, a file's path, or a mapping
    /// with a format of your own.
    #[serde(default)]
    pub(crate) access_log: Field<Shape<Text, AccessLog>>,
    /// Records of requests that are written off Envoy's workers, which costs requests less than `access_log`: access logs to
    /// files, to standard output and to receivers of the OpenTelemetry protocol (`docs/telemetry.md`). Default: none.
    #[serde(default)]
    pub(crate) telemetry: Field<Telemetry>,
    /// A folder for the log files of plugins (`envoy.filelog`), one file for each plugin; relative to
    /// this file. Default: what plugins log there goes to Envoy's log.
    #[serde(default)]
    pub(crate) plugin_logs: Field<Text>,
    /// `histograms`: the time of every plugin's calls, by phase, in Envoy's statistics
    /// (`docs/observability.md` names the cost). Default: `off`.
    #[serde(default)]
    pub(crate) plugin_time: Field<PluginTime>,
    /// How much of one body may be held back, for plugins that read bodies whole and for peers that
    /// read slowly. A larger request that has to be held gets status 413. Plugins make no larger bodies, in replies and
    /// callouts either, and get none from callouts; HTTP/2 peers send no more of a stream that is held back. Default: `1MiB`.
    #[serde(default)]
    pub(crate) body_limit: Field<Size>,
    /// How many proxies in front of the gateway are trusted, such as load balancers: the client's address is the entry of
    /// `x-forwarded-for` that the outermost of them wrote, and what they say in `x-forwarded-proto` holds. They have to
    /// append to `x-forwarded-for`, and nobody else may reach the gateway, unless `trusted_proxies` names them. Default: 0,
    /// the client is who connects; with `trusted_proxies`: 1.
    #[serde(default)]
    pub(crate) trusted_hops: Field<Number<0, 100>>,
    /// Addresses and ranges of the proxies that connect to the gateway: `trusted_hops` holds for connections from them, and
    /// of all others the client is who connects. Default: connections from everywhere are a trusted proxy's.
    #[serde(default)]
    pub(crate) trusted_proxies: Field<Vec<Field<AddressRange>>>,
    /// How long clients may take.
    #[serde(default)]
    pub(crate) timeouts: Field<ClientTimeouts>,
    /// How much clients get at a time.
    #[serde(default)]
    pub(crate) limits: Field<ClientLimits>,
    /// Envoy's worker threads. Default: one for each CPU.
    #[serde(default)]
    pub(crate) workers: Field<Number<1, 1024>>,
    /// Plugins that every request passes, unless its project or route says otherwise.
    #[serde(default, rename = "use")]
    pub(crate) uses: Field<Vec<Field<Shape<PluginName, Use>>>>,
}

/// How long clients may take; `0s` is no limit.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientTimeouts {
    /// For the headers of a request, from its first byte. Default: `10s`.
    #[serde(default)]
    pub(crate) request_headers: Field<Duration>,
    /// For a whole request, its body included, unless the response has begun; uploads that take longer are answered with 408.
    /// Default: `5m`.
    #[serde(default)]
    pub(crate) request: Field<Duration>,
    /// Without a byte in either direction, while a request is under way or its connection is upgraded; a route's `idle_timeout`
    /// goes before it. Default: `5m`.
    #[serde(default)]
    pub(crate) stream_idle: Field<Duration>,
    /// For a whole stream, request and response, however much of it moves; then it is reset, or answered with 408 or 504 where
    /// that is still possible. A route's `max_stream_duration` goes before it. Default: `0s`.
    #[serde(default)]
    pub(crate) max_stream_duration: Field<Duration>,
    /// Without a request on a connection. Default: `1h`.
    #[serde(default)]
    pub(crate) idle: Field<Duration>,
    /// For a connection altogether; then it is asked to close. Default: `0s`.
    #[serde(default)]
    pub(crate) max_connection_duration: Field<Duration>,
}

/// How much clients get at a time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClientLimits {
    /// Connections of all listeners together; one more is closed at once. Default: no limit.
    #[serde(default)]
    pub(crate) connections: Field<Number<1, 10_000_000>>,
    /// Requests at a time on one HTTP/2 connection. Default: 100.
    #[serde(default)]
    pub(crate) concurrent_streams: Field<Number<1, 100_000>>,
    /// Envoy's memory in MiB, as its allocator counts it (`server.memory_heap_size`): at 90 % of it, free memory is given back
    /// and connections are not kept open; at 95 %, requests are answered with 503; at 98 %, connections are not accepted.
    /// Default: no limit.
    #[serde(default)]
    pub(crate) heap_mib: Field<Number<64, 1_048_576>>,
}

/// Where clients connect.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["address"]))]
pub(crate) struct Listener {
    /// Its name in statistics. Default: `listener-` and its position, from 0.
    #[serde(default)]
    pub(crate) name: Field<Name>,
    /// IP address and port: `0.0.0.0:8080`, `[::1]:8080`.
    #[serde(default)]
    pub(crate) address: Field<IpAddress>,
    /// Serve TLS. Without it, connections are plain.
    #[serde(default)]
    pub(crate) tls: Field<ListenerTls>,
    /// The HTTP versions that are served. Default: both; plain connections are told apart by their
    /// first bytes, TLS connections by ALPN.
    #[serde(default)]
    pub(crate) protocols: Field<Vec<Field<Protocol>>>,
    /// Serve HTTP/1.0, too: old health checks, `ab`. A request without `host` is one for the host named here. Default:
    /// HTTP/1.0 is answered with 426.
    #[serde(default)]
    pub(crate) http10_default_host: Field<Text>,
}

/// A listener's certificates, and whether clients show theirs. A renewed file is served as soon as it is written, without
/// a restart, and no connection is closed; a pair that does not belong together is refused.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("anyOf" = [{"required": ["certificate", "private_key"]}, {"required": ["certificates"]}]))]
pub(crate) struct ListenerTls {
    /// The certificate chain, a PEM file relative to this file: first the listener's own certificate, then those of the
    /// authorities between it and one that clients trust.
    #[serde(default)]
    pub(crate) certificate: Field<Text>,
    /// Its private key, a PEM file relative to this file: RSA of 2048 bits or more, or ECDSA on P-256, P-384 or P-521.
    #[serde(default)]
    pub(crate) private_key: Field<Text>,
    /// More than one certificate: that one is served whose DNS names have the name that the client asks for (SNI), or else
    /// the first. Instead of `certificate` and `private_key`.
    #[serde(default)]
    pub(crate) certificates: Field<Vec<Field<ListenerCertificate>>>,
    /// The authorities that may have signed clients' certificates, a PEM file relative to this file.
    /// With it, clients are asked for a certificate, and one that no such authority signed ends the
    /// connection. Default: clients are not asked.
    #[serde(default)]
    pub(crate) client_ca: Field<Text>,
    /// Whether clients without a certificate may connect. Only together with `client_ca`. Default:
    /// `required`.
    #[serde(default)]
    pub(crate) client_certificate: Field<ClientCertificate>,
}

/// One of a listener's certificates.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["certificate", "private_key"]))]
pub(crate) struct ListenerCertificate {
    /// The certificate chain, a PEM file relative to this file.
    #[serde(default)]
    pub(crate) certificate: Field<Text>,
    /// Its private key, a PEM file relative to this file.
    #[serde(default)]
    pub(crate) private_key: Field<Text>,
}

/// Whether clients have to show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientCertificate {
    /// Connections without one are refused.
    #[default]
    Required,
    /// Connections without one are served; one that is shown is verified all the same.
    Optional,
}

/// A version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// An access log with a format of your own.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["path"]))]
pub(crate) struct AccessLog {
    /// `stdout`, or a file's path relative to this file.
    #[serde(default)]
    pub(crate) path: Field<Text>,
    /// One line, with Envoy's command operators such as `%REQ(:PATH)%`. A line break is added where it
    /// has none. Clients write parts of it: for programs that read it, use `json_format`.
    #[serde(default)]
    pub(crate) format: Field<Text>,
    /// A line of JSON for each request: keys, and texts with Envoy's command operators, nested as you like
    /// (`{path: "%REQ(:PATH)%", status: "%RESPONSE_CODE%"}`). It is JSON whatever clients send; an operator that stands alone
    /// and gives a number is a number. Instead of `format`.
    #[serde(default)]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub(crate) json_format: Field<Node>,
}

/// A registry or server that plugins are fetched from. Values may be `${env:NAME}`, an environment variable, or
/// `${file:PATH}`, a file's content, relative to this file. Without user and token, Docker's configuration and its
/// credential helpers are asked.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Registry {
    /// Name of a user, for basic authentication.
    #[serde(default)]
    pub(crate) username: Field<Text>,
    /// The user's password.
    #[serde(default)]
    pub(crate) password: Field<Text>,
    /// A bearer token, instead of user and password.
    #[serde(default)]
    pub(crate) token: Field<Text>,
    /// A PEM file of certificate authorities, relative to this file, instead of the system's.
    #[serde(default)]
    pub(crate) ca: Field<Text>,
    /// Hosts that hold the same images, `HOST` or `HOST:PORT`; they are asked first, in this order.
    #[serde(default)]
    pub(crate) mirrors: Field<Vec<Field<Text>>>,
    /// Another host, `HOST` or `HOST:PORT`, whose token server may get the credentials. Default: the registry only.
    #[serde(default)]
    pub(crate) token_server: Field<Text>,
    /// Whether HTTP is spoken without TLS. Default: with `localhost` and loopback addresses that have no `ca`.
    #[serde(default)]
    pub(crate) plain_http: Field<bool>,
}

/// A rule of `plugin_policy`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["sources"]))]
pub(crate) struct PolicyRule {
    /// Patterns of sources, such as `oci://registry.example.com/team/*`; `*` matches any characters.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) sources: Field<Vec<Field<Text>>>,
    /// PEM files of public keys, relative to this file, one of which has to have signed the plugin (`cosign.pub`).
    #[serde(default)]
    pub(crate) keys: Field<Vec<Field<Text>>>,
    /// Whether plugins are accepted without a signature, instead of `keys`. Default: false.
    #[serde(default)]
    pub(crate) unsigned: Field<bool>,
}

/// A plugin of the gateway: where its code is, and what it may do.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["source"]))]
pub(crate) struct Plugin {
    /// A folder with `plugin.yaml`, one `.lua` or `.wasm` file, or a `.tar`, `.tar.gz` or `.tgz` of a plugin, relative to
    /// this file; `builtin:NAME`, which `outrider plugin list` lists; `oci://HOST/NAME:TAG` or
    /// `oci://HOST/NAME@sha256:…`; or an `https://` URL, with `sha256`.
    #[serde(default)]
    pub(crate) source: Field<Text>,
    /// The digest that the source has to have, `sha256:` or 64 hexadecimal digits: of an image, its manifest's; of an
    /// `https://` source or archive, the file's as it is served, or the module's inside. Required for `https://`.
    #[serde(default)]
    pub(crate) sha256: Field<Text>,
    /// When a tag of `oci://` is resolved again: `IfNotPresent`, or `Always`, whenever this file is read. Default: `Always`
    /// for the tag `latest`, else `IfNotPresent`. A digest, here or in `outrider.lock`, is never resolved again.
    #[serde(default)]
    pub(crate) pull: Field<PullPolicy>,
    /// What a stream gets when the plugin fails on it: `closed` (a local reply), `open` (the stream
    /// goes on), or a mapping. Default: what its manifest says, else `closed` with status 500.
    #[serde(default)]
    pub(crate) failure_policy: Field<Shape<FailureAction, FailureForm>>,
    /// What it may use. Default: 20 ms for a call, and for each worker 16 MiB of a Lua plugin, 64 MiB of a Wasm
    /// plugin. Its manifest can lower each of them, and raise none.
    #[serde(default)]
    pub(crate) budgets: Field<BudgetsForm>,
    /// When it fails again and again and is not called for a while: `off` (it is always called), or a
    /// mapping. Default: after 20 streams within 10 seconds that failed by time or memory, for a second at first and
    /// a minute at most. Its manifest can make it open earlier and longer, and not the other way.
    #[serde(default)]
    pub(crate) circuit: Field<Shape<CircuitOff, CircuitForm>>,
    /// Phase group, the coarse order of a chain: `authn`, `authz`, `traffic`, `transform`, `observe`.
    /// Default: what its manifest says, else `transform`.
    #[serde(default)]
    pub(crate) group: Field<Group>,
    /// Order within the group: the higher, the earlier a request meets it; equal ones go by name.
    /// Default: what its manifest says, else 0.
    #[serde(default)]
    pub(crate) priority: Field<i32>,
    /// How its module is run; for plugins whose runtime is `wasm` only. Default, key by key: what its
    /// manifest says.
    #[serde(default)]
    pub(crate) wasm: Field<WasmForm>,
    /// What it may do beyond its own requests and responses: `all`, for a plugin whose author you trust as
    /// you trust yourself, or a mapping. Its manifest cannot allow anything. Default: nothing.
    #[serde(default)]
    pub(crate) allow: Field<Shape<All, AllowForm>>,
    /// How many bytes a second it may write to Envoy's log and to its log file. What is more is dropped and
    /// counted (`outrider.plugin.<name>.log_dropped`); a line has at most 8 KiB. Default: `64KiB`.
    #[serde(default)]
    pub(crate) log_rate: Field<Size>,
}

/// What a plugin may do beyond its own requests and responses.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowForm {
    /// The upstreams that it may call (callouts, HTTP streams, gRPC): a list, or `all`. Default: none.
    #[serde(default)]
    pub(crate) upstreams: Field<AllowedNames>,
    /// Whether a request that it changes may take a route of another project, past the plugins of that
    /// project. Default: `false`.
    #[serde(default)]
    pub(crate) leave_project: Field<bool>,
    /// Whether it may choose the endpoint that a request goes to, by its address. Default: `false`.
    #[serde(default)]
    pub(crate) override_host: Field<bool>,
    /// The namespaces of dynamic metadata that it may write, beside its own name and
    /// `envoy.filters.http.lua`: a list, or `all`. Default: none.
    #[serde(default)]
    pub(crate) metadata: Field<AllowedNames>,
    /// Whether it may set request headers that steer Envoy's router, on its requests and in callouts: those that begin
    /// with `x-envoy-` (`x-envoy-max-retries`, `x-envoy-upstream-rq-timeout-ms`), but those that only report. Retries count
    /// against a limit that all requests to an upstream share. Default: `false`.
    #[serde(default)]
    pub(crate) router_headers: Field<bool>,
    /// The keys of filter state that it may set though Envoy reads them itself
    /// (`envoy.network.upstream_server_name`): a list, or `all`. Such an object can give each request an upstream
    /// connection of its own. Default: none.
    #[serde(default)]
    pub(crate) typed_filter_state: Field<AllowedNames>,
}

/// Names: `all`, or a list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(untagged, inline)]
pub(crate) enum AllowedNames {
    /// Every name.
    Text(All),
    /// These names.
    List(Vec<Field<Text>>),
}

/// How a Wasm plugin's module is run. The names are those of Envoy's own Wasm filter where it has one.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WasmForm {
    /// What the host answers where Envoy's Wasm filter and plugin authors differ: `envoy` (as that filter
    /// answers), or `relaxed` (request headers can be read in the response phase, and what is refused
    /// says so). Default: `envoy`.
    #[serde(default)]
    pub(crate) results: Field<WasmResults>,
    /// Whether `StopIteration` from a headers callback lets the body come. Default: `false`, which holds
    /// body and trailers back, too.
    #[serde(default)]
    pub(crate) allow_on_headers_stop_iteration: Field<bool>,
    /// Environment variables that the guest sees; it sees none of Envoy's. They come on top of the
    /// manifest's.
    #[serde(default)]
    pub(crate) environment: Field<Entries<Field<String>>>,
    /// Keys of shared data and names of queues are apart for each. Other plugins' are out of reach whatever it says.
    /// Default: none.
    #[serde(default)]
    pub(crate) vm_id: Field<String>,
    /// A name by which plugins are joined: those with the same one have their shared data and queues in common. Default:
    /// a plugin's shared data and queues are its own.
    #[serde(default)]
    pub(crate) shared: Field<String>,
    /// Which of a module's root contexts is asked for; for modules that hold several plugins. Default:
    /// none.
    #[serde(default)]
    pub(crate) root_id: Field<String>,
    /// What the guest gets in `proxy_on_vm_start`: as JSON, or, when it is a string, the string itself.
    /// Default: nothing.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub(crate) vm_configuration: Field<Node>,
    /// Whether each call between host and guest is written to Envoy's log. Slow. Default: `false`.
    #[serde(default)]
    pub(crate) trace: Field<bool>,
    /// Whether jumps of Go's code through a table whose target is known are made direct before the module is
    /// compiled. `false` compiles the file as it is, to rule this change out as a fault's cause. Default: `true`.
    #[serde(default)]
    pub(crate) jump_threading: Field<bool>,
}

/// A failure policy in its long form.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailureForm {
    /// For causes that `causes` does not name. Default: `closed`.
    #[serde(default)]
    pub(crate) default: Field<FailureAction>,
    /// Status code of the reply of a closed failure. Default: 500.
    #[serde(default)]
    pub(crate) status: Field<Number<200, 599>>,
    /// By cause.
    #[serde(default)]
    pub(crate) causes: Field<Causes>,
}

/// What a stream gets, by why the plugin failed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Causes {
    /// A handler raised an error.
    #[serde(default)]
    pub(crate) error: Field<FailureAction>,
    /// A call used up its time budget.
    #[serde(default)]
    pub(crate) time: Field<FailureAction>,
    /// The plugin used up its memory budget.
    #[serde(default)]
    pub(crate) memory: Field<FailureAction>,
    /// The plugin is not there, or could not be started on this worker.
    #[serde(default)]
    pub(crate) unavailable: Field<FailureAction>,
    /// It failed so often that it is not called for a while: its circuit is open.
    #[serde(default)]
    pub(crate) circuit: Field<FailureAction>,
    /// It used more CPU of this worker than its share, or all plugins together did.
    #[serde(default)]
    pub(crate) share: Field<FailureAction>,
}

/// When a plugin's circuit opens, and for how long. While it is open, streams get the failure policy
/// for the cause `circuit`; then single streams are served on trial, and three good ones close it. Each
/// configuration of a plugin has a circuit of its own.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CircuitForm {
    /// So many streams have to fail by time or memory within 10 seconds, and one in ten of all. Default: 20.
    #[serde(default)]
    pub(crate) failures: Field<Number<1, 1_000_000>>,
    /// How long it is open at first, in milliseconds; each opening that follows soon doubles that.
    /// Default: 1000.
    #[serde(default)]
    pub(crate) pause_ms: Field<Number<1, 3_600_000>>,
    /// The longest pause, in milliseconds. Default: 60000.
    #[serde(default)]
    pub(crate) longest_pause_ms: Field<Number<1, 3_600_000>>,
}

/// What one plugin may use.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BudgetsForm {
    /// Time of one call of a handler, in milliseconds.
    #[serde(default)]
    pub(crate) time_ms: Field<Number<1, 60000>>,
    /// Memory of the plugin on one worker, in MiB. What all its requests together make Envoy keep (bodies of replies
    /// and callouts, metadata, headers) may take as much again.
    #[serde(default)]
    pub(crate) memory_mib: Field<Number<1, 1024>>,
    /// Per cent of one worker's CPU time over a short window. A plugin that used more waits, and then its
    /// streams get the failure policy for the cause `share`. Calls of less than half a millisecond that
    /// requests cause are not counted, and a callout beyond a stream's fourth counts as 0.15 ms. All plugins
    /// together may use 30, or the largest share that one has; with short calls 50, or that share. A stream
    /// waits for a second at most. 100: no limit. Default: 20.
    #[serde(default)]
    pub(crate) share: Field<Number<1, 100>>,
}

/// A plugin in a `use` list. A name alone turns the plugin on, with the configuration that the wider
/// scopes give it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["plugin"]))]
pub(crate) struct Use {
    /// The plugin's name under `plugins`.
    #[serde(default)]
    pub(crate) plugin: Field<PluginName>,
    /// `false` turns off what a wider scope turned on. Default: `true`.
    #[serde(default)]
    pub(crate) enabled: Field<bool>,
    /// Its configuration. It is merged into that of the wider scopes: mappings key by key, a `null`
    /// removes a key, everything else replaces (JSON Merge Patch, RFC 7396). The result has to satisfy
    /// the plugin's `config.schema.json`. For a Wasm plugin it may be a string, which the plugin gets as
    /// it is; anything else it gets as JSON.
    #[serde(default)]
    #[schemars(with = "Shape<String, serde_json::Map<String, serde_json::Value>>")]
    pub(crate) config: Field<Node>,
}

/// A project: some hosts, and the routes of requests to them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["name", "hosts", "routes"]))]
pub(crate) struct Project {
    /// Its name, unique in the gateway.
    #[serde(default)]
    pub(crate) name: Field<Name>,
    /// Its hosts: `shop.example.com`, `*.example.com` (any name that ends so), `shop.*` (any that
    /// begins so), `*` (every other). The exact name wins, then the longest ending, then the longest
    /// beginning, then `*`. Letter case and a port in the request count for nothing. A host belongs to
    /// one project.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) hosts: Field<Vec<Field<HostPattern>>>,
    /// What happens to the lane of its requests. Default: nothing.
    #[serde(default)]
    pub(crate) lane: Field<ProjectLane>,
    /// What differs of telemetry for its requests. Default: as at the gateway.
    #[serde(default)]
    pub(crate) telemetry: Field<ScopeTelemetry>,
    /// Metadata of its routes, by namespace and key, for plugins: in scripts of Envoy's Lua filter `handle:metadata()`
    /// answers the namespace `envoy.filters.http.lua`. A route's own keys win.
    #[serde(default)]
    #[schemars(
        with = "std::collections::BTreeMap<String, serde_json::Map<String, serde_json::Value>>"
    )]
    pub(crate) metadata: Field<Node>,
    /// Plugins that every request of the project passes, unless its route says otherwise.
    #[serde(default, rename = "use")]
    pub(crate) uses: Field<Vec<Field<Shape<PluginName, Use>>>>,
    /// Its routes, tried from top to bottom; the first that matches wins. At least one.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) routes: Field<Vec<Field<Route>>>,
}

/// A route: which requests, and what happens to them (one of `to`, `redirect`, `respond`).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["match"]))]
pub(crate) struct Route {
    /// Its name, unique in the project. Default: `route-` and its position, from 0.
    #[serde(default)]
    pub(crate) name: Field<Name>,
    /// Which requests it takes. All conditions have to hold.
    #[serde(default, rename = "match")]
    pub(crate) matches: Field<Match>,
    /// The upstream that gets the request, a list of upstreams with weights, or a service of some lanes.
    #[serde(default)]
    pub(crate) to: Field<Target>,
    /// Answer with a redirect.
    #[serde(default)]
    pub(crate) redirect: Field<Redirect>,
    /// Answer with a fixed response.
    #[serde(default)]
    pub(crate) respond: Field<Respond>,
    /// What the matched `prefix` or `path` is replaced by on the way to the upstream. With
    /// `match.prefix`, a slash at the seam is neither doubled nor lost: `/api` by `/` makes `/cart` of
    /// `/api/cart`.
    #[serde(default)]
    pub(crate) rewrite_prefix: Field<Path>,
    /// How long the upstream may take for the whole response; `0s` is no limit. Default: `15s`.
    #[serde(default)]
    pub(crate) timeout: Field<Duration>,
    /// How long a request may be under way without a byte in either direction; `0s` is no limit. Default:
    /// `gateway.timeouts.stream_idle`.
    #[serde(default)]
    pub(crate) idle_timeout: Field<Duration>,
    /// How long a whole stream, request and response, may last, however much of it moves; `0s` is no limit. In place of
    /// `timeout`, whose default does not hold then, either. Default: `gateway.timeouts.max_stream_duration`.
    #[serde(default)]
    pub(crate) max_stream_duration: Field<Duration>,
    /// When a request is sent again.
    #[serde(default)]
    pub(crate) retries: Field<Retries>,
    /// A part of the requests is sent to another upstream, too, with `-shadow` after the host's name; its responses are
    /// thrown away.
    #[serde(default)]
    pub(crate) mirror: Field<Mirror>,
    /// What upstreams that balance by hash (`ring_hash`, `maglev`) choose a machine by: the first of these that a request
    /// has. Default: the client's address.
    #[serde(default)]
    pub(crate) hash: Field<Vec<Field<HashKey>>>,
    /// Protocols that requests of this route may change to, as their `upgrade` header names them: `websocket`. Over
    /// HTTP/2 it is the `:protocol` of an extended `CONNECT` (RFC 8441), with clients and with upstreams. The bytes of both directions pass the plugins as bodies: a plugin that
    /// reads bodies whole cannot be in force here. Such a stream has no `timeout`, and ends when no byte came for the
    /// `idle_timeout`.
    /// Default: none, and requests to upgrade are answered with 403.
    #[serde(default)]
    pub(crate) upgrades: Field<Vec<Field<Upgrade>>>,
    /// What differs of telemetry for its requests. Default: as in the project.
    #[serde(default)]
    pub(crate) telemetry: Field<ScopeTelemetry>,
    /// Its metadata, by namespace and key, for plugins, over its project's.
    #[serde(default)]
    #[schemars(
        with = "std::collections::BTreeMap<String, serde_json::Map<String, serde_json::Value>>"
    )]
    pub(crate) metadata: Field<Node>,
    /// Plugins of this route.
    #[serde(default, rename = "use")]
    pub(crate) uses: Field<Vec<Field<Shape<PluginName, Use>>>>,
}

/// Where requests are mirrored to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["upstream"]))]
pub(crate) struct Mirror {
    /// The upstream.
    #[serde(default)]
    pub(crate) upstream: Field<Text>,
    /// How many of the requests, in per cent. Default: 100.
    #[serde(default)]
    pub(crate) percent: Field<Number<0, 100>>,
}

/// A part of a request that decides where it goes: exactly one of these.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HashKey {
    /// The value of this header.
    #[serde(default)]
    pub(crate) header: Field<HeaderName>,
    /// The value of this cookie.
    #[serde(default)]
    pub(crate) cookie: Field<Text>,
    /// The value of this query parameter.
    #[serde(default)]
    pub(crate) query: Field<Text>,
    /// `true`: the client's address.
    #[serde(default)]
    pub(crate) source_ip: Field<bool>,
}

/// Which requests a route takes: exactly one of `path`, `prefix`, `regex`, and further conditions.
/// Paths are compared without the query, after `//` became `/` and `.` and `..` were resolved.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Match {
    /// Exactly this path.
    #[serde(default)]
    pub(crate) path: Field<Path>,
    /// Every path that begins so; `/cart` takes `/cartoon` too, `/cart/` does not.
    #[serde(default)]
    pub(crate) prefix: Field<Path>,
    /// Every path that this regular expression (RE2) matches as a whole.
    #[serde(default)]
    pub(crate) regex: Field<Regex>,
    /// One of these methods. Default: any.
    #[serde(default)]
    pub(crate) methods: Field<Vec<Field<Method>>>,
    /// Conditions on headers.
    #[serde(default)]
    pub(crate) headers: Field<Vec<Field<HeaderCondition>>>,
    /// Conditions on query parameters.
    #[serde(default)]
    pub(crate) query: Field<Vec<Field<QueryCondition>>>,
    /// Conditions on cookies.
    #[serde(default)]
    pub(crate) cookies: Field<Vec<Field<CookieCondition>>>,
}

macro_rules! condition {
    ($(#[$comment:meta])* $condition:ident, $name:ty, { $($invert:tt)* }) => {
        $(#[$comment])*
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        #[schemars(extend("required" = ["name"]))]
        pub(crate) struct $condition {
            /// Its name.
            #[serde(default)]
            pub(crate) name: Field<$name>,
            /// It is exactly this.
            #[serde(default)]
            pub(crate) exact: Field<String>,
            /// It begins so.
            #[serde(default)]
            pub(crate) prefix: Field<Text>,
            /// It ends so.
            #[serde(default)]
            pub(crate) suffix: Field<Text>,
            /// It has this somewhere in it.
            #[serde(default)]
            pub(crate) contains: Field<Text>,
            /// This regular expression (RE2) matches all of it.
            #[serde(default)]
            pub(crate) regex: Field<Regex>,
            /// `true`: it is there; `false`: it is not.
            #[serde(default)]
            pub(crate) present: Field<bool>,
            $($invert)*
        }
    };
}

condition! {
    /// A condition on a header: its name, and exactly one of the others beside `invert`. Where a request
    /// has the header more than once, one value that fits is enough; but common headers such as `accept`
    /// and `authorization` are one value then, joined by commas.
    HeaderCondition, HeaderName, {
        /// `true` turns the condition round; a header that is not there then satisfies it.
        #[serde(default)]
        pub(crate) invert: Field<bool>,
    }
}

condition! {
    /// A condition on a query parameter: its name, and exactly one of the others.
    QueryCondition, Text, {}
}

condition! {
    /// A condition on a cookie: its name, and exactly one of the others beside `invert`.
    CookieCondition, HeaderName, {
        /// `true` turns the condition round; a cookie that is not there then satisfies it.
        #[serde(default)]
        pub(crate) invert: Field<bool>,
    }
}

/// Where a route's requests go.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(untagged, inline)]
pub(crate) enum Target {
    /// One upstream.
    Text(Text),
    /// Upstreams with weights.
    List(Vec<Field<Weighted>>),
    /// A service of some lanes.
    Mapping(LaneTarget),
}

/// An upstream that gets a share of a route's requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["upstream", "weight"]))]
pub(crate) struct Weighted {
    /// The upstream's name.
    #[serde(default)]
    pub(crate) upstream: Field<Text>,
    /// Its share, relative to the sum of all weights.
    #[serde(default)]
    pub(crate) weight: Field<Number<0, 1_000_000>>,
}

/// A redirect: at least one of `scheme`, `host`, `port`, `path`, `prefix`; the rest stays as the
/// request had it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redirect {
    /// The new scheme.
    #[serde(default)]
    pub(crate) scheme: Field<Scheme>,
    /// The new host.
    #[serde(default)]
    pub(crate) host: Field<Text>,
    /// The new port.
    #[serde(default)]
    pub(crate) port: Field<Number<1, 65535>>,
    /// The new path, in place of the whole path. With a `?`, it replaces the query too.
    #[serde(default)]
    pub(crate) path: Field<Path>,
    /// What the matched `prefix` or `path` is replaced by. Not together with `path`.
    #[serde(default)]
    pub(crate) prefix: Field<Path>,
    /// 301 (the default), 302, 303, 307 or 308.
    #[serde(default)]
    pub(crate) status: Field<u16>,
}

/// A URL's scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scheme {
    /// Plain.
    Http,
    /// TLS.
    Https,
}

/// A fixed response.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["status"]))]
pub(crate) struct Respond {
    /// Its status code.
    #[serde(default)]
    pub(crate) status: Field<Number<200, 599>>,
    /// Its body, at most 64 KiB. Default: none.
    #[serde(default)]
    pub(crate) body: Field<String>,
    /// Its headers.
    #[serde(default)]
    pub(crate) headers: Field<Entries<Field<String>>>,
}

/// When a request is sent again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["on"]))]
pub(crate) struct Retries {
    /// How often at most, after the first time. Default: 1.
    #[serde(default)]
    pub(crate) attempts: Field<Number<1, 100>>,
    /// After what. At least one.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) on: Field<Vec<Field<RetryOn>>>,
    /// How long each of them may take. Default: the route's `timeout`, which also limits all of them
    /// together.
    #[serde(default)]
    pub(crate) per_try_timeout: Field<Duration>,
}

/// What makes a request be sent again; the words are Envoy's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RetryOn {
    /// A response with a status of 500 to 599, or none at all.
    #[serde(rename = "5xx")]
    FiveXx,
    /// A response with status 502, 503 or 504.
    GatewayError,
    /// The upstream closed or reset the connection before it answered.
    Reset,
    /// No connection could be made.
    ConnectFailure,
    /// The upstream refused the HTTP/2 stream.
    RefusedStream,
    /// A response with status 409.
    #[serde(rename = "retriable-4xx")]
    Retriable4xx,
}

/// Where requests are sent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["endpoints"]))]
pub(crate) struct Upstream {
    /// Its machines: `10.0.0.7:8080`, `[::1]:8080` or `host.name:8080`, or a mapping with a weight. When
    /// all are IP addresses the list is fixed; otherwise the names are looked up again and again.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) endpoints: Field<Vec<Field<Shape<Address, Endpoint>>>>,
    /// The version of a Kubernetes service that it is in a mesh, for `outrider render istio` alone, which needs no
    /// `endpoints`.
    #[serde(default)]
    pub(crate) kubernetes: Field<KubernetesUpstream>,
    /// How one of them is chosen. Default: `round_robin`.
    #[serde(default)]
    pub(crate) load_balancing: Field<LoadBalancing>,
    /// Ask each of them, and leave out those that do not answer well.
    #[serde(default)]
    pub(crate) health_check: Field<HealthCheck>,
    /// Connect with TLS.
    #[serde(default)]
    pub(crate) tls: Field<UpstreamTls>,
    /// The HTTP version that it speaks. Default: `http1`.
    #[serde(default)]
    pub(crate) protocol: Field<Protocol>,
    /// How long a connection may take to be made. Default: `5s`.
    #[serde(default)]
    pub(crate) connect_timeout: Field<Duration>,
    /// Leave out machines that answer badly, for a while.
    #[serde(default)]
    pub(crate) outlier_detection: Field<OutlierDetection>,
    /// How much it gets at a time, from all workers together. What is beyond a limit is answered with 503, and does not
    /// reach it.
    #[serde(default)]
    pub(crate) limits: Field<UpstreamLimits>,
}

/// When a machine of an upstream gets no requests for a while, because of its answers. Envoy's documentation: outlier
/// detection.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutlierDetection {
    /// After so many responses in a row with a status from 500 on, or none. Default: 5.
    #[serde(default)]
    pub(crate) consecutive_5xx: Field<Number<1, 10_000>>,
    /// Time between two looks at whether one may come back. Default: `10s`.
    #[serde(default)]
    pub(crate) interval: Field<Duration>,
    /// How long it is left out, times the number of times that it was. Default: `30s`.
    #[serde(default)]
    pub(crate) base_ejection_time: Field<Duration>,
    /// How many of the machines may be left out at a time, in per cent; one may be in any case. Default: 10.
    #[serde(default)]
    pub(crate) max_ejection_percent: Field<Number<0, 100>>,
}

/// How much an upstream gets at a time. The cluster for callouts of plugins has the same limits, and counts by itself.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamLimits {
    /// Connections to all its machines together. Over HTTP/1.1, each request under way has one; requests beyond that wait.
    /// Default: 10000.
    #[serde(default)]
    pub(crate) connections: Field<Number<1, 1_000_000>>,
    /// Requests that wait for a connection. Default: 10000.
    #[serde(default)]
    pub(crate) pending_requests: Field<Number<0, 1_000_000>>,
    /// Requests under way. Default: 10000.
    #[serde(default)]
    pub(crate) requests: Field<Number<1, 1_000_000>>,
    /// How many of the requests under way may be retries.
    #[serde(default)]
    pub(crate) retry_budget: Field<RetryBudget>,
}

/// How many of an upstream's requests under way may be retries, so that an upstream that fails does not get several times
/// the requests. A failure beyond it is what the client gets.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryBudget {
    /// In per cent of the requests under way and waiting. A retry counts from the failure on, also while it waits for its
    /// turn. Default: 25.
    #[serde(default)]
    pub(crate) percent: Field<Number<0, 100>>,
    /// So many at least, however few requests are under way. Default: 50.
    #[serde(default)]
    pub(crate) min_concurrency: Field<Number<0, 1_000_000>>,
}

/// A machine of an upstream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["address"]))]
pub(crate) struct Endpoint {
    /// Host and port.
    #[serde(default)]
    pub(crate) address: Field<Address>,
    /// Its share, relative to the others. Default: 1.
    #[serde(default)]
    pub(crate) weight: Field<Number<1, 1_000_000>>,
}

/// How an upstream's machine is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadBalancing {
    /// In turn.
    RoundRobin,
    /// Of two, the one with fewer open requests.
    LeastRequest,
    /// By chance.
    Random,
    /// By consistent hashing on a ring, of what the route's `hash` says, or of the client's address.
    RingHash,
    /// By consistent hashing with a lookup table, of the same.
    Maglev,
}

impl LoadBalancing {
    /// Whether a part of the request decides.
    pub(crate) fn is_by_hash(self) -> bool {
        matches!(self, Self::RingHash | Self::Maglev)
    }
}

/// A health check: `GET` of a path, healthy when the status is 200.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["path"]))]
pub(crate) struct HealthCheck {
    /// The path.
    #[serde(default)]
    pub(crate) path: Field<Path>,
    /// Time between two checks. Default: `5s`.
    #[serde(default)]
    pub(crate) interval: Field<Duration>,
    /// How long an answer may take. Default: `1s`.
    #[serde(default)]
    pub(crate) timeout: Field<Duration>,
    /// How many good answers make it healthy again. Default: 1.
    #[serde(default)]
    pub(crate) healthy_threshold: Field<Number<1, 1000>>,
    /// How many bad ones make it unhealthy. Default: 3.
    #[serde(default)]
    pub(crate) unhealthy_threshold: Field<Number<1, 1000>>,
}

/// TLS to an upstream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["ca"]))]
pub(crate) struct UpstreamTls {
    /// The server name that is asked for and that the certificate has to be of. Default: the host of
    /// the only endpoint, where that is a name.
    #[serde(default)]
    pub(crate) sni: Field<Text>,
    /// The authorities that may have signed the certificate, a PEM file relative to this file; or
    /// `none`: the certificate is not checked.
    #[serde(default)]
    pub(crate) ca: Field<Text>,
    /// The gateway's own certificate, a PEM file. Only together with `private_key`.
    #[serde(default)]
    pub(crate) certificate: Field<Text>,
    /// Its private key, a PEM file. Only together with `certificate`.
    #[serde(default)]
    pub(crate) private_key: Field<Text>,
}
