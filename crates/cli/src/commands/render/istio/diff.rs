//! Resources beside those of a folder or a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use outrider_cluster::{Apply, Cluster, named};
use outrider_gateway::envoy;
use outrider_mesh::{MANAGED_BY, Resource};
use outrider_yaml::Document;
use serde_json::{Value, json};
use similar::TextDiff;

use crate::exit::Exit;
use crate::output;

/// Lines around a difference.
const AROUND: usize = 3;
/// Parts of a resource that the API server writes.
const NOT_OURS: [&str; 6] = [
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Kinds that this command makes whole, with their versions.
const KINDS: [(&str, &str); 6] = [
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("networking.istio.io/v1", "DestinationRule"),
    ("networking.istio.io/v1alpha3", "EnvoyFilter"),
    ("networking.istio.io/v1", "VirtualService"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
];

pub(super) fn with_folder(resources: &[Resource], folder: &Path) -> anyhow::Result<Exit> {
    let mut kept: BTreeMap<String, Value> = BTreeMap::new();
    let mut files: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("the folder {} cannot be read", folder.display()))?
        .collect::<Result<_, _>>()?;
    files.sort_by_key(fs::DirEntry::path);
    for file in files {
        let path = file.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if !matches!(extension, Some("yaml" | "yml" | "json")) {
            continue;
        }
        let name = path.display().to_string();
        let text = outrider_plugin_store::read_text(&path).map_err(anyhow::Error::msg);
        let text = text.with_context(|| format!("{name} cannot be read"))?;
        let documents = match Document::parse_all(&name, &text) {
            Ok(documents) => documents,
            Err(problems) => {
                output::problems(&problems);
                return Ok(Exit::Problems);
            }
        };
        for document in documents {
            let object = document.root.to_json();
            kept.insert(identity(&object), object);
        }
    }
    let mut is_same = true;
    for resource in resources {
        let object = &resource.object;
        let before = kept.remove(&identity(object));
        is_same &= show(&named(object), before.as_ref(), Some(object));
    }
    let label = "/metadata/labels/app.kubernetes.io~1managed-by";
    for object in kept.values() {
        if object.pointer(label).and_then(Value::as_str) == Some(MANAGED_BY) {
            is_same &= show(&named(object), Some(object), None);
        }
    }
    Ok(exit(is_same))
}

pub(super) async fn with_cluster(
    cluster: &mut Cluster,
    resources: &[Resource],
) -> anyhow::Result<Exit> {
    let mut is_same = true;
    for resource in resources {
        let live = cluster.get(&resource.object).await?;
        let how = Apply {
            force: true,
            dry_run: true,
        };
        let wanted = cluster.apply(&resource.object, MANAGED_BY, how).await?;
        let (live, wanted) = (live.map(ours), ours(wanted));
        is_same &= show(&named(&resource.object), live.as_ref(), Some(&wanted));
    }
    for stale in left_over(cluster, resources).await? {
        is_same &= show(&named(&stale), Some(&ours(stale.clone())), None);
    }
    Ok(exit(is_same))
}

/// What the cluster has of ours, in the namespaces of the resources, that is none of them.
pub(super) async fn left_over(
    cluster: &mut Cluster,
    resources: &[Resource],
) -> anyhow::Result<Vec<Value>> {
    let wanted: BTreeSet<String> = resources
        .iter()
        .map(|resource| identity(&resource.object))
        .collect();
    let namespaces: BTreeSet<&str> = resources.iter().map(Resource::namespace).collect();
    let label = format!("app.kubernetes.io/managed-by={MANAGED_BY}");
    let mut stale = Vec::new();
    // What needs others goes first.
    for (api_version, kind) in KINDS.iter().rev() {
        for namespace in &namespaces {
            let like = json!({
                "apiVersion": api_version,
                "kind": kind,
                "metadata": {"name": "any", "namespace": namespace},
            });
            let listed = cluster.list(&like, &label).await?;
            let others = listed
                .into_iter()
                .filter(|one| !wanted.contains(&identity(one)));
            stale.extend(others);
        }
    }
    Ok(stale)
}

/// By what a resource is the same one.
fn identity(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let group = text("/apiVersion").unwrap_or_default();
    let group = group.rsplit_once('/').map_or("", |(group, _)| group);
    format!("{group} {}", named(object))
}

/// A resource without what the API server writes.
fn ours(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in NOT_OURS {
            metadata.remove(key);
        }
    }
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    object
}

/// Prints how two forms of a resource differ; true: they do not.
fn show(name: &str, before: Option<&Value>, after: Option<&Value>) -> bool {
    let text = |object: Option<&Value>| {
        object.map_or_else(String::new, |object| envoy::to_yaml(&sorted(object)))
    };
    let (before, after) = (text(before), text(after));
    if before == after {
        return true;
    }
    let difference = TextDiff::from_lines(&before, &after);
    let shown = difference
        .unified_diff()
        .context_radius(AROUND)
        .header(name, name)
        .to_string();
    output::raw(shown.as_bytes());
    false
}

/// With the keys in order: API servers keep their own.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let ordered: BTreeMap<&String, Value> = object
                .iter()
                .map(|(key, value)| (key, sorted(value)))
                .collect();
            ordered
                .into_iter()
                .map(|(key, value)| (key.clone(), value))
                .collect()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

fn exit(is_same: bool) -> Exit {
    if is_same { Exit::Good } else { Exit::Of(1) }
}
