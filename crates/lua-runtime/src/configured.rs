//! A Lua plugin with one configuration: what streams call.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Call, Cause, ConfiguredPlugin, Decision, Direction, Fault, LogLevel, Pause, Phase, Reaction,
    Slot, Stream, Wake, WakeId,
};
use outrider_vm_pool::WakeCharge;

use crate::ffi::{
    Context, LuaError, LuaErrorKind, Outcome, Pending, Started, Step, Thread, place_of,
};
use crate::streams::{Lookup, Paused, Wait};
use crate::vm::{Documents, Intake, Vm};
use crate::workers::{Core, Held, is_unusable};

/// See the module.
#[derive(Debug)]
pub(crate) struct LuaConfigured {
    core: Arc<Core>,
    documents: Documents,
}

impl LuaConfigured {
    pub(crate) fn new(core: Arc<Core>, documents: Documents) -> Self {
        Self { core, documents }
    }

    /// Turns a run's outcome into a decision, and keeps or drops its coroutine.
    fn conclude(
        &self,
        held: &mut Held,
        thread: Thread,
        call: Call,
        outcome: Outcome,
        slot: &mut Slot,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        *slot = outcome.slot;
        let Some(vm) = &mut held.current else {
            return Err(unavailable(NO_VM));
        };
        let decision = match (outcome.step, outcome.pending) {
            (Step::Done, pending) => {
                vm.reuse(thread);
                match pending {
                    // The handler caught the error of a place that cannot be left by a yield, such
                    // as a callback of gsub. The reply holds nevertheless.
                    Pending::Reply(reply) => Ok(Decision::Reply(reply)),
                    Pending::Nothing
                    | Pending::Events(_)
                    | Pending::Body
                    | Pending::Chunk
                    | Pending::Trailers => Ok(Decision::Continue),
                }
            }
            (Step::Yielded, Pending::Reply(reply)) => {
                vm.state.release(thread);
                Ok(Decision::Reply(reply))
            }
            (Step::Yielded, Pending::Events(awaited)) => {
                pause(vm, slot, thread, call, Wait::Events(awaited))
                    .map(|()| Decision::Pause(Pause::Event))
            }
            (Step::Yielded, Pending::Body) => pause(vm, slot, thread, call, Wait::Body)
                .map(|()| Decision::Pause(Pause::WholeBody)),
            // The stream goes on; what comes next of it goes on with the coroutine.
            (Step::Yielded, Pending::Chunk) => {
                pause(vm, slot, thread, call, Wait::Chunk).map(|()| Decision::Continue)
            }
            (Step::Yielded, Pending::Trailers) => {
                pause(vm, slot, thread, call, Wait::Trailers).map(|()| Decision::Continue)
            }
            (Step::Yielded, Pending::Nothing) => {
                vm.state.release(thread);
                Err(Fault {
                    cause: Cause::Error,
                    message: "the handler yielded without anything to wait for".to_owned(),
                })
            }
            (Step::Failed(error), _) => {
                if stream.log_enabled(LogLevel::Debug)
                    && error.kind == LuaErrorKind::Error
                    && let Some(calls) = vm.state.traceback(&thread)
                {
                    stream.log(LogLevel::Debug, &format!("{}\n{calls}", error.message));
                }
                vm.state.release(thread);
                let mut fault = self.failed(held, error, stream);
                if place_of(&fault.message).is_empty() {
                    // Such as an error about the arguments of a function that was called last.
                    let place = self.core.handler_place(handler_number(call.phase));
                    fault.message = format!("{place}{}", fault.message);
                }
                return Err(fault);
            }
        };
        vm.state.tidy();
        decision
    }

