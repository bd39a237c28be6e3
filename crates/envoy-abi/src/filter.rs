//! One stream's filter: the state that Envoy's hooks for it share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Audience, Chain, ChainRun, Effects, HttpStreamEvent, HttpStreamId, LogLevel, MemoryExceeded,
    Reply, Reservation, Verdict, Wake, WakeId,
};
use smallvec::SmallVec;

use crate::callbacks::Callbacks;
use crate::callout::{Doubtful, Judged};
use crate::event_queue::{EventQueue, NextEvent};
use crate::host::{EnvoyHost, monotonic_nanos, unix_millis};
use crate::module::{FilterConfig, RouteConfig};
use crate::raw::{FilterPtr, ModuleBuffer, ModuleHeader};
use crate::wake_queue::{self, FilterKey, TimerKey};
use outrider_plugin_api::Direction;

pub(crate) struct Filter {
    callbacks: &'static Callbacks,
    /// There while a stream has the filter.
    config: Option<Arc<dyn FilterConfig>>,
    state: RefCell<State>,
    /// Envoy has not destroyed the filter yet, so its pointer is good.
    alive: Cell<bool>,
    /// Events that wait for their delivery.
    events: RefCell<EventQueue>,
    /// The filter in its worker's queue of wake-ups; 0: it has not been there.
    wake_key: Cell<FilterKey>,
    /// Set when a hook panicked or was re-entered: nothing more of the stream runs.
    broken: Cell<Option<Broken>>,
    /// Response headers have gone on: a reply cannot take their place any more.
    response_started: Cell<bool>,
    /// Responses on HTTP streams of which it is not known yet whether Envoy made them up.
    doubtful: RefCell<Doubtful>,
}

#[derive(Default)]
struct State {
    /// The stream's way through its chain; made when the first hook runs, because only then the
    /// route is known.
    run: Option<ChainRun>,
    timer_keys: SmallVec<[TimerKey; 1]>,
    start_millis: u64,
    worker: usize,
    /// Whether the request was one of gRPC, before a plugin changed its `content-type`.
    was_grpc: Option<bool>,
    /// Envoy has been told how much of a body may be held back.
    limited: bool,
}

/// How long an event waits for its plugin's share of the worker, before that is asked again.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(200);

thread_local! {
    /// The worker's filters that no stream has: a stream begins without asking for memory.
    static FREE: RefCell<Vec<Rc<Filter>>> = const { RefCell::new(Vec::new()) };
}

/// How many of them are kept.
const MOST_FREE: usize = 256;

impl Filter {
    /// A filter for a stream that begins: one that is free, or a new one.
    pub(crate) fn new(callbacks: &'static Callbacks, config: Arc<dyn FilterConfig>) -> Rc<Self> {
        let free = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
        if let Some(mut filter) = free
            && let Some(own) = Rc::get_mut(&mut filter)
        {
            own.config = Some(config);
            own.alive.set(true);
            return filter;
        }
        Rc::new(Self {
            callbacks,
            config: Some(config),
            state: RefCell::default(),
            alive: Cell::new(true),
            events: RefCell::default(),
            wake_key: Cell::new(0),
            broken: Cell::new(None),
            response_started: Cell::new(false),
            doubtful: RefCell::default(),
        })
    }

