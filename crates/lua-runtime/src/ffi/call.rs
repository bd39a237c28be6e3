//! What one VM shares with the host while a call runs: the memory through which the SDK's FFI calls
//! take their arguments' results, and the stream that the call is for.
//!
//! One [`CallState`] per VM, at an address that never changes; Lua holds it as a pointer to
//! `struct outrider_call`, which is its head ([`Head`]). The trap: the stream is a borrow of the
//! caller's, kept as a raw pointer. It is put in by [`CallState::with_stream`] and taken out before
//! that returns, and an FFI function that finds none answers [`NO_STREAM`].

use std::ptr::NonNull;
use std::sync::Arc;

use outrider_plugin_api::{Direction, Metrics, Phase, Reply, Slot, Stream, Wake};

use super::tape::Shapes;
use super::watch::Watch;
use crate::json_schemas::JsonSchemas;
use crate::outcomes::Pairs;
use crate::patterns::Patterns;
use crate::shared::Shared;
use crate::streams::{Awaited, Streams};

/// The answer of an FFI function that needs a stream where there is none.
pub(super) const NO_STREAM: i32 = -2;

/// The part that Lua reads; `struct outrider_call` in `sdk/core.lua`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Head {
    /// Number of the phase (see [`phase_number`]), [`BACKGROUND`], or -1 outside of streams.
    pub(super) phase: i32,
    /// Id of the configuration of the call.
    pub(super) config: i32,
    /// Length of `data`.
    pub(super) length: i32,
    /// Length of `pairs` or `tape`.
    pub(super) count: i32,
    pub(super) data: *const u8,
    pub(super) number: f64,
    pub(super) pairs: *const Pair,
    pub(super) tape: *const TapeItem,
    /// 1 when nothing more of the call's direction follows.
    pub(super) end_of_stream: i32,
    /// Another whenever a body that the SDK has read may be another: after each call, and each change.
    pub(super) bodies: f64,
}

/// A name and a value; `struct outrider_pair`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) name: *const u8,
    pub(super) value: *const u8,
    pub(super) name_length: i32,
    pub(super) value_length: i32,
}

/// A piece of a JSON document in reading order; `struct outrider_tape`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct TapeItem {
    pub(super) kind: i32,
    pub(super) length: i32,
    pub(super) data: *const u8,
    pub(super) number: f64,
}

/// Where a call found a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenBody {
    pub(super) direction: Direction,
    pub(super) data: *const u8,
    pub(super) length: usize,
}

/// What a handler asked for just before it yielded.
#[derive(Debug, Default)]
pub(crate) enum Pending {
    /// Nothing.
    #[default]
    Nothing,
    /// Any of these callouts, timers and HTTP streams.
    Events(Awaited),
    /// The whole body.
    Body,
    /// The next chunk of the body, while the stream goes on.
    Chunk,
    /// The trailers, while the stream goes on.
    Trailers,
    /// To end the stream.
    Reply(Box<Reply>),
}

/// See the module.
#[repr(C)]
pub(crate) struct CallState {
    // First, so that a pointer to the whole is one to the head.
    pub(super) head: Head,
    pub(super) stream: Option<NonNull<dyn Stream>>,
    pub(super) metrics: Option<NonNull<dyn Metrics>>,
    pub(super) wake: Option<NonNull<Wake<'static>>>,
    /// Texts for the SDK's entry functions.
    pub(super) arguments: Vec<Arc<str>>,
    /// What an entry function hands back.
    pub(super) results: Vec<(i32, String)>,
    pub(super) scratch: Vec<u8>,
    /// JSON that is being written.
    pub(super) json: Vec<u8>,
    pub(super) seen_body: Option<SeenBody>,
    /// A body in several pieces, copied together for the call.
    pub(super) body_copy: Vec<u8>,
    pub(super) pairs: Vec<Pair>,
    /// Holds the texts that `pairs` points to, where they are not the stream's.
    pub(super) taken: Pairs,
    pub(super) staged: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of what was staged since it was cleared last.
    pub(super) staged_bytes: usize,
    pub(super) tape: Vec<TapeItem>,
    /// Holds the texts that `tape` points to.
    pub(super) tape_texts: Vec<u8>,
    pub(super) tape_shapes: Shapes,
    pub(super) patterns: Patterns,
    pub(super) json_schemas: JsonSchemas,
    pub(super) watch: Arc<Watch>,
    /// In bytes.
    pub(super) memory_budget: usize,
    pub(crate) pending: Pending,
    pub(crate) slot: Slot,
    pub(crate) streams: Streams,
    pub(crate) shared: Arc<Shared>,
}

