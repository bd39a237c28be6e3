//! Ring of bytes between one worker and the exporter.
//!
//! One thread writes and one reads; neither waits for the other. A record is pushed whole or not at all: what does not fit
//! is dropped and counted by the ring itself, so that a reader that stands still costs its writer nothing.
//!
//! The words are atomics, which makes a safe ring of plain loads and stores: on x86-64 each is one instruction. The order
//! that matters is that of `tail` (a record's words are stored before it) and `head` (they are loaded before it).

#[cfg(loom)]
use loom::sync::Arc;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = 8;
/// Fewest words of a ring.
const LEAST_WORDS: usize = 4;

/// A cache line of its own, and its neighbour that the processor loads along.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

#[derive(Debug)]
struct Shared {
    words: Box<[AtomicU64]>,
    /// Words that were read; stored by the consumer.
    head: Line<AtomicU64>,
    /// Words that were written; stored by the producer.
    tail: Line<AtomicU64>,
    /// Records that did not fit; stored by the producer.
    dropped: Line<AtomicU64>,
    /// The producer is gone.
    closed: AtomicBool,
}

/// The writing end, which belongs to one worker.
#[derive(Debug)]
pub struct Producer {
    shared: Arc<Shared>,
    tail: u64,
    /// `head`, as it was read last: the ring has at least the room that follows from it.
    known_head: u64,
    dropped: u64,
}

/// The reading end, which belongs to the exporter.
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    head: u64,
    /// Dropped records that [`Consumer::take_dropped`] returned.
    counted: u64,
}

/// Makes a ring of at least `bytes` bytes, rounded up to a power of two.
pub fn ring(bytes: usize) -> (Producer, Consumer) {
    let words = bytes.div_ceil(WORD).max(LEAST_WORDS).next_power_of_two();
    let shared = Arc::new(Shared {
        words: (0..words).map(|_| AtomicU64::new(0)).collect(),
        head: Line(AtomicU64::new(0)),
        tail: Line(AtomicU64::new(0)),
        dropped: Line(AtomicU64::new(0)),
        closed: AtomicBool::new(false),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        tail: 0,
        known_head: 0,
        dropped: 0,
    };
    let consumer = Consumer {
        shared,
        head: 0,
        counted: 0,
    };
    (producer, consumer)
}

impl Shared {
    fn mask(&self) -> u64 {
        self.words.len() as u64 - 1
    }

    fn store(&self, place: u64, word: u64) {
        if let Some(slot) = self.words.get((place & self.mask()) as usize) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    fn load(&self, place: u64) -> u64 {
        let slot = self.words.get((place & self.mask()) as usize);
        slot.map_or(0, |slot| slot.load(Ordering::Relaxed))
    }
}

impl Producer {
    /// Appends a record. Returns `false`, and counts the record as dropped, if the ring has no room for it.
    pub fn push(&mut self, record: &[u8]) -> bool {
        let capacity = self.shared.words.len() as u64;
        let needed = 1 + record.len().div_ceil(WORD) as u64;
        if self.tail - self.known_head + needed > capacity {
            // Acquire: the words up to `head` were loaded before they are stored anew.
            self.known_head = self.shared.head.0.load(Ordering::Acquire);
            if self.tail - self.known_head + needed > capacity {
                self.dropped += 1;
                self.shared.dropped.0.store(self.dropped, Ordering::Relaxed);
                return false;
            }
        }
        self.shared.store(self.tail, record.len() as u64);
        let mut place = self.tail + 1;
        let (words, rest) = record.as_chunks::<WORD>();
        for word in words {
            self.shared.store(place, u64::from_le_bytes(*word));
            place += 1;
        }
        if !rest.is_empty() {
            let mut last = [0; WORD];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            self.shared.store(place, u64::from_le_bytes(last));
        }
        self.tail += needed;
        // Release: whoever sees this tail sees the words.
        self.shared.tail.0.store(self.tail, Ordering::Release);
        true
    }

    /// Size of the ring in bytes.
    pub fn capacity(&self) -> usize {
        self.shared.words.len() * WORD
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Release: whoever sees this sees the last record.
        self.shared.closed.store(true, Ordering::Release);
    }
}

impl Consumer {
    /// Reads the oldest record into `record`, whose content is replaced. Returns `false` if the ring is empty.
    pub fn pop(&mut self, record: &mut Vec<u8>) -> bool {
        let tail = self.shared.tail.0.load(Ordering::Acquire);
        if self.head == tail {
            return false;
        }
        let length = self.shared.load(self.head) as usize;
        let words = length.div_ceil(WORD) as u64;
        record.clear();
        record.reserve(words as usize * WORD);
        for place in self.head + 1..=self.head + words {
            record.extend_from_slice(&self.shared.load(place).to_le_bytes());
        }
        record.truncate(length);
        self.head += 1 + words;
        // Release: the words were loaded before the producer may store there again.
        self.shared.head.0.store(self.head, Ordering::Release);
        true
    }

    /// Returns whether the producer is gone. A ring that is closed, and empty after that was seen, stays empty.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Returns how many records did not fit since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        let dropped = self.shared.dropped.0.load(Ordering::Relaxed);
        dropped - std::mem::replace(&mut self.counted, dropped)
    }

    /// Returns a view of how full the ring is, for other threads.
    pub fn gauge(&self) -> Gauge {
        Gauge {
            shared: Arc::clone(&self.shared),
        }
    }
}

/// How full a ring is, for threads that neither write nor read it.
#[derive(Debug)]
pub struct Gauge {
    shared: Arc<Shared>,
}

impl Gauge {
    /// Returns whether more than half of the ring waits to be read. The two ends are read one after the other, so the answer
    /// may be off by what passes meanwhile.
    pub fn is_over_half(&self) -> bool {
        let head = self.shared.head.0.load(Ordering::Relaxed);
        let tail = self.shared.tail.0.load(Ordering::Relaxed);
        tail.saturating_sub(head) * 2 > self.shared.words.len() as u64
    }

    /// Returns whether the producer is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::ring;

    #[test]
    fn record_that_does_not_fit_is_dropped_and_counted() {
        let (mut producer, mut consumer) = ring(64);
        assert_eq!(producer.capacity(), 64);
        assert!(producer.push(&[1; 24]));
        assert!(producer.push(&[2; 20]));
        assert!(!producer.push(&[3; 1]));
        assert!(!producer.push(&[3; 1000]));
        assert_eq!(consumer.take_dropped(), 2);
        let mut record = Vec::new();
        assert!(consumer.pop(&mut record));
        assert_eq!(record, [1; 24]);
        assert!(producer.push(&[4; 9]));
        assert!(consumer.pop(&mut record));
        assert_eq!(record, [2; 20]);
        assert!(consumer.pop(&mut record));
        assert_eq!(record, [4; 9]);
        assert!(!consumer.pop(&mut record));
        assert_eq!(consumer.take_dropped(), 0);
    }

    #[test]
    fn closed_ring_keeps_its_records() {
        let (mut producer, mut consumer) = ring(64);
        assert!(producer.push(b"last"));
        assert!(!consumer.is_closed());
        drop(producer);
        assert!(consumer.is_closed());
        let mut record = Vec::new();
        assert!(consumer.pop(&mut record));
        assert_eq!(record, b"last");
        assert!(!consumer.pop(&mut record));
    }

    #[test]
    fn half_full_ring_is_reported() {
        let (mut producer, mut consumer) = ring(64);
        let gauge = consumer.gauge();
        assert!(!gauge.is_over_half());
        assert!(producer.push(&[0; 24]));
        assert!(!gauge.is_over_half());
        assert!(producer.push(&[]));
        assert!(gauge.is_over_half());
        consumer.pop(&mut Vec::new());
        assert!(!gauge.is_over_half());
        drop(producer);
        assert!(gauge.is_closed());
    }

    #[test]
    fn records_of_another_thread_arrive_in_order() {
        const RECORDS: u32 = 20_000;
        let (mut producer, mut consumer) = ring(4096);
        let writer = std::thread::spawn(move || {
            let mut dropped = 0;
            for number in 0..RECORDS {
                let bytes = number.to_le_bytes().repeat(1 + number as usize % 40);
                while !producer.push(&bytes) {
                    dropped += 1;
                    std::thread::yield_now();
                }
            }
            dropped
        });
        let mut record = Vec::new();
        for number in 0..RECORDS {
            while !consumer.pop(&mut record) {
                std::thread::yield_now();
            }
            let expected = number.to_le_bytes().repeat(1 + number as usize % 40);
            assert_eq!(record, expected);
        }
        assert_eq!(consumer.take_dropped(), writer.join().unwrap());
    }

    proptest! {
        #[test]
        fn records_come_out_as_they_went_in(
            records in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..60),
            reads in proptest::collection::vec(0..3_usize, 60),
        ) {
            let (mut producer, mut consumer) = ring(128);
            let mut waiting = std::collections::VecDeque::new();
            let mut dropped = 0;
            let mut record = Vec::new();
            for (bytes, reads) in records.iter().zip(reads) {
                if producer.push(bytes) {
                    waiting.push_back(bytes);
                } else {
                    dropped += 1;
                }
                for _ in 0..reads {
                    let found = consumer.pop(&mut record);
                    prop_assert_eq!(found.then_some(&record), waiting.pop_front());
                }
            }
            prop_assert_eq!(consumer.take_dropped(), dropped);
        }
    }
}

