//! `mesh`: lanes and plugins in an Istio mesh.

use std::collections::{BTreeMap, BTreeSet};

use outrider_plugin_formats::AllowedNames;
use outrider_yaml::{Entries, Field, Located, Location};

use super::files::{Place, Source};
use super::gateway::Built;
use super::lanes::{self, LaneGroups};
use super::plugins::Plugins;
use super::{Context, Origin, known_names, scopes};
use crate::model::mesh::{self as model, KubernetesUpstream, Labels, Mesh, ModuleSource};
use crate::model::{Protocol, text};
use crate::plan::UpstreamProtocol;
use crate::plan::mesh::{
    LaneMode, MeshEdge, MeshLanes, MeshPlan, MeshPlugins, MeshService, MeshTraffic, MeshVersion,
    Module, Workload,
};

const DEFAULT_NAMESPACE: &str = "default";
/// Where Istio's installation puts its gateway.
const EDGE_NAMESPACE: &str = "istio-system";
const DEFAULT_DOMAIN: &str = "cluster.local";
const DEFAULT_FOLDER: &str = "/etc/outrider";

/// The upstreams that are declared: what each is in Kubernetes, if anything.
pub(super) struct Upstreams {
    pub(super) names: BTreeSet<String>,
    kubernetes: BTreeMap<String, Upstream>,
}

/// A version of a service in Kubernetes, as far as it could be read.
struct Upstream {
    location: Location,
    service: String,
    namespace: String,
    port: u16,
    target_port: u16,
    protocol: UpstreamProtocol,
    labels: BTreeMap<String, String>,
    deployment: Option<String>,
}

/// `mesh` of the first file.
fn section(sources: &[Source]) -> Option<(&Origin, &Located<Mesh>)> {
    sources
        .iter()
        .filter(|source| source.place != Place::Included)
        .find_map(|source| Some((&source.origin, source.file.mesh.get()?)))
}

fn namespace_of(mesh: Option<&Mesh>) -> String {
    let namespace = mesh.and_then(|mesh| mesh.namespace.value());
    namespace
        .map_or(DEFAULT_NAMESPACE, |name| &name.0)
        .to_owned()
}

/// Reads all upstreams.
pub(super) fn upstreams(context: &mut Context<'_>, sources: &[Source]) -> Upstreams {
    let mesh = section(sources).map(|(_, mesh)| &mesh.value);
    let mut upstreams = Upstreams {
        names: BTreeSet::new(),
        kubernetes: BTreeMap::new(),
    };
    for source in sources {
        let entries = source.file.upstreams.value();
        for (name, upstream) in entries.into_iter().flat_map(|entries| &entries.0) {
            upstreams.names.insert(name.value.clone());
            let Some(upstream) = upstream.get() else {
                continue;
            };
            let Some(kubernetes) = upstream.value.kubernetes.get() else {
                continue;
            };
            let protocol = match upstream.value.protocol.value() {
                Some(Protocol::Http2) => UpstreamProtocol::Http2,
                Some(Protocol::Http1) | None => UpstreamProtocol::Http1,
            };
            let read = kubernetes_of(context, &source.origin, mesh, kubernetes, protocol);
            if let Some(read) = read {
                upstreams.kubernetes.insert(name.value.clone(), read);
            }
        }
    }
    upstreams
}

fn kubernetes_of(
    context: &mut Context<'_>,
    origin: &Origin,
    mesh: Option<&Mesh>,
    written: &Located<KubernetesUpstream>,
    protocol: UpstreamProtocol,
) -> Option<Upstream> {
    let Located { location, value } = written;
    let service = context.required(origin, *location, "`kubernetes`", "service", &value.service);
    let port = context.required(origin, *location, "`kubernetes`", "port", &value.port);
    let number = |port: u32| u16::try_from(port).unwrap_or_default();
    let (service, port) = (service?, number(port?.value.0));
    Some(Upstream {
        location: *location,
        service: service.value.0.clone(),
        namespace: value
            .namespace
            .value()
            .map_or_else(|| namespace_of(mesh), |name| name.0.clone()),
        port,
        target_port: value
            .target_port
            .value()
            .map_or(port, |port| number(port.0)),
        protocol,
        labels: labels(context, origin, &value.labels),
        deployment: value.deployment.value().map(|name| name.0.clone()),
    })
}

fn labels(context: &mut Context<'_>, origin: &Origin, field: &Labels) -> BTreeMap<String, String> {
    let Some(list) = field.get() else {
        return BTreeMap::new();
    };
    let Entries(entries) = &list.value;
    if entries.is_empty() {
        context.problem(
            origin,
            list.location,
            "there is no label here, so that it would stand for all pods of the namespace",
            "name a label, like `{app: cart}`, or remove the key",
        );
    }
    entries
        .iter()
        .filter_map(|(name, value)| Some((name.value.clone(), value.value()?.0.clone())))
        .collect()
}

