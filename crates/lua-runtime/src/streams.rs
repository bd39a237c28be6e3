//! What one VM keeps for streams: paused handlers, and whether a stream has a shared table. A stream
//! that never pauses and shares nothing has no entry.
//!
//! The trap: a VM may be replaced while streams hold slots of the old one. A slot carries the VM's
//! generation, and one of another generation is answered with [`Lookup::Lost`].

use outrider_plugin_api::{Call, Direction, Phase, Slot, WakeId};

use crate::ffi::Thread;

/// What a paused handler waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A callout or a timer.
    Event(WakeId),
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
    /// Whether the SDK holds a shared table of this stream.
    pub(crate) shares: bool,
}

impl StreamState {
    pub(crate) fn paused(&mut self, direction: Direction) -> &mut Option<Paused> {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }
}

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
}

impl Streams {
    /// No entries, of the given generation of a VM.
    pub(crate) fn new(generation: u32) -> Self {
        Self {
            generation,
            entries: Vec::new(),
            free: Vec::new(),
        }
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

    /// Takes the entry of a slot out.
    pub(crate) fn remove(&mut self, slot: Slot) -> Option<(u32, StreamState)> {
        let Lookup::At(index) = self.look_up(slot) else {
            return None;
        };
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some((index, entry))
    }
}
