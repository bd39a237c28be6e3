//! One VM with a guest in it: its start, its roots, and its callbacks for streams.

mod events;
mod exchanges;
mod phases;
mod start;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use outrider_plugin_api::{
    Call, Decision, Fault, LogLevel, MetricId, Phase, Reaction, Slot, Stream, Wake,
};
use outrider_vm_pool::{CallSlot, PooledVm};
use wasmtime::{Store, TypedFunc, WasmParams, WasmResults};

use crate::abi::Version;
use crate::code::Code;
use crate::exports::Exports;
use crate::memory::{Loan, lend};
use crate::shared::Shared;
use crate::state::{Gate, MetricChange, Moment, State};
use crate::time::{NEXT_EPOCH, RunningCall};
use crate::trouble::Trouble;
use events::{abandoned, background, look, next_due, told};
use exchanges::end_exchanges;
use phases::{Came, react};
use start::{configure_root, start};

/// Ticks that are due so soon come now: VMs on several workers whose ticks are due at nearly the same time are
/// called together from then on.
const SLACK: Duration = Duration::from_millis(1);

/// A configuration, as guests take it in.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    pub(crate) id: u32,
    pub(crate) text: Arc<[u8]>,
}

/// Why a VM could not be made, or a configuration not be taken in.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The guest, or what it is made of, says no.
    Refused(String),
    /// It failed.
    Failed(Trouble),
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Self {
        Self::Failed(trouble)
    }
}

/// See the module.
pub(crate) struct Vm {
    store: Store<State>,
    exports: Exports,
    /// Its calls, as the watchdog sees them.
    calls: Arc<CallSlot>,
    /// Told apart from those of VMs that were here before by this number, from 1.
    pub(crate) generation: u32,
    /// How many configurations had come when it was last known to have them all.
    pub(crate) configured: u64,
    call_budget: Duration,
    load_budget: Duration,
    /// Streams that came to their end without trouble.
    pub(crate) served: u64,
    /// A call for a stream has returned.
    pub(crate) has_worked: bool,
    /// Bytes of memory that it began with.
    pub(crate) first_memory: usize,
}

impl Debug for Vm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vm")
            .field("generation", &self.generation)
            .field("state", self.store.data())
            .finish_non_exhaustive()
    }
}

/// Runs a call into a guest within a time budget.
///
/// # Errors
/// That of `run`, or the call ran on after its budget was used up: a host function did not end in time.
#[inline]
fn run_call<R, E: From<Trouble>>(
    calls: &CallSlot,
    budget: Duration,
    store: &mut Store<State>,
    loan: Loan<'_>,
    run: impl FnOnce(&mut Store<State>) -> Result<R, E>,
) -> Result<R, E> {
    let call = RunningCall::begin(calls, budget);
    store.data_mut().limits.refused = false;
    let result = lend(store, loan, run);
    match call.end() {
        Err(overrun) if overrun.is_late() => result.and(Err(Trouble::late().into())),
        _ => result,
    }
}

/// Calls a callback.
#[inline]
fn enter<P, R>(
    store: &mut Store<State>,
    name: &'static str,
    function: &TypedFunc<P, R>,
    arguments: P,
) -> Result<R, Trouble>
where
    P: WasmParams + Debug + Copy,
    R: WasmResults + Debug,
{
    let traced = store.data().gate.has(Gate::TRACE);
    if traced {
        let line = format!("[host->vm] {name}{}", Arguments(arguments));
        store.data_mut().log(LogLevel::Info, &line);
    }
    let answer = function.call(&mut *store, arguments);
    if traced {
        let line = match &answer {
            Ok(answer) => format!("[host<-vm] {name} -> {answer:?}"),
            Err(error) => format!("[host<-vm] {name} failed: {}", error.root_cause()),
        };
        store.data_mut().log(LogLevel::Info, &line);
    }
    answer.map_err(|error| Trouble::new(name, error, store.data().limits.refused))
}

/// Arguments in parentheses, one alone included.
struct Arguments<P>(P);

impl<P: Debug> std::fmt::Display for Arguments<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:?}", self.0);
        if text.starts_with('(') {
            f.write_str(&text)
        } else {
            write!(f, "({text})")
        }
    }
}

