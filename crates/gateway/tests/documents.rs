//! The published documents are what the code says: `UPDATE_DOCS=1 cargo test` writes them again.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

fn same(name: &str, content: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, content).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == content,
        "docs/{name} is not what the code says; write it again with UPDATE_DOCS=1 cargo test -p outrider-gateway"
    );
}

#[test]
fn json_schema() {
    let schema = serde_json::to_string_pretty(&outrider_gateway::schema()).unwrap();
    same("outrider.schema.json", &format!("{schema}\n"));
}

#[test]
fn reference() {
    same("configuration.md", &outrider_gateway::reference());
}

/// The schema takes what the compiler takes, and refuses what it refuses for a form alone.
#[test]
fn schema_and_compiler_agree() {
    let schema = jsonschema::validator_for(&outrider_gateway::schema()).unwrap();
    let check = |folder: &str, name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests")
            .join(folder)
            .join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let document = outrider_yaml::Document::parse(name, &text).unwrap();
        let errors: Vec<String> = schema
            .iter_errors(&document.root.to_json())
            .map(|error| format!("{}: {error}", error.instance_path().as_str()))
            .collect();
        errors
    };
    for name in [
        "minimal.yaml",
        "full.yaml",
        "tls.yaml",
        "scopes.yaml",
        "wasm.yaml",
        "more/blog.yaml",
    ] {
        assert_eq!(check("gateways", name), Vec::<String>::new(), "{name}");
    }
    for name in [
        "addresses.yaml",
        "missing-keys.yaml",
        "unknown-keys.yaml",
        "values.yaml",
        "wrong-types.yaml",
    ] {
        assert!(!check("broken", name).is_empty(), "{name}");
    }
}
