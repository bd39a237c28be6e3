//! `plugins`: each is loaded, and what the file says overrides what its manifest says.

use std::collections::{BTreeMap, BTreeSet};

use outrider_plugin_formats::{
    All, Allow, AllowedNames, Cause, Distribution, FailureAction, FailurePolicy, PluginCode,
    PluginEntry, PluginLocation, PluginSource, Runtime, WasmOptions,
};
use outrider_yaml::{Field, Located, Location, Node, Shape};

use super::distribution::{self, Requested};
use super::files::Source;
use super::grants::{self, Request};
use super::schema_check::Checker;
use super::{Context, Origin, known_names};
use crate::model::{self, FailureForm, text};
use crate::plan::Limit;

/// The file with the digests of tags, beside the first file.
const LOCK: &str = "outrider.lock";

/// A plugin that is declared.
pub(super) struct Declared {
    pub(super) origin: Origin,
    /// Of its name.
    pub(super) location: Location,
    /// None where it could not be loaded; that has been told.
    pub(super) loaded: Option<Loaded>,
    /// The plugin's folder, as messages name it; empty where it is not known.
    pub(super) folder: String,
}

/// A plugin that was loaded.
pub(super) struct Loaded {
    /// Turned off and without configuration, until the scopes are known.
    pub(super) entry: PluginEntry,
    pub(super) checker: Option<Checker>,
    limits: Vec<Limit>,
}

pub(super) type Plugins = BTreeMap<String, Declared>;

pub(super) fn load(context: &mut Context<'_>, sources: &[Source]) -> Plugins {
    let mut plugins = Plugins::new();
    let distribution = distribution::read(context, sources);
    for source in sources {
        let origin = &source.origin;
        let Some(entries) = source.file.plugins.value() else {
            continue;
        };
        for (name, plugin) in &entries.0 {
            if let Err(complaint) = text::plugin_name(&name.value) {
                let (message, mend) = complaint.split_once("; ").unwrap_or((&complaint, ""));
                context.problem(origin, name.location, message, mend);
            }
            if let Some(first) = plugins.get(&name.value) {
                let message = format!(
                    "two plugins have the name `{}`, the other is at {}:{}",
                    name.value, first.origin.file, first.location.line
                );
                context.problem(
                    origin,
                    name.location,
                    message,
                    "give one of them another name",
                );
                continue;
            }
            let loaded = plugin
                .get()
                .and_then(|plugin| one(context, origin, name, &plugin.value, &distribution));
            let (loaded, folder) = loaded.map_or((None, String::new()), |(loaded, folder)| {
                (Some(loaded), folder)
            });
            plugins.insert(
                name.value.clone(),
                Declared {
                    origin: origin.clone(),
                    location: name.location,
                    loaded,
                    folder,
                },
            );
        }
    }
    plugins
}

/// The limits of each plugin that was loaded.
pub(super) fn limits(plugins: Plugins) -> BTreeMap<String, Vec<Limit>> {
    plugins
        .into_iter()
        .filter_map(|(name, declared)| Some((name, declared.loaded?.limits)))
        .collect()
}

