//! What plugins do where there is no stream.
//!
//! Envoy offers no timer on a worker that has had no connection yet, and callouts without a stream on its main
//! thread only. So the way to the workers is by the main thread: one thread for the process sleeps until
//! somebody is due and commits an event to the cluster's scheduler (see `cluster`); the main thread makes the
//! callouts that wait, and has Envoy call the module on all workers.
//!
//! The traps: a scheduler is only used under the lock under which it is deleted; and no `done` of a callout is
//! called under it, because it may ring.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{
    Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
    RwLockWriteGuard, Weak,
};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use outrider_plugin_api::{
    Background, CalloutDone, CalloutFailure, CalloutRequest, CalloutResponse, HttpStreamHandle,
    HttpStreamRequest, HttpStreamTold, LogLevel, MetricId, MetricKind, OwnedHeaders, framing,
    own_headers,
};

use crate::callbacks::{Callbacks, callbacks};
use crate::callout::started;
use crate::exchanges;
use crate::host::milliseconds;
use crate::module::{EnvoyMetric, FilterConfig, Module};
use crate::raw::{ClusterPtr, ConfigPtr, ModuleBuffer, ModuleHeader, SchedulerPtr};
use crate::{wake_queue, worker};

/// Which of the module's clusters.
pub(crate) type ClusterId = u64;

struct Scheduler(SchedulerPtr);

// SAFETY: Envoy documents schedulers of clusters as callable from any thread.
unsafe impl Send for Scheduler {}

impl Scheduler {
    fn commit(&self) {
        if let Some(callbacks) = callbacks() {
            // SAFETY: it is alive until it is dropped, which is before its cluster is.
            unsafe { (callbacks.cluster_scheduler_commit)(self.0, 0) }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if let Some(callbacks) = callbacks() {
            // SAFETY: made by `cluster_scheduler_new` and deleted once, here.
            unsafe { (callbacks.cluster_scheduler_delete)(self.0) }
        }
    }
}

struct Waiting {
    cluster: Vec<u8>,
    headers: OwnedHeaders,
    body: Vec<u8>,
    timeout: Option<Duration>,
    done: CalloutDone,
}

/// Which workers are to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum WorkerCall {
    #[default]
    None,
    /// Those that had no time for the last call.
    Unfinished,
    All,
}

#[derive(Default)]
struct State {
    last_cluster: ClusterId,
    /// The module's clusters; the newest is used.
    clusters: Vec<(ClusterId, Scheduler)>,
    /// When the workers are called.
    due: BTreeSet<Instant>,
    /// Whether they are to be called by the event that is on its way.
    call: WorkerCall,
    /// An event is on its way to the main thread.
    posted: bool,
    has_thread: bool,
    waiting: VecDeque<Waiting>,
    /// That callout is being started: Envoy may tell of its end before it tells its number.
    starting: Option<CalloutDone>,
    under_way: BTreeMap<(ClusterId, u64), CalloutDone>,
}

impl State {
    /// Has the main thread come by.
    fn post(&mut self) {
        if let Some((_, scheduler)) = self.clusters.last()
            && !self.posted
        {
            self.posted = true;
            scheduler.commit();
        }
    }
}

/// See the module.
struct Process {
    state: Mutex<State>,
    earlier: Condvar,
    configs: RwLock<Vec<Config>>,
    /// Configurations that Envoy is called with, and on which thread.
    in_use: Mutex<Vec<(usize, ThreadId)>>,
    unused: Condvar,
}

/// A filter configuration, to count with.
struct Config {
    key: usize,
    pointer: ConfigPtr,
    made: Weak<dyn FilterConfig>,
}

// SAFETY: Envoy counts with a configuration on any thread; the list's lock is held while it does, and taken
// before the configuration goes.
unsafe impl Send for Config {}
// SAFETY: as above.
unsafe impl Sync for Config {}