    /// What follows from a run of a timer's function; its coroutine is kept or dropped.
    fn conclude_background(
        &self,
        held: &mut Held,
        thread: Thread,
        mut outcome: Outcome,
        slot: &mut Slot,
        stream: &mut dyn Stream,
    ) -> Result<Reaction, Fault> {
        let call = Call {
            phase: Phase::RequestHeaders,
            end_of_stream: false,
        };
        if let (Step::Yielded, Pending::Events(_)) = (&outcome.step, &outcome.pending) {
            *slot = outcome.slot;
            let Some(vm) = &mut held.current else {
                return Err(unavailable(NO_VM));
            };
            let Some((_, entry)) = vm.state.streams().entry(slot) else {
                vm.state.release(thread);
                return Err(unavailable(LOST));
            };
            let Pending::Events(awaited) = std::mem::take(&mut outcome.pending) else {
                return Ok(Reaction::default());
            };
            entry.background.push(Paused {
                thread,
                phase: call.phase,
                wait: Wait::Events(awaited),
                end_of_stream: false,
            });
            vm.state.tidy();
            return Ok(Reaction::default());
        }
        if matches!(
            outcome.pending,
            Pending::Body | Pending::Chunk | Pending::Trailers
        ) {
            outcome.pending = Pending::Nothing;
        }
        match self.conclude(held, thread, call, outcome, slot, stream)? {
            Decision::Reply(reply) => Ok(Reaction::reply(reply)),
            Decision::Continue | Decision::Pause(_) => Ok(Reaction::default()),
        }
    }

    /// The fault of a call that failed, with the budget that it used up; a VM without memory is replaced.
    fn failed(&self, held: &mut Held, mut error: LuaError, stream: &dyn Stream) -> Fault {
        let budget = match error.kind {
            LuaErrorKind::Error => None,
            LuaErrorKind::Time => Some(("time_ms", self.core.time_budget.as_millis())),
            LuaErrorKind::Memory => Some((
                "memory_mib",
                (self.core.memory_budget / (1024 * 1024)) as u128,
            )),
        };
        if let Some((key, amount)) = budget {
            // Writing to a text does not fail.
            let _ = write!(error.message, "; `budgets.{key}` is {amount}");
        }
        Fault {
            cause: self.retire_for(held, error.kind, stream),
            message: error.message,
        }
    }

    /// The fault of a configuration that the worker's VM could not load: no handler ran.
    fn not_configured(&self, held: &mut Held, error: &LuaError, stream: &dyn Stream) -> Fault {
        self.retire_for(held, error.kind, stream);
        let what = if self.core.configures() {
            "on_configure failed"
        } else {
            "the configuration could not be loaded"
        };
        unavailable(&format!("{what} on this worker: {}", error.message))
    }

    /// Replaces a VM that is of no use after an error, and returns the error's cause.
    fn retire_for(&self, held: &mut Held, kind: LuaErrorKind, stream: &dyn Stream) -> Cause {
        match kind {
            LuaErrorKind::Error => Cause::Error,
            LuaErrorKind::Time => {
                if is_unusable(held) {
                    let _ = self.core.replace(held, stream.unix_millis());
                }
                Cause::Time
            }
            LuaErrorKind::Memory => {
                // Where that fails, the next call says so, or tries again.
                let _ = self.core.replace(held, stream.unix_millis());
                Cause::Memory
            }
        }
    }

    /// A chunk of the body, or the trailers, for a script whose coroutine goes on from part to part
    /// of its direction (see [`Wait::Chunk`]).
    fn go_on(
        &self,
        slot: &mut Slot,
        call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        if *slot == Slot::default() {
            return Ok(Decision::Continue);
        }
        let mut held = self
            .core
            .worker(stream.worker())
            .ok_or_else(|| unavailable(BUSY))?;
        self.ready(&mut held, stream)?;
        let Some(vm) = &mut held.current else {
            return Err(unavailable(NO_VM));
        };
        if vm.state.streams().look_up(*slot) == Lookup::Lost {
            return Err(unavailable(LOST));
        }
        let is_trailers = matches!(call.phase, Phase::RequestTrailers | Phase::ResponseTrailers);
        let paused = vm.state.streams().entry(slot).and_then(|(_, entry)| {
            entry
                .paused(call.phase.direction())
                .take_if(|paused| match paused.wait {
                    Wait::Chunk => true,
                    Wait::Trailers => is_trailers || call.end_of_stream,
                    Wait::Events(_) | Wait::Body => false,
                })
        });
        let Some(paused) = paused else {
            return Ok(Decision::Continue);
        };
        let context = self.context(call, *slot, stream);
        let outcome = vm.state.resume(&paused.thread, context);
        self.conclude(&mut held, paused.thread, call, outcome, slot, stream)
    }

