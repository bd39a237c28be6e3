//! EnvoyFilter: the module's filter before the router of some proxies, and its configuration by ECDS.
//!
//! The filter stands in the listener by name alone, with an `initial_fetch_timeout` of zero: the listener waits for nothing,
//! and a change of the configuration is no change of the listener. Requests that come before the configuration is there,
//! or while it is refused, are answered with 500.

use outrider_gateway::envoy;
use outrider_gateway::plan::mesh::{
    LaneMode, MeshLanes, MeshPlan, MeshPlugins, MeshTraffic, Workload,
};
use outrider_plugin_formats::{
    FORMAT, FilterConfig, LaneGroup, LanePlace, LaneRole, LaneUse, PluginSource, PluginTime,
    Runtime,
};
use serde_json::{Value, json};

use crate::module::wasm_path;
use crate::resource::Resource;

const API: (&str, &str) = ("networking.istio.io/v1alpha3", "EnvoyFilter");
/// EnvoyFilters of lower priority are applied first, so that plugins stand behind lanes.
const LANES_PRIORITY: i32 = 0;
const PLUGINS_PRIORITY: i32 = 10;

/// EnvoyFilters of a group: at the edge, and for each version of each service.
pub(crate) fn of_lanes(lanes: &MeshLanes) -> Vec<Resource> {
    let group = &lanes.group.name;
    let edge = &lanes.edge.workload;
    let mut resources = vec![resource(
        (&edge.namespace, &format!("outrider-lanes-{group}-edge")),
        format!(
            "Lanes `{group}`, the gateway: the rules choose the lane of each request, and what clients sent in `{}` is removed.",
            lanes.group.header
        ),
        edge,
        LANES_PRIORITY,
        patches(
            &format!("outrider.lanes.{group}"),
            MeshTraffic::Gateway,
            &document(&lanes.group, LaneRole::Edge, None),
        ),
    )];
    for service in &lanes.services {
        for version in &service.versions {
            let (role, comment) = match lanes.mode {
                LaneMode::Permissive => (
                    LaneRole::Outbound,
                    "the lane of requests that come in is remembered, and put back on those that the service sends",
                ),
                LaneMode::Strict => (
                    LaneRole::Stamp(version.lane.clone()),
                    "requests that the service sends get the lane of its version",
                ),
            };
            // Entry rules are the edge's: a change of them changes no sidecar.
            let group_of_sidecar = LaneGroup {
                sticky: Vec::new(),
                rules: Vec::new(),
                ..lanes.group.clone()
            };
            let place = LanePlace {
                service: service.name.clone(),
                version: version.lane.clone(),
            };
            let mut all = Vec::new();
            if lanes.mode == LaneMode::Permissive {
                all.extend(patches(
                    &format!("outrider.lanes.{group}.inbound"),
                    MeshTraffic::Inbound,
                    &document(&group_of_sidecar, LaneRole::Inbound, Some(place.clone())),
                ));
            }
            all.extend(patches(
                &format!("outrider.lanes.{group}.outbound"),
                MeshTraffic::Outbound,
                &document(&group_of_sidecar, role, Some(place)),
            ));
            resources.push(resource(
                (
                    &version.workload.namespace,
                    &format!("outrider-lanes-{group}-{}-{}", service.name, version.lane),
                ),
                format!(
                    "Lanes `{group}`, sidecars of {} in the lane `{}`: {comment}.",
                    service.name, version.lane
                ),
                &version.workload,
                LANES_PRIORITY,
                all,
            ));
        }
    }
    resources
}

/// EnvoyFilter of one entry of `plugins`.
pub(crate) fn of_plugins(plan: &MeshPlan, plugins: &MeshPlugins) -> Resource {
    let mut filter = plugins.filter.clone();
    for plugin in &mut filter.plugins {
        if let PluginSource::Module(path) = &mut plugin.source {
            *path = wasm_path(&plan.module, &plugin.name, &plugin.digest);
        }
    }
    let names: Vec<String> = filter
        .plugins
        .iter()
        .map(|plugin| format!("`{}`", plugin.name))
        .collect();
    let mut all = Vec::new();
    if filter
        .plugins
        .iter()
        .any(|plugin| plugin.runtime == Runtime::Wasm)
    {
        all.push(json!({
            "applyTo": "CLUSTER",
            "match": {"context": context(plugins.on)},
            "patch": {
                "operation": "ADD",
                "value": envoy::workers_cluster(&format!("_outrider_workers_{}", plugins.name)),
            },
        }));
    }
    all.extend(patches(
        &format!("outrider.plugins.{}", plugins.name),
        plugins.on,
        &filter,
    ));
    resource(
        (
            &plugins.workload.namespace,
            &format!("outrider-plugins-{}", plugins.name),
        ),
        format!(
            "Plugins {} for {} requests of {}.",
            names.join(", "),
            match plugins.on {
                MeshTraffic::Gateway => "the gateway's",
                MeshTraffic::Inbound => "inbound",
                MeshTraffic::Outbound => "outbound",
            },
            if plugins.workload.labels.is_empty() {
                "all proxies of the namespace"
            } else {
                "the chosen proxies"
            }
        ),
        &plugins.workload,
        PLUGINS_PRIORITY,
        all,
    )
}

fn resource(
    place: (&str, &str),
    comment: String,
    workload: &Workload,
    priority: i32,
    patches: Vec<Value>,
) -> Resource {
    let mut spec = serde_json::Map::new();
    if !workload.labels.is_empty() {
        spec.insert(
            "workloadSelector".to_owned(),
            json!({"labels": workload.labels}),
        );
    }
    if priority != 0 {
        spec.insert("priority".to_owned(), priority.into());
    }
    spec.insert("configPatches".to_owned(), patches.into());
    Resource::new(API, place, comment, &[("spec", Value::Object(spec))])
}

fn context(traffic: MeshTraffic) -> &'static str {
    match traffic {
        MeshTraffic::Gateway => "GATEWAY",
        MeshTraffic::Inbound => "SIDECAR_INBOUND",
        MeshTraffic::Outbound => "SIDECAR_OUTBOUND",
    }
}

/// The filter's configuration, and the filter.
fn patches(name: &str, traffic: MeshTraffic, config: &FilterConfig) -> Vec<Value> {
    let context = context(traffic);
    vec![
        json!({
            "applyTo": "EXTENSION_CONFIG",
            "match": {"context": context},
            "patch": {"operation": "ADD", "value": envoy::filter_extension(name, config)},
        }),
        json!({
            "applyTo": "HTTP_FILTER",
            "match": {
                "context": context,
                "listener": {"filterChain": {"filter": {
                    "name": "envoy.filters.network.http_connection_manager",
                    "subFilter": {"name": "envoy.filters.http.router"},
                }}},
            },
            "patch": {
                "operation": "INSERT_BEFORE",
                "value": envoy::discovered_filter(
                    name,
                    &json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}),
                ),
            },
        }),
    ]
}

fn document(group: &LaneGroup, role: LaneRole, place: Option<LanePlace>) -> FilterConfig {
    FilterConfig {
        format: FORMAT,
        body_limit: None,
        log_folder: None,
        compiled_folder: None,
        plugin_time: PluginTime::Off,
        callout_clusters: std::collections::BTreeMap::new(),
        lane_groups: vec![group.clone()],
        lanes: vec![LaneUse {
            group: group.name.clone(),
            role,
            place,
        }],
        telemetry: None,
        plugins: Vec::new(),
    }
}
