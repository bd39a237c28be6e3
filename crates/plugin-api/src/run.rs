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

mod advance;
mod breaker;
mod call;
mod flow;
mod memory;
mod settle;
mod share;
#[cfg(test)]
mod tests;
mod undo;
mod wake;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::chain::{Chain, Link};
use crate::circuit::Admission;
use crate::host::Host;
use crate::journal::KeptJournal;
use crate::local::LocalResponse;
use crate::memory::StreamMemory;
use crate::phase::Direction;
use crate::plugin::{Interest, Reply, Slot};
use crate::view::{Changes, Window, lengths};
use crate::waits::Waits;
use call::{count_calls, release};
use flow::{Flow, Progress};

use share::Patience;
pub use share::SHARE_PATIENCE;

/// Verdict on the headers, the chunk or the trailers that the proxy passed to the run.
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
    pub reply: Option<Box<Reply>>,
    /// Let the request go on.
    pub resume_request: bool,
    /// Let the response go on.
    pub resume_response: bool,
}

impl Effects {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.reply.is_none() && !self.resume_request && !self.resume_response
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct LinkState {
    slot: Slot,
    /// Failed open: not called again.
    out: bool,
    /// Whether its circuit lets the stream call it; none: not asked yet.
    admission: Option<Admission>,
    /// It failed on this stream, which its circuit was told.
    failed: bool,
    /// How many of its calls are to be counted.
    calls: u32,
    /// How long its calls on this stream may wait for their share of CPU.
    patience: Patience,
}

/// One stream in a chain.
#[derive(Debug)]
pub struct ChainRun {
    chain: Arc<Chain>,
    states: SmallVec<[LinkState; 4]>,
    request: Flow,
    response: Flow,
    waits: Waits,
    changes: Changes,
    memory: StreamMemory,
    /// What handlers changed that paused, or failed just now.
    journals: Vec<KeptJournal>,
    /// The response that a plugin made, while the others see it.
    local: Option<LocalResponse>,
    /// The link that made it, which does not see it.
    replier: Option<usize>,
    /// The log phase has begun: nothing that comes is anybody's business any more.
    logged: bool,
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
            waits: Waits::default(),
            changes: Changes::default(),
            memory: StreamMemory::default(),
            journals: Vec::new(),
            local: None,
            replier: None,
            logged: false,
            effects: Effects::default(),
        }
    }

    /// The chain of the stream.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// The headers of a direction are here, and no plugin has anything to do with that direction:
    /// they go on. Otherwise `false`, and they are to be given to [`ChainRun::on_headers`].
    pub fn pass_headers(&mut self, direction: Direction, end_of_stream: bool) -> bool {
        if self.chain.handles(direction) || self.local.is_some() || self.flow(direction).finished {
            return false;
        }
        let links = self.states.len();
        let flow = self.flow_mut(direction);
        flow.headers_seen = true;
        flow.headers_end = end_of_stream;
        flow.cursor = links;
        true
    }

    /// Whether what follows the headers of a direction goes on without this run's seeing it: no
    /// plugin handles it, and none holds the direction up.
    pub fn lets_pass(&self, direction: Direction) -> bool {
        !self.chain.handles_parts(direction)
            && self.local.is_none()
            && self.flow(direction).is_clear(self.states.len())
    }

    /// The stream is over, and no plugin has anything to do with that. Otherwise `false`, and
    /// [`ChainRun::on_log`] is to be called.
    pub fn pass_log(&mut self) -> bool {
        if self.chain.handles_log() {
            return false;
        }
        self.logged = true;
        let mut all = self.chain.links().iter().zip(&self.states);
        all.all(|(link, state)| link.circuit.is_calm() && state.calls == 0)
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
        if flow.suspended.is_none() && flow.hold.is_none() {
            self.pass_on_headers(direction, host);
            // What mostly happens: nobody keeps anything back, or replied.
            if self.flow(direction).is_clear(self.states.len()) && self.effects.is_empty() {
                return (Verdict::Continue, Effects::default());
            }
        }
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
        let (held, received) = lengths(host, direction);
        self.memory.note_received(direction, received);
        let links = self.states.len();
        let flow = self.flow_mut(direction);
        let is_clear = flow.headers_seen && flow.is_clear(links);
        flow.data_waits = true;
        flow.end_waits |= end_of_stream;
        if is_clear {
            let total = held + received;
            let window = Window {
                start: flow.fresh.min(total),
                end: total,
            };
            flow.data_waits = false;
            // What mostly happens: nobody keeps anything back, or replied.
            if self.pass_on_chunk(direction, window, end_of_stream, host) {
                let flow = self.flow_mut(direction);
                flow.fresh = 0;
                return (Verdict::Continue, std::mem::take(&mut self.effects));
            }
        }
        self.go(direction, host)
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

    /// The stream is over: the log phase. Nothing may wait in it.
    pub fn on_log<H: Host>(&mut self, host: &mut H) {
        self.logged = true;
        for index in (0..self.states.len()).rev() {
            self.log(index, host);
        }
        for (link, state) in self.chain.links().iter().zip(&mut self.states) {
            count_calls(link, state, host);
        }
    }

    /// The stream is gone: gives back what its plugins hold for it.
    pub fn end(&mut self, worker: usize) {
        self.request.finished = true;
        self.response.finished = true;
        for (link, state) in self.chain.links().iter().zip(&mut self.states) {
            release(link, state, worker);
        }
        self.waits = Waits::default();
        self.journals.clear();
        self.memory.clear();
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
    #[inline]
    fn link_at(&self, direction: Direction, position: usize) -> usize {
        match direction {
            Direction::Request => position,
            Direction::Response => self.states.len().saturating_sub(position + 1),
        }
    }

    #[inline]
    fn interest_at(&self, direction: Direction, position: usize) -> Interest {
        let index = self.link_at(direction, position);
        let out = self.states.get(index).is_none_or(|state| state.out)
            || (direction == Direction::Response && self.replier == Some(index));
        match self.chain.links().get(index) {
            Some(link) if !out && self.is_shown(direction, index, link) => link.interest,
            _ => Interest::default(),
        }
    }

    /// Whether a direction is a link's business: a response may not be without the request.
    #[inline]
    fn is_shown(&self, direction: Direction, index: usize, link: &Link) -> bool {
        direction == Direction::Request
            || (self.request.headers_seen && index <= self.request.cursor)
            || link
                .plugin
                .as_ref()
                .is_none_or(|plugin| plugin.sees_response_without_request())
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
            self.set_going(direction, progress, host);
        }
        self.go_local(host);
        std::mem::take(&mut self.effects)
    }

    /// What passed the chain outside of the proxy's own calls goes on.
    fn set_going<H: Host>(&mut self, direction: Direction, progress: Progress, host: &mut H) {
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

    /// Shows a plugin's reply to the other plugins, and sends it when they are done.
    fn go_local<H: Host>(&mut self, host: &mut H) {
        if self.local.is_some()
            && self.advance(Direction::Response, host) == Progress::Clear
            && let Some(local) = self.local.take()
        {
            self.response.finished = true;
            self.effects.reply = Some(Box::new(local.into_reply()));
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
        self.effects.reply = Some(Box::new(Reply {
            status,
            details: details.into(),
            ..Reply::default()
        }));
    }
}
