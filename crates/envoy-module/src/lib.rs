//! The module that Envoy loads (`liboutrider.so`): reads the filter's and the routes' configuration,
//! builds generations of chains from them, and wires the runtimes.
//!
//! All talk with Envoy is `envoy-abi`'s; what a stream does in its chain is `plugin-api`'s.

mod admin;
mod circuits;
mod document;
mod generation;
mod hops;
mod lanes;
mod last_faults;
mod limits;
mod merge;
mod metrics;
mod plugin;
mod registry;
mod route;
mod source;
mod telemetry;

use std::sync::{Arc, LazyLock};

use outrider_envoy_abi::{AdminPages, ConfigContext, FilterConfig, Module, RouteConfig, log};
use outrider_plugin_api::LogLevel;
use outrider_telemetry::worker::StreamLogs;

use crate::document::Refusal;
use crate::registry::Registry;

/// Outrider, as Envoy's hooks see it.
struct Outrider {
    registry: LazyLock<Registry>,
}

static OUTRIDER: Outrider = Outrider {
    registry: LazyLock::new(Registry::default),
};

outrider_envoy_abi::module!(OUTRIDER);

impl Module for Outrider {
    fn filter_config(
        &self,
        context: &ConfigContext<'_>,
        name: &str,
        config: &[u8],
    ) -> Option<Arc<dyn FilterConfig>> {
        match self.registry.filter_config(context, name, config) {
            Ok(made) => Some(made),
            Err(refusals) => {
                refused("the plugins' configuration", name, &refusals);
                None
            }
        }
    }

    fn route_config(&self, name: &str, config: &[u8]) -> Option<RouteConfig> {
        match self.registry.route_config(name, config) {
            Ok(route) => Some(route),
            Err(refusals) => {
                refused("a route's configuration", name, &refusals);
                None
            }
        }
    }

    fn background(&self, worker: usize, plugin: usize) -> bool {
        self.registry.background(worker, plugin)
    }

    fn unrouted_logs(&self) -> Option<Arc<StreamLogs>> {
        telemetry::unrouted()
    }

    fn admin(&self) -> &dyn AdminPages {
        self
    }
}

/// Says why Envoy is about to refuse an update: its own message names no reason.
fn refused(what: &str, filter: &str, refusals: &[Refusal]) {
    for refusal in refusals {
        log(
            LogLevel::Error,
            &format!("filter {filter}: {what} is refused: {refusal}"),
        );
    }
}

#[cfg(test)]
mod tests;
