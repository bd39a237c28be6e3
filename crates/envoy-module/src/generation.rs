//! A generation: the plugins of one filter configuration, loaded, with the gateway's chain. Immutable
//! once made, but for the configurations that routes add.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use outrider_envoy_abi::{FilterConfig, MetricTable, RouteConfig};
use outrider_plugin_api::{Attachment, CalloutClusters, Chain, ConfigPlace, Link, Plugin};
use outrider_plugin_formats::{
    self as formats, Group, LaneUse, PluginEntry, PluginTime, RoutePlugin,
};
use outrider_telemetry::worker::StreamLogs;
use outrider_vm_pool::drop_later;
use serde_json::Value;

use crate::document::Refusal;
use crate::lanes::Lanes;
use crate::limits;
use crate::metrics::Table;
use crate::plugin::{self, CodeKey, GenerationPlugin, Place};
use crate::registry::Filter;
use crate::route::{self, Route};
use crate::telemetry::Telemetry;

/// The part of a generation that filter configurations with the same document share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: u64,
    pub(crate) since: SystemTime,
    pub(crate) plugin_time: PluginTime,
    /// The filter's name.
    name: Box<str>,
    /// Hears of this core's end.
    filter: Weak<Filter>,
    plugins: BTreeMap<String, GenerationPlugin>,
    lanes: Lanes,
    telemetry: Telemetry,
    base: Arc<Chain>,
    body_limit: Option<u32>,
}

/// Loaded code by what decides it.
pub(crate) type Code = BTreeMap<CodeKey, Arc<dyn Plugin>>;

impl Core {
    /// Loads everything; all that is wrong is told at once. Code that `known` holds is not loaded
    /// again; what is loaded is added to it.
    pub(crate) fn load(
        id: u64,
        name: &str,
        filter: Weak<Filter>,
        document: formats::FilterConfig,
        workers: usize,
        known: &mut Code,
    ) -> Result<Self, Vec<Refusal>> {
        let mut plugins = BTreeMap::new();
        let mut refusals = Vec::new();
        let body_limit = document.body_limit;
        let plugin_time = document.plugin_time;
        let place = Place {
            workers,
            log_folder: document.log_folder.map(Into::into),
            compiled_folder: document.compiled_folder.map(Into::into),
        };
        let clusters: CalloutClusters = Arc::new(
            document
                .callout_clusters
                .into_iter()
                .map(|(upstream, cluster)| (upstream.into(), cluster.into()))
                .collect(),
        );
        for entry in document.plugins {
            let name = entry.name.clone();
            limits::set(&entry, &clusters);
            match load(entry, &place, plugin_time, &clusters, known) {
                Ok(plugin) => {
                    if plugins.insert(name.clone(), plugin).is_some() {
                        refusals.push(Refusal::new(format!("plugin {name} is listed twice")));
                    }
                }
                Err(refusal) => refusals.push(refusal),
            }
        }
        let telemetry = Telemetry::load(document.telemetry, workers).unwrap_or_else(|wrong| {
            refusals.extend(wrong);
            Telemetry::default()
        });
        let mut core = Self {
            id,
            since: SystemTime::now(),
            plugin_time,
            name: name.into(),
            filter,
            plugins,
            lanes: Lanes::new(document.lane_groups, document.lanes, workers),
            telemetry,
            base: Arc::default(),
            body_limit,
        };
        let (links, wrong) = core.links("gateway", &[], &[]);
        refusals.extend(wrong);
        if refusals.is_empty() {
            core.base =
                Arc::new(Chain::new(links).with_attachment(attachment(core.telemetry.gateway())));
            Ok(core)
        } else {
            Err(refusals)
        }
    }

    /// Its telemetry.
    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Its plugins, by name.
    pub(crate) fn plugins(&self) -> impl ExactSizeIterator<Item = &GenerationPlugin> {
        self.plugins.values()
    }

    /// The gateway's chain.
    pub(crate) fn base(&self) -> Arc<Chain> {
        Arc::clone(&self.base)
    }

