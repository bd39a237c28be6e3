//! What the workers of one plugin version share: keys and values, with a time to live, bounded in
//! entries and bytes.
//!
//! Keys are spread over shards, each behind a lock that is held for one look or one change, never
//! during a call into a plugin. When a shard is full, entries make room: those whose time is over,
//! and of the others those that were not used since the hand came by last (the clock algorithm).
//! Reading allocates nothing but the caller's copy.
//!
//! Not here: whose clock it is. Each call says what time it is, in milliseconds since the Unix epoch.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest key, in bytes.
pub(crate) const LONGEST_KEY: usize = 1024;
/// The longest value, in bytes.
pub(crate) const LONGEST_VALUE: usize = 64 * 1024;

const SHARDS: usize = 16;
/// Entries of all shards.
const ENTRIES: usize = 65_536;
/// Bytes of all shards, each entry counted with its key and [`ENTRY_COST`].
const BYTES: usize = 16 * 1024 * 1024;
/// What an entry costs beside its key and value, in bytes.
const ENTRY_COST: usize = 128;

/// A value. Reading copies it out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// Text.
    Text(Box<[u8]>),
    /// Number.
    Number(f64),
    /// Truth value.
    Bool(bool),
}

/// How long an entry lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Until it is deleted, or has to make room.
    Unlimited,
    /// So many milliseconds from now.
    Milliseconds(u64),
}

impl Lifetime {
    fn end(self, now: u64) -> u64 {
        match self {
            Self::Unlimited => u64::MAX,
            Self::Milliseconds(time) => now.saturating_add(time),
        }
    }
}

/// What an increment found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Incremented {
    /// The number as it is now.
    To(f64),
    /// A value that is no number.
    NoNumber,
}

/// What came of [`Store::take`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Taken {
    /// They were there, and so many are left.
    Left(f64),
    /// There are too few; in so many milliseconds there will be enough.
    Wait(f64),
    /// A value that is no bucket.
    NoNumber,
}

/// A bucket of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bucket {
    /// How many it holds.
    pub(crate) capacity: f64,
    /// How long it takes until it has one more, in milliseconds.
    pub(crate) interval: f64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Debug)]
struct Entry {
    key: Arc<[u8]>,
    value: Value,
    /// From when on it is over.
    end: u64,
    /// Whether it was used since the hand came by.
    used: bool,
}

impl Entry {
    fn cost(&self) -> usize {
        cost(&self.key, &self.value)
    }
}

fn cost(key: &[u8], value: &Value) -> usize {
    let length = match value {
        Value::Text(text) => text.len(),
        Value::Number(_) | Value::Bool(_) => 0,
    };
    ENTRY_COST + key.len() + length
}

#[derive(Debug)]
struct Shard {
    places: BTreeMap<Arc<[u8]>, usize>,
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    hand: usize,
    bytes: usize,
    most_entries: usize,
    most_bytes: usize,
}

