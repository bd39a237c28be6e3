//! Memory that a change took, and that is free again.
//!
//! To compile and compare a file of ten thousand routes takes hundreds of MiB for a moment. The C library keeps what is
//! freed for the next time, in an arena for each thread: between two changes the command would be larger than Envoy.

/// Gives back to the system what is free. Takes some milliseconds for each 100 MiB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the C library has no safe function for this")]
pub(crate) fn give_back() {
    // SAFETY: it takes a number, is there on every glibc, and may be called at any time by any thread.
    let _whether_there_was_any = unsafe { libc::malloc_trim(0) };
}

/// Other C libraries give back by themselves, or cannot.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back() {}
