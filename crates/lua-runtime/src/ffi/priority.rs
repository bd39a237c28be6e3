//! The priority of threads that must never delay a worker.

/// Lets the calling thread run only when nothing else wants to. Best effort: where it is not allowed
/// the thread stays as it is.
pub(crate) fn lower_thread_priority() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: plain data, for which all zeros is a value.
        let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
        // SAFETY: 0 is the calling thread; the parameters live until the call returns.
        unsafe {
            libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
        }
    }
}

/// Has the calling thread give way to workers, without letting it starve. Best effort.
pub(crate) fn lower_maker_priority() {
    #[cfg(target_os = "linux")]
    {
        const NICE: libc::c_int = 10;
        // SAFETY: takes numbers only; on Linux, 0 is the calling thread.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}