/// The plan; none where a part is missing, which has been told.
pub(super) fn build(
    context: &mut Context<'_>,
    sources: &[Source],
    upstreams: &Upstreams,
    groups: &LaneGroups,
    plugins: &Plugins,
) -> Option<MeshPlan> {
    let (origin, mesh) = section(sources)?;
    let value = &mesh.value;
    if value.lanes.is_missing() && value.plugins.is_missing() {
        context.problem(
            origin,
            mesh.location,
            "the mesh has neither `lanes` nor `plugins`, so that there is nothing to print",
            "add `lanes:` or `plugins:`",
        );
    }
    let module = module(context, origin, value);
    let domain = value.cluster_domain.value();
    let domain = domain.map_or(DEFAULT_DOMAIN, |name| &name.0).to_owned();
    let mut lanes = Vec::new();
    let mut entries: Vec<_> = value
        .lanes
        .value()
        .into_iter()
        .flat_map(|entries| &entries.0)
        .collect();
    entries.sort_by(|(one, _), (other, _)| one.value.cmp(&other.value));
    for (name, written) in entries {
        if let Some(written) = written.get() {
            lanes.extend(lanes_of(context, origin, name, written, groups, upstreams));
        }
    }
    let mut places = BTreeMap::new();
    let mut filters = Vec::new();
    let list = value.plugins.value().into_iter().flatten();
    for written in list.filter_map(Field::get) {
        let Some(built) = plugins_of(context, origin, written, value, plugins, upstreams, &domain)
        else {
            continue;
        };
        let place = (built.workload.namespace.clone(), built.name.clone());
        if let Some(first) = places.insert(place, written.location) {
            context.problem(
                origin,
                written.location,
                format!(
                    "two entries have the name `{}` in the namespace `{}`, the other is on line {}",
                    built.name, built.workload.namespace, first.line
                ),
                "give one of them another name: their resources would have the same",
            );
        }
        filters.push(built);
    }
    Some(MeshPlan {
        cluster_domain: domain,
        module,
        admin_pages: value.admin_pages.value().copied().unwrap_or(false),
        lanes,
        plugins: filters,
    })
}

fn module(context: &mut Context<'_>, origin: &Origin, mesh: &Mesh) -> Module {
    let written = mesh.module.get();
    let value = written.map(|module| &module.value);
    let from = value.and_then(|module| module.from.value().copied());
    let from = from.unwrap_or(ModuleSource::Present);
    if let Some(Located { location, value }) = written {
        let (needs, has) = match from {
            ModuleSource::Present => (None, None),
            ModuleSource::ImageVolume | ModuleSource::InitContainer => {
                (Some("image"), value.image.location())
            }
            ModuleSource::HostPath => (Some("host_path"), value.host_path.location()),
        };
        if let (Some(key), None) = (needs, has) {
            context.problem(
                origin,
                *location,
                format!("the module's source needs `{key}`"),
                format!("add `{key}:`, or choose another `from`"),
            );
        }
        for (key, place) in [
            ("image", value.image.location()),
            ("host_path", value.host_path.location()),
        ] {
            if let Some(place) = place.filter(|_| needs != Some(key)) {
                context.problem(
                    origin,
                    place,
                    format!("`{key}` says nothing here, as `from` is not a source that has one"),
                    "remove it, or choose the `from` that it belongs to",
                );
            }
        }
    }
    let text = |field: fn(&model::MeshModule) -> &Field<text::Text>| {
        value.and_then(|module| Some(field(module).value()?.0.clone()))
    };
    let path = |field: fn(&model::MeshModule) -> &Field<text::Path>| {
        value.and_then(|module| Some(field(module).value()?.0.clone()))
    };
    Module {
        from,
        image: text(|module| &module.image),
        host_path: path(|module| &module.host_path),
        folder: path(|module| &module.folder).unwrap_or_else(|| DEFAULT_FOLDER.to_owned()),
        wasm_folder: path(|module| &module.wasm_folder),
    }
}

