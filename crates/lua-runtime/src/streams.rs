//! What one VM keeps for streams: paused handlers, what came of their callouts, and whether a stream has a
//! shared table. A stream that never pauses, shares nothing and has nothing come to it has no entry.
//!
//! The trap: a VM may be replaced while streams hold slots of the old one. A slot carries the VM's
//! generation, and one of another generation is answered with [`Lookup::Lost`].

use outrider_plugin_api::{Call, Direction, Phase, Slot, Wake, WakeId};
use smallvec::SmallVec;

use crate::ffi::Thread;
use crate::outcomes::{Outcomes, Room, Verdict};

/// Names of events, any of which goes on with a handler.
pub(crate) type Awaited = SmallVec<[WakeId; 2]>;

/// What a paused handler waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Callouts, timers, HTTP streams.
    Events(Awaited),
    /// The whole body of its direction.
    Body,
    /// The next chunk of its direction's body, or what ends it. The stream goes on meanwhile.
    Chunk,
    /// The trailers of its direction, or the body's end without any. The stream goes on meanwhile.
    Trailers,
}

/// A handler that yielded.
#[derive(Debug)]
pub(crate) struct Paused {
    pub(crate) thread: Thread,
    pub(crate) phase: Phase,
    pub(crate) wait: Wait,
    /// Whether nothing more of its direction followed what it was last called for.
    pub(crate) end_of_stream: bool,
}

impl Paused {
    /// Whether an event of this name goes on with it.
    pub(crate) fn awaits(&self, id: WakeId) -> bool {
        matches!(&self.wait, Wait::Events(awaited) if awaited.contains(&id))
    }

    /// What it was last called for.
    pub(crate) fn call(&self) -> Call {
        Call {
            phase: self.phase,
            end_of_stream: self.end_of_stream,
        }
    }
}

/// One stream's entry.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    pub(crate) request: Option<Paused>,
    pub(crate) response: Option<Paused>,
    /// Functions of timers that wait in their turn. They hold nothing of the stream up.
    pub(crate) background: Vec<Paused>,
    /// What came that nobody has taken.
    pub(crate) outcomes: Outcomes,
    /// Whether the SDK holds a shared table, or functions of timers, of this stream.
    pub(crate) shares: bool,
    /// How many wake-ups the stream had.
    wakes: u32,
}

impl StreamState {
    pub(crate) fn paused(&mut self, direction: Direction) -> &mut Option<Paused> {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }
}

/// A plugin may wait for so many callouts and timers on a stream as part of serving the request.
const FREE_WAKES: u32 = 4;

/// What a slot stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The stream has no entry yet.
    None,
    /// Its entry.
    At(u32),
    /// Its entry went with the VM that held it.
    Lost,
}

/// The entries of one VM.
#[derive(Debug)]
pub(crate) struct Streams {
    generation: u32,
    entries: Vec<Option<StreamState>>,
    free: Vec<u32>,
    /// Bytes of outcomes of all entries.
    kept: usize,
}

