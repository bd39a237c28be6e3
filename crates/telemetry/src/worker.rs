//! The worker's part: encode a record, push it, go on.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::LogEvent;
use crate::exporter;
use crate::registry::Handle;
use crate::ring::{Consumer, Producer, ring};

/// Largest capacity of a record's buffer that a worker keeps: a longer record is an exception.
const KEPT: usize = 256 * 1024;

/// The access logs of one scope.
#[derive(Debug)]
pub struct StreamLogs {
    /// Bytes of a worker's ring.
    ring: usize,
    logs: Box<[Arc<Handle>]>,
}

impl StreamLogs {
    /// The access logs of a scope; workers' rings have `ring` bytes.
    pub fn new(ring: usize, logs: Vec<Arc<Handle>>) -> Self {
        Self {
            ring,
            logs: logs.into(),
        }
    }

    /// Returns whether no stream of the scope is recorded.
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// Saves a record of a stream for each access log that takes it. Called on the stream's worker, once for each stream.
    pub fn save(&self, event: &mut impl LogEvent) {
        for handle in &self.logs {
            let log = handle.log();
            if log.takes(event) {
                // Not when the thread ends.
                let _ended = WORKER.try_with(|worker| {
                    if let Ok(mut worker) = worker.try_borrow_mut() {
                        worker.save(self.ring, handle, event);
                    }
                });
            }
        }
    }
}

#[derive(Default)]
struct Worker {
    ring: Option<(usize, Producer)>,
    record: Vec<u8>,
}

thread_local! {
    static WORKER: RefCell<Worker> = RefCell::default();
}

impl Worker {
    fn save(&mut self, bytes: usize, handle: &Handle, event: &mut impl LogEvent) {
        self.record.clear();
        self.record.extend_from_slice(&handle.id().to_le_bytes());
        handle.log().encode(&mut self.record, event);
        let producer = match &mut self.ring {
            // The old ring is read to its end when its size changes.
            Some((known, producer)) if *known == bytes => producer,
            other => &mut other.insert((bytes, take_spare(bytes))).1,
        };
        producer.push(&self.record);
        if self.record.capacity() > KEPT {
            self.record = Vec::new();
        }
    }
}

/// Rings that no worker has yet: a worker's first record asks for no memory.
static SPARE: Mutex<Vec<(usize, Producer)>> = Mutex::new(Vec::new());
/// Rings that the exporter does not know yet.
static NEW: Mutex<Vec<Consumer>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A list is valid between any two statements that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn make(bytes: usize) -> Producer {
    let (producer, consumer) = ring(bytes);
    exporter::watch(consumer.gauge());
    locked(&NEW).push(consumer);
    producer
}

#[cold]
fn take_spare(bytes: usize) -> Producer {
    let mut spare = locked(&SPARE);
    let place = spare.iter().position(|(size, _)| *size == bytes);
    let found = place.map(|place| spare.swap_remove(place).1);
    drop(spare);
    found.unwrap_or_else(|| make(bytes))
}

/// Makes rings for workers that have none yet. Called where a configuration is made, never on a worker.
pub fn prepare(workers: usize, bytes: usize) {
    static PREPARED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let mut prepared = locked(&PREPARED);
    if !prepared.contains(&bytes) {
        prepared.push(bytes);
        let mut spare = locked(&SPARE);
        // Those of another size are nobody's any more.
        spare.clear();
        spare.extend((0..workers).map(|_| (bytes, make(bytes))));
    }
}

/// Rings that the exporter does not know yet.
pub(crate) fn take_new() -> Vec<Consumer> {
    std::mem::take(&mut *locked(&NEW))
}
