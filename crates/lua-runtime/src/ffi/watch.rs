//! The time budget of one VM: who may set the hook that ends an overdue call, and when.
//!
//! The worker says when a call begins and how long it may run, and when it is over. The
//! watchdog, on its own thread, looks at that ([`Watch::look`]) and sets a count hook on a VM whose
//! time is up. At the next instruction the hook makes the coroutine yield, which no `pcall` catches;
//! where it cannot yield (in a callback of a C function, or while a plugin loads) it raises an error
//! instead, there and at each instruction after it, until control is back in the host. LuaJIT is built with `LUAJIT_ENABLE_CHECKHOOK`, else
//! compiled loops would not see the hook.
//!
//! Time is what the worker's thread ran, not what went by on the wall: a thread that a busy machine
//! does not let run must not cost a stream its plugin. Reading that clock takes a system call, so only
//! the watchdog does it, from the moment in which it first sees a call.
//!
//! The worker reads no clock at all: it numbers its calls, and a call's time begins when the watchdog
//! first sees its number.
//!
//! The trap is a call that ends in the moment in which the watchdog finds it overdue. The call's number
//! decides: the watchdog may touch the VM only if it has changed the number to `OVERDUE`, and the
//! worker, finding `OVERDUE` at the end of a call, takes the lock that the watchdog holds meanwhile.
//!
//! What a hook cannot end: functions that run in C for long without an instruction of Lua in between.
//! Those in which the work grows faster than what they are given are the SDK's own (`strings.lua`,
//! `sandbox.lua`); the host's ask [`Watch::is_overdue`]. The memory budget bounds the others.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
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
    /// The number of the call that runs, or `IDLE`, or `OVERDUE`.
    call: AtomicU64,
    /// The number of the last call; the worker's own.
    last: AtomicU64,
    /// How long the call may run, in nanoseconds.
    budget: AtomicU64,
    /// The clock of the thread that the call runs on.
    clock: AtomicI32,
    hook: Mutex<Hook>,
    lua: *mut lua_State,
}

/// What the watchdog keeps of the call that it saw last.
#[derive(Debug, Default)]
struct Hook {
    /// How often the hook of the overdue call was set.
    times: u32,
    /// The call's number.
    call: u64,
    /// When it was first seen, in nanoseconds of the watchdog's clock.
    seen: u64,
    /// How long its thread had run when it was first seen; none: nobody knows.
    ran: Option<u64>,
}

thread_local! {
    /// The clock that tells other threads how long this one has run.
    static CLOCK: libc::clockid_t = {
        let mut clock = NO_CLOCK;
        // SAFETY: a thread may ask for its own clock; the answer goes where `clock` is.
        let result = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        if result == 0 { clock } else { NO_CLOCK }
    };
}

/// No thread's clock.
const NO_CLOCK: libc::clockid_t = -1;

