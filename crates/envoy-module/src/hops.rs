//! What proxies of a chain did with lanes: requests by lane, and the hops of traced requests, for the page
//! `/outrider/lanes`.
//!
//! Counts are kept by worker, as the holds of lanes are. Hops are kept for requests alone whose trace id begins with
//! [`PROBE`](outrider_lanes::PROBE): anybody can send such ids, so there is room for a fixed number of hops, the oldest of
//! which give way, and a worker that finds the list taken drops its hop.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use outrider_plugin_formats::LanePlace;
use serde::Serialize;

/// Lanes that are counted by name at one place; requests of others are counted together.
const MOST_LANES: usize = 64;
/// Name under which requests of further lanes are counted. No lane has it.
const OTHERS: &str = "*";
/// Places that are counted; more than that takes a hostile control plane.
const MOST_PLACES: usize = 1024;
/// Hops that are kept.
const MOST_HOPS: usize = 1024;
/// Longest host of a hop, in bytes.
const LONGEST_HOST: usize = 256;

/// Where in a chain a proxy handles requests.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Place {
    pub(crate) group: String,
    pub(crate) role: &'static str,
    /// Service and version of the proxy, where the configuration says them.
    pub(crate) service: Option<String>,
    pub(crate) version: Option<String>,
}

impl Place {
    pub(crate) fn new(group: &str, role: &'static str, place: Option<&LanePlace>) -> Self {
        Self {
            group: group.to_owned(),
            role,
            service: place.map(|place| place.service.clone()),
            version: place.map(|place| place.version.clone()),
        }
    }
}

/// Requests of one lane at one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Count {
    pub(crate) requests: u64,
    /// Of these, those that the proxy sent to the baseline's version for want of a usable host.
    pub(crate) fallbacks: u64,
}

/// Requests at one place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    lanes: BTreeMap<String, Count>,
    /// Requests whose lane is not known.
    lost: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, lane: &str, fell_back: bool, is_lost: bool) {
        self.lost += u64::from(is_lost);
        let name = if self.lanes.contains_key(lane) || self.lanes.len() < MOST_LANES {
            lane
        } else {
            OTHERS
        };
        if !self.lanes.contains_key(name) {
            self.lanes.insert(name.to_owned(), Count::default());
        }
        if let Some(count) = self.lanes.get_mut(name) {
            count.requests += 1;
            count.fallbacks += u64::from(fell_back);
        }
    }

    fn add_all(&mut self, other: &Self) {
        self.lost += other.lost;
        for (lane, count) in &other.lanes {
            let sum = self.lanes.entry(lane.clone()).or_default();
            sum.requests += count.requests;
            sum.fallbacks += count.fallbacks;
        }
    }
}

/// Counts of one place, by worker.
pub(crate) type PlaceCounts = Arc<[Mutex<Counts>]>;

/// All places of the process, whatever generation they belong to.
static PLACES: Mutex<BTreeMap<Place, PlaceCounts>> = Mutex::new(BTreeMap::new());
static HOPS: Mutex<VecDeque<Hop>> = Mutex::new(VecDeque::new());

/// The counts of a place: those that an earlier generation began.
pub(crate) fn counts_of(place: &Place, workers: usize) -> PlaceCounts {
    // The map is valid whatever panicked while it was locked.
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = places.get(place) {
        return Arc::clone(known);
    }
    let counts: PlaceCounts = (0..workers.max(1)).map(|_| Mutex::default()).collect();
    if places.len() < MOST_PLACES {
        places.insert(place.clone(), Arc::clone(&counts));
    }
    counts
}

/// What one proxy did with a traced request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Hop {
    /// Id of the trace, in 32 hexadecimal digits.
    pub(crate) trace: String,
    /// Microseconds since 1970.
    pub(crate) at: u64,
    #[serde(flatten)]
    pub(crate) place: Place,
    /// Host of the request.
    pub(crate) host: String,
    /// Lane with which the request goes on.
    pub(crate) lane: String,
    /// What the proxy did: the name of the counter.
    pub(crate) outcome: &'static str,
    /// Whether it sent the request to the baseline's version for want of a usable host.
    pub(crate) fallback: bool,
}

/// Keeps a hop, unless another thread is at the list.
pub(crate) fn keep(
    trace: u128,
    place: &Place,
    host: &[u8],
    lane: &str,
    outcome: &'static str,
    fallback: bool,
) {
    let Ok(mut hops) = HOPS.try_lock() else {
        return;
    };
    if hops.len() >= MOST_HOPS {
        hops.pop_front();
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    hops.push_back(Hop {
        trace: format!("{trace:032x}"),
        at: since.map_or(0, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        }),
        place: place.clone(),
        host: String::from_utf8_lossy(host.get(..LONGEST_HOST).unwrap_or(host)).into_owned(),
        lane: lane.to_owned(),
        outcome,
        fallback,
    });
}

/// What the page shows of a place.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PlaceState {
    #[serde(flatten)]
    pub(crate) place: Place,
    /// Requests by lane.
    pub(crate) lanes: BTreeMap<String, Count>,
    /// Requests whose lane is not known: those that are not of a trace that is remembered, or of an ambiguous one.
    pub(crate) lost: u64,
}

/// All places, in order.
pub(crate) fn places() -> Vec<PlaceState> {
    let places = PLACES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    places
        .into_iter()
        .map(|(place, counts)| {
            let mut sum = Counts::default();
            for one in counts.iter() {
                sum.add_all(&one.lock().unwrap_or_else(PoisonError::into_inner).clone());
            }
            PlaceState {
                place,
                lanes: sum.lanes,
                lost: sum.lost,
            }
        })
        .collect()
}

/// The hops that are kept of one trace, or of all, oldest first.
pub(crate) fn hops(trace: Option<&str>) -> Vec<Hop> {
    let hops = HOPS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    hops.into_iter()
        .filter(|hop| trace.is_none_or(|trace| hop.trace == trace))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_beyond_the_most_are_counted_together() {
        let mut counts = Counts::default();
        for number in 0..100 {
            counts.add(&format!("lane-{number}"), number == 0, number == 1);
            counts.add("lane-0", false, false);
        }
        assert_eq!(counts.lanes.len(), MOST_LANES + 1);
        let of = |lane: &str| counts.lanes.get(lane).copied().unwrap();
        assert_eq!((of("lane-0").requests, of("lane-0").fallbacks), (101, 1));
        assert_eq!(of(OTHERS).requests, 36);
        assert_eq!(counts.lost, 1);
    }

    #[test]
    fn old_hops_give_way() {
        let place = Place::new("old-hops", "edge", None);
        for trace in 0..2 * MOST_HOPS as u128 {
            keep(trace, &place, &[b'a'; 1000], "fr", "entered", false);
        }
        assert!(hops(None).len() <= MOST_HOPS);
        let last = format!("{:032x}", 2 * MOST_HOPS - 1);
        let kept = hops(Some(&last));
        assert_eq!(kept.first().map(|hop| hop.host.len()), Some(LONGEST_HOST));
    }
}
