//! The time budget of one VM: how the watchdog ends an overdue call of Lua.
//!
//! The watchdog ([`outrider_vm_pool::CallSlot`]) sets a count hook on a VM whose call is overdue. At the next
//! instruction the hook makes the coroutine yield, which no `pcall` catches; where it cannot yield (in a
//! callback of a C function, or while a plugin loads) it raises an error instead, there and at each
//! instruction after it, until control is back in the host. LuaJIT is built with
//! `LUAJIT_ENABLE_CHECKHOOK`, else compiled loops would not see the hook.
//!
//! The trap: `lua_sethook` writes the VM's hook mask and dispatch tables without any synchronisation, and the
//! watchdog calls it while the worker runs the VM. Three things may go wrong, and each has its remedy:
//!
//! - The worker changes the hook mask at the same time (it enters or leaves a hook, or a protected call
//!   restores the mask), and the hook is lost. The watchdog sets it again at each tick until the call ends.
//! - Both write the dispatch tables at the same time, which are then those of a VM without hooks. Every
//!   sixteenth time the watchdog takes the hook off first, which has LuaJIT write the tables anew; not each
//!   time, as the plugin runs free in between.
//! - The tables or the mask are left in a state in which the next hook would not be called. After each
//!   overdue call the worker, alone with the VM, takes the hook off and sets it again, and
//!   `State::check_hook` tries whether it is called. If it is not, the VM is not used again.
//!
//! Every store is of one aligned word, and the tables hold addresses of LuaJIT's own code only, so a torn
//! table never leads anywhere but to the next instruction with or without a look at the hook.
//!
//! What a hook cannot end: functions that run in C for long without an instruction of Lua in between.
//! Those in which the work grows faster than what they are given are the SDK's own (`strings.lua`,
//! `sandbox.lua`); the host's ask [`Watch::is_overdue`]. The memory budget bounds the others; a VM in which
//! one runs on for [late](outrider_vm_pool::Overrun::is_late) is not used again.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use outrider_luajit::{lua_Debug, lua_State};
use outrider_vm_pool::{CallSlot, Interrupt, NO_CLOCK, Overrun, ShareAccount, ThreadClock};

/// CPU clocks of threads, by `pthread_getcpuclockid`.
#[derive(Debug)]
pub(crate) struct PosixClock;

thread_local! {
    /// The clock id of this thread.
    static CLOCK: libc::clockid_t = {
        let mut clock = NO_CLOCK;
        // SAFETY: a thread may ask for its own clock; the answer goes where `clock` is.
        let result = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        if result == 0 { clock } else { NO_CLOCK }
    };
}

impl ThreadClock for PosixClock {
    #[inline]
    fn this_thread(&self) -> i32 {
        CLOCK.with(|clock| *clock)
    }

    fn cpu_time(&self, clock: i32) -> Option<u64> {
        if clock == NO_CLOCK {
            return None;
        }
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the answer goes where `time` is; a clock of a thread that has ended is an error.
        let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
        if result != 0 {
            return None;
        }
        let seconds = u64::try_from(time.tv_sec).ok()?;
        Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
    }
}

/// The hook of one VM, as the watchdog sets it.
#[derive(Debug)]
struct Hook {
    lua: *mut lua_State,
}

// SAFETY: `lua` is used by another thread only in `interrupt`, that is while a call runs in the VM, and only
// for `lua_sethook`; the module's notes say what may come of it.
unsafe impl Send for Hook {}
// SAFETY: as above.
unsafe impl Sync for Hook {}

impl Interrupt for Hook {
    fn interrupt(&self, attempt: u32) {
        if self.lua.is_null() {
            // A watch of tests, without a VM.
            return;
        }
        // SAFETY: the call that runs has not ended: its end waits for the lock under which this is called.
        unsafe {
            if attempt % 16 == 15 {
                set_hook(self.lua, None);
            }
            set_hook(self.lua, Some(interrupt));
        }
    }
}

/// The call slot of one VM, and its hook.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: Arc<CallSlot>,
    lua: *mut lua_State,
}

// SAFETY: `lua` is used in `end` only, on the thread that uses the VM.
unsafe impl Send for Watch {}
// SAFETY: as above; nothing of the VM is used but by that thread.
unsafe impl Sync for Watch {}

impl Watch {
    pub(super) fn new(lua: *mut lua_State, account: Option<Arc<ShareAccount>>) -> Self {
        Self {
            slot: Arc::new(CallSlot::new(Box::new(Hook { lua }), &PosixClock, account)),
            lua,
        }
    }

    /// Has the watchdog look at the VM.
    ///
    /// # Errors
    /// The watchdog's thread cannot start.
    pub(super) fn register(&self) -> std::io::Result<()> {
        self.slot.register()
    }

