//! One stream's way through a chain.
//!
//! [`ChainRun`] does for the plugins of one chain what Envoy's filter manager does for filters: it
//! gives headers, body and trailers to one plugin after the other, stops where one waits or wants
//! the whole body, and goes on from there. What a chain of two plugins does to a stream is what two
//! filters with one plugin each would do.
//!
//! The rules, for each direction:
//!
//! - A plugin gets the headers when all before it are done with them. One that wants the whole body
//!   keeps the headers from those behind it until the body is complete and its handler is done.
//! - Chunks pass the plugins that have had the headers. While one of them waits, nothing more enters
//!   the chain in that direction: the proxy holds it back, and it enters later as one chunk.
//! - Trailers follow the body.
//!
//! The run never calls what may re-enter the stream (replying, resuming): it hands such effects back,
//! and whoever drives it carries them out when no borrow of the run is left.

mod flow;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::callout::Wake;
use crate::chain::{Chain, Link};
use crate::failure::{Cause, FailureAction, Fault};
use crate::host::Host;
use crate::local::LocalResponse;
use crate::metric::MetricId;
use crate::phase::{BodyMode, Direction, Phase};
use crate::plugin::{Call, Decision, Pause, Reply, Slot};
use crate::view::{BodyView, Length, View, Waits, Window, lengths};
use flow::{Chunk, Flow, Hold, Progress, Task};

/// What becomes of the headers, chunk or trailers that the run was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They go on, and with them what was held back.
    Continue,
    /// They are held back, with back-pressure, until the run says resume.
    Pause,
    /// They are held back: a plugin collects the whole body.
    Hold,
    /// A plugin replied: nothing more of this direction goes on.
    Stop,
}

/// What is to be done once the run is no longer borrowed; each of it may re-enter, or end, the
/// stream.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Effects {
    /// Send this response.
    pub reply: Option<Reply>,
    /// Let the request go on.
    pub resume_request: bool,
    /// Let the response go on.
    pub resume_response: bool,
}

impl Effects {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct LinkState {
    slot: Slot,
    /// Failed open: not called again.
    out: bool,
}

/// What a call of a link came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    Paused,
    WantsBody,
    Replied,
}

#[derive(Debug, Clone, Copy)]
enum Action<'a> {
    Call(Call),
    Resume(Wake<'a>),
}

/// One stream in a chain.
#[derive(Debug)]
pub struct ChainRun {
    chain: Arc<Chain>,
    states: SmallVec<[LinkState; 4]>,
    request: Flow,
    response: Flow,
    waits: Waits,
    /// The response that a plugin made, while the others see it.
    local: Option<LocalResponse>,
    /// The link that made it, which does not see it.
    replier: Option<usize>,
    effects: Effects,
}

impl ChainRun {
    /// A stream at the beginning of a chain.
    pub fn new(chain: Arc<Chain>) -> Self {
        let states = smallvec::smallvec![LinkState::default(); chain.links().len()];
        Self {
            chain,
            states,
            request: Flow::default(),
            response: Flow::default(),
            waits: Waits::new(),
            local: None,
            replier: None,
            effects: Effects::default(),
        }
    }

    /// The headers of a direction are here. `end_of_stream`: nothing follows them.
    pub fn on_headers<H: Host>(
        &mut self,
        direction: Direction,
        end_of_stream: bool,
        host: &mut H,
    ) -> (Verdict, Effects) {
        if direction == Direction::Response
            && self.request.cursor < self.states.len()
            && self.local.take().is_some()
        {
            // No upstream has seen the request: the proxy answers itself while the plugins still look
            // at a plugin's reply.
            self.response.finished = true;
        }
        if let Some(verdict) = self.over(direction) {
            return (verdict, Effects::default());
        }
        let flow = self.flow_mut(direction);
        flow.headers_seen = true;
        flow.headers_end = end_of_stream;
        self.go(direction, host)
    }

