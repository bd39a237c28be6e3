//! Slots of workers, spare and retired VMs, with VMs that are numbers.

use std::sync::mpsc::channel;
use std::thread;

use super::*;
use crate::{Interrupt, NO_CLOCK, SpareVms, ThreadClock};

#[derive(Debug)]
struct NoInterrupt;

impl Interrupt for NoInterrupt {
    fn interrupt(&self, _attempt: u32) {}
}

#[derive(Debug)]
struct NoClock;

impl ThreadClock for NoClock {
    fn this_thread(&self) -> i32 {
        NO_CLOCK
    }

    fn cpu_time(&self, _clock: i32) -> Option<u64> {
        None
    }
}

#[derive(Debug)]
struct Vm {
    generation: u32,
    memory: Arc<AtomicUsize>,
    streams: usize,
    calls: Arc<CallSlot>,
}

impl PooledVm for Vm {
    fn memory_gauge(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.memory)
    }

    fn call_slot(&self) -> &Arc<CallSlot> {
        &self.calls
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn streams(&mut self) -> usize {
        self.streams
    }
}

const MIB: usize = 1024 * 1024;

fn vm(generation: u32) -> Vm {
    Vm {
        generation,
        memory: Arc::new(AtomicUsize::new(MIB)),
        streams: 1,
        calls: Arc::new(CallSlot::new(Box::new(NoInterrupt), &NoClock, None)),
    }
}

fn slot() -> WorkerSlot<Vm> {
    WorkerSlot::new(vm(1), 0, RestartBackoff::default())
}

#[test]
fn streams_wait_while_another_thread_has_the_slot() {
    let slot = slot();
    assert_eq!(slot.wait(), None);
    let borrowed = slot.borrow().unwrap();
    assert_eq!(slot.wait(), Some(SHORTEST_STEP));
    assert!(slot.lock().is_none(), "the worker does not block");
    assert!(slot.borrow().is_none());
    assert!(slot.wait().is_some(), "the first one has it still");
    drop(borrowed);
    assert_eq!(slot.wait(), None);
    assert!(slot.lock().is_some());
}

#[test]
fn panic_within_a_call_discards_all_vms() {
    let slot = slot();
    slot.lock().unwrap().retired.push(vm(7), 8 * MIB);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _vms = slot.lock();
        panic!("of the host");
    }));
    assert!(panicked.is_err());
    let vms = slot.lock().unwrap();
    assert!(vms.current.is_none() && vms.retired.is_empty());
    drop(vms);
    let status = slot.status();
    assert_eq!((status.memory, status.replacements), (None, 1));
    assert!(status.trouble.unwrap().contains("panic"));
    slot.lock().unwrap().install(vm(2));
    assert_eq!(slot.status().memory, Some(MIB));
    assert_eq!(slot.status().trouble, None);
}

#[test]
fn patience_ends_and_begins_anew_only_after_a_pause() {
    let patience = VmPatience::default();
    assert_eq!(patience.step(), None, "nothing was ever missing");
    patience.restart();
    assert_eq!(patience.step(), Some(SHORTEST_STEP));
    let ago = |passed: Duration| {
        let since = now_ms() - u64::try_from(passed.as_millis()).unwrap();
        patience.since.store(since, Ordering::Relaxed);
    };
    ago(Duration::from_millis(200));
    assert!(patience.step().unwrap() >= Duration::from_millis(50));
    ago(PATIENCE);
    patience.restart_if_forgotten();
    assert_eq!(patience.step(), None);
    ago(FORGET + Duration::from_millis(1));
    patience.restart_if_forgotten();
    assert!(patience.step().is_some());
}

#[test]
fn released_configurations_are_taken_in_their_order() {
    let slot = slot();
    assert!(slot.is_due(), "no stream has come");
    assert_eq!(slot.begin_use(), []);
    assert!(!slot.is_due());
    for id in [3, 1, 2] {
        slot.release(id);
    }
    assert!(slot.is_due());
    let ids = slot.begin_use();
    assert_eq!(ids, [3, 1, 2]);
    slot.release(9);
    slot.release_later(vec![1, 2]);
    assert_eq!(slot.take_released(), [1, 2, 9]);
    assert!(!slot.is_due());
}

#[test]
fn retired_vms_serve_their_streams_within_a_bound() {
    let slot = slot();
    let mut vms = slot.lock().unwrap();
    for generation in 2..6 {
        let old = vms.current.take().unwrap();
        vms.install(vm(generation));
        vms.retired.push(old, 3 * MIB);
    }
    let has: Vec<bool> = (1..6).map(|generation| vms.has(generation)).collect();
    assert_eq!(has, [false, true, true, true, true], "the oldest is gone");
    assert_eq!(vms.vm_of(3).unwrap().generation, 3);
    vms.vm_of(2).unwrap().streams = 0;
    vms.retired.drop_idle();
    assert!(!vms.has(2));
    assert_eq!(vms.take(4).unwrap().generation, 4);
    assert_eq!(vms.take(5).unwrap().generation, 5);
    assert!(vms.current.is_none());
}

#[test]
fn spare_vms_that_are_not_fit_are_dropped() {
    let spares = SpareVms::new(RestartBackoff::default());
    for generation in 1..5 {
        spares.put(vm(generation));
    }
    let is_even = |vm: &Vm| vm.generation.is_multiple_of(2);
    assert_eq!(spares.count(is_even), 2);
    assert_eq!(spares.take(is_even).unwrap().generation, 2);
    spares.keep(is_even, 4);
    assert_eq!(spares.memory(), [MIB]);
    assert!(spares.take(|vm| vm.generation == 1).is_none());
    let second = Duration::from_secs(1);
    assert_eq!(spares.wait(second), Duration::ZERO);
    spares.note_failure(second, "bad".to_owned());
    assert_eq!(
        (spares.wait(second) > Duration::ZERO, &*spares.failure()),
        (true, "bad")
    );
    spares.note_success();
    assert_eq!(
        (spares.wait(second), &*spares.failure()),
        (Duration::ZERO, "")
    );
}

#[test]
fn worker_and_other_threads_share_a_slot_without_blocking() {
    let slot = Arc::new(slot());
    let (sender, done) = channel();
    for borrows in [false, true] {
        let (slot, sender) = (Arc::clone(&slot), sender.clone());
        thread::spawn(move || {
            let mut had = 0;
            while had < 1000 {
                had += if borrows {
                    u32::from(slot.borrow().is_some())
                } else {
                    u32::from(slot.lock().is_some())
                };
                thread::yield_now();
            }
            sender.send(had).unwrap();
        });
    }
    for _ in 0..2 {
        done.recv_timeout(Duration::from_secs(20)).unwrap();
    }
    assert_eq!(slot.wait(), None);
}
