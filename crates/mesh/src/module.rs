//! How the module and the modules of Wasm plugins get to proxies: parts of Deployments, and ConfigMaps.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrider_gateway::envoy;
use outrider_gateway::plan::mesh::{MeshPlan, Module, ModuleSource, Workload};
use outrider_plugin_formats::PluginSource;
use serde_json::{Map, Value, json};

use crate::RenderError;
use crate::resource::Resource;

/// Most bytes of a ConfigMap (Kubernetes' documentation: ConfigMap).
pub const MOST_CONFIG_MAP_BYTES: usize = 1_048_576;

/// Name of the ConfigMap with modules of Wasm plugins, and of its volume.
const WASM: &str = "outrider-plugins";
/// Name of the volume with the module.
const VOLUME: &str = "outrider";
/// Name of the proxy's container.
const PROXY: &str = "istio-proxy";
/// Where Envoy looks for modules (Envoy's documentation: dynamic modules).
const SEARCH_PATH: &str = "ENVOY_DYNAMIC_MODULES_SEARCH_PATH";
/// Name of the ConfigMap with parts of bootstraps.
const BOOTSTRAP: &str = "outrider-bootstrap";
/// Key of that ConfigMap, as Istio's injection templates have it.
const BOOTSTRAP_FILE: &str = "custom_bootstrap.json";
/// Digits of a digest in a file's name.
const DIGITS: usize = 12;

/// Path in the proxy of a Wasm plugin's module.
pub(crate) fn wasm_path(module: &Module, plugin: &str, digest: &str) -> String {
    match &module.wasm_folder {
        Some(folder) => format!("{}/{plugin}.wasm", folder.trim_end_matches('/')),
        None => format!("{}/{}", wasm_folder(module), wasm_file(plugin, digest)),
    }
}

/// Key in the ConfigMap. Each version of a module has its own: a proxy that has an old configuration finds its module.
fn wasm_file(plugin: &str, digest: &str) -> String {
    let digits: String = digest
        .trim_start_matches("sha256:")
        .chars()
        .take(DIGITS)
        .collect();
    format!("{plugin}-{digits}.wasm")
}

/// Folder in which proxies see the ConfigMap. It is not below the module's: that may be a volume that cannot be written.
fn wasm_folder(module: &Module) -> String {
    format!("{}-plugins", module.folder.trim_end_matches('/'))
}

/// Workloads of the mesh: of gateways, and of services.
fn workloads(plan: &MeshPlan) -> Vec<(&Workload, bool)> {
    use outrider_gateway::plan::mesh::MeshTraffic;
    let of_lanes = plan.lanes.iter().flat_map(|lanes| {
        let versions = lanes.services.iter().flat_map(|service| &service.versions);
        [(&lanes.edge.workload, true)]
            .into_iter()
            .chain(versions.map(|version| (&version.workload, false)))
    });
    let of_plugins = plan
        .plugins
        .iter()
        .map(|plugins| (&plugins.workload, plugins.on == MeshTraffic::Gateway));
    of_lanes.chain(of_plugins).collect()
}

pub(crate) fn resources(
    plan: &MeshPlan,
    modules: &BTreeMap<String, Vec<u8>>,
) -> Result<Vec<Resource>, RenderError> {
    let maps = config_maps(plan, modules)?;
    let with_wasm: BTreeSet<String> = maps.iter().map(|map| map.namespace().to_owned()).collect();
    let mut resources = maps;
    resources.extend(bootstraps(plan));
    let mut deployments = BTreeMap::new();
    for (workload, is_gateway) in workloads(plan) {
        let Some(name) = &workload.deployment else {
            continue;
        };
        let has_wasm = with_wasm.contains(&workload.namespace);
        if plan.module.from == ModuleSource::Present && !has_wasm && !plan.admin_pages {
            continue;
        }
        deployments
            .entry((workload.namespace.clone(), name.clone()))
            .or_insert_with(|| deployment(plan, (&workload.namespace, name), is_gateway, has_wasm));
    }
    resources.extend(deployments.into_values());
    Ok(resources)
}

