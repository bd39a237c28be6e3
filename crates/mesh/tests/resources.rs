//! Whole meshes: the resources as YAML, against the schemas of their definitions; and wrong ones: all problems.
//!
//! `scripts/crd-schemas.py` makes the schemas, from the definitions that Istio 1.31 and Gateway API 1.6 install. The API
//! server itself checks all kinds in `make test-istio`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use jsonschema::Validator;
use outrider_gateway::plan::mesh::MeshPlan;
use outrider_gateway::{CompiledMesh, Loader, PluginPackage, Problem, compile_mesh};
use outrider_mesh::{Api, RenderError, Resource, render, to_yaml};
use outrider_plugin_formats::PluginSource;
use serde_json::{Value, json};

/// Smallest module: the header of the format (WebAssembly, section 5.5.15).
const TINY: &[u8] = b"\0asm\x01\0\0\0";

/// Reads below a folder of this crate's tests. A file `tiny.wasm` is there without being one.
struct Folder(String);

impl Folder {
    fn new(name: &str) -> Self {
        Self(format!("{}/tests/{name}", env!("CARGO_MANIFEST_DIR")))
    }
}

impl Loader for Folder {
    fn read(&self, path: &str) -> Result<String, String> {
        std::fs::read_to_string(format!("{}/{path}", self.0)).map_err(|error| error.to_string())
    }

    fn matching(&self, _pattern: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
        if source != "tiny.wasm" {
            return outrider_plugin_store::open(Path::new(&format!("{}/{source}", self.0)));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(source);
        std::fs::write(&path, TINY).unwrap();
        outrider_plugin_store::open(&path)
    }

    fn is_folder(&self, _path: &str) -> bool {
        true
    }

    fn absolute(&self, path: &str) -> String {
        format!("/meshes/{path}")
    }
}

fn mesh(name: &str) -> MeshPlan {
    let CompiledMesh { plan, problems, .. } = compile_mesh(name, &Folder::new("meshes"));
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, Vec::<String>::new(), "{name}");
    plan.unwrap()
}

fn rendered(plan: &MeshPlan, api: Api, module: &[u8]) -> Result<Vec<Resource>, RenderError> {
    let plugins = plan.plugins.iter().flat_map(|entry| &entry.filter.plugins);
    let modules: BTreeMap<String, Vec<u8>> = plugins
        .filter_map(|plugin| match &plugin.source {
            PluginSource::Module(path) => Some((path.clone(), module.to_vec())),
            _ => None,
        })
        .collect();
    render(plan, api, &modules)
}

/// The schema of a definition, in which keys that are not there are wrong: an API server drops them.
fn schema(resource: &Resource) -> Option<Validator> {
    let version = resource.api_version().rsplit('/').next()?;
    let path = format!(
        "{}/tests/schemas/{}.{version}.json",
        env!("CARGO_MANIFEST_DIR"),
        resource.kind()
    );
    let text = std::fs::read_to_string(path).ok()?;
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    close(&mut schema, true);
    Some(jsonschema::validator_for(&schema).unwrap())
}

fn close(schema: &mut Value, is_root: bool) {
    let Value::Object(object) = schema else {
        return;
    };
    let is_open = object.contains_key("x-kubernetes-preserve-unknown-fields");
    if is_root && let Some(Value::Object(properties)) = object.get_mut("properties") {
        for key in ["apiVersion", "kind", "metadata"] {
            properties.insert(key.to_owned(), json!({}));
        }
    }
    if object.contains_key("properties") && !object.contains_key("additionalProperties") && !is_open
    {
        object.insert("additionalProperties".to_owned(), false.into());
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        for inner in properties.values_mut() {
            close(inner, false);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            close(inner, false);
        }
    }
}

#[test]
fn resources_are_what_their_definitions_say() {
    insta::glob!("meshes/*.yaml", |path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let plan = mesh(name);
        for (api, word) in [(Api::Istio, "istio"), (Api::Gateway, "gateway")] {
            if api == Api::Gateway && plan.lanes.is_empty() {
                continue;
            }
            let resources = rendered(&plan, api, TINY).unwrap();
            for resource in &resources {
                let is_core = ["v1", "apps/v1"].contains(&resource.api_version());
                let Some(schema) = schema(resource) else {
                    assert!(is_core, "no schema: {}", resource.kind());
                    continue;
                };
                let wrong: Vec<String> = schema
                    .iter_errors(&resource.object)
                    .map(|error| format!("{}: {error}", error.instance_path()))
                    .collect();
                assert_eq!(wrong, Vec::<String>::new(), "{}", resource.name());
            }
            let mut names: Vec<(&str, &str, &str)> = resources
                .iter()
                .map(|one| (one.kind(), one.namespace(), one.name()))
                .collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{name}: two resources of one name");
            insta::assert_snapshot!(word, to_yaml(&resources));
        }
    });
}

/// The check above can fail.
#[test]
fn schemas_refuse_what_api_servers_drop() {
    let plan = mesh("permissive.yaml");
    let resources = rendered(&plan, Api::Istio, TINY).unwrap();
    for kind in ["EnvoyFilter", "VirtualService", "DestinationRule"] {
        let resource = resources.iter().find(|one| one.kind() == kind).unwrap();
        let schema = schema(resource).unwrap();
        assert!(schema.is_valid(&resource.object));
        let mut wrong = resource.object.clone();
        wrong["spec"]["sepc"] = 1.into();
        assert!(!schema.is_valid(&wrong), "{kind}");
    }
}

#[test]
fn modules_that_do_not_fit_into_a_config_map_are_refused() {
    let plan = mesh("plugins.yaml");
    let error = rendered(&plan, Api::Istio, &vec![0; 1_048_576]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the Wasm modules of the plugins in the namespace `shop` have 1048598 bytes, and a ConfigMap holds 1048576; put them \
         into the proxies' image, or the module's, as `<plugin>.wasm`, and name the folder: `mesh.module.wasm_folder`"
    );
}

#[test]
fn problems() {
    insta::glob!("broken/*.yaml", |path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let compiled = compile_mesh(name, &Folder::new("broken"));
        assert!(compiled.plan.is_none(), "{name}");
        let mut text = String::new();
        for problem in &compiled.problems {
            assert!(problem.line > 0, "no place: {problem}");
            writeln!(text, "{problem}").unwrap();
        }
        assert!(!text.is_empty(), "{name}");
        insta::assert_snapshot!(text);
    });
}
