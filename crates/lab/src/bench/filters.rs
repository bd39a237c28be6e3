//! Each mechanism's HTTP filters, as Envoy's configuration has them.
//!
//! Outrider's come from the `outrider` command: the benchmark measures what a user gets. Compiled code of Wasm
//! plugins is kept as `outrider up` keeps it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::mechanism::{Guest, Mechanism};
use super::scripts::{self, Told};
use super::workload::{Work, Workload};

/// Its name in a chain, and in `typed_per_filter_config`.
const OUTRIDER: &str = "outrider";

/// What filters are made of.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// The `outrider` command.
    pub(crate) outrider: PathBuf,
    /// The folder of the guests, each `LANGUAGE/plugin.wasm`.
    pub(crate) guests: PathBuf,
    /// Coraza's module.
    pub(crate) coraza: PathBuf,
    /// Where compiled code is kept.
    pub(crate) compiled: PathBuf,
}

impl Sources {
    /// The file that a guest's plugins are.
    pub(crate) fn module(&self, guest: Guest) -> anyhow::Result<PathBuf> {
        there(&self.guests.join(guest.name()).join("plugin.wasm"))
    }

    /// The file of Coraza.
    pub(crate) fn coraza(&self) -> anyhow::Result<PathBuf> {
        there(&self.coraza)
    }

    fn module_for(&self, guest: Guest, workload: &Workload) -> anyhow::Result<PathBuf> {
        if workload.is_firewall {
            self.coraza()
        } else {
            self.module(guest)
        }
    }
}

fn there(file: &Path) -> anyhow::Result<PathBuf> {
    anyhow::ensure!(
        file.is_file(),
        "{} is not there; `make bench` builds it",
        file.display()
    );
    Ok(std::path::absolute(file)?)
}

/// The filters that do a workload's work, or `work` instead of it.
pub(crate) fn filters(
    mechanism: Mechanism,
    workload: &Workload,
    work: Work,
    told: Told,
    sources: &Sources,
) -> anyhow::Result<Vec<Value>> {
    let copies = 1..=workload.copies;
    let codes = |guest| -> anyhow::Result<Vec<Code>> {
        let module = sources.module_for(guest, workload)?;
        let configuration = if workload.is_firewall {
            String::new()
        } else {
            scripts::native(work, told)
        };
        Ok(vec![
            Code::Wasm {
                module,
                configuration
            };
            workload.copies
        ])
    };
    let outrider = |guest| Ok(vec![Rendered::plugins(sources, &codes(guest)?)?.filter]);
    let envoy = |guest| -> anyhow::Result<Vec<Value>> {
        let codes = codes(guest)?;
        Ok((1..)
            .zip(&codes)
            .filter_map(|(number, code)| envoy_wasm(number, code))
            .collect())
    };
    match mechanism {
        Mechanism::OutriderLua => {
            let codes: Vec<_> = copies
                .map(|number| Code::Lua(scripts::outrider(work, told, number)))
                .collect();
            Ok(vec![Rendered::plugins(sources, &codes)?.filter])
        }
        Mechanism::EnvoyLua => Ok(copies
            .map(|number| envoy_lua(number, &scripts::envoy(work, told)))
            .collect()),
        Mechanism::Native => Ok(copies
            .map(|number| native(number, &scripts::native(work, told)))
            .collect()),
        Mechanism::OutriderRust => outrider(Guest::Rust),
        Mechanism::EnvoyRust => envoy(Guest::Rust),
        Mechanism::OutriderCpp => outrider(Guest::Cpp),
        Mechanism::EnvoyCpp => envoy(Guest::Cpp),
        Mechanism::OutriderGo => outrider(Guest::Go),
        Mechanism::EnvoyGo => envoy(Guest::Go),
    }
}

/// A plugin's code.
#[derive(Debug, Clone)]
pub(crate) enum Code {
    /// A script.
    Lua(String),
    /// A module, and the text that it is configured with.
    Wasm {
        module: PathBuf,
        configuration: String,
    },
    /// A plugin that ships, in its folder, with its configuration.
    Shipped {
        folder: PathBuf,
        configuration: Value,
    },
}

/// One of Envoy's Wasm filters with this module; nothing for what is no module. Its number is its VM's identity:
/// filters of other plugins would not share a VM either.
pub(crate) fn envoy_wasm(number: usize, code: &Code) -> Option<Value> {
    let Code::Wasm {
        module,
        configuration,
    } = code
    else {
        return None;
    };
    Some(json!({
        "name": format!("wasm-{number}"),
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": format!("bench-{number}"),
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": configuration,
                },
                "vm_config": {
                    "vm_id": format!("bench-{number}"),
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": { "local": { "filename": module } },
                },
                "allow_on_headers_stop_iteration": true,
            },
        },
    }))
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

/// The native module with this work.
pub(crate) fn native(number: usize, work: &str) -> Value {
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
    pub(crate) fn plugins(sources: &Sources, codes: &[Code]) -> anyhow::Result<Self> {
        Self::with_routes(sources, codes, 0)
    }

    /// The same, with that many routes that each have configuration of their own for the first
    /// plugin.
    pub(crate) fn with_routes(
        sources: &Sources,
        codes: &[Code],
        routes: usize,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("outrider-bench-")
            .tempdir()?;
        let folder = folder.path();
        for (number, code) in codes.iter().enumerate() {
            if let Code::Lua(code) = code {
                let plugin = folder.join(plugin_name(number));
                fs::create_dir(&plugin)?;
                let manifest = format!("name: {}\nruntime: lua\n", plugin_name(number));
                fs::write(plugin.join("plugin.yaml"), manifest)?;
                fs::write(plugin.join("main.lua"), code)?;
            }
        }
        // JSON is YAML.
        let gateway = folder.join("outrider.yaml");
        fs::write(&gateway, gateway_file(codes, routes).to_string())?;
        let rendered = folder.join("rendered");
        let outrider = &sources.outrider;
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
        let mut filter = read("ecds.json")?
            .pointer("/resources/0/typed_config")
            .context("ecds.json has no filter")?
            .clone();
        if codes.iter().any(|code| !matches!(code, Code::Lua(_))) {
            // `outrider up` names a folder; what is rendered for another machine cannot.
            filter
                .pointer_mut("/filter_config/value")
                .and_then(Value::as_object_mut)
                .context("ecds.json has no document of the filter")?
                .insert("compiled_folder".to_owned(), json!(sources.compiled));
        }
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

fn gateway_file(codes: &[Code], routes: usize) -> Value {
    let mut used = Vec::new();
    let mut declared = serde_json::Map::new();
    for (number, code) in codes.iter().enumerate() {
        let name = plugin_name(number);
        let mut using = json!({ "plugin": name });
        let declaration = match code {
            Code::Lua(_) => json!({ "source": name }),
            Code::Shipped {
                folder,
                configuration,
            } => {
                if let Some(using) = using.as_object_mut() {
                    using.insert("config".to_owned(), configuration.clone());
                }
                json!({ "source": folder })
            }
            Code::Wasm {
                module,
                configuration,
            } => {
                if let (false, Some(using)) = (configuration.is_empty(), using.as_object_mut()) {
                    using.insert("config".to_owned(), json!(configuration));
                }
                json!({
                    "source": module,
                    // Under callgrind all is some fifty times as slow, and each call a long one.
                    "budgets": { "time_ms": 60_000, "memory_mib": 512, "share": 100 },
                    "wasm": { "allow_on_headers_stop_iteration": true },
                })
            }
        };
        used.push(using);
        declared.insert(name, declaration);
    }
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
