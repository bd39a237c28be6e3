//! Each mechanism's HTTP filters, as Envoy's configuration has them.
//!
//! Outrider's come from the `outrider` command: the benchmark measures what a user gets.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::scripts::{self, Told};
use super::workload::{Mechanism, Work};

/// Its name in a chain, and in `typed_per_filter_config`.
const OUTRIDER: &str = "outrider";

/// The filters that do the work that many times over.
pub(crate) fn filters(
    mechanism: Mechanism,
    work: Work,
    told: Told,
    copies: usize,
    outrider: &Path,
) -> anyhow::Result<Vec<Value>> {
    match mechanism {
        Mechanism::OutriderLua => {
            let codes: Vec<_> = (1..=copies)
                .map(|number| scripts::outrider(work, told, number))
                .collect();
            Ok(vec![Rendered::plugins(outrider, &codes)?.filter])
        }
        Mechanism::EnvoyLua => Ok((1..=copies)
            .map(|number| envoy_lua(number, &scripts::envoy(work, told)))
            .collect()),
        Mechanism::Native => Ok((1..=copies)
            .map(|number| native(number, &scripts::native(work, told)))
            .collect()),
    }
}

/// One of Envoy's Lua filters with this script.
pub(crate) fn envoy_lua(number: usize, script: &str) -> Value {
    json!({
        "name": format!("lua-{number}"),
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": { "inline_string": script },
        },
    })
}

fn native(number: usize, work: &str) -> Value {
    json!({
        "name": format!("native-{number}"),
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": { "name": "outrider_bench_native", "do_not_close": true },
            "filter_name": "bench",
            "filter_config": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": work,
            },
        },
    })
}

/// What the `outrider` command makes of a gateway.
#[derive(Debug)]
pub(crate) struct Rendered {
    /// The filter with its plugins.
    pub(crate) filter: Value,
    /// The `typed_per_filter_config` of each route.
    pub(crate) routes: Vec<Value>,
}

impl Rendered {
    /// A gateway that runs these plugins on all that comes.
    pub(crate) fn plugins(outrider: &Path, codes: &[String]) -> anyhow::Result<Self> {
        Self::with_routes(outrider, codes, 0)
    }

    /// The same, with that many routes that each have configuration of their own for the first
    /// plugin.
    pub(crate) fn with_routes(
        outrider: &Path,
        codes: &[String],
        routes: usize,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("outrider-bench-")
            .tempdir()?;
        let folder = folder.path();
        for (number, code) in codes.iter().enumerate() {
            let plugin = folder.join(plugin_name(number));
            fs::create_dir(&plugin)?;
            let manifest = format!("name: {}\nruntime: lua\n", plugin_name(number));
            fs::write(plugin.join("plugin.yaml"), manifest)?;
            fs::write(plugin.join("main.lua"), code)?;
        }
        // JSON is YAML.
        let gateway = folder.join("outrider.yaml");
        fs::write(&gateway, gateway_file(codes.len(), routes).to_string())?;
        let rendered = folder.join("rendered");
        let output = Command::new(outrider)
            .args(["render", "envoy"])
            .arg(&gateway)
            .arg("--output")
            .arg(&rendered)
            .output()
            .with_context(|| format!("cannot run {}", outrider.display()))?;
        anyhow::ensure!(
            output.status.success(),
            "{} render envoy: {}",
            outrider.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let read = |name: &str| -> anyhow::Result<Value> {
            Ok(serde_json::from_slice(&fs::read(rendered.join(name))?)?)
        };
        let filter = read("ecds.json")?
            .pointer("/resources/0/typed_config")
            .context("ecds.json has no filter")?
            .clone();
        let routes_file = read("rds.json")?;
        let routes = routes_file
            .pointer("/resources/0/virtual_hosts/0/routes")
            .and_then(Value::as_array)
            .context("rds.json has no routes")?
            .iter()
            .filter_map(|route| route.get("typed_per_filter_config").cloned())
            .collect();
        Ok(Self {
            filter: json!({ "name": OUTRIDER, "typed_config": filter }),
            routes,
        })
    }
}

fn plugin_name(number: usize) -> String {
    format!("bench-{}", number + 1)
}

fn gateway_file(plugins: usize, routes: usize) -> Value {
    let names = (0..plugins).map(plugin_name);
    let used: Vec<_> = names
        .clone()
        .map(|name| json!({ "plugin": name }))
        .collect();
    let declared: serde_json::Map<String, Value> = names
        .map(|name| (name.clone(), json!({ "source": name })))
        .collect();
    let respond = json!({ "status": 200, "body": "ok" });
    let routes: Vec<_> = (0..routes)
        .map(|number| {
            json!({
                "match": { "path": route_path(number) },
                "respond": respond,
                "use": [{ "plugin": plugin_name(0), "config": { "value": route_value(number) } }],
            })
        })
        .chain([json!({ "match": { "prefix": "/" }, "respond": respond })])
        .collect();
    json!({
        // Never opened: only the filter and the routes' part of it are taken.
        "gateway": { "listeners": [{ "name": "main", "address": "127.0.0.1:1" }], "use": used },
        "plugins": declared,
        "projects": [{ "name": "bench", "hosts": ["*"], "routes": routes }],
    })
}

/// The path of one of many routes.
pub(crate) fn route_path(number: usize) -> String {
    format!("/route-{number}")
}

/// What one of many routes is configured with.
pub(crate) fn route_value(number: usize) -> String {
    format!("value of route {number}")
}
