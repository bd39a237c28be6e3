//! What one hook has learned of a header map, so that a plugin that reads or sets many headers does not
//! have Envoy search its map anew for each of them.
//!
//! Nothing is learned for the first few questions: most plugins ask no more than that. Then the map is
//! listed once. While nothing changes it, values are found in the list; and for as long as the hook runs,
//! a name that is not in it is known to be absent (such a header is added without looking for an old
//! value, and a read or a removal of it costs nothing), and what the hook itself has set is known by heart.
//!
//! The traps: this is true only while every change of the map goes through [`crate::host::EnvoyHost`],
//! which is so within one hook, and no longer: it is made for a hook and goes with it. And Envoy takes
//! `host` for another name of `:authority`, so nothing is ever known about `host`.

use std::cell::Cell;
use std::ops::Range;

use outrider_plugin_api::{HeaderMap, bytes::copy};

use crate::raw::{EnvoyBuffer, EnvoyHeader};

/// So many questions are put to Envoy before the map is listed.
const PATIENCE: u8 = 2;
/// A map of more headers is not listed.
pub(crate) const MOST_HEADERS: usize = 64;
/// So many headers that the hook has set are known by heart.
const MOST_WRITTEN: usize = 128;
/// How many digests there are; a power of two.
const SLOTS: usize = 1024;

/// See the module.
#[derive(Default)]
pub(crate) struct KnownHeaders {
    /// Which map all of it is about.
    map: Option<HeaderMap>,
    /// How often Envoy was asked since the map was listed or changed.
    asked: u8,
    /// The table is about that map.
    is_listed: bool,
    table: Option<Box<Table>>,
}

/// What a map held when it was listed, and what was set since; found by a digest of the name.
struct Table {
    slots: [Slot; SLOTS],
    /// For each header: the slot of the next one with its digest.
    next: Vec<Slot>,
    headers: Vec<EnvoyHeader>,
    /// Nothing has changed since the map was listed, so Envoy's bytes are still there.
    is_fresh: bool,
    written: Vec<Written>,
    /// Names and values of `written`, [`MOST_TEXT`] bytes. Those that are in use are not touched for as long as
    /// the hook runs: readers hold on to them.
    text: Box<[u8]>,
    /// How many of them are in use.
    used: usize,
}

/// What is known of the names of one digest: [`NONE`] has it, or the first of the listed headers from
/// [`LISTED`] on, or a written one from [`WRITTEN`] on, or [`UNKNOWN`].
type Slot = u8;
const NONE: Slot = 0;
const LISTED: Slot = 1;
const WRITTEN: Slot = LISTED + MOST_HEADERS as Slot;
const UNKNOWN: Slot = Slot::MAX;
const _: () = assert!(WRITTEN as usize + MOST_WRITTEN <= UNKNOWN as usize);

/// A header that the hook has set: the only one of its name.
#[derive(Clone, Copy)]
struct Written {
    /// Where its name begins, in `text`.
    start: u32,
    /// Where its value begins.
    middle: u32,
    end: u32,
}

impl Written {
    #[inline]
    fn name(&self) -> Range<usize> {
        self.start as usize..self.middle as usize
    }

    #[inline]
    fn value(&self) -> Range<usize> {
        self.middle as usize..self.end as usize
    }
}

thread_local! {
    /// The worker's table that no hook has.
    static FREE: Cell<Option<Box<Table>>> = const { Cell::new(None) };
}

/// So many bytes of names and values are known by heart.
const MOST_TEXT: usize = 64 * 1024;

/// A header's name, with its digest.
#[derive(Clone, Copy)]
pub(crate) struct Name<'a> {
    bytes: &'a [u8],
    digest: usize,
}

impl<'a> Name<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            digest: digest(bytes),
        }
    }

    #[inline]
    fn is(self, other: &[u8]) -> bool {
        if self.bytes.len() != other.len() {
            return false;
        }
        // Mostly they are written in the same way: compared by words, the last of which overlap, without
        // a call into a library.
        let is_same = if other.len() >= 8 {
            let (words, _) = self.bytes.as_chunks::<8>();
            let (others, _) = other.as_chunks::<8>();
            words.iter().zip(others).all(|(word, other)| word == other)
                && self.bytes.last_chunk::<8>() == other.last_chunk()
        } else if other.len() >= 4 {
            self.bytes.first_chunk::<4>() == other.first_chunk()
                && self.bytes.last_chunk::<4>() == other.last_chunk()
        } else {
            false
        };
        is_same || other.eq_ignore_ascii_case(self.bytes)
    }

    /// Whether it is the other name of [`AUTHORITY`].
    #[inline]
    fn is_host(self) -> bool {
        self.bytes.len() == HOST.len() && self.is(HOST)
    }
}

