//! One VM: a LuaJIT state with the SDK in it, its budgets, and the ways to run something in it.
//!
//! The trap: outside of a protected call only functions of Lua's C interface are used that neither
//! allocate nor raise; each block says why it may. Texts go in and out through the SDK's own FFI
//! calls ([`CallState`]'s arguments and results), which Lua makes under protection.

mod boot;
mod errors;
mod overrun;

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use outrider_luajit::{LUA_OK, LUA_REGISTRYINDEX, LUA_YIELD, lua_State};
use outrider_plugin_api::{Metrics, Phase, Slot, Stream, Wake};

use super::call::{CallState, Pending};
use super::hooks;
use super::memory::Memory;
use super::watch::Watch;
use crate::shared::Shared;
use crate::streams::Streams;
use boot::{Boot, boot, random_seed};
use errors::HELPER_BUDGET;
pub(crate) use errors::{LuaError, LuaErrorKind, place_of};

/// Functions of the SDK that the host calls; their order is that of `sdk/boot.lua`'s result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Runs the plugin's files; leaves its handlers.
    LoadPlugin = 0,
    /// Takes a configuration in.
    LoadConfig = 1,
    /// Forgets a configuration.
    UnloadConfig = 2,
    /// Ends a stream's shared table.
    EndStream = 3,
    /// Makes a text of an error value.
    Describe = 4,
    /// Makes a text of a thread's calls.
    Traceback = 5,
    /// Collects garbage.
    Collect = 6,
    /// Runs the function of the timer that is due.
    Timer = 7,
}

const ENTRIES: usize = 8;
/// The handler table and seven handlers.
const HANDLERS: usize = 8;

/// A coroutine that the host runs, by its place in its VM: to another VM it means nothing. While it is free, the
/// handler table and the handlers lie on its stack. It is given back with [`State::release`].
#[derive(Debug)]
pub(crate) struct Thread {
    vm: u64,
    place: usize,
}

/// A coroutine that lives in a VM.
#[derive(Debug, Clone, Copy)]
struct Coroutine {
    lua: *mut lua_State,
    reference: c_int,
}

/// Gives each VM of the process a number of its own.
static NEXT_VM: AtomicU64 = AtomicU64::new(1);

/// How a run ended.
#[derive(Debug)]
pub(crate) enum Step {
    /// The handler returned; its thread is free.
    Done,
    /// It yielded.
    Yielded,
    /// It raised an error; its thread is dead.
    Failed(LuaError),
}

/// What a run is for.
pub(crate) struct Context<'a, 'w> {
    pub(crate) stream: &'a mut dyn Stream,
    pub(crate) wake: Option<&'a Wake<'w>>,
    pub(crate) phase: Phase,
    /// Whether nothing more of the phase's direction follows.
    pub(crate) end_of_stream: bool,
    pub(crate) config: i32,
    pub(crate) slot: Slot,
    pub(crate) budget: Duration,
    /// Whether it is the function of a timer, and no handler.
    pub(crate) background: bool,
}

/// What became of a handler that was started.
pub(crate) enum Started {
    /// It returned, asked for nothing, and its thread is free: what mostly happens. The stream's slot.
    Returned(Slot),
    /// Anything else.
    Left(Outcome),
}

/// How a run came back, before anybody has looked at what it left.
struct Ran {
    status: c_int,
    /// Within its time.
    in_time: bool,
    wake_taken: bool,
}

/// What a run left.
pub(crate) struct Outcome {
    pub(crate) step: Step,
    pub(crate) pending: Pending,
    pub(crate) slot: Slot,
    /// Whether it took what woke it.
    pub(crate) wake_taken: bool,
}

/// See the module.
pub(crate) struct State {
    lua: *mut lua_State,
    // Lua holds this address too, so it is no box, whose content only its owner may touch.
    call: *mut CallState,
    memory: Box<Memory>,
    watch: Arc<Watch>,
    /// The VM's own number.
    id: u64,
    /// Coroutines by place.
    coroutines: Vec<Option<Coroutine>>,
    free_places: Vec<usize>,
    entries: [c_int; ENTRIES],
    handlers: [c_int; HANDLERS],
    collected: usize,
    /// Why the VM is not to be used again.
    unusable: Option<&'static str>,
}

// SAFETY: a VM is bound to no thread, and `&mut` is needed to run it. The addresses that it holds
// are its own; the stream's is there only during a run.
unsafe impl Send for State {}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("memory", &self.memory.used())
            .finish_non_exhaustive()
    }
}

