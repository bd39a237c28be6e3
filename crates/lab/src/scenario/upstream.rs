//! What stands behind the proxies of scenarios: an upstream that returns the body, and clusters of Envoy.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::body_echo::BodyEcho;
use crate::experiment::rig::Rig;

/// Starts an upstream that lives as long as the rig, and returns its address.
///
/// # Errors
///
/// Loopback has no free port.
pub(crate) fn start_upstream(rig: &mut Rig) -> anyhow::Result<SocketAddr> {
    let upstream = BodyEcho::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1)?;
    for thread in upstream.thread_ids() {
        rig.place_own_thread(thread)?;
    }
    let address = upstream.address();
    rig.keep.push(Box::new(upstream));
    Ok(address)
}

/// A cluster of HTTP/2 over a Unix socket.
pub(crate) fn pipe_cluster(name: &str, socket: &Path) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [
                { "endpoint": { "address": { "pipe": { "path": socket } } } },
            ] }],
        },
    })
}

/// A cluster of HTTP/1.1 with one endpoint.
pub(crate) fn cluster(name: &str, address: SocketAddr) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": { "socket_address": {
                "address": address.ip().to_string(), "port_value": address.port(),
            } } } }] }],
        },
    })
}

/// Adds clusters to a bootstrap that has some.
///
/// # Errors
///
/// It has none.
pub(crate) fn add_clusters(
    bootstrap: &mut Value,
    clusters: impl IntoIterator<Item = Value>,
) -> anyhow::Result<()> {
    bootstrap
        .pointer_mut("/static_resources/clusters")
        .and_then(Value::as_array_mut)
        .context("the bootstrap has no clusters")?
        .extend(clusters);
    Ok(())
}
