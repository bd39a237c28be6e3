//! A listener with its HTTP connection manager.
//!
//! What an edge has to decide, and what is decided here (`docs/configuration.md` tells users):
//! - the client's address is that of the connection, not what `x-forwarded-for` claims, unless proxies in front are trusted;
//! - paths are normalised before routes see them, and an escaped slash is unescaped by a redirect, so
//!   that no spelling of a path slips past a route that guards it;
//! - headers with an underscore are dropped, because some upstreams take `_` for `-`;
//! - request headers have ten seconds to arrive, unless the file says otherwise;
//! - the id of a request (`x-request-id`) is made anew, unless the proxy is a sidecar of a chain with lanes;
//! - a TLS listener looks at the client's first message, so that plugins know which name it asked for.

use outrider_plugin_formats::LaneRole;
use serde_json::{Map, Value, json};

use super::{
    Form, RDS_FILE, ROUTE_CONFIGURATION, downstream_http2_options, duration, filter, route, secret,
    socket_address, source, typed,
};
use crate::plan::{
    AccessLog, ClientCertificate, Listener, ListenerTls, LogFormat, Plan, Protocols,
};

pub(super) fn listener(plan: &Plan, listener: &Listener, form: Form<'_>) -> Value {
    // Envoy trusts a connection or it does not: what differs by where it comes from is a chain of its own.
    let chains: Vec<Value> = if plan.trusted_proxies.is_empty() {
        vec![filter_chain(plan, listener, form, plan.trusted_hops)]
    } else {
        let mut trusted = filter_chain(plan, listener, form, plan.trusted_hops);
        let ranges = plan.trusted_proxies.iter();
        let ranges: Vec<Value> = ranges
            .map(|range| json!({ "address_prefix": range.addr().to_string(), "prefix_len": range.prefix_len() }))
            .collect();
        if let Some(chain) = trusted.as_object_mut() {
            chain.insert("name".to_owned(), "trusted-proxies".into());
            chain.insert(
                "filter_chain_match".to_owned(),
                json!({ "direct_source_prefix_ranges": ranges }),
            );
        }
        vec![trusted, filter_chain(plan, listener, form, 0)]
    };
    let mut document = json!({
        "name": listener.name,
        "address": socket_address(&listener.address.ip().to_string(), listener.address.port()),
        "per_connection_buffer_limit_bytes": plan.body_limit,
        "filter_chains": chains,
    });
    if let (true, Some(document)) = (listener.tls.is_some(), document.as_object_mut()) {
        let inspector = json!({
            "name": "envoy.filters.listener.tls_inspector",
            "typed_config": typed(
                "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
                json!({}),
            ),
        });
        document.insert("listener_filters".to_owned(), json!([inspector]));
    }
    document
}

fn filter_chain(plan: &Plan, listener: &Listener, form: Form<'_>, trusted_hops: u32) -> Value {
    let manager = json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": connection_manager(plan, listener, form, trusted_hops),
    });
    let mut chain = json!({ "filters": [manager] });
    if let (Some(tls), Some(chain)) = (&listener.tls, chain.as_object_mut()) {
        chain.insert(
            "transport_socket".to_owned(),
            self::tls(tls, listener.protocols, form),
        );
    }
    chain
}

