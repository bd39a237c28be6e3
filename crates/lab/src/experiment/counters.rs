//! Counters of the kernel: CPU time, waiting and memory of a process, and what the whole machine did meanwhile.

use std::fs;

use anyhow::Context as _;

/// Counters of one process since its begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProcessCounters {
    /// Nanoseconds for which its threads ran.
    pub(crate) cpu: u64,
    /// Nanoseconds for which its threads were ready and waited for a processor.
    pub(crate) run_queue: u64,
}

/// Counters of the machine since its boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SystemCounters {
    /// Nanoseconds for which processors were busy, those of the hypervisor left out. In ticks of 10 ms.
    pub(crate) busy: u64,
    /// Nanoseconds that the hypervisor took. In ticks of 10 ms.
    pub(crate) steal: u64,
    /// Nanoseconds for which some task waited for a processor (PSI); `None` where the kernel does not count it.
    pub(crate) pressure: Option<u64>,
}

impl ProcessCounters {
    /// Reads the counters of a process (`/proc/PID/task/*/schedstat`).
    ///
    /// # Errors
    ///
    /// The process is gone, or the kernel does not count.
    pub(crate) fn read(process: u32) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let path = thread?.path().join("schedstat");
            // A thread may end meanwhile.
            if let Ok(text) = fs::read_to_string(&path) {
                let one = Self::parse(&text)
                    .with_context(|| format!("{} has no times", path.display()))?;
                sum.cpu += one.cpu;
                sum.run_queue += one.run_queue;
            }
        }
        anyhow::ensure!(
            sum.cpu > 0,
            "the kernel keeps no CPU times of threads (schedstat)"
        );
        Ok(sum)
    }

    /// Reads the counters of one thread.
    ///
    /// # Errors
    ///
    /// The thread is gone.
    pub(crate) fn of_thread(process: u32, thread: i32) -> anyhow::Result<Self> {
        let path = format!("/proc/{process}/task/{thread}/schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Self::parse(&text).with_context(|| format!("{path} has no times"))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(str::parse);
        Some(Self {
            cpu: numbers.next()?.ok()?,
            run_queue: numbers.next()?.ok()?,
        })
    }

    /// What was counted since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            run_queue: self.run_queue.saturating_sub(before.run_queue),
        }
    }
}

impl SystemCounters {
    /// Reads the counters of the machine (`/proc/stat`, `/proc/pressure/cpu`).
    ///
    /// # Errors
    ///
    /// The kernel does not count.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let mut counters = Self::parse(&text).context("/proc/stat has no line `cpu`")?;
        counters.pressure = fs::read_to_string("/proc/pressure/cpu")
            .ok()
            .and_then(|text| {
                text.lines()
                    .next()?
                    .split_once("total=")?
                    .1
                    .trim()
                    .parse::<u64>()
                    .ok()
            })
            .map(|microseconds| microseconds * 1000);
        Ok(counters)
    }

    fn parse(text: &str) -> Option<Self> {
        /// USER_HZ is 100 on every architecture that Outrider runs on.
        const TICK: u64 = 10_000_000;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        // proc(5): user, nice, system, idle, iowait, irq, softirq, steal.
        let [user, nice, system, _, _, irq, softirq, steal, ..] = *ticks.as_slice() else {
            return None;
        };
        Some(Self {
            busy: (user + nice + system + irq + softirq) * TICK,
            steal: steal * TICK,
            pressure: None,
        })
    }

    /// What was counted since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            steal: self.steal.saturating_sub(before.steal),
            pressure: self
                .pressure
                .zip(before.pressure)
                .map(|(after, before)| after.saturating_sub(before)),
        }
    }
}

/// Thread ids of Envoy's workers: those that it names `wrk:worker_N`. Its other threads, those of a module included, share
/// their processor and wait for it as a matter of course.
///
/// # Errors
///
/// The process is gone, or has no workers.
pub(crate) fn workers(process: u32) -> anyhow::Result<Vec<i32>> {
    let mut workers = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?;
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.starts_with("wrk:") {
            workers.extend(
                thread
                    .file_name()
                    .to_str()
                    .and_then(|id| id.parse::<i32>().ok()),
            );
        }
    }
    anyhow::ensure!(
        !workers.is_empty(),
        "process {process} has no threads named as Envoy's workers"
    );
    Ok(workers)
}

/// Resident memory of a process in KiB.
///
/// # Errors
///
/// The process is gone.
pub(crate) fn resident_memory(process: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .with_context(|| format!("{path} has no VmRSS"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn this_process_uses_time_and_memory() {
        let process = std::process::id();
        let (before, system) = (
            ProcessCounters::read(process).unwrap(),
            SystemCounters::read().unwrap(),
        );
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(60) {}
        let used = ProcessCounters::read(process).unwrap().since(before);
        assert!(used.cpu >= 10_000_000, "{used:?}");
        assert!(SystemCounters::read().unwrap().since(system).busy > 0);
        assert!(resident_memory(process).unwrap() > 1000);
        assert!(ProcessCounters::read(u32::MAX).is_err());
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let counters = SystemCounters::parse("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1\n").unwrap();
        assert_eq!((counters.busy, counters.steal), (190_000_000, 80_000_000));
        assert_eq!(SystemCounters::parse("cpu 1 2\n"), None);
        assert_eq!(
            ProcessCounters::parse("5 6 7"),
            Some(ProcessCounters {
                cpu: 5,
                run_queue: 6
            })
        );
        assert_eq!(ProcessCounters::parse(""), None);
    }
}