impl Streams {
    /// No entries, of the given generation of a VM.
    pub(crate) fn new(generation: u32) -> Self {
        Self {
            generation,
            entries: Vec::new(),
            free: Vec::new(),
            kept: 0,
        }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// What a slot stands for.
    pub(crate) fn look_up(&self, slot: Slot) -> Lookup {
        let (generation, index) = ((slot.0 >> 32) as u32, slot.0 as u32);
        match index.checked_sub(1) {
            None => Lookup::None,
            Some(index) if generation == self.generation => Lookup::At(index),
            Some(_) => Lookup::Lost,
        }
    }

    /// The entry of a slot; makes one, and writes it into the slot, if there is none.
    pub(crate) fn entry(&mut self, slot: &mut Slot) -> Option<(u32, &mut StreamState)> {
        let index = match self.look_up(*slot) {
            Lookup::At(index) => index,
            Lookup::Lost => return None,
            Lookup::None => {
                let index = self.free.pop().unwrap_or_else(|| {
                    self.entries.push(None);
                    (self.entries.len() - 1) as u32
                });
                *slot = Slot(u64::from(self.generation) << 32 | (u64::from(index) + 1));
                index
            }
        };
        let entry = self.entries.get_mut(index as usize)?;
        Some((index, entry.get_or_insert_default()))
    }

    /// Counts a wake-up of a stream. Returns whether it is one of the plugin's own doing, and is charged to
    /// its CPU share in full: a stream's first [`FREE_WAKES`] are the request's.
    pub(crate) fn count_wake(&mut self, slot: Slot) -> bool {
        let Lookup::At(index) = self.look_up(slot) else {
            return false;
        };
        let Some(Some(entry)) = self.entries.get_mut(index as usize) else {
            return false;
        };
        entry.wakes = entry.wakes.saturating_add(1);
        entry.wakes > FREE_WAKES
    }

    /// Takes the entry of a slot out.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<(u32, StreamState)> {
        let Lookup::At(index) = self.look_up(slot) else {
            return None;
        };
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        let kept = entry.outcomes.bytes();
        self.kept = self.kept.saturating_sub(kept);
        Some((index, entry))
    }

    /// In which direction a handler waits for an event.
    pub(crate) fn waits_in(&self, slot: Slot, id: WakeId) -> Option<Direction> {
        let Lookup::At(index) = self.look_up(slot) else {
            return None;
        };
        let entry = self.entries.get(index as usize)?.as_ref()?;
        let waits = |paused: &Option<Paused>| paused.as_ref().is_some_and(|one| one.awaits(id));
        if waits(&entry.request) {
            Some(Direction::Request)
        } else {
            waits(&entry.response).then_some(Direction::Response)
        }
    }

    /// Whether a handler, or a timer's function, waits for an event.
    pub(crate) fn is_awaited(&self, slot: Slot, id: WakeId) -> bool {
        let Lookup::At(index) = self.look_up(slot) else {
            return false;
        };
        let entry = self.entries.get(index as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| {
            let StreamState {
                request,
                response,
                background,
                ..
            } = entry;
            let mut paused = request.iter().chain(response).chain(background);
            paused.any(|paused| paused.awaits(id))
        })
    }

    /// Whoever waits for an event waits for another one in its place.
    pub(crate) fn await_instead(&mut self, slot: Slot, id: WakeId, other: WakeId) {
        let Lookup::At(index) = self.look_up(slot) else {
            return;
        };
        let Some(Some(entry)) = self.entries.get_mut(index as usize) else {
            return;
        };
        let StreamState {
            request,
            response,
            background,
            ..
        } = entry;
        for paused in request.iter_mut().chain(response).chain(background) {
            if let Wait::Events(awaited) = &mut paused.wait {
                for awaited in awaited.iter_mut().filter(|awaited| **awaited == id) {
                    *awaited = other;
                }
            }
        }
    }

    /// Keeps what an event says until a handler asks for it.
    pub(crate) fn keep(&mut self, slot: &mut Slot, wake: &Wake<'_>, budget: usize) -> Verdict {
        let room = Room {
            used: self.kept,
            budget,
        };
        self.outcomes(slot, |outcomes| outcomes.keep(wake, room))
            .unwrap_or(Verdict::Fine)
    }

    /// Looks at what came to a stream, or takes from it. Makes an entry, if there is none; none: the
    /// stream's state was lost.
    pub(crate) fn outcomes<T>(
        &mut self,
        slot: &mut Slot,
        run: impl FnOnce(&mut Outcomes) -> T,
    ) -> Option<T> {
        let (_, entry) = self.entry(slot)?;
        let before = entry.outcomes.bytes();
        let result = run(&mut entry.outcomes);
        let after = entry.outcomes.bytes();
        self.kept = (self.kept + after).saturating_sub(before);
        Some(result)
    }
}
