//! A plugin as the kit runs it: how to load it, what its configurations have to satisfy, and what a
//! chain of it alone looks like.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrider_lua_runtime::LuaSource;
use outrider_plugin_api::{
    BodyMode, Cause, Chain, Circuit, FailureAction, FailurePolicy, Link, LinkMetrics, LoadError,
    Metrics, Permissions, Plugin, ScopedConfig,
};
use outrider_plugin_formats as formats;
use outrider_wasm_runtime::{WasmOptions, WasmSource};
use serde_json::Value;

use crate::clock;
use crate::metrics::MetricTable;

const ENTRY: &str = "main.lua";
const SCHEMA: &str = "config.schema.json";

type Load = Box<dyn Fn(&mut dyn Metrics) -> Result<Arc<dyn Plugin>, LoadError> + Send + Sync>;

/// A plugin that loads, and can be loaded anew for each case.
pub struct LoadedPlugin {
    name: String,
    load: Load,
    /// As long as it lives, other loads of a Wasm plugin find its code compiled.
    _first: Option<Arc<dyn Plugin>>,
    schema: Option<jsonschema::Validator>,
    failure_policy: FailurePolicy,
}

impl fmt::Debug for LoadedPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedPlugin")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl LoadedPlugin {
    /// A plugin that `load` makes, with the failure policy that a manifest has which says nothing:
    /// closed, 500.
    pub fn new(
        name: &str,
        load: impl Fn(&mut dyn Metrics) -> Result<Arc<dyn Plugin>, LoadError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            load: Box::new(load),
            _first: None,
            schema: None,
            failure_policy: failure_policy(&formats::FailurePolicy::default()),
        }
    }

    /// The plugin of a package, with its schema and its manifest's failure policy and budgets. It is
    /// loaded once, so that what is wrong with its code is told here. What is compiled of a Wasm plugin is
    /// forgotten with this.
    pub fn from_package(package: &formats::PluginPackage) -> Result<Self, LoadError> {
        Self::from_package_keeping(package, None)
    }

    /// As [`LoadedPlugin::from_package`]; what is compiled of a Wasm plugin is kept in a folder.
    pub fn from_package_keeping(
        package: &formats::PluginPackage,
        compiled_folder: Option<PathBuf>,
    ) -> Result<Self, LoadError> {
        let manifest = &package.manifest;
        let budgets = manifest
            .budgets
            .unwrap_or_default()
            .over(formats::Budgets::of(manifest.runtime));
        let load: Load = match &package.code {
            formats::PluginCode::Files(files) => {
                let source = LuaSource {
                    plugin: manifest.name.clone(),
                    folder: manifest.name.clone(),
                    files: files.clone(),
                    entry: manifest.entry.clone().unwrap_or_else(|| ENTRY.to_owned()),
                    request_body: body_mode(manifest.body.request()),
                    response_body: body_mode(manifest.body.response()),
                    time_budget: Duration::from_millis(budgets.time_ms.into()),
                    memory_budget: budgets.memory_mib as usize * 1024 * 1024,
                    share: 100,
                    off_worker: false,
                    log_folder: None,
                };
                Box::new(move |metrics| outrider_lua_runtime::load(source.clone(), 1, metrics))
            }
            formats::PluginCode::Module(module) => {
                let source = WasmSource {
                    name: manifest.name.clone(),
                    file: module.file.clone(),
                    module: Arc::clone(&module.bytes).into(),
                    memory_budget: budgets.memory_mib as usize * 1024 * 1024,
                    time_budget: Duration::from_millis(budgets.time_ms.into()),
                    compiled_folder,
                    options: wasm_options(&manifest.wasm.clone().unwrap_or_default()),
                    clock: clock::of_this_thread(),
                    background: None,
                    late_metrics: None,
                    share: 100,
                    cpu_clock: outrider_lua_runtime::thread_clock(),
                };
                Box::new(move |metrics| outrider_wasm_runtime::load(source.clone(), 1, metrics))
            }
        };
        let first = load(&mut MetricTable::new())?;
        let plugin = Self {
            name: manifest.name.clone(),
            load,
            _first: Some(first),
            schema: None,
            failure_policy: failure_policy(&manifest.failure_policy.clone().unwrap_or_default()),
        };
        match &package.schema {
            Some(schema) => plugin.with_schema(schema),
            None => Ok(plugin),
        }
    }

    /// Why the plugin of a package does not load, at its place in the package's folder.
    pub fn problem(package: &formats::PluginPackage, error: &LoadError) -> formats::Problem {
        let manifest = &package.manifest;
        let inside = format!("{}/", manifest.name);
        let at = |file: &str, line: usize, message: &str| formats::Problem {
            file: Path::new(&package.folder).join(file).display().to_string(),
            line,
            column: 0,
            message: message.to_owned(),
            mend: None,
        };
        let message = &error.message;
        if let formats::PluginCode::Module(module) = &package.code
            && let Some(what) = message.strip_prefix(&module.file)
        {
            return formats::Problem {
                file: module.file.clone(),
                line: 0,
                column: 0,
                message: what.trim_start_matches([':', ' ']).to_owned(),
                mend: None,
            };
        }
        if let Some((place, what)) = message.split_once(": ") {
            if place == SCHEMA {
                return at(place, 0, what);
            }
            if let Some(place) = place.strip_prefix(&inside) {
                let (file, line) = place
                    .rsplit_once(':')
                    .and_then(|(file, line)| Some((file, line.parse().ok()?)))
                    .unwrap_or((place, 0));
                return at(file, line, what);
            }
        }
        at(manifest.entry.as_deref().unwrap_or(ENTRY), 0, message)
    }

    /// The plugin with a JSON Schema that its configurations have to satisfy.
    pub fn with_schema(mut self, schema: &Value) -> Result<Self, LoadError> {
        let validator = jsonschema::validator_for(schema)
            .map_err(|error| self.refuse(format!("{SCHEMA}: {}", with_place(&error))))?;
        self.schema = Some(validator);
        Ok(self)
    }

    /// The plugin with a failure policy.
    #[must_use]
    pub fn with_failure_policy(mut self, policy: &formats::FailurePolicy) -> Self {
        self.failure_policy = failure_policy(policy);
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn refuse(&self, message: String) -> LoadError {
        LoadError {
            plugin: self.name.clone(),
            message,
        }
    }

    /// Whether its schema lets a configuration pass; the error names each place.
    pub fn check_config(&self, config: &Value) -> Result<(), LoadError> {
        let problems: Vec<String> = self
            .schema
            .iter()
            .flat_map(|schema| schema.iter_errors(config))
            .map(|error| with_place(&error))
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(self.refuse(format!(
                "the configuration does not satisfy config.schema.json: {}",
                problems.join("; ")
            )))
        }
    }

    /// Loads the plugin anew, configures it, and makes a chain of it alone. `patch` is what project
    /// and route change of the gateway's `config`.
    pub fn chain(
        &self,
        config: &Value,
        patch: Option<&Value>,
        metrics: &mut MetricTable,
    ) -> Result<Arc<Chain>, LoadError> {
        let mut effective = config.clone();
        if let Some(patch) = patch {
            merge(&mut effective, patch);
        }
        self.check_config(&effective)?;
        let plugin = (self.load)(metrics)?;
        let scoped = ScopedConfig {
            scope: if patch.is_some() {
                "project test, route test".to_owned()
            } else {
                "gateway".to_owned()
            },
            base: Some(config.to_string().into()),
            route: patch.map(|patch| patch.to_string().into()),
            effective: effective.to_string().into(),
            place: None,
        };
        let configured = plugin.configure(&scoped, metrics)?;
        Ok(Arc::new(Chain::new(vec![Link {
            name: self.name.as_str().into(),
            interest: plugin.interest(),
            plugin: Some(configured),
            failure_policy: self.failure_policy,
            metrics: LinkMetrics::define(&self.name, metrics),
            faults: Arc::default(),
            times: None,
            // A case is one stream.
            circuit: Arc::new(Circuit::new(scoped.scope, None, Arc::default())),
            permissions: Arc::new(Permissions::all()),
            logs: Arc::default(),
            memory: Arc::default(),
        }])))
    }
}