    /// Returns the context of a call that no event caused.
    fn context<'s, 'w>(
        &self,
        call: Call,
        slot: Slot,
        stream: &'s mut dyn Stream,
    ) -> Context<'s, 'w> {
        Context {
            stream,
            wake: None,
            phase: call.phase,
            end_of_stream: call.end_of_stream,
            config: self.documents.id,
            slot,
            budget: self.core.time_budget,
            background: false,
        }
    }

    /// Starts a phase's handler on the worker's VM, which is ready.
    fn start(
        &self,
        held: &mut Held,
        call: Call,
        slot: &mut Slot,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        let Some(vm) = &mut held.current else {
            return Err(unavailable(NO_VM));
        };
        if vm.state.streams().look_up(*slot) == Lookup::Lost {
            return Err(unavailable(LOST));
        }
        let thread = match vm.thread() {
            Ok(thread) => thread,
            Err(error) => return Err(self.failed(held, error, stream)),
        };
        let context = self.context(call, *slot, stream);
        let number = handler_number(call.phase);
        let outcome = match vm.state.start(&thread, number, context) {
            Started::Returned(state) => {
                *slot = state;
                vm.reuse(thread);
                vm.state.tidy();
                return Ok(Decision::Continue);
            }
            Started::Left(outcome) => outcome,
        };
        self.conclude(held, thread, call, outcome, slot, stream)
    }

    /// Calls the body handler of a message that has no body, as Rider does, when its headers handler is done:
    /// a plugin that checks bodies must not be passed by leaving the body out. `call` and `decision` are the
    /// headers handler's.
    #[inline]
    fn call_without_body(
        &self,
        held: &mut Held,
        call: Call,
        decision: Decision,
        slot: &mut Slot,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        let direction = call.phase.direction();
        let call = Call {
            phase: Phase::body(direction),
            end_of_stream: call.end_of_stream && call.phase == Phase::headers(direction),
        };
        if !call.end_of_stream
            || decision != Decision::Continue
            || self.core.streams_on
            || !self.core.has_handler(handler_number(call.phase))
        {
            return Ok(decision);
        }
        self.start(held, call, slot, stream)
    }

    /// Has the worker's VM hold this configuration.
    #[inline]
    fn ready(&self, held: &mut Held, stream: &dyn Stream) -> Result<(), Fault> {
        match &held.current {
            Some(vm) if vm.is_configured(&self.documents) => Ok(()),
            _ => self.make_ready(held, stream),
        }
    }

    #[cold]
    fn make_ready(&self, held: &mut Held, stream: &dyn Stream) -> Result<(), Fault> {
        if (held.current.is_none() || is_unusable(held))
            && let Err(reason) = self.core.replace(held, stream.unix_millis())
        {
            return Err(unavailable(&format!("{NO_VM}: {reason}")));
        }
        let Some(vm) = &mut held.current else {
            return Err(unavailable(NO_VM));
        };
        if !vm.has(&self.documents) && !self.core.may_configure() {
            self.core.request();
            return Err(unavailable(BEING_CONFIGURED));
        }
        vm.configure(&self.documents, Intake::Checked, None)
            .map_err(|error| self.not_configured(held, &error, stream))
    }
}

