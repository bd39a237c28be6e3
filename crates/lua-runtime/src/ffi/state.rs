//! One VM: a LuaJIT state with the SDK in it, its budgets, and the ways to run something in it.
//!
//! The trap: outside of a protected call only functions of Lua's C interface are used that neither
//! allocate nor raise; each block says why it may. Texts go in and out through the SDK's own FFI
//! calls ([`CallState`]'s arguments and results), which Lua makes under protection.

use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use mlua_sys::{LUA_OK, LUA_REGISTRYINDEX, LUA_YIELD, lua_State};
use outrider_plugin_api::{Metrics, Phase, Slot, Stream, Wake};

use super::call::{CallState, Pending};
use super::functions::{HOST_DECLARATION, host_address};
use super::memory::Memory;
use super::watch::Watch;
use crate::shared::Shared;
use crate::streams::Streams;
use crate::watchdog;

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
}

const ENTRIES: usize = 7;
/// The handler table and seven handlers.
const HANDLERS: usize = 8;

/// The SDK's files. The first is run with the others as its argument.
const SOURCES: &[(&CStr, &str)] = &[
    (c"=sdk/boot.lua", include_str!("../sdk/boot.lua")),
    (c"=sdk/core.lua", include_str!("../sdk/core.lua")),
    (c"=sdk/headers.lua", include_str!("../sdk/headers.lua")),
    (c"=sdk/body.lua", include_str!("../sdk/body.lua")),
    (c"=sdk/json.lua", include_str!("../sdk/json.lua")),
    (c"=sdk/wait.lua", include_str!("../sdk/wait.lua")),
    (c"=sdk/stream.lua", include_str!("../sdk/stream.lua")),
    (c"=sdk/metric.lua", include_str!("../sdk/metric.lua")),
    (c"=sdk/config.lua", include_str!("../sdk/config.lua")),
    (c"=sdk/sandbox.lua", include_str!("../sdk/sandbox.lua")),
    (c"=sdk/plugin.lua", include_str!("../sdk/plugin.lua")),
    #[cfg(test)]
    (c"=sdk/trace.lua", include_str!("../tests/trace.lua")),
];

/// How long helpers of the SDK may run.
const HELPER_BUDGET: Duration = Duration::from_millis(50);

/// What went wrong in a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LuaErrorKind {
    /// An error was raised.
    Error,
    /// The time budget was used up.
    Time,
    /// The memory budget was used up; the VM is of no use any more.
    Memory,
}

/// An error in a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LuaError {
    pub(crate) kind: LuaErrorKind,
    pub(crate) message: String,
}

/// A coroutine that the host runs. It is given back with [`State::release`].
#[derive(Debug)]
pub(crate) struct Thread {
    lua: *mut lua_State,
    reference: c_int,
}

// SAFETY: a thread is bound to its VM, which is used by one thread of the process at a time.
unsafe impl Send for Thread {}

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
    pub(crate) config: i32,
    pub(crate) slot: Slot,
    pub(crate) budget: Duration,
}

/// What a run left.
pub(crate) struct Outcome {
    pub(crate) step: Step,
    pub(crate) pending: Pending,
    pub(crate) slot: Slot,
}