impl State {
    /// Makes a VM with the SDK.
    ///
    /// # Errors
    /// It does not fit into the memory budget.
    pub(crate) fn new(
        shared: Arc<Shared>,
        streams: Streams,
        memory_budget: usize,
    ) -> Result<Self, LuaError> {
        let no_memory = || LuaError {
            kind: LuaErrorKind::Memory,
            message: format!("the memory budget of {memory_budget} bytes does not hold a Lua VM"),
        };
        hooks::check_compiled_loops().map_err(|message| LuaError {
            kind: LuaErrorKind::Error,
            message: message.to_owned(),
        })?;
        // SAFETY: makes a VM, or answers null.
        let lua = unsafe { outrider_luajit::luaL_newstate() };
        if lua.is_null() {
            return Err(no_memory());
        }
        // SAFETY: the VM is live, new, and closed only in `drop`, which uninstalls first.
        let memory = unsafe { Memory::install(lua, memory_budget) };
        let watch = Arc::new(Watch::new(lua, shared.account.clone()));
        let call = CallState::new(shared, streams, Arc::clone(&watch), memory_budget);
        let call = Box::into_raw(call);
        let mut state = Self {
            lua,
            call,
            memory,
            watch,
            id: NEXT_VM.fetch_add(1, Ordering::Relaxed),
            coroutines: Vec::new(),
            free_places: Vec::new(),
            entries: [0; ENTRIES],
            handlers: [0; HANDLERS],
            collected: 0,
            unusable: None,
        };
        let mut boot_data = Boot {
            call,
            seed: f64::from(random_seed()),
            budget: memory_budget,
            entries: [0; ENTRIES],
            handlers: [0; HANDLERS],
        };
        // SAFETY: a protected call; `boot_data` lives until it returns.
        let status = unsafe {
            outrider_luajit::lua_cpcall(lua, boot, (&raw mut boot_data).cast::<c_void>())
        };
        if status != LUA_OK {
            return Err(if state.memory.refused() {
                no_memory()
            } else {
                let message = state.take_error(lua);
                LuaError {
                    kind: LuaErrorKind::Error,
                    message,
                }
            });
        }
        state.entries = boot_data.entries;
        state.handlers = boot_data.handlers;
        state.watch.register().map_err(|error| LuaError {
            kind: LuaErrorKind::Error,
            message: format!("the thread that ends endless calls cannot start: {error}"),
        })?;
        Ok(state)
    }

    fn call_state(&mut self) -> &mut CallState {
        // SAFETY: the pointer is live until `drop`. The borrow is of the whole state, so it ends before the VM
        // runs, during which FFI functions make theirs.
        unsafe { &mut *self.call }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: as above; whoever may change the call's state needs `&mut self`.
        unsafe { &(*self.call).shared }
    }

    /// The coroutine that a thread stands for; `None` if it is another VM's, or was given back.
    fn coroutine(&self, thread: &Thread) -> Option<Coroutine> {
        if thread.vm != self.id {
            return None;
        }
        self.coroutines.get(thread.place).copied().flatten()
    }

    /// The bytes that the VM has allocated, for other threads to look at.
    pub(crate) fn memory_gauge(&self) -> Arc<AtomicUsize> {
        self.memory.gauge()
    }

    /// The streams that have an entry.
    pub(crate) fn streams(&mut self) -> &mut Streams {
        &mut self.call_state().streams
    }

    /// Runs one of the SDK's functions. `numbers` are its arguments, `texts` what it may ask for.
    pub(crate) fn enter(
        &mut self,
        entry: Entry,
        numbers: &[i32],
        texts: Vec<Arc<str>>,
        metrics: Option<&mut dyn Metrics>,
        budget: Duration,
    ) -> Result<Vec<(i32, String)>, LuaError> {
        if self.unusable.is_some() {
            return Err(self.error(true, String::new()));
        }
        let lua = self.lua;
        let call = self.call_state();
        call.arguments = texts;
        call.results.clear();
        if let Some(metrics) = metrics {
            // SAFETY: `clear` below, before this function returns.
            unsafe { call.put_metrics(metrics) };
        }
        let results = if entry == Entry::LoadPlugin {
            count(HANDLERS)
        } else {
            0
        };
        self.watch.begin(budget);
        // SAFETY: the stack of the VM's main thread is empty here and has room for 20 values; pushing
        // numbers and reading the registry do not allocate; the call is protected.
        let status = unsafe {
            self.push_entry(entry);
            for number in numbers {
                outrider_luajit::lua_pushnumber(lua, f64::from(*number));
            }
            outrider_luajit::lua_pcall(lua, count(numbers.len()), results, 0)
        };
        let in_time = self.end_call();
        let call = self.call_state();
        call.clear();
        let results = std::mem::take(&mut call.results);
        let failed = status != LUA_OK;
        if failed || !in_time || self.memory.refused() {
            let message = if failed {
                self.take_error(lua)
            } else {
                String::new()
            };
            // SAFETY: empties the main thread's stack; does not allocate.
            unsafe { outrider_luajit::lua_settop(lua, 0) };
            return Err(self.error(!in_time, message));
        }
        if entry == Entry::LoadPlugin {
            for reference in self.handlers.iter().rev() {
                // SAFETY: the function left one value for each; their places in the registry are
                // there since `boot`, so storing does not allocate.
                unsafe { outrider_luajit::lua_rawseti_(lua, LUA_REGISTRYINDEX, *reference) };
            }
        }
        Ok(results)
    }

