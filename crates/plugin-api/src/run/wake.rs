//! Events: what becomes of callouts, timers and HTTP streams that the chain's plugins started.

use super::ChainRun;
use super::Effects;
use super::call::{Action, count};
use super::share::over_share;
use crate::call_times::Stopwatch;
use crate::callout::Wake;
use crate::failure::Fault;
use crate::host::Host;
use crate::journal::Journal;
use crate::phase::{Direction, Phase};
use crate::view::{BodyView, View};
use crate::waits::Starter;

impl ChainRun {
    /// Something has come of what a plugin started. It goes on with the call that waits for it, if one does;
    /// otherwise the plugin is told. What nobody started, or nobody wants any more, is passed over.
    pub fn on_wake<H: Host>(&mut self, wake: Wake<'_>, host: &mut H) -> Effects {
        if let Some(direction) = self.share_timer(&wake) {
            return self.retry_call(direction, host);
        }
        let Some(starter) = self.waits.starter(&wake).filter(|_| !self.logged) else {
            return Effects::default();
        };
        let is_impatient = self.takes_impatience(starter.link);
        let Some(direction) = self.waiting(starter, &wake, host) else {
            if is_impatient {
                let fault = over_share(self.chain.links().get(starter.link), host.worker());
                return self.fail_event(starter, &fault, host);
            }
            return self.tell(starter, wake, host);
        };
        let Some((position, task)) = self.flow_mut(direction).suspended.take() else {
            return Effects::default();
        };
        let step = if is_impatient {
            let phase = task.phase(direction);
            let fault = over_share(self.chain.links().get(starter.link), host.worker());
            self.fail(direction, starter.link, phase, &fault, host)
        } else {
            self.invoke(direction, position, task, Action::Resume(wake), host)
        };
        self.complete(direction, position, task, step, host);
        let progress = self.advance(direction, host);
        self.settle(direction, progress, host)
    }

    /// The direction in which a call of the starter is paused for the event.
    fn waiting<H: Host>(&self, starter: Starter, wake: &Wake<'_>, host: &H) -> Option<Direction> {
        let plugin = self.chain.links().get(starter.link)?.plugin.as_ref()?;
        let slot = self.states.get(starter.link)?.slot;
        let direction = plugin.waits_in(slot, wake.id()?, starter.direction, host.worker())?;
        let flow = self.flow(direction);
        let (position, _) = flow
            .suspended
            .filter(|_| !flow.finished && flow.share_wait.is_none())?;
        (self.link_at(direction, position) == starter.link).then_some(direction)
    }

    /// An event changed the length of a body that its plugin waits with.
    fn resized_beside(&mut self, link: usize, old: BodyView, new: BodyView) {
        let position = self.link_at(old.direction, link);
        let flow = self.flow_mut(old.direction);
        match flow.chunk {
            Some(chunk) if chunk.window == old.window => flow.resized(new.window),
            _ => flow.moved(position, old.window.end, new.window.end),
        }
    }

    /// The journal for an event: that of the handler which is paused, if there is one.
    fn journal_of_event(&mut self, link: usize, direction: Direction) -> Option<Journal> {
        let may_open = self.chain.links().get(link)?.failure_policy.may_open();
        may_open.then(|| self.take_journal(link, direction).unwrap_or_default())
    }

    /// Tells a plugin of an event that none of its calls waits for.
    fn tell<H: Host>(&mut self, starter: Starter, wake: Wake<'_>, host: &mut H) -> Effects {
        let Starter { link, direction } = starter;
        let may_route = self.request.cursor < self.states.len()
            && !self.request.finished
            && !self.response.headers_seen;
        let body = self.body_of(link);
        let holds_headers = self.holds_headers(link);
        let changed = body.map_or(direction, |body| body.direction);
        let mut journal = self.journal_of_event(link, changed);
        let is_paused = journal.as_ref().is_some_and(Journal::is_used);
        let (Some(called), Some(state)) = (self.chain.links().get(link), self.states.get_mut(link))
        else {
            return Effects::default();
        };
        let Some(plugin) = called.plugin.as_ref().filter(|_| !state.out) else {
            return Effects::default();
        };
        let mut view = View {
            host: &mut *host,
            called,
            link,
            direction,
            local: self.local.as_mut(),
            body,
            waits: &mut self.waits,
            changes: &mut self.changes,
            memory: &mut self.memory,
            grown: 0,
            grown_credit: 0,
            journal: journal.as_mut(),
            holds_headers,
            makes_body: None,
            may_wait: true,
            may_route,
        };
        let watch = Stopwatch::start(called.times.as_deref(), &*view.host);
        let outcome = plugin.event(&mut state.slot, wake, &mut view);
        watch.stop(Phase::headers(direction), view.host);
        let seen = view.body;
        let replies = called.metrics.replies;
        // A handler that is still paused may fail later, and what came between is undone with it.
        if let Some(journal) = journal
            && (is_paused || outcome.is_err())
        {
            self.keep_journal(link, changed, journal);
        }
        if let (Some(old), Some(new)) = (body, seen) {
            self.resized_beside(starter.link, old, new);
        }
        let outcome = outcome.and_then(|mut reaction| {
            // There is but one response; a reply that others look at comes first.
            if self.local.is_some() || self.response.finished {
                reaction.reply = None;
            }
            if let Some(reply) = &reaction.reply {
                self.admit_reply(link, reply, host)?;
            }
            Ok(reaction)
        });
        match outcome {
            Ok(reaction) => {
                if let Some(reply) = reaction.reply {
                    count(host, replies);
                    let direction = if self.response.headers_seen {
                        Direction::Response
                    } else {
                        Direction::Request
                    };
                    self.reply(direction, link, *reply);
                }
                if reaction.continue_request {
                    self.pass_over(Direction::Request, link, host);
                }
                if reaction.continue_response {
                    self.pass_over(Direction::Response, link, host);
                }
            }
            Err(fault) => return self.fail_event(starter, &fault, host),
        }
        self.go_local(host);
        std::mem::take(&mut self.effects)
    }

    /// A link fails with an event that none of its calls waits for.
    fn fail_event<H: Host>(&mut self, starter: Starter, fault: &Fault, host: &mut H) -> Effects {
        let Starter { link, direction } = starter;
        self.fail(direction, link, Phase::headers(direction), fault, host);
        // Unlike a call, an event has no direction of its own that goes on after it.
        self.pass_over(direction, link, host);
        self.go_local(host);
        std::mem::take(&mut self.effects)
    }
}
