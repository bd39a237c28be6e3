//! Calling one link: what it is shown, what its answer means, and what its failure policy makes of a
//! failure.

use std::time::Duration;

use super::flow::{DelayedCall, Flow, Task};
use super::share::{CHARGED_LOG, over_share, share_of};
use super::{ChainRun, Effects, LinkState, breaker};
use crate::call_times::Stopwatch;
use crate::callout::Wake;
use crate::chain::Link;
use crate::failure::{Cause, FailureAction, Fault};
use crate::framing;
use crate::host::Host;
use crate::journal::Journal;
use crate::local::LocalResponse;
use crate::metric::MetricId;
use crate::phase::{Direction, Phase};
use crate::plugin::{Audience, Call, Decision, Pause, Reply, Slot};
use crate::view::{BodyView, Length, View, Window};

/// What a call of a link came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It is done with what it was given.
    Done,
    /// It waits for an event.
    Paused,
    /// It waits for the whole body.
    WantsBody,
    /// It waits for more of the body, and keeps what it has.
    Keeps,
    /// It ended the stream.
    Replied,
}

/// How a link is called.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action<'a> {
    /// Its handler is called.
    Call(Call),
    /// A handler that paused goes on.
    Resume(Wake<'a>),
}

impl Action<'_> {
    /// Returns the call to make later, or `None` if it delivers bytes that only live now.
    fn delayed(&self) -> Option<DelayedCall> {
        match self {
            Self::Call(call) => Some(DelayedCall::Handler(*call)),
            Self::Resume(Wake::Body) => Some(DelayedCall::ResumeWithBody),
            Self::Resume(_) => None,
        }
    }
}

impl ChainRun {
    /// Calls or resumes a link, and applies its failure policy when it fails.
    pub(super) fn invoke<H: Host>(
        &mut self,
        direction: Direction,
        position: usize,
        task: Task,
        action: Action<'_>,
        host: &mut H,
    ) -> Step {
        let index = self.link_at(direction, position);
        let chunk = self.flow(direction).chunk;
        let flow = self.flow(direction);
        let mut body = match task {
            Task::Chunk => chunk.map(|chunk| (chunk.window, self.length_at(direction, position))),
            Task::WholeBody => chunk.map(|chunk| (chunk.window, Length::Follows)),
            Task::Headers => flow
                .body_made_by(position)
                .map(|window| (window, Length::Follows)),
            Task::Trailers => None,
        }
        .map(|(window, length)| BodyView {
            direction,
            window,
            length,
        });
        let outcome = match self.enter(direction, index, task, &mut body, action, host) {
            Ok(outcome) => outcome,
            Err(step) => return step,
        };
        if let Some(body) = body {
            let flow = self.flow_mut(direction);
            match task {
                Task::Headers => flow.made_body(position, body.window),
                _ => flow.resized(body.window),
            }
        }
        self.came_to(direction, index, task, outcome, host)
    }

