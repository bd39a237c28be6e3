//! The memory budget of one VM: LuaJIT's own allocator, counted, and refusing what goes beyond.
//!
//! LuaJIT's allocator stays underneath because it keeps every object at an address that LuaJIT can
//! tag, on every platform. Machine code of traces is not part of the count; LuaJIT limits it itself.
//!
//! The trap: a refused allocation is an error in Lua, and `pcall` can catch it. So that it was
//! refused is remembered here, and the host asks ([`Memory::refused`]).

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrider_luajit::{lua_Alloc, lua_State};

/// Counts what one VM has allocated. Its address is known to LuaJIT, so it lives in a box.
pub(super) struct Memory {
    /// Only the VM's own thread writes; others may look.
    used: Arc<AtomicUsize>,
    limit: Cell<usize>,
    refused: Cell<bool>,
    original: lua_Alloc,
    original_data: *mut c_void,
}

impl Memory {
    /// Puts the count between a new VM and its allocator.
    ///
    /// # Safety
    /// `lua` is a live VM with its first allocator, and [`Memory::uninstall`] is called before it is
    /// closed.
    #[expect(clippy::unnecessary_box_returns, reason = "LuaJIT keeps its address")]
    pub(super) unsafe fn install(lua: *mut lua_State, limit: usize) -> Box<Self> {
        let mut original_data = std::ptr::null_mut();
        // SAFETY: `lua` is live; the out pointer is valid.
        let original = unsafe { outrider_luajit::lua_getallocf(lua, &raw mut original_data) };
        // SAFETY: `lua` is live; reading the count neither allocates nor raises.
        let kib = unsafe { outrider_luajit::lua_gc(lua, outrider_luajit::LUA_GCCOUNT, 0) };
        let memory = Box::new(Self {
            used: Arc::new(AtomicUsize::new(usize::try_from(kib).unwrap_or(0) * 1024)),
            limit: Cell::new(limit),
            refused: Cell::new(false),
            original,
            original_data,
        });
        // SAFETY: the box outlives the VM's use of it, by this function's contract.
        unsafe {
            outrider_luajit::lua_setallocf(lua, allocate, (&raw const *memory).cast_mut().cast());
        }
        memory
    }

    /// Gives the VM its first allocator back, which alone knows how to free its arena.
    ///
    /// # Safety
    /// `lua` is the VM that this was installed in.
    pub(super) unsafe fn uninstall(&self, lua: *mut lua_State) {
        // SAFETY: as above.
        unsafe { outrider_luajit::lua_setallocf(lua, self.original, self.original_data) };
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes in use, for other threads to look at.
    pub(super) fn gauge(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.used)
    }

    /// The budget in bytes.
    pub(super) fn limit(&self) -> usize {
        self.limit.get()
    }

    /// Whether an allocation was ever refused.
    pub(super) fn refused(&self) -> bool {
        self.refused.get()
    }
}

unsafe extern "C" fn allocate(
    data: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: `install` handed over the address of a `Memory` that outlives the VM's use of it.
    let memory = unsafe { &*data.cast::<Memory>() };
    let used = memory.used.load(Ordering::Relaxed);
    if new > old && used.saturating_add(new - old) > memory.limit.get() {
        memory.refused.set(true);
        return std::ptr::null_mut();
    }
    // SAFETY: the first allocator, with its own data, for a block that it made itself.
    let moved = unsafe { (memory.original)(memory.original_data, block, old, new) };
    if new == 0 || !moved.is_null() {
        let now = used.saturating_add(new).saturating_sub(old);
        memory.used.store(now, Ordering::Relaxed);
    }
    moved
}