/// A number as guests take it.
fn small(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl PooledVm for Vm {
    fn memory_gauge(&self) -> Arc<AtomicUsize> {
        self.store.data().limits.gauge()
    }

    fn call_slot(&self) -> &Arc<CallSlot> {
        &self.calls
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn streams(&mut self) -> usize {
        self.store.data().contexts.streams()
    }
}

impl Vm {
    /// Makes a VM and starts the guest.
    ///
    /// # Errors
    /// The guest does not start.
    pub(crate) fn new(
        code: &Code,
        shared: &Arc<Shared>,
        generation: u32,
        load_budget: Duration,
        loan: Loan<'_>,
    ) -> Result<Self, Refusal> {
        let engine = code.instances.module().engine();
        let mut state = State::new(engine, Arc::clone(shared));
        state.is_first_version = code.version == Version::V0_1_0;
        let calls = Arc::clone(state.time.slot());
        calls.register().map_err(|error| {
            Refusal::Refused(format!(
                "the thread that ends endless calls cannot start: {error}"
            ))
        })?;
        let mut store = Store::new(engine, state);
        store.limiter(|state| &mut state.limits);
        store.set_epoch_deadline(NEXT_EPOCH);
        store.epoch_deadline_callback(|store| store.data().time.at_deadline());
        let exports = run_call(&calls, load_budget, &mut store, loan, |store| {
            start(code, store)
        })?;
        let first_memory = store.data().limits.used();
        Ok(Self {
            store,
            exports,
            calls,
            generation,
            configured: 0,
            call_budget: shared.time_budget,
            load_budget,
            served: 0,
            has_worked: false,
            first_memory,
        })
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> usize {
        self.store.data().limits.used()
    }

    /// What waited for a stream in a VM that this one follows.
    pub(crate) fn inherit(&mut self, other: &mut Self) {
        self.store.data_mut().inherit(other.store.data_mut());
    }

    /// It has no worker yet: it takes nothing from those that have.
    pub(crate) fn stand_by(&mut self) {
        self.store.data_mut().queues = Some(Vec::new());
    }

    /// It has a worker now: its roots' ticks begin, and it is told of its queues.
    pub(crate) fn begin_work(&mut self) {
        let state = self.store.data_mut();
        let now = state.shared.clock.now();
        for root in &mut state.contexts.roots {
            root.next_tick = now + Duration::from_millis(u64::from(root.tick));
        }
        for (queue, root) in state.queues.take().into_iter().flatten() {
            state.shared.namespace.listen(queue, &state.mailbox, root);
        }
    }

    /// The configurations that it has.
    pub(crate) fn configurations(&self) -> Vec<u32> {
        let roots = &self.store.data().contexts.roots;
        roots.iter().map(|root| root.configuration).collect()
    }

    /// Counts something, when there is a stream to count it with.
    pub(crate) fn count(&mut self, metric: Option<MetricId>) {
        if let Some(metric) = metric {
            self.store
                .data_mut()
                .change_metric(MetricChange::Add(metric, 1));
        }
    }

    /// A line to be logged when there is a stream to log it with.
    pub(crate) fn say(&mut self, level: LogLevel, line: &str) {
        self.store.data_mut().log(level, line);
    }

    /// The root of a configuration, if it is there.
    #[inline]
    pub(crate) fn root_of(&self, configuration: u32) -> Option<u32> {
        self.store.data().contexts.root_of(configuration)
    }

    /// The root of a configuration, which is taken in if it is not there.
    ///
    /// # Errors
    /// The guest refuses it, or fails.
    #[inline]
    pub(crate) fn configure(
        &mut self,
        configuration: &Configuration,
        loan: Loan<'_>,
    ) -> Result<u32, Refusal> {
        match self.store.data().contexts.root_of(configuration.id) {
            Some(root) => Ok(root),
            None => self.load_configuration(configuration, self.load_budget, loan),
        }
    }

    /// The same within the budget of a call.
    pub(crate) fn configure_quickly(
        &mut self,
        configuration: &Configuration,
    ) -> Result<(), Refusal> {
        if self.root_of(configuration.id).is_none() {
            self.load_configuration(configuration, self.call_budget, Loan::Nothing)?;
        }
        Ok(())
    }

    #[cold]
    fn load_configuration(
        &mut self,
        configuration: &Configuration,
        budget: Duration,
        loan: Loan<'_>,
    ) -> Result<u32, Refusal> {
        let Self {
            store,
            exports,
            calls,
            ..
        } = self;
        let state = store.data_mut();
        let root = state
            .contexts
            .add_root(configuration.id, Arc::clone(&configuration.text));
        let before = (state.own.take(), std::mem::take(&mut state.own_id));
        let taken = run_call(calls, budget, store, loan, |store| {
            let taken = configure_root(store, exports, root, configuration.text.len());
            let state = store.data_mut();
            state.moment = Moment::Other;
            state.effective = 0;
            state.root = 0;
            state.complaints.clear();
            if taken.is_err() {
                state.contexts.remove_root(root);
            }
            taken
        });
        let state = store.data_mut();
        (state.own, state.own_id) = before;
        taken.map(|()| root)
    }

    /// A configuration is not used any more.
    pub(crate) fn release(&mut self, configuration: u32, loan: Loan<'_>) -> Result<(), Trouble> {
        let Some(root) = self.store.data().contexts.root_of(configuration) else {
            return Ok(());
        };
        self.run_call(loan, |store, exports| {
            end_exchanges(store, exports, root)?;
            let state = store.data_mut();
            state.effective = root;
            state.root = root;
            state.moment = Moment::Other;
            if let Some(on_done) = &exports.on_done {
                enter(store, "proxy_on_done", on_done, root.cast_signed())?;
            }
            if let Some(on_delete) = &exports.on_delete {
                enter(store, "proxy_on_delete", on_delete, root.cast_signed())?;
            }
            store.data_mut().contexts.remove_root(root);
            Ok(())
        })
    }

    /// Runs a call into the guest within the time budget of calls.
    #[inline]
    fn run_call<R>(
        &mut self,
        loan: Loan<'_>,
        run: impl FnOnce(&mut Store<State>, &Exports) -> Result<R, Trouble>,
    ) -> Result<R, Trouble> {
        let Self {
            store,
            exports,
            calls,
            call_budget,
            ..
        } = self;
        run_call(calls, *call_budget, store, loan, |store| {
            run(store, exports)
        })
    }

    /// Calls the guest for a phase of a stream.
    ///
    /// # Errors
    /// The guest failed; it is of no use any more.
    pub(crate) fn call(
        &mut self,
        root: u32,
        slot: &mut Slot,
        call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Result<Decision, Fault>, Trouble> {
        let begins = (root, self.generation);
        let came = self.run_call(Loan::Stream(stream), |store, exports| {
            phases::call(store, exports, begins, slot, call)
        })?;
        self.has_worked = true;
        if call.phase == Phase::Log {
            self.served += 1;
        }
        match came {
            Came::GoesOn => Ok(Ok(Decision::Continue)),
            Came::Otherwise(decision) => Ok(*decision),
        }
    }

    /// Tells the guest of what came of something that it started, or looks at what waits.
    ///
    /// # Errors
    /// The guest failed; it is of no use any more.
    pub(crate) fn event(
        &mut self,
        slot: Slot,
        wake: &Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Result<Reaction, Fault>, Trouble> {
        let Some(place) = place_of(slot) else {
            return Ok(Ok(Reaction::default()));
        };
        self.run_call(Loan::Stream(stream), |store, exports| {
            let state = store.data_mut();
            state.catch_up();
            state.act_for(place);
            match wake {
                Wake::Timer(timer) => look(store, exports, place, *timer)?,
                Wake::Callout(..) | Wake::HttpStream(..) | Wake::Body => {
                    told(store, exports, place, wake)?;
                }
            }
            let reaction = react(store, place);
            store.data_mut().act_for_none();
            Ok(reaction)
        })
    }

    /// Does what is due beside all streams. Answers after how much time there will be more; none: not before
    /// somebody says so.
    ///
    /// # Errors
    /// The guest failed; it is of no use any more.
    pub(crate) fn background(&mut self) -> Result<Option<Duration>, Trouble> {
        self.store.data_mut().catch_up();
        let due = next_due(self.store.data());
        if due.is_none_or(|due| due > SLACK) {
            return Ok(due);
        }
        self.run_call(Loan::Nothing, |store, exports| {
            background(store, exports, SLACK)?;
            store.data_mut().act_for_none();
            Ok(next_due(store.data()))
        })
    }

    /// A stream is over that the guest has not been told of: one without a log phase.
    ///
    /// # Errors
    /// The guest failed; it is of no use any more.
    pub(crate) fn end(&mut self, slot: Slot) -> Result<(), Trouble> {
        let Some(place) = place_of(slot) else {
            return Ok(());
        };
        self.run_call(Loan::Nothing, |store, exports| {
            finish(store, exports, place)
        })?;
        self.served += 1;
        Ok(())
    }
}

/// The place of the context that a slot stands for.
fn place_of(slot: Slot) -> Option<usize> {
    usize::try_from(slot.0 & u64::from(u32::MAX))
        .ok()?
        .checked_sub(1)
}

/// A slot for a VM, and no context in it.
pub(crate) fn slot_of(generation: u32) -> Slot {
    Slot(u64::from(generation) << 32)
}

/// The VM that a slot's context is in; none: it stands for none.
pub(crate) fn generation_of(slot: Slot) -> Option<u32> {
    (slot != Slot::default()).then_some((slot.0 >> 32) as u32)
}

/// The guest is done with a stream, and forgets it.
fn finish(store: &mut Store<State>, exports: &Exports, place: usize) -> Result<(), Trouble> {
    let state = store.data_mut();
    state.act_for(place);
    state.done_comes();
    let Some(context) = state.own_context() else {
        return Ok(());
    };
    let id = context.id;
    let callouts = std::mem::take(&mut context.callouts);
    if let Some(on_done) = &exports.on_done {
        // As in Envoy, a stream is over whatever it answers.
        enter(store, "proxy_on_done", on_done, id.cast_signed())?;
    }
    delete(store, exports, place, id)?;
    abandoned(store, exports, callouts)?;
    store.data_mut().effective = 0;
    Ok(())
}

/// The guest forgets a context.
fn delete(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    id: u32,
) -> Result<(), Trouble> {
    store.data_mut().effective = id;
    if let Some(on_delete) = &exports.on_delete {
        enter(store, "proxy_on_delete", on_delete, id.cast_signed())?;
    }
    let state = store.data_mut();
    state.contexts.remove(place);
    state.own = None;
    state.own_id = 0;
    Ok(())
}
