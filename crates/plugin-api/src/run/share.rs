//! Shares of CPU: a call whose plugin used more CPU of this worker than its share is delayed by a timer,
//! and after [`SHARE_PATIENCE`] the stream gets the failure policy.
//!
//! Only calls that the chain itself begins are delayed here. The host delays callouts' answers, timers and
//! HTTP stream events, because it holds their bytes; it asks [`ChainRun::wait_for_share`].

use std::time::Duration;

use super::call::{Action, Step};
use super::flow::{DelayedCall, ShareWait, Task};
use super::{ChainRun, Effects};
use crate::callout::{Wake, WakeId};
use crate::chain::Link;
use crate::failure::{Cause, Fault};
use crate::host::Host;
use crate::phase::Direction;

/// The longest time that the calls of one plugin on one stream wait for their share of CPU, in all.
pub const SHARE_PATIENCE: Duration = Duration::from_secs(1);

/// The shortest delay: a timer of less would fire in the same turn of the proxy's event loop.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

impl ChainRun {
    /// Returns how long the delivery of an event has to wait until its plugin may use CPU again, or `None` if
    /// it may be delivered now, or belongs to no plugin.
    pub fn wait_for_share(&self, id: WakeId, worker: usize) -> Option<Duration> {
        let link = self.waits.owner(id).filter(|_| !self.logged)?;
        share_of(self.chain.links().get(link)?, worker)
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
            let nanos = host.monotonic_nanos().saturating_sub(wait.since);
            state.waited += Duration::from_nanos(nanos);
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
        let waited = self
            .states
            .get(index)
            .map_or(SHARE_PATIENCE, |state| state.waited);
        let left = SHARE_PATIENCE.saturating_sub(waited);
        let timer = if left.is_zero() {
            None
        } else {
            host.start_timer(wait.clamp(SHORTEST_WAIT, left.max(SHORTEST_WAIT)))
        };
        if let Some(timer) = timer {
            self.flow_mut(direction).share_wait = Some(ShareWait {
                timer,
                since: host.monotonic_nanos(),
                call,
            });
            return Step::Paused;
        }
        self.fail(direction, index, task.phase(direction), &over_share(), host)
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
pub(super) fn share_of(link: &Link, worker: usize) -> Option<Duration> {
    link.plugin.as_ref()?.wait_for_share(worker)
}

/// The failure of a call that found no CPU left of its plugin's share.
pub(super) fn over_share() -> Fault {
    Fault {
        cause: Cause::Share,
        message: "the call was not made: the plugin, or all plugins together, used more CPU of this worker than \
                  their share (`budgets.share`)"
            .into(),
    }
}