fn lanes_of(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    written: &Located<model::MeshLanes>,
    groups: &LaneGroups,
    upstreams: &Upstreams,
) -> Option<MeshLanes> {
    let group = lanes::known(context, origin, name, groups)?;
    let mode = written.value.mode.value().copied();
    let mode = mode.unwrap_or(LaneMode::Permissive);
    let what = format!("the lanes `{}`", name.value);
    let edge = context.required(origin, written.location, &what, "edge", &written.value.edge);
    let baseline = group.form.baseline.clone();
    let mut services = Vec::new();
    for (service, versions) in &group.services {
        let mut built: Vec<MeshVersion> = Vec::new();
        let mut first: Option<(&Upstream, &str)> = None;
        for (lane, upstream) in versions {
            check_subset(context, &group.origin, group.location, lane);
            let Some(kubernetes) = upstreams.kubernetes.get(upstream) else {
                if upstreams.names.contains(upstream) {
                    context.problem(
                        &group.origin,
                        group.location,
                        format!(
                            "the upstream `{upstream}`, the version `{lane}` of `{service}`, does not say what it is in \
                             Kubernetes"
                        ),
                        "add `kubernetes: {service: NAME, port: 80, labels: {app: NAME, version: VERSION}}` to the upstream",
                    );
                }
                continue;
            };
            if kubernetes.labels.is_empty() {
                context.problem(
                    &group.origin,
                    kubernetes.location,
                    format!("the upstream `{upstream}` is a version of lanes, and its `kubernetes` has no `labels`"),
                    "add labels by which its pods are known: `labels: {app: NAME, version: VERSION}`",
                );
            }
            let place = |one: &Upstream| (one.service.clone(), one.namespace.clone(), one.port);
            match first {
                Some((other, other_lane)) if place(other) != place(kubernetes) => context.problem(
                    &group.origin,
                    kubernetes.location,
                    format!(
                        "the versions `{other_lane}` and `{lane}` of `{service}` belong to different services of Kubernetes"
                    ),
                    "versions share `service`, `namespace` and `port`, and differ in `labels`",
                ),
                Some(_) => {}
                None => first = Some((kubernetes, lane)),
            }
            if let Some(same) = built
                .iter()
                .find(|other| overlap(&other.workload.labels, &kubernetes.labels))
            {
                context.problem(
                    &group.origin,
                    kubernetes.location,
                    format!(
                        "the labels of the versions `{}` and `{lane}` of `{service}` do not tell their pods apart",
                        same.lane
                    ),
                    "give each version a label that the others lack, like `version: v2`",
                );
            }
            let version = MeshVersion {
                lane: lane.clone(),
                workload: Workload {
                    namespace: kubernetes.namespace.clone(),
                    labels: kubernetes.labels.clone(),
                    deployment: kubernetes.deployment.clone(),
                },
                target_port: kubernetes.target_port,
            };
            if *lane == baseline {
                built.insert(0, version);
            } else {
                built.push(version);
            }
        }
        if mode == LaneMode::Strict {
            for rule in &group.form.rules {
                let lane = rule.of_services();
                if !versions.iter().any(|(one, _)| one == lane) {
                    context.problem(
                        origin,
                        written.location,
                        format!(
                            "the lane `{lane}` has no version of `{service}`, and in strict mode every lane has every service",
                        ),
                        "add the version, or use `mode: permissive`",
                    );
                }
            }
        }
        if let Some((kubernetes, _)) = first {
            services.push(MeshService {
                name: service.clone(),
                service: kubernetes.service.clone(),
                namespace: kubernetes.namespace.clone(),
                port: kubernetes.port,
                protocol: kubernetes.protocol,
                versions: built,
            });
        }
    }
    let edge = edge.and_then(|edge| edge_of(context, origin, edge, &services))?;
    let mut form = group.form.clone();
    form.fallback = Some(format!("{}-fallback", form.header));
    Some(MeshLanes {
        group: form,
        mode,
        edge,
        services,
    })
}

