//! All generations and routes of the process that live, by filter name.
//!
//! Everything here happens on Envoy's main thread, except that the last stream of a generation may
//! drop it on a worker, and that workers call plugins beside their streams; the locks are for that, and are
//! held for no longer than a look at a list.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outrider_envoy_abi::{ConfigContext, FilterConfig, RouteConfig, log};
use outrider_plugin_api::{LogLevel, Plugin};
use outrider_plugin_formats as formats;
use outrider_vm_pool::drop_later;

use crate::document::{Refusal, read};
use crate::generation::{Code, Core, Generation};
use crate::metrics::Table;
use crate::plugin::CodeKey;
use crate::route::{Resolved, Route};

/// What lives, by filter name.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    filters: Mutex<BTreeMap<String, Arc<Filter>>>,
    code: Mutex<BTreeMap<CodeKey, Weak<dyn Plugin>>>,
    /// The same code, for workers: replaced when a generation is complete.
    running: Mutex<Arc<[Weak<dyn Plugin>]>>,
    last_id: AtomicU64,
}

/// What lives of one filter name.
#[derive(Debug)]
pub(crate) struct Living {
    pub(crate) filter: String,
    /// The newest last.
    pub(crate) cores: Vec<Arc<Core>>,
    /// How many routes' configurations there are; each has a chain in every core.
    pub(crate) routes: usize,
}

/// The generations and routes of one filter name.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest last.
    cores: Vec<KnownCore>,
    routes: Vec<Weak<Route>>,
}

#[derive(Debug)]
struct KnownCore {
    id: u64,
    core: Weak<Core>,
    document: formats::FilterConfig,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every state behind these locks is valid between any two statements that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    fn filter(&self, name: &str) -> Arc<Filter> {
        Arc::clone(locked(&self.filters).entry(name.to_owned()).or_default())
    }

    /// A filter configuration has come.
    pub(crate) fn filter_config(
        &self,
        context: &ConfigContext<'_>,
        name: &str,
        document: &[u8],
    ) -> Result<Arc<dyn FilterConfig>, Vec<Refusal>> {
        let core = self.core(name, document, context.workers())?;
        // Last, so that the metrics of the plugins that have just been loaded are among them.
        let metrics = Table::define(context);
        Ok(Arc::new(Generation::new(core, metrics)))
    }

    /// The core for a document: the one that lives, or a new one, with all routes resolved in it.
    pub(crate) fn core(
        &self,
        name: &str,
        document: &[u8],
        workers: usize,
    ) -> Result<Arc<Core>, Vec<Refusal>> {
        let filter = self.filter(name);
        // Envoy hands one configuration to each listener that has it, with the keys of its mappings in another order each
        // time: what the document says decides, and not its bytes.
        let parsed: formats::FilterConfig = read(document).map_err(|refusal| vec![refusal])?;
        if let Some(core) = filter.newest_of(&parsed) {
            return Ok(core);
        }
        let mut code = self.living_code();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let core = Arc::new(Core::load(
            id,
            name,
            Arc::downgrade(&filter),
            parsed.clone(),
            workers,
            &mut code,
        )?);
        *locked(&self.code) = code
            .iter()
            .map(|(key, code)| (key.clone(), Arc::downgrade(code)))
            .collect();
        for route in filter.routes() {
            match route.resolve(&core) {
                Resolved::New => {}
                Resolved::KeepsOld(refusals) => say(
                    LogLevel::Warn,
                    &route,
                    "goes on with the plugins as they were, until its configuration changes",
                    &refusals,
                ),
                Resolved::Broken(refusals) => {
                    say(
                        LogLevel::Error,
                        &route,
                        "fails by the plugins' failure policies",
                        &refusals,
                    );
                }
            }
        }
        core.telemetry().begin();
        locked(&filter.state).cores.push(KnownCore {
            id,
            core: Arc::downgrade(&core),
            document: parsed,
        });
        *locked(&self.running) = locked(&self.code).values().cloned().collect();
        Ok(core)
    }

