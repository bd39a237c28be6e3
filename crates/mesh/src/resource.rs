//! One resource, with the sentence that says what it is for.

use outrider_gateway::envoy;
use serde_json::{Map, Value, json};

/// Value of the label `app.kubernetes.io/managed-by`, and the field manager of server-side apply.
pub const MANAGED_BY: &str = "outrider";

/// Width of comments.
const WIDTH: usize = 100;

/// A resource of Kubernetes.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// What it is for.
    pub comment: String,
    /// The resource.
    pub object: Value,
}

impl Resource {
    pub(crate) fn new(
        (api_version, kind): (&str, &str),
        (namespace, name): (&str, &str),
        comment: impl Into<String>,
        body: &[(&str, Value)],
    ) -> Self {
        let mut object = Map::new();
        object.insert("apiVersion".to_owned(), api_version.into());
        object.insert("kind".to_owned(), kind.into());
        let metadata = json!({
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY},
        });
        object.insert("metadata".to_owned(), metadata);
        for (key, value) in body {
            object.insert((*key).to_owned(), value.clone());
        }
        Self {
            comment: comment.into(),
            object: Value::Object(object),
        }
    }

    fn text(&self, pointer: &str) -> &str {
        self.object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// `apiVersion`.
    pub fn api_version(&self) -> &str {
        self.text("/apiVersion")
    }

    /// `kind`.
    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    /// Name.
    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// Namespace; empty for a resource without one.
    pub fn namespace(&self) -> &str {
        self.text("/metadata/namespace")
    }
}

/// Resources as one YAML text, each with its comment.
pub fn to_yaml(resources: &[Resource]) -> String {
    let documents: Vec<String> = resources
        .iter()
        .map(|resource| {
            let mut text = String::new();
            for line in wrap(&resource.comment) {
                text.push_str("# ");
                text.push_str(&line);
                text.push('\n');
            }
            text.push_str(&envoy::to_yaml(&resource.object));
            text
        })
        .collect();
    documents.join("---\n")
}

/// Lines of words.
fn wrap(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
