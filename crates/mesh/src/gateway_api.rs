//! Gateway API: a Service for each version, and HTTPRoutes over them, for requests in the mesh and for those that come
//! through the gateway.

use outrider_gateway::plan::UpstreamProtocol;
use outrider_gateway::plan::mesh::{MeshLanes, MeshPlan, MeshService};
use outrider_plugin_formats::MIRRORED_LANE;
use serde_json::{Value, json};

use crate::resource::Resource;
use crate::routes::name;

const API: (&str, &str) = ("gateway.networking.k8s.io/v1", "HTTPRoute");

/// A Service for each version of each service.
pub(crate) fn services(_plan: &MeshPlan, lanes: &MeshLanes) -> Vec<Resource> {
    let group = &lanes.group.name;
    let mut resources = Vec::new();
    for service in &lanes.services {
        for version in &service.versions {
            let (port_name, protocol) = match service.protocol {
                UpstreamProtocol::Http1 => ("http", "http"),
                UpstreamProtocol::Http2 => ("http2", "kubernetes.io/h2c"),
            };
            resources.push(Resource::new(
                ("v1", "Service"),
                (&service.namespace, &version_name(service, &version.lane)),
                format!(
                    "Lanes `{group}`: the pods of {} in the lane `{}` alone.",
                    service.name, version.lane
                ),
                &[(
                    "spec",
                    json!({
                        "selector": version.workload.labels,
                        "ports": [{
                            "name": port_name,
                            "appProtocol": protocol,
                            "port": service.port,
                            "targetPort": version.target_port,
                        }],
                    }),
                )],
            ));
        }
    }
    resources
}

fn version_name(service: &MeshService, lane: &str) -> String {
    format!("{}-{lane}", service.service)
}

/// An HTTPRoute for each service, and one for the gateway.
pub(crate) fn routes(_plan: &MeshPlan, lanes: &MeshLanes) -> Vec<Resource> {
    let group = &lanes.group.name;
    let mut resources = Vec::new();
    for service in &lanes.services {
        let parent = json!({
            "group": "",
            "kind": "Service",
            "name": service.service,
            "port": service.port,
        });
        resources.push(Resource::new(
            API,
            (&service.namespace, &name(group, service)),
            format!(
                "Lanes `{group}`: requests in the mesh for {} go to the version of their lane, or to the baseline's where the \
                 lane has none.",
                service.name
            ),
            &[(
                "spec",
                json!({"parentRefs": [parent], "rules": rules(lanes, service)}),
            )],
        ));
    }
    let entry = lanes
        .services
        .iter()
        .find(|service| service.name == lanes.edge.service);
    if let Some(service) = entry {
        let parents: Vec<Value> = lanes
            .edge
            .gateways
            .iter()
            .map(|(namespace, name)| {
                let namespace = namespace
                    .as_deref()
                    .unwrap_or(&lanes.edge.workload.namespace);
                json!({
                    "group": "gateway.networking.k8s.io",
                    "kind": "Gateway",
                    "name": name,
                    "namespace": namespace,
                })
            })
            .collect();
        resources.push(Resource::new(
            API,
            (&service.namespace, &format!("outrider-lanes-{group}-edge")),
            format!(
                "Lanes `{group}`: requests that come through the gateway go to the version of {} in their lane.",
                service.name
            ),
            &[(
                "spec",
                json!({
                    "parentRefs": parents,
                    "hostnames": lanes.edge.hosts,
                    "rules": rules(lanes, service),
                }),
            )],
        ));
    }
    resources
}

fn rules(lanes: &MeshLanes, service: &MeshService) -> Vec<Value> {
    let group = &lanes.group;
    let to = |lane: &str| {
        json!([{
            "group": "",
            "kind": "Service",
            "name": version_name(service, lane),
            "port": service.port,
            "weight": 1,
        }])
    };
    let matching = |header: &str, value: &str| {
        json!([{
            "path": {"type": "PathPrefix", "value": "/"},
            "headers": [{"type": "Exact", "name": header, "value": value}],
        }])
    };
    let mut rules = Vec::new();
    if let Some(fallback) = &group.fallback {
        rules.push(json!({
            "matches": matching(fallback, "1"),
            "filters": [{
                "type": "RequestHeaderModifier",
                "requestHeaderModifier": {"remove": [fallback]},
            }],
            "backendRefs": to(&group.baseline),
        }));
    }
    for version in &service.versions {
        if version.lane != group.baseline {
            rules.push(json!({
                "matches": matching(&group.header, &version.lane),
                "backendRefs": to(&version.lane),
            }));
        }
    }
    for lane in group.mirrored() {
        rules.push(json!({
            "matches": matching(&group.header, &format!("{MIRRORED_LANE}{lane}")),
            "filters": [{
                "type": "RequestMirror",
                "requestMirror": {"backendRef": {
                    "group": "",
                    "kind": "Service",
                    "name": version_name(service, lane),
                    "port": service.port,
                }},
            }],
            "backendRefs": to(&group.baseline),
        }));
    }
    rules.push(json!({
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "backendRefs": to(&group.baseline),
    }));
    rules
}
