//! What Envoy is started with.

use serde_json::{Value, json};

use super::{CDS_FILE, LDS_FILE, Layout, socket_address, source};

/// Turns `outrider.plugin.<name>.calls` into `outrider.plugin.calls` with a tag that holds the name.
/// The module's metrics stand below a namespace of Envoy's.
const PLUGIN_TAG: &str = r"^(?:\w+\.)?outrider\.plugin\.(([a-z0-9-]+)\.)";

/// Envoy refuses regular expressions whose compiled program is larger; its default is 100, which a
/// `[a-z]{100}` passes.
const LARGEST_REGEX: u32 = 10_000;

pub(super) fn dynamic(layout: &Layout) -> Value {
    let mut bootstrap = common(layout);
    if let Some(object) = bootstrap.as_object_mut() {
        object.insert(
            "dynamic_resources".to_owned(),
            json!({
                "lds_config": source(layout, LDS_FILE),
                "cds_config": source(layout, CDS_FILE),
            }),
        );
    }
    bootstrap
}

pub(super) fn inline(layout: &Layout, listeners: &[Value], clusters: &[Value]) -> Value {
    let mut bootstrap = common(layout);
    if let Some(object) = bootstrap.as_object_mut() {
        object.insert(
            "static_resources".to_owned(),
            json!({ "listeners": listeners, "clusters": clusters }),
        );
    }
    bootstrap
}

fn common(layout: &Layout) -> Value {
    json!({
        "node": { "id": layout.node, "cluster": "outrider" },
        "admin": { "address": socket_address(&layout.admin.ip().to_string(), layout.admin.port()) },
        "stats_flush_interval": "5s",
        "stats_config": {
            "stats_tags": [{ "tag_name": "outrider.plugin", "regex": PLUGIN_TAG }],
        },
        "layered_runtime": {
            "layers": [{
                "name": "static",
                "static_layer": { "re2": { "max_program_size": { "error_level": LARGEST_REGEX } } },
            }],
        },
    })
}
