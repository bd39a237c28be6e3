//! One version of a Proxy-Wasm plugin: its VMs, one a worker, and one on which configurations are checked.
//!
//! A VM whose guest failed is of no use any more: another takes its place at once, and streams that had begun
//! in it end by the failure policy. When a guest fails again and again without serving a stream, that happens
//! at growing distances. A VM whose memory has grown beyond its mark gives way as well, but serves the
//! streams that it has until their end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use outrider_plugin_api::{
    ConfiguredPlugin, Fault, Interest, LoadError, LogLevel, MetricId, MetricKind, Metrics, Plugin,
    PluginStatus, ScopedConfig, Slot, VmStatus,
};

use crate::code::Code;
use crate::configured::WasmConfigured;
use crate::memory::Loan;
use crate::reaper;
use crate::shared::Shared;
use crate::shared_data;
use crate::source::WasmSource;
use crate::trouble::Trouble;
use crate::vm::{Configuration, Refusal, Vm, generation_of};

/// A worker's VM. The lock is the worker's own: others take it only while no stream has come yet, and to put
/// something into `released`.
#[derive(Debug)]
pub(crate) struct WorkerVm {
    held: Mutex<Held>,
    released: Mutex<Vec<u32>>,
    has_released: AtomicBool,
    /// A stream has come.
    is_used: AtomicBool,
    seen: Arc<Seen>,
}

/// What other threads may see of a worker's VM.
#[derive(Debug, Default)]
struct Seen {
    replacements: AtomicU64,
    memory: AtomicUsize,
    trouble: Mutex<Option<String>>,
}

impl Seen {
    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> VmStatus {
        let trouble = self.trouble().clone();
        VmStatus {
            memory: trouble
                .is_none()
                .then(|| self.memory.load(Ordering::Relaxed)),
            replacements: self.replacements.load(Ordering::Relaxed),
            trouble,
        }
    }
}

/// What a worker holds.
#[derive(Debug)]
pub(crate) struct Held {
    /// Where streams begin. None when the one that was there failed and no other could be made yet.
    current: Option<Vm>,
    /// Which serve the streams that they have to their end.
    retiring: Vec<Vm>,
    generation: u32,
    repair: Repair,
    seen: Arc<Seen>,
}

impl Held {
    /// Whether the VM is there that a stream has begun in, or that it will begin in.
    #[inline]
    pub(crate) fn is_ready(&self, slot: Slot) -> bool {
        match (generation_of(slot), &self.current) {
            (None, Some(_)) => true,
            (Some(generation), Some(vm)) if vm.generation == generation => true,
            (None, None) => false,
            (Some(generation), _) => self.retiring.iter().any(|vm| vm.generation == generation),
        }
    }

    /// That VM.
    #[inline]
    pub(crate) fn vm_of(&mut self, slot: Slot) -> Option<&mut Vm> {
        let current = self.current.as_mut();
        match generation_of(slot) {
            None => current,
            Some(generation) => current
                .filter(|vm| vm.generation == generation)
                .or_else(|| {
                    self.retiring
                        .iter_mut()
                        .find(|vm| vm.generation == generation)
                }),
        }
    }

    /// Takes a VM out that failed.
    fn take(&mut self, slot: Slot) -> Option<Vm> {
        let failed =
            generation_of(slot).or_else(|| self.current.as_ref().map(|vm| vm.generation))?;
        if self
            .current
            .as_ref()
            .is_some_and(|vm| vm.generation == failed)
        {
            return self.current.take();
        }
        let found = self
            .retiring
            .iter()
            .position(|vm| vm.generation == failed)?;
        Some(self.retiring.swap_remove(found))
    }
}

/// When a VM that failed is replaced.
#[derive(Debug, Default)]
struct Repair {
    /// How often VMs failed in a row, without serving a stream to its end.
    failures: u32,
    /// When the last one failed, by the plugin's clock.
    failed_at: Duration,
    /// Why.
    reason: String,
}