fn one(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    plugin: &model::Plugin,
    distribution: &Distribution,
) -> Option<(Loaded, String)> {
    let what = format!("the plugin `{}`", name.value);
    let source = context.required(origin, name.location, &what, "source", &plugin.source)?;
    let request = distribution::request(context, origin, name, plugin, source)?;
    let path = match &request {
        Requested::Local(path) => path.clone(),
        Requested::Fetched(request) => request.source.clone(),
    };
    let opened = match &request {
        Requested::Local(path) => {
            context.files.push(path.clone());
            context.loader.plugin(path)
        }
        Requested::Fetched(request) => {
            if let PluginLocation::Archive(path) = &request.location {
                context.files.push(path.clone());
            }
            // `outrider plugin update` moves a tag by writing this file.
            if matches!(request.location, PluginLocation::Oci(_)) && request.digest.is_none() {
                let lock = Origin::new(&distribution.file).join(LOCK);
                context.files.push(lock);
            }
            let fetched = context.loader.fetch(request, distribution);
            fetched.map(|(package, warnings)| {
                for warning in warnings {
                    context.warn(origin, source.location, warning, "");
                }
                package
            })
        }
    };
    let is_local = matches!(request, Requested::Local(_));
    let package = match opened {
        Ok(package) => package,
        Err(problems) => {
            for mut problem in problems {
                if problem.file.is_empty() || (problem.file == path && problem.line == 0) {
                    // The source itself is at fault, and this file names it.
                    problem.file = origin.file.to_string();
                    problem.line = source.location.line;
                    problem.column = source.location.column;
                }
                context.problems.push(problem);
            }
            return None;
        }
    };
    let folder = package.folder.clone();
    let code = match package.code {
        PluginCode::Files(files) => {
            if is_local && package.folder != path {
                context.files.push(package.folder.clone());
            }
            PluginSource::Inline(files)
        }
        PluginCode::Module(module) if !is_local => {
            PluginSource::Module(context.loader.absolute(&module.file))
        }
        PluginCode::Module(module) => {
            // The folder may hold a whole build, which decides nothing.
            context.files.retain(|file| *file != path);
            if package.folder == path {
                let inside = ["plugin.yaml", "config.schema.json"];
                let inside = inside.map(|name| format!("{path}/{name}"));
                context.files.extend(inside);
            }
            let absolute = context.loader.absolute(&module.file);
            context.files.push(module.file);
            PluginSource::Module(absolute)
        }
    };
    let checker = match package.schema.as_ref().map(Checker::new) {
        None => None,
        Some(Ok(checker)) => Some(checker),
        Some(Err(why)) => {
            context.problem(
                origin,
                source.location,
                format!("the `config.schema.json` of {what} is no JSON Schema: {why}"),
                "mend it in the plugin's folder",
            );
            return None;
        }
    };
    let manifest = package.manifest;
    let granted = grants::grant(&Request {
        name: &name.value,
        origin,
        declared: plugin,
        manifest: &manifest,
        places: &package.places,
    });
    context.warnings.extend(granted.warnings);
    let wasm = wasm(context, origin, &what, manifest.runtime, &plugin.wasm)
        .over(manifest.wasm.unwrap_or_default());
    let loaded = Loaded {
        entry: PluginEntry {
            name: name.value.clone(),
            runtime: manifest.runtime,
            version: manifest.version,
            digest: package.digest,
            source: code,
            entry: manifest.entry.unwrap_or_else(|| "main.lua".to_owned()),
            group: plugin.group.value().copied().unwrap_or(manifest.group),
            priority: plugin
                .priority
                .value()
                .copied()
                .unwrap_or(manifest.priority),
            body: manifest.body,
            failure_policy: failure_policy(&plugin.failure_policy)
                .or(manifest.failure_policy)
                .unwrap_or_default(),
            budgets: granted.budgets,
            wasm,
            circuit: granted.circuit,
            allow: allow(&plugin.allow),
            log_rate: plugin.log_rate.value().map(|rate| rate.0),
            schema: package.schema,
            enabled: false,
            config: None,
        },
        checker,
        limits: granted.limits,
    };
    Some((loaded, folder))
}

/// The permissions of a plugin. Whether there is such an upstream is checked when all are known.
fn allow(field: &Field<Shape<All, model::AllowForm>>) -> Allow {
    let form = match field.value() {
        None => return Allow::default(),
        Some(Shape::Text(All::All)) => return Allow::all(),
        Some(Shape::Mapping(form)) => form,
    };
    let names = |field: &Field<model::AllowedNames>| match field.value() {
        None => AllowedNames::default(),
        Some(model::AllowedNames::Text(all)) => AllowedNames::All(*all),
        Some(model::AllowedNames::List(list)) => {
            let names = list.iter().filter_map(Field::value);
            AllowedNames::Listed(names.map(|name| name.0.clone()).collect())
        }
    };
    let flag = |field: &Field<bool>| field.value().copied().unwrap_or(false);
    Allow {
        upstreams: names(&form.upstreams),
        leave_project: flag(&form.leave_project),
        override_host: flag(&form.override_host),
        metadata: names(&form.metadata),
        router_headers: flag(&form.router_headers),
        typed_filter_state: names(&form.typed_filter_state),
    }
}