/// There is a cluster: asked on the way of requests.
static IS_THERE: AtomicBool = AtomicBool::new(false);

/// How often the workers were called.
static CALLS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The call that this worker answers, or answered last.
    static ROUND: Cell<u64> = const { Cell::new(0) };
    /// The plugin with which the worker goes on; `None`: all have had their turn.
    static NEXT_PLUGIN: Cell<Option<usize>> = const { Cell::new(None) };
}

static PROCESS: LazyLock<Process> = LazyLock::new(|| Process {
    state: Mutex::default(),
    earlier: Condvar::new(),
    configs: RwLock::default(),
    in_use: Mutex::default(),
    unused: Condvar::new(),
});

fn state() -> MutexGuard<'static, State> {
    // Valid between any two statements that change it.
    PROCESS.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn configs() -> RwLockReadGuard<'static, Vec<Config>> {
    PROCESS
        .configs
        .read()
        .unwrap_or_else(PoisonError::into_inner)
}

fn configs_mut() -> RwLockWriteGuard<'static, Vec<Config>> {
    PROCESS
        .configs
        .write()
        .unwrap_or_else(PoisonError::into_inner)
}

/// A filter configuration has come; `key` names it until it goes.
pub(crate) fn add_config(key: usize, pointer: ConfigPtr, made: &Arc<dyn FilterConfig>) {
    configs_mut().push(Config {
        key,
        pointer,
        made: Arc::downgrade(made),
    });
}

/// It goes, on any thread. Returns Envoy's pointer, or `None` if it was not known. When this returns, no other thread
/// uses the pointer, and none will.
pub(crate) fn remove_config(key: usize) -> Option<ConfigPtr> {
    let mut configs = configs_mut();
    let index = configs.iter().position(|config| config.key == key)?;
    let pointer = configs.remove(index).pointer;
    drop(configs);
    let this_thread = thread::current().id();
    let mut in_use = in_use();
    // This thread's own use is further up the stack: Envoy destroys the configuration inside of it.
    while in_use
        .iter()
        .any(|(config, thread)| *config == pointer as usize && *thread != this_thread)
    {
        in_use = PROCESS
            .unused
            .wait(in_use)
            .unwrap_or_else(PoisonError::into_inner);
    }
    Some(pointer)
}