    /// As [`ChainRun::invoke`], for the handler of headers, which sees no body.
    #[inline]
    pub(super) fn invoke_for_headers<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        call: Call,
        host: &mut H,
    ) -> Step {
        let action = Action::Call(call);
        let mut body = None;
        let outcome = match self.enter(direction, index, Task::Headers, &mut body, action, host) {
            Ok(outcome) => outcome,
            Err(step) => return step,
        };
        if let Some(body) = body {
            let position = self.flow(direction).cursor;
            self.flow_mut(direction).made_body(position, body.window);
        }
        match outcome {
            Ok(Decision::Continue) => Step::Done,
            outcome => self.came_to(direction, index, Task::Headers, outcome, host),
        }
    }

    /// As [`ChainRun::invoke`], for the handler of a chunk in a flow in which nothing is kept. Answers the
    /// chunk's part of the body, too, as it is now.
    #[inline]
    pub(super) fn invoke_for_chunk<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        call: Call,
        window: Window,
        host: &mut H,
    ) -> (Step, Window) {
        let mut body = Some(BodyView {
            direction,
            window,
            length: Length::Announced,
        });
        let action = Action::Call(call);
        let outcome = match self.enter(direction, index, Task::Chunk, &mut body, action, host) {
            Ok(outcome) => outcome,
            Err(step) => return (step, window),
        };
        let left = body.map_or(window, |body| body.window);
        if left != window {
            self.flow_mut(direction).resized(left);
        }
        let step = match outcome {
            Ok(Decision::Continue) => Step::Done,
            outcome => self.came_to(direction, index, Task::Chunk, outcome, host),
        };
        (step, left)
    }

    /// Calls or resumes a link: what it answered; `body` is as it left it. A step instead: it was not called.
    #[expect(
        clippy::inline_always,
        reason = "the way of headers, which most calls are, has no body and no resumption in it"
    )]
    #[inline(always)]
    fn enter<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        task: Task,
        body: &mut Option<BodyView>,
        action: Action<'_>,
        host: &mut H,
    ) -> Result<Result<Decision, Fault>, Step> {
        // Envoy takes it for a bug when the route is touched later.
        let may_route = direction == Direction::Request
            && self.request.cursor < self.states.len()
            && !self.response.headers_seen;
        let holds_headers = self.holds_headers(index);
        let makes_body = self.makes_body(direction, task);
        let mut journal = self.journal_for(direction, index, action);
        let Self {
            chain,
            states,
            waits,
            changes,
            memory,
            local,
            effects: _,
            ..
        } = self;
        let (Some(link), Some(state)) = (chain.links().get(index), states.get_mut(index)) else {
            return Err(Step::Done);
        };
        if state.out {
            return Err(Step::Done);
        }
        if breaker::is_refused(link, state, host) {
            return Err(self.turn_away(direction, index, Cause::Circuit, host));
        }
        let delayed = action.delayed();
        let waited = state.patience.waited_in_all(|| host.monotonic_nanos());
        if let Some(call) = delayed
            && let Some(wait) = share_of(link, host.worker(), waited)
        {
            return Err(self.delay_call(direction, index, task, call, wait, host));
        }
        let outcome = match &link.plugin {
            None => Err(Fault {
                cause: Cause::Unavailable,
                message: "the gateway has no such plugin, or it could not be configured here"
                    .into(),
            }),
            Some(plugin) => {
                let mut view = View {
                    host: &mut *host,
                    called: link,
                    link: index,
                    direction,
                    local: local.as_mut(),
                    body: *body,
                    waits: &mut *waits,
                    changes: &mut *changes,
                    memory: &mut *memory,
                    grown: 0,
                    grown_credit: 0,
                    journal: journal.as_mut(),
                    holds_headers,
                    makes_body,
                    may_wait: true,
                    may_route,
                };
                let watch = Stopwatch::start(link.times.as_deref(), &*view.host);
                let outcome = match action {
                    Action::Call(call) => {
                        note_call(link, state, view.host);
                        plugin.call(&mut state.slot, call, &mut view)
                    }
                    Action::Resume(wake) => {
                        plugin.resume(&mut state.slot, direction, wake, &mut view)
                    }
                };
                watch.stop(task.phase(direction), view.host);
                *body = view.body;
                outcome
            }
        };
        // The plugin found out that its VM is being made, and was not called: the call is made when it is there.
        if matches!(&outcome, Err(fault) if fault.cause == Cause::Unavailable)
            && let Some(call) = delayed
            && let Some(wait) = share_of(link, host.worker(), waited)
        {
            return Err(self.delay_call(direction, index, task, call, wait, host));
        }
        if let Some(journal) = journal
            && !matches!(outcome, Ok(Decision::Continue))
        {
            self.keep_journal(index, direction, journal);
        }
        Ok(outcome)
    }

    /// The journal for a call whose changes may have to be undone: where a handler goes on, that with which it
    /// paused.
    #[inline]
    fn journal_for(
        &mut self,
        direction: Direction,
        index: usize,
        action: Action<'_>,
    ) -> Option<Journal> {
        let link = self.chain.links().get(index)?;
        if !link.failure_policy.may_open() {
            return None;
        }
        let kept = if self.journals.is_empty() {
            None
        } else {
            self.take_journal(index, direction)
        };
        match action {
            Action::Call(_) => Some(Journal::default()),
            Action::Resume(_) => Some(kept.unwrap_or_default()),
        }
    }

    /// Whether a link still holds the headers of the request, and those of the response.
    #[inline]
    pub(super) fn holds_headers(&self, index: usize) -> [bool; 2] {
        let holds = |direction| self.flow(direction).cursor <= self.link_at(direction, index);
        [holds(Direction::Request), holds(Direction::Response)]
    }

    /// The direction in which a call may make a body: that of headers which came without one.
    #[inline]
    fn makes_body(&self, direction: Direction, task: Task) -> Option<Direction> {
        let may = task == Task::Headers && self.flow(direction).headers_end;
        may.then_some(direction)
    }

    /// What a link's answer means.
    #[inline(never)]
    fn came_to<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        task: Task,
        outcome: Result<Decision, Fault>,
        host: &mut H,
    ) -> Step {
        if let Ok(Decision::Continue) = outcome {
            return Step::Done;
        }
        let waits = &self.waits;
        let outcome = outcome.and_then(|decision| match decision {
            Decision::Pause(Pause::Event) if !waits.any(index) => Err(Fault {
                cause: Cause::Error,
                message: "paused, but waits for no callout and no timer".into(),
            }),
            Decision::Pause(Pause::WholeBody) if task != Task::Headers => Err(Fault {
                cause: Cause::Error,
                message: "the whole body can be waited for in a headers handler only".into(),
            }),
            Decision::Pause(Pause::MoreBody) if !matches!(task, Task::Headers | Task::Chunk) => {
                Err(Fault {
                    cause: Cause::Error,
                    message: "more of the body can be waited for in a headers or a body handler \
                              that streams only"
                        .into(),
                })
            }
            decision => Ok(decision),
        });
        let outcome = match outcome {
            Ok(Decision::Reply(reply)) => self
                .admit_reply(index, &reply, host)
                .map(|()| Decision::Reply(reply)),
            outcome => outcome,
        };
        match outcome {
            Ok(Decision::Continue) => Step::Done,
            Ok(Decision::Pause(Pause::Event)) => Step::Paused,
            Ok(Decision::Pause(Pause::WholeBody)) => Step::WantsBody,
            Ok(Decision::Pause(Pause::MoreBody)) => Step::Keeps,
            Ok(Decision::Reply(reply)) => {
                let replies = self
                    .chain
                    .links()
                    .get(index)
                    .and_then(|link| link.metrics.replies);
                count(host, replies);
                self.reply(direction, index, *reply);
                Step::Replied
            }
            Err(fault) => self.fail(direction, index, task.phase(direction), &fault, host),
        }
    }

    /// A link failed: says so, counts it, and applies its policy. It is not called on this stream
    /// again.
    pub(super) fn fail<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        phase: Phase,
        fault: &Fault,
        host: &mut H,
    ) -> Step {
        self.waits.cancel_all(index, host);
        let (Some(link), Some(state)) = (self.chain.links().get(index), self.states.get_mut(index))
        else {
            return Step::Done;
        };
        report(link, phase, fault, host);
        breaker::failed(link, state, fault, host);
        self.turn_away(direction, index, fault.cause, host)
    }

    /// Applies a link's failure policy: it is not called on this stream again.
    fn turn_away<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        cause: Cause,
        host: &mut H,
    ) -> Step {
        let (Some(link), Some(state)) = (self.chain.links().get(index), self.states.get_mut(index))
        else {
            return Step::Done;
        };
        state.out = true;
        release(link, state, host.worker());
        match link.failure_policy.action(cause) {
            FailureAction::Open => {
                self.undo(index, host);
                // It may also be waiting in the other direction, where nothing will wake it now.
                self.abandon(direction, index, host);
                Step::Done
            }
            FailureAction::Closed => {
                let reply = Reply {
                    status: link.failure_policy.status(),
                    details: format!("outrider.{}.{cause}", link.name),
                    ..Reply::default()
                };
                self.reply(direction, index, reply);
                Step::Replied
            }
        }
    }

    /// A link that failed in `failed` is passed over where it waits in the other direction.
    fn abandon<H: Host>(&mut self, failed: Direction, index: usize, host: &mut H) {
        self.pass_over(failed.other(), index, host);
    }

    /// A link is done with what it waits for, or keeps, in a direction, if it does.
    pub(super) fn pass_over<H: Host>(&mut self, direction: Direction, index: usize, host: &mut H) {
        let position = self.link_at(direction, index);
        let flow = self.flow(direction);
        let waits = flow.suspended.is_some_and(|(at, _)| at == position)
            || flow.is_held_by(position)
            || flow.kept_by(position).is_some();
        let is_called = self.states.get(index).is_some_and(|state| !state.out);
        if flow.finished || !waits || (is_called && flow.share_wait.is_some()) {
            return;
        }
        self.let_go(direction, position, host);
        let progress = self.advance(direction, host);
        self.set_going(direction, progress, host);
    }

    /// What a change of the body's length does at a link: nothing was announced while it holds the headers.
    fn length_at(&self, direction: Direction, position: usize) -> Length {
        if self.flow(direction).is_held_by(position) {
            Length::Follows
        } else {
            Length::Announced
        }
    }

    /// The body that a link which waits, or keeps some of it, was given; and its direction.
    pub(super) fn body_of(&self, index: usize) -> Option<BodyView> {
        [Direction::Request, Direction::Response]
            .into_iter()
            .find_map(|direction| {
                let position = self.link_at(direction, index);
                let flow = self.flow(direction);
                let (window, length) = match flow.suspended {
                    Some((at, Task::Chunk)) if at == position => {
                        (flow.chunk?.window, self.length_at(direction, position))
                    }
                    Some((at, Task::WholeBody)) if at == position => {
                        (flow.chunk?.window, Length::Follows)
                    }
                    Some((at, Task::Headers)) if at == position && flow.made_by == Some(at) => {
                        (flow.body_made_by(position)?, Length::Follows)
                    }
                    _ => (flow.kept_by(position)?, self.length_at(direction, position)),
                };
                Some(BodyView {
                    direction,
                    window,
                    length,
                })
            })
    }

    /// A link ends the stream with a response of its own.
    pub(super) fn reply(&mut self, direction: Direction, index: usize, mut reply: Reply) {
        if reply.details.is_empty() {
            let name = self.chain.links().get(index).map_or("", |link| &*link.name);
            reply.details = format!("outrider.{name}");
        }
        framing::clean_reply(&mut reply);
        self.request.finished = true;
        self.request.suspended = None;
        self.request.share_wait = None;
        let response_is_untouched = !self.response.headers_seen && !self.response.finished;
        let is_answered = reply.audience != Audience::Nobody;
        if direction == Direction::Request && response_is_untouched && is_answered {
            let audience = reply.audience;
            let local = LocalResponse::new(reply);
            self.response = Flow {
                headers_seen: true,
                headers_end: local.body.is_empty(),
                data_waits: !local.body.is_empty(),
                end_waits: true,
                ..Flow::default()
            };
            self.replier = (audience == Audience::Others).then_some(index);
            self.local = Some(local);
        } else {
            self.local = None;
            self.response.finished = true;
            self.effects = Effects {
                reply: Some(Box::new(reply)),
                ..Effects::default()
            };
        }
    }

    /// Calls a link for the log phase, if it handles that.
    pub(super) fn log<H: Host>(&mut self, index: usize, host: &mut H) {
        let (Some(link), Some(state)) = (self.chain.links().get(index), self.states.get_mut(index))
        else {
            return;
        };
        let Some(plugin) = link.plugin.as_ref().filter(|_| !state.out) else {
            return;
        };
        if !link.interest.log || breaker::is_refused(link, state, host) {
            breaker::over(link, state, host);
            return;
        }
        if !plugin.may_log(host.worker()) {
            let fault = over_share(Some(link), host.worker());
            report(link, Phase::Log, &fault, host);
            breaker::over(link, state, host);
            return;
        }
        state.calls += 1;
        let call = Call {
            phase: Phase::Log,
            end_of_stream: true,
        };
        let mut view = View {
            host: &mut *host,
            called: link,
            link: index,
            direction: Direction::Response,
            local: None,
            body: None,
            waits: &mut self.waits,
            changes: &mut self.changes,
            memory: &mut self.memory,
            grown: 0,
            grown_credit: 0,
            journal: None,
            holds_headers: [false; 2],
            makes_body: None,
            may_wait: false,
            may_route: false,
        };
        let watch = Stopwatch::start(link.times.as_deref(), &*view.host);
        let began = view.host.monotonic_nanos();
        let outcome = plugin.call(&mut state.slot, call, &mut view);
        let took = view.host.monotonic_nanos().saturating_sub(began);
        watch.stop(Phase::Log, view.host);
        let took = Duration::from_nanos(took);
        if took >= CHARGED_LOG {
            plugin.charge_log(host.worker(), took);
        }
        let fault = match outcome {
            Ok(Decision::Continue) => return breaker::over(link, state, host),
            Ok(Decision::Pause(_)) => too_late("wait"),
            Ok(Decision::Reply(_)) => too_late("reply"),
            Err(fault) => fault,
        };
        report(link, Phase::Log, &fault, host);
        breaker::failed(link, state, &fault, host);
    }
}