    /// A chunk of a body is here, in [`crate::BodyBuffer::Received`]; what is not let through is
    /// appended to [`crate::BodyBuffer::Held`] after the call. `end_of_stream`: it is the last, and
    /// no trailers follow.
    pub fn on_body<H: Host>(
        &mut self,
        direction: Direction,
        end_of_stream: bool,
        host: &mut H,
    ) -> (Verdict, Effects) {
        if let Some(verdict) = self.over(direction) {
            return (verdict, Effects::default());
        }
        let (held, _) = lengths(host, direction);
        let flow = self.flow_mut(direction);
        flow.data_waits = true;
        flow.end_waits |= end_of_stream;
        // Envoy collects what is last with what it holds.
        flow.collected |= end_of_stream && held > 0;
        let (verdict, effects) = self.go(direction, host);
        self.flow_mut(direction).collected = verdict == Verdict::Hold;
        (verdict, effects)
    }

    /// The trailers of a direction are here.
    pub fn on_trailers<H: Host>(
        &mut self,
        direction: Direction,
        host: &mut H,
    ) -> (Verdict, Effects) {
        if let Some(verdict) = self.over(direction) {
            return (verdict, Effects::default());
        }
        let flow = self.flow_mut(direction);
        flow.trailers.get_or_insert(0);
        self.go(direction, host)
    }

    /// Something that a plugin waits for has happened.
    pub fn on_wake<H: Host>(&mut self, wake: Wake<'_>, host: &mut H) -> Effects {
        let Some(found) = wake
            .id()
            .and_then(|id| self.waits.iter().position(|(waits, ..)| *waits == id))
        else {
            return Effects::default();
        };
        let (_, link, direction) = self.waits.remove(found);
        let flow = self.flow(direction);
        let Some((position, task)) = flow.suspended else {
            return Effects::default();
        };
        if flow.finished || self.link_at(direction, position) != link {
            return Effects::default();
        }
        self.flow_mut(direction).suspended = None;
        let step = self.invoke(direction, position, task, Action::Resume(wake), host);
        self.complete(direction, position, task, step, host);
        let progress = self.advance(direction, host);
        self.settle(direction, progress, host)
    }

    /// The stream is over: the log phase. Nothing may wait in it.
    pub fn on_log<H: Host>(&mut self, host: &mut H) {
        let call = Call {
            phase: Phase::Log,
            end_of_stream: true,
        };
        for index in (0..self.states.len()).rev() {
            let Some(link) = self.chain.links().get(index) else {
                continue;
            };
            let Some(state) = self.states.get_mut(index) else {
                continue;
            };
            let Some(plugin) = link
                .plugin
                .as_ref()
                .filter(|_| link.interest.log && !state.out)
            else {
                continue;
            };
            count(host, link.metrics.calls);
            let mut view = View {
                host,
                plugin: &link.name,
                link: index,
                direction: Direction::Response,
                local: None,
                body: None,
                waits: &mut self.waits,
                may_wait: false,
                may_route: false,
            };
            let fault = match plugin.call(&mut state.slot, call, &mut view) {
                Ok(Decision::Continue) => continue,
                Ok(Decision::Pause(_)) => too_late("wait"),
                Ok(Decision::Reply(_)) => too_late("reply"),
                Err(fault) => fault,
            };
            host.report_fault(link, Phase::Log, &fault);
            count(
                host,
                link.metrics
                    .errors
                    .get(fault.cause.index())
                    .copied()
                    .flatten(),
            );
        }
    }

    /// The stream is gone: gives back what its plugins hold for it.
    pub fn end(&mut self, worker: usize) {
        self.request.finished = true;
        self.response.finished = true;
        for (link, state) in self.chain.links().iter().zip(&mut self.states) {
            release(link, state, worker);
        }
    }

