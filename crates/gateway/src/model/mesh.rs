//! An Istio mesh in `outrider.yaml`.

use outrider_yaml::{Entries, Field, Shape};
use schemars::JsonSchema;
use serde::Deserialize;

use super::text::{DnsLabel, DnsName, HostPattern, LabelValue, Number, Path, Text};
use super::{PluginName, Use};

/// Labels of Kubernetes: names with their values.
pub(crate) type Labels = Field<Entries<Field<LabelValue>>>;

/// What `outrider render istio` makes resources of: lanes, and plugins for gateways, namespaces and workloads.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mesh {
    /// The namespace of workloads, services and resources that name no other. Default: `default`.
    #[serde(default)]
    pub(crate) namespace: Field<DnsLabel>,
    /// The cluster's domain, in which services have names like `cart.default.svc.cluster.local`. Default: `cluster.local`.
    #[serde(default)]
    pub(crate) cluster_domain: Field<DnsName>,
    /// How the module gets to the proxies.
    #[serde(default)]
    pub(crate) module: Field<MeshModule>,
    /// Whether the proxies of lanes have the module's pages on their admin port, which `outrider lanes` reads. They come with a
    /// proxy's bootstrap (`sidecar.istio.io/bootstrapOverride`): pods have to start anew, and an Envoy without the module does
    /// not start at all. Default: `false`.
    #[serde(default)]
    pub(crate) admin_pages: Field<bool>,
    /// Which of the groups under `lanes` the mesh has, by the name of the group.
    #[serde(default)]
    pub(crate) lanes: Field<Entries<Field<MeshLanes>>>,
    /// Plugins for a gateway, a namespace or a workload.
    #[serde(default)]
    pub(crate) plugins: Field<Vec<Field<MeshPlugins>>>,
}

/// How the module gets to the proxies.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeshModule {
    /// `present`: the proxies' image, or somebody else, has it in `folder`; `image_volume`: from an image, as a volume
    /// (Kubernetes 1.33 or later); `init_container`: from an image, copied when a pod starts; `host_path`: from a folder of
    /// the node. Default: `present`.
    #[serde(default)]
    pub(crate) from: Field<ModuleSource>,
    /// The image with `liboutrider.so` in its root folder, and for `init_container` with `cp`.
    #[serde(default)]
    pub(crate) image: Field<Text>,
    /// The node's folder, for `host_path`.
    #[serde(default)]
    pub(crate) host_path: Field<Path>,
    /// The folder in which the proxies see it. Default: `/etc/outrider`.
    #[serde(default)]
    pub(crate) folder: Field<Path>,
    /// A folder in which the proxies have the modules of Wasm plugins, each as `<plugin>.wasm`. Default: they come in a
    /// ConfigMap, which holds 1 MiB in all.
    #[serde(default)]
    pub(crate) wasm_folder: Field<Path>,
}

/// Where the module comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModuleSource {
    /// It is in the proxy already.
    Present,
    /// An image, mounted as a volume.
    ImageVolume,
    /// An image that copies it when a pod starts.
    InitContainer,
    /// A folder of the node.
    HostPath,
}

/// A group of lanes in the mesh.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["edge"]))]
pub(crate) struct MeshLanes {
    /// `permissive`: sidecars remember the lane of each request; `strict`: every lane has every service, and sidecars write
    /// their version's lane on what it sends. Default: `permissive`.
    #[serde(default)]
    pub(crate) mode: Field<LaneMode>,
    /// Where requests enter the mesh and get their lane.
    #[serde(default)]
    pub(crate) edge: Field<MeshEdge>,
}

/// What sidecars do with lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LaneMode {
    /// They remember.
    Permissive,
    /// They write their own.
    Strict,
}

/// The gateway at which requests get their lane.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["labels", "gateways", "hosts", "service"]))]
pub(crate) struct MeshEdge {
    /// Labels of the gateway's pods, such as `{istio: ingressgateway}`.
    #[serde(default)]
    pub(crate) labels: Labels,
    /// Their namespace. Default: `istio-system`.
    #[serde(default)]
    pub(crate) namespace: Field<DnsLabel>,
    /// The Deployment of these pods, which is to get the module. Default: none is changed.
    #[serde(default)]
    pub(crate) deployment: Field<DnsName>,
    /// The Gateway resources that requests come through: `name`, or `namespace/name`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) gateways: Field<Vec<Field<Text>>>,
    /// The hosts of these requests.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) hosts: Field<Vec<Field<HostPattern>>>,
    /// The service of the group that gets them.
    #[serde(default)]
    pub(crate) service: Field<Text>,
}

/// Plugins for some proxies of the mesh.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["name", "on", "use"]))]
pub(crate) struct MeshPlugins {
    /// Name of the resources that are made.
    #[serde(default)]
    pub(crate) name: Field<DnsLabel>,
    /// Which requests: those that come to a `gateway`, those that sidecars let `inbound` to their service, or those that
    /// their service sends `outbound`.
    #[serde(default)]
    pub(crate) on: Field<MeshTraffic>,
    /// Labels of the pods. Default: all of the namespace.
    #[serde(default)]
    pub(crate) labels: Labels,
    /// The pods' namespace. Default: `mesh.namespace`; of gateways, `istio-system`.
    #[serde(default)]
    pub(crate) namespace: Field<DnsLabel>,
    /// The Deployment of these pods, which is to get the module. Default: none is changed.
    #[serde(default)]
    pub(crate) deployment: Field<DnsName>,
    /// The plugins.
    #[serde(default, rename = "use")]
    #[schemars(length(min = 1))]
    pub(crate) uses: Field<Vec<Field<Shape<PluginName, Use>>>>,
}

/// Requests of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MeshTraffic {
    /// Those that come to a gateway.
    Gateway,
    /// Those to a sidecar's service.
    Inbound,
    /// Those that a sidecar's service sends.
    Outbound,
}

/// A version of a service in Kubernetes, as an upstream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["service", "port"]))]
pub(crate) struct KubernetesUpstream {
    /// The name of the Service.
    #[serde(default)]
    pub(crate) service: Field<DnsLabel>,
    /// Its namespace. Default: `mesh.namespace`.
    #[serde(default)]
    pub(crate) namespace: Field<DnsLabel>,
    /// Its port.
    #[serde(default)]
    pub(crate) port: Field<Number<1, 65535>>,
    /// The port of its pods, for a Service of this version alone (`--api gateway`). Default: as `port`.
    #[serde(default)]
    pub(crate) target_port: Field<Number<1, 65535>>,
    /// Labels of this version's pods, enough to tell them from all others of the namespace: `{app: cart, version: v2}`.
    /// Required for versions of lanes.
    #[serde(default)]
    pub(crate) labels: Labels,
    /// The Deployment of these pods, whose sidecars are to get the module. Default: none is changed.
    #[serde(default)]
    pub(crate) deployment: Field<DnsName>,
}