/// So many failures in a row are mended at once.
const FREE_FAILURES: u32 = 3;
/// The next is mended when this is over.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Each failure doubles the pause, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// VMs that may be retiring at once on a worker; with more, the oldest loses its streams.
const MOST_RETIRING: usize = 2;
/// A VM gives way when it has used this part of its budget, in eighths.
const MARK: usize = 7;

impl Repair {
    fn is_due(&self, now: Duration) -> bool {
        let Some(doublings) = self.failures.checked_sub(FREE_FAILURES + 1) else {
            return true;
        };
        let pause = FIRST_PAUSE
            .saturating_mul(1 << doublings.min(16))
            .min(LONGEST_PAUSE);
        // A clock that was set back must not put the next attempt off for long.
        now.checked_sub(self.failed_at)
            .is_none_or(|passed| passed >= pause)
    }
}

/// Statistics of a plugin's VMs.
#[derive(Debug, Clone, Copy)]
struct Counters {
    replaced: Option<MetricId>,
    retired: Option<MetricId>,
}

/// What a plugin's configurations share.
#[derive(Debug)]
pub(crate) struct Core {
    code: Code,
    shared: Arc<Shared>,
    workers: Vec<WorkerVm>,
    next_configuration: AtomicU32,
    counters: Counters,
}

