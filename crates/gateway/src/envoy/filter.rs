//! The one HTTP filter: Outrider's module, with its documents; the module's pages; and its cluster.

use outrider_plugin_formats::{FilterConfig, RouteConfig};
use serde::Serialize;
use serde_json::{Value, json};

use super::{ECDS_FILE, FILTER_NAME, Layout, object, source, structure, typed};

const FILTER: &str = "envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter";
const PER_ROUTE: &str =
    "envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute";
const BOOTSTRAP_EXTENSION: &str =
    "envoy.extensions.bootstrap.dynamic_modules.v3.DynamicModuleBootstrapExtension";

const CLUSTER: &str = "envoy.extensions.clusters.dynamic_modules.v3.ClusterConfig";
/// No upstream of a user's has such a name.
const WORKERS: &str = "_outrider_workers";

/// In a listener: by name, its configuration from ECDS.
pub(super) fn discovered(layout: &Layout) -> Value {
    discovered_filter(FILTER_NAME, &source(layout, ECDS_FILE))
}

/// The module's filter in a listener, by its name; `source` is where ECDS finds its configuration.
pub fn discovered_filter(name: &str, source: &Value) -> Value {
    json!({
        "name": name,
        "config_discovery": {
            "config_source": source,
            "type_urls": [format!("type.googleapis.com/{FILTER}")],
        },
    })
}

/// In a listener, with its configuration; and, the same, the resource of ECDS.
pub(super) fn extension(config: &FilterConfig) -> Value {
    filter_extension(FILTER_NAME, config)
}

/// The configuration of the module's filter of this name, as a resource of ECDS.
pub fn filter_extension(name: &str, config: &FilterConfig) -> Value {
    object([
        ("name", name.into()),
        ("typed_config", module(FILTER, config)),
    ])
}

/// In a listener: the module's access logger. What it records is in the documents of the filter and of routes.
pub fn access_logger() -> Value {
    json!({
        "name": "envoy.access_loggers.dynamic_modules",
        "typed_config": typed(
            "envoy.extensions.access_loggers.dynamic_modules.v3.DynamicModuleAccessLog",
            json!({ "dynamic_module_config": dynamic_module(), "logger_name": "outrider" }),
        ),
    })
}

/// A `typed_per_filter_config`.
pub(super) fn per_route(config: &RouteConfig) -> Value {
    object([(FILTER_NAME, module(PER_ROUTE, config))])
}

/// In a bootstrap: the module's pages on the admin port.
pub fn admin_pages() -> Value {
    json!({
        "name": "envoy.bootstrap.dynamic_modules",
        "typed_config": {
            "@type": format!("type.googleapis.com/{BOOTSTRAP_EXTENSION}"),
            "dynamic_module_config": dynamic_module(),
            "extension_name": "outrider",
        },
    })
}

/// In a bootstrap: a cluster without endpoints, by which Envoy calls the module on its workers where there is no
/// stream.
pub(super) fn workers() -> Value {
    workers_cluster(WORKERS)
}

/// A cluster without endpoints, by which Envoy calls the module on its workers where there is no stream; `name` is not that
/// of an upstream.
pub fn workers_cluster(name: &str) -> Value {
    json!({
        "name": name,
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.dynamic_modules",
            "typed_config": {
                "@type": format!("type.googleapis.com/{CLUSTER}"),
                "cluster_name": "outrider",
                "dynamic_module_config": dynamic_module(),
            },
        },
    })
}

fn dynamic_module() -> Value {
    // Threads and thread-local data of the module outlive its configurations.
    json!({ "name": "outrider", "do_not_close": true })
}

fn module(message: &str, document: &impl Serialize) -> Value {
    // The documents are plain data with text keys: they always serialize.
    let document = serde_json::to_value(document).unwrap_or_default();
    typed(
        message,
        object([
            ("dynamic_module_config", dynamic_module()),
            ("filter_name", "outrider".into()),
            ("filter_config", structure(document)),
        ]),
    )
}
