//! What one hook has learned of a header map, so that a plugin that reads or sets many headers does not
//! have Envoy search its map anew for each of them.
//!
//! Nothing is learned for the first few questions: most plugins ask no more than that. Then the map is
//! listed once. While nothing changes it, values are found in the list; and for as long as the hook runs,
//! a name that is not in it is known to be absent: such a header is added without looking for an old
//! value, and a read of it costs nothing.
//!
//! The trap: this is true only while every change of the map goes through [`crate::host::EnvoyHost`],
//! which is so within one hook, and no longer: it is made for a hook and goes with it.

use outrider_plugin_api::HeaderMap;

use crate::raw::{EnvoyBuffer, EnvoyHeader};

/// So many questions are put to Envoy before the map is listed.
const PATIENCE: u8 = 2;
/// A map of more headers is not listed.
pub(crate) const MOST_HEADERS: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct KnownHeaders {
    /// Which map all of it is about.
    map: Option<HeaderMap>,
    /// How often the map was asked since it was listed or changed.
    asked: u8,
    listing: Option<Box<Listing>>,
}

/// What a map held when it was listed, found by a digest of the name.
struct Listing {
    /// For each digest: 0, or 1 more than the place of the first header that has it, or [`ADDED`].
    slots: [u8; 256],
    /// For each header: the same for the next one with that digest.
    next: Vec<u8>,
    headers: Vec<EnvoyHeader>,
    /// Nothing has changed since.
    is_fresh: bool,
}

/// A header with this digest has been added since the map was listed.
const ADDED: u8 = u8::MAX;

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

impl KnownHeaders {
    /// Whether no header of a map has this name, as far as is known.
    #[inline]
    pub(crate) fn is_absent(&self, map: HeaderMap, name: &[u8]) -> bool {
        self.listing(map)
            .is_some_and(|listing| listing.slot(digest(name)) == 0)
    }

    /// The value of a header at `index` among those of that name.
    #[inline]
    pub(crate) fn value(&self, map: HeaderMap, name: &[u8], index: usize) -> Known<EnvoyBuffer> {
        let Some(listing) = self.listing(map) else {
            return Known::Nothing;
        };
        let slot = listing.slot(digest(name));
        if slot == 0 {
            Known::Absent
        } else if listing.is_fresh {
            let value = listing.of(slot, name).nth(index);
            value.map_or(Known::Absent, |header| Known::Found(header.value))
        } else {
            Known::Nothing
        }
    }

    /// How many headers of a map have a name.
    pub(crate) fn count(&self, map: HeaderMap, name: &[u8]) -> Option<usize> {
        let listing = self.listing(map)?;
        match listing.slot(digest(name)) {
            0 => Some(0),
            slot => listing.is_fresh.then(|| listing.of(slot, name).count()),
        }
    }

    /// The map was asked about, or set a header in. `true`: it pays to list it.
    #[inline]
    pub(crate) fn is_worth_listing(&mut self, map: HeaderMap) -> bool {
        if self.map != Some(map) {
            *self = Self {
                map: Some(map),
                ..Self::default()
            };
        }
        self.asked = self.asked.saturating_add(1);
        self.asked == PATIENCE + 1
    }

    /// What the map holds, as Envoy has just said; at most [`MOST_HEADERS`].
    pub(crate) fn list(&mut self, headers: Vec<EnvoyHeader>) {
        let mut slots = [0; 256];
        let mut next = vec![0; headers.len()];
        for (index, header) in headers.iter().enumerate().rev() {
            // SAFETY: Envoy has just filled the buffer in.
            let name = unsafe { header.name.bytes() };
            if let Some(slot) = slots.get_mut(usize::from(digest(name)))
                && let Some(next) = next.get_mut(index)
            {
                *next = *slot;
                *slot = index as u8 + 1;
            }
        }
        self.listing = Some(Box::new(Listing {
            slots,
            next,
            headers,
            is_fresh: true,
        }));
    }

    /// Whether the map has been listed in this hook.
    #[inline]
    pub(crate) fn is_listed(&self, map: HeaderMap) -> bool {
        self.listing(map).is_some()
    }