/// Calls `call` with a configuration, by Envoy's pointer, unless Envoy has destroyed it. It is not destroyed before
/// `call` returns, and no lock is held meanwhile.
pub(crate) fn with_config<T>(
    config: usize,
    call: impl FnOnce(&'static Callbacks, ConfigPtr) -> T,
) -> Option<T> {
    with_found_config(
        |configs| {
            configs
                .iter()
                .find(|known| known.pointer as usize == config)
        },
        call,
    )
}

/// As [`with_config`], with the configuration that came last.
pub(crate) fn with_newest_config<T>(
    call: impl FnOnce(&'static Callbacks, ConfigPtr) -> T,
) -> Option<T> {
    with_found_config(<[Config]>::last, call)
}

fn with_found_config<T>(
    find: impl FnOnce(&[Config]) -> Option<&Config>,
    call: impl FnOnce(&'static Callbacks, ConfigPtr) -> T,
) -> Option<T> {
    let callbacks = callbacks()?;
    let guard = {
        let configs = configs();
        let pointer = find(&configs)?.pointer;
        // Before the list is let go: whoever removes the configuration from it finds this.
        InUse::new(pointer)
    };
    Some(call(callbacks, guard.pointer))
}

/// A configuration that is in use on this thread.
struct InUse {
    pointer: ConfigPtr,
}

impl InUse {
    fn new(pointer: ConfigPtr) -> Self {
        in_use().push((pointer as usize, thread::current().id()));
        Self { pointer }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let own = (self.pointer as usize, thread::current().id());
        let mut in_use = in_use();
        if let Some(index) = in_use.iter().position(|entry| *entry == own) {
            in_use.swap_remove(index);
        }
        drop(in_use);
        PROCESS.unused.notify_all();
    }
}

fn in_use() -> MutexGuard<'static, Vec<(usize, ThreadId)>> {
    PROCESS
        .in_use
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Has the main thread come by.
pub(crate) fn come_by() {
    state().post();
}

/// A cluster of the module's has begun.
///
/// # Safety
/// `cluster` is alive, and [`remove_cluster`] is called before it is not.
pub(crate) unsafe fn add_cluster(cluster: ClusterPtr) -> Option<ClusterId> {
    let callbacks = callbacks()?;
    // SAFETY: the caller's promise.
    let scheduler = unsafe { (callbacks.cluster_scheduler_new)(cluster) };
    if scheduler.is_null() {
        return None;
    }
    let mut state = state();
    state.last_cluster += 1;
    let id = state.last_cluster;
    state.clusters.push((id, Scheduler(scheduler)));
    IS_THERE.store(true, Ordering::Release);
    // What was committed to another is with that one.
    state.posted = false;
    // Whoever rang before there was a cluster was not heard.
    state.call = WorkerCall::All;
    state.post();
    Some(id)
}

/// A cluster ends, and with it its callouts.
pub(crate) fn remove_cluster(id: ClusterId) {
    let mut state = state();
    state.clusters.retain(|(known, _)| *known != id);
    IS_THERE.store(!state.clusters.is_empty(), Ordering::Release);
    state.posted = false;
    let (lost, left): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut state.under_way)
        .into_iter()
        .partition(|((cluster, _), _)| *cluster == id);
    state.under_way = left;
    let mut lost: Vec<CalloutDone> = lost.into_values().collect();
    if state.clusters.is_empty() {
        lost.extend(state.waiting.drain(..).map(|waiting| waiting.done));
    } else {
        state.post();
    }
    drop(state);
    for done in lost {
        done(Err(CalloutFailure::StreamOver));
    }
}

/// The main thread has come by.
///
/// # Safety
/// Called on the main thread, in a hook of that cluster.
pub(crate) unsafe fn on_main(cluster: ClusterPtr, id: ClusterId) {
    let Some(callbacks) = callbacks() else { return };
    worker::mark_main_thread();
    let (call, waiting) = {
        let mut state = state();
        if !state.clusters.iter().any(|(known, _)| *known == id) {
            return;
        }
        state.posted = false;
        let waiting = std::mem::take(&mut state.waiting);
        (std::mem::take(&mut state.call), waiting)
    };
    for waiting in waiting {
        // SAFETY: the caller's promise.
        unsafe { start(cluster, id, waiting) }
    }
    exchanges::run();
    if call == WorkerCall::All {
        CALLS.fetch_add(1, Ordering::Release);
    }
    if call != WorkerCall::None {
        // SAFETY: the caller's promise.
        unsafe { (callbacks.cluster_run_on_all_workers)(cluster, 0) }
    }
}

unsafe fn start(cluster: ClusterPtr, id: ClusterId, waiting: Waiting) {
    let Some(callbacks) = callbacks() else { return };
    let headers = ModuleHeader::all(&waiting.headers);
    state().starting = Some(waiting.done);
    let mut number = 0;
    // SAFETY: the cluster is alive in its own hook, on the main thread; everything lent outlives the call, and
    // Envoy copies it.
    let result = unsafe {
        (callbacks.cluster_http_callout)(
            cluster,
            &raw mut number,
            ModuleBuffer::new(&waiting.cluster),
            headers.as_ptr(),
            headers.len(),
            ModuleBuffer::new(&waiting.body),
            milliseconds(waiting.timeout),
        )
    };
    let mut state = state();
    let Some(done) = state.starting.take() else {
        // It is over already, and was told of.
        return;
    };
    match started(result) {
        Ok(()) => {
            state.under_way.insert((id, number), done);
        }
        Err(failure) => {
            drop(state);
            done(Err(failure));
        }
    }
}

/// A callout is over.
pub(crate) fn on_done(
    cluster: ClusterId,
    number: u64,
    outcome: Result<CalloutResponse<'_>, CalloutFailure>,
) {
    let done = {
        let mut state = state();
        match state.under_way.remove(&(cluster, number)) {
            Some(done) => Some(done),
            None => state.starting.take(),
        }
    };
    if let Some(done) = done {
        done(outcome);
    }
}

/// Has workers called once more that had no time for the last call.
pub(crate) fn call_workers_again() {
    let mut state = state();
    state.call = state.call.max(WorkerCall::Unfinished);
    state.post();
}

/// A worker is called: it goes through the plugins, as far as its turn lasts.
pub(crate) fn on_worker(module: &dyn Module) {
    let Some(worker) = worker::number() else {
        return;
    };
    let calls = CALLS.load(Ordering::Acquire);
    if NEXT_PLUGIN.get().is_none() && ROUND.get() == calls {
        return;
    }
    let Some(mut wake_up) = wake_queue::begin_beside() else {
        return;
    };
    loop {
        let plugin = NEXT_PLUGIN.get().unwrap_or_else(|| {
            ROUND.set(calls);
            0
        });
        // Before the call: a plugin that panics is not called again and again.
        NEXT_PLUGIN.set(Some(plugin + 1));
        let has_more = module.background(worker, plugin);
        if !has_more {
            NEXT_PLUGIN.set(None);
            if ROUND.get() == calls {
                return;
            }
        }
        if wake_up.is_over() {
            wake_up.has_more = true;
            return;
        }
    }
}

/// When a request for a call is due: a little late, if it is far away, so that requests that come often meet.
fn due_time(now: Instant, delay: Duration) -> Option<Instant> {
    static ZERO: LazyLock<Instant> = LazyLock::new(Instant::now);
    let zero = *ZERO;
    let step = Duration::from_millis(1).max(delay / 256).as_micros();
    // A power of two: requests with like delays meet, too.
    let step = step.checked_next_power_of_two()?;
    let since = now.checked_add(delay)?.saturating_duration_since(zero);
    let steps = since.as_micros().div_ceil(step);
    let micros = u64::try_from(steps.checked_mul(step)?).ok()?;
    zero.checked_add(Duration::from_micros(micros))
}

fn run() {
    let mut state = state();
    loop {
        let now = Instant::now();
        while let Some(due) = state.due.first().copied()
            && due <= now
        {
            state.due.pop_first();
            state.call = WorkerCall::All;
            state.post();
        }
        let next = state.due.first().copied();
        state = match next {
            Some(due) => {
                PROCESS
                    .earlier
                    .wait_timeout(state, due.saturating_duration_since(now))
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => PROCESS
                .earlier
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner),
        };
    }
}

fn has(headers: &[(&[u8], &[u8])], name: &[u8]) -> bool {
    headers
        .iter()
        .any(|(known, _)| known.eq_ignore_ascii_case(name))
}

/// Envoy, as plugins use it beside streams.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvoyBackground;

impl EnvoyBackground {
    /// Changes a metric with a filter configuration that has it.
    fn change(
        metric: MetricId,
        change: impl FnOnce(ConfigPtr, EnvoyMetric, &dyn FilterConfig),
    ) -> bool {
        let configs = configs();
        let mut living = configs
            .iter()
            .rev()
            .filter_map(|config| Some((config.pointer, config.made.upgrade()?)));
        let Some((pointer, envoy, made)) = living.find_map(|(pointer, made)| {
            let envoy = made.metrics().envoy(metric)?;
            Some((pointer, envoy, made))
        }) else {
            return false;
        };
        change(pointer, envoy, &*made);
        true
    }
}

impl Background for EnvoyBackground {
    fn is_there(&self) -> bool {
        IS_THERE.load(Ordering::Acquire)
    }

    fn ring_in(&self, delay: Duration) {
        if !self.is_there() {
            return;
        }
        let mut state = state();
        if delay.is_zero() {
            state.call = WorkerCall::All;
            state.post();
            return;
        }
        let Some(due) = due_time(Instant::now(), delay) else {
            return;
        };
        let is_next = state.due.first().is_none_or(|first| due < *first);
        state.due.insert(due);
        if !state.has_thread {
            let thread = thread::Builder::new().name("outrider-ring".into());
            // Where it cannot be started, the next one who rings tries again.
            state.has_thread = thread.spawn(run).is_ok();
        }
        drop(state);
        if is_next {
            PROCESS.earlier.notify_one();
        }
    }

    fn start_callout(
        &self,
        request: &CalloutRequest<'_>,
        done: CalloutDone,
    ) -> Result<(), CalloutFailure> {
        let sent = framing::request_headers(request.headers, Some(request.body.len()))?;
        let mut headers = own_headers(&sent);
        if !request.body.is_empty() && !has(&sent, b"content-length") {
            // Envoy says it of a stream's callouts by itself.
            let length = request.body.len().to_string().into_bytes();
            headers.push((b"content-length".to_vec(), length));
        }
        let waiting = Waiting {
            cluster: request.cluster.to_vec(),
            headers,
            body: request.body.to_vec(),
            timeout: request.timeout,
            done,
        };
        let mut state = state();
        if state.clusters.is_empty() {
            return Err(CalloutFailure::CannotStart);
        }
        state.waiting.push_back(waiting);
        state.post();
        Ok(())
    }

    fn start_http_stream(
        &self,
        request: &HttpStreamRequest<'_>,
        told: HttpStreamTold,
    ) -> Result<Box<dyn HttpStreamHandle>, CalloutFailure> {
        let length = request.end_of_stream.then_some(request.body.len());
        let headers = framing::request_headers(request.headers, length)?;
        if !self.is_there() {
            return Err(CalloutFailure::CannotStart);
        }
        let request = HttpStreamRequest {
            headers: &headers,
            ..*request
        };
        Ok(exchanges::begin(&request, told))
    }

    fn add_metric(&self, metric: MetricId, amount: i64) -> bool {
        Self::change(metric, |config, envoy, made| {
            let Some(callbacks) = callbacks() else { return };
            let change = match envoy.kind {
                MetricKind::Counter if amount > 0 => callbacks.http_filter_config_increment_counter,
                MetricKind::Gauge if amount >= 0 => callbacks.http_filter_config_increment_gauge,
                MetricKind::Gauge => callbacks.http_filter_config_decrement_gauge,
                MetricKind::Counter | MetricKind::Histogram => return,
            };
            let amount_there = amount.unsigned_abs();
            // SAFETY: the configuration is alive while the list is locked, and defined the metric; no labels
            // were announced.
            unsafe { change(config, envoy.id(), ptr::null(), 0, amount_there) };
            made.metrics().note(metric, amount, false);
        })
    }

    fn record_metric(&self, metric: MetricId, value: u64) -> bool {
        Self::change(metric, |config, envoy, made| {
            let Some(callbacks) = callbacks() else { return };
            let record = match envoy.kind {
                MetricKind::Gauge => callbacks.http_filter_config_set_gauge,
                MetricKind::Histogram => callbacks.http_filter_config_record_histogram_value,
                MetricKind::Counter => return,
            };
            // SAFETY: as for `add_metric`.
            unsafe { record(config, envoy.id(), ptr::null(), 0, value) };
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            made.metrics().note(metric, value, true);
        })
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        crate::log::log_enabled(level)
    }

    fn log(&self, level: LogLevel, plugin: &str, message: &str) {
        crate::log::log(level, &format!("plugin {plugin}: {message}"));
    }
}

#[cfg(test)]
mod tests;