impl Store {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self::bounded(ENTRIES / SHARDS, BYTES / SHARDS)
    }

    fn bounded(most_entries: usize, most_bytes: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::new(Shard::new(most_entries, most_bytes))),
        }
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let index = self.hasher.hash_one(key) as usize % SHARDS;
        let [first, ..] = &self.shards;
        let shard = self.shards.get(index).unwrap_or(first);
        shard.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            // A panic left it half changed; what was in it is lost, as when it has to make room.
            let mut guard = poisoned.into_inner();
            *guard = Shard::new(guard.most_entries, guard.most_bytes);
            shard.clear_poison();
            guard
        })
    }

    /// Shows a value; nothing is shown where there is none.
    pub(crate) fn get<T>(&self, key: &[u8], now: u64, show: impl FnOnce(&Value) -> T) -> Option<T> {
        let mut shard = self.shard(key);
        let place = shard.living(key, now)?;
        let entry = shard.entry(place)?;
        entry.used = true;
        Some(show(&entry.value))
    }

    /// Puts a value in, in place of one that is there.
    pub(crate) fn set(&self, key: &[u8], value: Value, lifetime: Lifetime, now: u64) {
        let mut shard = self.shard(key);
        shard.put(key, value, lifetime.end(now), now);
    }

    /// Puts a value in if there is none, and answers whether it did.
    pub(crate) fn add(&self, key: &[u8], value: Value, lifetime: Lifetime, now: u64) -> bool {
        let mut shard = self.shard(key);
        if shard.living(key, now).is_some() {
            return false;
        }
        shard.put(key, value, lifetime.end(now), now);
        true
    }

    /// Adds to a number. Where there is none it begins at `initial`, with `lifetime`, which does not
    /// change afterwards.
    pub(crate) fn increment(
        &self,
        key: &[u8],
        amount: f64,
        initial: f64,
        lifetime: Lifetime,
        now: u64,
    ) -> Incremented {
        let mut shard = self.shard(key);
        if let Some(place) = shard.living(key, now)
            && let Some(entry) = shard.entry(place)
        {
            let Value::Number(number) = &mut entry.value else {
                return Incremented::NoNumber;
            };
            *number += amount;
            entry.used = true;
            return Incremented::To(*number);
        }
        let number = initial + amount;
        shard.put(key, Value::Number(number), lifetime.end(now), now);
        Incremented::To(number)
    }

    /// Takes `amount` tokens from a bucket, or none if there are too few. A bucket that is not there is
    /// full; what is kept of it is a number, the moment when it will be full, and only until then.
    pub(crate) fn take(&self, key: &[u8], amount: f64, bucket: Bucket, now: u64) -> Taken {
        let mut shard = self.shard(key);
        let present = now as f64;
        let mut full = present;
        if let Some(place) = shard.living(key, now)
            && let Some(entry) = shard.entry(place)
        {
            let Value::Number(number) = entry.value else {
                return Taken::NoNumber;
            };
            entry.used = true;
            // A bucket that was larger, or slower, is not emptier than empty.
            full = number.clamp(present, present + bucket.capacity * bucket.interval);
        }
        let after = full - present + amount * bucket.interval;
        let most = bucket.capacity * bucket.interval;
        // Sums of fractions of milliseconds are not exact; a millionth of a token is none.
        if after > most + bucket.interval * 1e-6 {
            return Taken::Wait(after - most);
        }
        let lifetime = Lifetime::Milliseconds(after.ceil() as u64);
        shard.put(key, Value::Number(present + after), lifetime.end(now), now);
        Taken::Left(((most - after) / bucket.interval).max(0.0))
    }

    /// Takes a value out, and answers whether there was one.
    pub(crate) fn delete(&self, key: &[u8], now: u64) -> bool {
        let mut shard = self.shard(key);
        match shard.living(key, now) {
            Some(place) => {
                shard.remove(place);
                true
            }
            None => false,
        }
    }

    /// How long a value lives on.
    pub(crate) fn remaining(&self, key: &[u8], now: u64) -> Option<Lifetime> {
        let mut shard = self.shard(key);
        let place = shard.living(key, now)?;
        Some(match shard.entry(place)?.end {
            u64::MAX => Lifetime::Unlimited,
            end => Lifetime::Milliseconds(end.saturating_sub(now)),
        })
    }
}

impl Shard {
    fn new(most_entries: usize, most_bytes: usize) -> Self {
        Self {
            places: BTreeMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            hand: 0,
            bytes: 0,
            most_entries,
            most_bytes,
        }
    }

    fn entry(&mut self, place: usize) -> Option<&mut Entry> {
        self.entries.get_mut(place)?.as_mut()
    }

    /// Where an entry is; one whose time is over goes.
    fn living(&mut self, key: &[u8], now: u64) -> Option<usize> {
        let place = *self.places.get(key)?;
        if self.entry(place)?.end <= now {
            self.remove(place);
            return None;
        }
        Some(place)
    }

    fn remove(&mut self, place: usize) {
        if let Some(entry) = self.entries.get_mut(place).and_then(Option::take) {
            self.bytes -= entry.cost();
            self.places.remove(&entry.key);
            self.free.push(place);
        }
    }

    fn put(&mut self, key: &[u8], value: Value, end: u64, now: u64) {
        // The old value goes first, so that it is not counted while room is made.
        let known = self.places.get(key).copied();
        let known = known.and_then(|place| {
            let entry = self.entry(place)?;
            let key = Arc::clone(&entry.key);
            self.remove(place);
            Some(key)
        });
        let cost = cost(key, &value);
        while !self.places.is_empty()
            && (self.places.len() >= self.most_entries || self.bytes + cost > self.most_bytes)
        {
            self.evict(now);
        }
        let key = known.unwrap_or_else(|| Arc::from(key));
        let place = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.places.insert(Arc::clone(&key), place);
        self.bytes += cost;
        if let Some(empty) = self.entries.get_mut(place) {
            *empty = Some(Entry {
                key,
                value,
                end,
                used: false,
            });
        }
    }

    /// Lets the hand go on until an entry has gone. At the latest in its second round one does, as
    /// the first took their marks from them.
    fn evict(&mut self, now: u64) {
        loop {
            self.hand = if self.hand + 1 < self.entries.len() {
                self.hand + 1
            } else {
                0
            };
            let place = self.hand;
            if let Some(entry) = self.entry(place) {
                if !entry.used || entry.end <= now {
                    self.remove(place);
                    return;
                }
                entry.used = false;
            } else if self.places.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