/// Whether all pods with the labels of one have those of the other, too.
fn overlap(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> bool {
    let within = |inner: &BTreeMap<String, String>, outer: &BTreeMap<String, String>| {
        inner
            .iter()
            .all(|(name, value)| outer.get(name) == Some(value))
    };
    !one.is_empty() && !other.is_empty() && (within(one, other) || within(other, one))
}

/// A lane's name is that of a subset of a DestinationRule, and a part of a Service's.
fn check_subset(context: &mut Context<'_>, origin: &Origin, location: Location, lane: &str) {
    if text::dns_label(lane).is_err() {
        context.problem(
            origin,
            location,
            format!(
                "the lane `{lane}` cannot be a subset in Istio: its name is not one of Kubernetes"
            ),
            "use lower-case letters, digits and hyphens",
        );
    }
}

fn edge_of(
    context: &mut Context<'_>,
    origin: &Origin,
    written: &Located<model::MeshEdge>,
    services: &[MeshService],
) -> Option<MeshEdge> {
    let Located { location, value } = written;
    let what = "the edge";
    context.required(origin, *location, what, "labels", &value.labels);
    let gateways = context.required(origin, *location, what, "gateways", &value.gateways);
    let hosts = context.required(origin, *location, what, "hosts", &value.hosts);
    let service = context.required(origin, *location, what, "service", &value.service);
    let (gateways, hosts, service) = (gateways?, hosts?, service?);
    for (location, is_empty, mend) in [
        (
            gateways.location,
            gateways.value.is_empty(),
            "- istio-system/public",
        ),
        (hosts.location, hosts.value.is_empty(), "- shop.example.com"),
    ] {
        if is_empty {
            context.problem(
                origin,
                location,
                "this list is empty, so that no request comes through the edge",
                format!("add one: `{mend}`"),
            );
        }
    }
    if !services.iter().any(|known| known.name == service.value.0) {
        let names = services.iter().map(|service| service.name.as_str());
        context.problem(
            origin,
            service.location,
            format!("the group has no service `{}`", service.value.0),
            known_names(&service.value.0, names, "services"),
        );
    }
    let mut named = Vec::new();
    for gateway in gateways.value.iter().filter_map(Field::get) {
        let text = gateway.value.0.as_str();
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        for part in namespace.into_iter().chain([name]) {
            if let Err(complaint) = text::dns_label(part) {
                let (message, mend) = complaint.split_once("; ").unwrap_or((&complaint, ""));
                context.problem(origin, gateway.location, message, mend);
            }
        }
        named.push((namespace.map(str::to_owned), name.to_owned()));
    }
    Some(MeshEdge {
        workload: Workload {
            namespace: value
                .namespace
                .value()
                .map_or(EDGE_NAMESPACE, |name| &name.0)
                .to_owned(),
            labels: labels(context, origin, &value.labels),
            deployment: value.deployment.value().map(|name| name.0.clone()),
        },
        gateways: named,
        hosts: hosts
            .value
            .iter()
            .filter_map(|host| Some(host.value()?.0.clone()))
            .collect(),
        service: service.value.0.clone(),
    })
}

fn plugins_of(
    context: &mut Context<'_>,
    origin: &Origin,
    written: &Located<model::MeshPlugins>,
    mesh: &Mesh,
    plugins: &Plugins,
    upstreams: &Upstreams,
    domain: &str,
) -> Option<MeshPlugins> {
    let Located { location, value } = written;
    let what = "the entry of `plugins`";
    let name = context.required(origin, *location, what, "name", &value.name);
    let on = context.required(origin, *location, what, "on", &value.on);
    let uses = context.required(origin, *location, what, "use", &value.uses);
    if let Some(uses) = uses.filter(|uses| uses.value.is_empty()) {
        context.problem(
            origin,
            uses.location,
            "this list has no plugin",
            "name one of `plugins`",
        );
    }
    let uses = scopes::read_uses(context, origin, &value.uses);
    let gateway = Built {
        uses,
        ..Built::default()
    };
    let built = scopes::build(context, gateway, plugins, Vec::new(), &upstreams.names);
    let (_, mut filter, _) = built?;
    // Sidecars are configured by Istio.
    filter.body_limit = None;
    for plugin in &filter.plugins {
        for upstream in &upstreams.names {
            if !plugin.allow.upstreams.has(upstream)
                || filter.callout_clusters.contains_key(upstream)
            {
                continue;
            }
            if let Some(kubernetes) = upstreams.kubernetes.get(upstream) {
                let cluster = format!(
                    "outbound|{}||{}.{}.svc.{domain}",
                    kubernetes.port, kubernetes.service, kubernetes.namespace
                );
                filter.callout_clusters.insert(upstream.clone(), cluster);
            } else if matches!(plugin.allow.upstreams, AllowedNames::Listed(_)) {
                context.problem(
                    origin,
                    *location,
                    format!(
                        "the plugin `{}` may call the upstream `{upstream}`, which does not say what it is in Kubernetes",
                        plugin.name
                    ),
                    "add `kubernetes: {service: NAME, port: 80}` to the upstream",
                );
            }
        }
    }
    let on = on?.value;
    let namespace = value.namespace.value().map(|name| name.0.clone());
    Some(MeshPlugins {
        name: name?.value.0.clone(),
        on,
        workload: Workload {
            namespace: namespace.unwrap_or_else(|| match on {
                MeshTraffic::Gateway => EDGE_NAMESPACE.to_owned(),
                MeshTraffic::Inbound | MeshTraffic::Outbound => namespace_of(Some(mesh)),
            }),
            labels: labels(context, origin, &value.labels),
            deployment: value.deployment.value().map(|name| name.0.clone()),
        },
        filter,
    })
}
