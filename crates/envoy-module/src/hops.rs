//! What proxies of a chain did with lanes: requests by lane, and the hops of traced requests, for the page
//! `/outrider/lanes`.
//!
//! Counts are kept by worker, and only the worker changes them: no worker waits for another one, or for the page. Hops are
//! kept for requests alone whose trace id begins with [`PROBE`](outrider_lanes::PROBE): anybody can send such ids, so there
//! is room for a fixed number of hops, the oldest of which give way, and a worker that finds the list taken drops its hop.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use outrider_lanes::{LaneId, LaneNames};
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

/// Requests of one lane at one place, for the page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Count {
    pub(crate) requests: u64,
    /// Of these, those that the proxy sent to the baseline's version for want of a usable host.
    pub(crate) fallbacks: u64,
}

/// A count that one worker changes.
#[derive(Debug, Default)]
struct Tally(AtomicU64);

impl Tally {
    fn add(&self, amount: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(amount);
        self.0.store(sum, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests of one lane at one place and worker.
#[derive(Debug, Default)]
struct LaneTally {
    /// Number of the lane; 0 before there is one.
    lane: AtomicU16,
    requests: Tally,
    fallbacks: Tally,
}

/// Requests at one place and worker.
#[derive(Debug)]
pub(crate) struct Counts {
    lanes: [LaneTally; MOST_LANES],
    others: LaneTally,
    /// Requests whose lane is not known.
    lost: Tally,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            lanes: std::array::from_fn(|_| LaneTally::default()),
            others: LaneTally::default(),
            lost: Tally::default(),
        }
    }
}

impl Counts {
    /// For the worker alone whose counts these are.
    pub(crate) fn add(&self, lane: Option<LaneId>, fell_back: bool, is_lost: bool) {
        let number = lane.map_or(0, LaneId::bits);
        let mut lanes = self.lanes.iter().filter(|_| number > 0);
        let tally = lanes.find(|tally| {
            let known = tally.lane.load(Ordering::Relaxed);
            if known == 0 {
                tally.lane.store(number, Ordering::Relaxed);
            }
            known == number || known == 0
        });
        let tally = tally.unwrap_or(&self.others);
        tally.requests.add(1);
        tally.fallbacks.add(u64::from(fell_back));
        self.lost.add(u64::from(is_lost));
    }

    /// Adds the counts to those of other workers.
    fn add_to(&self, state: &mut PlaceState, names: &LaneNames) {
        state.lost += self.lost.get();
        for tally in self.lanes.iter().chain([&self.others]) {
            let requests = tally.requests.get();
            if requests == 0 {
                continue;
            }
            let lane = LaneId::from_bits(tally.lane.load(Ordering::Relaxed));
            let name = lane.map_or(OTHERS, |lane| names.name(lane));
            let sum = state.lanes.entry(name.to_owned()).or_default();
            sum.requests += requests;
            sum.fallbacks += tally.fallbacks.get();
        }
    }
}

/// Counts of one place, by worker.
pub(crate) type PlaceCounts = Arc<[Counts]>;

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
    let counts: PlaceCounts = (0..workers.max(1)).map(|_| Counts::default()).collect();
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

/// All places, in order; `names` are the process's names of lanes.
pub(crate) fn places(names: &LaneNames) -> Vec<PlaceState> {
    let places = PLACES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    places
        .into_iter()
        .map(|(place, counts)| {
            let mut state = PlaceState {
                place,
                lanes: BTreeMap::new(),
                lost: 0,
            };
            for one in counts.iter() {
                one.add_to(&mut state, names);
            }
            state
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
        let names = LaneNames::default();
        let id = |name: &str| names.add(name.as_bytes()).ok();
        let place = Place::new("beyond-the-most", "edge", None);
        let counts = counts_of(&place, 2);
        let [one, other] = [0, 1].map(|worker| counts.get(worker).unwrap());
        for number in 0..100 {
            one.add(id(&format!("lane-{number}")), number == 0, number == 1);
            other.add(id("lane-0"), false, false);
        }
        other.add(None, false, false);
        let state = places(&names).into_iter().find(|one| one.place == place);
        let state = state.unwrap();
        assert_eq!(state.lanes.len(), MOST_LANES + 1);
        let of = |lane: &str| state.lanes.get(lane).copied().unwrap();
        assert_eq!((of("lane-0").requests, of("lane-0").fallbacks), (101, 1));
        assert_eq!(of(OTHERS).requests, 37);
        assert_eq!(state.lost, 1);
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
