//! Table of live traces: the lane of each request that a sidecar has let in, found again when its service calls the next
//! one.
//!
//! One table serves all workers of the process, because Envoy may accept a service's outbound connection on another worker
//! than the inbound one. It takes no lock and waits for no other thread: a worker that the kernel suspends in the middle of
//! a change makes one slot unusable for that time, and nothing else.
//!
//! A trace is *held* while a request of it is under way, and remembered for a while after the last of them has ended, for
//! services that answer first and call later. Neither state grows: the table has a fixed number of slots, 16 bytes each.
//!
//! The trap: trace ids come from clients. Two requests with one id and different lanes make the trace
//! *ambiguous*, and neither of the two lanes is restored: a client that copies a trace id cannot move another request to a
//! lane of its choice. Ids are hashed with a secret key, so a client cannot choose ids that meet in one bucket, or are taken
//! for each other: beside 100,000 live traces, one new id in 10^14 is.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::carried::{Carried, Packed};
use crate::names::LaneId;
use crate::trace::TraceId;

/// Slots of a bucket. A trace has two buckets to choose from, so that a table which is half full has room for practically
/// every trace.
const SLOTS: usize = 8;

/// State of a slot that no trace uses.
const FREE: u64 = 0;
/// State of a slot whose trace is being written.
const CLAIMED: u64 = u64::MAX;

/// Seconds since an origin that the caller chooses, the same for all calls of one table. Starts at 1.
pub type Seconds = u32;

/// Table of live traces. See the module.
#[derive(Debug)]
pub struct TraceTable {
    /// A power of two of them.
    buckets: Box<[Bucket]>,
    hashes: RandomState,
    /// Headers of traces, once a group carries some.
    carried: OnceLock<Carried>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Bucket([Slot; SLOTS]);

/// One trace. `tag` may be written only by the thread that has claimed the slot.
#[derive(Debug, Default)]
struct Slot {
    /// The trace's key.
    tag: AtomicU64,
    /// [`State`] of the trace, [`FREE`] or [`CLAIMED`].
    state: AtomicU64,
}

/// State of a trace: expiry in bits 32 to 63, number of holders in bits 16 to 31, lane in bits 0 to 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    expires: Seconds,
    holders: u16,
    lane: Lane,
}

/// Lane of a trace in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Known(LaneId),
    Ambiguous,
}

impl State {
    fn from_bits(bits: u64) -> Option<Self> {
        if bits == FREE || bits == CLAIMED {
            return None;
        }
        let [
            expires_a,
            expires_b,
            expires_c,
            expires_d,
            holders_a,
            holders_b,
            lane_a,
            lane_b,
        ] = bits.to_be_bytes();
        Some(Self {
            expires: Seconds::from_be_bytes([expires_a, expires_b, expires_c, expires_d]),
            holders: u16::from_be_bytes([holders_a, holders_b]),
            lane: LaneId::from_bits(u16::from_be_bytes([lane_a, lane_b]))
                .map_or(Lane::Ambiguous, Lane::Known),
        })
    }

    fn bits(self) -> u64 {
        let lane = match self.lane {
            Lane::Known(lane) => lane.bits(),
            Lane::Ambiguous => 0,
        };
        u64::from(self.expires) << 32 | u64::from(self.holders) << 16 | u64::from(lane)
    }

    /// Whether no live trace has the slot. [`FREE`] has no holders and is over; [`CLAIMED`] has holders.
    fn is_over(bits: u64, now: Seconds) -> bool {
        let holders = (bits >> 16) & u64::from(u16::MAX);
        holders == 0 && bits >> 32 <= u64::from(now)
    }
}

/// Group of lanes in one table: traces of one id in two groups are two traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupKey(u64);

/// Key of a trace in one table: the hash of its id and of the group of lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceKey(u64);

impl TraceKey {
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A trace that is held: [`TraceTable::release`] has to follow.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a trace that is not released stays in the table"]
pub struct Hold(u32);

impl Hold {
    /// Number from which [`Hold::from_number`] makes the hold again, for a place that stores numbers.
    pub fn number(&self) -> u32 {
        self.0
    }

