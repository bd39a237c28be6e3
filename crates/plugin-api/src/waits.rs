//! Pending operations of plugins on one stream (callouts, timers, HTTP streams): the plugin that started each, and
//! whether its outcome is still wanted.
//!
//! A plugin need not be paused for any of it: what comes is told to whoever started it
//! ([`crate::ConfiguredPlugin::event`]), and goes on with a paused call only where one waits for it.
//! The trap: a callout cannot be taken back from the proxy. One whose outcome nobody wants any more stays
//! in the list until it is over, so that it counts for the limit.

use std::time::Duration;

use smallvec::SmallVec;

use crate::callout::{CalloutFailure, HttpStreamEvent, HttpStreamId, Wake, WakeId};
use crate::host::Host;
use crate::memory::Reservation;
use crate::phase::Direction;

/// Most callouts, timers and HTTP streams that one plugin may have pending on one stream.
pub const MOST_UNDER_WAY: usize = 64;
/// CPU time of the proxy that a callout is charged for: about what one costs, with a connection that is made for it.
pub const CALLOUT_COST: Duration = Duration::from_micros(150);
/// So many callouts of a plugin on a stream are not charged: what a request causes is not the plugin's.
pub(crate) const FREE_CALLOUTS: u32 = 4;

#[derive(Debug)]
struct Started {
    id: WakeId,
    link: usize,
    /// In a call of which direction.
    direction: Direction,
    /// Nobody is told what becomes of it.
    forgotten: bool,
    /// The plugin may send more: an HTTP stream whose request is not complete.
    sending: bool,
    /// Memory of the request; `None` for timers.
    memory: Option<Reservation>,
}

/// Recipient of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Starter {
    pub(crate) link: usize,
    pub(crate) direction: Direction,
}

/// Pending operations of the plugins of a chain.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    list: SmallVec<[Started; 2]>,
    /// Callouts and HTTP streams that each link has started, those that are over included.
    counts: SmallVec<[(usize, u32); 2]>,
}

impl Waits {
    /// Whether a plugin may start one more.
    pub(crate) fn room(&self, link: usize) -> Result<(), CalloutFailure> {
        let count = self.list.iter().filter(|one| one.link == link).count();
        if count < MOST_UNDER_WAY {
            Ok(())
        } else {
            Err(CalloutFailure::TooMany)
        }
    }

    pub(crate) fn add_timer(&mut self, id: u64, link: usize, direction: Direction) {
        self.list.push(Started {
            id: WakeId::Timer(id),
            link,
            direction,
            forgotten: false,
            sending: false,
            memory: None,
        });
    }

    /// Adds a callout or an HTTP stream. Its memory is freed when it is over.
    pub(crate) fn add(&mut self, id: WakeId, starter: Starter, sending: bool, memory: Reservation) {
        self.list.push(Started {
            id,
            link: starter.link,
            direction: starter.direction,
            forgotten: false,
            sending,
            memory: Some(memory),
        });
    }

    /// Counts a callout or an HTTP stream that a link has started. Returns how many these are with it.
    pub(crate) fn count_callout(&mut self, link: usize) -> u32 {
        if let Some((_, count)) = self.counts.iter_mut().find(|(of, _)| *of == link) {
            *count = count.saturating_add(1);
            return *count;
        }
        self.counts.push((link, 1));
        1
    }

    /// Whether anything can come that a plugin is told of.
    pub(crate) fn any(&self, link: usize) -> bool {
        self.list
            .iter()
            .any(|one| one.link == link && !one.forgotten)
    }

    /// Returns the link that an event will be delivered to, or `None` if no plugin waits for it.
    pub(crate) fn owner(&self, id: WakeId) -> Option<usize> {
        let found = self.list.iter().find(|one| one.id == id && !one.forgotten);
        found.map(|one| one.link)
    }

    /// Returns the plugin that started the operation of an event, or `None` if it was cancelled. An operation that the
    /// event ends leaves the list.
    pub(crate) fn starter(&mut self, wake: &Wake<'_>) -> Option<Starter> {
        let id = wake.id()?;
        let position = self.list.iter().position(|one| one.id == id)?;
        let started = self.list.get(position)?;
        let starter = (!started.forgotten).then_some(Starter {
            link: started.link,
            direction: started.direction,
        });
        if is_last(wake) {
            self.list.remove(position);
        }
        starter
    }

    /// Checks that a plugin may send so many bytes on an HTTP stream; with `last` it may not send more afterwards.
    pub(crate) fn may_send(
        &mut self,
        id: HttpStreamId,
        link: usize,
        last: bool,
        bytes: usize,
    ) -> Result<(), CalloutFailure> {
        let id = WakeId::HttpStream(id);
        let found = self
            .list
            .iter_mut()
            .find(|one| one.id == id && one.link == link && one.sending);
        let one = found.ok_or(CalloutFailure::StreamOver)?;
        if let Some(memory) = &mut one.memory {
            memory.grow(bytes)?;
        }
        one.sending = !last;
        Ok(())
    }

    /// A plugin does not want to hear of it any more.
    pub(crate) fn cancel<H: Host>(&mut self, id: WakeId, link: usize, host: &mut H) {
        let found = self
            .list
            .iter()
            .position(|one| one.id == id && one.link == link);
        let Some(position) = found else { return };
        if matches!(id, WakeId::Callout(_)) {
            if let Some(one) = self.list.get_mut(position) {
                one.forgotten = true;
            }
        } else {
            self.list.remove(position);
            host.cancel(id);
        }
    }

    /// A plugin is not called any more.
    pub(crate) fn cancel_all<H: Host>(&mut self, link: usize, host: &mut H) {
        let own: SmallVec<[WakeId; 4]> = self
            .list
            .iter()
            .filter(|one| one.link == link)
            .map(|one| one.id)
            .collect();
        for id in own {
            self.cancel(id, link, host);
        }
    }
}

/// Whether nothing follows an event of its kind and name.
fn is_last(wake: &Wake<'_>) -> bool {
    match wake {
        Wake::HttpStream(_, event) => {
            matches!(
                event,
                HttpStreamEvent::Complete | HttpStreamEvent::Failed(_)
            )
        }
        Wake::Callout(..) | Wake::Timer(_) | Wake::Body => true,
    }
}
