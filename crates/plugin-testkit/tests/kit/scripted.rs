//! A plugin in Rust, for tests of the kit: closures for calls and resumptions.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outrider_plugin_api::{
    Call, Chain, Circuit, CircuitPolicy, ConfiguredPlugin, Decision, Direction, FailureAction,
    FailurePolicy, Fault, Interest, Link, LinkMetrics, Permissions, Reaction, Slot, Stream, Wake,
    WakeId,
};
use outrider_plugin_testkit::MetricTable;

pub(crate) type OnCall =
    dyn Fn(&mut Slot, Call, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync;
pub(crate) type OnWake =
    dyn Fn(&mut Slot, Wake<'_>, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync;

pub(crate) type OnEvent =
    dyn Fn(&mut Slot, Wake<'_>, &mut dyn Stream) -> Result<Reaction, Fault> + Send + Sync;

pub(crate) struct Scripted {
    on_call: Box<OnCall>,
    on_wake: Box<OnWake>,
    /// All events come beside calls.
    on_event: Option<Box<OnEvent>>,
    ended: Arc<AtomicU64>,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl ConfiguredPlugin for Scripted {
    fn call(
        &self,
        slot: &mut Slot,
        call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        (self.on_call)(slot, call, stream)
    }

    fn resume(
        &self,
        slot: &mut Slot,
        _direction: Direction,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        (self.on_wake)(slot, wake, stream)
    }

    fn waits_in(
        &self,
        _slot: Slot,
        _id: WakeId,
        started: Direction,
        _worker: usize,
    ) -> Option<Direction> {
        self.on_event.is_none().then_some(started)
    }

    fn event(
        &self,
        slot: &mut Slot,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Reaction, Fault> {
        match &self.on_event {
            Some(on_event) => on_event(slot, wake, stream),
            None => Ok(Reaction::default()),
        }
    }

    fn end(&self, slot: Slot, _worker: usize) {
        self.ended.fetch_add(slot.0, Ordering::Relaxed);
    }
}

/// A plugin under construction.
pub(crate) struct Build {
    name: &'static str,
    interest: Interest,
    policy: FailurePolicy,
    circuit: Option<CircuitPolicy>,
    permissions: Permissions,
    on_call: Box<OnCall>,
    on_wake: Box<OnWake>,
    on_event: Option<Box<OnEvent>>,
    ended: Arc<AtomicU64>,
}

impl Build {
    pub(crate) fn new(
        name: &'static str,
        interest: Interest,
        on_call: impl Fn(&mut Slot, Call, &mut dyn Stream) -> Result<Decision, Fault>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            name,
            interest,
            policy: FailurePolicy::new(500, |_| FailureAction::Closed),
            circuit: None,
            permissions: Permissions::all(),
            on_call: Box::new(on_call),
            on_wake: Box::new(|_, _, _| Ok(Decision::Continue)),
            on_event: None,
            ended: Arc::default(),
        }
    }

    pub(crate) fn permissions(mut self, permissions: Permissions) -> Self {
        self.permissions = permissions;
        self
    }

    pub(crate) fn on_wake(
        mut self,
        on_wake: impl Fn(&mut Slot, Wake<'_>, &mut dyn Stream) -> Result<Decision, Fault>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.on_wake = Box::new(on_wake);
        self
    }

    pub(crate) fn on_event(
        mut self,
        on_event: impl Fn(&mut Slot, Wake<'_>, &mut dyn Stream) -> Result<Reaction, Fault>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.on_event = Some(Box::new(on_event));
        self
    }

    pub(crate) fn open(mut self) -> Self {
        self.policy = FailurePolicy::new(500, |_| FailureAction::Open);
        self
    }

    pub(crate) fn circuit(mut self, failures: u32) -> Self {
        self.circuit = Some(CircuitPolicy {
            failures,
            ..CircuitPolicy::default()
        });
        self
    }

    pub(crate) fn counting_ends(mut self, ended: &Arc<AtomicU64>) -> Self {
        self.ended = ended.clone();
        self
    }

    pub(crate) fn plugin(self) -> Scripted {
        Scripted {
            on_call: self.on_call,
            on_wake: self.on_wake,
            on_event: self.on_event,
            ended: self.ended,
        }
    }
}

pub(crate) fn chain(plugins: Vec<Build>) -> Arc<Chain> {
    chain_with(plugins, &mut MetricTable::new())
}

pub(crate) fn chain_with(plugins: Vec<Build>, metrics: &mut MetricTable) -> Arc<Chain> {
    Arc::new(Chain::new(
        plugins
            .into_iter()
            .map(|mut build| Link {
                name: build.name.into(),
                interest: build.interest,
                failure_policy: build.policy,
                metrics: LinkMetrics::define(build.name, metrics),
                faults: Arc::default(),
                times: None,
                circuit: Arc::new(Circuit::new(
                    "test".to_owned(),
                    build.circuit,
                    Arc::default(),
                )),
                permissions: Arc::new(std::mem::take(&mut build.permissions)),
                logs: Arc::default(),
                memory: Arc::default(),
                plugin: Some(Arc::new(build.plugin())),
            })
            .collect(),
    ))
}

/// What plugins noted down, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

pub(crate) fn body(stream: &dyn Stream, direction: Direction) -> String {
    let mut bytes = Vec::new();
    stream.body_pieces(direction, &mut |piece| bytes.extend_from_slice(piece));
    String::from_utf8(bytes).unwrap()
}