    /// The slot of the VM's calls.
    pub(super) fn slot(&self) -> &Arc<CallSlot> {
        &self.slot
    }

    /// Begins a call on this thread that may use `budget` of CPU time.
    #[inline]
    pub(super) fn begin(&self, budget: Duration) {
        self.slot.begin(budget);
    }

    /// Ends the call.
    ///
    /// # Errors
    /// Its time budget was used up.
    #[inline]
    pub(super) fn end(&self) -> Result<(), Overrun> {
        match self.slot.end() {
            Ok(()) => Ok(()),
            Err(overrun) => {
                self.clear_hook();
                Err(overrun)
            }
        }
    }

    #[cold]
    fn clear_hook(&self) {
        if self.lua.is_null() {
            return;
        }
        // SAFETY: this thread is the one that uses the VM, and its call is over, so the watchdog leaves it
        // alone. Setting the hook first has LuaJIT write its dispatch tables anew, in case that both
        // threads changed them at once.
        unsafe {
            set_hook(self.lua, Some(interrupt));
            set_hook(self.lua, None);
        }
    }

    /// Whether the call that runs is over its budget; asked by host functions that run for long.
    pub(super) fn is_overdue(&self) -> bool {
        self.slot.is_overdue()
    }
}

thread_local! {
    static PROBED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a hook is called while `run` runs some instructions in the VM.
///
/// # Safety
/// `lua` is live, no call of it runs, and `run` lets no error out.
pub(super) unsafe fn hook_fires(lua: *mut lua_State, run: impl FnOnce()) -> bool {
    PROBED.set(false);
    // SAFETY: by contract; the hook sets a flag.
    unsafe { set_hook(lua, Some(probe)) };
    run();
    // SAFETY: as above.
    unsafe { set_hook(lua, None) };
    PROBED.get()
}

/// Notes that a hook was called.
unsafe extern "C-unwind" fn probe(_: *mut lua_State, _: *mut lua_Debug) {
    PROBED.set(true);
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
    unsafe { outrider_luajit::lua_sethook(lua, hook, outrider_luajit::LUA_MASKCOUNT, 1) };
}

/// Ends what runs. Owns nothing, as it leaves by a jump.
unsafe extern "C-unwind" fn interrupt(lua: *mut lua_State, _: *mut lua_Debug) {
    const RUNNING: c_int = 0;
    // SAFETY: a hook runs in the VM that it is for; LuaJIT gives it stack to work with; yielding and
    // raising are what it is for, and this frame holds nothing.
    unsafe {
        if lua_isyieldable(lua) != 0 {
            outrider_luajit::lua_yield(lua, 0);
            return;
        }
        outrider_luajit::luaL_where(lua, RUNNING);
        outrider_luajit::lua_pushstring_(lua, c"the time budget of the call is used up".as_ptr());
        outrider_luajit::lua_concat(lua, 2);
        outrider_luajit::lua_error(lua)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Waits for the watchdog to find the call overdue; gives up after `patience`.
    fn is_overdue_within(watch: &Watch, patience: Duration, mut work: impl FnMut()) -> bool {
        let began = Instant::now();
        while !watch.is_overdue() {
            if began.elapsed() > patience {
                return false;
            }
            work();
        }
        true
    }

    #[test]
    fn only_time_that_the_thread_runs_counts() {
        // Without a VM: nothing may touch it here.
        let watch = Watch::new(std::ptr::null_mut(), None);
        watch.register().unwrap();
        watch.begin(Duration::from_millis(50));
        let sleep = || std::thread::sleep(Duration::from_millis(10));
        assert!(!is_overdue_within(
            &watch,
            Duration::from_millis(300),
            sleep
        ));
        assert_eq!(watch.end(), Ok(()));
    }

    #[test]
    fn a_thread_that_runs_uses_up_its_budget() {
        let watch = Watch::new(std::ptr::null_mut(), None);
        watch.register().unwrap();
        let clock = PosixClock;
        let cpu = || clock.cpu_time(clock.this_thread()).unwrap();
        let began = cpu();
        watch.begin(Duration::from_millis(5));
        assert!(is_overdue_within(&watch, Duration::from_secs(10), || {}));
        assert!(cpu() - began >= 5_000_000);
        assert!(watch.end().is_err());
    }

    #[test]
    fn clock_of_a_thread_that_ended_has_no_time() {
        let ended = std::thread::spawn(|| PosixClock.this_thread()).join();
        assert_eq!(PosixClock.cpu_time(ended.unwrap()), None);
        assert_eq!(PosixClock.cpu_time(NO_CLOCK), None);
    }
}
