//! The time budget of one VM: who may set the hook that ends an overdue call, and when.
//!
//! The worker says when a call begins and by when it has to be over, and when it is over. The
//! watchdog, on its own thread, looks at that ([`Watch::look`]) and sets a count hook on a VM whose
//! time is up. At the next instruction the hook makes the coroutine yield, which no `pcall` catches;
//! where it cannot yield (in a callback of a C function, or while a plugin loads) it raises an error
//! instead, there and at each instruction after it, until control is back in the host. LuaJIT is built with `LUAJIT_ENABLE_CHECKHOOK`, else
//! compiled loops would not see the hook.
//!
//! The trap is a call that ends in the moment in which the watchdog finds it overdue. The deadline
//! decides: the watchdog may touch the VM only if it has changed the deadline to `OVERDUE`, and the
//! worker, finding `OVERDUE` at the end of a call, takes the lock that the watchdog holds meanwhile.
//!
//! What a hook cannot end: functions that run in C for long without an instruction of Lua in between,
//! which are the pattern functions (`find`, `match`, `gsub`, `gmatch`) on patterns and subjects made
//! for it, and `table.sort` or `table.concat` over very much data; the memory budget bounds the
//! latter.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mlua_sys::{lua_Debug, lua_State};

const IDLE: u64 = 0;
const OVERDUE: u64 = u64::MAX;

/// A call ended because its time was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverBudget;

/// What the watchdog knows about one VM.
#[derive(Debug)]
pub(crate) struct Watch {
    deadline: AtomicU64,
    /// How often the hook of the overdue call was set.
    hook: Mutex<u32>,
    lua: *mut lua_State,
}

// SAFETY: `lua` is used by another thread only in `look`, only while the deadline is `OVERDUE`, that
// is while a call runs in the VM, and only for `lua_sethook`, which LuaJIT allows at any time.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

/// What [`Watch::look`] saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// No call runs.
    Idle,
    /// A call runs.
    Busy,
}

impl Watch {
    pub(super) fn new(lua: *mut lua_State) -> Self {
        Self {
            deadline: AtomicU64::new(IDLE),
            hook: Mutex::new(0),
            lua,
        }
    }

    /// A call begins that has to be over at `deadline` (nanoseconds of the watchdog's clock).
    pub(crate) fn begin(&self, deadline: u64) {
        // SeqCst: the watchdog, before it sleeps, says so and then looks at the deadlines; a worker
        // sets its deadline and then looks whether it sleeps. One of them sees the other.
        self.deadline
            .store(deadline.clamp(IDLE + 1, OVERDUE - 1), Ordering::SeqCst);
    }

    /// The call is over; only its own thread says so.
    pub(crate) fn end(&self) -> Result<(), OverBudget> {
        if self.deadline.swap(IDLE, Ordering::AcqRel) != OVERDUE {
            return Ok(());
        }
        let mut times = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        *times = 0;
        // SAFETY: this thread is the one that uses the VM, and the watchdog, which might have been
        // setting the hook, has let go of the lock. Setting it first has LuaJIT write its dispatch
        // tables anew, in case that both changed them at once.
        unsafe {
            set_hook(self.lua, Some(interrupt));
            set_hook(self.lua, None);
        }
        Err(OverBudget)
    }

    /// Looks at the VM, and interrupts its call if that is overdue at `now`.
    pub(crate) fn look(&self, now: u64) -> Sight {
        let deadline = self.deadline.load(Ordering::SeqCst);
        if deadline == IDLE {
            return Sight::Idle;
        }
        if deadline > now && deadline != OVERDUE {
            return Sight::Busy;
        }
        let mut times = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        let claimed = deadline == OVERDUE && self.deadline.load(Ordering::SeqCst) == OVERDUE
            || self
                .deadline
                .compare_exchange(deadline, OVERDUE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        if claimed {
            // SAFETY: the deadline is OVERDUE, so the call has not ended: its end waits for the lock.
            // Hooks may be set from any thread at any time.
            unsafe {
                // The worker may have been changing the dispatch tables at the same time, and the hook
                // may be lost: it is set again each time, and now and then taken off before that,
                // which makes LuaJIT write the tables anew. Not each time, as the plugin runs free in
                // between.
                if *times % 16 == 15 {
                    set_hook(self.lua, None);
                }
                set_hook(self.lua, Some(interrupt));
            }
            *times = times.wrapping_add(1);
        }
        Sight::Busy
    }
}

unsafe extern "C-unwind" {
    /// Whether a yield is possible; LuaJIT has it, `mlua-sys` does not declare it.
    fn lua_isyieldable(lua: *mut lua_State) -> c_int;
}

/// Sets or clears the hook.
///
/// # Safety
/// `lua` is live.
unsafe fn set_hook(
    lua: *mut lua_State,
    hook: Option<unsafe extern "C-unwind" fn(*mut lua_State, *mut lua_Debug)>,
) {
    // SAFETY: `lua` is live by contract; LuaJIT allows this at any time.
    unsafe { mlua_sys::lua_sethook(lua, hook, mlua_sys::LUA_MASKCOUNT, 1) };
}

/// Ends what runs. Owns nothing, as it leaves by a jump.
unsafe extern "C-unwind" fn interrupt(lua: *mut lua_State, _: *mut lua_Debug) {
    const RUNNING: c_int = 0;
    // SAFETY: a hook runs in the VM that it is for; LuaJIT gives it stack to work with; yielding and
    // raising are what it is for, and this frame holds nothing.
    unsafe {
        if lua_isyieldable(lua) != 0 {
            mlua_sys::lua_yield(lua, 0);
            return;
        }
        mlua_sys::luaL_where(lua, RUNNING);
        mlua_sys::lua_pushstring_(lua, c"the time budget of the call is used up".as_ptr());
        mlua_sys::lua_concat(lua, 2);
        mlua_sys::lua_error(lua)
    }
}
