//! A route's configuration, and its chains: one for each generation that lives.
//!
//! Routes come through RDS and generations through ECDS, in any order. A chain is made as soon as
//! both are there, on the main thread; streams only look it up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use outrider_plugin_api::{Chain, Link};
use outrider_plugin_formats::RouteConfig;
use outrider_telemetry::worker::StreamLogs;

use crate::document::Refusal;
use crate::generation::{Core, attachment};

/// Whether there has ever been a route's configuration in this process.
static ANY: AtomicBool = AtomicBool::new(false);

/// What routes are called whose configuration does not name them.
const UNNAMED: &str = "a route";

/// Whether this is the name of one scope.
pub(crate) fn is_named(scope: &str) -> bool {
    scope != UNNAMED
}

/// Whether a route may have a configuration of its own.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// A route's, or virtual host's, configuration.
#[derive(Debug)]
pub(crate) struct Route {
    document: RouteConfig,
    /// Chains by the generations they were made for, the newest last.
    chains: RwLock<Vec<(u64, Arc<Chain>)>>,
}

/// What came of resolving a route in a generation.
#[derive(Debug)]
pub(crate) enum Resolved {
    /// It has a chain of that generation.
    New,
    /// Its configuration is refused there; it keeps the chain that it had.
    KeepsOld(Vec<Refusal>),
    /// Its configuration is refused there, and it had no chain: the plugins concerned fail by their
    /// policies.
    Broken(Vec<Refusal>),
}

impl Route {
    pub(crate) fn new(document: RouteConfig) -> Self {
        // Before any worker hears of this route.
        ANY.store(true, Ordering::Release);
        Self {
            document,
            chains: RwLock::default(),
        }
    }

    /// Where it holds, for messages.
    pub(crate) fn scope(&self) -> &str {
        if self.document.scope.is_empty() {
            UNNAMED
        } else {
            &self.document.scope
        }
    }

    /// The project of the scope, as the renderer writes it: `project shop, route /cart`.
    fn project(&self) -> &str {
        let scope = self.scope();
        scope
            .split_once(", route ")
            .map_or(scope, |(project, _)| project)
    }

    fn chain_of(&self, links: Vec<Link>, logs: Option<Arc<StreamLogs>>) -> Arc<Chain> {
        let chain = Chain::new(links).of_project(self.project());
        Arc::new(chain.with_attachment(attachment(logs)))
    }

    /// The access logs in a generation; the gateway's, where the route's are refused.
    fn logs(&self, core: &Core) -> (Option<Arc<StreamLogs>>, Vec<Refusal>) {
        let own = self.document.telemetry.as_ref();
        let own = own.map(|telemetry| telemetry.access_logs.as_slice());
        match core.telemetry().of_route(self.scope(), own) {
            Ok(logs) => (logs, Vec::new()),
            Err(refusals) => (core.telemetry().gateway(), refusals),
        }
    }

    fn links(&self, core: &Core) -> (Vec<Link>, Vec<Refusal>) {
        let RouteConfig { plugins, lanes, .. } = &self.document;
        core.links(self.scope(), plugins, lanes)
    }

    /// Makes the route's chain in a generation.
    pub(crate) fn resolve(&self, core: &Core) -> Resolved {
        let (links, mut refusals) = self.links(core);
        let (logs, wrong) = self.logs(core);
        refusals.extend(wrong);
        // A vector of chains is valid whatever panicked while it was locked.
        let mut chains = self.chains.write().unwrap_or_else(PoisonError::into_inner);
        if refusals.is_empty() {
            chains.push((core.id, self.chain_of(links, logs)));
            return Resolved::New;
        }
        if let Some(newest) = chains.last().map(|(_, newest)| Arc::clone(newest)) {
            chains.push((core.id, newest));
            Resolved::KeepsOld(refusals)
        } else {
            chains.push((core.id, self.chain_of(links, logs)));
            Resolved::Broken(refusals)
        }
    }

    /// Forgets the chains of generations that are gone.
    pub(crate) fn prune(&self, lives: impl Fn(u64) -> bool) {
        self.chains
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(generation, _)| lives(*generation));
    }

    /// The chain in a generation.
    pub(crate) fn chain(&self, core: &Core) -> Arc<Chain> {
        let chains = self.chains.read().unwrap_or_else(PoisonError::into_inner);
        let exact = chains
            .iter()
            .rev()
            .find(|(generation, _)| *generation == core.id);
        if let Some((_, chain)) = exact.or(chains.last()) {
            return Arc::clone(chain);
        }
        // Cannot happen while every route is resolved in every generation that lives; if it does, the
        // stream still gets the right chain, at a cost.
        drop(chains);
        self.chain_of(self.links(core).0, self.logs(core).0)
    }
}