/// What is known about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known<T> {
    /// No header has it.
    Absent,
    /// All about it.
    Found(T),
    /// Nothing.
    Nothing,
}

impl<T> Known<T> {
    /// The same of what is made of it.
    #[inline]
    pub(crate) fn map<U>(self, make: impl FnOnce(T) -> U) -> Known<U> {
        match self {
            Self::Absent => Known::Absent,
            Self::Found(value) => Known::Found(make(value)),
            Self::Nothing => Known::Nothing,
        }
    }
}

impl KnownHeaders {
    /// Whether no header of a map has this name, as far as is known.
    #[cfg(test)]
    fn is_absent(&self, map: HeaderMap, name: Name<'_>) -> bool {
        self.table(map)
            .is_some_and(|table| table.slot(name) == NONE)
    }

    /// The value of a header at `index` among those of that name.
    #[inline]
    pub(crate) fn value(&self, map: HeaderMap, name: Name<'_>, index: usize) -> Known<EnvoyBuffer> {
        let Some(table) = self.table(map) else {
            return Known::Nothing;
        };
        let slot = table.slot(name);
        if slot == NONE {
            Known::Absent
        } else if let Some(written) = table.written(slot) {
            match index {
                _ if !table.is_name(written, name) => Known::Nothing,
                0 => Known::Found(table.value(written)),
                _ => Known::Absent,
            }
        } else if slot != UNKNOWN && table.is_fresh {
            let value = table.listed(slot, name).nth(index);
            value.map_or(Known::Absent, |header| Known::Found(header.value))
        } else {
            Known::Nothing
        }
    }

    /// How many headers of a map have a name.
    pub(crate) fn count(&self, map: HeaderMap, name: Name<'_>) -> Option<usize> {
        let table = self.table(map)?;
        let slot = table.slot(name);
        if slot == NONE {
            Some(0)
        } else if let Some(written) = table.written(slot) {
            table.is_name(written, name).then_some(1)
        } else {
            (slot != UNKNOWN && table.is_fresh).then(|| table.listed(slot, name).count())
        }
    }

    /// Envoy is about to be asked about the map, or to set a header in it. `true`: it pays to list it
    /// first.
    #[inline]
    pub(crate) fn is_worth_listing(&mut self, map: HeaderMap) -> bool {
        if self.map != Some(map) {
            self.map = Some(map);
            self.asked = 0;
            self.is_listed = false;
        }
        self.asked = self.asked.saturating_add(1);
        self.asked == PATIENCE + 1
    }

    /// What the map holds, as `fill` has Envoy say it into an array of `size`, at most
    /// [`MOST_HEADERS`]; nothing is learned when it answers `false`.
    pub(crate) fn list(&mut self, size: usize, fill: impl FnOnce(&mut [EnvoyHeader]) -> bool) {
        let table = self.table.get_or_insert_with(Table::free);
        table.headers.clear();
        table.headers.resize(size, EnvoyHeader::EMPTY);
        self.is_listed = fill(&mut table.headers);
        if self.is_listed {
            table.index();
        }
    }

    /// Whether the map has been listed in this hook.
    #[inline]
    pub(crate) fn is_listed(&self, map: HeaderMap) -> bool {
        self.is_listed && self.map == Some(map)
    }

    /// A header is set in the map, which has no other of its name then. Answers whether it is known to have
    /// had none before.
    #[inline]
    pub(crate) fn sets(&mut self, map: HeaderMap, name: Name<'_>, value: &[u8]) -> bool {
        let Some(table) = self.changing(map, name) else {
            return false;
        };
        let was_absent = table.slot(name) == NONE;
        table.write(name, value);
        was_absent
    }

    /// A header is added to the map.
    pub(crate) fn adds(&mut self, map: HeaderMap, name: Name<'_>) {
        if let Some(table) = self.changing(map, name) {
            table.set_slot(name, UNKNOWN);
        }
    }