fn connection_manager(
    plan: &Plan,
    listener: &Listener,
    form: Form<'_>,
    trusted_hops: u32,
) -> Value {
    let mut manager = Map::new();
    let mut set = |key: &str, value: Value| {
        manager.insert(key.to_owned(), value);
    };
    set("stat_prefix", listener.name.as_str().into());
    let codec = match listener.protocols {
        Protocols::Http1 => "HTTP1",
        Protocols::Http2 => "HTTP2",
        Protocols::Both => "AUTO",
    };
    set("codec_type", codec.into());
    let filter = match form {
        Form::Files(layout) => {
            set(
                "rds",
                json!({
                    "route_config_name": ROUTE_CONFIGURATION,
                    "config_source": source(layout, RDS_FILE),
                }),
            );
            filter::discovered(layout)
        }
        Form::Inline => {
            set("route_config", route::configuration(plan));
            filter::extension(&plan.filter)
        }
    };
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": typed("envoy.extensions.filters.http.router.v3.Router", json!({})),
    });
    set("http_filters", json!([filter, router]));
    set("use_remote_address", true.into());
    if trusted_hops > 0 {
        set("xff_num_trusted_hops", trusted_hops.into());
    }
    if is_sidecar(plan) {
        set("preserve_external_request_id", true.into());
    }
    set("normalize_path", true.into());
    set("merge_slashes", true.into());
    set(
        "path_with_escaped_slashes_action",
        "UNESCAPE_AND_REDIRECT".into(),
    );
    let timeouts = &plan.timeouts;
    let mut common = json!({
        "headers_with_underscores_action": "DROP_HEADER",
        "idle_timeout": duration(timeouts.idle),
    });
    for (key, most) in [
        ("max_connection_duration", timeouts.max_connection_duration),
        ("max_stream_duration", timeouts.max_stream_duration),
    ] {
        if let (1.., Some(common)) = (most, common.as_object_mut()) {
            common.insert(key.to_owned(), duration(most));
        }
    }
    set("common_http_protocol_options", common);
    set(
        "request_headers_timeout",
        duration(timeouts.request_headers),
    );
    set("request_timeout", duration(timeouts.request));
    set("stream_idle_timeout", duration(timeouts.stream_idle));
    // Envoy drops the trailers of HTTP/1.1 unless told otherwise.
    let mut http1 = json!({ "enable_trailers": true });
    if let (Some(host), Some(http1)) = (&listener.http10_default_host, http1.as_object_mut()) {
        http1.insert("accept_http_10".to_owned(), true.into());
        http1.insert("default_host_for_http_10".to_owned(), host.as_str().into());
    }
    set("http_protocol_options", http1);
    set("http2_protocol_options", downstream_http2_options(plan));
    // Routes turn on what they allow, and a listener has to know the names. The usual one is always there, or the first route
    // with it would replace the listener.
    let mut names = route::upgrades(plan);
    names.insert("websocket");
    let upgrades = names.into_iter();
    let upgrades: Vec<Value> = upgrades
        .map(|name| json!({ "upgrade_type": name, "enabled": false }))
        .collect();
    set("upgrade_configs", upgrades.into());
    // The module's logger is there with and without `telemetry`, so that no change of that replaces the listener.
    let mut loggers = vec![filter::access_logger()];
    loggers.extend(plan.access_log.as_ref().map(access_log));
    set("access_log", loggers.into());
    typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        Value::Object(manager),
    )
}

/// Whether requests have met a proxy before this one. Their id is kept then: it may be what lanes are matched by.
fn is_sidecar(plan: &Plan) -> bool {
    let documents = plan
        .projects
        .iter()
        .filter_map(|project| project.filter.as_ref());
    documents
        .flat_map(|document| &document.lanes)
        .any(|lane| lane.role != LaneRole::Edge)
}

fn access_log(log: &AccessLog) -> Value {
    let format = match &log.format {
        LogFormat::Text(line) => json!({ "text_format_source": { "inline_string": line } }),
        LogFormat::Json(object) => json!({ "json_format": object }),
    };
    match &log.path {
        Some(path) => json!({
            "name": "envoy.access_loggers.file",
            "typed_config": typed(
                "envoy.extensions.access_loggers.file.v3.FileAccessLog",
                json!({ "path": path, "log_format": format }),
            ),
        }),
        None => json!({
            "name": "envoy.access_loggers.stdout",
            "typed_config": typed(
                "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
                json!({ "log_format": format }),
            ),
        }),
    }
}

fn tls(tls: &ListenerTls, protocols: Protocols, form: Form<'_>) -> Value {
    let alpn = match protocols {
        Protocols::Http1 => json!(["http/1.1"]),
        Protocols::Http2 => json!(["h2"]),
        Protocols::Both => json!(["h2", "http/1.1"]),
    };
    let mut common = Map::new();
    common.insert("alpn_protocols".to_owned(), alpn);
    secret::own(&mut common, &tls.certificates, form);
    let mut context = Map::new();
    if let Some(clients) = &tls.clients {
        // With authorities, Envoy asks for a certificate and verifies what it is shown; that there is
        // one, it insists on only when told to.
        secret::authorities(&mut common, &clients.ca, Map::new(), form);
        let required = clients.certificate == ClientCertificate::Required;
        context.insert("require_client_certificate".to_owned(), required.into());
    }
    context.insert("common_tls_context".to_owned(), Value::Object(common));
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": typed(
            "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            Value::Object(context),
        ),
    })
}