/// A ConfigMap for each namespace with Wasm plugins.
fn config_maps(
    plan: &MeshPlan,
    modules: &BTreeMap<String, Vec<u8>>,
) -> Result<Vec<Resource>, RenderError> {
    if plan.module.wasm_folder.is_some() {
        return Ok(Vec::new());
    }
    let mut by_namespace: BTreeMap<&str, BTreeMap<String, &[u8]>> = BTreeMap::new();
    for plugins in &plan.plugins {
        for plugin in &plugins.filter.plugins {
            let PluginSource::Module(path) = &plugin.source else {
                continue;
            };
            let bytes = modules
                .get(path)
                .ok_or_else(|| RenderError::NoModule(plugin.name.clone()))?;
            by_namespace
                .entry(&plugins.workload.namespace)
                .or_default()
                .insert(wasm_file(&plugin.name, &plugin.digest), bytes);
        }
    }
    by_namespace
        .into_iter()
        .map(|(namespace, files)| {
            let bytes: usize = files
                .iter()
                .map(|(name, bytes)| name.len() + bytes.len())
                .sum();
            if bytes > MOST_CONFIG_MAP_BYTES {
                return Err(RenderError::TooLarge {
                    namespace: namespace.to_owned(),
                    bytes,
                });
            }
            let data: Map<String, Value> = files
                .into_iter()
                .map(|(name, bytes)| (name, STANDARD.encode(bytes).into()))
                .collect();
            Ok(Resource::new(
                ("v1", "ConfigMap"),
                (namespace, WASM),
                format!(
                    "Modules of Wasm plugins, for a volume at {} of the proxies.",
                    wasm_folder(&plan.module)
                ),
                &[("binaryData", Value::Object(data))],
            ))
        })
        .collect()
}

/// A ConfigMap for each namespace with proxies: what their bootstraps have beside Istio's.
fn bootstraps(plan: &MeshPlan) -> Vec<Resource> {
    if !plan.admin_pages {
        return Vec::new();
    }
    let namespaces: BTreeSet<&str> = workloads(plan)
        .into_iter()
        .map(|(workload, _)| workload.namespace.as_str())
        .collect();
    let content = json!({"bootstrap_extensions": [envoy::admin_pages()]});
    namespaces
        .into_iter()
        .map(|namespace| {
            Resource::new(
                ("v1", "ConfigMap"),
                (namespace, BOOTSTRAP),
                "The page /outrider/lanes on the admin port, for `outrider lanes`: a part of the bootstrap of proxies. An Envoy \
                 without the module does not start with it.",
                &[("data", json!({BOOTSTRAP_FILE: content.to_string()}))],
            )
        })
        .collect()
}

