//! VMs are made off their worker: a guest's start, or its configuration, would hold up all streams of the worker.
//!
//! A new configuration is taken in by fresh VMs before any stream has it, on the threads that load it; each
//! worker goes on with its VM until a stream comes that needs the other. VMs that take the place of those that
//! fail are made ahead (see `spare`). Only where there is no proxy, as in tests of a plugin, the caller makes them.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use outrider_plugin_api::LogLevel;
use outrider_vm_pool::{drop_later, request_vms};

use super::spare::MOST_MAKERS;
use super::{Core, Held, WorkerVm};
use crate::memory::Loan;
use crate::shared::Shared;
use crate::trouble::Trouble;
use crate::vm::{Configuration, Refusal, Vm};

/// A configuration that takes this long to take in is taken in off the workers.
const LONG: Duration = Duration::from_millis(5);
/// A VM that follows another may take so many times what the first one took to make, and at least [`LEAST_REMAKE`]: a
/// guest that started quickly when it was loaded, and does not any more, ends soon.
const REMAKE: u32 = 8;
const LEAST_REMAKE: Duration = Duration::from_secs(1);

/// How long `run` takes this thread: time in which others run does not count.
pub(crate) fn taking<T>(shared: &Shared, run: impl FnOnce() -> T) -> (T, Duration) {
    let (begun, cpu) = (Instant::now(), shared.thread_cpu_time());
    let result = run();
    let run_for = shared
        .thread_cpu_time()
        .zip(cpu)
        .map(|(end, begin)| end.saturating_sub(begin));
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

    /// Whether there are workers, on which no VM is made.
    pub(crate) fn has_proxy(&self) -> bool {
        self.shared.background.is_some()
    }

    fn cost(&self) -> Duration {
        Duration::from_nanos(self.cost.load(Ordering::Relaxed))
    }

    /// The time budget of a start, and of each configuration, of a VM that follows another.
    pub(super) fn remake_budget(&self) -> Duration {
        let budget = self.cost().saturating_mul(REMAKE).max(LEAST_REMAKE);
        budget.min(self.shared.load_budget)
    }

    /// Whether a configuration that took so long is taken in off the workers.
    pub(crate) fn is_long(configuration: Duration) -> bool {
        configuration >= LONG
    }

    /// A VM with all configurations that streams may begin with, which has no worker yet.
    pub(super) fn made(&self) -> Result<Vm, Refusal> {
        let budget = self.remake_budget();
        let mut vm = Vm::new(&self.code, &self.shared, 0, budget, Loan::Nothing)?;
        vm.stand_by();
        let configurations: Vec<Configuration> =
            self.configurations().that_count().cloned().collect();
        for configuration in &configurations {
            vm.configure(configuration, Loan::Nothing)?;
        }
        vm.first_memory = vm.memory();
        Ok(vm)
    }

    /// Has VMs that follow the workers' take in a configuration, which is among all, before a stream has it.
    pub(super) fn hand_over(&self, configuration: &Configuration) {
        let used: Vec<&WorkerVm> = self
            .workers
            .iter()
            .filter(|own| !own.has_configuration(configuration.id))
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
            Some(vm) if vm.root_of(configuration.id).is_some() => Ok(vm),
            Some(mut vm) => (self.release_gone(&mut vm).map_err(Refusal::Failed))
                .and_then(|()| vm.configure(configuration, Loan::Nothing))
                .map(|_| vm),
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

    /// Has the VM that follows a worker's take in a configuration that a stream needs, on a thread for it.
    pub(crate) fn request(&self, worker: usize, configuration: &Configuration) {
        let (Some(own), Some(core)) = (self.workers.get(worker), self.own.upgrade()) else {
            return;
        };
        if own.requested.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut configurations = self.configurations();
        if configurations.contains(configuration.id) && !configurations.counts(configuration.id) {
            configurations.put(configuration.id, None);
            self.configured.fetch_add(1, Ordering::Release);
        }
        drop(configurations);
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push((worker, configuration.clone()));
        drop(requests);
        own.slot.patience().restart_if_forgotten();
        request_vms(&core);
    }

    /// Does what streams asked for first. Returns whether there was something.
    pub(super) fn do_request(&self) -> bool {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((worker, configuration)) = requests.pop() else {
            return false;
        };
        drop(requests);
        if let Some(own) = self.workers.get(worker) {
            if self.configurations().contains(configuration.id) {
                self.hand_over_to(own, &configuration);
            }
            own.requested.store(false, Ordering::Release);
        }
        self.shared.ring_in(Duration::ZERO);
        true
    }

    pub(super) fn say(&self, refusal: &Refusal) {
        if let Some(background) = &self.shared.background {
            let line = self.describe_within(refusal, self.remake_budget());
            background.log(LogLevel::Error, &self.shared.plugin, &line);
        }
    }

    /// Takes the VM that was made for a worker, if there is one.
    pub(crate) fn adopt(&self, held: &mut Held) -> bool {
        let Some(own) = self.workers.get(held.worker()) else {
            return false;
        };
        if !own.has_ready.load(Ordering::Acquire) {
            return false;
        }
        let Ok(mut ready) = own.ready.try_lock() else {
            return false;
        };
        let Some(vm) = ready.take() else {
            return false;
        };
        own.has_ready.store(false, Ordering::Release);
        drop(ready);
        self.begin_with(held, vm)
    }

    /// A VM that was made elsewhere becomes a worker's, and begins its work.
    pub(super) fn begin_with(&self, held: &mut Held, mut vm: Vm) -> bool {
        if let Err(trouble) = self.release_gone(&mut vm) {
            self.say(&Refusal::Failed(trouble));
            drop_later(vm);
            return false;
        }
        vm.begin_work();
        if let Some(mut old) = held.current.take() {
            vm.inherit(&mut old);
            held.retired.push(old, self.most_retiring());
        }
        self.install(held, vm);
        if let Some(own) = self.workers.get(held.worker()) {
            own.waits.store(false, Ordering::Relaxed);
        }
        true
    }

    /// What was released since a VM was made, nobody has told it of.
    fn release_gone(&self, vm: &mut Vm) -> Result<(), Trouble> {
        let mut gone = vm.configurations();
        let known = self.configurations();
        gone.retain(|id| !known.contains(*id));
        drop(known);
        gone.into_iter()
            .try_for_each(|id| vm.release(id, Loan::Nothing))
    }
}