impl Core {
    /// A worker's VMs, with the configurations that are over taken out. None: they are in use, which means
    /// that a call is made within a call, or there is no such worker.
    #[inline]
    pub(crate) fn worker(&self, worker: usize) -> Option<MutexGuard<'_, Held>> {
        let own = self.workers.get(worker)?;
        let mut held = match own.held.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => unpoisoned(own, poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if own.is_used.load(Ordering::Relaxed) => contended(own)?,
            // The thread that loads is about to let go: it configures VMs only before they are used.
            Err(TryLockError::WouldBlock) => {
                own.held.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        if !own.is_used.load(Ordering::Relaxed) {
            own.is_used.store(true, Ordering::Relaxed);
        }
        if own.has_released.load(Ordering::Relaxed) {
            self.drain(own, &mut held);
        }
        Some(held)
    }

    /// A configuration is over: the VMs forget it at their next call.
    pub(crate) fn release(&self, id: u32) {
        for worker in &self.workers {
            worker
                .released
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(id);
            worker.has_released.store(true, Ordering::Release);
        }
    }

    #[cold]
    fn drain(&self, own: &WorkerVm, held: &mut Held) {
        // Whoever holds this lock now is about to let go; if so, the next call drains.
        let Ok(mut released) = own.released.try_lock() else {
            return;
        };
        own.has_released.store(false, Ordering::Relaxed);
        let ids = std::mem::take(&mut *released);
        drop(released);
        for id in ids {
            let Held {
                current, retiring, ..
            } = held;
            let failed = current
                .iter_mut()
                .chain(retiring)
                .find_map(|vm| Some((vm.generation, vm.release(id, Loan::Nothing).err()?)));
            if let Some((generation, trouble)) = failed {
                self.failed_alone(held, Slot(u64::from(generation) << 32), &trouble);
            }
        }
    }

    /// Makes a VM for a stream that begins.
    ///
    /// # Errors
    /// None could be made, with the reason, or the stream has begun in one that is gone.
    #[cold]
    pub(crate) fn make_ready(&self, held: &mut Held, slot: Slot) -> Result<(), Option<String>> {
        if generation_of(slot).is_some() {
            return Err(None);
        }
        self.replace(held).map_err(Some)
    }

    fn replace(&self, held: &mut Held) -> Result<(), String> {
        let now = self.shared.clock.now();
        if held.repair.is_due(now) {
            held.generation = next(held.generation);
            match Vm::new(&self.code, &self.shared, held.generation, Loan::Nothing) {
                Ok(vm) => {
                    held.seen.memory.store(vm.memory(), Ordering::Relaxed);
                    *held.seen.trouble() = None;
                    held.current = Some(vm);
                    return Ok(());
                }
                Err(refusal) => {
                    let reason = self.describe(&refusal);
                    note_failure(held, now, reason);
                }
            }
        }
        *held.seen.trouble() = Some(held.repair.reason.clone());
        Err(held.repair.reason.clone())
    }

    /// A guest failed: its VM is closed, another takes its place, and the stream's fault is told.
    #[cold]
    pub(crate) fn failed(&self, held: &mut Held, slot: Slot, trouble: &Trouble) -> Fault {
        let message = trouble.message(&self.shared.file, self.shared.time_budget);
        let fault = Fault {
            cause: trouble.cause(),
            message: message.clone(),
        };
        let Some(mut failed) = held.take(slot) else {
            return fault;
        };
        if failed.served > 0 {
            held.repair.failures = 0;
        }
        note_failure(held, self.shared.clock.now(), message);
        if held.current.is_none() {
            held.seen.replacements.fetch_add(1, Ordering::Relaxed);
            // Where that fails, the next call says so, or tries again.
            if self.replace(held).is_ok()
                && let Some(vm) = &mut held.current
            {
                vm.inherit(&mut failed);
                vm.count(self.counters.replaced);
            }
        }
        reaper::bury(failed);
        fault
    }

    /// The same where no stream can be told: the log is.
    #[cold]
    pub(crate) fn failed_alone(&self, held: &mut Held, slot: Slot, trouble: &Trouble) {
        let fault = self.failed(held, slot, trouble);
        if let Some(vm) = &mut held.current {
            vm.say(LogLevel::Error, &fault.message);
        }
    }

    /// A stream is over: VMs that nobody uses any more are closed, and one that has grown too large gives way.
    #[inline]
    pub(crate) fn tidy(&self, held: &mut Held) {
        let Some(vm) = &held.current else { return };
        let memory = vm.memory();
        held.seen.memory.store(memory, Ordering::Relaxed);
        if !held.retiring.is_empty() || memory > self.mark() {
            self.tidy_now(held, memory);
        }
    }

    /// Bytes beyond which a VM gives way.
    fn mark(&self) -> usize {
        self.shared.memory_budget / 8 * MARK
    }

    #[cold]
    fn tidy_now(&self, held: &mut Held, memory: usize) {
        let mut index = 0;
        while index < held.retiring.len() {
            if held.retiring.get(index).is_some_and(|vm| vm.streams() == 0) {
                reaper::bury(held.retiring.swap_remove(index));
            } else {
                index += 1;
            }
        }
        // One that is as large from its beginning would only be followed by another such.
        let has_grown = held
            .current
            .as_ref()
            .is_some_and(|vm| memory > vm.first_memory && vm.served >= LEAST_SERVED);
        if memory <= self.mark() || !has_grown {
            return;
        }
        held.seen.replacements.fetch_add(1, Ordering::Relaxed);
        let Some(mut old) = held.current.take() else {
            return;
        };
        if self.replace(held).is_err() {
            held.current = Some(old);
            return;
        }
        if let Some(vm) = &mut held.current {
            vm.inherit(&mut old);
            vm.count(self.counters.retired);
        }
        if old.streams() == 0 {
            reaper::bury(old);
            return;
        }
        held.retiring.push(old);
        if held.retiring.len() > MOST_RETIRING {
            reaper::bury(held.retiring.remove(0));
        }
    }

    fn describe(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::Refused(reason) => format!("{}: {reason}", self.shared.file),
            Refusal::Failed(trouble) => trouble.message(&self.shared.file, self.shared.load_budget),
        }
    }
}

/// A VM serves at least so many streams before it gives way.
const LEAST_SERVED: u64 = 16;

