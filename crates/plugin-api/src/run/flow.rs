//! How far one direction of a stream has come.

use crate::phase::{Direction, Phase};
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

/// A link keeps the headers until the body is complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    pub(super) position: usize,
    /// It paused in its headers handler for the body, and is resumed with it.
    pub(super) resume: bool,
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
    /// The proxy collects the body: what is held back may not grow beyond its limit.
    pub(super) collected: bool,
    /// Nothing more of this direction goes on.
    pub(super) finished: bool,
}

impl Flow {
    /// Whether all `links` are done with what has come, and nothing is held back.
    pub(super) fn is_clear(&self, links: usize) -> bool {
        (self.cursor == links || !self.headers_seen)
            && !self.finished
            && !self.data_waits
            && self.suspended.is_none()
            && self.hold.is_none()
            && self.chunk.is_none()
            && self.trailers.is_none()
    }

    /// A plugin gave the chunk on its way another length.
    pub(super) fn resized(&mut self, window: Window) {
        if let Some(chunk) = &mut self.chunk {
            self.fresh = (self.fresh + window.end).saturating_sub(chunk.window.end);
            chunk.window = window;
        }
    }
}
