//! Headers that are carried along with a trace, byte for byte, for services that do not pass them on.
//!
//! They are written into one ring, the newest over the oldest: a fixed number of bytes for a whole process, and nobody
//! looks for room, waits or frees. Whoever reads may find that a writer was faster, or is in the middle of it. So each trace
//! keeps a digest, with a secret key, of what was written for it, and what does not have this digest is not what was
//! written.
//!
//! The trap: two requests with one trace id and different headers. A client that copies an id would have its own headers
//! sent with the requests of others, so then none are carried for the trace, as with its lane.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::table::TraceKey;

/// Most bytes of all headers of one request that are carried, with three for each of them.
pub const MOST_CARRIED: usize = 4096;

/// Most headers of a group that are carried.
pub const MOST_CARRIED_HEADERS: usize = 16;

/// Words of the ring: 8 MiB.
const WORDS: usize = 1 << 20;

/// Digest of a trace whose requests have different headers. No headers have it.
const AMBIGUOUS: u64 = 0;

/// Where nothing was written: there are no headers.
const NOWHERE: u64 = 0;

/// Headers in a row: of each its place in the group's list, the length of its value in two bytes, and the value.
pub(crate) type Packed = Vec<u8>;

/// Adds a header; `false` if there is no room for it.
pub(crate) fn pack(packed: &mut Packed, place: u8, value: &[u8]) -> bool {
    let Ok(length) = u16::try_from(value.len()) else {
        return false;
    };
    if packed.len() + 3 + value.len() > MOST_CARRIED {
        return false;
    }
    packed.push(place);
    packed.extend_from_slice(&length.to_be_bytes());
    packed.extend_from_slice(value);
    true
}

/// The headers in their order, each with its place in the group's list.
pub(crate) fn unpack(mut packed: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([place, high, low], rest) = packed.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, rest) = rest.split_at_checked(length)?;
        packed = rest;
        Some((*place, value))
    })
}

/// Headers of the traces of one table.
#[derive(Debug)]
pub(crate) struct Carried {
    records: Box<[Record]>,
    ring: Box<[AtomicU64]>,
    /// Words that were ever written, from 1.
    next: AtomicU64,
    hashes: RandomState,
}

/// Headers of the trace in one slot of the table.
#[derive(Debug, Default)]
struct Record {
    /// Number of the first word ever written for it, or [`NOWHERE`].
    at: AtomicU64,
    digest: AtomicU64,
}

