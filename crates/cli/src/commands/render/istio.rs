//! `outrider render istio`: lanes and plugins as resources of an Istio mesh.

mod apply;
mod diff;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use outrider_cluster::Cluster;
use outrider_gateway::plan::mesh::MeshPlan;
use outrider_mesh::{Api, RenderError, Resource, render, to_yaml};
use outrider_plugin_formats::{PluginSource, Problem};

use crate::exit::{self, Exit};
use crate::fetching::FetchArguments;
use crate::loader::compile_mesh_file;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider render istio mesh.yaml
  outrider render istio mesh.yaml | kubectl apply --server-side -f -
  outrider render istio mesh.yaml --api gateway > mesh/outrider.yaml
  outrider render istio mesh.yaml --diff cluster
  outrider render istio mesh.yaml --apply
  outrider render istio mesh.yaml --delete

The resources are in an order in which they can be applied one after the other. A filter whose module is \
not in the proxy answers every request with 500: see docs/istio.md.";

/// What `--diff` compares with beside folders.
const CLUSTER: &str = "cluster";

/// Print the resources of an Istio mesh for lanes and plugins
#[derive(Debug, Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// The file with `mesh`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What routes requests to versions
    #[arg(long, value_enum, default_value_t = RouteApi::Istio)]
    api: RouteApi,
    /// Print how the resources differ from those in a folder's YAML files, or in the cluster; exit code 1 if they do
    #[arg(long, value_name = "FOLDER|cluster", conflicts_with = "apply")]
    diff: Option<String>,
    /// Apply the resources to the cluster: server-side, as the field manager `outrider`, all of them tried first
    #[arg(long)]
    apply: bool,
    /// Remove the resources from the cluster, the last first; of Deployments, what was applied to them
    #[arg(long, conflicts_with_all = ["apply", "diff"])]
    delete: bool,
    /// Take over fields that another manager has set
    #[arg(long, requires = "apply")]
    force_conflicts: bool,
    /// Remove what an earlier run made in the same namespaces and the file does not have any more
    #[arg(long, requires = "apply")]
    prune: bool,
    /// The cluster. Default: $KUBECONFIG, ~/.kube/config, or the one that this runs in
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    fetch: FetchArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RouteApi {
    /// VirtualService and DestinationRule
    Istio,
    /// HTTPRoute of Gateway API, over a Service for each version
    Gateway,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    arguments.fetch.apply();
    let compiled = compile_mesh_file(&arguments.file);
    let Some(plan) = compiled.plan else {
        output::problems(&compiled.problems);
        return Ok(Exit::Problems);
    };
    output::warnings(&compiled.warnings);
    let resources = match rendered(&plan, arguments.api)? {
        Ok(resources) => resources,
        Err(error) => {
            output::problems(&[Problem {
                file: arguments.file.display().to_string(),
                line: 0,
                column: 0,
                message: error.to_string(),
                mend: None,
            }]);
            return Ok(Exit::Problems);
        }
    };
    match &arguments.diff {
        None if !arguments.apply && !arguments.delete => {
            output::raw(to_yaml(&resources).as_bytes());
            Ok(Exit::Good)
        }
        Some(folder) if folder != CLUSTER => diff::with_folder(&resources, Path::new(folder)),
        _ => in_cluster(arguments, &resources),
    }
}

fn in_cluster(arguments: &Arguments, resources: &[Resource]) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let kubeconfig = arguments.kubeconfig.as_deref();
        let mut cluster = Cluster::connect(kubeconfig, arguments.context.as_deref()).await?;
        if arguments.apply {
            apply::run(
                &mut cluster,
                resources,
                arguments.force_conflicts,
                arguments.prune,
            )
            .await
        } else if arguments.delete {
            apply::undo(&mut cluster, resources).await
        } else {
            diff::with_cluster(&mut cluster, resources).await
        }
    })
}

fn rendered(plan: &MeshPlan, api: RouteApi) -> anyhow::Result<Result<Vec<Resource>, RenderError>> {
    let api = match api {
        RouteApi::Istio => Api::Istio,
        RouteApi::Gateway => Api::Gateway,
    };
    Ok(render(plan, api, &modules(plan)?))
}

/// The bytes of each Wasm module, by its path.
fn modules(plan: &MeshPlan) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut modules = BTreeMap::new();
    for plugin in plan.plugins.iter().flat_map(|entry| &entry.filter.plugins) {
        if let PluginSource::Module(path) = &plugin.source {
            let bytes =
                fs::read(path).with_context(|| format!("the module {path} cannot be read"))?;
            modules.insert(path.clone(), bytes);
        }
    }
    Ok(modules)
}
