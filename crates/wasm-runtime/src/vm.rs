//! One VM with a guest in it: its start, its roots, and its callbacks for streams.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Call, CalloutFailure, Cause, Decision, Direction, Fault, HeaderMap, LogLevel, MetricId, Pause,
    Phase, Reaction, Slot, Stream, Wake, WakeId,
};
use wasmtime::{Store, TypedFunc, WasmParams, WasmResults};

use crate::abi::{Version, action};
use crate::code::Code;
use crate::engine;
use crate::exports::{Exports, OnHeaders};
use crate::memory::{Loan, lend};
use crate::shared::Shared;
use crate::state::{Gate, MetricChange, Moment, State};
use crate::trouble::Trouble;

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
    /// Told apart from those of VMs that were here before by this number, from 1.
    pub(crate) generation: u32,
    call_ticks: u64,
    load_ticks: u64,
    /// Streams that came to their end without trouble.
    pub(crate) served: u64,
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

/// How long a pause that nothing else ends goes on before it is looked at again.
const SHORTEST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_LOOK: Duration = Duration::from_millis(40);

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
    answer.map_err(|error| Trouble {
        function: name,
        error,
        lacked_memory: store.data().limits.refused,
    })
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

/// The callback of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Headers,
    Body,
    Trailers,
}

/// What a stream's callback answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    GoesOn,
    Pauses(Pause),
}

fn map_of(part: Part, direction: Direction) -> Option<HeaderMap> {
    match (part, direction) {
        (Part::Headers, _) => Some(direction.headers()),
        (Part::Trailers, Direction::Request) => Some(HeaderMap::RequestTrailers),
        (Part::Trailers, Direction::Response) => Some(HeaderMap::ResponseTrailers),
        (Part::Body, _) => None,
    }
}

fn part_of(phase: Phase) -> Option<Part> {
    match phase {
        Phase::RequestHeaders | Phase::ResponseHeaders => Some(Part::Headers),
        Phase::RequestBody | Phase::ResponseBody => Some(Part::Body),
        Phase::RequestTrailers | Phase::ResponseTrailers => Some(Part::Trailers),
        Phase::Log => None,
    }
}

