//! The native side of `make bench`: a dynamic module of Envoy that does what the benchmark's Lua
//! scripts do, and nothing else. It says what the work costs when nothing is wasted, so it has to be
//! as good as one can write it: names are made once, Envoy's functions are called directly (bound by
//! the dynamic linker), a stream has no state, nothing is allocated or copied.
//!
//! Not for use, and no part of what ships. It does not know `envoy-abi`, whose hooks it would export
//! as its own and whose calls go through a table that is filled at load.
//!
//! The trap: the comparison is worth as much as its equality. What is read is added up and compared
//! with what is expected, as in the scripts; a difference is told in a header, `x-bench`, and the
//! benchmark looks at it before it counts.
#![expect(
    unsafe_code,
    reason = "Envoy's C ABI on both sides; each block says why it is sound"
)]

mod abi;
mod hooks;
mod work;
