//! From `outrider.yaml` to a plan, or to everything that is wrong with it.
//!
//! Reading never stops at a fault: each part is checked as far as it could be read, so that one run
//! tells all problems. A plan comes out only when there is none.
//!
//! The trap: what a fault hides must not become a second complaint. A name counts as declared even if
//! what it names is wrong.

mod access_log;
mod conditions;
mod distribution;
mod files;
mod gateway;
mod grants;
mod lanes;
mod mesh;
mod metadata;
mod mistakes;
mod plugins;
mod projects;
mod routes;
mod schema_check;
mod scopes;
mod scripts;
mod shadow;
mod telemetry;
mod tls;
mod upstreams;

pub use access_log::operators as access_log_operators;
pub use files::searched_folder;
pub(crate) use routes::LONGEST_BODY;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use outrider_plugin_formats::{Distribution, PluginEntry, PluginPackage, PluginRequest, Problem};
use outrider_yaml::{Field, Located, Location};

use crate::plan::Plan;
use crate::plan::mesh::MeshPlan;

/// How the compiler reaches what is outside of it.
pub trait Loader {
    /// Text of a file; the error is one sentence.
    fn read(&self, path: &str) -> Result<String, String>;

    /// Paths that match an `include` pattern, sorted; the error is one sentence.
    fn matching(&self, pattern: &str) -> Result<Vec<String>, String>;

    /// The plugin at `source`: a folder, or a single file.
    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>>;

    /// The plugin of a source beyond folders and single files, and warnings about it. Problems with an empty `file` are
    /// placed where the source is written.
    fn fetch(
        &self,
        request: &PluginRequest,
        _distribution: &Distribution,
    ) -> Result<(PluginPackage, Vec<String>), Vec<Problem>> {
        Err(vec![Problem {
            file: String::new(),
            line: 0,
            column: 0,
            message: format!("`{}` cannot be fetched here", request.source),
            mend: None,
        }])
    }

    /// Whether there is a folder.
    fn is_folder(&self, path: &str) -> bool;

    /// Absolute form of a path, for Envoy's configuration (certificates, access logs).
    fn absolute(&self, path: &str) -> String;

    /// Whether the name of a host leads to an address, where that is asked for; the error says why not.
    fn resolves(&self, _host: &str) -> Result<(), String> {
        Ok(())
    }

    /// The time by which certificates are judged.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Checks a plugin's code together with one effective configuration by really loading it, its
    /// `on_configure` included. Called once for each different pair. Problems with an empty `file` are
    /// placed where the configuration is written.
    fn try_plugin(
        &self,
        _entry: &PluginEntry,
        _config: &serde_json::Value,
    ) -> Result<(), Vec<Problem>> {
        Ok(())
    }
}

/// What came of compiling.
#[derive(Debug, Clone, PartialEq)]
pub struct Compiled {
    /// The plan, when there is no problem.
    pub plan: Option<Plan>,
    /// All problems, by file, line and column.
    pub problems: Vec<Problem>,
    /// Warnings by file, line and column: probable mistakes with which the gateway serves all the same.
    pub warnings: Vec<Problem>,
    /// Every path whose change can change the outcome: files that were read, folders of plugins and of
    /// `include` patterns, files that are missing. Sorted.
    pub files: Vec<String>,
}

/// Compiles the file at `path`, with everything that it includes.
pub fn compile(path: &str, loader: &dyn Loader) -> Compiled {
    let mut context = Context::new(loader);
    let sources = files::read_all(&mut context, path, files::Purpose::Gateway);
    let gateway = gateway::build(&mut context, &sources);
    let upstreams = upstreams::build(&mut context, &sources);
    let plugins = plugins::load(&mut context, &sources);
    plugins::check_allowed(&mut context, &sources, &upstreams.names);
    let lanes = lanes::build(&mut context, &sources, &upstreams.names);
    let projects = projects::build(
        &mut context,
        &sources,
        &upstreams,
        &lanes,
        gateway.telemetry.as_ref(),
    );
    tls::warn_of_missing_names(&mut context, &projects);
    let unused = mistakes::unused(&sources, &gateway, &plugins, &projects, &upstreams);
    let scoped = scopes::build(&mut context, gateway, &plugins, projects, &upstreams.names);
    let lane_groups = lanes::used(
        lanes,
        scoped.as_ref().map(|(_, _, projects)| projects.as_slice()),
    );

    let Context {
        mut problems,
        mut warnings,
        mut files,
        ..
    } = context;
    problems.sort();
    problems.dedup();
    // What a fault hides must not become a second complaint.
    if problems.is_empty() {
        warnings.extend(unused);
    }
    files.sort();
    files.dedup();
    let plan = match scoped {
        Some((gateway, mut filter, projects)) if problems.is_empty() => Some(Plan {
            listeners: gateway.listeners,
            admin: gateway.admin,
            access_log: gateway.access_log,
            body_limit: gateway.body_limit,
            trusted_hops: gateway.trusted_hops,
            trusted_proxies: gateway.trusted_proxies,
            timeouts: gateway.timeouts,
            client_limits: gateway.limits,
            workers: gateway.workers,
            filter: {
                filter.lane_groups = lane_groups;
                filter.callout_clusters = upstreams::callout_clusters(&filter, &upstreams.built);
                warnings.extend(scripts::warnings(&filter, &plugins, &upstreams.names));
                filter
            },
            limits: plugins::limits(plugins),
            uses: gateway.uses,
            projects,
            upstreams: upstreams.built,
        }),
        _ => None,
    };
    warnings.sort();
    warnings.dedup();
    Compiled {
        plan,
        problems,
        warnings,
        files,
    }
}

