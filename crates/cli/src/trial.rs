//! Loads a plugin for real and gives it a configuration, as the module inside Envoy will, so that a
//! syntax error, a missing module, or a configuration that `on_configure` refuses is told by `check`. That
//! happens in a process of its own ([`TrialProcess`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrider_lua_runtime::LuaSource;
use outrider_plugin_api::{
    BodyMode, LoadError, LogLevel, MetricId, MetricKind, Metrics, Plugin, ScopedConfig, log_line,
};
use outrider_plugin_formats::{
    self as formats, PluginCode, PluginEntry, PluginPackage, PluginSource, Problem, WasmModule,
};
use outrider_wasm_runtime::{Clock, WasmSource};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::compiled;

mod limits;
mod process;

pub(crate) use process::{ARGUMENT, TrialProcess, serve};

/// The runtime names the scope of a configuration that it refuses; the problem's place says more.
const SCOPE: &str = "trial";
/// Stands for the current folder, which has no name in the user's own words.
const NOWHERE: &str = "‹here›/";
/// No stream is served here, so no worker needs a VM.
const WORKERS: usize = 0;

/// Plugins that were loaded in this process, by all that decides their code.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    loaded: BTreeMap<String, Result<Arc<dyn Plugin>, Problem>>,
    metrics: Definitions,
    /// Where compiled code is kept.
    compiled_folder: Option<PathBuf>,
}

/// All that decides a plugin's code.
fn key(entry: &PluginEntry, place: &Place<'_>) -> String {
    let PluginEntry {
        name,
        digest,
        entry: first,
        body,
        budgets,
        wasm,
        ..
    } = entry;
    format!(
        "{name} {digest} {first} {body:?} {budgets:?} {wasm:?} {}",
        place.folder
    )
}

impl Trials {
    /// Takes what the plugins logged since the last call, in the order of time.
    fn take_lines(&mut self) -> Vec<LoadLine> {
        std::mem::take(&mut self.metrics.lines)
    }

    /// What the plugins logged, in the order of time.
    #[cfg(test)]
    pub(crate) fn into_lines(mut self) -> Vec<LoadLine> {
        self.take_lines()
    }

    /// Loads `entry`, whose code is at `place`, unless that has been done, and gives it `config`, if there is one.
    ///
    /// # Errors
    /// A problem in a file of the plugin; or one without a file, where the configuration is refused.
    pub(crate) fn run(
        &mut self,
        entry: &PluginEntry,
        place: &Place<'_>,
        config: Option<&Value>,
    ) -> Result<(), Problem> {
        let key = key(entry, place);
        let compiled_folder = self.compiled_folder.as_deref();
        let metrics = &mut self.metrics;
        let plugin = self
            .loaded
            .entry(key)
            .or_insert_with(|| load(entry, place, compiled_folder, metrics))
            .as_ref()
            .map_err(Clone::clone)?;
        let Some(config) = config else {
            return Ok(());
        };
        let effective: Arc<str> = config.to_string().into();
        let config = ScopedConfig {
            scope: SCOPE.to_owned(),
            base: Some(Arc::clone(&effective)),
            route: None,
            effective,
            place: None,
        };
        match plugin.configure(&config, &mut self.metrics) {
            Ok(_) => Ok(()),
            Err(LoadError { plugin, message }) => {
                let message = message.replace(&format!(" (configuration of {SCOPE})"), "");
                let message = message.replace(NOWHERE, "");
                let message = format!("plugin `{plugin}` refuses this configuration: {message}");
                Err(problem(String::new(), 0, &message))
            }
        }
    }
}

/// A package as an entry with every default, for a load without a gateway.
pub(crate) fn entry_of(package: &PluginPackage) -> PluginEntry {
    let manifest = &package.manifest;
    PluginEntry {
        name: manifest.name.clone(),
        runtime: manifest.runtime,
        version: manifest.version.clone(),
        digest: package.digest.clone(),
        source: match &package.code {
            PluginCode::Files(files) => PluginSource::Inline(files.clone()),
            PluginCode::Module(module) => PluginSource::Module(module.file.clone()),
        },
        entry: manifest
            .entry
            .clone()
            .unwrap_or_else(|| "main.lua".to_owned()),
        group: manifest.group,
        priority: manifest.priority,
        body: manifest.body,
        failure_policy: manifest.failure_policy.clone().unwrap_or_default(),
        budgets: manifest
            .budgets
            .unwrap_or_default()
            .over(formats::Budgets::of(manifest.runtime)),
        wasm: manifest.wasm.clone().unwrap_or_default(),
        circuit: manifest.circuit.unwrap_or_default(),
        allow: formats::Allow::all(),
        log_rate: None,
        schema: None,
        enabled: false,
        config: None,
    }
}

/// Where a plugin's code is.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    /// The plugin's folder, as messages name it.
    pub(crate) folder: &'a str,
    /// A Wasm plugin's module.
    pub(crate) module: Option<WasmModule>,
}

