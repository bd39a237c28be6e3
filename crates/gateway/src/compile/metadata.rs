//! `metadata` of projects and routes: namespaces, and keys with values of any kind.
//!
//! The trap: Envoy does not show modules the metadata of virtual hosts, so a project's is part of each of its routes'.

use outrider_yaml::{Field, Node};
use serde_json::{Map, Value};

use super::{Context, Origin};

const MEND: &str = "write `metadata: {NAMESPACE: {KEY: VALUE}}`; Lua scripts read the namespace `envoy.filters.http.lua`";

/// Reads a `metadata` key. What is wrong in it is told, and left out.
pub(super) fn read(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Node>,
) -> Map<String, Value> {
    let mut metadata = Map::new();
    let Some(node) = field.value() else {
        return metadata;
    };
    let Some(namespaces) = node.as_mapping() else {
        context.problem(
            origin,
            node.location,
            format!(
                "expected a mapping of namespaces, found {}",
                node.describe()
            ),
            MEND,
        );
        return metadata;
    };
    for entry in namespaces.entries() {
        if entry.value.as_mapping().is_some() {
            metadata.insert(entry.key.clone(), entry.value.to_json());
        } else {
            context.problem(
                origin,
                entry.value.location,
                format!(
                    "expected a mapping of the keys of the namespace `{}`, found {}",
                    entry.key,
                    entry.value.describe()
                ),
                MEND,
            );
        }
    }
    metadata
}

/// Returns a project's metadata with that of a route over it, key by key.
pub(super) fn merged(
    project: &Map<String, Value>,
    route: Map<String, Value>,
) -> Map<String, Value> {
    let mut merged = project.clone();
    for (namespace, keys) in route {
        match (merged.get_mut(&namespace), keys) {
            (Some(Value::Object(wider)), Value::Object(keys)) => wider.extend(keys),
            (_, keys) => {
                merged.insert(namespace, keys);
            }
        }
    }
    merged
}
