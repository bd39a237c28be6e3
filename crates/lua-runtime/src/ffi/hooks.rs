//! Proof, once per process, that a hook ends a compiled loop.
//!
//! LuaJIT calls a hook from compiled code only if it is built with `LUAJIT_ENABLE_CHECKHOOK`, which environment
//! variables of a build can silently take away. Nothing could end a loop then, so plugins are refused.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use outrider_luajit::{LUA_MASKCOUNT, LUA_OK, lua_Debug, lua_State};

/// Turns of the loop, at one of which the hook is set: by then the loop is compiled.
const SET_AT: u32 = 10_000;
/// Turns of the loop at most.
const TURNS: u32 = 1_000_000;
/// Turns within which the hook has to be called; LuaJIT unrolls loops.
const NEAR: u32 = 100;

/// Loop of the proof. Its call of C is part of the compiled code.
const LOOP: &str = "
local address, turn, turns = ...
local ffi = require('ffi')
local call = ffi.cast('void (*)(void *)', turn)
for i = 1, turns do call(address) end
";

/// The loop that runs on this thread.
struct Turns {
    lua: *mut lua_State,
    set_at: u32,
    count: u32,
}

/// Ends the loop of the proof.
unsafe extern "C-unwind" fn end_loop(lua: *mut lua_State, _: *mut lua_Debug) {
    // SAFETY: a hook may raise; this frame owns nothing.
    unsafe {
        outrider_luajit::lua_pushnil(lua);
        outrider_luajit::lua_error(lua)
    }
}

/// Counts the turns, and sets the hook at one of them.
unsafe extern "C" fn take_turn(turns: *mut c_void) {
    // SAFETY: `turns_until_hook` hands over its `Turns`, which outlives the loop. LuaJIT allows to set a hook
    // at any time.
    unsafe {
        let turns = &mut *turns.cast::<Turns>();
        turns.count += 1;
        if turns.count == turns.set_at {
            outrider_luajit::lua_sethook(turns.lua, Some(end_loop), LUA_MASKCOUNT, 1);
        }
    }
}

/// Opens LuaJIT's libraries and pushes the loop and its arguments.
unsafe extern "C-unwind" fn prepare(lua: *mut lua_State) -> c_int {
    // SAFETY: runs under `lua_cpcall`; no frame here owns anything.
    unsafe {
        let turns = outrider_luajit::lua_touserdata(lua, 1);
        outrider_luajit::luaL_openlibs(lua);
        let status = outrider_luajit::luaL_loadbuffer(
            lua,
            LOOP.as_ptr().cast(),
            LOOP.len(),
            c"=hooks".as_ptr(),
        );
        if status != LUA_OK {
            outrider_luajit::lua_error(lua);
        }
        outrider_luajit::lua_pushlightuserdata(lua, turns);
        outrider_luajit::lua_pushlightuserdata(lua, take_turn as *mut c_void);
        outrider_luajit::lua_pushnumber(lua, f64::from(TURNS));
        outrider_luajit::lua_call(lua, 3, 0);
    }
    0
}

/// Runs a compiled loop in which a hook is set at one turn, and returns the turns until the hook ended it, or
/// `None` if the loop came to its own end.
fn turns_until_hook(set_at: u32) -> Option<u32> {
    // SAFETY: makes a VM, or returns null.
    let lua = unsafe { outrider_luajit::luaL_newstate() };
    if lua.is_null() {
        return None;
    }
    let mut turns = Turns {
        lua,
        set_at,
        count: 0,
    };
    // SAFETY: a protected call; `turns` lives until it returns. The VM is closed once.
    unsafe {
        outrider_luajit::lua_cpcall(lua, prepare, (&raw mut turns).cast::<c_void>());
        outrider_luajit::lua_close(lua);
    }
    (turns.count >= set_at && turns.count < TURNS).then_some(turns.count)
}

/// Checks once per process that a hook ends a compiled loop.
///
/// # Errors
/// It does not: no time budget would hold.
pub(crate) fn check_compiled_loops() -> Result<(), &'static str> {
    static CHECKED: OnceLock<bool> = OnceLock::new();
    let ends = *CHECKED
        .get_or_init(|| turns_until_hook(SET_AT).is_some_and(|turns| turns <= SET_AT + NEAR));
    if ends {
        Ok(())
    } else {
        Err(
            "this build of LuaJIT cannot end a compiled loop, so no time budget would hold; build \
             Outrider with `-DLUAJIT_ENABLE_CHECKHOOK` in LuaJIT's CFLAGS (see .cargo/config.toml)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_loop_is_ended_by_its_hook() {
        assert_eq!(check_compiled_loops(), Ok(()));
        let turns = turns_until_hook(SET_AT).unwrap();
        assert!((SET_AT..=SET_AT + NEAR).contains(&turns), "{turns}");
    }

    #[test]
    fn compiled_loop_without_a_hook_is_refused() {
        assert_eq!(turns_until_hook(TURNS + 1), None);
    }
}
