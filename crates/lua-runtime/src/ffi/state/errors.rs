//! What went wrong in a VM, as text: error values, the places that they name, the calls that led there.

use std::ffi::{CStr, c_int};
use std::time::Duration;

use outrider_luajit::{LUA_OK, lua_State};

use super::{Coroutine, Entry, State, Thread};
use crate::sdk_names::with_nearest;

/// How long helpers of the SDK may run.
pub(super) const HELPER_BUDGET: Duration = Duration::from_millis(50);

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

impl State {
    /// The calls on a dead thread, one a line.
    pub(crate) fn traceback(&mut self, thread: &Thread) -> Option<String> {
        let coroutine = self.coroutine(thread)?;
        self.helper(Entry::Traceback, |lua| {
            // SAFETY: moves the thread object from its own stack to the main thread's; no allocation,
            // and there is room on both.
            unsafe {
                outrider_luajit::lua_pushthread(coroutine.lua);
                outrider_luajit::lua_xmove(coroutine.lua, lua, 1);
            }
        })
    }

    /// `file:line: ` of the plugin's innermost function on a coroutine of this VM that failed or was interrupted.
    pub(super) fn place(&self, coroutine: Coroutine) -> Option<String> {
        const DEEPEST: c_int = 64;
        let folder = format!("{}/", self.shared().folder);
        for level in 0..DEEPEST {
            // SAFETY: plain data, for which all zeros is a value.
            let mut info: outrider_luajit::lua_Debug = unsafe { std::mem::zeroed() };
            // SAFETY: the thread does not run; looking at its calls neither allocates nor raises.
            let known = unsafe {
                outrider_luajit::lua_getstack(coroutine.lua, level, &raw mut info) != 0
                    && outrider_luajit::lua_getinfo(coroutine.lua, c"Sl".as_ptr(), &raw mut info)
                        != 0
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

    pub(super) fn error(&self, over: bool, message: String) -> LuaError {
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
        let shared = self.shared();
        LuaError {
            kind: LuaErrorKind::Error,
            message: with_nearest(message, &shared.folder, &shared.files),
        }
    }

    /// Takes the error value from the top of a stack, as text.
    pub(super) fn take_error(&mut self, from: *mut lua_State) -> String {
        // SAFETY: a failed protected call left its error on top of that stack; looking at it does not
        // allocate.
        let kind = unsafe { outrider_luajit::lua_type(from, -1) };
        if kind == outrider_luajit::LUA_TSTRING {
            let mut length = 0;
            // SAFETY: it is a string already, so nothing is converted; it is copied before it is
            // popped.
            let message = unsafe {
                let data = outrider_luajit::lua_tolstring(from, -1, &raw mut length);
                let bytes = std::slice::from_raw_parts(data.cast::<u8>(), length);
                String::from_utf8_lossy(bytes).into_owned()
            };
            // SAFETY: pops what was looked at.
            unsafe { outrider_luajit::lua_pop(from, 1) };
            return message;
        }
        if self.entries[0] == 0 {
            return "the SDK could not be started".to_owned();
        }
        self.helper(Entry::Describe, |lua| {
            if from == lua {
                // On the same stack the value lies below the function; it is brought to the top.
                // SAFETY: rearranges what is there.
                unsafe { outrider_luajit::lua_insert(lua, -2) };
            } else {
                // SAFETY: moves the value to the main thread's stack, which has room.
                unsafe { outrider_luajit::lua_xmove(from, lua, 1) };
            }
        })
        .unwrap_or_else(|| "an error value that has no text".to_owned())
    }

    /// Runs an entry function with one argument that `push` leaves on top of the stack.
    fn helper(&mut self, entry: Entry, push: impl FnOnce(*mut lua_State)) -> Option<String> {
        if self.unusable.is_some() {
            // What `push` would have taken stays where it is, and is dropped with the VM.
            return None;
        }
        let lua = self.lua;
        let kept = std::mem::take(&mut self.call_state().results);
        self.watch.begin(HELPER_BUDGET);
        // SAFETY: as in `enter`.
        let status = unsafe {
            self.push_entry(entry);
            push(lua);
            outrider_luajit::lua_pcall(lua, 1, 0, 0)
        };
        self.end_call();
        if status != LUA_OK {
            // SAFETY: drops the error value.
            unsafe { outrider_luajit::lua_pop(lua, 1) };
        }
        let results = std::mem::replace(&mut self.call_state().results, kept);
        results.into_iter().next().map(|(_, text)| text)
    }
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