    /// # Safety
    /// There is room on the main thread's stack.
    unsafe fn push_entry(&self, entry: Entry) {
        let reference = self
            .entries
            .get(entry as usize)
            .copied()
            .unwrap_or_default();
        // SAFETY: reads an array; does not allocate.
        unsafe { outrider_luajit::lua_rawgeti_(self.lua, LUA_REGISTRYINDEX, reference) };
    }

    /// A new coroutine.
    ///
    /// # Errors
    /// The memory budget is used up.
    pub(crate) fn thread(&mut self) -> Result<Thread, LuaError> {
        let mut coroutine = Coroutine {
            lua: std::ptr::null_mut(),
            reference: 0,
        };
        // SAFETY: a protected call; `coroutine` lives until it returns, and is plain data.
        let status = unsafe {
            outrider_luajit::lua_cpcall(
                self.lua,
                new_coroutine,
                (&raw mut coroutine).cast::<c_void>(),
            )
        };
        if status == LUA_OK {
            for reference in self.handlers {
                // SAFETY: a new thread's stack has room for 20 values; reading the registry does not
                // allocate.
                unsafe {
                    outrider_luajit::lua_rawgeti_(coroutine.lua, LUA_REGISTRYINDEX, reference);
                };
            }
            let place = self.free_places.pop().unwrap_or(self.coroutines.len());
            match self.coroutines.get_mut(place) {
                Some(free) => *free = Some(coroutine),
                None => self.coroutines.push(Some(coroutine)),
            }
            return Ok(Thread { vm: self.id, place });
        }
        let message = self.take_error(self.lua);
        Err(self.error(false, message))
    }