/// The part of a Deployment that brings the module. A gateway's pod has its proxy written out; a sidecar is injected, and
/// annotations say what it gets.
fn deployment(plan: &MeshPlan, place: (&str, &str), is_gateway: bool, has_wasm: bool) -> Resource {
    let module = &plan.module;
    // By name: the volume, and where the proxy sees it.
    let mut volumes: BTreeMap<&str, (Value, String)> = BTreeMap::new();
    let image = module.image.as_deref().unwrap_or_default();
    let source = match module.from {
        ModuleSource::Present => None,
        ModuleSource::ImageVolume => {
            Some(json!({"image": {"reference": image, "pullPolicy": "IfNotPresent"}}))
        }
        ModuleSource::InitContainer => Some(json!({"emptyDir": {}})),
        ModuleSource::HostPath => {
            Some(json!({"hostPath": {"path": module.host_path, "type": "Directory"}}))
        }
    };
    if let Some(source) = source {
        volumes.insert(VOLUME, (source, module.folder.clone()));
    }
    if has_wasm {
        let source = json!({"configMap": {"name": WASM}});
        volumes.insert(WASM, (source, wasm_folder(module)));
    }
    let mut annotations = Map::new();
    if plan.admin_pages {
        annotations.insert(
            "sidecar.istio.io/bootstrapOverride".to_owned(),
            BOOTSTRAP.into(),
        );
    }
    // Istio leaves out statistics that it does not know.
    let mut proxy = Map::new();
    proxy.insert(
        "proxyStatsMatcher".to_owned(),
        json!({"inclusionRegexps": [".*outrider.*"]}),
    );
    let mut pod = Map::new();
    if module.from == ModuleSource::InitContainer {
        // A container of the pod mounts it, too, so that the pod's own list has to have it.
        if let Some((source, _)) = volumes.get(VOLUME).filter(|_| !is_gateway) {
            pod.insert("volumes".to_owned(), json!([with_name(VOLUME, source)]));
        }
        pod.insert(
            "initContainers".to_owned(),
            json!([{
                "name": "outrider",
                "image": image,
                "command": ["cp", "/liboutrider.so", "/module/liboutrider.so"],
                "volumeMounts": [{"name": VOLUME, "mountPath": "/module"}],
            }]),
        );
    }
    let mounted =
        |name: &str, folder: &str| json!({"name": name, "mountPath": folder, "readOnly": true});
    if is_gateway {
        let listed: Vec<Value> = volumes
            .iter()
            .map(|(name, (source, _))| with_name(name, source))
            .collect();
        let mounts: Vec<Value> = volumes
            .iter()
            .map(|(name, (_, folder))| mounted(name, folder))
            .collect();
        pod.insert("volumes".to_owned(), listed.into());
        pod.insert(
            "containers".to_owned(),
            json!([{
                "name": PROXY,
                "env": [{"name": SEARCH_PATH, "value": module.folder}],
                "volumeMounts": mounts,
            }]),
        );
    } else {
        let sources: Map<String, Value> = volumes
            .iter()
            .filter(|(name, _)| !(**name == VOLUME && module.from == ModuleSource::InitContainer))
            .map(|(name, (source, _))| ((*name).to_owned(), source.clone()))
            .collect();
        let mounts: Map<String, Value> = volumes
            .iter()
            .map(|(name, (_, folder))| {
                let mount = json!({"mountPath": folder, "readOnly": true});
                ((*name).to_owned(), mount)
            })
            .collect();
        for (key, value) in [
            ("sidecar.istio.io/userVolume", sources),
            ("sidecar.istio.io/userVolumeMount", mounts),
        ] {
            if !value.is_empty() {
                annotations.insert(key.to_owned(), Value::Object(value).to_string().into());
            }
        }
        proxy.insert(
            "proxyMetadata".to_owned(),
            json!({SEARCH_PATH: module.folder}),
        );
    }
    annotations.insert(
        "proxy.istio.io/config".to_owned(),
        Value::Object(proxy).to_string().into(),
    );
    let mut template = Map::new();
    template.insert("metadata".to_owned(), json!({"annotations": annotations}));
    if !pod.is_empty() {
        template.insert("spec".to_owned(), Value::Object(pod));
    }
    let mut resource = Resource::new(
        ("apps/v1", "Deployment"),
        place,
        "Part of a Deployment that is there already: it brings the module to the proxies, before any filter needs it. Its pods \
         are made anew.",
        &[("spec", json!({"template": template}))],
    );
    // The Deployment is somebody else's.
    if let Some(metadata) = resource
        .object
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
    {
        metadata.remove("labels");
    }
    resource
}

fn with_name(name: &str, source: &Value) -> Value {
    let mut object = Map::new();
    object.insert("name".to_owned(), name.into());
    if let Value::Object(source) = source {
        object.extend(source.clone());
    }
    Value::Object(object)
}