/// The number of the next VM; 0 is none's.
fn next(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

fn note_failure(held: &mut Held, now: Duration, reason: String) {
    held.repair.failures = held.repair.failures.saturating_add(1);
    held.repair.failed_at = now;
    held.repair.reason = reason;
}

/// A panic left the VM in a state that nobody knows: another takes its place.
#[cold]
fn unpoisoned<'a>(own: &'a WorkerVm, mut held: MutexGuard<'a, Held>) -> MutexGuard<'a, Held> {
    own.held.clear_poison();
    if let Some(vm) = held.current.take() {
        reaper::bury(vm);
    }
    for vm in held.retiring.drain(..) {
        reaper::bury(vm);
    }
    held
}

impl Drop for Core {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            let held = worker
                .held
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            for vm in held
                .current
                .take()
                .into_iter()
                .chain(held.retiring.drain(..))
            {
                reaper::bury(vm);
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct WasmPlugin {
    core: Arc<Core>,
    check: Mutex<Option<Vm>>,
}

/// How much longer than a call may loading take.
const LOAD_FACTOR: u32 = 100;
/// At least this, and at most that: large guests compile tables and rules of their own, for seconds. Tests of
/// what never ends do not wait for as long.
const LOAD_BUDGETS: (Duration, Duration) = (
    Duration::from_secs(if cfg!(test) { 2 } else { 30 }),
    Duration::from_mins(1),
);

impl WasmPlugin {
    pub(crate) fn load(
        source: WasmSource,
        workers: usize,
        metrics: &mut dyn Metrics,
    ) -> Result<Self, LoadError> {
        reaper::start();
        let code = Code::load(&source, metrics).map_err(|message| LoadError {
            plugin: source.name.clone(),
            message: format!("{} {message}", source.file),
        })?;
        let WasmSource {
            name,
            file,
            memory_budget,
            time_budget,
            options,
            clock,
            ..
        } = source;
        let environment = options
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}\0").into_bytes())
            .collect();
        let mut define = |what: &str| {
            metrics.define(
                MetricKind::Counter,
                &format!("outrider.plugin.{name}.{what}"),
            )
        };
        let counters = Counters {
            replaced: define("vm_replaced"),
            retired: define("vm_retired"),
        };
        let shared = Arc::new(Shared {
            namespace: shared_data::namespace(&options.vm_id),
            plugin: name,
            file,
            options,
            clock,
            environment,
            memory_budget,
            time_budget,
            load_budget: (time_budget * LOAD_FACTOR).clamp(LOAD_BUDGETS.0, LOAD_BUDGETS.1),
            metrics: Mutex::default(),
        });
        let mut core = Core {
            code,
            shared,
            workers: Vec::new(),
            next_configuration: AtomicU32::new(1),
            counters,
        };
        let refused = |core: &Core, refusal: &Refusal| LoadError {
            plugin: core.shared.plugin.clone(),
            message: core.describe(refusal),
        };
        let check = Vm::new(&core.code, &core.shared, 1, Loan::Metrics(metrics))
            .map_err(|refusal| refused(&core, &refusal))?;
        for _ in 0..workers {
            let vm = Vm::new(&core.code, &core.shared, 1, Loan::Nothing)
                .map_err(|refusal| refused(&core, &refusal))?;
            core.workers.push(worker(vm));
        }
        Ok(Self {
            core: Arc::new(core),
            check: Mutex::new(Some(check)),
        })
    }

    fn check(
        &self,
        configuration: &Configuration,
        metrics: &mut dyn Metrics,
    ) -> Result<(), Refusal> {
        let core = &self.core;
        let mut check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vm = match check.take() {
            Some(vm) => vm,
            // An earlier configuration was its end.
            None => Vm::new(&core.code, &core.shared, 1, Loan::Metrics(&mut *metrics))?,
        };
        match vm.configure(configuration, Loan::Metrics(&mut *metrics)) {
            Ok(_) => {
                if vm.release(configuration.id, Loan::Metrics(metrics)).is_ok() {
                    *check = Some(vm);
                }
                Ok(())
            }
            Err(Refusal::Refused(reason)) => {
                *check = Some(vm);
                Err(Refusal::Refused(reason))
            }
            Err(failed) => Err(failed),
        }
    }

    /// VMs that no stream has come to yet take a configuration in now, so that no stream waits for it.
    fn prepare(&self, configuration: &Configuration) {
        for own in &self.core.workers {
            if own.is_used.load(Ordering::Relaxed) {
                continue;
            }
            // Where a worker has it, it has just been used.
            let Ok(mut held) = own.held.try_lock() else {
                continue;
            };
            if own.is_used.load(Ordering::Relaxed) {
                continue;
            }
            let Some(vm) = &mut held.current else {
                continue;
            };
            // It went well where it was checked. Should it fail here, the first stream finds out.
            if let Err(Refusal::Failed(trouble)) = vm.configure(configuration, Loan::Nothing) {
                let slot = Slot(u64::from(vm.generation) << 32);
                self.core.failed_alone(&mut held, slot, &trouble);
            }
        }
    }
}

/// The VMs of a worker that has used them, which are in use: for a moment, where the thread that loads finds
/// out that they have been used meanwhile; or for good, where a call is made within a call. None: the latter.
#[cold]
fn contended(own: &WorkerVm) -> Option<MutexGuard<'_, Held>> {
    const TRIES: u32 = 10_000;
    for _ in 0..TRIES {
        std::hint::spin_loop();
        match own.held.try_lock() {
            Ok(held) => return Some(held),
            Err(TryLockError::Poisoned(poisoned)) => {
                return Some(unpoisoned(own, poisoned.into_inner()));
            }
            Err(TryLockError::WouldBlock) => {}
        }
    }
    None
}

fn worker(mut vm: Vm) -> WorkerVm {
    let seen = Arc::new(Seen::default());
    seen.memory.store(vm.memory(), Ordering::Relaxed);
    vm.first_memory = vm.memory();
    WorkerVm {
        held: Mutex::new(Held {
            generation: vm.generation,
            current: Some(vm),
            retiring: Vec::new(),
            repair: Repair::default(),
            seen: Arc::clone(&seen),
        }),
        released: Mutex::default(),
        has_released: AtomicBool::new(false),
        is_used: AtomicBool::new(false),
        seen,
    }
}

/// What the guest reads: the document as it is, or, where it is one text, that text.
fn text_of(effective: &str) -> Arc<[u8]> {
    match serde_json::from_str::<String>(effective) {
        Ok(text) => text.into_bytes().into(),
        Err(_) => effective.as_bytes().into(),
    }
}

impl Plugin for WasmPlugin {
    fn interest(&self) -> Interest {
        self.core.code.interest
    }

    fn configure(
        &self,
        config: &ScopedConfig,
        metrics: &mut dyn Metrics,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError> {
        let configuration = Configuration {
            id: self.core.next_configuration.fetch_add(1, Ordering::Relaxed),
            text: text_of(&config.effective),
        };
        self.check(&configuration, metrics).map_err(|refusal| {
            let scope = if config.scope.is_empty() {
                "gateway"
            } else {
                &config.scope
            };
            LoadError {
                plugin: self.core.shared.plugin.clone(),
                message: format!(
                    "{} (configuration of {scope})",
                    self.core.describe(&refusal)
                ),
            }
        })?;
        self.prepare(&configuration);
        Ok(Arc::new(WasmConfigured::new(
            Arc::clone(&self.core),
            configuration,
        )))
    }

    fn status(&self) -> PluginStatus {
        PluginStatus {
            workers: self
                .core
                .workers
                .iter()
                .map(|own| own.seen.status())
                .collect(),
            memory_budget: self.core.shared.memory_budget,
            log_lines_dropped: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_made_at_once_and_then_at_growing_distances() {
        let mut repair = Repair {
            failed_at: Duration::from_secs(1000),
            ..Repair::default()
        };
        for failures in 0..=FREE_FAILURES {
            repair.failures = failures;
            assert!(repair.is_due(repair.failed_at), "{failures}");
        }
        for (failures, pause) in [(4, 100), (5, 200), (6, 400), (12, 25_600), (13, 30_000)] {
            repair.failures = failures;
            let due = repair.failed_at + Duration::from_millis(pause);
            let early = repair.failed_at + Duration::from_millis(pause - 1);
            assert!(!repair.is_due(early), "{failures}");
            assert!(repair.is_due(due), "{failures}");
        }
        repair.failures = u32::MAX;
        assert!(
            repair.is_due(Duration::from_secs(999)),
            "the clock was set back"
        );
    }

    #[test]
    fn a_text_is_handed_over_as_it_is() {
        assert_eq!(&*text_of(r#""a\nb""#), b"a\nb");
        assert_eq!(&*text_of(r#"{"a":1}"#), br#"{"a":1}"#);
    }
}
