//! VMs that are made off their worker: a guest whose start or configuration takes long would hold up all streams
//! of its worker.
//!
//! A new configuration is taken in by fresh VMs before any stream has it, on the threads that load it; each
//! worker goes on with its VM until a stream comes that needs the other. A VM that failed is made anew in the
//! same way, where that takes long; until it is there, streams get the failure policy.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use outrider_plugin_api::LogLevel;

use super::{Core, Held, WorkerVm};
use crate::engine;
use crate::memory::Loan;
use crate::reaper;
use crate::vm::{Configuration, Refusal, Vm};

/// A configuration that takes this long to take in is taken in off the workers.
const LONG: Duration = Duration::from_millis(5);
/// A VM that takes this long to make and to configure is made off the workers.
const HEAVY: Duration = Duration::from_millis(50);
/// So many VMs are made at once.
const MOST_MAKERS: usize = 4;

/// How long `run` takes this thread: time in which others run does not count.
pub(crate) fn taking<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let (begun, cpu) = (Instant::now(), engine::time_run());
    let result = run();
    let run_for = engine::time_run()
        .zip(cpu)
        .map(|(end, begin)| Duration::from_nanos(end.saturating_sub(begin)));
    let passed = begun.elapsed();
    (
        result,
        run_for.map_or(passed, |run_for| run_for.min(passed)),
    )
}

impl Core {
    /// It took so long to make a VM, and to take a configuration in.
    pub(crate) fn note_cost(&self, start: Duration, configuration: Duration) {
        let cost = u64::try_from((start + configuration).as_nanos()).unwrap_or(u64::MAX);
        self.cost.fetch_max(cost, Ordering::Relaxed);
    }

    /// Whether VMs are made off the workers.
    pub(super) fn is_heavy(&self) -> bool {
        u128::from(self.cost.load(Ordering::Relaxed)) >= HEAVY.as_nanos()
    }

    /// Whether a configuration that took so long is taken in off the workers.
    pub(crate) fn is_long(configuration: Duration) -> bool {
        configuration >= LONG
    }

    /// A VM with all configurations.
    fn made(&self) -> Result<Vm, Refusal> {
        let mut vm = Vm::new(&self.code, &self.shared, 0, Loan::Nothing)?;
        let configurations = self.configurations().clone();
        for configuration in &configurations {
            vm.configure(configuration, Loan::Nothing)?;
        }
        Ok(vm)
    }

    /// Has VMs that follow those in use take in a configuration, which is among all, before a stream has it.
    pub(crate) fn hand_over(&self, configuration: &Configuration) {
        let used: Vec<&WorkerVm> = self
            .workers
            .iter()
            .filter(|own| own.is_used.load(Ordering::Relaxed))
            .collect();
        for some in used.chunks(MOST_MAKERS) {
            thread::scope(|scope| {
                for own in some {
                    scope.spawn(|| self.hand_over_to(own, configuration));
                }
            });
        }
    }

    fn hand_over_to(&self, own: &WorkerVm, configuration: &Configuration) {
        // Kept until it is done: a worker that looks meanwhile goes on with what it has.
        let mut ready = own.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match ready.take() {
            Some(mut vm) => vm.configure(configuration, Loan::Nothing).map(|_| vm),
            None => self.made(),
        };
        match made {
            Ok(vm) => {
                *ready = Some(vm);
                own.has_ready.store(true, Ordering::Release);
            }
            Err(refusal) => {
                own.has_ready.store(false, Ordering::Release);
                self.say(&refusal);
            }
        }
    }

    fn say(&self, refusal: &Refusal) {
        if let Some(background) = &self.shared.background {
            let line = self.describe(refusal);
            background.log(LogLevel::Error, &self.shared.plugin, &line);
        }
    }

    /// Takes the VM that was made for a worker, if there is one.
    pub(crate) fn adopt(&self, held: &mut Held) -> bool {
        let Some(own) = self.workers.get(held.worker) else {
            return false;
        };
        if !own.has_ready.load(Ordering::Acquire) {
            return false;
        }
        let Ok(mut ready) = own.ready.try_lock() else {
            return false;
        };
        let Some(mut vm) = ready.take() else {
            return false;
        };
        own.has_ready.store(false, Ordering::Release);
        drop(ready);
        if let Some(mut old) = held.current.take() {
            vm.inherit(&mut old);
            held.retire(old);
        }
        self.install(held, vm);
        true
    }

    /// Has a VM made for a worker whose own failed.
    pub(super) fn make_elsewhere(&self, held: &mut Held) {
        let worker = held.worker;
        let (Some(core), Some(own)) = (self.own.upgrade(), self.workers.get(worker)) else {
            return;
        };
        if own.is_being_made.swap(true, Ordering::AcqRel) {
            return;
        }
        let maker = thread::Builder::new().name("outrider-vm".into());
        let spawned = maker.spawn(move || {
            let Some(own) = core.workers.get(worker) else {
                return;
            };
            let made = core.made();
            let mut ready = own.ready.lock().unwrap_or_else(PoisonError::into_inner);
            match made {
                Ok(vm) => {
                    if let Some(other) = ready.replace(vm) {
                        reaper::bury(other);
                    }
                    own.has_ready.store(true, Ordering::Release);
                }
                Err(refusal) => core.say(&refusal),
            }
            drop(ready);
            own.is_being_made.store(false, Ordering::Release);
            core.shared.ring_in(Duration::ZERO);
        });
        if spawned.is_err() {
            own.is_being_made.store(false, Ordering::Release);
        }
    }
}
