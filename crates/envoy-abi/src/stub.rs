//! A stand-in for Envoy, for unit tests: it records what the module asks for, and calls nothing by itself.
//!
//! One for all tests of the process, which run side by side: each test has filters and configurations of its own,
//! by their pointers, and looks at nothing else.

pub(crate) mod messages;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt::Debug;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outrider_plugin_api::{
    Call, Chain, Circuit, ConfiguredPlugin, Decision, Direction, FailureAction, FailurePolicy,
    Fault, Interest, Link, LinkMetrics, MetricId, Reaction, Slot, Stream, Wake,
};

use crate::callbacks::{Callbacks, install_stub};
use crate::module::{EnvoyMetric, FilterConfig, MetricTable, RouteConfig};
use crate::raw::{FilterPtr, ModuleBuffer, ModuleHeader, SchedulerPtr};

/// A call of one of Envoy's functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Commit(u64),
    SendResponse(u32),
    ResetStream,
    ContinueDecoding,
    ContinueEncoding,
    StartHttpStream(u64),
    ResetHttpStream(u64),
    SendHttpStreamData(u64),
}

#[derive(Default)]
struct Calls {
    by_pointer: BTreeMap<usize, Vec<(Instant, Asked)>>,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls {
    by_pointer: BTreeMap::new(),
});

fn calls() -> MutexGuard<'static, Calls> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn record(pointer: *mut c_void, asked: Asked) {
    let mut calls = calls();
    let list = calls.by_pointer.entry(pointer as usize).or_default();
    list.push((Instant::now(), asked));
}

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// A pointer that no other test has. It leads nowhere.
pub(crate) fn pointer() -> *mut c_void {
    ptr::without_provenance_mut(NEXT.fetch_add(1, Ordering::Relaxed) * 16)
}

/// Takes out what was asked with a pointer since the last time.
pub(crate) fn asked(pointer: *mut c_void) -> Vec<Asked> {
    let taken = calls().by_pointer.remove(&(pointer as usize));
    let taken = taken.unwrap_or_default();
    taken.into_iter().map(|(_, asked)| asked).collect()
}

/// Takes out when schedulers were called with a pointer since the last time; the rest of what was asked is dropped.
pub(crate) fn times(pointer: *mut c_void) -> Vec<Instant> {
    let taken = calls().by_pointer.remove(&(pointer as usize));
    let taken = taken.unwrap_or_default().into_iter();
    taken
        .filter(|(_, asked)| matches!(asked, Asked::Commit(_)))
        .map(|(at, _)| at)
        .collect()
}

/// Waits until something was asked with a pointer.
pub(crate) fn wait_asked(pointer: *mut c_void) -> Vec<Asked> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let taken = asked(pointer);
        if !taken.is_empty() {
            return taken;
        }
        assert!(Instant::now() < deadline, "nothing was asked");
        std::thread::sleep(Duration::from_millis(1));
    }
}

unsafe extern "C" fn scheduler_new(filter: FilterPtr) -> SchedulerPtr {
    Box::into_raw(Box::new(filter as usize)).cast()
}

unsafe extern "C" fn scheduler_commit(scheduler: SchedulerPtr, event: u64) {
    // SAFETY: made by `scheduler_new`, and not deleted.
    let filter = unsafe { *scheduler.cast::<usize>() };
    record(ptr::without_provenance_mut(filter), Asked::Commit(event));
}

unsafe extern "C" fn scheduler_delete(scheduler: SchedulerPtr) {
    // SAFETY: made by `scheduler_new`, and deleted once.
    drop(unsafe { Box::from_raw(scheduler.cast::<usize>()) });
}

unsafe extern "C" fn send_response(
    filter: FilterPtr,
    status: u32,
    _headers: *const ModuleHeader,
    _headers_length: usize,
    _body: ModuleBuffer,
    _details: ModuleBuffer,
) {
    record(filter, Asked::SendResponse(status));
}

unsafe extern "C" fn reset_stream(filter: FilterPtr, _reason: u32, _details: ModuleBuffer) {
    record(filter, Asked::ResetStream);
}

unsafe extern "C" fn continue_decoding(filter: FilterPtr) {
    record(filter, Asked::ContinueDecoding);
}

unsafe extern "C" fn continue_encoding(filter: FilterPtr) {
    record(filter, Asked::ContinueEncoding);
}

unsafe extern "C" fn start_http_stream(
    pointer: *mut c_void,
    id: *mut u64,
    _cluster: ModuleBuffer,
    _headers: *const ModuleHeader,
    _headers_length: usize,
    _body: ModuleBuffer,
    _end_of_stream: bool,
    _timeout_milliseconds: u64,
) -> u32 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed) as u64;
    // SAFETY: a place of the caller's.
    unsafe { *id = number };
    record(pointer, Asked::StartHttpStream(number));
    0
}

unsafe extern "C" fn reset_http_stream(pointer: *mut c_void, id: u64) {
    record(pointer, Asked::ResetHttpStream(id));
}

unsafe extern "C" fn send_data(
    pointer: *mut c_void,
    id: u64,
    _data: ModuleBuffer,
    _end_of_stream: bool,
) -> bool {
    record(pointer, Asked::SendHttpStreamData(id));
    true
}