    /// The headers of a name are removed from the map. Answers whether it is known to have none: then nothing
    /// changes.
    #[expect(
        clippy::inline_always,
        reason = "called once for each header that is removed, and a third of it is the call: counted"
    )]
    #[inline(always)]
    pub(crate) fn removes(&mut self, map: HeaderMap, name: Name<'_>) -> bool {
        if !self.is_listed(map) {
            return false;
        }
        let Some(table) = self.table.as_deref_mut() else {
            return false;
        };
        if table.slot(name) == NONE {
            return true;
        }
        table.begin_change(name, &mut self.asked);
        table.set_slot(name, UNKNOWN);
        false
    }

    /// The table, in which headers of a name are about to change.
    #[inline]
    fn changing(&mut self, map: HeaderMap, name: Name<'_>) -> Option<&mut Table> {
        if !self.is_listed(map) {
            return None;
        }
        let table = self.table.as_deref_mut()?;
        table.begin_change(name, &mut self.asked);
        Some(table)
    }

    #[inline]
    fn table(&self, map: HeaderMap) -> Option<&Table> {
        self.table.as_deref().filter(|_| self.is_listed(map))
    }
}

impl Drop for KnownHeaders {
    #[inline]
    fn drop(&mut self) {
        if let Some(table) = self.table.take() {
            // Not when the thread ends: then it is dropped.
            let _ = FREE.try_with(|free| free.set(Some(table)));
        }
    }
}

impl Table {
    /// One that is free, or a new one.
    fn free() -> Box<Self> {
        let free = FREE.try_with(Cell::take).ok().flatten();
        let mut table = free.unwrap_or_else(|| {
            Box::new(Self {
                slots: [NONE; SLOTS],
                next: Vec::new(),
                headers: Vec::new(),
                is_fresh: false,
                written: Vec::with_capacity(MOST_WRITTEN),
                text: vec![0; MOST_TEXT].into_boxed_slice(),
                used: 0,
            })
        });
        table.used = 0;
        table
    }

    /// Finds its headers from now on.
    fn index(&mut self) {
        self.slots = [NONE; SLOTS];
        self.written.clear();
        self.next.clear();
        self.next.resize(self.headers.len(), NONE);
        for (index, header) in self.headers.iter().enumerate().rev() {
            // SAFETY: Envoy has just filled the buffer in.
            let name = unsafe { header.name.bytes() };
            if let Some(slot) = self.slots.get_mut(digest(name))
                && let Some(next) = self.next.get_mut(index)
            {
                *next = *slot;
                *slot = index as Slot + LISTED;
            }
        }
        self.set_slot(Name::new(HOST), UNKNOWN);
        self.is_fresh = true;
    }

    /// Headers of a name are about to change: Envoy's bytes will not be there any more.
    #[inline]
    fn begin_change(&mut self, name: Name<'_>, asked: &mut u8) {
        if self.is_fresh {
            self.is_fresh = false;
            *asked = 0;
        }
        if name.is_host() {
            self.set_slot(Name::new(AUTHORITY), UNKNOWN);
        }
    }

    #[inline]
    fn slot(&self, name: Name<'_>) -> Slot {
        self.slots.get(name.digest).copied().unwrap_or(UNKNOWN)
    }

    #[inline]
    fn set_slot(&mut self, name: Name<'_>, slot: Slot) {
        if let Some(place) = self.slots.get_mut(name.digest) {
            *place = slot;
        }
    }

    /// The headers of a name, in the map's order; `slot` is that of its digest. Only while fresh.
    #[inline]
    fn listed(&self, slot: Slot, name: Name<'_>) -> impl Iterator<Item = &EnvoyHeader> {
        let mut slot = slot;
        std::iter::from_fn(move || {
            let index = usize::from(slot.checked_sub(LISTED)?);
            slot = self.next.get(index).copied().unwrap_or_default();
            self.headers.get(index)
        })
        .filter(move |header| {
            // SAFETY: Envoy filled the buffers in, and nothing has changed the map since.
            name.is(unsafe { header.name.bytes() })
        })
    }

    #[inline]
    fn written(&self, slot: Slot) -> Option<&Written> {
        let index = slot.checked_sub(WRITTEN)?;
        self.written.get(usize::from(index))
    }