    /// A header of the map is being changed, and perhaps one with this name added.
    #[inline]
    pub(crate) fn changes(&mut self, map: HeaderMap, added: Option<&[u8]>) {
        if self.map != Some(map) {
            return;
        }
        let Some(listing) = &mut self.listing else {
            return;
        };
        if listing.is_fresh {
            listing.is_fresh = false;
            self.asked = 0;
        }
        if let Some(name) = added
            && let Some(slot) = listing.slots.get_mut(usize::from(digest(name)))
        {
            *slot = ADDED;
        }
    }

    #[inline]
    fn listing(&self, map: HeaderMap) -> Option<&Listing> {
        self.listing.as_deref().filter(|_| self.map == Some(map))
    }
}

impl Listing {
    #[inline]
    fn slot(&self, digest: u8) -> u8 {
        self.slots
            .get(usize::from(digest))
            .copied()
            .unwrap_or(ADDED)
    }

    /// The headers of a name, in the map's order; `slot` is that of its digest. Only while fresh.
    #[inline]
    fn of(&self, slot: u8, name: &[u8]) -> impl Iterator<Item = &EnvoyHeader> {
        let place = |slot: u8| usize::from(slot).checked_sub(1);
        let mut slot = slot;
        std::iter::from_fn(move || {
            let index = place(slot)?;
            slot = self.next.get(index).copied().unwrap_or_default();
            self.headers.get(index)
        })
        .filter(move |header| {
            // SAFETY: Envoy filled the buffers in, and nothing has changed the map since.
            let own = unsafe { header.name.bytes() };
            own == name || own.eq_ignore_ascii_case(name)
        })
    }
}

/// A few bits of a name, the same for names that differ in case only.
#[inline]
fn digest(name: &[u8]) -> u8 {
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
    (mixed >> 56) as u8
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

    fn values(known: &KnownHeaders, name: &str) -> Option<Vec<String>> {
        let name = name.as_bytes();
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
        known.list(headers(&[("a", "1"), ("content-type", "2"), ("a", "3")]));
        assert_eq!(values(&known, "A").unwrap(), ["1", "3"]);
        assert_eq!(values(&known, "Content-Type").unwrap(), ["2"]);
        assert_eq!(values(&known, "b").unwrap(), [""; 0]);
        assert_eq!(known.count(HeaderMap::ResponseHeaders, b"a"), None);
        assert!(known.is_absent(MAP, b"b") && !known.is_absent(MAP, b"a"));
    }

    #[test]
    fn changes_leave_only_what_is_absent() {
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        known.list(headers(&[("a", "1")]));
        known.changes(MAP, Some(b"x-new"));
        assert_eq!(values(&known, "a"), None);
        assert_eq!(values(&known, "X-New"), None);
        assert_eq!(values(&known, "x-other").unwrap(), [""; 0]);
        known.changes(HeaderMap::ResponseHeaders, Some(b"x-other"));
        assert_eq!(values(&known, "x-other").unwrap(), [""; 0]);
    }

    #[test]
    fn another_map_is_another_matter() {
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        known.list(headers(&[("a", "1")]));
        assert!(!known.is_worth_listing(HeaderMap::ResponseHeaders));
        assert_eq!(values(&known, "b"), None);
    }

    #[test]
    fn digests_do_not_depend_on_case_and_spread() {
        assert_eq!(digest(b"X-Request-Id"), digest(b"x-request-id"));
        assert_eq!(digest(b"Te"), digest(b"te"));
        let mut digests: Vec<u8> = (0..64)
            .map(|number| digest(format!("x-header-{number}").as_bytes()))
            .collect();
        digests.sort_unstable();
        digests.dedup();
        assert!(digests.len() > 40, "{}", digests.len());
    }

    #[test]
    fn headers_whose_digests_meet_are_told_apart() {
        let names: Vec<&'static str> = (0..1000)
            .map(|number| &*format!("h{number}").leak())
            .filter(|name: &&str| digest(name.as_bytes()) == digest(b"h0"))
            .collect();
        assert!(names.len() > 2);
        let list: Vec<(&str, &str)> = names.iter().map(|name| (*name, *name)).collect();
        let mut known = KnownHeaders::default();
        known.is_worth_listing(MAP);
        known.list(headers(list.leak()));
        for name in names {
            assert_eq!(values(&known, name).unwrap(), [name]);
        }
    }
}