fn load(
    entry: &PluginEntry,
    place: &Place<'_>,
    compiled_folder: Option<&Path>,
    metrics: &mut Definitions,
) -> Result<Arc<dyn Plugin>, Problem> {
    let Place { folder, module } = place;
    let loaded = match &entry.source {
        PluginSource::Inline(files) => outrider_lua_runtime::load(
            LuaSource {
                plugin: entry.name.clone(),
                folder: if folder.is_empty() {
                    NOWHERE.trim_end_matches('/').to_owned()
                } else {
                    (*folder).to_owned()
                },
                files: files.clone(),
                entry: entry.entry.clone(),
                request_body: mode(entry.body.request()),
                response_body: mode(entry.body.response()),
                time_budget: Duration::from_millis(u64::from(entry.budgets.time_ms)),
                memory_budget: entry.budgets.memory_mib as usize * 1024 * 1024,
                share: 100,
                off_worker: false,
                log_folder: None,
            },
            WORKERS,
            metrics,
        ),
        PluginSource::Module(_) if let Some(module) = module => {
            return load_module(entry, module, compiled_folder, metrics);
        }
        // The compiler of gateways makes no such source.
        PluginSource::Module(_) | PluginSource::Folder(_) => Err(LoadError {
            plugin: entry.name.clone(),
            message: "its code is not at hand".to_owned(),
        }),
    };
    loaded.map_err(|LoadError { message, .. }| {
        let message = message.replace(NOWHERE, "");
        if let Some((file, line, message)) = split_place(&message) {
            problem(file.to_owned(), line, message)
        } else {
            let first = Path::new(folder).join(&entry.entry).display().to_string();
            let message = message
                .strip_prefix(&format!("{first}: "))
                .unwrap_or(&message);
            problem(first.clone(), 0, message)
        }
    })
}

fn load_module(
    entry: &PluginEntry,
    module: &WasmModule,
    compiled_folder: Option<&Path>,
    metrics: &mut Definitions,
) -> Result<Arc<dyn Plugin>, Problem> {
    let WasmModule { file, bytes } = module;
    let source = WasmSource {
        name: entry.name.clone(),
        file: file.clone(),
        module: Arc::clone(bytes).into(),
        memory_budget: entry.budgets.memory_mib as usize * 1024 * 1024,
        time_budget: Duration::from_millis(u64::from(entry.budgets.time_ms)),
        compiled_folder: compiled_folder.map(Path::to_owned),
        options: outrider_plugin_testkit::wasm_options(&entry.wasm),
        clock: Clock::default(),
        background: None,
        late_metrics: None,
        share: 100,
        cpu_clock: outrider_lua_runtime::thread_clock(),
    };
    let loaded = compiled::telling(&entry.name, bytes.len(), || {
        outrider_wasm_runtime::load(source, WORKERS, metrics)
    });
    loaded.map_err(|LoadError { plugin, message }| {
        let what = message.strip_prefix(file.as_str()).unwrap_or(&message);
        let what = what.trim_start_matches([':', ' ']);
        problem(file.clone(), 0, &format!("plugin `{plugin}`: {what}"))
    })
}

fn problem(file: String, line: usize, message: &str) -> Problem {
    Problem {
        file,
        line,
        column: 0,
        message: message.to_owned(),
        mend: None,
    }
}

/// `folder/main.lua:12: what` as its three parts.
fn split_place(message: &str) -> Option<(&str, usize, &str)> {
    let (place, what) = message.split_once(": ")?;
    let (file, line) = place.rsplit_once(':')?;
    let line = line.parse().ok()?;
    Some((file, line, what))
}

fn mode(mode: formats::BodyMode) -> BodyMode {
    match mode {
        formats::BodyMode::Whole => BodyMode::Whole,
        formats::BodyMode::Stream => BodyMode::Stream,
    }
}

/// Most lines of the log that one trial keeps.
const LINES_LIMIT: usize = 1000;

/// Metrics, which nobody looks at, and what was logged.
#[derive(Debug, Default)]
struct Definitions {
    known: BTreeMap<(MetricKind, String), MetricId>,
    lines: Vec<LoadLine>,
}

/// What a plugin logged while it loaded, or in `on_configure`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LoadLine {
    pub(crate) plugin: String,
    pub(crate) level: Cow<'static, str>,
    pub(crate) message: String,
}

impl Metrics for Definitions {
    fn define(&mut self, kind: MetricKind, name: &str) -> Option<MetricId> {
        let next = MetricId(u32::try_from(self.known.len()).ok()?);
        Some(*self.known.entry((kind, name.to_owned())).or_insert(next))
    }

    /// As Envoy's log does where nothing else is asked of it.
    fn log_enabled(&self, level: LogLevel) -> bool {
        level >= LogLevel::Info
    }

    fn log(&mut self, level: LogLevel, plugin: &str, message: &str) {
        let line = LoadLine {
            plugin: plugin.to_owned(),
            level: Cow::Borrowed(level.name()),
            message: log_line(message).into_owned(),
        };
        // One plugin is tried with each of its configurations.
        if self.lines.len() < LINES_LIMIT && !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_places() {
        assert_eq!(
            split_place("a b/main.lua:12: '=' expected near 'x'"),
            Some(("a b/main.lua", 12, "'=' expected near 'x'"))
        );
        assert_eq!(split_place("no handler"), None);
        assert_eq!(split_place("why: because"), None);
    }
}
