//! The C functions of LuaJIT (declared by `mlua-sys`), and the library that has them: LuaJIT from its published sources with
//! one change, which `build.rs` makes and `c/reinsert.c` explains.

pub use mlua_sys::*;
