//! Shares of CPU: a call whose plugin used more CPU of this worker than its share is delayed by a timer,
//! and after [`SHARE_PATIENCE`] the stream gets the failure policy.
//!
//! Only calls that the chain itself begins are delayed here. The host delays callouts' answers, timers and
//! HTTP stream events, because it holds their bytes; it asks [`ChainRun::wait_for_share`]. An event that has waited
//! for too long is delivered, and has the link fail instead of calling it.

use std::time::Duration;

use super::call::{Action, Step};
use super::flow::{DelayedCall, ShareWait, Task};
use super::{ChainRun, Effects};
use crate::callout::{Wake, WakeId};
use crate::chain::Link;
use crate::failure::{Cause, Fault};
use crate::host::Host;
use crate::phase::Direction;

/// The longest time that the calls of one plugin on one stream wait for their share of CPU, in all. A tenth of the
/// time in which none waits is given back, as streams may last for days.
pub const SHARE_PATIENCE: Duration = Duration::from_secs(1);
/// One part in so many of the time without a wait is given back.
const GIVEN_BACK: u32 = 10;

/// The shortest delay: a timer of less would fire in the same turn of the proxy's event loop.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Calls of the log phase are charged at once if they take as long as this: many can follow each other before the
/// watchdog looks.
pub(super) const CHARGED_LOG: Duration = Duration::from_micros(20);

/// How long one link's calls on a stream have waited. Times are those of [`Host::monotonic_nanos`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Patience {
    used: Duration,
    /// When the last wait ended.
    until: u64,
    event: EventWait,
}

/// Whether an event of a link waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum EventWait {
    #[default]
    No,
    Since(u64),
    /// It has waited for too long.
    Over,
}

impl Patience {
    /// How long calls have waited, less what was given back.
    fn waited(&self, now: u64) -> Duration {
        let rested = Duration::from_nanos(now.saturating_sub(self.until));
        self.used.saturating_sub(rested / GIVEN_BACK)
    }

    fn left(&self, now: u64) -> Duration {
        SHARE_PATIENCE.saturating_sub(self.waited(now))
    }

    /// The same with the wait of an event that goes on. Asks for the time only if something has waited.
    pub(super) fn waited_in_all(&self, now: impl FnOnce() -> u64) -> Duration {
        if self.used.is_zero() && self.event == EventWait::No {
            return Duration::ZERO;
        }
        let now = now();
        match self.event {
            EventWait::Since(since) => {
                self.waited(since) + Duration::from_nanos(now.saturating_sub(since))
            }
            EventWait::No | EventWait::Over => self.waited(now),
        }
    }

    /// A wait is over.
    fn use_up(&mut self, since: u64, now: u64) {
        let waited = Duration::from_nanos(now.saturating_sub(since));
        self.used = self.waited(since).min(SHARE_PATIENCE) + waited;
        self.until = now;
    }

    /// Returns whether an event that has to wait does so. If not, the link fails when the event comes.
    fn has_event_wait(&mut self, now: u64) -> bool {
        match self.event {
            EventWait::No => self.event = EventWait::Since(now),
            EventWait::Since(since) => {
                let waited = Duration::from_nanos(now.saturating_sub(since));
                if waited >= self.left(since) {
                    self.event = EventWait::Over;
                }
            }
            EventWait::Over => {}
        }
        self.event != EventWait::Over
    }

    /// An event that waited is delivered.
    fn end_event_wait(&mut self, now: u64) {
        if let EventWait::Since(since) = self.event {
            self.use_up(since, now);
        }
        self.event = EventWait::No;
    }
}

impl ChainRun {
    /// Returns how long the delivery of an event has to wait until its plugin may use CPU again, or `None` if
    /// it is to be delivered now, or belongs to no plugin. `now`: the time by [`Host::monotonic_nanos`].
    pub fn wait_for_share(&mut self, id: WakeId, worker: usize, now: u64) -> Option<Duration> {
        let index = self.waits.owner(id).filter(|_| !self.logged)?;
        let patience = &mut self.states.get_mut(index)?.patience;
        let waited = patience.waited_in_all(|| now);
        let wait = share_of(self.chain.links().get(index)?, worker, waited);
        if let Some(wait) = wait {
            return patience.has_event_wait(now).then_some(wait);
        }
        if patience.event != EventWait::No {
            patience.end_event_wait(now);
        }
        None
    }