    #[inline]
    fn is_name(&self, written: &Written, name: Name<'_>) -> bool {
        let own = self.text.get(written.name());
        own.is_some_and(|own| name.is(own))
    }

    #[inline]
    fn value(&self, written: &Written) -> EnvoyBuffer {
        let value = self.text.get(written.value()).unwrap_or_default();
        EnvoyBuffer {
            pointer: value.as_ptr(),
            length: value.len(),
        }
    }

    /// Learns a header that is set.
    #[inline]
    fn write(&mut self, name: Name<'_>, value: &[u8]) {
        let slot = match self.keep(name, value) {
            Some(index) => WRITTEN + index,
            None => UNKNOWN,
        };
        self.set_slot(name, slot);
    }

    /// Its place among those that are known by heart, if there is one.
    #[expect(
        clippy::inline_always,
        reason = "called once for each header that is set, and a fifth of it is the call: counted"
    )]
    #[inline(always)]
    fn keep(&mut self, name: Name<'_>, value: &[u8]) -> Option<Slot> {
        let index = self.written.len();
        if index >= MOST_WRITTEN || name.is_host() {
            return None;
        }
        let start = self.used;
        let middle = start.checked_add(name.bytes.len())?;
        let end = middle.checked_add(value.len())?;
        let (own, rest) = self
            .text
            .get_mut(start..end)?
            .split_at_mut_checked(name.bytes.len())?;
        copy(own, name.bytes);
        copy(rest, value);
        self.used = end;
        self.written.push(Written {
            start: start as u32,
            middle: middle as u32,
            end: end as u32,
        });
        Some(index as Slot)
    }
}

/// Another name of [`AUTHORITY`] to Envoy.
const HOST: &[u8] = b"host";
const AUTHORITY: &[u8] = b":authority";