/// Checks that the upstreams in `allow` are declared.
pub(super) fn check_allowed(
    context: &mut Context<'_>,
    sources: &[Source],
    upstreams: &BTreeSet<String>,
) {
    for source in sources {
        let plugins = source
            .file
            .plugins
            .value()
            .into_iter()
            .flat_map(|all| &all.0);
        for (_, plugin) in plugins {
            let Some(Shape::Mapping(form)) = plugin.value().and_then(|plugin| plugin.allow.value())
            else {
                continue;
            };
            let Some(model::AllowedNames::List(names)) = form.upstreams.value() else {
                continue;
            };
            for name in names.iter().filter_map(Field::get) {
                if !upstreams.contains(&name.value.0) {
                    let known = upstreams.iter().map(String::as_str);
                    context.problem(
                        &source.origin,
                        name.location,
                        format!("there is no upstream `{}`", name.value.0),
                        known_names(&name.value.0, known, "upstreams"),
                    );
                }
            }
        }
    }
}

fn failure_policy(field: &Field<Shape<FailureAction, FailureForm>>) -> Option<FailurePolicy> {
    Some(match field.value()? {
        Shape::Text(word) => FailurePolicy {
            default: *word,
            ..FailurePolicy::default()
        },
        Shape::Mapping(form) => {
            let unwritten = FailurePolicy::default();
            let causes = form.causes.value().map(|causes| {
                [
                    (Cause::Error, &causes.error),
                    (Cause::Time, &causes.time),
                    (Cause::Memory, &causes.memory),
                    (Cause::Unavailable, &causes.unavailable),
                    (Cause::Circuit, &causes.circuit),
                    (Cause::Share, &causes.share),
                ]
                .into_iter()
                .filter_map(|(cause, action)| Some((cause, *action.value()?)))
                .collect()
            });
            FailurePolicy {
                default: form.default.value().copied().unwrap_or(unwritten.default),
                status: form
                    .status
                    .value()
                    .and_then(|status| u16::try_from(status.0).ok())
                    .unwrap_or(unwritten.status),
                causes: causes.unwrap_or_default(),
            }
        }
    })
}

/// What a plugin's `wasm` says.
#[derive(Debug, Default)]
struct WasmWritten<'f>(Option<&'f model::WasmForm>);

/// Reads a plugin's `wasm`, and tells what of it cannot be.
fn wasm<'f>(
    context: &mut Context<'_>,
    origin: &Origin,
    what: &str,
    runtime: Runtime,
    field: &'f Field<model::WasmForm>,
) -> WasmWritten<'f> {
    let Some(form) = field.get() else {
        return WasmWritten::default();
    };
    if runtime != Runtime::Wasm {
        context.problem(
            origin,
            form.location,
            format!("{what} has `wasm`, and its runtime is another"),
            "remove it",
        );
    }
    for (name, value) in form
        .value
        .environment
        .value()
        .into_iter()
        .flat_map(|all| &all.0)
    {
        let value = value.value().map_or("", String::as_str);
        if name.value.is_empty() || name.value.contains(['=', '\0']) || value.contains('\0') {
            context.problem(
                origin,
                name.location,
                format!("`{}` cannot be an environment variable", name.value),
                "use a name without `=`, and no zero bytes",
            );
        }
    }
    WasmWritten(Some(&form.value))
}

impl WasmWritten<'_> {
    /// `otherwise` with what is written in its place.
    fn over(self, otherwise: WasmOptions) -> WasmOptions {
        // A manifest, which the plugin's author writes, does not join the plugin to others.
        let otherwise = WasmOptions {
            shared: String::new(),
            ..otherwise
        };
        let Some(form) = self.0 else {
            return otherwise;
        };
        let written = |field: &Field<bool>, otherwise| field.value().copied().unwrap_or(otherwise);
        let text = |field: &Field<String>, otherwise| field.value().cloned().unwrap_or(otherwise);
        let mut environment = otherwise.environment;
        let entries = form.environment.value().into_iter().flat_map(|all| &all.0);
        environment.extend(
            entries.filter_map(|(name, value)| Some((name.value.clone(), value.value()?.clone()))),
        );
        WasmOptions {
            results: form.results.value().copied().unwrap_or(otherwise.results),
            allow_on_headers_stop_iteration: written(
                &form.allow_on_headers_stop_iteration,
                otherwise.allow_on_headers_stop_iteration,
            ),
            environment,
            vm_id: text(&form.vm_id, otherwise.vm_id),
            shared: text(&form.shared, otherwise.shared),
            root_id: text(&form.root_id, otherwise.root_id),
            vm_configuration: match form.vm_configuration.value() {
                Some(written) => Some(Node::to_json(written)),
                None => otherwise.vm_configuration,
            },
            trace: written(&form.trace, otherwise.trace),
            jump_threading: written(&form.jump_threading, otherwise.jump_threading),
        }
    }
}