const BEING_CONFIGURED: &str = "on_configure is still running for the worker's Lua VM";
const NO_VM: &str = "the worker's Lua VM came to its end and is not replaced yet";
const LOST: &str = "the stream's state was lost as the plugin's VM used up its memory";
const BUSY: &str = "the worker has no Lua VM for this, or it is in use";

fn unavailable(message: &str) -> Fault {
    Fault {
        cause: Cause::Unavailable,
        message: message.to_owned(),
    }
}

/// Charges a wake-up to the plugin's CPU share, if it is one of the plugin's own doing, until what is returned
/// is dropped.
fn charge_wake(vm: &mut Vm, slot: Slot, worker: usize) -> Option<WakeCharge> {
    if !vm.state.streams().count_wake(slot) {
        return None;
    }
    WakeCharge::begin(vm.state.call_slot(), worker)
}

fn pause(
    vm: &mut Vm,
    slot: &mut Slot,
    thread: Thread,
    call: Call,
    wait: Wait,
) -> Result<(), Fault> {
    let Some((_, entry)) = vm.state.streams().entry(slot) else {
        vm.state.release(thread);
        return Err(unavailable(LOST));
    };
    let paused = Paused {
        thread,
        phase: call.phase,
        wait,
        end_of_stream: call.end_of_stream,
    };
    let earlier = entry.paused(call.phase.direction()).replace(paused);
    if let Some(earlier) = earlier {
        vm.state.release(earlier.thread);
    }
    Ok(())
}

/// Whether a phase follows the headers of its direction.
fn is_part(phase: Phase) -> bool {
    !matches!(
        phase,
        Phase::RequestHeaders | Phase::ResponseHeaders | Phase::Log
    )
}

/// The number of a phase's handler among those that `plugin.lua` found; 0 is their table.
fn handler_number(phase: Phase) -> usize {
    match phase {
        Phase::RequestHeaders => 1,
        Phase::RequestBody => 2,
        Phase::RequestTrailers => 3,
        Phase::ResponseHeaders => 4,
        Phase::ResponseBody => 5,
        Phase::ResponseTrailers => 6,
        Phase::Log => 7,
    }
}

impl ConfiguredPlugin for LuaConfigured {
    fn call(
        &self,
        slot: &mut Slot,
        call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        if self.core.streams_on && is_part(call.phase) {
            return self.go_on(slot, call, stream);
        }
        let mut held = self
            .core
            .worker(stream.worker())
            .ok_or_else(|| unavailable(BUSY))?;
        self.ready(&mut held, stream)?;
        let decision = self.start(&mut held, call, slot, stream)?;
        self.call_without_body(&mut held, call, decision, slot, stream)
    }

    fn resume(
        &self,
        slot: &mut Slot,
        direction: Direction,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        let mut held = self
            .core
            .worker(stream.worker())
            .ok_or_else(|| unavailable(BUSY))?;
        self.ready(&mut held, stream)?;
        let Some(vm) = &mut held.current else {
            return Err(unavailable(NO_VM));
        };
        let _charge = charge_wake(vm, *slot, stream.worker());
        let paused = match vm.state.streams().look_up(*slot) {
            Lookup::Lost => return Err(unavailable(LOST)),
            Lookup::None => None,
            Lookup::At(_) => vm
                .state
                .streams()
                .entry(slot)
                .and_then(|(_, entry)| entry.paused(direction).take()),
        };
        let Some(paused) = paused else {
            // A callout that nobody waits for any more.
            return Ok(Decision::Continue);
        };
        let awaited = match wake.id() {
            Some(id) => paused.awaits(id),
            None => paused.wait == Wait::Body,
        };
        if !awaited {
            vm.keep(slot, &wake, stream);
            let pause_again = match &paused.wait {
                Wait::Events(_) => Pause::Event,
                Wait::Body | Wait::Chunk | Wait::Trailers => Pause::WholeBody,
            };
            let call = paused.call();
            let Paused { thread, wait, .. } = paused;
            pause(vm, slot, thread, call, wait)?;
            return Ok(Decision::Pause(pause_again));
        }
        let message = paused.call();
        // With the whole body its end has come.
        let call = Call {
            phase: paused.phase,
            end_of_stream: paused.end_of_stream || paused.wait == Wait::Body,
        };
        let context = Context {
            wake: Some(&wake),
            ..self.context(call, *slot, stream)
        };
        let outcome = vm.resume(&paused.thread, &wake, context);
        let decision = self.conclude(&mut held, paused.thread, call, outcome, slot, stream)?;
        self.call_without_body(&mut held, message, decision, slot, stream)
    }