    /// Inverse of [`Hold::number`]; each number may be turned into a hold once.
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Outcome of [`TraceTable::hold`].
#[derive(Debug, PartialEq, Eq)]
pub enum Held {
    /// The trace is in the table with this lane.
    Held(Hold),
    /// The trace is in the table with another lane, and ambiguous from now on.
    Conflict(Hold),
    /// The table has no slot for the trace.
    Full,
}

/// Outcome of [`TraceTable::find`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Lane of the trace.
    Lane(LaneId),
    /// Requests of different lanes have this trace id.
    Ambiguous,
    /// No live trace has this id.
    Nothing,
}

impl TraceTable {
    /// Makes a table for so many traces; it takes 32 to 64 bytes for each of them.
    pub fn new(capacity: usize) -> Self {
        let slots = capacity.clamp(SLOTS, 1 << 24).saturating_mul(2);
        let buckets = slots.div_ceil(SLOTS).next_power_of_two();
        Self {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            hashes: RandomState::new(),
            carried: OnceLock::new(),
        }
    }

    /// Makes room for headers that are carried along: 8 MiB, and 16 bytes for each slot.
    pub(crate) fn carry(&self) {
        self.carried
            .get_or_init(|| Carried::new(self.buckets.len() * SLOTS));
    }

    /// Headers that were carried along with a trace; `None` if there is no such trace, if they are ambiguous, or if those of
    /// later traces have taken their room.
    pub(crate) fn carried(&self, key: TraceKey, now: Seconds) -> Option<Packed> {
        let carried = self.carried.get()?;
        let mut found: Option<Packed> = None;
        for (number, slot) in self.slots_of(key) {
            if slot.read(key, now).is_none() {
                continue;
            }
            let headers = carried.read(number, key)?;
            if found.as_ref().is_some_and(|other| *other != headers) {
                return None;
            }
            found = Some(headers);
        }
        found
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Key of a group of lanes.
    pub fn group(&self, name: &str) -> GroupKey {
        GroupKey(self.hashes.hash_one(name))
    }

    /// Key of a trace for a group of lanes.
    pub fn key(&self, group: GroupKey, trace: TraceId<'_>) -> TraceKey {
        let mut hasher = self.hashes.build_hasher();
        match trace {
            // In one piece: each costs as much as its bytes.
            TraceId::Number(id) => {
                let mut bytes = [0; 24];
                let (first, second) = bytes.split_at_mut(8);
                first.copy_from_slice(&group.0.to_ne_bytes());
                second.copy_from_slice(&id.to_ne_bytes());
                hasher.write(&bytes);
            }
            TraceId::Text(id) => {
                hasher.write(&(!group.0).to_ne_bytes());
                hasher.write(id);
            }
        }
        TraceKey(hasher.finish())
    }

    /// Remembers the lane of a trace until [`TraceTable::release`], and for the time named there.
    pub fn hold(&self, key: TraceKey, lane: LaneId, now: Seconds) -> Held {
        self.hold_with(key, lane, None, now)
    }

    /// The same with headers that are carried along, for a group that carries some.
    pub(crate) fn hold_with(
        &self,
        key: TraceKey,
        lane: LaneId,
        headers: Option<&[u8]>,
        now: Seconds,
    ) -> Held {
        let headers = self.carried.get().zip(headers);
        if let Some(held) = self.hold_known(key, lane, now) {
            if let (Some((carried, headers)), Held::Held(hold) | Held::Conflict(hold)) =
                (headers, &held)
            {
                carried.join(hold.0, key, headers);
            }
            return held;
        }
        let Some(number) = self.claim(key, lane, headers, now) else {
            return Held::Full;
        };
        // Another worker may have claimed another slot for the same trace at the same time. Each looks after it has
        // published its own slot, so the later of the two sees the other.
        fence(Ordering::SeqCst);
        let hold = Hold(number);
        if self.mark_conflicts(key, lane, now) {
            Held::Conflict(hold)
        } else {
            Held::Held(hold)
        }
    }

    /// Adds a holder to a trace that is in the table.
    fn hold_known(&self, key: TraceKey, lane: LaneId, now: Seconds) -> Option<Held> {
        let hold = |number: u32, slot: &Slot| {
            loop {
                let (bits, state) = slot.read(key, now)?;
                let holders = state.holders.checked_add(1)?;
                let is_same = state.lane == Lane::Known(lane);
                let lane = if is_same { state.lane } else { Lane::Ambiguous };
                let next = State {
                    holders,
                    lane,
                    ..state
                };
                // A slot that was given to another trace meanwhile has a later expiry, so the exchange fails.
                let exchanged = slot.state.compare_exchange(
                    bits,
                    next.bits(),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                if exchanged.is_ok() {
                    let hold = Hold(number);
                    return Some(if is_same {
                        Held::Held(hold)
                    } else {
                        Held::Conflict(hold)
                    });
                }
            }
        };
        self.slots_of(key)
            .find_map(|(number, slot)| hold(number, slot))
    }

    /// Gives a free slot to a trace, and returns the slot's number; `None` if both buckets are full.
    fn claim(
        &self,
        key: TraceKey,
        lane: LaneId,
        headers: Option<(&Carried, &[u8])>,
        now: Seconds,
    ) -> Option<u32> {
        let [one, other] = self
            .buckets_of(key)
            .map(|bucket| bucket.map(|(first, bucket)| (bucket.free(now), first, bucket)));
        let (one, other) = (one?, other?);
        // The bucket with more free slots: that keeps all of them about equally full.
        let buckets = if other.0.count_ones() > one.0.count_ones() {
            [other, one]
        } else {
            [one, other]
        };
        let state = State {
            // Later than that of every trace that had the slot before, whose expiry is over.
            expires: now.saturating_add(1),
            holders: 1,
            lane: Lane::Known(lane),
        };
        for (bits, first, bucket) in buckets {
            let mut free = SomeSlots {
                first,
                bucket,
                bits,
            };
            while let Some((number, slot)) = free.next() {
                if slot.claim(now) {
                    if let Some((carried, headers)) = headers {
                        carried.begin(number, key, headers);
                    }
                    slot.publish(key, state);
                    return Some(number);
                }
            }
        }
        None
    }

    /// Makes a trace ambiguous in all its slots if one of them has another lane.
    fn mark_conflicts(&self, key: TraceKey, lane: LaneId, now: Seconds) -> bool {
        let differs = |slot: &Slot| {
            let state = slot.read(key, now);
            state.is_some_and(|(_, state)| state.lane != Lane::Known(lane))
        };
        if !self.slots_of(key).any(|(_, slot)| differs(slot)) {
            return false;
        }
        for (_, slot) in self.slots_of(key) {
            while let Some((bits, state)) = slot.read(key, now)
                && state.lane != Lane::Ambiguous
            {
                let lane = Lane::Ambiguous;
                let next = State { lane, ..state }.bits();
                let _ =
                    slot.state
                        .compare_exchange(bits, next, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        true
    }

    /// Ends a hold. The trace stays in the table until `expires` if that is later than the time of other holders.
    #[expect(clippy::needless_pass_by_value, reason = "a hold is released once")]
    pub fn release(&self, hold: Hold, expires: Seconds) {
        let number = hold.0 as usize;
        let slot = self
            .buckets
            .get(number / SLOTS)
            .and_then(|bucket| bucket.0.get(number % SLOTS));
        let Some(slot) = slot else {
            return;
        };
        let _ = slot
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |bits| {
                let state = State::from_bits(bits)?;
                let next = State {
                    expires: state.expires.max(expires),
                    holders: state.holders.checked_sub(1)?,
                    ..state
                };
                Some(next.bits())
            });
    }

    /// Finds the lane of a trace.
    pub fn find(&self, key: TraceKey, now: Seconds) -> Found {
        let mut found = Found::Nothing;
        for (_, slot) in self.slots_of(key) {
            let Some((_, state)) = slot.read(key, now) else {
                continue;
            };
            found = match (found, state.lane) {
                (Found::Nothing, Lane::Known(lane)) => Found::Lane(lane),
                (Found::Lane(one), Lane::Known(other)) if one == other => found,
                _ => Found::Ambiguous,
            };
        }
        found
    }

    /// Number of live traces. Looks at every slot: for status pages.
    pub fn live(&self, now: Seconds) -> usize {
        let slots = self.buckets.iter().flat_map(|bucket| &bucket.0);
        slots
            .filter(|slot| !State::is_over(slot.state.load(Ordering::Relaxed), now))
            .count()
    }

    /// The two buckets of a trace, which may be the same, each with the number of its first slot.
    #[inline]
    fn buckets_of(&self, key: TraceKey) -> [Option<(u32, &Bucket)>; 2] {
        [self.bucket(key.0), self.bucket(key.0.rotate_left(32))]
    }

    #[inline]
    fn bucket(&self, hash: u64) -> Option<(u32, &Bucket)> {
        let last = self.buckets.len().saturating_sub(1);
        let place = usize::try_from(hash).unwrap_or(usize::MAX) & last;
        let first = u32::try_from(place * SLOTS).unwrap_or(u32::MAX);
        Some((first, self.buckets.get(place)?))
    }

    /// The slots that have this key, with their numbers. Those of a bucket that is both of them may come twice.
    #[inline]
    fn slots_of<'t>(&'t self, key: TraceKey) -> impl Iterator<Item = (u32, &'t Slot)> {
        let [one, other] = self.buckets_of(key);
        let slots = |(first, bucket): (u32, &'t Bucket)| SomeSlots {
            first,
            bucket,
            bits: bucket.tagged(key),
        };
        let (mut one, mut other) = (one.map(slots), other.map(slots));
        std::iter::from_fn(move || one.as_mut()?.next().or_else(|| other.as_mut()?.next()))
    }
}

/// Slots of a bucket, by a bit for each.
struct SomeSlots<'t> {
    first: u32,
    bucket: &'t Bucket,
    bits: u32,
}

impl<'t> SomeSlots<'t> {
    #[inline]
    fn next(&mut self) -> Option<(u32, &'t Slot)> {
        let number = self.bits.trailing_zeros();
        self.bits &= self.bits.wrapping_sub(1);
        let slot = self.bucket.0.get(usize::try_from(number).ok()?)?;
        Some((self.first + number, slot))
    }
}

impl Bucket {
    /// Slots that no live trace has, a bit for each.
    #[inline]
    fn free(&self, now: Seconds) -> u32 {
        self.bits(|slot| State::is_over(slot.state.load(Ordering::Acquire), now))
    }

    /// Slots that have a key, a bit for each.
    #[inline]
    fn tagged(&self, key: TraceKey) -> u32 {
        self.bits(|slot| slot.tag.load(Ordering::Relaxed) == key.0)
    }

    #[inline]
    fn bits(&self, test: impl Fn(&Slot) -> bool) -> u32 {
        let mut bits = 0;
        for slot in self.0.iter().rev() {
            bits = bits << 1 | u32::from(test(slot));
        }
        bits
    }
}

impl Slot {
    /// Reads the state of a live trace; `None` if the slot has another one, or none.
    fn read(&self, key: TraceKey, now: Seconds) -> Option<(u64, State)> {
        if self.tag.load(Ordering::Acquire) != key.0 {
            return None;
        }
        let bits = self.state.load(Ordering::Acquire);
        // A thread that gives the slot to another trace writes the tag before the state: a thread that has read its state reads
        // its tag now.
        let is_same = self.tag.load(Ordering::Acquire) == key.0;
        let state = State::from_bits(bits).filter(|_| is_same && !State::is_over(bits, now))?;
        Some((bits, state))
    }

    /// Takes a slot that no live trace has; `false` if another thread was first.
    fn claim(&self, now: Seconds) -> bool {
        let bits = self.state.load(Ordering::Acquire);
        State::is_over(bits, now)
            && self
                .state
                .compare_exchange(bits, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Gives a slot that was taken to a trace.
    fn publish(&self, key: TraceKey, state: State) {
        self.tag.store(key.0, Ordering::Release);
        self.state.store(state.bits(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::names::LaneNames;

    fn lanes() -> (LaneId, LaneId) {
        let names = LaneNames::default();
        (names.add(b"en").unwrap(), names.add(b"fr").unwrap())
    }

    fn held(held: Held) -> Hold {
        match held {
            Held::Held(hold) => hold,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn held_trace_is_found_until_the_time_after_its_release_is_over() {
        let (english, french) = lanes();
        let table = TraceTable::new(100);
        let key = table.key(table.group("hello"), TraceId::Number(7));
        assert_eq!(table.find(key, 1), Found::Nothing);
        let hold = held(table.hold(key, french, 1));
        // Held for as long as the request takes.
        assert_eq!(table.find(key, 1_000_000), Found::Lane(french));
        assert_eq!(
            table.find(table.key(table.group("other"), TraceId::Number(7)), 1),
            Found::Nothing
        );
        assert_eq!(
            table.find(table.key(table.group("hello"), TraceId::Text(b"7")), 1),
            Found::Nothing
        );
        table.release(hold, 110);
        assert_eq!(table.find(key, 109), Found::Lane(french));
        assert_eq!(table.find(key, 110), Found::Nothing);
        assert_eq!(table.live(110), 0);
        let hold = held(table.hold(key, english, 110));
        assert_eq!(table.find(key, 110), Found::Lane(english));
        table.release(hold, 111);
    }

    #[test]
    fn requests_of_one_trace_hold_it_together() {
        let (_, french) = lanes();
        let table = TraceTable::new(100);
        let key = table.key(table.group("hello"), TraceId::Number(7));
        let one = held(table.hold(key, french, 1));
        let other = held(table.hold(key, french, 1));
        assert_eq!(table.live(1), 1);
        table.release(one, 20);
        // The shorter time of the later release takes nothing away.
        assert_eq!(table.find(key, 500), Found::Lane(french));
        table.release(other, 10);
        assert_eq!(table.find(key, 19), Found::Lane(french));
        assert_eq!(table.find(key, 20), Found::Nothing);
    }

    #[test]
    fn trace_of_two_lanes_is_ambiguous_until_it_is_forgotten() {
        let (english, french) = lanes();
        let table = TraceTable::new(100);
        let key = table.key(table.group("hello"), TraceId::Number(7));
        let one = held(table.hold(key, french, 1));
        let Held::Conflict(other) = table.hold(key, english, 1) else {
            panic!("two lanes agree");
        };
        assert_eq!(table.find(key, 1), Found::Ambiguous);
        table.release(one, 10);
        table.release(other, 10);
        let Held::Conflict(third) = table.hold(key, french, 9) else {
            panic!("an ambiguous trace has a lane again");
        };
        table.release(third, 12);
        assert_eq!(table.find(key, 11), Found::Ambiguous);
        let fourth = held(table.hold(key, french, 12));
        assert_eq!(table.find(key, 12), Found::Lane(french));
        table.release(fourth, 13);
    }

    #[test]
    fn full_table_refuses_new_traces_and_loses_none() {
        let (_, french) = lanes();
        let table = TraceTable::new(1000);
        let key = |number| table.key(table.group("hello"), TraceId::Number(number));
        let mut holds = Vec::new();
        let mut refused = 0;
        for number in 1..=10_000 {
            match table.hold(key(number), french, 1) {
                Held::Held(hold) => holds.push((number, hold)),
                Held::Full => refused += 1,
                Held::Conflict(_) => panic!("two traces have one key"),
            }
            // As many as were asked for have room, wherever their hashes lead.
            assert!(refused == 0 || number > 1000);
        }
        assert!(refused > 0);
        assert!(table.bytes() <= 64 * 1024, "{}", table.bytes());
        assert_eq!(table.live(1), holds.len());
        for (number, hold) in holds {
            assert_eq!(table.find(key(number), 1), Found::Lane(french));
            table.release(hold, 2);
        }
        assert_eq!(table.live(2), 0);
        assert!(matches!(table.hold(key(10_001), french, 2), Held::Held(_)));
    }

    /// Slots change hands all the time, as the table is small and holds are short; no trace is found with the lane of
    /// another one.
    #[test]
    fn workers_at_once_never_see_the_lane_of_another_trace() {
        let (english, french) = lanes();
        let table = TraceTable::new(16);
        thread::scope(|scope| {
            for worker in 0..4_u128 {
                let table = &table;
                scope.spawn(move || {
                    let mut found = 0;
                    for round in 0..50_000_u32 {
                        let number = u128::from(round) * 4 + worker;
                        let lane = if number.count_ones() % 2 == 0 {
                            english
                        } else {
                            french
                        };
                        let key = table.key(table.group("hello"), TraceId::Number(number));
                        let now = round + 1;
                        match table.hold(key, lane, now) {
                            Held::Held(hold) => {
                                assert_eq!(table.find(key, now), Found::Lane(lane));
                                table.release(hold, now);
                                found += 1;
                            }
                            Held::Full => {}
                            Held::Conflict(_) => panic!("two traces have one key"),
                        }
                    }
                    assert!(found > 0);
                });
            }
        });
    }

    /// However the threads interleave, two lanes of one trace are a conflict for at least one of them, and the trace is
    /// ambiguous afterwards.
    #[test]
    fn two_lanes_that_come_at_once_are_a_conflict() {
        let (english, french) = lanes();
        let table = TraceTable::new(1000);
        let barrier = Barrier::new(2);
        for now in 1..2000 {
            let key = table.key(table.group("hello"), TraceId::Number(now.into()));
            let hold = |lane| {
                barrier.wait();
                table.hold(key, lane, now)
            };
            let outcomes = thread::scope(|scope| {
                let other = scope.spawn(|| hold(french));
                [hold(english), other.join().unwrap()]
            });
            assert!(
                outcomes
                    .iter()
                    .any(|held| matches!(held, Held::Conflict(_))),
                "{outcomes:?}"
            );
            assert_eq!(table.find(key, now), Found::Ambiguous);
            for held in outcomes {
                let (Held::Held(hold) | Held::Conflict(hold)) = held else {
                    panic!("the table is full");
                };
                table.release(hold, now + 1);
            }
            // Nothing is left of it, although it may have had two slots.
            assert_eq!(table.live(now + 1), 0);
        }
    }
}