    /// Whether an event of a link has waited for too long: the link is to fail.
    pub(super) fn takes_impatience(&mut self, index: usize) -> bool {
        let state = self.states.get_mut(index);
        let event = state.map(|state| &mut state.patience.event);
        event.is_some_and(|event| {
            let is_over = *event == EventWait::Over;
            if is_over {
                *event = EventWait::No;
            }
            is_over
        })
    }

    /// The direction in which a call waits for this timer.
    pub(super) fn share_timer(&self, wake: &Wake<'_>) -> Option<Direction> {
        let Wake::Timer(id) = wake else { return None };
        [Direction::Request, Direction::Response]
            .into_iter()
            .find(|direction| {
                let wait = self.flow(*direction).share_wait;
                wait.is_some_and(|wait| wait.timer == *id)
            })
    }

    /// Makes the call that was delayed, or delays it again.
    pub(super) fn retry_call<H: Host>(&mut self, direction: Direction, host: &mut H) -> Effects {
        let flow = self.flow_mut(direction);
        let (Some(wait), Some((position, task))) = (flow.share_wait.take(), flow.suspended.take())
        else {
            return Effects::default();
        };
        if self.logged || self.flow(direction).finished {
            return Effects::default();
        }
        let index = self.link_at(direction, position);
        if let Some(state) = self.states.get_mut(index) {
            state.patience.use_up(wait.since, host.monotonic_nanos());
        }
        let action = match wait.call {
            DelayedCall::Handler(call) => Action::Call(call),
            DelayedCall::ResumeWithBody => Action::Resume(Wake::Body),
        };
        let step = self.invoke(direction, position, task, action, host);
        self.complete(direction, position, task, step, host);
        let progress = self.advance(direction, host);
        self.settle(direction, progress, host)
    }

    /// Delays a call, or fails it when its plugin has waited long enough on this stream.
    #[cold]
    pub(super) fn delay_call<H: Host>(
        &mut self,
        direction: Direction,
        index: usize,
        task: Task,
        call: DelayedCall,
        wait: Duration,
        host: &mut H,
    ) -> Step {
        let now = host.monotonic_nanos();
        let left =
            (self.states.get(index)).map_or(Duration::ZERO, |state| state.patience.left(now));
        let timer = if left.is_zero() {
            None
        } else {
            host.start_timer(wait.clamp(SHORTEST_WAIT, left.max(SHORTEST_WAIT)))
        };
        if let Some(timer) = timer {
            self.flow_mut(direction).share_wait = Some(ShareWait {
                timer,
                since: now,
                call,
            });
            return Step::Paused;
        }
        let fault = over_share(self.chain.links().get(index), host.worker());
        self.fail(direction, index, task.phase(direction), &fault, host)
    }

    /// A suspended call that has not begun is not made.
    pub(super) fn drop_share_wait<H: Host>(&mut self, direction: Direction, host: &mut H) {
        if let Some(wait) = self.flow_mut(direction).share_wait.take() {
            host.cancel(WakeId::Timer(wait.timer));
        }
    }
}

/// Returns how long calls of a link have to wait, or `None` if they may run now.
#[inline]
pub(super) fn share_of(link: &Link, worker: usize, waited: Duration) -> Option<Duration> {
    link.plugin.as_ref()?.wait_for_share(worker, waited)
}

/// The failure of a call that found no CPU left of its plugin's share.
pub(super) fn over_share(link: Option<&Link>, worker: usize) -> Fault {
    let plugin = link.and_then(|link| link.plugin.as_ref());
    let awaited = plugin.and_then(|plugin| plugin.awaited(worker));
    let awaited = awaited.as_deref().unwrap_or(
        "the plugin, or all plugins together, used more CPU of this worker than their share (`budgets.share`)",
    );
    Fault {
        cause: Cause::Share,
        message: format!("the call was not made: {awaited}"),
    }
}
