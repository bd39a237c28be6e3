//! One plugin of a generation: its loaded code, and its configurations for the scopes that use it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use outrider_envoy_abi::EnvoyBackground;
use outrider_lua_runtime as lua_runtime;
use outrider_plugin_api::{
    Allowed, BodyMode, CallTimes, CalloutClusters, Cause, Circuit, ConfigPlace, ConfiguredPlugin,
    FailureAction, FailureLogHandle, FailurePolicy, FaultLog, Interest, Link, LinkMetrics,
    LoadError, Permissions, Plugin, PluginBackground, PluginLimits, PluginStatus, ScopedConfig,
};
use outrider_plugin_formats::{self as formats, PluginEntry, PluginTime, Runtime};
use outrider_wasm_runtime as wasm_runtime;
use serde_json::{Map, Value};

use crate::circuits;
use crate::document::Refusal;
use crate::last_faults;
use crate::limits::{self, PluginDefiner};
use crate::merge::merge;
use crate::metrics::{Definer, LateDefiner};
use crate::source;

/// What of an entry decides its code: entries that agree in it share one loaded plugin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CodeKey(String);

impl CodeKey {
    pub(crate) fn new(entry: &PluginEntry, place: &Place) -> Self {
        let PluginEntry {
            name,
            digest,
            entry: file,
            body,
            budgets,
            runtime,
            wasm,
            ..
        } = entry;
        Self(format!(
            "{name} {digest} {runtime:?} {file} {body:?} {budgets:?} {wasm:?} {place:?}"
        ))
    }
}

/// Where plugins are loaded.
#[derive(Debug)]
pub(crate) struct Place {
    /// How many workers this Envoy has.
    pub(crate) workers: usize,
    /// The folder of the files that plugins log to.
    pub(crate) log_folder: Option<PathBuf>,
    /// The folder in which compiled code is kept.
    pub(crate) compiled_folder: Option<PathBuf>,
}

/// Permissions of a plugin, as the chain takes them.
pub(crate) fn permissions(allow: &formats::Allow, clusters: &CalloutClusters) -> Permissions {
    let mut permissions = Permissions::all();
    permissions.upstreams = allowed(&allow.upstreams);
    permissions.leave_project = allow.leave_project;
    permissions.override_host = allow.override_host;
    permissions.metadata = allowed(&allow.metadata);
    permissions.router_headers = allow.router_headers;
    permissions.typed_filter_state = allowed(&allow.typed_filter_state);
    permissions.callout_clusters = Arc::clone(clusters);
    permissions
}

fn allowed(names: &formats::AllowedNames) -> Allowed {
    match names {
        formats::AllowedNames::All(_) => Allowed::All,
        formats::AllowedNames::Listed(names) => {
            Allowed::Listed(names.iter().map(|name| name.as_str().into()).collect())
        }
    }
}

/// Loads a plugin's code.
pub(crate) fn load(entry: &PluginEntry, place: &Place) -> Result<Arc<dyn Plugin>, Refusal> {
    let limits = limits::of(&entry.name);
    let mut metrics = PluginDefiner::new(&entry.name, &limits);
    match entry.runtime {
        Runtime::Lua => {
            let files = source::files(entry)?;
            let folder = match &entry.source {
                formats::PluginSource::Folder(folder) => folder.clone(),
                _ => entry.name.clone(),
            };
            let source = lua_runtime::LuaSource {
                plugin: entry.name.clone(),
                folder,
                files,
                entry: entry.entry.clone(),
                request_body: mode(entry.body.request()),
                response_body: mode(entry.body.response()),
                time_budget: Duration::from_millis(u64::from(entry.budgets.time_ms)),
                memory_budget: entry.budgets.memory_mib as usize * 1024 * 1024,
                share: entry.budgets.share,
                off_worker: true,
                log_folder: place
                    .log_folder
                    .clone()
                    .map(|folder| lua_runtime::LogFolder {
                        folder,
                        budget: Arc::clone(limits.logs()),
                    }),
            };
            Ok(lua_runtime::load(source, place.workers, &mut metrics)?)
        }
        Runtime::Wasm => {
            let module = source::module(entry)?;
            let log_dropped = LinkMetrics::define(&entry.name, &mut Definer).log_dropped;
            let background = PluginBackground::new(
                Arc::new(EnvoyBackground),
                &entry.name,
                Arc::clone(&limits),
                log_dropped,
            );
            let source = wasm_runtime::WasmSource {
                name: entry.name.clone(),
                file: entry.entry.clone(),
                module,
                memory_budget: entry.budgets.memory_mib as usize * 1024 * 1024,
                time_budget: Duration::from_millis(u64::from(entry.budgets.time_ms)),
                compiled_folder: place.compiled_folder.clone(),
                options: wasm_options(&entry.wasm),
                clock: wasm_runtime::Clock::default(),
                background: Some(Arc::new(background)),
                late_metrics: Some(Arc::new(LateDefiner {
                    plugin: entry.name.clone(),
                    limits: Arc::clone(&limits),
                })),
                share: entry.budgets.share,
                cpu_clock: lua_runtime::thread_clock(),
            };
            Ok(wasm_runtime::load(source, place.workers, &mut metrics)?)
        }
    }
}