/// See the module.
pub(crate) struct State {
    lua: *mut lua_State,
    // Lua holds this address too, so it is no box, whose content only its owner may touch.
    call: *mut CallState,
    memory: Box<Memory>,
    watch: Arc<Watch>,
    entries: [c_int; ENTRIES],
    handlers: [c_int; HANDLERS],
    collected: usize,
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

/// What [`boot`] takes and gives; plain data, as it may be left by a jump.
struct Boot {
    call: *mut CallState,
    seed: f64,
    budget: usize,
    entries: [c_int; ENTRIES],
    handlers: [c_int; HANDLERS],
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
        // SAFETY: makes a VM, or answers null.
        let lua = unsafe { mlua_sys::luaL_newstate() };
        if lua.is_null() {
            return Err(no_memory());
        }
        // SAFETY: the VM is live, new, and closed only in `drop`, which uninstalls first.
        let memory = unsafe { Memory::install(lua, memory_budget) };
        let call = Box::into_raw(CallState::new(shared, streams));
        let mut state = Self {
            lua,
            call,
            memory,
            watch: Arc::new(Watch::new(lua)),
            entries: [0; ENTRIES],
            handlers: [0; HANDLERS],
            collected: 0,
        };
        let mut boot_data = Boot {
            call,
            seed: f64::from(random_seed()),
            budget: memory_budget,
            entries: [0; ENTRIES],
            handlers: [0; HANDLERS],
        };
        // SAFETY: a protected call; `boot_data` lives until it returns.
        let status =
            unsafe { mlua_sys::lua_cpcall(lua, boot, (&raw mut boot_data).cast::<c_void>()) };
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
        watchdog::register(&state.watch);
        Ok(state)
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "the box is behind a raw pointer, as Lua holds it too"
    )]
    fn call_state(&self) -> &mut CallState {
        // SAFETY: the pointer is live until `drop`. Borrows made here are short and never overlap a
        // run of the VM, during which FFI functions make theirs; `&mut self` methods keep them apart.
        unsafe { &mut *self.call }
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
        watchdog::begin(&self.watch, budget);
        // SAFETY: the stack of the VM's main thread is empty here and has room for 20 values; pushing
        // numbers and reading the registry do not allocate; the call is protected.
        let status = unsafe {
            self.push_entry(entry);
            for number in numbers {
                mlua_sys::lua_pushnumber(lua, f64::from(*number));
            }
            mlua_sys::lua_pcall(lua, count(numbers.len()), results, 0)
        };
        let over = self.watch.end();
        let call = self.call_state();
        call.clear();
        let results = std::mem::take(&mut call.results);
        let failed = status != LUA_OK;
        if failed || over.is_err() || self.memory.refused() {
            let message = if failed {
                self.take_error(lua)
            } else {
                String::new()
            };
            // SAFETY: empties the main thread's stack; does not allocate.
            unsafe { mlua_sys::lua_settop(lua, 0) };
            return Err(self.error(over.is_err(), message));
        }
        if entry == Entry::LoadPlugin {
            for reference in self.handlers.iter().rev() {
                // SAFETY: the function left one value for each; their places in the registry are
                // there since `boot`, so storing does not allocate.
                unsafe { mlua_sys::lua_rawseti_(lua, LUA_REGISTRYINDEX, *reference) };
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
        unsafe { mlua_sys::lua_rawgeti_(self.lua, LUA_REGISTRYINDEX, reference) };
    }

    /// A new coroutine.
    ///
    /// # Errors
    /// The memory budget is used up.
    pub(crate) fn thread(&mut self) -> Result<Thread, LuaError> {
        let mut thread = Thread {
            lua: std::ptr::null_mut(),
            reference: 0,
        };
        // SAFETY: a protected call; `thread` lives until it returns, and is plain data.
        let status = unsafe {
            mlua_sys::lua_cpcall(self.lua, new_thread, (&raw mut thread).cast::<c_void>())
        };
        if status == LUA_OK {
            return Ok(thread);
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
        // SAFETY: the reference is the thread's own, and freeing it writes places in the registry
        // that are there.
        unsafe { mlua_sys::luaL_unref(self.lua, LUA_REGISTRYINDEX, thread.reference) };
    }

    /// Starts a handler on a free thread.
    pub(crate) fn start(
        &mut self,
        thread: &Thread,
        handler: usize,
        end_of_stream: bool,
        context: Context<'_, '_>,
    ) -> Outcome {
        let reference = self.handlers.get(handler).copied().unwrap_or_default();
        // SAFETY: a free thread's stack is empty and has room; reading the registry and pushing a
        // truth value do not allocate.
        unsafe {
            mlua_sys::lua_rawgeti_(thread.lua, LUA_REGISTRYINDEX, reference);
            mlua_sys::lua_rawgeti_(thread.lua, LUA_REGISTRYINDEX, self.handlers[0]);
            mlua_sys::lua_pushboolean(thread.lua, c_int::from(end_of_stream));
        }
        self.run(thread, 2, context)
    }

    /// Goes on with a handler that yielded.
    pub(crate) fn resume(&mut self, thread: &Thread, context: Context<'_, '_>) -> Outcome {
        self.run(thread, 0, context)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "its borrows end with the run"
    )]
    fn run(&mut self, thread: &Thread, arguments: c_int, context: Context<'_, '_>) -> Outcome {
        let call = self.call_state();
        // SAFETY: `clear` below, before the borrows in `context` end.
        unsafe {
            call.put_stream(context.stream, context.wake, context.phase, context.config);
        }
        call.slot = context.slot;
        call.pending = Pending::Nothing;
        watchdog::begin(&self.watch, context.budget);
        // SAFETY: the thread is free with a function and its arguments on its stack, or it yielded;
        // resuming is itself a protected call.
        let status = unsafe { mlua_sys::lua_resume_(thread.lua, arguments) };
        let over = self.watch.end();
        let call = self.call_state();
        call.clear();
        let pending = std::mem::take(&mut call.pending);
        let slot = call.slot;
        let ended = status == LUA_OK || status == LUA_YIELD;
        let step = if !ended || over.is_err() || self.memory.refused() {
            let mut message = if ended {
                String::new()
            } else {
                self.take_error(thread.lua)
            };
            if place_of(&message).is_empty()
                && let Some(place) = self.place(thread)
            {
                message = format!("{place}{message}");
            }
            Step::Failed(self.error(over.is_err(), message))
        } else {
            // SAFETY: drops what was returned or yielded; does not allocate.
            unsafe { mlua_sys::lua_settop(thread.lua, 0) };
            if status == LUA_OK {
                Step::Done
            } else {
                Step::Yielded
            }
        };
        Outcome {
            step,
            pending,
            slot,
        }
    }

    /// Collects garbage when much of the budget is in use and much of that is new.
    pub(crate) fn tidy(&mut self) {
        let (used, limit) = (self.memory.used(), self.memory.limit());
        self.collected = self.collected.min(used);
        if used > limit / 2 && used > self.collected + limit / 8 {
            // A collection that fails leaves a VM that refuses memory, and says so at the next call.
            let _ = self.enter(Entry::Collect, &[], Vec::new(), None, HELPER_BUDGET);
            self.collected = self.memory.used();
        }
    }

    /// The calls on a dead thread, one a line.
    pub(crate) fn traceback(&mut self, thread: &Thread) -> Option<String> {
        self.helper(Entry::Traceback, |lua| {
            // SAFETY: moves the thread object from its own stack to the main thread's; no allocation,
            // and there is room on both.
            unsafe {
                mlua_sys::lua_pushthread(thread.lua);
                mlua_sys::lua_xmove(thread.lua, lua, 1);
            }
        })
    }

    /// `file:line: ` of the plugin's innermost function on a thread that failed or was interrupted.
    fn place(&self, thread: &Thread) -> Option<String> {
        const DEEPEST: c_int = 64;
        let folder = format!("{}/", self.call_state().shared.folder);
        for level in 0..DEEPEST {
            // SAFETY: plain data, for which all zeros is a value.
            let mut info: mlua_sys::lua_Debug = unsafe { std::mem::zeroed() };
            // SAFETY: the thread does not run; looking at its calls neither allocates nor raises.
            let known = unsafe {
                mlua_sys::lua_getstack(thread.lua, level, &raw mut info) != 0
                    && mlua_sys::lua_getinfo(thread.lua, c"Sl".as_ptr(), &raw mut info) != 0
            };
            if !known {
                return None;
            }
            // SAFETY: LuaJIT ends the name with a zero.
            let name = unsafe { CStr::from_ptr(info.short_src.as_ptr().cast()) };
            let name = name.to_string_lossy();
            if info.currentline > 0 && (name.starts_with(&folder) || name.starts_with("...")) {
                return Some(format!("{name}:{}: ", info.currentline));
            }
        }
        None
    }

    fn error(&self, over: bool, message: String) -> LuaError {
        if self.memory.refused() {
            let limit = self.memory.limit();
            let place = place_of(&message);
            return LuaError {
                kind: LuaErrorKind::Memory,
                message: format!("{place}the memory budget of {limit} bytes is used up"),
            };
        }
        if over {
            let place = place_of(&message);
            return LuaError {
                kind: LuaErrorKind::Time,
                message: format!("{place}the time budget of the call is used up"),
            };
        }
        LuaError {
            kind: LuaErrorKind::Error,
            message,
        }
    }

    /// Takes the error value from the top of a stack, as text.
    fn take_error(&mut self, from: *mut lua_State) -> String {
        // SAFETY: a failed protected call left its error on top of that stack; looking at it does not
        // allocate.
        let kind = unsafe { mlua_sys::lua_type(from, -1) };
        if kind == mlua_sys::LUA_TSTRING {
            let mut length = 0;
            // SAFETY: it is a string already, so nothing is converted; it is copied before it is
            // popped.
            let message = unsafe {
                let data = mlua_sys::lua_tolstring(from, -1, &raw mut length);
                let bytes = std::slice::from_raw_parts(data.cast::<u8>(), length);
                String::from_utf8_lossy(bytes).into_owned()
            };
            // SAFETY: pops what was looked at.
            unsafe { mlua_sys::lua_pop(from, 1) };
            return message;
        }
        if self.entries[0] == 0 {
            return "the SDK could not be started".to_owned();
        }
        self.helper(Entry::Describe, |lua| {
            if from == lua {
                // On the same stack the value lies below the function; it is brought to the top.
                // SAFETY: rearranges what is there.
                unsafe { mlua_sys::lua_insert(lua, -2) };
            } else {
                // SAFETY: moves the value to the main thread's stack, which has room.
                unsafe { mlua_sys::lua_xmove(from, lua, 1) };
            }
        })
        .unwrap_or_else(|| "an error value that has no text".to_owned())
    }

    /// Runs an entry function with one argument that `push` leaves on top of the stack.
    fn helper(&mut self, entry: Entry, push: impl FnOnce(*mut lua_State)) -> Option<String> {
        let lua = self.lua;
        let kept = std::mem::take(&mut self.call_state().results);
        watchdog::begin(&self.watch, HELPER_BUDGET);
        // SAFETY: as in `enter`.
        let status = unsafe {
            self.push_entry(entry);
            push(lua);
            mlua_sys::lua_pcall(lua, 1, 0, 0)
        };
        let _ = self.watch.end();
        if status != LUA_OK {
            // SAFETY: drops the error value.
            unsafe { mlua_sys::lua_pop(lua, 1) };
        }
        let results = std::mem::replace(&mut self.call_state().results, kept);
        results.into_iter().next().map(|(_, text)| text)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: no call runs, so the watchdog leaves the VM alone; the VM gets its own allocator
        // back and is closed once; nothing in it runs code as it closes, as plugins have no
        // finalizers; the call state was a box.
        unsafe {
            self.memory.uninstall(self.lua);
            mlua_sys::lua_close(self.lua);
            drop(Box::from_raw(self.call));
        }
    }
}

fn count(length: usize) -> c_int {
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

/// `file.lua:12: `, if a message begins so.
pub(crate) fn place_of(message: &str) -> &str {
    let mut from = 0;
    while let Some(found) = message.get(from..).and_then(|rest| rest.find(".lua:")) {
        let digits = from + found + ".lua:".len();
        let rest = message.get(digits..).unwrap_or_default();
        let count = rest.bytes().take_while(u8::is_ascii_digit).count();
        if count > 0 && rest.get(count..).is_some_and(|tail| tail.starts_with(": ")) {
            return message.get(..digits + count + 2).unwrap_or_default();
        }
        from = digits;
    }
    ""
}

fn random_seed() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish() as u32
}

/// Opens the libraries, runs the SDK, and keeps its functions in the registry.
unsafe extern "C-unwind" fn boot(lua: *mut lua_State) -> c_int {
    // SAFETY: runs under `lua_cpcall` with a `Boot` that outlives it; no frame here owns anything, so
    // it may be left by a jump.
    unsafe {
        let boot = mlua_sys::lua_touserdata(lua, 1).cast::<Boot>();
        mlua_sys::luaL_openlibs(lua);
        let mut main = true;
        for (name, source) in SOURCES {
            let status =
                mlua_sys::luaL_loadbuffer(lua, source.as_ptr().cast(), source.len(), name.as_ptr());
            if status != LUA_OK {
                mlua_sys::lua_error(lua);
            }
            if main {
                // The first one stays below the table of the others.
                mlua_sys::lua_createtable(lua, 0, 16);
                main = false;
            } else {
                // `=sdk/x.lua` is kept as it is.
                mlua_sys::lua_setfield(lua, -2, name.as_ptr());
            }
        }
        mlua_sys::lua_pushlstring_(
            lua,
            HOST_DECLARATION.as_ptr().cast(),
            HOST_DECLARATION.len(),
        );
        mlua_sys::lua_pushlightuserdata(lua, (*boot).call.cast());
        mlua_sys::lua_pushlightuserdata(lua, host_address());
        mlua_sys::lua_pushnumber(lua, (*boot).seed);
        mlua_sys::lua_pushnumber(lua, (*boot).budget as f64);
        mlua_sys::lua_call(lua, 6, 1);
        for (index, entry) in (*boot).entries.iter_mut().enumerate() {
            mlua_sys::lua_rawgeti_(lua, -1, count(index + 1));
            *entry = mlua_sys::luaL_ref(lua, LUA_REGISTRYINDEX);
        }
        for handler in &mut (*boot).handlers {
            mlua_sys::lua_pushboolean(lua, 0);
            *handler = mlua_sys::luaL_ref(lua, LUA_REGISTRYINDEX);
        }
    }
    0
}

/// Makes a thread and anchors it in the registry.
unsafe extern "C-unwind" fn new_thread(lua: *mut lua_State) -> c_int {
    // SAFETY: as `boot`, with a `Thread`.
    unsafe {
        let thread = mlua_sys::lua_touserdata(lua, 1).cast::<Thread>();
        (*thread).lua = mlua_sys::lua_newthread(lua);
        (*thread).reference = mlua_sys::luaL_ref(lua, LUA_REGISTRYINDEX);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn a_place_is_found_where_there_is_one() {
        assert_eq!(place_of("p/main.lua:12: bad"), "p/main.lua:12: ");
        assert_eq!(place_of("a.lua:x b.lua:3: y"), "a.lua:x b.lua:3: ");
        assert_eq!(place_of("not enough memory"), "");
    }
}
