//! How far one direction of a stream has come.

use smallvec::SmallVec;

use crate::phase::{Direction, Phase};
use crate::plugin::Call;
use crate::view::Window;

/// What a link is doing, or was doing when it paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Headers,
    /// A chunk, in a plugin that streams.
    Chunk,
    /// The whole body.
    WholeBody,
    Trailers,
}

impl Task {
    pub(super) fn phase(self, direction: Direction) -> Phase {
        match self {
            Self::Headers => Phase::headers(direction),
            Self::Chunk | Self::WholeBody => Phase::body(direction),
            Self::Trailers => Phase::trailers(direction),
        }
    }
}

/// A link keeps the headers from those behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    pub(super) position: usize,
    pub(super) until: Until,
}

/// What ends a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The body is complete: its handler is called with it.
    WholeBody,
    /// The same; it paused in its headers handler for the body, and is resumed with it.
    ResumedWithBody,
    /// It is called with chunks and trailers, and lets one of them go on.
    LetGo,
}

/// Bytes that a link was given and keeps until it is called with more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) position: usize,
    /// Where they begin; they end where those of the next link before it begin, or where what has not
    /// entered the chain begins.
    pub(super) start: usize,
}

/// A call that is delayed until its plugin may use CPU again.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShareWait {
    pub(super) timer: u64,
    /// When the wait began, by [`crate::Host::monotonic_nanos`].
    pub(super) since: u64,
    pub(super) call: DelayedCall,
}

/// The call to make when the wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DelayedCall {
    /// A handler.
    Handler(Call),
    /// A handler that paused for the whole body.
    ResumeWithBody,
}

/// A part of a body on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// The position that gets it next.
    pub(super) next: usize,
    pub(super) window: Window,
    /// Nothing follows it.
    pub(super) end: bool,
}

/// How far everything got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything passed the chain.
    Clear,
    /// A link waits for an event.
    Blocked,
    /// A link collects the body, and more of it is to come.
    Holding,
    /// There was a reply.
    Ended,
}

#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about what has come so far"
)]
pub(super) struct Flow {
    pub(super) headers_seen: bool,
    pub(super) headers_end: bool,
    /// How many links are done with the headers.
    pub(super) cursor: usize,
    pub(super) hold: Option<Hold>,
    /// What links keep, at most one entry for each. A link nearer to the chain's end keeps earlier bytes.
    pub(super) kept: SmallVec<[Kept; 1]>,
    pub(super) chunk: Option<Chunk>,
    /// Where, in what is held back, the bytes begin that have not entered the chain.
    pub(super) fresh: usize,
    /// A chunk has come that has not entered the chain.
    pub(super) data_waits: bool,
    /// The chunk that waits is the last.
    pub(super) end_waits: bool,
    /// The position that gets the trailers next, once they have come.
    pub(super) trailers: Option<usize>,
    pub(super) suspended: Option<(usize, Task)>,
    /// The suspended call has not begun: it waits for its plugin's share of CPU.
    pub(super) share_wait: Option<ShareWait>,
    /// The link that made the body of a message that came without one; the links behind it see it.
    pub(super) made_by: Option<usize>,
    /// The response's status has no body: what comes of one goes nowhere.
    pub(super) discards: bool,
    /// Nothing more of this direction goes on.
    pub(super) finished: bool,
}

impl Flow {
    /// Whether all `links` are done with what has come, and nothing is held back.
    pub(super) fn is_clear(&self, links: usize) -> bool {
        (self.cursor == links || !self.headers_seen)
            && !self.finished
            && !self.discards
            && !self.data_waits
            && self.suspended.is_none()
            && self.hold.is_none()
            && self.kept.is_empty()
            && self.chunk.is_none()
            && self.trailers.is_none()
    }

    /// A plugin gave the chunk on its way another length.
    pub(super) fn resized(&mut self, window: Window) {
        if let Some(chunk) = &mut self.chunk {
            let position = chunk.next;
            let old = std::mem::replace(&mut chunk.window, window);
            self.moved(position, old.end, window.end);
        }
    }

    /// Bytes that the link at `position` has, or that have just passed all links before it, ended at `old` and end
    /// at `new`. What follows has moved with that: the bytes of links before that one. The bytes of links behind it
    /// come first, and stay where they are, even if they begin at `old` because there are none yet.
    pub(super) fn moved(&mut self, position: usize, old: usize, new: usize) {
        self.fresh = (self.fresh + new).saturating_sub(old);
        for kept in &mut self.kept {
            if kept.position < position && kept.start >= old {
                kept.start = kept.start + new - old;
            }
        }
    }

    /// A link keeps the chunk that it was given.
    pub(super) fn keep(&mut self, position: usize) {
        if let Some(chunk) = self.chunk.take() {
            self.kept.push(Kept {
                position,
                start: chunk.window.start,
            });
        }
    }

    /// What a link keeps.
    pub(super) fn kept_by(&self, position: usize) -> Option<Window> {
        let kept = self.kept.iter().find(|kept| kept.position == position)?;
        let next = self
            .kept
            .iter()
            .map(|other| other.start)
            .filter(|start| *start > kept.start)
            .min();
        Some(Window {
            start: kept.start,
            end: next.unwrap_or(self.fresh),
        })
    }

    /// A link keeps nothing any more; answers where it began.
    pub(super) fn take_kept(&mut self, position: usize) -> Option<usize> {
        let found = self
            .kept
            .iter()
            .position(|kept| kept.position == position)?;
        Some(self.kept.swap_remove(found).start)
    }

    /// What a link kept goes to the next one, with what comes next.
    pub(super) fn hand_on(&mut self, position: usize) {
        let Some(start) = self.take_kept(position) else {
            return;
        };
        let next = position + 1;
        if !self.kept.iter().any(|kept| kept.position == next) {
            self.kept.push(Kept {
                position: next,
                start,
            });
        }
    }

    /// Whether a link holds the headers until it lets go.
    pub(super) fn is_held_by(&self, position: usize) -> bool {
        self.hold
            .is_some_and(|hold| hold.position == position && hold.until == Until::LetGo)
    }

    /// A link made the body of a message that came without one, or changed the one that it made.
    pub(super) fn made_body(&mut self, position: usize, window: Window) {
        if self.made_by == Some(position) {
            self.resized(window);
            return;
        }
        self.made_by = Some(position);
        self.headers_end = false;
        self.fresh = window.end;
        self.end_waits = true;
        self.chunk = Some(Chunk {
            next: position + 1,
            window,
            end: true,
        });
    }

    /// The message has no body again.
    pub(super) fn unmade_body(&mut self) {
        self.made_by = None;
        self.headers_end = true;
        self.fresh = 0;
        self.end_waits = false;
        self.chunk = None;
    }

    /// The body that a link made.
    pub(super) fn body_made_by(&self, position: usize) -> Option<Window> {
        self.chunk
            .filter(|_| self.made_by == Some(position))
            .map(|chunk| chunk.window)
    }
}