    /// The links of a scope, in order, and what is wrong with those that cannot be had. A plugin that
    /// cannot be had has a link all the same, which fails by its policy.
    pub(crate) fn links(
        &self,
        scope: &str,
        changes: &[RoutePlugin],
        lanes: &[LaneUse],
    ) -> (Vec<Link>, Vec<Refusal>) {
        let change = |name: &str| changes.iter().find(|change| change.name == name);
        let place = route::is_named(scope).then(|| ConfigPlace {
            name: format!("{} {scope}", self.name).into(),
            generation: self.id,
        });
        let mut ordered: Vec<(Order<'_>, Link)> = Vec::new();
        // Lanes come first: plugins see the header of the request's lane, and the route that it leads to.
        let (mut links, mut refusals) = self.lanes.links(scope, lanes);
        for (name, plugin) in &self.plugins {
            let change = change(name);
            let enabled = change
                .and_then(|change| change.enabled)
                .unwrap_or(plugin.entry.enabled);
            if !enabled {
                continue;
            }
            let patch: Option<&Value> = change.and_then(|change| change.config.as_ref());
            let link = plugin
                .link(scope, patch, place.as_ref())
                .unwrap_or_else(|error| {
                    refusals.push(error.into());
                    plugin.unavailable()
                });
            ordered.push((Order::of(&plugin.entry), link));
        }
        for change in changes {
            if change.enabled == Some(true) && !self.plugins.contains_key(&change.name) {
                refusals.push(Refusal::new(format!(
                    "{scope} uses plugin {}, which the gateway's configuration does not have",
                    change.name
                )));
                // It comes first: nothing that it might have stopped gets any further.
                ordered.push((Order::first(&change.name), plugin::missing(&change.name)));
            }
        }
        ordered.sort_by(|(left, _), (right, _)| left.cmp(right));
        links.extend(ordered.into_iter().map(|(_, link)| link));
        (links, refusals)
    }
}

/// Access logs as a chain has them.
pub(crate) fn attachment(logs: Option<Arc<StreamLogs>>) -> Option<Attachment> {
    let logs = logs.filter(|logs| !logs.is_empty())?;
    Some(logs)
}

/// The order of a chain: phase group, then priority with high ones first, then name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order<'a>(Group, i64, &'a str);

impl<'a> Order<'a> {
    fn of(entry: &'a PluginEntry) -> Self {
        Self(entry.group, -i64::from(entry.priority), &entry.name)
    }

    fn first(name: &'a str) -> Self {
        Self(Group::Authn, i64::MIN, name)
    }
}

fn load(
    entry: PluginEntry,
    place: &Place,
    plugin_time: PluginTime,
    clusters: &CalloutClusters,
    known: &mut Code,
) -> Result<GenerationPlugin, Refusal> {
    let key = CodeKey::new(&entry, place);
    let code = if let Some(code) = known.get(&key) {
        Arc::clone(code)
    } else {
        let code = plugin::load(&entry, place)?;
        known.insert(key.clone(), Arc::clone(&code));
        code
    };
    GenerationPlugin::new(entry, key, code, plugin_time, clusters)
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(filter) = self.filter.upgrade() {
            filter.prune();
        }
    }
}

/// One of Envoy's filter configurations: a core, and its metrics in Envoy.
pub(crate) struct Generation {
    /// There until the generation is dropped.
    core: Option<Arc<Core>>,
    metrics: Table,
}

impl Generation {
    pub(crate) fn new(core: Arc<Core>, metrics: Table) -> Self {
        Self {
            core: Some(core),
            metrics,
        }
    }
}

impl FilterConfig for Generation {
    fn chain(&self, route: Option<&RouteConfig>) -> Arc<Chain> {
        match (
            &self.core,
            route.and_then(|route| route.downcast_ref::<Route>()),
        ) {
            (Some(core), Some(route)) => route.chain(core),
            (Some(core), None) => core.base(),
            // Should a stream ever come after the end, it fails closed.
            (None, _) => Arc::new(Chain::new(vec![plugin::missing("outrider")])),
        }
    }

    fn may_have_routes(&self) -> bool {
        route::any()
    }

    fn metrics(&self) -> &dyn MetricTable {
        &self.metrics
    }

    fn body_limit(&self) -> Option<u32> {
        self.core.as_ref()?.body_limit
    }
}

impl Drop for Generation {
    /// The last stream of a generation ends on a worker, and closing VMs takes time.
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            drop_later(core);
        }
    }
}