/// What does not satisfy a schema, with its place where it is not the whole.
fn with_place(error: &jsonschema::ValidationError<'_>) -> String {
    let place = error.instance_path().to_string();
    if place.is_empty() {
        error.to_string()
    } else {
        format!("{place}: {error}")
    }
}

/// JSON Merge Patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(entries) = target else {
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            entries.shift_remove(key);
        } else {
            merge(entries.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

/// How a Wasm plugin is run, as its runtime takes it.
pub fn wasm_options(options: &formats::WasmOptions) -> WasmOptions {
    WasmOptions {
        relaxed: options.results == formats::WasmResults::Relaxed,
        allow_on_headers_stop_iteration: options.allow_on_headers_stop_iteration,
        environment: options.environment.clone(),
        vm_id: options.vm_id.clone(),
        shared: options.shared.clone(),
        root_id: options.root_id.clone(),
        vm_configuration: options.vm_configuration_bytes(),
        trace: options.trace,
        jump_threading: options.jump_threading,
    }
}

fn body_mode(mode: formats::BodyMode) -> BodyMode {
    match mode {
        formats::BodyMode::Whole => BodyMode::Whole,
        formats::BodyMode::Stream => BodyMode::Stream,
    }
}

fn failure_policy(policy: &formats::FailurePolicy) -> FailurePolicy {
    FailurePolicy::new(policy.status, |cause| {
        let cause = match cause {
            Cause::Error => formats::Cause::Error,
            Cause::Time => formats::Cause::Time,
            Cause::Memory => formats::Cause::Memory,
            Cause::Unavailable => formats::Cause::Unavailable,
            Cause::Circuit => formats::Cause::Circuit,
            Cause::Share => formats::Cause::Share,
        };
        match policy.action(cause) {
            formats::FailureAction::Open => FailureAction::Open,
            formats::FailureAction::Closed => FailureAction::Closed,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_does_not_load_is_told_at_its_place() {
        let package = formats::PluginPackage {
            manifest: serde_json::from_value(json!({"name": "hello", "runtime": "lua"})).unwrap(),
            places: formats::Places::default(),
            digest: String::new(),
            code: formats::PluginCode::Files(std::collections::BTreeMap::new()),
            schema: None,
            folder: "some/where".to_owned(),
        };
        for (message, told) in [
            (
                "hello/lib/a.lua:3: oh: no",
                "some/where/lib/a.lua:3: oh: no",
            ),
            (
                "hello/main.lua: no handler",
                "some/where/main.lua: no handler",
            ),
            (
                "config.schema.json: /type: no",
                "some/where/config.schema.json: /type: no",
            ),
            ("out of memory", "some/where/main.lua: out of memory"),
            ("other: thing", "some/where/main.lua: other: thing"),
        ] {
            let error = LoadError {
                plugin: "hello".to_owned(),
                message: message.to_owned(),
            };
            assert_eq!(LoadedPlugin::problem(&package, &error).to_string(), told);
        }
    }

    #[test]
    fn merge_patches_as_rfc_7396_says() {
        let mut target = json!({"a": "b", "c": {"d": "e", "f": "g"}, "l": [1]});
        merge(
            &mut target,
            &json!({"a": "z", "c": {"f": null}, "l": [2], "n": {"x": null, "y": 1}}),
        );
        assert_eq!(
            target,
            json!({"a": "z", "c": {"d": "e"}, "l": [2], "n": {"y": 1}})
        );
    }
}