    /// Gives a coroutine back to the collector.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the thread is gone afterwards"
    )]
    pub(crate) fn release(&mut self, thread: Thread) {
        if let Some(coroutine) = self.coroutine(&thread) {
            // SAFETY: the reference is the coroutine's own, and freeing it writes places in the registry
            // that are there.
            unsafe {
                outrider_luajit::luaL_unref(self.lua, LUA_REGISTRYINDEX, coroutine.reference);
            };
            if let Some(place) = self.coroutines.get_mut(thread.place) {
                *place = None;
                self.free_places.push(thread.place);
            }
        }
    }

    /// Starts a handler on a free thread.
    pub(crate) fn start(
        &mut self,
        thread: &Thread,
        handler: usize,
        context: Context<'_, '_>,
    ) -> Started {
        let Some(coroutine) = self.coroutine(thread) else {
            return Started::Left(no_coroutine(&context));
        };
        // SAFETY: a free thread's stack holds the handler table and the handlers, and has room;
        // pushing copies of them and a truth value does not allocate.
        unsafe {
            outrider_luajit::lua_pushvalue(coroutine.lua, count(handler + 1));
            outrider_luajit::lua_pushvalue(coroutine.lua, 1);
            outrider_luajit::lua_pushboolean(coroutine.lua, c_int::from(context.end_of_stream));
        }
        let ran = self.go(coroutine, 2, context);
        let refused = self.memory.refused();
        let call = self.call_state();
        if ran.status == LUA_OK
            && ran.in_time
            && matches!(call.pending, Pending::Nothing)
            && !refused
        {
            // SAFETY: drops what was returned; does not allocate.
            unsafe { outrider_luajit::lua_settop(coroutine.lua, count(HANDLERS)) };
            return Started::Returned(call.slot);
        }
        Started::Left(self.outcome(coroutine, &ran))
    }

    /// Starts the function of the timer that woke the plugin on a free thread.
    pub(crate) fn start_timer(&mut self, thread: &Thread, context: Context<'_, '_>) -> Outcome {
        let Some(coroutine) = self.coroutine(thread) else {
            return no_coroutine(&context);
        };
        let entry = self.entries.get(Entry::Timer as usize);
        let reference = entry.copied().unwrap_or_default();
        // SAFETY: a free thread's stack is empty and has room; reading the registry does not allocate.
        unsafe { outrider_luajit::lua_rawgeti_(coroutine.lua, LUA_REGISTRYINDEX, reference) };
        let ran = self.go(coroutine, 0, context);
        self.outcome(coroutine, &ran)
    }

    /// Goes on with a handler that yielded.
    pub(crate) fn resume(&mut self, thread: &Thread, context: Context<'_, '_>) -> Outcome {
        let Some(coroutine) = self.coroutine(thread) else {
            return no_coroutine(&context);
        };
        let ran = self.go(coroutine, 0, context);
        self.outcome(coroutine, &ran)
    }

    /// Runs Lua.
    #[inline]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "its borrows end with the run"
    )]
    fn go(&mut self, coroutine: Coroutine, arguments: c_int, context: Context<'_, '_>) -> Ran {
        let call = self.call_state();
        // SAFETY: `clear` below, before the borrows in `context` end.
        unsafe {
            call.put_stream(context.stream, context.wake, context.phase, context.config);
        }
        call.end_of_stream(context.end_of_stream);
        if context.background {
            call.in_background();
        }
        call.slot = context.slot;
        call.pending = Pending::Nothing;
        if self.unusable.is_some() {
            let call = self.call_state();
            call.clear();
            return Ran {
                status: LUA_OK,
                in_time: false,
                wake_taken: false,
            };
        }
        self.watch.begin(context.budget);
        // SAFETY: the thread is free with a function and its arguments on its stack, or it yielded;
        // resuming is itself a protected call.
        let status = unsafe { outrider_luajit::lua_resume_(coroutine.lua, arguments) };
        let in_time = self.end_call();
        let call = self.call_state();
        let wake_taken = call.wake.is_none();
        call.clear();
        Ran {
            status,
            in_time,
            wake_taken,
        }
    }

    /// Ends a call of the time budget, and returns whether it was in time. After a call that a hook has ended,
    /// checks that the next one can be ended likewise.
    #[inline]
    fn end_call(&mut self) -> bool {
        let over = self.watch.end();
        let in_time = over.is_ok();
        self.note_overrun(over);
        in_time
    }

    /// What a run left, and how it ended.
    fn outcome(&mut self, coroutine: Coroutine, ran: &Ran) -> Outcome {
        let call = self.call_state();
        let pending = std::mem::take(&mut call.pending);
        let slot = call.slot;
        let ended = ran.status == LUA_OK || ran.status == LUA_YIELD;
        let step = if !ended || !ran.in_time || self.memory.refused() {
            let mut message = if ended {
                String::new()
            } else {
                self.take_error(coroutine.lua)
            };
            if place_of(&message).is_empty()
                && let Some(place) = self.place(coroutine)
            {
                message = format!("{place}{message}");
            }
            Step::Failed(self.error(!ran.in_time, message))
        } else {
            let (step, kept) = if ran.status == LUA_OK {
                // The handlers stay, for the next call.
                (Step::Done, HANDLERS)
            } else {
                (Step::Yielded, 0)
            };
            // SAFETY: drops what was returned or yielded; does not allocate.
            unsafe { outrider_luajit::lua_settop(coroutine.lua, count(kept)) };
            step
        };
        Outcome {
            step,
            pending,
            slot,
            wake_taken: ran.wake_taken,
        }
    }

    /// Collects garbage when much of the budget is in use and much of that is new.
    #[inline]
    pub(crate) fn tidy(&mut self) {
        let (used, limit) = (self.memory.used(), self.memory.limit());
        self.collected = self.collected.min(used);
        if used > limit / 2 && used > self.collected + limit / 8 {
            // A collection that fails leaves a VM that refuses memory, and says so at the next call.
            let _ = self.enter(Entry::Collect, &[], Vec::new(), None, HELPER_BUDGET);
            self.collected = self.memory.used();
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: no call runs, so the watchdog leaves the VM alone; the VM gets its own allocator
        // back and is closed once; nothing in it runs code as it closes, as plugins have no
        // finalizers; the call state was a box.
        unsafe {
            self.memory.uninstall(self.lua);
            outrider_luajit::lua_close(self.lua);
            drop(Box::from_raw(self.call));
        }
    }
}

fn count(length: usize) -> c_int {
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

/// Returns the outcome for a thread that is not of this VM.
#[cold]
fn no_coroutine(context: &Context<'_, '_>) -> Outcome {
    Outcome {
        step: Step::Failed(LuaError {
            kind: LuaErrorKind::Error,
            message: "the coroutine is gone with its VM".to_owned(),
        }),
        pending: Pending::Nothing,
        slot: context.slot,
        wake_taken: false,
    }
}

/// Makes a coroutine and anchors it in the registry.
unsafe extern "C-unwind" fn new_coroutine(lua: *mut lua_State) -> c_int {
    // SAFETY: as `boot`, with a `Coroutine`.
    unsafe {
        let coroutine = outrider_luajit::lua_touserdata(lua, 1).cast::<Coroutine>();
        (*coroutine).lua = outrider_luajit::lua_newthread(lua);
        (*coroutine).reference = outrider_luajit::luaL_ref(lua, LUA_REGISTRYINDEX);
    }
    0
}