impl Carried {
    /// For a table with so many slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            records: (0..slots).map(|_| Record::default()).collect(),
            ring: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(1),
            hashes: RandomState::new(),
        }
    }

    /// Keeps the headers of a trace that is about to get a slot. Nobody else changes the slot's record meanwhile.
    pub(crate) fn begin(&self, slot: u32, key: TraceKey, headers: &[u8]) {
        if let Some(record) = self.record(slot) {
            record.at.store(self.write(headers), Ordering::Release);
            let digest = self.digest(key, headers);
            record.digest.store(digest, Ordering::Release);
        }
    }

    /// Compares the headers of one more request of a trace, which holds the slot, with those that are kept, and renews them.
    pub(crate) fn join(&self, slot: u32, key: TraceKey, headers: &[u8]) {
        let Some(record) = self.record(slot) else {
            return;
        };
        if record.digest.load(Ordering::Acquire) != self.digest(key, headers) {
            record.digest.store(AMBIGUOUS, Ordering::Release);
            return;
        }
        let at = record.at.load(Ordering::Acquire);
        let is_old = self.next.load(Ordering::Relaxed).wrapping_sub(at) > WORDS as u64 / 2;
        if at != NOWHERE && is_old {
            record.at.store(self.write(headers), Ordering::Release);
        }
    }

    /// The headers of a trace; `None` if they are ambiguous, or have given way to others.
    pub(crate) fn read(&self, slot: u32, key: TraceKey) -> Option<Packed> {
        let record = self.record(slot)?;
        let digest = record.digest.load(Ordering::Acquire);
        let headers = match record.at.load(Ordering::Acquire) {
            NOWHERE => Packed::new(),
            at => self.words(at)?,
        };
        (digest != AMBIGUOUS && digest == self.digest(key, &headers)).then_some(headers)
    }

    fn record(&self, slot: u32) -> Option<&Record> {
        self.records.get(usize::try_from(slot).ok()?)
    }

    fn digest(&self, key: TraceKey, headers: &[u8]) -> u64 {
        let mut hasher = self.hashes.build_hasher();
        hasher.write(&key.bits().to_ne_bytes());
        hasher.write(headers);
        hasher.finish().max(AMBIGUOUS + 1)
    }

    /// Writes the length and the headers, and returns where.
    fn write(&self, headers: &[u8]) -> u64 {
        if headers.is_empty() {
            return NOWHERE;
        }
        let words = 1 + headers.len().div_ceil(8);
        let at = self.next.fetch_add(words as u64, Ordering::Relaxed);
        let store = |number: u64, word: u64| {
            if let Some(place) = self.place(number) {
                place.store(word, Ordering::Relaxed);
            }
        };
        store(at, headers.len() as u64);
        for (number, bytes) in (at + 1..).zip(headers.chunks(8)) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(bytes) {
                *to = *from;
            }
            store(number, u64::from_ne_bytes(word));
        }
        at
    }

    fn words(&self, at: u64) -> Option<Packed> {
        let load = |number: u64| Some(self.place(number)?.load(Ordering::Relaxed));
        let length = usize::try_from(load(at)?).ok()?;
        if length > MOST_CARRIED {
            return None;
        }
        let mut headers = Packed::with_capacity(length);
        let mut number = at;
        while headers.len() < length {
            number += 1;
            let word = load(number)?.to_ne_bytes();
            let missing = length - headers.len();
            headers.extend_from_slice(word.get(..missing).unwrap_or(&word));
        }
        Some(headers)
    }

    fn place(&self, number: u64) -> Option<&AtomicU64> {
        self.ring.get(usize::try_from(number % WORDS as u64).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn packed(headers: &[(u8, &[u8])]) -> Packed {
        let mut packed = Packed::new();
        for (place, value) in headers {
            assert!(pack(&mut packed, *place, value));
        }
        packed
    }

    fn key(number: u8) -> TraceKey {
        TraceKey::from_bits(number.into())
    }

    #[test]
    fn headers_come_out_as_they_went_in() {
        let long = vec![b'a'; MOST_CARRIED - 3];
        for headers in [
            &[][..],
            &[(0, &b"fr"[..])],
            &[(3, b""), (0, b"\x00\xff,;"), (3, b"twice")],
            &[(15, &long)],
        ] {
            let bytes = packed(headers);
            let out: Vec<(u8, &[u8])> = unpack(&bytes).collect();
            assert_eq!(out, headers);
            let carried = Carried::new(2);
            carried.begin(1, key(7), &bytes);
            assert_eq!(carried.read(1, key(7)), Some(bytes));
        }
        assert!(!pack(&mut packed(&[(0, b"fr")]), 1, &long));
        assert!(!pack(&mut Packed::new(), 1, &vec![0; 1 << 16]));
    }

    #[test]
    fn other_headers_of_one_trace_are_ambiguous_and_none_is_another_header() {
        for (one, other, is_known) in [
            (&b"fr"[..], &b"fr"[..], true),
            (b"fr", b"en", false),
            (b"fr", b"", false),
            (b"", b"fr", false),
            (b"", b"", true),
        ] {
            let carried = Carried::new(1);
            carried.begin(0, key(7), one);
            carried.join(0, key(7), other);
            // For good, whoever comes.
            carried.join(0, key(7), one);
            let found = carried.read(0, key(7));
            assert_eq!(
                found.as_deref(),
                is_known.then_some(one),
                "{one:?} {other:?}"
            );
            // The slot's next trace.
            assert_eq!(carried.read(0, key(8)), None);
            carried.begin(0, key(8), other);
            assert_eq!(carried.read(0, key(8)).as_deref(), Some(other));
        }
    }

    #[test]
    fn oldest_give_way_and_renewed_ones_stay() {
        let carried = Carried::new(3);
        let headers = vec![b'a'; 4000];
        carried.begin(0, key(0), b"first");
        carried.begin(1, key(1), b"renewed");
        for _ in 0..3 * WORDS * 8 / headers.len() {
            carried.begin(2, key(2), &headers);
            carried.join(1, key(1), b"renewed");
        }
        assert_eq!(carried.read(0, key(0)), None);
        assert_eq!(carried.read(1, key(1)).as_deref(), Some(&b"renewed"[..]));
        assert_eq!(carried.read(2, key(2)).as_deref(), Some(&headers[..]));
    }

    #[test]
    fn reader_sees_whole_headers_of_its_trace_or_none() {
        let carried = Carried::new(4);
        let value = |number: u8| vec![number; 300 + usize::from(number)];
        thread::scope(|scope| {
            for slot in 0..4_u8 {
                let (carried, value) = (&carried, &value);
                scope.spawn(move || {
                    for round in 0..5000_u32 {
                        let number = slot * 50 + (round % 50) as u8;
                        carried.begin(slot.into(), key(number), &value(number));
                    }
                });
            }
            for _ in 0..2 {
                let (carried, value) = (&carried, &value);
                scope.spawn(move || {
                    for round in 0..40_000_u32 {
                        let number = (round % 200) as u8;
                        if let Some(headers) = carried.read((number / 50).into(), key(number)) {
                            assert_eq!(headers.as_slice(), value(number));
                        }
                    }
                });
            }
        });
        assert_eq!(carried.read(3, key(199)).as_deref(), Some(&value(199)[..]));
    }
}
