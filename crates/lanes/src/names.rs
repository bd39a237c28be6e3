//! Numbers for the names of lanes, so that a trace in the table takes 16 bytes whatever its lane is called.
//!
//! A sidecar keeps lanes that its configuration does not know: the chain may go on to a service that has them. So names
//! come from requests as well, and the number of different names in one process is bounded. A name stays for good:
//! requests that are under way, and traces in the table, refer to it.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;

/// Longest name of a lane, in bytes: that of a DNS label, and of a label's value in Kubernetes.
pub const LONGEST_NAME: usize = 63;

/// Different names of lanes that one process knows.
pub const MOST_NAMES: usize = 4096;

/// Twice as many places as names, so that a search is short.
const PLACES: usize = 2 * MOST_NAMES;

/// Number of a lane's name in one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(u16);

impl LaneId {
    /// The number, which is above 0.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Inverse of [`LaneId::bits`]; `None` for 0.
    pub fn from_bits(bits: u16) -> Option<Self> {
        (bits > 0).then_some(Self(bits))
    }
}

/// Why a name of a lane has no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is not a name.
    #[error(
        "the name of a lane has 1 to {LONGEST_NAME} letters, digits, `-`, `_` and `.`, and begins and ends with a letter or \
         digit"
    )]
    Invalid,
    /// The process has met too many different names.
    #[error(
        "this process has met {MOST_NAMES} names of lanes, and learns no more until it is started again"
    )]
    Full,
}

/// Names of lanes with their numbers. Adding and reading take no lock.
#[derive(Debug)]
pub struct LaneNames {
    /// Open addressing: a name is at the place of its hash, or at the first free one behind it.
    places: Box<[OnceBox<String>]>,
    /// Places in use, and those that a thread is about to use.
    count: AtomicUsize,
    /// With a secret key: clients cannot choose names that are found late.
    hashes: RandomState,
}

impl Default for LaneNames {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| OnceBox::new()).collect(),
            count: AtomicUsize::new(0),
            hashes: RandomState::new(),
        }
    }
}

impl LaneNames {
    /// Returns the number of a lane's name, and gives it one if it is new.
    ///
    /// # Errors
    /// The name is not valid, or there are too many.
    pub fn add(&self, name: &[u8]) -> Result<LaneId, NameError> {
        let name = valid(name).ok_or(NameError::Invalid)?;
        let begin = self.place_for(name);
        if let Some(known) = self.find_from(begin, name) {
            return Ok(known);
        }
        let mut is_counted = false;
        for (number, place) in self.places_from(begin) {
            if place.get().is_none() && !is_counted {
                if self.count.fetch_add(1, Ordering::Relaxed) >= MOST_NAMES {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return Err(NameError::Full);
                }
                is_counted = true;
            }
            // Another thread may add a name here first, this one or another.
            let is_new = is_counted && place.set(Box::new(name.to_owned())).is_ok();
            if place.get().is_some_and(|known| known == name) {
                if is_counted && !is_new {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                return Ok(number);
            }
        }
        Err(NameError::Full)
    }

    /// Returns the number of a lane's name, or `None` if it has none.
    pub fn find(&self, name: &[u8]) -> Option<LaneId> {
        let name = valid(name)?;
        self.find_from(self.place_for(name), name)
    }

    #[inline]
    fn find_from(&self, begin: usize, name: &str) -> Option<LaneId> {
        let mut place = begin;
        loop {
            if self.places.get(place)?.get()? == name {
                return u16::try_from(place + 1).ok().map(LaneId);
            }
            // There are more places than names, so that one is empty.
            place = (place + 1) % PLACES;
        }
    }

    /// Returns the name of a lane, or an empty text for a number of another process.
    pub fn name(&self, lane: LaneId) -> &str {
        let place = self.places.get(usize::from(lane.0) - 1);
        place.and_then(OnceBox::get).map_or("", String::as_str)
    }

    /// Place at which the search for a name begins.
    fn place_for(&self, name: &str) -> usize {
        let hash = self.hashes.hash_one(name);
        usize::try_from(hash % PLACES as u64).unwrap_or(0)
    }

    /// All places, from one of them on.
    fn places_from(&self, begin: usize) -> impl Iterator<Item = (LaneId, &OnceBox<String>)> {
        let (before, behind) = self.places.split_at_checked(begin).unwrap_or_default();
        let numbers = (begin..PLACES).chain(0..begin);
        numbers
            .filter_map(|place| u16::try_from(place + 1).ok().map(LaneId))
            .zip(behind.iter().chain(before))
    }
}

/// The name as text, if it is valid.
fn valid(name: &[u8]) -> Option<&str> {
    let is_end = |byte: &u8| byte.is_ascii_alphanumeric();
    let is_inner = |byte: &u8| is_end(byte) || b"-_.".contains(byte);
    let is_valid = name.len() <= LONGEST_NAME
        && name.first().is_some_and(is_end)
        && name.last().is_some_and(is_end)
        && name.iter().all(is_inner);
    str::from_utf8(name).ok().filter(|_| is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn names_keep_their_numbers() {
        let names = LaneNames::default();
        let english = names.add(b"en").unwrap();
        let french = names.add(b"fr").unwrap();
        assert_ne!(english, french);
        assert_eq!(names.add(b"en"), Ok(english));
        assert_eq!(names.find(b"fr"), Some(french));
        assert_eq!(names.find(b"de"), None);
        assert_eq!(names.name(french), "fr");
        assert_eq!(LaneId::from_bits(french.bits()), Some(french));
        assert_eq!(LaneId::from_bits(0), None);
    }

    #[test]
    fn invalid_names_have_no_number() {
        let names = LaneNames::default();
        let long = "a".repeat(LONGEST_NAME + 1);
        for name in [
            "",
            "-fr",
            "fr-",
            "f r",
            "fr\r\nx: y",
            "f/r",
            "é",
            long.as_str(),
        ] {
            assert_eq!(
                names.add(name.as_bytes()),
                Err(NameError::Invalid),
                "{name}"
            );
            assert_eq!(names.find(name.as_bytes()), None);
        }
        for name in ["f", "pr-1234", "v1.2_b", long.get(1..).unwrap()] {
            names.add(name.as_bytes()).unwrap();
        }
    }

    #[test]
    fn names_beyond_the_most_are_refused_and_known_ones_stay() {
        const THREADS: usize = 4;
        let names = LaneNames::default();
        let lane = |number: usize| format!("pr-{number}");
        // Many threads add the same names at once: each counts once, but for the moment in which they meet.
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for number in 0..MOST_NAMES - THREADS {
                        names.add(lane(number).as_bytes()).unwrap();
                    }
                });
            }
        });
        for number in MOST_NAMES - THREADS..MOST_NAMES {
            names.add(lane(number).as_bytes()).unwrap();
        }
        let number = names.add(b"pr-7").unwrap();
        assert_eq!(names.add(b"one-more"), Err(NameError::Full));
        assert_eq!(names.find(b"one-more"), None);
        assert_eq!(names.find(b"pr-7"), Some(number));
        assert_eq!(names.name(number), "pr-7");
    }
}