/// A number as guests take it.
fn small(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
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
        loan: Loan<'_>,
    ) -> Result<Self, Refusal> {
        let mut state = State::new(Arc::clone(shared));
        state.is_first_version = code.version == Version::V0_1_0;
        let mut store = Store::new(code.instances.module().engine(), state);
        store.limiter(|state| &mut state.limits);
        store.epoch_deadline_trap();
        let call_ticks = engine::ticks(shared.time_budget);
        let load_ticks = engine::ticks(shared.load_budget);
        engine::begin();
        store.set_epoch_deadline(load_ticks);
        let exports = lend(&mut store, loan, |store| start(code, store))?;
        let first_memory = store.data().limits.used;
        Ok(Self {
            store,
            exports,
            generation,
            call_ticks,
            load_ticks,
            served: 0,
            first_memory,
        })
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> usize {
        self.store.data().limits.used
    }

    /// How many streams it has.
    pub(crate) fn streams(&self) -> usize {
        self.store.data().contexts.streams()
    }

    /// What waited for a stream in a VM that this one follows.
    pub(crate) fn inherit(&mut self, other: &mut Self) {
        self.store.data_mut().inherit(other.store.data_mut());
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
            None => self.take_in(configuration, loan),
        }
    }

    #[cold]
    fn take_in(&mut self, configuration: &Configuration, loan: Loan<'_>) -> Result<u32, Refusal> {
        let Self {
            store,
            exports,
            load_ticks,
            ..
        } = self;
        engine::begin();
        store.set_epoch_deadline(*load_ticks);
        let state = store.data_mut();
        state.limits.refused = false;
        let root = state
            .contexts
            .add_root(configuration.id, Arc::clone(&configuration.text));
        let before = (state.own.take(), std::mem::take(&mut state.own_id));
        let taken = lend(store, loan, |store| {
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
        let exports = &self.exports;
        engine::begin();
        self.store.set_epoch_deadline(self.call_ticks);
        lend(&mut self.store, loan, |store| {
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

    fn begin(&mut self) {
        engine::begin();
        self.store.set_epoch_deadline(self.call_ticks);
        self.store.data_mut().limits.refused = false;
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
        self.begin();
        let generation = self.generation;
        let exports = &self.exports;
        lend(&mut self.store, Loan::Stream(stream), |store| {
            store.data_mut().catch_up();
            let place = begin_stream(store, exports, root, generation, slot)?;
            let answer = if store.data().reply.is_some() {
                // It replied as its context was made.
                Answer::GoesOn
            } else {
                run_phase(store, exports, place, call)?
            };
            let decision = conclude(store, place, call, answer);
            leave(store);
            Ok(decision)
        })
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
        self.begin();
        let exports = &self.exports;
        lend(&mut self.store, Loan::Stream(stream), |store| {
            store.data_mut().catch_up();
            own(store, place);
            match wake {
                Wake::Timer(timer) => look(store, exports, place, *timer)?,
                Wake::Callout(id, outcome) => {
                    let response = match outcome {
                        Ok(response) => Ok((response.headers, response.body)),
                        Err(failure) => Err(*failure),
                    };
                    callout_done(store, exports, place, WakeId::Callout(*id), response)?;
                }
                Wake::HttpStream(..) | Wake::Body => {}
            }
            let reaction = react(store, place);
            leave(store);
            Ok(reaction)
        })
    }

    /// A stream is over: the guest is told, and forgets it.
    ///
    /// # Errors
    /// The guest failed; it is of no use any more.
    pub(crate) fn end(&mut self, slot: Slot) -> Result<(), Trouble> {
        let Some(place) = place_of(slot) else {
            return Ok(());
        };
        self.begin();
        let exports = &self.exports;
        let store = &mut self.store;
        let Some(context) = store.data_mut().contexts.at_mut(place) else {
            return Ok(());
        };
        context.is_over = true;
        context.callouts.clear();
        context.watch = None;
        let (id, root) = (context.id, context.root);
        let state = store.data_mut();
        state.effective = id;
        state.root = root;
        state.moment = Moment::Other;
        if let Some(on_done) = &exports.on_done
            && enter(store, "proxy_on_done", on_done, id.cast_signed())? == 0
        {
            if let Some(context) = store.data_mut().contexts.at_mut(place) {
                context.done_is_pending = true;
            }
        } else {
            delete(store, exports, place, id)?;
        }
        finish_done(store, exports)?;
        store.data_mut().effective = 0;
        self.served += 1;
        Ok(())
    }
}

/// Instantiates the guest and runs what it starts with.
fn start(code: &Code, store: &mut Store<State>) -> Result<Exports, Refusal> {
    let instance = code.instances.instantiate(&mut *store).map_err(|error| {
        let lacked_memory = store.data().limits.refused;
        if lacked_memory && !error.is::<wasmtime::Trap>() {
            return Refusal::Refused(format!(
                "its memory budget of {} MiB does not hold the memory that it begins with",
                store.data().shared.memory_budget / (1024 * 1024)
            ));
        }
        Refusal::Failed(Trouble {
            function: "its start section",
            error,
            lacked_memory,
        })
    })?;
    let exports = Exports::find(&instance, store).map_err(Refusal::Refused)?;
    let memory = instance.get_memory(&mut *store, "memory");
    let allocate = ["malloc", "proxy_on_memory_allocate"]
        .into_iter()
        .find_map(|name| instance.get_typed_func(&mut *store, name).ok());
    let state = store.data_mut();
    state.memory = memory;
    state.allocate = allocate;
    state.gate.set(Gate::STARTING);
    let started = run_start(&instance, store);
    store.data_mut().gate.unset(Gate::STARTING);
    started?;
    Ok(exports)
}

fn run_start(instance: &wasmtime::Instance, store: &mut Store<State>) -> Result<(), Refusal> {
    let mut call = |name: &'static str| -> Result<bool, Refusal> {
        let Some(function) = instance.get_func(&mut *store, name) else {
            return Ok(false);
        };
        let result = if let Ok(function) = function.typed::<(), ()>(&*store) {
            enter(store, name, &function, ())
        } else if let Ok(function) = function.typed::<(), i32>(&*store) {
            enter(store, name, &function, ()).map(|_status| ())
        } else if let Ok(function) = function.typed::<(i32, i32), i32>(&*store) {
            enter(store, name, &function, (0, 0)).map(|_status| ())
        } else {
            return Err(Refusal::Refused(format!(
                "its export {name} has not the type of the interface"
            )));
        };
        match result {
            Ok(()) => Ok(true),
            // Commands, such as Go's, end so when they are done.
            Err(trouble) if trouble.exit_code() == Some(0) => Ok(true),
            Err(trouble) => Err(trouble.into()),
        }
    };
    if call("_initialize")? {
        if !call("main")? {
            call("__main_void")?;
        }
    } else {
        call("_start")?;
    }
    Ok(())
}

fn configure_root(
    store: &mut Store<State>,
    exports: &Exports,
    root: u32,
    length: usize,
) -> Result<(), Refusal> {
    let state = store.data_mut();
    state.effective = root;
    state.root = root;
    state.moment = Moment::Other;
    state.complaints.clear();
    if let Some(on_context_create) = &exports.on_context_create {
        enter(
            store,
            "proxy_on_context_create",
            on_context_create,
            (root.cast_signed(), 0),
        )?;
    }
    if let Some(on_vm_start) = &exports.on_vm_start {
        let state = store.data_mut();
        state.moment = Moment::VmStart;
        state.effective = root;
        let length = small(state.shared.options.vm_configuration.len());
        let started = enter(
            store,
            "proxy_on_vm_start",
            on_vm_start,
            (root.cast_signed(), length),
        )?;
        if started == 0 {
            return Err(refused(store, "its proxy_on_vm_start answered false"));
        }
    }
    if let Some(on_configure) = &exports.on_configure {
        let state = store.data_mut();
        state.moment = Moment::Configure;
        state.effective = root;
        let configured = enter(
            store,
            "proxy_on_configure",
            on_configure,
            (root.cast_signed(), small(length)),
        )?;
        if configured == 0 {
            return Err(refused(
                store,
                "it refuses the configuration (proxy_on_configure answered false)",
            ));
        }
    }
    Ok(())
}

/// Why the guest refuses, as far as it says.
fn refused(store: &mut Store<State>, what: &str) -> Refusal {
    let complaints = std::mem::take(&mut store.data_mut().complaints);
    if complaints.is_empty() {
        return Refusal::Refused(what.to_owned());
    }
    Refusal::Refused(format!("{}: {what}", complaints.join("; ")))
}

/// The place of the context that a slot stands for.
fn place_of(slot: Slot) -> Option<usize> {
    usize::try_from(slot.0 & u64::from(u32::MAX))
        .ok()?
        .checked_sub(1)
}

/// The VM that a slot's context is in; none: it stands for none.
pub(crate) fn generation_of(slot: Slot) -> Option<u32> {
    (slot != Slot::default()).then_some((slot.0 >> 32) as u32)
}

/// The guest acts for the stream of a context.
#[inline]
fn own(store: &mut Store<State>, place: usize) {
    let state = store.data_mut();
    state.own = Some(place);
    let (id, root) = state
        .contexts
        .at(place)
        .map_or((0, 0), |context| (context.id, context.root));
    state.own_id = id;
    state.effective = id;
    state.root = root;
    state.moment = Moment::Stream;
    state.reply = None;
}

/// The call is over.
#[inline]
fn leave(store: &mut Store<State>) {
    let state = store.data_mut();
    state.own = None;
    state.own_id = 0;
    state.effective = 0;
    state.root = 0;
    state.moment = Moment::Other;
}

/// The place of a stream's context, which is made with the first call.
#[inline]
fn begin_stream(
    store: &mut Store<State>,
    exports: &Exports,
    root: u32,
    generation: u32,
    slot: &mut Slot,
) -> Result<usize, Trouble> {
    if let Some(place) = place_of(*slot) {
        own(store, place);
        return Ok(place);
    }
    let (place, id) = store.data_mut().contexts.add(root);
    *slot = Slot(u64::from(generation) << 32 | (place as u64 + 1));
    own(store, place);
    if let Some(on_context_create) = &exports.on_context_create {
        enter(
            store,
            "proxy_on_context_create",
            on_context_create,
            (id.cast_signed(), root.cast_signed()),
        )?;
        store.data_mut().effective = id;
    }
    Ok(place)
}

fn run_phase(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    call: Call,
) -> Result<Answer, Trouble> {
    let id = store.data().own_id.cast_signed();
    let direction = call.phase.direction();
    let Some(part) = part_of(call.phase) else {
        log(store, exports, place, id)?;
        return Ok(Answer::GoesOn);
    };
    if let Some(map) = map_of(part, direction)
        && let Some(context) = store.data_mut().contexts.at_mut(place)
    {
        context.maps.open(map);
    }
    let end = i32::from(call.end_of_stream);
    let state = store.data();
    let size = |map| {
        state
            .lent
            .stream()
            .and_then(|stream| stream.header_map_len(map))
            .map_or(0, small)
    };
    let answer = match (part, direction) {
        (Part::Headers, _) => {
            let (name, function) = match direction {
                Direction::Request => ("proxy_on_request_headers", &exports.on_request_headers),
                Direction::Response => ("proxy_on_response_headers", &exports.on_response_headers),
            };
            match function {
                OnHeaders::Absent => None,
                OnHeaders::Counted(function) => {
                    let size = size(direction.headers());
                    Some(enter(store, name, function, (id, size))?)
                }
                OnHeaders::CountedAndEnd(function) => {
                    let size = size(direction.headers());
                    Some(enter(store, name, function, (id, size, end))?)
                }
            }
        }
        (Part::Body, _) => {
            let (name, function) = match direction {
                Direction::Request => ("proxy_on_request_body", &exports.on_request_body),
                Direction::Response => ("proxy_on_response_body", &exports.on_response_body),
            };
            let length = state
                .lent
                .stream()
                .and_then(|stream| stream.body_len(direction))
                .map_or(0, small);
            match function {
                None => None,
                Some(function) => Some(enter(store, name, function, (id, length, end))?),
            }
        }
        (Part::Trailers, Direction::Request) => match &exports.on_request_trailers {
            None => None,
            Some(function) => {
                let size = size(HeaderMap::RequestTrailers);
                Some(enter(
                    store,
                    "proxy_on_request_trailers",
                    function,
                    (id, size),
                )?)
            }
        },
        (Part::Trailers, Direction::Response) => match &exports.on_response_trailers {
            None => None,
            Some(function) => {
                let size = size(HeaderMap::ResponseTrailers);
                Some(enter(
                    store,
                    "proxy_on_response_trailers",
                    function,
                    (id, size),
                )?)
            }
        },
    };
    Ok(understand(
        store,
        part,
        direction,
        answer.unwrap_or(action::CONTINUE),
    ))
}

/// What a callback's answer means.
fn understand(store: &mut Store<State>, part: Part, direction: Direction, answer: i32) -> Answer {
    match (part, answer) {
        (_, action::CONTINUE) | (Part::Headers, action::CONTINUE_AND_END_STREAM) => Answer::GoesOn,
        (Part::Headers, action::STOP_ITERATION)
            if store.data().shared.options.allow_on_headers_stop_iteration =>
        {
            Answer::Pauses(Pause::MoreBody)
        }
        (Part::Body, action::STOP_ITERATION_NO_BUFFER) => {
            if let Some(stream) = store.data_mut().lent.stream_mut()
                && let Err(error) = stream.set_body(direction, b"")
            {
                let line = format!("StopIterationNoBuffer: {error}");
                store.data_mut().log(LogLevel::Warn, &line);
            }
            Answer::Pauses(Pause::MoreBody)
        }
        (Part::Body, action::STOP_ITERATION | action::STOP_ITERATION_AND_WATERMARK) => {
            Answer::Pauses(Pause::MoreBody)
        }
        (Part::Body, _) => Answer::Pauses(Pause::MoreBody),
        (Part::Headers | Part::Trailers, _) => Answer::Pauses(Pause::Event),
    }
}

fn log(store: &mut Store<State>, exports: &Exports, place: usize, id: i32) -> Result<(), Trouble> {
    let state = store.data_mut();
    state.moment = Moment::Log;
    if let Some(context) = state.contexts.at_mut(place) {
        for map in [
            HeaderMap::RequestHeaders,
            HeaderMap::RequestTrailers,
            HeaderMap::ResponseHeaders,
            HeaderMap::ResponseTrailers,
        ] {
            context.maps.open(map);
        }
        context.is_over = true;
    }
    if let Some(on_log) = &exports.on_log {
        enter(store, "proxy_on_log", on_log, id)?;
    }
    Ok(())
}

/// What a callback came to: its answer, unless it replied, or said that the stream goes on.
fn conclude(
    store: &mut Store<State>,
    place: usize,
    call: Call,
    answer: Answer,
) -> Result<Decision, Fault> {
    let state = store.data_mut();
    state.refresh_route();
    let reply = state.reply.take();
    let Some(context) = state.contexts.at_mut(place) else {
        return Ok(Decision::Continue);
    };
    if call.phase == Phase::Log {
        return Ok(Decision::Continue);
    }
    if let Some(reply) = reply.or_else(|| context.reply.take()) {
        context.request.paused = false;
        context.request.go_on = false;
        return Ok(Decision::Reply(reply));
    }
    let direction = call.phase.direction();
    let wait = context.wait(direction);
    let goes_on = std::mem::take(&mut wait.go_on);
    let other = context.wait(direction.other());
    other.go_on &= other.paused;
    match answer {
        Answer::Pauses(pause) if !goes_on => {
            context.wait(direction).paused = true;
            if pause == Pause::Event || call.end_of_stream {
                watch(store, place)?;
            }
            Ok(Decision::Pause(pause))
        }
        Answer::Pauses(_) | Answer::GoesOn => {
            context.wait(direction).paused = false;
            if goes_on {
                close_maps(context, direction);
            } else if let Some(map) = part_of(call.phase).and_then(|part| map_of(part, direction)) {
                context.maps.close(map);
            }
            let waits = context.wait(direction.other()).paused;
            if waits {
                watch(store, place)?;
            }
            Ok(Decision::Continue)
        }
    }
}

fn close_maps(context: &mut crate::contexts::Context, direction: Direction) {
    for part in [Part::Headers, Part::Trailers] {
        if let Some(map) = map_of(part, direction) {
            context.maps.close(map);
        }
    }
}

/// What follows from an event.
fn react(store: &mut Store<State>, place: usize) -> Result<Reaction, Fault> {
    let state = store.data_mut();
    state.refresh_route();
    let reply = state.reply.take();
    let Some(context) = state.contexts.at_mut(place) else {
        return Ok(Reaction::default());
    };
    let mut reaction = Reaction {
        reply: reply.or_else(|| context.reply.take()),
        ..Reaction::default()
    };
    for direction in [Direction::Request, Direction::Response] {
        let wait = context.wait(direction);
        let goes_on = std::mem::take(&mut wait.go_on) && wait.paused;
        if goes_on {
            wait.paused = false;
            close_maps(context, direction);
        }
        match direction {
            Direction::Request => reaction.continue_request = goes_on,
            Direction::Response => reaction.continue_response = goes_on,
        }
    }
    if reaction.reply.is_some() {
        context.request = crate::contexts::Wait::default();
    } else if context.request.paused || context.response.paused {
        watch(store, place)?;
    }
    Ok(reaction)
}

/// The stream pauses. Where a callout is under way, its end wakes the stream. Otherwise somebody else has to
/// let it go on, such as a root that ticks: a timer looks whether that has happened.
fn watch(store: &mut Store<State>, place: usize) -> Result<(), Fault> {
    let state = store.data_mut();
    let period = state
        .contexts
        .roots
        .iter()
        .map(|root| root.tick)
        .filter(|tick| *tick > 0)
        .min();
    let Some(context) = state.contexts.at_mut(place).filter(|context| {
        context.watch.is_none() && (context.callouts.is_empty() || period.is_some())
    }) else {
        return Ok(());
    };
    let doubled = SHORTEST_LOOK.saturating_mul(1 << context.looks.min(8));
    let mut delay = doubled.min(LONGEST_LOOK);
    if let Some(period) = period {
        delay = delay.min(Duration::from_millis(u64::from(period)));
    }
    let Some(stream) = state.lent.stream_mut() else {
        return Ok(());
    };
    match stream.start_timer(delay) {
        Ok(timer) => {
            context.watch = Some(timer);
            Ok(())
        }
        // Something else will wake it, or it never goes on: better an end than that.
        Err(_) if !context.callouts.is_empty() => Ok(()),
        Err(failure) => Err(Fault {
            cause: Cause::Error,
            message: format!("it paused a stream that nothing can wake: {failure}"),
        }),
    }
}

/// A timer of `watch` is due.
fn look(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    timer: u64,
) -> Result<(), Trouble> {
    let state = store.data_mut();
    let own_id = state.own_id;
    if let Some(context) = state.contexts.at_mut(place)
        && context.watch == Some(timer)
    {
        context.watch = None;
        context.looks = context.looks.saturating_add(1);
    }
    tick(store, exports)?;
    store.data_mut().effective = own_id;
    finish_done(store, exports)
}

/// Calls the roots whose time has come.
fn tick(store: &mut Store<State>, exports: &Exports) -> Result<(), Trouble> {
    let Some(on_tick) = &exports.on_tick else {
        return Ok(());
    };
    let now = store.data().shared.clock.now();
    loop {
        let state = store.data_mut();
        let due = state
            .contexts
            .roots
            .iter_mut()
            .find(|root| root.tick > 0 && root.next_tick <= now);
        let Some(root) = due else { return Ok(()) };
        root.next_tick = now + Duration::from_millis(u64::from(root.tick));
        let id = root.id;
        state.effective = id;
        state.root = id;
        state.moment = Moment::Other;
        enter(store, "proxy_on_tick", on_tick, id.cast_signed())?;
    }
}

/// Headers and body of a response.
type Parts<'a> = (&'a [(&'a [u8], &'a [u8])], &'a [&'a [u8]]);

/// What Envoy's host tells a guest whose callout took too long.
const TIMEOUT_BODY: &[u8] = b"upstream request timeout";

fn callout_done(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    wake: WakeId,
    outcome: Result<Parts<'_>, CalloutFailure>,
) -> Result<(), Trouble> {
    let state = store.data_mut();
    let own_id = state.own_id;
    let Some(context) = state.contexts.at_mut(place) else {
        return Ok(());
    };
    let Some(found) = context.callouts.iter().position(|one| one.wake == wake) else {
        return Ok(());
    };
    let callout = context.callouts.swap_remove(found);
    let response = &mut state.response;
    response.is_there = true;
    response.headers.clear();
    response.trailers.clear();
    response.body.clear();
    let status = match outcome {
        Ok((headers, body)) => {
            let own = |(name, value): &(&[u8], &[u8])| (name.to_vec(), value.to_vec());
            response.headers.extend(headers.iter().map(own));
            for piece in body {
                response.body.extend_from_slice(piece);
            }
            (200, "")
        }
        Err(CalloutFailure::Timeout) => {
            let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
            response.headers.extend([
                pair(b":status", b"504"),
                pair(b"content-length", b"24"),
                pair(b"content-type", b"text/plain"),
            ]);
            response.body.extend_from_slice(TIMEOUT_BODY);
            (504, "upstream request timeout")
        }
        Err(_) => (11, "reset"),
    };
    let (headers, body) = (small(response.headers.len()), small(response.body.len()));
    if let Some(root) = state.contexts.root(callout.root) {
        root.outcome = status;
    }
    state.effective = callout.root;
    state.root = callout.root;
    state.moment = Moment::Other;
    if let Some(function) = &exports.on_http_call_response {
        enter(
            store,
            "proxy_on_http_call_response",
            function,
            (
                callout.root.cast_signed(),
                callout.token.cast_signed(),
                headers,
                body,
                0,
            ),
        )?;
    }
    let state = store.data_mut();
    state.response.is_there = false;
    state.effective = own_id;
    finish_done(store, exports)
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
    store.data_mut().contexts.remove(place);
    Ok(())
}

/// Contexts that the guest was not done with, and now is.
fn finish_done(store: &mut Store<State>, exports: &Exports) -> Result<(), Trouble> {
    while let Some(id) = store.data_mut().done.pop() {
        if let Some(place) = store.data().contexts.find(id) {
            delete(store, exports, place, id)?;
        }
    }
    Ok(())
}