/// A few bits of a name, the same for names that differ in case only.
#[inline]
fn digest(name: &[u8]) -> usize {
    const LOWER: u64 = 0x2020_2020_2020_2020;
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (first, last) = if let (Some(first), Some(last)) =
        (name.first_chunk::<8>(), name.last_chunk::<8>())
    {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        (
            u64::from(u32::from_le_bytes(*first)),
            u64::from(u32::from_le_bytes(*last)),
        )
    } else {
        let word = name
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
        (word, 0)
    };
    let mixed = ((first | LOWER).wrapping_mul(SPREAD) ^ (last | LOWER))
        .wrapping_add(name.len() as u64)
        .wrapping_mul(SPREAD);
    (mixed >> (u64::BITS - SLOTS.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::EnvoyBuffer;

    fn headers(list: &'static [(&str, &str)]) -> Vec<EnvoyHeader> {
        list.iter()
            .map(|(name, value)| EnvoyHeader {
                name: EnvoyBuffer {
                    pointer: name.as_ptr(),
                    length: name.len(),
                },
                value: EnvoyBuffer {
                    pointer: value.as_ptr(),
                    length: value.len(),
                },
            })
            .collect()
    }

    const MAP: HeaderMap = HeaderMap::RequestHeaders;

    fn list(known: &mut KnownHeaders, list: &'static [(&str, &str)]) {
        known.list(list.len(), |places| {
            places.copy_from_slice(&headers(list));
            true
        });
    }

    fn values(known: &KnownHeaders, name: &str) -> Option<Vec<String>> {
        let name = Name::new(name.as_bytes());
        let count = known.count(MAP, name)?;
        let values = (0..=count).map_while(|index| match known.value(MAP, name, index) {
            Known::Found(value) => {
                // SAFETY: made of static texts.
                Some(String::from_utf8_lossy(unsafe { value.bytes() }).into_owned())
            }
            Known::Absent => None,
            Known::Nothing => panic!("counted, but without a value"),
        });
        Some(values.collect())
    }

    #[test]
    fn a_map_is_listed_when_it_was_asked_often() {
        let mut known = KnownHeaders::default();
        assert!(!known.is_worth_listing(MAP));
        assert!(!known.is_worth_listing(MAP));
        assert_eq!(values(&known, "a"), None);
        assert!(known.is_worth_listing(MAP));
        list(&mut known, &[("a", "1"), ("content-type", "2"), ("a", "3")]);
        assert_eq!(values(&known, "A").unwrap(), ["1", "3"]);
        assert_eq!(values(&known, "Content-Type").unwrap(), ["2"]);
        assert_eq!(values(&known, "b").unwrap(), [""; 0]);
        assert_eq!(
            known.count(HeaderMap::ResponseHeaders, Name::new(b"a")),
            None
        );
        assert!(known.is_absent(MAP, Name::new(b"b")) && !known.is_absent(MAP, Name::new(b"a")));
    }

    #[test]
    fn changes_leave_what_is_absent_and_what_was_set() {
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        list(&mut known, &[("a", "1"), ("b", "2")]);
        known.sets(MAP, Name::new(b"x-new"), b"one");
        known.sets(MAP, Name::new(b"B"), b"two");
        assert_eq!(values(&known, "a"), None);
        assert_eq!(values(&known, "X-New").unwrap(), ["one"]);
        assert_eq!(values(&known, "b").unwrap(), ["two"]);
        assert_eq!(values(&known, "x-other").unwrap(), [""; 0]);
        known.sets(
            HeaderMap::ResponseHeaders,
            Name::new(b"x-other"),
            b"of another map",
        );
        assert_eq!(values(&known, "x-other").unwrap(), [""; 0]);
        known.sets(MAP, Name::new(b"x-new"), b"another");
        assert_eq!(values(&known, "x-new").unwrap(), ["another"]);
        known.adds(MAP, Name::new(b"x-new"));
        assert_eq!(values(&known, "x-new"), None);
    }

    #[test]
    fn of_what_is_removed_nothing_is_known() {
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        list(&mut known, &[("a", "1"), ("b", "2")]);
        known.sets(MAP, Name::new(b"x-new"), b"one");
        known.sets(MAP, Name::new(b"a"), b"of a listed name");
        known.removes(MAP, Name::new(b"x-new"));
        known.removes(MAP, Name::new(b"a"));
        known.removes(MAP, Name::new(b"never there"));
        assert_eq!(values(&known, "x-new"), None);
        assert!(known.is_absent(MAP, Name::new(b"never there")));
        assert_eq!(values(&known, "a"), None);
    }

    #[test]
    fn host_is_another_name_of_authority() {
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        list(&mut known, &[(":authority", "a.example")]);
        assert!(!known.is_absent(MAP, Name::new(b"host")));
        assert_eq!(values(&known, "Host"), None);
        known.sets(MAP, Name::new(b":authority"), b"b.example");
        assert_eq!(values(&known, ":authority").unwrap(), ["b.example"]);
        known.sets(MAP, Name::new(b"host"), b"c.example");
        assert_eq!(values(&known, ":authority"), None);
        assert_eq!(values(&known, "host"), None);
    }

    #[test]
    fn more_than_can_be_learned_by_heart_is_not() {
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        list(&mut known, &[]);
        for number in 0..MOST_WRITTEN + 20 {
            let name = format!("x-{number}");
            known.sets(MAP, Name::new(name.as_bytes()), name.as_bytes());
            let value = values(&known, &name);
            assert!(value.is_none_or(|value| value == [name]));
        }
    }

    #[test]
    fn another_map_is_another_matter() {
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        list(&mut known, &[("a", "1")]);
        assert!(!known.is_worth_listing(HeaderMap::ResponseHeaders));
        assert_eq!(values(&known, "b"), None);
    }

    #[test]
    fn digests_do_not_depend_on_case_and_spread() {
        assert_eq!(digest(b"X-Request-Id"), digest(b"x-request-id"));
        assert_eq!(digest(b"Te"), digest(b"te"));
        let mut digests: Vec<usize> = (0..64)
            .map(|number| digest(format!("x-header-{number}").as_bytes()))
            .collect();
        digests.sort_unstable();
        digests.dedup();
        assert!(digests.len() > 56, "{}", digests.len());
    }

    #[test]
    fn headers_whose_digests_meet_are_told_apart() {
        let names: Vec<&'static str> = (0..4000)
            .map(|number| &*format!("h{number}").leak())
            .filter(|name: &&str| digest(name.as_bytes()) == digest(b"h0"))
            .collect();
        assert!(names.len() > 2);
        let list: Vec<(&str, &str)> = names.iter().map(|name| (*name, *name)).collect();
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        self::list(&mut known, list.leak());
        for name in names {
            assert_eq!(values(&known, name).unwrap(), [name]);
        }
    }
}