/// The process's stand-in.
pub(crate) fn envoy() -> &'static Callbacks {
    install_stub(|| Callbacks {
        http_filter_scheduler_new: scheduler_new,
        http_filter_scheduler_commit: scheduler_commit,
        http_filter_scheduler_delete: scheduler_delete,
        http_send_response: send_response,
        http_filter_reset_stream: reset_stream,
        http_filter_continue_decoding: continue_decoding,
        http_filter_continue_encoding: continue_encoding,
        http_filter_start_http_stream: start_http_stream,
        http_filter_reset_http_stream: reset_http_stream,
        http_stream_send_data: send_data,
        http_get_header: messages::get_header,
        http_get_headers_size: messages::get_headers_size,
        http_get_headers: messages::get_headers,
        http_add_header: messages::add_header,
        http_set_header: messages::set_header,
        http_get_body_size: messages::get_body_size,
        http_get_body_chunks_size: messages::get_body_chunks_size,
        http_get_body_chunks: messages::get_body_chunks,
        http_append_body: messages::append_body,
        http_drain_body: messages::drain_body,
        cluster_scheduler_new: scheduler_new,
        cluster_scheduler_commit: scheduler_commit,
        cluster_scheduler_delete: scheduler_delete,
        http_filter_config_start_http_stream: start_http_stream,
        http_filter_config_reset_http_stream: reset_http_stream,
        http_filter_config_stream_send_data: send_data,
        ..Callbacks::stub()
    })
}

type CallHandler = dyn Fn(Call, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync;
type EventHandler = dyn Fn(Wake<'_>, &mut dyn Stream) + Send + Sync;

/// A plugin of a test's: `call` runs in each of its calls, and the events that it hears are noted.
pub(crate) struct TestPlugin {
    pub(crate) call: Box<CallHandler>,
    pub(crate) event: Box<EventHandler>,
    pub(crate) heard: Mutex<Vec<String>>,
    /// How long its events have to wait for its share of the worker.
    pub(crate) share: Mutex<Option<Duration>>,
    pub(crate) ended: AtomicUsize,
}

impl TestPlugin {
    pub(crate) fn new(
        call: impl Fn(Call, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync + 'static,
    ) -> Self {
        Self {
            call: Box::new(call),
            event: Box::new(|_, _| {}),
            heard: Mutex::default(),
            share: Mutex::default(),
            ended: AtomicUsize::new(0),
        }
    }

    /// Takes out what it heard.
    pub(crate) fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

impl Debug for TestPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TestPlugin")
    }
}

impl ConfiguredPlugin for TestPlugin {
    fn call(
        &self,
        slot: &mut Slot,
        call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        *slot = Slot(1);
        (self.call)(call, stream)
    }

    fn resume(
        &self,
        _slot: &mut Slot,
        _direction: Direction,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        self.heard.lock().unwrap().push(format!("{wake:?}"));
        (self.event)(wake, stream);
        Ok(Decision::Continue)
    }

    fn event(
        &self,
        _slot: &mut Slot,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Reaction, Fault> {
        self.heard.lock().unwrap().push(format!("{wake:?}"));
        (self.event)(wake, stream);
        Ok(Reaction::default())
    }

    fn wait_for_share(&self, _worker: usize, _waited: Duration) -> Option<Duration> {
        *self.share.lock().unwrap()
    }

    fn end(&self, _slot: Slot, _worker: usize) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A filter configuration whose chain is one plugin, in the headers phases of both directions and in the log phase.
pub(crate) struct TestConfig {
    chain: Arc<Chain>,
}

impl TestConfig {
    pub(crate) fn of(plugin: &Arc<TestPlugin>) -> Arc<dyn FilterConfig> {
        let metrics = LinkMetrics::define("test", &mut NoMetrics);
        let link = Link {
            name: "test".into(),
            plugin: Some(Arc::<TestPlugin>::clone(plugin)),
            interest: Interest {
                request_headers: true,
                response_headers: true,
                log: true,
                ..Interest::default()
            },
            failure_policy: FailurePolicy::new(500, |_| FailureAction::Closed),
            metrics,
            faults: Arc::default(),
            times: None,
            permissions: Arc::new(outrider_plugin_api::Permissions::all()),
            logs: Arc::default(),
            memory: Arc::default(),
            circuit: Arc::new(Circuit::new("test".into(), None, Arc::default())),
        };
        Arc::new(Self {
            chain: Arc::new(Chain::new(vec![link])),
        })
    }
}

pub(crate) struct NoMetrics;

impl outrider_plugin_api::Metrics for NoMetrics {
    fn define(&mut self, _: outrider_plugin_api::MetricKind, _: &str) -> Option<MetricId> {
        None
    }

    fn log_enabled(&self, _: outrider_plugin_api::LogLevel) -> bool {
        false
    }

    fn log(&mut self, _: outrider_plugin_api::LogLevel, _: &str, _: &str) {}
}

impl MetricTable for NoMetrics {
    fn envoy(&self, _: MetricId) -> Option<EnvoyMetric> {
        None
    }
    fn late(&self, _: MetricId) -> Option<(EnvoyMetric, &str)> {
        None
    }
    fn note(&self, _: MetricId, _: i64, _: bool) {}
    fn value(&self, _: MetricId) -> Option<u64> {
        None
    }
}

impl FilterConfig for TestConfig {
    fn chain(&self, _: Option<&RouteConfig>) -> Arc<Chain> {
        Arc::clone(&self.chain)
    }
    fn may_have_routes(&self) -> bool {
        false
    }
    fn metrics(&self) -> &dyn MetricTable {
        &NoMetrics
    }
    fn body_limit(&self) -> Option<u32> {
        None
    }
}