    /// Once there was a reply, nothing more of the request goes on; of the response, what comes is
    /// that reply, and not the chain's business. While the plugins still look at it, what comes is an
    /// upstream's answer to the beginning of the request, and the reply stands in its place.
    fn over(&self, direction: Direction) -> Option<Verdict> {
        if direction == Direction::Response && self.local.is_some() {
            return Some(Verdict::Stop);
        }
        self.flow(direction).finished.then_some(match direction {
            Direction::Request => Verdict::Stop,
            Direction::Response => Verdict::Continue,
        })
    }

    fn flow(&self, direction: Direction) -> &Flow {
        match direction {
            Direction::Request => &self.request,
            Direction::Response => &self.response,
        }
    }

    fn flow_mut(&mut self, direction: Direction) -> &mut Flow {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    /// The link at a position of a direction: responses pass the chain in reverse.
    fn link_at(&self, direction: Direction, position: usize) -> usize {
        match direction {
            Direction::Request => position,
            Direction::Response => self.states.len().saturating_sub(position + 1),
        }
    }

    fn interest_at(&self, direction: Direction, position: usize) -> crate::plugin::Interest {
        let index = self.link_at(direction, position);
        let out = self.states.get(index).is_none_or(|state| state.out)
            || (direction == Direction::Response && self.replier == Some(index));
        match self.chain.links().get(index) {
            Some(link) if !out => link.interest,
            _ => crate::plugin::Interest::default(),
        }
    }

    /// Bytes of a body: held back, and in all.
    fn body_lengths<H: Host>(&self, direction: Direction, host: &H) -> (usize, usize) {
        match &self.local {
            Some(local) if direction == Direction::Response => (local.body.len(), local.body.len()),
            _ => {
                let (held, received) = lengths(host, direction);
                (held, held + received)
            }
        }
    }

    /// Passes what has come as far as it goes, and says what becomes of it.
    fn go<H: Host>(&mut self, direction: Direction, host: &mut H) -> (Verdict, Effects) {
        let progress = self.advance(direction, host);
        let verdict = match progress {
            Progress::Clear => Verdict::Continue,
            Progress::Blocked => Verdict::Pause,
            Progress::Holding => Verdict::Hold,
            Progress::Ended => Verdict::Stop,
        };
        if progress == Progress::Clear {
            self.flow_mut(direction).fresh = 0;
        }
        self.go_local(host);
        (verdict, std::mem::take(&mut self.effects))
    }

    /// The same outside of the proxy's own calls: what is held back has to be set going.
    fn settle<H: Host>(
        &mut self,
        direction: Direction,
        progress: Progress,
        host: &mut H,
    ) -> Effects {
        if self.local.is_none() {
            match progress {
                Progress::Clear => {
                    self.flow_mut(direction).fresh = 0;
                    match direction {
                        Direction::Request => self.effects.resume_request = true,
                        Direction::Response => self.effects.resume_response = true,
                    }
                }
                Progress::Holding => self.check_limit(direction, host),
                Progress::Blocked | Progress::Ended => {}
            }
        }
        self.go_local(host);
        std::mem::take(&mut self.effects)
    }

    /// Shows a plugin's reply to the other plugins, and sends it when they are done.
    fn go_local<H: Host>(&mut self, host: &mut H) {
        if self.local.is_some()
            && self.advance(Direction::Response, host) == Progress::Clear
            && let Some(local) = self.local.take()
        {
            self.response.finished = true;
            self.effects.reply = Some(local.into_reply());
        }
    }

    /// A body that was held back with back-pressure, while a plugin waited, may already be as large
    /// as the proxy holds: then the rest would never come to the plugin that now collects it.
    fn check_limit<H: Host>(&mut self, direction: Direction, host: &mut H) {
        let limit = host.buffer_limit();
        let (held, _) = self.body_lengths(direction, host);
        let flow = self.flow(direction);
        if limit == 0 || held < limit || flow.end_waits || flow.trailers.is_some() {
            return;
        }
        let (status, details) = match direction {
            Direction::Request => (413, "request_payload_too_large"),
            Direction::Response => (500, "response_payload_too_large"),
        };
        self.request.finished = true;
        self.response.finished = true;
        self.effects.reply = Some(Reply {
            status,
            details: details.into(),
            ..Reply::default()
        });
    }

    /// Passes headers, chunks and trailers on until there are no more, or something stops them.
    fn advance<H: Host>(&mut self, direction: Direction, host: &mut H) -> Progress {
        let links = self.states.len();
        loop {
            let flow = self.flow(direction);
            if flow.finished {
                return Progress::Ended;
            }
            if flow.suspended.is_some() {
                return Progress::Blocked;
            }
            if flow.hold.is_none() && flow.headers_seen && flow.cursor < links {
                let (position, end_of_stream) = (flow.cursor, flow.headers_end);
                let step = if self.interest_at(direction, position).headers(direction) {
                    let call = Call {
                        phase: Phase::headers(direction),
                        end_of_stream,
                    };
                    self.invoke(direction, position, Task::Headers, Action::Call(call), host)
                } else {
                    Step::Done
                };
                self.complete(direction, position, Task::Headers, step, host);
                continue;
            }
            // Links at `limit` and beyond have not had the headers yet.
            let limit = flow.hold.map_or(flow.cursor, |hold| hold.position);
            if let Some(chunk) = flow.chunk {
                if chunk.next < limit {
                    let step = if self.interest_at(direction, chunk.next).body(direction)
                        == BodyMode::Stream
                    {
                        let call = Call {
                            phase: Phase::body(direction),
                            end_of_stream: chunk.end,
                        };
                        self.invoke(direction, chunk.next, Task::Chunk, Action::Call(call), host)
                    } else {
                        Step::Done
                    };
                    self.complete(direction, chunk.next, Task::Chunk, step, host);
                } else {
                    match flow.hold {
                        Some(hold) if chunk.end => self.whole_body(direction, hold, host),
                        _ => self.flow_mut(direction).chunk = None,
                    }
                }
                continue;
            }
            if flow.data_waits {
                let (_, total) = self.body_lengths(direction, host);
                let flow = self.flow_mut(direction);
                let window = Window {
                    start: flow.fresh.min(total),
                    end: total,
                };
                flow.chunk = Some(Chunk {
                    next: 0,
                    window,
                    end: flow.end_waits,
                });
                flow.fresh = total;
                flow.data_waits = false;
                continue;
            }
            if let Some(position) = flow.trailers {
                if position < limit {
                    let step = if self.interest_at(direction, position).trailers(direction) {
                        let call = Call {
                            phase: Phase::trailers(direction),
                            end_of_stream: true,
                        };
                        self.invoke(
                            direction,
                            position,
                            Task::Trailers,
                            Action::Call(call),
                            host,
                        )
                    } else {
                        Step::Done
                    };
                    self.complete(direction, position, Task::Trailers, step, host);
                    continue;
                }
                if let Some(hold) = flow.hold {
                    self.whole_body(direction, hold, host);
                    continue;
                }
            }
            return if flow.hold.is_some() {
                Progress::Holding
            } else {
                Progress::Clear
            };
        }
    }

    /// The body that a link waits for is complete.
    fn whole_body<H: Host>(&mut self, direction: Direction, hold: Hold, host: &mut H) {
        let (_, total) = self.body_lengths(direction, host);
        let flow = self.flow_mut(direction);
        // What is behind this link sees the body as one chunk, which this link changes first.
        let end = flow.trailers.is_none();
        flow.chunk = Some(Chunk {
            next: hold.position,
            window: Window {
                start: 0,
                end: total,
            },
            end,
        });
        let action = if hold.resume {
            Action::Resume(Wake::Body)
        } else {
            Action::Call(Call {
                phase: Phase::body(direction),
                end_of_stream: end,
            })
        };
        let step = self.invoke(direction, hold.position, Task::WholeBody, action, host);
        self.complete(direction, hold.position, Task::WholeBody, step, host);
    }

    /// Draws the consequences of a call.
    fn complete<H: Host>(
        &mut self,
        direction: Direction,
        position: usize,
        task: Task,
        step: Step,
        host: &mut H,
    ) {
        match step {
            Step::Replied => {}
            Step::Paused => self.flow_mut(direction).suspended = Some((position, task)),
            Step::WantsBody => {
                if self.flow(direction).headers_end {
                    // There is no body to wait for.
                    let step =
                        self.invoke(direction, position, task, Action::Resume(Wake::Body), host);
                    self.complete(direction, position, task, step, host);
                } else {
                    self.flow_mut(direction).hold = Some(Hold {
                        position,
                        resume: true,
                    });
                }
            }
            Step::Done => {
                let wants_body =
                    self.interest_at(direction, position).body(direction) == BodyMode::Whole;
                let flow = self.flow_mut(direction);
                match task {
                    Task::Headers if wants_body && !flow.headers_end => {
                        flow.hold = Some(Hold {
                            position,
                            resume: false,
                        });
                    }
                    Task::Headers => flow.cursor = position + 1,
                    Task::WholeBody => {
                        flow.hold = None;
                        flow.cursor = position + 1;
                        if let Some(chunk) = &mut flow.chunk {
                            chunk.next = position + 1;
                        }
                    }
                    Task::Chunk => {
                        if let Some(chunk) = &mut flow.chunk {
                            chunk.next = position + 1;
                        }
                    }
                    Task::Trailers => flow.trailers = Some(position + 1),
                }
            }
        }
    }

    /// Calls or resumes a link, and applies its failure policy when it fails.
    fn invoke<H: Host>(
        &mut self,
        direction: Direction,
        position: usize,
        task: Task,
        action: Action<'_>,
        host: &mut H,
    ) -> Step {
        let index = self.link_at(direction, position);
        let phase = task.phase(direction);
        let chunk = self.flow(direction).chunk;
        let collected = self.flow(direction).hold.is_some() || self.flow(direction).collected;
        let mut body = match task {
            Task::Chunk => chunk.map(|chunk| (chunk.window, Length::Announced)),
            Task::WholeBody => chunk.map(|chunk| (chunk.window, Length::Follows)),
            Task::Headers | Task::Trailers => None,
        }
        .map(|(window, length)| BodyView {
            direction,
            window,
            length,
            collected,
        });
        // Envoy takes it for a bug when the route is touched later.
        let may_route = direction == Direction::Request
            && self.request.cursor < self.states.len()
            && !self.response.headers_seen;
        let Self {
            chain,
            states,
            waits,
            local,
            effects: _,
            ..
        } = self;
        let (Some(link), Some(state)) = (chain.links().get(index), states.get_mut(index)) else {
            return Step::Done;
        };
        if state.out {
            return Step::Done;
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
                    plugin: &link.name,
                    link: index,
                    direction,
                    local: local.as_mut(),
                    body,
                    waits: &mut *waits,
                    may_wait: true,
                    may_route,
                };
                let outcome = match action {
                    Action::Call(call) => {
                        count(view.host, link.metrics.calls);
                        plugin.call(&mut state.slot, call, &mut view)
                    }
                    Action::Resume(wake) => {
                        plugin.resume(&mut state.slot, direction, wake, &mut view)
                    }
                };
                body = view.body;
                outcome
            }
        };
        let outcome = outcome.and_then(|decision| match decision {
            Decision::Pause(Pause::Event)
                if !waits
                    .iter()
                    .any(|(_, link, way)| *link == index && *way == direction) =>
            {
                Err(Fault {
                    cause: Cause::Error,
                    message: "paused, but waits for no callout and no timer".into(),
                })
            }
            Decision::Pause(Pause::WholeBody) if task != Task::Headers => Err(Fault {
                cause: Cause::Error,
                message: "the whole body can be waited for in a headers handler only".into(),
            }),
            decision => Ok(decision),
        });
        if let Some(body) = body {
            self.flow_mut(direction).resized(body.window);
        }
        match outcome {
            Ok(Decision::Continue) => Step::Done,
            Ok(Decision::Pause(Pause::Event)) => Step::Paused,
            Ok(Decision::Pause(Pause::WholeBody)) => Step::WantsBody,
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
            Err(fault) => self.fail(direction, index, phase, &fault, host),
        }
    }

    /// A link failed: says so, counts it, and applies its policy. It is not called on this stream
    /// again.
    fn fail<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        phase: Phase,
        fault: &Fault,
        host: &mut H,
    ) -> Step {
        self.waits.retain(|(_, link, _)| *link != index);
        let (Some(link), Some(state)) = (self.chain.links().get(index), self.states.get_mut(index))
        else {
            return Step::Done;
        };
        host.report_fault(link, phase, fault);
        count(
            host,
            link.metrics
                .errors
                .get(fault.cause.index())
                .copied()
                .flatten(),
        );
        state.out = true;
        release(link, state, host.worker());
        match link.failure_policy.action(fault.cause) {
            FailureAction::Open => {
                // It may also be waiting in the other direction, where nothing will wake it now.
                self.abandon(direction, index, host);
                Step::Done
            }
            FailureAction::Closed => {
                let reply = Reply {
                    status: link.failure_policy.status(),
                    details: format!("outrider.{}.{}", link.name, fault.cause),
                    ..Reply::default()
                };
                self.reply(direction, index, reply);
                Step::Replied
            }
        }
    }

    /// A link that failed in `failed` is passed over where it waits in the other direction.
    fn abandon<H: Host>(&mut self, failed: Direction, index: usize, host: &mut H) {
        let other = match failed {
            Direction::Request => Direction::Response,
            Direction::Response => Direction::Request,
        };
        let Some((position, task)) = self.flow(other).suspended else {
            return;
        };
        if self.link_at(other, position) != index {
            return;
        }
        self.flow_mut(other).suspended = None;
        self.complete(other, position, task, Step::Done, host);
        let progress = self.advance(other, host);
        if progress == Progress::Clear {
            self.flow_mut(other).fresh = 0;
            match other {
                Direction::Request => self.effects.resume_request = true,
                Direction::Response => self.effects.resume_response = true,
            }
        }
    }

    /// A link ends the stream with a response of its own.
    fn reply(&mut self, direction: Direction, index: usize, mut reply: Reply) {
        if reply.details.is_empty() {
            let name = self.chain.links().get(index).map_or("", |link| &*link.name);
            reply.details = format!("outrider.{name}");
        }
        self.request.finished = true;
        self.request.suspended = None;
        let response_is_untouched = !self.response.headers_seen && !self.response.finished;
        if direction == Direction::Request && response_is_untouched {
            let local = LocalResponse::new(reply);
            self.response = Flow {
                headers_seen: true,
                headers_end: local.body.is_empty(),
                data_waits: !local.body.is_empty(),
                end_waits: true,
                ..Flow::default()
            };
            self.replier = Some(index);
            self.local = Some(local);
        } else {
            self.local = None;
            self.response.finished = true;
            self.effects = Effects {
                reply: Some(reply),
                ..Effects::default()
            };
        }
    }
}

fn too_late(what: &str) -> Fault {
    Fault {
        cause: Cause::Error,
        message: format!("the stream is over: on_log cannot {what}"),
    }
}

fn count<H: Host>(host: &mut H, metric: Option<MetricId>) {
    if let Some(metric) = metric {
        host.add_metric(metric, 1);
    }
}

fn release(link: &Link, state: &mut LinkState, worker: usize) {
    let slot = std::mem::take(&mut state.slot);
    if let Some(plugin) = &link.plugin
        && slot != Slot::default()
    {
        plugin.end(slot, worker);
    }
}

#[cfg(test)]
mod tests;
