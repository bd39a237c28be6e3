//! Placement: Envoy on one processor, the generator and what answers on another.

use std::fs;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Processors of the two sides of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    target: usize,
    generator: usize,
}

impl Placement {
    /// Chooses two of the processors that this process may use. `None` if there is only one.
    pub(crate) fn choose() -> Option<Self> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        Some(Self {
            target: allowed.next()?,
            generator: allowed.next()?,
        })
    }

    /// Puts all threads of a process, and those that they start, on the target's processor.
    ///
    /// # Errors
    ///
    /// The process is gone, or the system refuses.
    pub(crate) fn place_target(self, process: u32) -> anyhow::Result<()> {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let name = thread?.file_name();
            if let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) {
                place(Some(thread), self.target)?;
            }
        }
        Ok(())
    }

    /// Puts a thread of this process on the generator's processor; `None`: the current thread.
    ///
    /// # Errors
    ///
    /// The thread is gone, or the system refuses.
    pub(crate) fn place_generator(self, thread: Option<i32>) -> anyhow::Result<()> {
        place(thread, self.generator)
    }
}

fn place(thread: Option<i32>, cpu: usize) -> anyhow::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(thread.and_then(Pid::from_raw), &cpus)
        .with_context(|| format!("cannot put a thread on processor {cpu}"))
}

/// Raises the limit of open files to the most that is allowed: each variant has connections of its own.
pub(crate) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, opening a connection fails with a clear error.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
