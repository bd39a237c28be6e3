//! DestinationRule and VirtualService: the versions of a service as subsets, and the requests of each lane to its own.

use outrider_gateway::plan::mesh::{MeshLanes, MeshPlan, MeshService};
use outrider_plugin_formats::MIRRORED_LANE;
use serde_json::{Value, json};

use crate::resource::Resource;

const API: &str = "networking.istio.io/v1";
/// All sidecars, as a VirtualService names them.
const MESH: &str = "mesh";

/// A DestinationRule for each service.
pub(crate) fn subsets(plan: &MeshPlan, lanes: &MeshLanes) -> Vec<Resource> {
    let group = &lanes.group.name;
    let of_service = |service: &MeshService| {
        let subsets: Vec<Value> = service
            .versions
            .iter()
            .map(|version| json!({"name": version.lane, "labels": version.workload.labels}))
            .collect();
        Resource::new(
            (API, "DestinationRule"),
            (&service.namespace, &name(group, service)),
            format!(
                "Lanes `{group}`: the versions of {}, as subsets by the labels of their pods.",
                service.name
            ),
            &[(
                "spec",
                json!({"host": service.host(&plan.cluster_domain), "subsets": subsets}),
            )],
        )
    };
    lanes.services.iter().map(of_service).collect()
}

/// A VirtualService for each service.
pub(crate) fn routes(plan: &MeshPlan, lanes: &MeshLanes) -> Vec<Resource> {
    let of_service = |service| of_service(plan, lanes, service);
    lanes.services.iter().map(of_service).collect()
}

fn of_service(plan: &MeshPlan, lanes: &MeshLanes, service: &MeshService) -> Resource {
    let group = &lanes.group;
    let host = service.host(&plan.cluster_domain);
    let to = |subset: &str| {
        json!([{"destination": {
            "host": host,
            "subset": subset,
            "port": {"number": service.port},
        }}])
    };
    let mut http = Vec::new();
    if let Some(fallback) = &group.fallback {
        http.push(json!({
            "name": "fallback",
            "match": [{"headers": {fallback: {"exact": "1"}}}],
            "headers": {"request": {"remove": [fallback]}},
            "route": to(&group.baseline),
        }));
    }
    let others = |lane: &&str| *lane != group.baseline;
    for lane in service
        .versions
        .iter()
        .map(|version| version.lane.as_str())
        .filter(others)
    {
        http.push(json!({
            "name": format!("lane-{lane}"),
            "match": [{"headers": {&group.header: {"exact": lane}}}],
            "route": to(lane),
        }));
    }
    for lane in group.mirrored() {
        let mirrored = format!("{MIRRORED_LANE}{lane}");
        http.push(json!({
            "name": format!("lane-{mirrored}"),
            "match": [{"headers": {&group.header: {"exact": mirrored}}}],
            "route": to(&group.baseline),
            "mirror": {"host": host, "subset": lane, "port": {"number": service.port}},
            "mirrorPercentage": {"value": 100},
        }));
    }
    http.push(json!({"name": "baseline", "route": to(&group.baseline)}));

    let mut hosts = vec![host.clone()];
    let mut spec = serde_json::Map::new();
    let mut comment = format!(
        "Lanes `{}`: requests for {} go to the version of their lane, or to the baseline's where the lane has none",
        group.name, service.name
    );
    if lanes.edge.service == service.name {
        hosts.extend(lanes.edge.hosts.iter().cloned());
        let gateways: Vec<String> = [MESH.to_owned()]
            .into_iter()
            .chain(lanes.edge.gateways.iter().map(|(namespace, name)| {
                let namespace = namespace
                    .as_deref()
                    .unwrap_or(&lanes.edge.workload.namespace);
                format!("{namespace}/{name}")
            }))
            .collect();
        spec.insert("gateways".to_owned(), gateways.into());
        comment.push_str("; the same for what comes through the gateway");
    }
    comment.push('.');
    spec.insert("hosts".to_owned(), hosts.into());
    spec.insert("http".to_owned(), http.into());
    Resource::new(
        (API, "VirtualService"),
        (&service.namespace, &name(&group.name, service)),
        comment,
        &[("spec", Value::Object(spec))],
    )
}

pub(crate) fn name(group: &str, service: &MeshService) -> String {
    format!("outrider-lanes-{group}-{}", service.name)
}
