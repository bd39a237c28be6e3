//! The plan of a mesh: the part of an `outrider.yaml` that an Istio mesh runs.

use std::collections::BTreeMap;

use outrider_plugin_formats::{FilterConfig, LaneGroup};
use serde::Serialize;

pub use crate::model::{LaneMode, MeshTraffic, ModuleSource};
use crate::plan::UpstreamProtocol;

/// Labels of Kubernetes.
pub type Labels = BTreeMap<String, String>;

/// What Outrider does in one mesh.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeshPlan {
    /// Domain of the cluster.
    pub cluster_domain: String,
    /// How the module gets to proxies.
    pub module: Module,
    /// Whether proxies of lanes have the module's pages on their admin port.
    pub admin_pages: bool,
    /// Groups of lanes, by name.
    pub lanes: Vec<MeshLanes>,
    /// Plugins, in the order of the file.
    pub plugins: Vec<MeshPlugins>,
}

/// How the module gets to proxies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Where it comes from.
    pub from: ModuleSource,
    /// Image, for the sources that need one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Folder of the node, for [`ModuleSource::HostPath`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Folder in which proxies see it.
    pub folder: String,
    /// Folder in which proxies have the modules of Wasm plugins; none: a ConfigMap brings them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wasm_folder: Option<String>,
}

/// Group of lanes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeshLanes {
    /// Group, as the module reads it.
    pub group: LaneGroup,
    /// What sidecars do.
    pub mode: LaneMode,
    /// Where requests get their lane.
    pub edge: MeshEdge,
    /// Services, in the order of the file.
    pub services: Vec<MeshService>,
}

/// Pods of a mesh, chosen by their labels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Namespace.
    pub namespace: String,
    /// Labels; empty: all pods of the namespace.
    pub labels: Labels,
    /// Deployment that makes the pods, if the module is to be brought to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
}

/// Gateway at which requests get their lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeshEdge {
    /// Pods of the gateway.
    pub workload: Workload,
    /// Gateway resources: namespace, if any, and name.
    pub gateways: Vec<(Option<String>, String)>,
    /// Hosts of the requests.
    pub hosts: Vec<String>,
    /// Service that gets them, by its name in the group.
    pub service: String,
}

/// Service of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeshService {
    /// Name in the group.
    pub name: String,
    /// Name of the Service in Kubernetes.
    pub service: String,
    /// Namespace of the Service.
    pub namespace: String,
    /// Port of the Service.
    pub port: u16,
    /// Protocol of its pods.
    pub protocol: UpstreamProtocol,
    /// Versions, the baseline's first.
    pub versions: Vec<MeshVersion>,
}

/// Version of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MeshVersion {
    /// Lane that it belongs to.
    pub lane: String,
    /// Its pods.
    pub workload: Workload,
    /// Port of its pods.
    pub target_port: u16,
}

/// Plugins for some proxies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeshPlugins {
    /// Name of the resources.
    pub name: String,
    /// Requests that pass the plugins.
    pub on: MeshTraffic,
    /// Pods whose proxies have the plugins.
    pub workload: Workload,
    /// What the module reads. Modules of Wasm plugins are named by their paths on this machine.
    pub filter: FilterConfig,
}

impl MeshService {
    /// Name in the cluster's DNS.
    pub fn host(&self, domain: &str) -> String {
        format!("{}.{}.svc.{domain}", self.service, self.namespace)
    }
}