    /// Has a plugin, by its place among those that run, do what is due on a worker beside all streams. Returns whether
    /// there are plugins behind it.
    pub(crate) fn background(&self, worker: usize, plugin: usize) -> bool {
        let running = Arc::clone(&locked(&self.running));
        if let Some(code) = running.get(plugin).and_then(Weak::upgrade) {
            code.background(worker);
            if Arc::strong_count(&code) == 1 {
                drop_later(code);
            }
        }
        plugin + 1 < running.len()
    }

    /// A route's configuration has come.
    pub(crate) fn route_config(
        &self,
        name: &str,
        document: &[u8],
    ) -> Result<RouteConfig, Vec<Refusal>> {
        let document: formats::RouteConfig = read(document).map_err(|refusal| vec![refusal])?;
        let filter = self.filter(name);
        let route = Arc::new(Route::new(document));
        let cores = filter.cores();
        // Oldest first, so that the newest chain is last; only what the newest says decides.
        for (index, core) in cores.iter().enumerate() {
            let is_newest = index + 1 == cores.len();
            match route.resolve(core) {
                Resolved::KeepsOld(refusals) | Resolved::Broken(refusals) if is_newest => {
                    return Err(refusals);
                }
                _ => {}
            }
        }
        filter.add_route(&route);
        Ok(route)
    }

    /// What lives, by filter name. Whoever asks gives the cores to the drop queue afterwards: one of them
    /// may have lost its last stream meanwhile.
    pub(crate) fn living(&self) -> Vec<Living> {
        let filters: Vec<(String, Arc<Filter>)> = locked(&self.filters)
            .iter()
            .map(|(name, filter)| (name.clone(), Arc::clone(filter)))
            .collect();
        filters
            .into_iter()
            .map(|(filter, state)| Living {
                filter,
                cores: state.cores(),
                routes: state.routes().len(),
            })
            .collect()
    }

    pub(crate) fn living_code(&self) -> Code {
        locked(&self.code)
            .iter()
            .filter_map(|(key, code)| Some((key.clone(), code.upgrade()?)))
            .collect()
    }
}

fn say(level: LogLevel, route: &Route, what: &str, refusals: &[Refusal]) {
    for refusal in refusals {
        log(level, &format!("{} {what}: {refusal}", route.scope()));
    }
}

impl Filter {
    fn cores(&self) -> Vec<Arc<Core>> {
        locked(&self.state)
            .cores
            .iter()
            .filter_map(|known| known.core.upgrade())
            .collect()
    }

    fn routes(&self) -> Vec<Arc<Route>> {
        locked(&self.state)
            .routes
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// The newest core, if it was made from this document.
    fn newest_of(&self, document: &formats::FilterConfig) -> Option<Arc<Core>> {
        let state = locked(&self.state);
        let known = state
            .cores
            .last()
            .filter(|known| known.document == *document)?;
        known.core.upgrade()
    }

    fn add_route(&self, route: &Arc<Route>) {
        let mut state = locked(&self.state);
        if state.routes.len() == state.routes.capacity() {
            // Before the list grows: what is dead makes room.
            state.routes.retain(|route| route.strong_count() > 0);
        }
        state.routes.push(Arc::downgrade(route));
    }

    /// A core is gone: routes forget its chains. No core may be dropped while the state is locked,
    /// for its end leads here.
    pub(crate) fn prune(&self) {
        let mut state = locked(&self.state);
        state.cores.retain(|known| known.core.strong_count() > 0);
        state.routes.retain(|route| route.strong_count() > 0);
        let living: Vec<u64> = state.cores.iter().map(|known| known.id).collect();
        let routes: Vec<_> = state.routes.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for route in routes {
            route.prune(|generation| living.contains(&generation));
        }
    }
}