/// How long the thread of a clock has run, in nanoseconds; none when it is gone.
fn running_time(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the answer goes where `time` is; a clock that is none is an error.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if clock == NO_CLOCK || result != 0 {
        return None;
    }
    let seconds = u64::try_from(time.tv_sec).ok()?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

// SAFETY: `lua` is used by another thread only in `look`, only while the call is `OVERDUE`, that
// is while it runs in the VM, and only for `lua_sethook`, which LuaJIT allows at any time.
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
            call: AtomicU64::new(IDLE),
            last: AtomicU64::new(IDLE),
            budget: AtomicU64::new(0),
            clock: AtomicI32::new(NO_CLOCK),
            hook: Mutex::default(),
            lua,
        }
    }

    /// A call begins on this thread that may run for `budget` nanoseconds.
    #[inline]
    pub(crate) fn begin(&self, budget: u64) {
        // At one a nanosecond, numbers last for five centuries.
        let call = self.last.load(Ordering::Relaxed) + 1;
        self.last.store(call, Ordering::Relaxed);
        self.budget.store(budget, Ordering::Relaxed);
        self.clock
            .store(CLOCK.with(|clock| *clock), Ordering::Relaxed);
        // SeqCst: the watchdog, before it sleeps, says so and then looks at the calls; a worker sets
        // its call and then looks whether it sleeps. One of them sees the other.
        self.call.store(call, Ordering::SeqCst);
    }

    /// The call is over; only its own thread says so.
    #[inline]
    pub(crate) fn end(&self) -> Result<(), OverBudget> {
        if self.call.swap(IDLE, Ordering::AcqRel) != OVERDUE {
            return Ok(());
        }
        self.end_overdue()
    }

    #[cold]
    fn end_overdue(&self) -> Result<(), OverBudget> {
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        hook.times = 0;
        // SAFETY: this thread is the one that uses the VM, and the watchdog, which might have been
        // setting the hook, has let go of the lock. Setting it first has LuaJIT write its dispatch
        // tables anew, in case that both changed them at once.
        unsafe {
            set_hook(self.lua, Some(interrupt));
            set_hook(self.lua, None);
        }
        Err(OverBudget)
    }

    /// Whether the call that runs has used up its time; asked by what runs for long in the host.
    pub(super) fn is_overdue(&self) -> bool {
        self.call.load(Ordering::Relaxed) == OVERDUE
    }

    /// Whether no call runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.call.load(Ordering::SeqCst) == IDLE
    }

    /// Looks at the VM, and interrupts its call if it has run for its budget. `now` is in nanoseconds
    /// of the watchdog's clock.
    pub(crate) fn look(&self, now: u64) -> Sight {
        let call = self.call.load(Ordering::SeqCst);
        if call == IDLE {
            return Sight::Idle;
        }
        let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        if call != OVERDUE && !self.is_over_time(&mut hook, call, now) {
            return Sight::Busy;
        }
        let claimed = call == OVERDUE && self.call.load(Ordering::SeqCst) == OVERDUE
            || self
                .call
                .compare_exchange(call, OVERDUE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        if claimed {
            // SAFETY: the call is OVERDUE, so the call has not ended: its end waits for the lock.
            // Hooks may be set from any thread at any time.
            unsafe {
                // The worker may have been changing the dispatch tables at the same time, and the hook
                // may be lost: it is set again each time, and now and then taken off before that,
                // which makes LuaJIT write the tables anew. Not each time, as the plugin runs free in
                // between.
                if hook.times % 16 == 15 {
                    set_hook(self.lua, None);
                }
                set_hook(self.lua, Some(interrupt));
            }
            hook.times = hook.times.wrapping_add(1);
        }
        Sight::Busy
    }

    /// Whether the call with this number has run for its budget. A call that began meanwhile may lend
    /// its clock or its budget to this question; it has another number, so no harm comes of it.
    fn is_over_time(&self, hook: &mut Hook, call: u64, now: u64) -> bool {
        let clock = self.clock.load(Ordering::Relaxed);
        let budget = self.budget.load(Ordering::Relaxed);
        if hook.call != call {
            hook.call = call;
            hook.seen = now;
            hook.ran = running_time(clock);
        }
        if now.saturating_sub(hook.seen) < budget {
            return false;
        }
        match (hook.ran, running_time(clock)) {
            (Some(then), Some(now)) => now.saturating_sub(then) >= budget,
            // Without the thread's clock, the wall's has to do.
            _ => true,
        }
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn only_time_that_the_thread_runs_counts() {
        // Without a VM: nothing may touch it here.
        let watch = Watch::new(std::ptr::null_mut());
        let budget = 5_000_000;
        watch.begin(budget);
        assert_eq!(watch.look(1), Sight::Busy);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(watch.look(20_000_000), Sight::Busy);
        assert_eq!(watch.end(), Ok(()));
        assert_eq!(watch.look(30_000_000), Sight::Idle);
    }

    #[test]
    fn a_thread_that_runs_uses_up_its_budget() {
        let watch = Watch::new(std::ptr::null_mut());
        watch.begin(5_000_000);
        // Before the first look, for this thread may lose the CPU right after it.
        let began = Instant::now();
        let mut hook = Hook::default();
        assert!(
            !watch.is_over_time(&mut hook, 1, 1),
            "it has only just been seen"
        );
        while !watch.is_over_time(&mut hook, 1, u64::MAX) {
            assert!(began.elapsed() < Duration::from_secs(10));
        }
        assert!(began.elapsed() >= Duration::from_millis(5));
    }
}
