//! Events of one stream on their way to its plugins.
//!
//! Envoy raises events of callouts and HTTP streams inside of its codecs, and inside of the calls that start
//! or reset them. Nothing of a plugin runs there: an event is copied here, and delivered by the stream's
//! scheduler, in the order in which it came.
//!
//! What is kept is bounded. A response that does not fit is a failure of its callout
//! ([`CalloutFailure::TooLarge`]); an HTTP stream whose parts do not fit fails in the same way, and is reset
//! when that is delivered. The ABI offers no back-pressure for either.

use std::collections::VecDeque;
use std::time::Duration;

use outrider_plugin_api::{
    CalloutFailure, ENTRY_COST, HttpStreamEvent, HttpStreamId, MemoryExceeded,
    OwnedHttpStreamEvent, Reservation, Wake, WakeId,
};
use smallvec::SmallVec;

use crate::callout::OwnedWake;

/// The bytes that the events of one stream may take before the next one is refused, as a multiple of the
/// stream's body limit.
const BODY_LIMITS: usize = 4;

/// The body limit of a stream that has none.
const DEFAULT_BODY_LIMIT: usize = 1 << 20;

/// An event whose turn has come.
#[derive(Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) wake: OwnedWake,
    /// In the account of the plugin that waits for it. `None` if it keeps no bytes, or no plugin waits.
    _memory: Option<Reservation>,
    /// The HTTP stream is still open in Envoy, and is to be reset: its events did not fit.
    pub(crate) resets: bool,
}

/// What [`EventQueue::pop`] returns.
#[derive(Debug)]
pub(crate) enum NextEvent {
    Now(QueuedEvent),
    /// There are events, and their plugins have to wait for so long.
    Later(Duration),
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: VecDeque<QueuedEvent>,
    bytes: usize,
    /// HTTP streams of which nothing more is kept.
    refused: SmallVec<[HttpStreamId; 1]>,
}

/// Returns the bytes that an event takes in the queue.
fn cost(wake: &Wake<'_>) -> usize {
    ENTRY_COST + wake.memory_cost()
}

impl EventQueue {
    /// Copies an event. `body_limit`: the stream's. `reserve` reserves the bytes of the copy in the account of the plugin
    /// that waits for it.
    pub(crate) fn push(
        &mut self,
        wake: &Wake<'_>,
        body_limit: Option<u32>,
        reserve: impl FnOnce(usize) -> Result<Option<Reservation>, MemoryExceeded>,
    ) {
        let limit = body_limit
            .and_then(|limit| usize::try_from(limit).ok())
            .unwrap_or(DEFAULT_BODY_LIMIT)
            .saturating_mul(BODY_LIMITS);
        let cost = cost(wake);
        let memory = if cost <= ENTRY_COST {
            Some(None)
        } else if self.bytes >= limit {
            None
        } else {
            reserve(cost).ok()
        };
        let is_over = memory.is_none();
        match wake {
            Wake::HttpStream(id, event) => {
                let is_last = matches!(
                    event,
                    HttpStreamEvent::Complete | HttpStreamEvent::Failed(_)
                );
                if let Some(index) = self.refused.iter().position(|refused| refused == id) {
                    if is_last {
                        self.refused.swap_remove(index);
                        // Envoy has ended it.
                        self.forget_reset(*id);
                    }
                    return;
                }
                if is_over {
                    self.refused.push(*id);
                    let failed = OwnedHttpStreamEvent::Failed(CalloutFailure::TooLarge);
                    self.events.push_back(QueuedEvent {
                        wake: OwnedWake::HttpStream(*id, failed),
                        _memory: None,
                        resets: true,
                    });
                    return;
                }
            }
            Wake::Callout(id, Ok(_)) if is_over => {
                let failed = OwnedWake::Callout(*id, Err(CalloutFailure::TooLarge));
                return self.keep(failed, None);
            }
            _ => {}
        }
        if let Some(wake) = OwnedWake::new(wake) {
            self.bytes = self.bytes.saturating_add(cost);
            self.keep(wake, memory.flatten());
        }
    }

    fn keep(&mut self, wake: OwnedWake, memory: Option<Reservation>) {
        self.events.push_back(QueuedEvent {
            wake,
            _memory: memory,
            resets: false,
        });
    }