/// A buffer that has grown to this is given back after the call. A power of two: what several
/// capacities have in common is below it when each of them is.
const KEPT_CAPACITY: usize = 64 * 1024;

impl CallState {
    pub(super) fn new(
        shared: Arc<Shared>,
        streams: Streams,
        watch: Arc<Watch>,
        memory_budget: usize,
    ) -> Box<Self> {
        Box::new(Self {
            head: Head {
                phase: -1,
                config: 0,
                length: 0,
                count: 0,
                data: std::ptr::null(),
                number: 0.0,
                pairs: std::ptr::null(),
                tape: std::ptr::null(),
                end_of_stream: 0,
                bodies: 0.0,
            },
            stream: None,
            metrics: None,
            wake: None,
            arguments: Vec::new(),
            results: Vec::new(),
            scratch: Vec::new(),
            json: Vec::new(),
            seen_body: None,
            body_copy: Vec::new(),
            pairs: Vec::new(),
            taken: Vec::new(),
            staged: Vec::new(),
            staged_bytes: 0,
            tape: Vec::new(),
            tape_texts: Vec::new(),
            tape_shapes: Shapes::default(),
            patterns: Patterns::default(),
            json_schemas: JsonSchemas::default(),
            watch,
            memory_budget,
            pending: Pending::Nothing,
            slot: Slot::default(),
            streams,
            shared,
        })
    }

    /// Gives back what a call may have left behind.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.head.phase = -1;
        self.stream = None;
        self.metrics = None;
        self.wake = None;
        self.arguments.clear();
        self.staged.clear();
        self.taken.clear();
        self.forget_body();
        let most = self.scratch.capacity() | self.json.capacity() | self.body_copy.capacity();
        if most >= KEPT_CAPACITY {
            for buffer in [&mut self.scratch, &mut self.json, &mut self.body_copy] {
                if buffer.capacity() >= KEPT_CAPACITY {
                    *buffer = Vec::new();
                }
            }
        }
        if self.tape.capacity() > 0 {
            self.tape = Vec::new();
            self.tape_texts = Vec::new();
            self.tape_shapes = Shapes::default();
        }
    }

    /// The bodies are not, or may not be, what they were when they were read.
    pub(super) fn forget_body(&mut self) {
        self.seen_body = None;
        self.head.bodies += 1.0;
    }

    /// Puts a stream in for a call. [`CallState::clear`] takes it out.
    ///
    /// # Safety
    /// `clear` is called before the borrows of `stream` and `wake` end.
    pub(super) unsafe fn put_stream(
        &mut self,
        stream: &mut dyn Stream,
        wake: Option<&Wake<'_>>,
        phase: Phase,
        config: i32,
    ) {
        let stream: NonNull<dyn Stream + '_> = NonNull::from(stream);
        // SAFETY: only the lifetime changes; `clear` ends the use in time, by contract.
        self.stream = Some(unsafe {
            std::mem::transmute::<NonNull<dyn Stream + '_>, NonNull<dyn Stream + 'static>>(stream)
        });
        self.wake = wake.map(|wake| NonNull::from(wake).cast());
        self.head.phase = phase_number(phase);
        self.head.config = config;
    }

    /// Says that the call is of a timer's function, beside the phases.
    pub(super) fn in_background(&mut self) {
        self.head.phase = BACKGROUND;
    }

    /// Says whether nothing more of the call's direction follows.
    pub(super) fn end_of_stream(&mut self, ended: bool) {
        self.head.end_of_stream = i32::from(ended);
    }

    /// Puts a place for metrics in for a call at load. [`CallState::clear`] takes it out.
    ///
    /// # Safety
    /// `clear` is called before the borrow of `metrics` ends.
    pub(super) unsafe fn put_metrics(&mut self, metrics: &mut dyn Metrics) {
        let metrics: NonNull<dyn Metrics + '_> = NonNull::from(metrics);
        // SAFETY: only the lifetime changes; `clear` ends the use in time, by contract.
        self.metrics = Some(unsafe {
            std::mem::transmute::<NonNull<dyn Metrics + '_>, NonNull<dyn Metrics + 'static>>(
                metrics,
            )
        });
    }
}

/// The number that stands for no phase: the function of a timer runs. `core.lua` knows it, too.
const BACKGROUND: i32 = 7;

/// The number of a phase in `struct outrider_call`; the SDK names them in `core.lua`.
fn phase_number(phase: Phase) -> i32 {
    match phase {
        Phase::RequestHeaders => 0,
        Phase::RequestBody => 1,
        Phase::RequestTrailers => 2,
        Phase::ResponseHeaders => 3,
        Phase::ResponseBody => 4,
        Phase::ResponseTrailers => 5,
        Phase::Log => 6,
    }
}
