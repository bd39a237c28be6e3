//! What Envoy is started with.

use serde_json::{Value, json};

use super::{CDS_FILE, LDS_FILE, Layout, filter, socket_address, source, typed};
use crate::plan::{ClientLimits, Plan};

/// Turns `outrider.plugin.<name>.calls` into `outrider.plugin.calls` with a tag that holds the name.
/// The module's metrics stand below a namespace of Envoy's.
const PLUGIN_TAG: &str = r"^(?:\w+\.)?outrider\.plugin\.(([a-z0-9-]+)\.)";

/// The names of histograms of plugins' time, with or without the plugin in them.
const TIME: &str = r"(?:.*\.)?outrider\.plugin\.(?:[a-z0-9-]+\.)?time_ns\.[a-z_]+";

/// Where the histograms of plugins' time, in nanoseconds, are told apart in Prometheus' form: from a
/// quarter of a microsecond to beyond the default time budget. Envoy's own limits are made for
/// milliseconds.
const TIME_BUCKETS: [u64; 16] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 25_000_000,
];

/// Envoy refuses regular expressions whose compiled program is larger; its default is 100, which a
/// `[a-z]{100}` passes.
const LARGEST_REGEX: u32 = 10_000;

pub(super) fn dynamic(plan: &Plan, layout: &Layout) -> Value {
    let mut bootstrap = common(plan, layout);
    if let Some(object) = bootstrap.as_object_mut() {
        object.insert(
            "dynamic_resources".to_owned(),
            json!({
                "lds_config": source(layout, LDS_FILE),
                "cds_config": source(layout, CDS_FILE),
            }),
        );
        object.insert(
            "static_resources".to_owned(),
            json!({ "clusters": [filter::workers()] }),
        );
    }
    bootstrap
}

pub(super) fn inline(
    plan: &Plan,
    layout: &Layout,
    listeners: &[Value],
    mut clusters: Vec<Value>,
) -> Value {
    clusters.push(filter::workers());
    let mut bootstrap = common(plan, layout);
    if let Some(object) = bootstrap.as_object_mut() {
        object.insert(
            "static_resources".to_owned(),
            json!({ "listeners": listeners, "clusters": clusters }),
        );
    }
    bootstrap
}

/// Requests of one connection that Envoy begins before its event loop turns to other connections: a client that sends
/// a thousand at once delays its own.
const REQUESTS_IN_ONE_TURN: u32 = 16;

/// Bytes of free memory that Envoy's allocator gives back to the system each second. By default it keeps what a moment of
/// heavy traffic took.
const MEMORY_RELEASED_EACH_SECOND: u64 = 16 * 1024 * 1024;

/// Envoy's overload manager, where something is limited that all listeners share.
fn overload_manager(limits: ClientLimits) -> Option<Value> {
    const CONNECTIONS: &str = "envoy.resource_monitors.global_downstream_max_connections";
    const HEAP: &str = "envoy.resource_monitors.fixed_heap";
    let mut monitors = Vec::new();
    let mut actions = Vec::new();
    if let Some(connections) = limits.connections {
        let config = json!({ "max_active_downstream_connections": connections });
        let message = "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig";
        monitors.push(json!({ "name": CONNECTIONS, "typed_config": typed(message, config) }));
    }
    if let Some(heap) = limits.heap_mib {
        let config = json!({ "max_heap_size_bytes": u64::from(heap) * 1024 * 1024 });
        let message = "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig";
        monitors.push(json!({ "name": HEAP, "typed_config": typed(message, config) }));
        for (action, part) in [
            ("shrink_heap", 0.9),
            ("disable_http_keepalive", 0.9),
            ("stop_accepting_requests", 0.95),
            ("stop_accepting_connections", 0.98),
        ] {
            actions.push(json!({
                "name": format!("envoy.overload_actions.{action}"),
                "triggers": [{ "name": HEAP, "threshold": { "value": part } }],
            }));
        }
    }
    (!monitors.is_empty()).then(|| {
        json!({ "refresh_interval": "0.25s", "resource_monitors": monitors, "actions": actions })
    })
}

fn common(plan: &Plan, layout: &Layout) -> Value {
    let mut bootstrap = basic(plan, layout);
    if let (Some(manager), Some(bootstrap)) = (
        overload_manager(plan.client_limits),
        bootstrap.as_object_mut(),
    ) {
        bootstrap.insert("overload_manager".to_owned(), manager);
    }
    bootstrap
}

fn basic(plan: &Plan, layout: &Layout) -> Value {
    json!({
        "node": { "id": layout.node, "cluster": "outrider" },
        "admin": { "address": socket_address(&layout.admin.ip().to_string(), layout.admin.port()) },
        "stats_flush_interval": "5s",
        "memory_allocator_manager": {
            "bytes_to_release": MEMORY_RELEASED_EACH_SECOND,
            "memory_release_interval": "1s",
        },
        "bootstrap_extensions": [filter::admin_pages()],
        "stats_config": {
            "stats_tags": [{ "tag_name": "outrider.plugin", "regex": PLUGIN_TAG }],
            "histogram_bucket_settings": [{
                "match": { "safe_regex": { "regex": TIME } },
                "buckets": TIME_BUCKETS,
            }],
        },
        "layered_runtime": {
            "layers": [{
                "name": "static",
                "static_layer": {
                    "re2": { "max_program_size": { "error_level": LARGEST_REGEX } },
                    "http": {
                        "max_requests_per_io_cycle": REQUESTS_IN_ONE_TURN,
                        // Bytes of a callout's response that Envoy gathers; 32 MiB by default. A change of
                        // `body_limit` changes it with the next start of Envoy.
                        "async_response_buffer_limit": plan.body_limit,
                    },
                },
            }],
        },
    })
}