    fn forget_reset(&mut self, id: HttpStreamId) {
        for event in &mut self.events {
            if matches!(event.wake, OwnedWake::HttpStream(known, _) if known == id) {
                event.resets = false;
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Takes the first event out whose plugin need not wait for its share of the worker; `wait` returns how long it has
    /// to. Events of one operation stay in order.
    pub(crate) fn pop(&mut self, mut wait: impl FnMut(WakeId) -> Option<Duration>) -> NextEvent {
        let mut shortest: Option<Duration> = None;
        let mut delayed: SmallVec<[WakeId; 4]> = SmallVec::new();
        let found = self.events.iter().position(|event| {
            let id = event.wake.id();
            if delayed.contains(&id) {
                return false;
            }
            let Some(wait) = wait(id) else { return true };
            shortest = Some(shortest.map_or(wait, |known| known.min(wait)));
            delayed.push(id);
            false
        });
        match found.and_then(|index| self.take(index)) {
            Some(event) => NextEvent::Now(event),
            None => shortest.map_or(NextEvent::Nothing, NextEvent::Later),
        }
    }

    fn take(&mut self, index: usize) -> Option<QueuedEvent> {
        let event = self.events.remove(index)?;
        event.wake.with(|wake| {
            self.bytes = self.bytes.saturating_sub(cost(&wake));
        });
        Some(event)
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        self.refused.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrider_plugin_api::{CalloutId, CalloutResponse};

    const LIMIT: Option<u32> = Some(1000);

    fn data<'a>(id: u64, pieces: &'a [&'a [u8]]) -> Wake<'a> {
        let end_of_stream = false;
        Wake::HttpStream(
            HttpStreamId(id),
            HttpStreamEvent::Data {
                pieces,
                end_of_stream,
            },
        )
    }

    fn failed(id: u64) -> Wake<'static> {
        let event = HttpStreamEvent::Failed(CalloutFailure::Reset);
        Wake::HttpStream(HttpStreamId(id), event)
    }

    fn all(queue: &mut EventQueue) -> Vec<(String, bool)> {
        let next = || match queue.pop(|_| None) {
            NextEvent::Now(event) => Some(event),
            NextEvent::Later(_) | NextEvent::Nothing => None,
        };
        std::iter::from_fn(next)
            .map(|event| (format!("{:?}", event.wake), event.resets))
            .collect()
    }

    #[test]
    fn events_of_a_plugin_over_its_share_wait_and_others_do_not() {
        let mut queue = EventQueue::default();
        let piece = [b"one".as_slice()];
        queue.push(&data(1, &piece), LIMIT, |_| Ok(None));
        queue.push(&Wake::Timer(7), LIMIT, |_| Ok(None));
        queue.push(&failed(1), LIMIT, |_| Ok(None));
        let wait = |id| (id != WakeId::Timer(7)).then_some(Duration::from_millis(3));
        assert!(
            matches!(queue.pop(wait), NextEvent::Now(event) if event.wake.id() == WakeId::Timer(7))
        );
        assert!(
            matches!(queue.pop(wait), NextEvent::Later(wait) if wait == Duration::from_millis(3))
        );
        // The answer may be another within one question: what is of one HTTP stream keeps its order.
        let mut asked = 0;
        let next = queue.pop(|_| {
            asked += 1;
            (asked == 1).then_some(Duration::from_millis(3))
        });
        assert!(matches!(next, NextEvent::Later(_)));
        assert_eq!(all(&mut queue).len(), 2);
    }

    #[test]
    fn events_within_the_limit_come_out_in_order() {
        let mut queue = EventQueue::default();
        let piece = [b"one".as_slice()];
        queue.push(&data(1, &piece), LIMIT, |_| Ok(None));
        queue.push(&Wake::Timer(7), LIMIT, |_| Ok(None));
        queue.push(&failed(1), LIMIT, |_| Ok(None));
        let texts: Vec<String> = all(&mut queue).into_iter().map(|(text, _)| text).collect();
        assert_eq!(texts.len(), 3);
        assert!(texts[0].contains("Data"), "{texts:?}");
        assert!(texts[1].contains("Timer(7)"), "{texts:?}");
        assert!(texts[2].contains("Failed(Reset)"), "{texts:?}");
        assert_eq!(queue.bytes, 0);
    }

    #[test]
    fn http_stream_over_the_limit_fails_once_and_is_reset() {
        let mut queue = EventQueue::default();
        let piece = [[0_u8; 600].as_slice()];
        for _ in 0..100 {
            queue.push(&data(1, &piece), LIMIT, |_| Ok(None));
        }
        let events = all(&mut queue);
        let last = events.last().unwrap();
        assert!(events.len() < 10, "{}", events.len());
        assert!(last.0.contains("Failed(TooLarge)") && last.1, "{last:?}");
        assert!(events.iter().filter(|event| event.1).count() == 1);
        // What Envoy says of the reset is not told again.
        queue.push(&failed(1), LIMIT, |_| Ok(None));
        assert!(queue.is_empty());
        assert!(queue.refused.is_empty());
    }

    #[test]
    fn http_stream_that_envoy_ended_is_not_reset() {
        let mut queue = EventQueue::default();
        let piece = [[0_u8; 6000].as_slice()];
        queue.push(&data(1, &piece), LIMIT, |_| Ok(None));
        queue.push(&data(1, &piece), LIMIT, |_| Ok(None));
        queue.push(&failed(1), LIMIT, |_| Ok(None));
        let events = all(&mut queue);
        assert_eq!(events.len(), 2);
        assert!(
            events[1].0.contains("TooLarge") && !events[1].1,
            "{events:?}"
        );
    }

    #[test]
    fn callout_over_the_limit_fails_and_others_are_kept() {
        let mut queue = EventQueue::default();
        let body = [[0_u8; 6000].as_slice()];
        let response = CalloutResponse {
            headers: &[],
            body: &body,
        };
        for id in 0..3 {
            queue.push(&Wake::Callout(CalloutId(id), Ok(response)), LIMIT, |_| {
                Ok(None)
            });
        }
        queue.push(&Wake::Timer(1), LIMIT, |_| Ok(None));
        let events = all(&mut queue);
        assert_eq!(events.len(), 4);
        assert!(events[1].0.contains("TooLarge"), "{events:?}");
        assert!(events[2].0.contains("TooLarge"), "{events:?}");
        assert!(events[3].0.contains("Timer"), "{events:?}");
    }
}