/// What came of compiling a mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct CompiledMesh {
    /// The plan, when there is no problem.
    pub plan: Option<MeshPlan>,
    /// All problems, by file, line and column.
    pub problems: Vec<Problem>,
    /// Warnings by file, line and column.
    pub warnings: Vec<Problem>,
}

/// Compiles the `mesh` of the file at `path`, with everything that it includes.
pub fn compile_mesh(path: &str, loader: &dyn Loader) -> CompiledMesh {
    let mut context = Context::new(loader);
    let sources = files::read_all(&mut context, path, files::Purpose::Mesh);
    let upstreams = mesh::upstreams(&mut context, &sources);
    let plugins = plugins::load(&mut context, &sources);
    plugins::check_allowed(&mut context, &sources, &upstreams.names);
    let lanes = lanes::build(&mut context, &sources, &upstreams.names);
    let plan = mesh::build(&mut context, &sources, &upstreams, &lanes, &plugins);
    let Context {
        mut problems,
        mut warnings,
        ..
    } = context;
    problems.sort();
    problems.dedup();
    warnings.sort();
    warnings.dedup();
    CompiledMesh {
        plan: plan.filter(|_| problems.is_empty()),
        problems,
        warnings,
    }
}

/// What all parts of the compiler share.
struct Context<'a> {
    loader: &'a dyn Loader,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    files: Vec<String>,
    /// What each TLS listener has certificates for.
    served: Vec<tls::Served>,
    /// `http`, `https`: those that listeners serve.
    schemes: BTreeSet<&'static str>,
}

/// One of the files, for problems and relative paths.
#[derive(Debug, Clone)]
struct Origin {
    file: Arc<str>,
}

impl<'a> Context<'a> {
    fn new(loader: &'a dyn Loader) -> Self {
        Self {
            loader,
            problems: Vec::new(),
            warnings: Vec::new(),
            files: Vec::new(),
            served: Vec::new(),
            schemes: BTreeSet::new(),
        }
    }

    fn problem(
        &mut self,
        origin: &Origin,
        location: Location,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) {
        let problem = placed(origin, location, message.into(), mend.into());
        self.problems.push(problem);
    }

    /// As [`Self::problem`], of something with which the gateway serves all the same.
    fn warn(
        &mut self,
        origin: &Origin,
        location: Location,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) {
        let problem = placed(origin, location, message.into(), mend.into());
        self.warnings.push(problem);
    }

    /// The value of a key that has to be there; tells when it is not.
    fn required<'f, T>(
        &mut self,
        origin: &Origin,
        owner: Location,
        what: &str,
        key: &str,
        field: &'f Field<T>,
    ) -> Option<&'f Located<T>> {
        if field.is_missing() {
            self.problem(
                origin,
                owner,
                format!("{what} has no `{key}`"),
                format!("add `{key}:`"),
            );
        }
        field.get()
    }
}

fn placed(origin: &Origin, location: Location, message: String, mend: String) -> Problem {
    Problem {
        file: origin.file.to_string(),
        line: location.line,
        column: location.column,
        message,
        mend: (!mend.is_empty()).then_some(mend),
    }
}

impl Origin {
    fn new(file: &str) -> Self {
        Self { file: file.into() }
    }

    /// `path`, which this file names, as the user would name it.
    fn join(&self, path: &str) -> String {
        if path.starts_with('/') {
            return path.to_owned();
        }
        let mut folder = self.file.rsplit_once('/').map(|(folder, _)| folder);
        let mut path = path;
        loop {
            if let Some(rest) = path.strip_prefix("./") {
                path = rest;
                continue;
            }
            // `more/../plugins` reads better as `plugins`.
            match (folder, path.strip_prefix("../")) {
                (Some(inner), Some(rest))
                    if !matches!(inner, "" | "." | "..") && !inner.ends_with("/..") =>
                {
                    folder = inner.rsplit_once('/').map(|(outer, _)| outer);
                    path = rest;
                }
                _ => break,
            }
        }
        match folder {
            Some(folder) => format!("{folder}/{path}"),
            None => path.to_owned(),
        }
    }
}

/// How many names a problem lists at most.
const SHOWN: usize = 8;

/// "did you mean" for a name that is not declared, or all that are.
fn known_names<'n>(
    word: &str,
    names: impl Iterator<Item = &'n str> + Clone,
    declare: &str,
) -> String {
    if let Some(near) = outrider_yaml::suggest(word, names.clone()) {
        return format!("did you mean `{near}`?");
    }
    let mut listed: Vec<String> = names
        .clone()
        .take(SHOWN)
        .map(|name| format!("`{name}`"))
        .collect();
    if names.count() > SHOWN {
        listed.push("...".to_owned());
    }
    if listed.is_empty() {
        format!("declare it under `{declare}`")
    } else {
        format!(
            "declare it under `{declare}`, or use one of {}",
            listed.join(", ")
        )
    }
}