/// `RUSTFLAGS='--cfg loom' cargo test -p outrider-telemetry --no-default-features --release loom`, by `make loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::ring;

    #[test]
    fn reader_sees_whole_records_in_order() {
        loom::model(|| {
            // Four words: the second record fits only when the first was read, and wraps around.
            let (mut producer, mut consumer) = ring(32);
            let writer = loom::thread::spawn(move || {
                let first = producer.push(&[1; 12]);
                let second = producer.push(&[2; 9]);
                (first, second)
            });
            let mut seen = Vec::new();
            let mut record = Vec::new();
            for _ in 0..2 {
                if consumer.pop(&mut record) {
                    seen.push(record.clone());
                }
            }
            let (first, second) = writer.join().unwrap();
            assert!(first);
            assert!(consumer.is_closed());
            while consumer.pop(&mut record) {
                seen.push(record.clone());
            }
            let mut expected = vec![vec![1; 12]];
            expected.extend(second.then(|| vec![2; 9]));
            assert_eq!(seen, expected);
            assert_eq!(consumer.take_dropped(), u64::from(!second));
        });
    }

    #[test]
    fn closed_and_empty_ring_has_no_record_left() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring(32);
            let writer = loom::thread::spawn(move || {
                producer.push(&[7; 8]);
            });
            let mut record = Vec::new();
            let mut seen = 0;
            // What the exporter does: first whether it is closed, then what is in it.
            let closed = consumer.is_closed();
            while consumer.pop(&mut record) {
                seen += 1;
            }
            if closed {
                assert_eq!(seen, 1);
            }
            writer.join().unwrap();
        });
    }
}