    /// The stream is gone, and Envoy knows the filter no more.
    pub(crate) fn retire(mut self: Rc<Self>) {
        self.end();
        // A hook that is still running further up the stack keeps it for itself.
        let Some(own) = Rc::get_mut(&mut self) else {
            return;
        };
        own.config = None;
        // Nothing of this stream may be left for the next; `run`'s first step writes the others.
        let State {
            run,
            timer_keys,
            limited,
            start_millis: _,
            worker: _,
            was_grpc,
        } = own.state.get_mut();
        *run = None;
        timer_keys.clear();
        *limited = false;
        *was_grpc = None;
        own.events.get_mut().clear();
        own.wake_key.set(0);
        own.response_started.set(false);
        if own.broken.get().is_some() {
            return;
        }
        *own.doubtful.get_mut() = Doubtful::default();
        // Not when the thread ends: then it is dropped.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MOST_FREE {
                free.push(self);
            }
        });
    }

    /// Calls `step` with the stream's run and its host, then carries out the effects; unless `skip` finds
    /// that the run has nothing to do, and answers at once. Envoy may have destroyed the filter when this
    /// returns.
    ///
    /// Returns `None` when the stream is in the middle of another step, which no callback that a
    /// plugin can reach leads to: then the stream is broken off.
    pub(crate) fn step<T>(
        self: &Rc<Self>,
        filter: FilterPtr,
        receiving: Option<Direction>,
        skip: impl FnOnce(&mut ChainRun) -> Option<T>,
        step: impl FnOnce(&mut ChainRun, &mut EnvoyHost<'_>) -> (T, Effects),
    ) -> Option<T> {
        let config = self.config.as_deref()?;
        let Ok(mut state) = self.state.try_borrow_mut() else {
            crate::log::log(
                LogLevel::Error,
                "a stream was re-entered, which is a bug of Outrider; it is broken off",
            );
            // The step that is under way ends the stream when it is done.
            self.broken.set(Some(Broken::Reentered));
            return None;
        };
        let State {
            run,
            timer_keys,
            start_millis,
            worker,
            was_grpc,
            limited,
        } = &mut *state;
        let run = run.get_or_insert_with(|| {
            *start_millis = unix_millis();
            // A stream stays on its worker.
            *worker = crate::worker::number().unwrap_or(usize::MAX);
            ChainRun::new(config.chain(self.route(config, filter)))
        });
        if let Some(answer) = skip(run) {
            return Some(answer);
        }
        let mut host = EnvoyHost {
            callbacks: self.callbacks,
            filter,
            config,
            receiving,
            timer_keys,
            start_millis: *start_millis,
            worker: *worker,
            was_grpc,
            limited,
            known: RefCell::default(),
            wake_key: &self.wake_key,
        };
        let (result, mut effects) = step(run, &mut host);
        if let Some(reply) = &mut effects.reply {
            crate::grpc::name_status(reply, &host);
        }
        drop(state);
        if !self.alive.get() {
            // Envoy destroyed the filter inside of the step, which nothing that a step calls should
            // lead to; its plugins are still given back what is theirs.
            self.end();
            return Some(result);
        }
        if self.broken.get().is_some() {
            self.break_off(filter);
            return None;
        }
        if !effects.is_empty() {
            self.act(filter, effects);
        }
        Some(result)
    }

    /// Keeps an event of a plugin's callout or HTTP stream until it is the filter's turn to be woken (see
    /// `wake_queue`). Envoy raises events in the middle of its codecs, and of the calls that start and reset what
    /// they are about: plugins never run there.
    pub(crate) fn queue(&self, filter: FilterPtr, wake: &Wake<'_>) {
        let limit = self.config.as_deref().and_then(FilterConfig::body_limit);
        let Ok(mut events) = self.events.try_borrow_mut() else {
            return;
        };
        events.push(wake, limit, |bytes| self.reserve_event(wake, bytes));
        let is_empty = events.is_empty();
        drop(events);
        if !is_empty {
            wake_queue::wake(self.callbacks, filter, &self.wake_key);
        }
    }

    /// Delivers timers that are due and the events that [`Filter::queue`] kept, until the turn is over.
    pub(crate) fn deliver(self: &Rc<Self>, filter: FilterPtr) {
        let Some((mut wake_up, timers)) = wake_queue::begin(self.wake_key.get()) else {
            return;
        };
        for number in timers {
            self.timer_is_over(number);
            let timer = Wake::Timer(number);
            self.events.borrow_mut().push(&timer, None, |_| Ok(None));
        }
        while self.alive.get() && self.broken.get().is_none() {
            if wake_up.is_over() {
                wake_up.has_more = !self.events.borrow().is_empty();
                return;
            }
            // Taken out one by one: an event that comes meanwhile is behind them.
            let next = self.events.borrow_mut().pop(|id| self.wait_for_share(id));
            let event = match next {
                NextEvent::Now(event) => event,
                NextEvent::Later(wait) => {
                    wake_up.delay = Some(wait.clamp(SHORTEST_WAIT, LONGEST_WAIT));
                    return;
                }
                NextEvent::Nothing => return,
            };
            let resets = event.resets;
            event.wake.with(|wake| {
                if resets && let Wake::HttpStream(id, _) = wake {
                    self.reset_http_stream(filter, id);
                }
                self.deliver_one(filter, wake);
            });
        }
    }

    /// Reserves the bytes of an event in the account of the plugin that waits for it. An event that Envoy raises inside of
    /// a step is not counted there; such events are failures, and answers of Envoy's own.
    fn reserve_event(
        &self,
        wake: &Wake<'_>,
        bytes: usize,
    ) -> Result<Option<Reservation>, MemoryExceeded> {
        let Ok(state) = self.state.try_borrow() else {
            return Ok(None);
        };
        match (&state.run, wake.id()) {
            (Some(run), Some(id)) => run.reserve_event(id, bytes),
            _ => Ok(None),
        }
    }

    /// How long an event has to wait for its plugin's share of the worker.
    fn wait_for_share(&self, id: WakeId) -> Option<Duration> {
        let mut state = self.state.try_borrow_mut().ok()?;
        let worker = state.worker;
        let run = state.run.as_mut()?;
        run.wait_for_share(id, worker, monotonic_nanos())
    }

    /// Resets an HTTP stream whose events are refused.
    fn reset_http_stream(&self, filter: FilterPtr, id: HttpStreamId) {
        // SAFETY: the filter is alive during its hook; Envoy knows which of its streams are over.
        unsafe { (self.callbacks.http_filter_reset_http_stream)(filter, id.0) }
    }

    fn deliver_one(self: &Rc<Self>, filter: FilterPtr, wake: Wake<'_>) {
        let on_wake = |wake: Wake<'_>| {
            if self.alive.get() {
                self.step(
                    filter,
                    None,
                    |_| None,
                    |run, host| ((), run.on_wake(wake, host)),
                );
            }
        };
        let Wake::HttpStream(id, event) = wake else {
            return on_wake(wake);
        };
        let judged = self.doubtful.borrow_mut().judge(id, &event);
        match judged {
            Judged::Wait => {}
            Judged::Real(headers) => {
                if let Some(headers) = headers {
                    headers.with(|headers| on_wake(Wake::HttpStream(id, headers)));
                }
                on_wake(wake);
            }
            Judged::MadeUp(failure) => {
                on_wake(Wake::HttpStream(id, HttpStreamEvent::Failed(failure)));
            }
        }
    }

    /// As [`Filter::step`], for headers, chunks and trailers, which the run may hold back. `skip`: whether
    /// they go on without the run's seeing them.
    pub(crate) fn pass(
        self: &Rc<Self>,
        filter: FilterPtr,
        receiving: Option<Direction>,
        skip: impl FnOnce(&mut ChainRun) -> bool,
        step: impl FnOnce(&mut ChainRun, &mut EnvoyHost<'_>) -> (Verdict, Effects),
    ) -> Option<Verdict> {
        let skip = |run: &mut ChainRun| skip(run).then_some(Verdict::Continue);
        self.step(filter, receiving, skip, |run, host| {
            let (verdict, effects) = step(run, host);
            if matches!(verdict, Verdict::Pause | Verdict::Hold) {
                host.limit_bodies();
            }
            (verdict, effects)
        })
    }

    fn route(&self, config: &dyn FilterConfig, filter: FilterPtr) -> Option<&RouteConfig> {
        if !config.may_have_routes() {
            return None;
        }
        // SAFETY: the filter is alive during its hook.
        let route = unsafe { (self.callbacks.get_most_specific_route_config)(filter) };
        // SAFETY: not null, it is a pointer that the hook `per_route_config_new` returned; Envoy
        // keeps the route's configuration for as long as the stream has the route.
        unsafe { route.cast::<RouteConfig>().as_ref() }
    }

    /// The chain of the stream; `None` before its first hook.
    pub(crate) fn chain(&self) -> Option<Arc<Chain>> {
        let state = self.state.try_borrow().ok()?;
        state.run.as_ref().map(|run| Arc::clone(run.chain()))
    }

    /// How the stream was broken off, if it was.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken.get()
    }

    /// Response headers go on.
    pub(crate) fn start_response(&self) {
        self.response_started.set(true);
    }

    /// Ends the stream after a fault of Outrider's own: with a 500, or by a reset when response headers have gone on.
    pub(crate) fn break_off(&self, filter: FilterPtr) {
        let how = match self.broken.get() {
            Some(Broken::Replied | Broken::Reset) => return,
            _ if self.response_started.get() => Broken::Reset,
            _ => Broken::Replied,
        };
        // First: Envoy calls response hooks inside of the reply.
        self.broken.set(Some(how));
        if let Ok(mut events) = self.events.try_borrow_mut() {
            events.clear();
        }
        if self.alive.get() {
            let audience = match how {
                Broken::Reset => Audience::Nobody,
                Broken::Replied | Broken::Reentered => Audience::Everyone,
            };
            let reply = Reply {
                status: 500,
                details: "outrider.broken_off".into(),
                audience,
                ..Reply::default()
            };
            send(self.callbacks, filter, &reply);
        }
    }

    /// Carries out what may re-enter or destroy the filter.
    fn act(&self, filter: FilterPtr, effects: Effects) {
        let Effects {
            reply,
            resume_request,
            resume_response,
        } = effects;
        if let Some(reply) = reply {
            send(self.callbacks, filter, &reply);
            return;
        }
        for (wanted, is_response, resume) in [
            (
                resume_request,
                false,
                self.callbacks.http_filter_continue_decoding,
            ),
            (
                resume_response,
                true,
                self.callbacks.http_filter_continue_encoding,
            ),
        ] {
            if wanted && self.alive.get() && self.broken.get().is_none() {
                if is_response {
                    self.start_response();
                }
                // SAFETY: Envoy has not destroyed the filter, or `alive` would say so.
                unsafe { resume(filter) }
            }
        }
    }

    /// A timer has called back: nothing is left to cancel. Without this, a stream that lives long and
    /// sleeps often would gather keys.
    pub(crate) fn timer_is_over(&self, number: u64) {
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.timer_keys.retain(|key| key.1 != number);
        }
    }

    /// The stream is gone.
    pub(crate) fn end(&self) {
        self.alive.set(false);
        wake_queue::remove(self.wake_key.replace(0));
        let Ok(mut state) = self.state.try_borrow_mut() else {
            // A step is under way; it does this when it is done.
            return;
        };
        // No plugin can reach the stream from here, so the state may stay borrowed; and it goes with
        // the filter, whose last hook this is.
        let worker = state.worker;
        if let Some(run) = &mut state.run {
            run.end(worker);
        }
        for key in state.timer_keys.drain(..) {
            wake_queue::cancel_timer(key);
        }
    }
}

