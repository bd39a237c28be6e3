//! `outrider render istio`: lanes and plugins as resources of an Istio mesh.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use outrider_gateway::plan::mesh::MeshPlan;
use outrider_mesh::{Api, RenderError, Resource, render, to_yaml};
use outrider_plugin_formats::{PluginSource, Problem};

use crate::exit::{self, Exit};
use crate::loader::compile_mesh_file;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider render istio mesh.yaml
  outrider render istio mesh.yaml | kubectl apply --server-side -f -
  outrider render istio mesh.yaml --api gateway > mesh/outrider.yaml
  outrider render istio mesh.yaml | kubectl delete -f -

The resources are in an order in which they can be applied one after the other. A filter whose module is \
not in the proxy answers every request with 500: see docs/istio.md.";

/// Print the resources of an Istio mesh for lanes and plugins
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// The file with `mesh`
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What routes requests to versions
    #[arg(long, value_enum, default_value_t = RouteApi::Istio)]
    api: RouteApi,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RouteApi {
    /// VirtualService and DestinationRule
    Istio,
    /// HTTPRoute of Gateway API, over a Service for each version
    Gateway,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
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
    output::raw(to_yaml(&resources).as_bytes());
    Ok(Exit::Good)
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
