//! Programs of plugins for tests of isolation: Proxy-Wasm guests in WebAssembly's text form ([`wasm`]), and
//! random programs over the Lua SDK ([`lua`]) and over the host functions ([`wasm::program`]).
//!
//! Random programs are functions of their seed. They do with every function something that is allowed, something
//! that is refused, and something that makes no sense; they loop, allocate, raise errors, wait and never go on.
//! Nothing about them is expected but that they do no harm to others.

pub mod lua;
pub mod wasm;
