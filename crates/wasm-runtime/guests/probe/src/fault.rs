//! The ways in which a guest can go wrong.

use core::hint::{black_box, unreachable_unchecked};

/// How the next call of the allocator goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Allocator {
    Works,
    /// It answers 0.
    Null,
    /// It answers an address beyond the memory.
    Outside,
    Traps,
    /// It calls a host function that may not be called there.
    Calls,
}

/// Goes wrong in this way; returns when it did not.
pub fn fault(kind: &str, amount: u64) -> Result<i64, String> {
    match kind {
        "unreachable" => core::arch::wasm32::unreachable(),
        "panic" => panic!("the script says so"),
        "memory" => {
            let address = black_box(0xffff_fff0_usize) as *const u32;
            // SAFETY: there is none, that is the point: the address lies beyond the memory, and reading it traps.
            Ok(i64::from(unsafe { address.read_volatile() }))
        }
        "divide" => {
            let (one, zero) = (black_box(1_i32), black_box(0_i32));
            if zero == 0 {
                // SAFETY: there is none, that is the point: told that this cannot be, the compiler leaves out
                // Rust's own check, and Wasm's instruction traps.
                unsafe { unreachable_unchecked() }
            }
            Ok(i64::from(one / zero))
        }
        "call" => {
            let index = black_box(0x00ff_fff0_usize);
            // SAFETY: there is none: the table has no such entry, and the call traps.
            let function: fn() = unsafe { core::mem::transmute(index) };
            function();
            Ok(0)
        }
        "stack" => Ok(i64::from(recurse(black_box(0)))),
        "loop" => loop {
            black_box(0);
        },
        "grow" => Ok(core::arch::wasm32::memory_grow::<0>(amount as usize) as i32 as i64),
        "leak" => {
            let block = vec![1_u8; amount as usize];
            Ok(black_box(block.leak()).len() as i64)
        }
        _ => Err(format!("no fault {kind}")),
    }
}

#[inline(never)]
#[expect(unconditional_recursion, reason = "the stack is to overflow")]
fn recurse(depth: u32) -> u32 {
    let room = black_box([depth; 64]);
    recurse(depth + 1).wrapping_add(room[(depth % 64) as usize])
}