/// `envoy_dynamic_module_type_http_filter_stream_reset_reason_LocalReset`
const LOCAL_RESET: u32 = 0;

fn send(callbacks: &Callbacks, filter: FilterPtr, reply: &Reply) {
    let headers = ModuleHeader::all(&reply.headers);
    // Envoy asserts that details hold no white space.
    let details: Vec<u8> = reply
        .details
        .bytes()
        .map(|byte| {
            if byte.is_ascii_whitespace() {
                b'_'
            } else {
                byte
            }
        })
        .collect();
    if reply.audience == Audience::Nobody {
        // SAFETY: nothing has freed the filter yet in this hook; the details outlive the call, and Envoy
        // copies them.
        unsafe {
            (callbacks.http_filter_reset_stream)(filter, LOCAL_RESET, ModuleBuffer::new(&details));
        }
        return;
    }
    // SAFETY: nothing has freed the filter yet in this hook; everything lent outlives the call, and
    // Envoy copies it.
    unsafe {
        (callbacks.http_send_response)(
            filter,
            u32::from(reply.status),
            headers.as_ptr(),
            headers.len(),
            ModuleBuffer::new(&reply.body),
            ModuleBuffer::new(&details),
        );
    }
}

/// How a stream was broken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A hook was called in the middle of a step, which will end the stream.
    Reentered,
    /// With a 500, which passes the response hooks.
    Replied,
    /// By a reset.
    Reset,
}

/// What a hook answers for a verdict, given the answers for each. No verdict: the stream is broken off.
pub(crate) fn answer(verdict: Option<Verdict>, go: u32, pause: u32, hold: u32, stop: u32) -> u32 {
    match verdict {
        Some(Verdict::Continue) => go,
        Some(Verdict::Pause) => pause,
        Some(Verdict::Hold) => hold,
        None | Some(Verdict::Stop) => stop,
    }
}