fn too_late(what: &str) -> Fault {
    Fault {
        cause: Cause::Error,
        message: format!("the stream is over: on_log cannot {what}"),
    }
}

/// Says that a link failed, and counts it.
pub(super) fn report<H: Host>(link: &Link, phase: Phase, fault: &Fault, host: &mut H) {
    host.report_fault(link, phase, fault);
    let errors = link.metrics.errors.get(fault.cause.index());
    count(host, errors.copied().flatten());
}

/// So many calls of a link on one stream are counted at once, or as many as there were when it is over.
const COUNTED_AT_ONCE: u32 = 64;

#[inline]
fn note_call<H: Host>(link: &Link, state: &mut LinkState, host: &mut H) {
    state.calls += 1;
    if state.calls == COUNTED_AT_ONCE {
        count_calls(link, state, host);
    }
}

/// Counts the calls of a link, and the log lines it lost, that have not been counted.
pub(super) fn count_calls<H: Host>(link: &Link, state: &mut LinkState, host: &mut H) {
    let dropped = link.logs.take_dropped();
    if dropped > 0
        && let Some(metric) = link.metrics.log_dropped
    {
        host.add_metric(metric, i64::try_from(dropped).unwrap_or(i64::MAX));
    }
    let calls = std::mem::take(&mut state.calls);
    if calls > 0
        && let Some(metric) = link.metrics.calls
    {
        host.add_metric(metric, i64::from(calls));
    }
}

pub(super) fn count<H: Host>(host: &mut H, metric: Option<MetricId>) {
    if let Some(metric) = metric {
        host.add_metric(metric, 1);
    }
}

pub(super) fn release(link: &Link, state: &mut LinkState, worker: usize) {
    let slot = std::mem::take(&mut state.slot);
    if let Some(plugin) = &link.plugin
        && slot != Slot::default()
    {
        plugin.end(slot, worker);
    }
}
