//! The renderer of a mesh's plan to resources of Istio, Gateway API and Kubernetes.
//!
//! A function: the same plan gives the same resources in the same order. The order is one in which they can be applied one
//! after the other: what brings the module comes before the filters that need it, and subsets come before the routes
//! that name them. The opposite order removes them.
//!
//! | file | resources |
//! |---|---|
//! | `module` | Deployment (parts), ConfigMap: how module and plugins get to proxies |
//! | `filter` | EnvoyFilter |
//! | `routes` | DestinationRule, VirtualService |
//! | `gateway_api` | Service for each version, HTTPRoute |

mod filter;
mod gateway_api;
mod module;
mod resource;
mod routes;

use std::collections::BTreeMap;

use outrider_gateway::plan::mesh::MeshPlan;

pub use module::MOST_CONFIG_MAP_BYTES;
pub use resource::{MANAGED_BY, Resource, to_yaml};

/// Resources by which requests are routed to the versions of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// VirtualService and DestinationRule.
    Istio,
    /// HTTPRoute of Gateway API, over a Service for each version.
    Gateway,
}

/// Reason why a plan cannot be rendered.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Modules of Wasm plugins do not fit into a ConfigMap.
    #[error(
        "the Wasm modules of the plugins in the namespace `{namespace}` have {bytes} bytes, and a ConfigMap holds {MOST_CONFIG_MAP_BYTES}; \
         put them into the proxies' image, or the module's, as `<plugin>.wasm`, and name the folder: `mesh.module.wasm_folder`"
    )]
    TooLarge {
        /// Namespace of the ConfigMap.
        namespace: String,
        /// Length of all modules.
        bytes: usize,
    },
    /// A module was not handed over.
    #[error("the Wasm module of the plugin `{0}` was not read")]
    NoModule(String),
}

/// The resources of a mesh. `modules` has the bytes of each Wasm module that the plan names, by its path there.
///
/// # Errors
/// See [`RenderError`].
pub fn render(
    plan: &MeshPlan,
    api: Api,
    modules: &BTreeMap<String, Vec<u8>>,
) -> Result<Vec<Resource>, RenderError> {
    let mut resources = module::resources(plan, modules)?;
    for lanes in &plan.lanes {
        resources.extend(match api {
            Api::Istio => routes::subsets(plan, lanes),
            Api::Gateway => gateway_api::services(plan, lanes),
        });
        resources.extend(filter::of_lanes(lanes));
    }
    for plugins in &plan.plugins {
        resources.push(filter::of_plugins(plan, plugins));
    }
    for lanes in &plan.lanes {
        resources.extend(match api {
            Api::Istio => routes::routes(plan, lanes),
            Api::Gateway => gateway_api::routes(plan, lanes),
        });
    }
    Ok(resources)
}
