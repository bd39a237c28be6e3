//! How a VM begins: the libraries, the SDK's files, and the places in the registry under which the
//! host finds its functions and the plugin's handlers again.

use std::ffi::{CStr, c_int};

use outrider_luajit::{LUA_OK, LUA_REGISTRYINDEX, lua_State};

use super::super::call::CallState;
use super::super::chunks::load_text;
use super::super::functions::{HOST_DECLARATION, host_address};
use super::{ENTRIES, HANDLERS, count};

/// The SDK's files. The first is run with the others as its argument.
const SOURCES: &[(&CStr, &str)] = &[
    (c"=sdk/boot.lua", include_str!("../../sdk/boot.lua")),
    (c"=sdk/core.lua", include_str!("../../sdk/core.lua")),
    (c"=sdk/headers.lua", include_str!("../../sdk/headers.lua")),
    (c"=sdk/body.lua", include_str!("../../sdk/body.lua")),
    (c"=sdk/json.lua", include_str!("../../sdk/json.lua")),
    (c"=sdk/wait.lua", include_str!("../../sdk/wait.lua")),
    (c"=sdk/callout.lua", include_str!("../../sdk/callout.lua")),
    (c"=sdk/timer.lua", include_str!("../../sdk/timer.lua")),
    (c"=sdk/stream.lua", include_str!("../../sdk/stream.lua")),
    (c"=sdk/metadata.lua", include_str!("../../sdk/metadata.lua")),
    (c"=sdk/metric.lua", include_str!("../../sdk/metric.lua")),
    (c"=sdk/crypto.lua", include_str!("../../sdk/crypto.lua")),
    (c"=sdk/time.lua", include_str!("../../sdk/time.lua")),
    (c"=sdk/url.lua", include_str!("../../sdk/url.lua")),
    (c"=sdk/re.lua", include_str!("../../sdk/re.lua")),
    (
        c"=sdk/json_schema.lua",
        include_str!("../../sdk/json_schema.lua"),
    ),
    (c"=sdk/shared.lua", include_str!("../../sdk/shared.lua")),
    (c"=sdk/config.lua", include_str!("../../sdk/config.lua")),
    (
        c"=sdk/envoy_filter.lua",
        include_str!("../../sdk/envoy_filter.lua"),
    ),
    (
        c"=sdk/envoy_filter_metadata.lua",
        include_str!("../../sdk/envoy_filter_metadata.lua"),
    ),
    (
        c"=sdk/envoy_filter_facts.lua",
        include_str!("../../sdk/envoy_filter_facts.lua"),
    ),
    (
        c"=sdk/envoy_filter_tools.lua",
        include_str!("../../sdk/envoy_filter_tools.lua"),
    ),
    (
        c"=sdk/envoy_filter_calls.lua",
        include_str!("../../sdk/envoy_filter_calls.lua"),
    ),
    (c"=sdk/strings.lua", include_str!("../../sdk/strings.lua")),
    (c"=sdk/sandbox.lua", include_str!("../../sdk/sandbox.lua")),
    (c"=sdk/plugin.lua", include_str!("../../sdk/plugin.lua")),
    #[cfg(test)]
    (c"=sdk/trace.lua", include_str!("../../tests/trace.lua")),
];

/// What [`boot`] takes and gives; plain data, as it may be left by a jump.
pub(super) struct Boot {
    pub(super) call: *mut CallState,
    pub(super) seed: f64,
    pub(super) budget: usize,
    pub(super) entries: [c_int; ENTRIES],
    pub(super) handlers: [c_int; HANDLERS],
}

pub(super) fn random_seed() -> u32 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish() as u32
}

/// Opens the libraries, runs the SDK, and keeps its functions in the registry.
pub(super) unsafe extern "C-unwind" fn boot(lua: *mut lua_State) -> c_int {
    // SAFETY: runs under `lua_cpcall` with a `Boot` that outlives it; no frame here owns anything, so
    // it may be left by a jump.
    unsafe {
        let boot = outrider_luajit::lua_touserdata(lua, 1).cast::<Boot>();
        outrider_luajit::luaL_openlibs(lua);
        let mut main = true;
        for (name, source) in SOURCES {
            let status = outrider_luajit::luaL_loadbuffer(
                lua,
                source.as_ptr().cast(),
                source.len(),
                name.as_ptr(),
            );
            if status != LUA_OK {
                outrider_luajit::lua_error(lua);
            }
            if main {
                // The first one stays below the table of the others.
                outrider_luajit::lua_createtable(lua, 0, 16);
                main = false;
            } else {
                // `=sdk/x.lua` is kept as it is.
                outrider_luajit::lua_setfield(lua, -2, name.as_ptr());
            }
        }
        outrider_luajit::lua_pushlstring_(
            lua,
            HOST_DECLARATION.as_ptr().cast(),
            HOST_DECLARATION.len(),
        );
        outrider_luajit::lua_pushlightuserdata(lua, (*boot).call.cast());
        outrider_luajit::lua_pushlightuserdata(lua, host_address());
        outrider_luajit::lua_pushnumber(lua, (*boot).seed);
        outrider_luajit::lua_pushnumber(lua, (*boot).budget as f64);
        outrider_luajit::lua_pushlightuserdata(lua, (*boot).call.cast());
        outrider_luajit::lua_pushcclosure(lua, load_text, 1);
        outrider_luajit::lua_call(lua, 7, 1);
        for (index, entry) in (*boot).entries.iter_mut().enumerate() {
            outrider_luajit::lua_rawgeti_(lua, -1, count(index + 1));
            *entry = outrider_luajit::luaL_ref(lua, LUA_REGISTRYINDEX);
        }
        for handler in &mut (*boot).handlers {
            outrider_luajit::lua_pushboolean(lua, 0);
            *handler = outrider_luajit::luaL_ref(lua, LUA_REGISTRYINDEX);
        }
    }
    0
}