fn wasm_options(options: &formats::WasmOptions) -> wasm_runtime::WasmOptions {
    wasm_runtime::WasmOptions {
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

fn mode(mode: formats::BodyMode) -> BodyMode {
    match mode {
        formats::BodyMode::Whole => BodyMode::Whole,
        formats::BodyMode::Stream => BodyMode::Stream,
    }
}

fn policy(policy: &formats::FailurePolicy) -> FailurePolicy {
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

/// Identity of the configurations that generations share: the loaded code, by its address, and the plugin's
/// configuration and schema.
type ConfiguredKey = (usize, String);

/// The configurations of all generations. Each owner of a value keeps the code of its key alive, so no other
/// code has its address.
static CONFIGURED: LazyLock<Mutex<BTreeMap<ConfiguredKey, Weak<Mutex<Configured>>>>> =
    LazyLock::new(Mutex::default);

/// Returns the configurations that generations with this code and this entry share.
///
/// A generation that changes nothing for a plugin calls none of its code: the main thread does not run a
/// guest again that may have become endless meanwhile, and such a plugin cannot have the change of another
/// tenant refused.
fn configured_of(code: &Arc<dyn Plugin>, entry: &PluginEntry) -> Arc<Mutex<Configured>> {
    let decisive = format!("{:?} {:?}", entry.config, entry.schema);
    let key = (Arc::as_ptr(code).addr(), decisive);
    // The map is valid whatever panicked while it was locked.
    let mut all = CONFIGURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    all.retain(|_, known| known.strong_count() > 0);
    let made = Arc::default();
    all.insert(key, Arc::downgrade(&made));
    made
}

/// Configurations in use, by what project and route say: most routes say the same.
#[derive(Debug, Default)]
struct Configured {
    known: BTreeMap<Option<Arc<str>>, Weak<dyn ConfiguredPlugin>>,
    /// How many were in use when those that are not were last forgotten.
    in_use: usize,
}

impl Configured {
    fn get(&self, route: Option<&Arc<str>>) -> Option<Arc<dyn ConfiguredPlugin>> {
        self.known.get(&route.cloned())?.upgrade()
    }

    fn in_use(&self) -> usize {
        let living = |known: &&Weak<dyn ConfiguredPlugin>| known.strong_count() > 0;
        self.known.values().filter(living).count()
    }

    fn add(&mut self, route: Option<Arc<str>>, made: &Arc<dyn ConfiguredPlugin>) {
        self.known.insert(route, Arc::downgrade(made));
        // Now and then only: 10,000 routes come one by one.
        if self.known.len() > 64 + 2 * self.in_use {
            self.known.retain(|_, old| old.strong_count() > 0);
            self.in_use = self.known.len();
        }
    }
}

/// A plugin of a generation.
#[derive(Debug)]
pub(crate) struct GenerationPlugin {
    pub(crate) entry: PluginEntry,
    key: CodeKey,
    name: Arc<str>,
    code: Arc<dyn Plugin>,
    schema: Option<jsonschema::Validator>,
    failure_policy: FailurePolicy,
    metrics: LinkMetrics,
    faults: FailureLogHandle,
    times: Option<Arc<CallTimes>>,
    base: Arc<str>,
    permissions: Arc<Permissions>,
    limits: Arc<PluginLimits>,
    configured: Arc<Mutex<Configured>>,
}

impl GenerationPlugin {
    pub(crate) fn new(
        entry: PluginEntry,
        key: CodeKey,
        code: Arc<dyn Plugin>,
        plugin_time: PluginTime,
        clusters: &CalloutClusters,
    ) -> Result<Self, Refusal> {
        let schema = entry
            .schema
            .as_ref()
            .map(jsonschema::validator_for)
            .transpose()
            .map_err(|error| {
                Refusal::new(format!(
                    "plugin {}: its configuration schema is not a JSON Schema: {error}",
                    entry.name
                ))
            })?;
        let base = entry
            .config
            .clone()
            .unwrap_or_else(|| Value::Object(Map::new()));
        Ok(Self {
            name: entry.name.as_str().into(),
            schema,
            failure_policy: policy(&entry.failure_policy),
            metrics: LinkMetrics::define(&entry.name, &mut Definer),
            faults: FailureLogHandle::new(FaultLog::new(last_faults::of(&entry.name))),
            times: match plugin_time {
                PluginTime::Off => None,
                PluginTime::Histograms => {
                    let times = CallTimes::define(&entry.name, code.interest(), &mut Definer);
                    Some(Arc::new(times))
                }
            },
            base: base.to_string().into(),
            configured: configured_of(&code, &entry),
            permissions: Arc::new(permissions(&entry.allow, clusters)),
            limits: limits::of(&entry.name),
            code,
            key,
            entry,
        })
    }

    /// What it uses, over all generations with the same code.
    pub(crate) fn status(&self) -> PluginStatus {
        self.code.status()
    }

    /// Its counters, which are those of all its versions.
    pub(crate) fn metrics(&self) -> &LinkMetrics {
        &self.metrics
    }

    /// Returns how many different configurations of it scopes use, over all generations that share them.
    pub(crate) fn configurations(&self) -> usize {
        // Only the main thread comes here, which also makes them.
        self.configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .in_use()
    }

    /// This plugin's place in the chain of a scope whose own patch is `patch`.
    pub(crate) fn link(
        &self,
        scope: &str,
        patch: Option<&Value>,
        place: Option<&ConfigPlace>,
    ) -> Result<Link, LoadError> {
        let plugin = self.configure(scope, patch, place)?;
        let circuit = circuits::of(&self.entry, &self.key, scope, patch);
        Ok(self.link_with(Some(plugin), self.code.interest(), circuit))
    }

    /// The place of this plugin when its configuration for a scope is refused.
    pub(crate) fn unavailable(&self) -> Link {
        let interest = Interest {
            request_headers: true,
            response_headers: true,
            ..Interest::default()
        };
        self.link_with(None, interest, circuits::none())
    }

    fn link_with(
        &self,
        plugin: Option<Arc<dyn ConfiguredPlugin>>,
        interest: Interest,
        circuit: Arc<Circuit>,
    ) -> Link {
        Link {
            name: Arc::clone(&self.name),
            plugin,
            interest,
            failure_policy: self.failure_policy,
            metrics: self.metrics,
            faults: Arc::clone(&self.faults),
            times: self.times.clone(),
            circuit,
            permissions: Arc::clone(&self.permissions),
            logs: Arc::clone(self.limits.logs()),
            memory: Arc::clone(self.limits.memory()),
        }
    }

    fn configure(
        &self,
        scope: &str,
        patch: Option<&Value>,
        place: Option<&ConfigPlace>,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError> {
        let route: Option<Arc<str>> = patch.map(|patch| patch.to_string().into());
        // The map is valid whatever panicked while it was locked. Only the main thread comes here.
        let mut configured = self
            .configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = configured.get(route.as_ref()) {
            known.also_for(place);
            return Ok(known);
        }
        let base = self
            .entry
            .config
            .clone()
            .unwrap_or_else(|| Value::Object(Map::new()));
        let effective = patch.map_or_else(|| base.clone(), |patch| merge(&base, patch));
        self.check_schema(scope, &effective)?;
        let config = ScopedConfig {
            scope: scope.to_owned(),
            base: self.entry.config.as_ref().map(|_| Arc::clone(&self.base)),
            route: route.clone(),
            effective: effective.to_string().into(),
            place: place.cloned(),
        };
        let mut metrics = PluginDefiner::new(&self.entry.name, &self.limits);
        let made = self.code.configure(&config, &mut metrics)?;
        configured.add(route, &made);
        Ok(made)
    }

    fn check_schema(&self, scope: &str, effective: &Value) -> Result<(), LoadError> {
        let Some(schema) = &self.schema else {
            return Ok(());
        };
        let problems: Vec<String> = schema
            .iter_errors(effective)
            .map(|error| {
                let place = error.instance_path().to_string();
                if place.is_empty() {
                    error.to_string()
                } else {
                    format!("{place}: {error}")
                }
            })
            .collect();
        if problems.is_empty() {
            return Ok(());
        }
        Err(LoadError {
            plugin: self.entry.name.clone(),
            message: format!(
                "its configuration at {scope} does not satisfy its config.schema.json: {}",
                problems.join("; ")
            ),
        })
    }
}

/// The place of a plugin that a route names and the gateway does not have: its streams fail closed.
pub(crate) fn missing(name: &str) -> Link {
    Link {
        name: name.into(),
        plugin: None,
        interest: Interest {
            request_headers: true,
            response_headers: true,
            ..Interest::default()
        },
        failure_policy: FailurePolicy::new(500, |_| FailureAction::Closed),
        metrics: LinkMetrics::define(name, &mut Definer),
        times: None,
        faults: FailureLogHandle::new(FaultLog::new(last_faults::of(name))),
        circuit: circuits::none(),
        permissions: Arc::default(),
        logs: Arc::default(),
        memory: Arc::default(),
    }
}
