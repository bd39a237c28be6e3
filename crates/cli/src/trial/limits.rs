//! Limits of the process in which plugins are loaded for trial.
//!
//! What holds: memory, CPU time, the size and number of files, no core dump, a folder of its own as current
//! folder, an empty environment. What does not: the process runs as this user, so code that escaped the sandbox
//! of its runtime could still read this user's files.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Memory that the process may write to, in bytes. Address space that a runtime only reserves does not count.
const MEMORY: u64 = 3 * 1024 * 1024 * 1024;
/// CPU time, in seconds: the end of a process whose parent is gone.
const CPU_SECONDS: u64 = 1800;
/// Size of one file, in bytes: compiled code is the largest.
const FILE_SIZE: u64 = 1024 * 1024 * 1024;
/// Open files.
const OPEN_FILES: u64 = 128;

/// Sets the limits of this process.
///
/// # Errors
/// The kernel refuses one.
pub(super) fn set() -> std::io::Result<()> {
    for (resource, most) in [
        (Resource::Data, MEMORY),
        (Resource::Cpu, CPU_SECONDS),
        (Resource::Fsize, FILE_SIZE),
        (Resource::Nofile, OPEN_FILES),
        (Resource::Core, 0),
    ] {
        let old = rustix::process::getrlimit(resource);
        // A limit that is lower already stays.
        let most = old.maximum.map_or(most, |old| old.min(most));
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )?;
    }
    Ok(())
}