    fn waits_in(
        &self,
        slot: Slot,
        id: WakeId,
        _started: Direction,
        worker: usize,
    ) -> Option<Direction> {
        let mut held = self.core.worker(worker)?;
        held.current.as_mut()?.state.streams().waits_in(slot, id)
    }

    fn event(
        &self,
        slot: &mut Slot,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Reaction, Fault> {
        let mut held = self
            .core
            .worker(stream.worker())
            .ok_or_else(|| unavailable(BUSY))?;
        self.ready(&mut held, stream)?;
        let Some(vm) = &mut held.current else {
            return Err(unavailable(NO_VM));
        };
        if vm.state.streams().look_up(*slot) == Lookup::Lost {
            return Err(unavailable(LOST));
        }
        let _charge = charge_wake(vm, *slot, stream.worker());
        let waiter = wake.id().and_then(|id| {
            let (_, entry) = vm.state.streams().entry(slot)?;
            let found = entry.background.iter().position(|one| one.awaits(id))?;
            Some(entry.background.swap_remove(found))
        });
        let context = Context {
            stream: &mut *stream,
            wake: Some(&wake),
            phase: Phase::RequestHeaders,
            end_of_stream: false,
            config: self.documents.id,
            slot: *slot,
            budget: self.core.time_budget,
            background: true,
        };
        let (thread, outcome) = if let Some(paused) = waiter {
            let outcome = vm.resume(&paused.thread, &wake, context);
            (paused.thread, outcome)
        } else if matches!(wake, Wake::Timer(_)) {
            let thread = match vm.thread() {
                Ok(thread) => thread,
                Err(error) => return Err(self.failed(&mut held, error, stream)),
            };
            let outcome = vm.state.start_timer(&thread, context);
            (thread, outcome)
        } else {
            vm.keep(slot, &wake, stream);
            return Ok(Reaction::default());
        };
        self.conclude_background(&mut held, thread, outcome, slot, stream)
    }

    #[inline]
    fn wait_for_share(&self, worker: usize, waited: Duration) -> Option<Duration> {
        self.core.wait(worker, waited, self.documents.id)
    }

    fn awaited(&self, worker: usize) -> Option<String> {
        self.core.awaited(worker, self.documents.id)
    }

    fn may_log(&self, worker: usize) -> bool {
        self.core.may_log(worker)
    }

    fn charge_log(&self, worker: usize, cost: Duration) {
        self.core.charge_log(worker, cost);
    }

    fn charge_callout(&self, worker: usize) {
        self.core.charge_callout(worker);
    }

    fn end(&self, slot: Slot, worker: usize) {
        if slot == Slot::default() {
            return;
        }
        let Some(mut held) = self.core.worker(worker) else {
            return;
        };
        let Some(vm) = &mut held.current else { return };
        let Some((index, entry)) = vm.state.streams().remove(slot) else {
            return;
        };
        if entry.shares {
            vm.end_shared(index);
        }
        let handlers = [entry.request, entry.response].into_iter().flatten();
        for paused in handlers.chain(entry.background) {
            vm.state.release(paused.thread);
        }
    }
}

impl Drop for LuaConfigured {
    fn drop(&mut self) {
        self.core.release(self.documents.id);
    }
}
