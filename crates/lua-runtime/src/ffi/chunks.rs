//! Compilation of Lua text, for `load` and for the plugin's files.
//!
//! LuaJIT's own `load` takes a function as its reader. An error that a reader raises (such as the one that
//! ends an overdue call) leaves the compiler without restoring the VM's hook state: from then on no hook is
//! called in that VM, and nothing ends a loop. So the only reader here is written in Rust. It never raises;
//! when the call's time is over, it says that the text ends.

use std::ffi::{c_char, c_int, c_void};

use outrider_luajit::{LUA_OK, LUA_TTABLE, lua_Reader, lua_State};

use super::call::CallState;

/// Bytes that the compiler gets at a time. Between two pieces the reader checks the time budget. In one
/// piece there is room for few labels, each of which the compiler compares with all others.
const PIECE: usize = 64;

/// Text that is being compiled. Plain data, as the frame that holds it may be left by a jump.
struct Text {
    rest: *const u8,
    length: usize,
    call: *const CallState,
}

unsafe extern "C-unwind" {
    /// As `lua_load`, with the kinds of chunk that are allowed; LuaJIT has it, `mlua-sys` does not declare it.
    fn lua_loadx(
        lua: *mut lua_State,
        reader: lua_Reader,
        data: *mut c_void,
        name: *const c_char,
        mode: *const c_char,
    ) -> c_int;
}

/// Returns the next piece of a [`Text`], or null at its end.
unsafe extern "C-unwind" fn next_piece(
    _: *mut lua_State,
    text: *mut c_void,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: `load_text` hands over its `Text`, whose string lies on the stack of the VM meanwhile; the call's
    // state lives as long as the VM, and nothing borrows it while Lua runs.
    unsafe {
        let text = &mut *text.cast::<Text>();
        if text.length == 0 || (*text.call).watch.is_overdue() {
            *size = 0;
            return std::ptr::null();
        }
        let piece = text.rest;
        let length = text.length.min(PIECE);
        text.rest = text.rest.add(length);
        text.length -= length;
        *size = length;
        piece.cast()
    }
}

/// Lua's `load_text(text, name, environment)`: returns the compiled function, or nil and the reason. The
/// SDK checks the arguments: two strings and a table. Bytecode is refused.
pub(super) unsafe extern "C-unwind" fn load_text(lua: *mut lua_State) -> c_int {
    const TEXT: c_int = 1;
    const NAME: c_int = 2;
    const ENVIRONMENT: c_int = 3;
    // SAFETY: called by Lua with its arguments on the stack, which has room for 20 more values; the upvalue is
    // the call's state, since `boot`. No frame here owns anything, so it may be left by a jump.
    unsafe {
        let call = outrider_luajit::lua_touserdata(lua, outrider_luajit::lua_upvalueindex(1));
        let mut length = 0;
        let data = outrider_luajit::lua_tolstring(lua, TEXT, &raw mut length);
        let name = outrider_luajit::lua_tolstring(lua, NAME, std::ptr::null_mut());
        if data.is_null()
            || name.is_null()
            || outrider_luajit::lua_type(lua, ENVIRONMENT) != LUA_TTABLE
        {
            return 0;
        }
        let mut text = Text {
            rest: data.cast(),
            length,
            call: call.cast_const().cast(),
        };
        let status = lua_loadx(lua, next_piece, (&raw mut text).cast(), name, c"t".as_ptr());
        if status != LUA_OK {
            outrider_luajit::lua_pushnil(lua);
            outrider_luajit::lua_insert(lua, -2);
            return 2;
        }
        outrider_luajit::lua_pushvalue(lua, ENVIRONMENT);
        outrider_luajit::lua_setfenv(lua, -2);
    }
    1
}
