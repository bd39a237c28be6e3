//! What a proxy looks for in the headers of a request, found in one pass: a look at all headers costs Envoy less than the
//! search for three of them.

use smallvec::SmallVec;

use super::{Group, RequestHeaders};
use crate::baggage;
use crate::carried::{self, MOST_CARRIED_HEADERS, Packed};
use crate::trace::TraceId;

/// Header of W3C Baggage.
pub(super) const BAGGAGE: &str = "baggage";

/// Why a header is looked at.
#[derive(Debug, Clone, Copy)]
enum Part {
    Lane,
    Fallback,
    Baggage,
    /// A trace's id, by the place of its header in the group.
    Id(usize),
    /// A header to carry along, by its place in the group.
    Carry(u8),
}

/// Headers that a proxy looks at.
#[derive(Debug)]
pub(super) struct Watched {
    /// A bit for each length of a name, the last for that and all above.
    lengths: u64,
    names: Vec<(String, Part)>,
}

impl Watched {
    pub(super) fn new(group: &Group) -> Self {
        let mut names = vec![(group.header.clone(), Part::Lane)];
        names.extend(group.fallback.clone().map(|name| (name, Part::Fallback)));
        if group.baggage.is_some() {
            names.push((BAGGAGE.to_owned(), Part::Baggage));
        }
        let ids = group.carriers.iter().enumerate();
        names.extend(ids.map(|(place, carrier)| (carrier.header().to_owned(), Part::Id(place))));
        let carry = (0..).zip(&group.carry).take(MOST_CARRIED_HEADERS);
        names.extend(carry.map(|(place, name)| (name.clone(), Part::Carry(place))));
        let lengths = names.iter().fold(0, |all, (name, _)| all | bit(name.len()));
        Self { lengths, names }
    }

    pub(super) fn look<'r>(&self, request: &'r dyn RequestHeaders) -> Seen<'r> {
        let mut seen = Seen::default();
        request.headers(&mut |name, value| {
            if self.lengths & bit(name.len()) == 0 {
                return;
            }
            for (watched, part) in &self.names {
                if watched.as_bytes() == name {
                    seen.note(*part, value);
                }
            }
        });
        seen.ids.sort_by_key(|(place, _)| *place);
        seen.carry.sort_by_key(|(place, _)| *place);
        seen
    }
}

fn bit(length: usize) -> u64 {
    1 << length.min(63)
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Seen<'r> {
    /// First value of the lane's header.
    pub(super) lane: Option<&'r [u8]>,
    /// Number of its values.
    pub(super) lanes: usize,
    pub(super) has_fallback: bool,
    pub(super) baggage: SmallVec<[&'r [u8]; 2]>,
    /// Values of headers that carry ids, in the group's order.
    ids: SmallVec<[(usize, &'r [u8]); 4]>,
    /// Headers to carry along, in the group's order.
    carry: SmallVec<[(u8, &'r [u8]); 4]>,
}

impl<'r> Seen<'r> {
    fn note(&mut self, part: Part, value: &'r [u8]) {
        match part {
            Part::Lane => {
                self.lane.get_or_insert(value);
                self.lanes += 1;
            }
            Part::Fallback => self.has_fallback = true,
            Part::Baggage => self.baggage.push(value),
            Part::Id(place) => self.ids.push((place, value)),
            Part::Carry(place) => self.carry.push((place, value)),
        }
    }

    /// Lane that the request names: in the header, or else as baggage.
    pub(super) fn names_lane(&self, group: &Group) -> Option<&'r [u8]> {
        let key = group.baggage.as_deref();
        let lane = self.lane.or_else(|| {
            let lines = self.baggage.iter();
            key.and_then(|key| lines.copied().find_map(|line| baggage::value(line, key)))
        });
        lane.filter(|lane| !lane.is_empty())
    }

    /// The headers to carry along; `None` if they are too long.
    pub(super) fn packed(&self) -> Option<Packed> {
        let mut packed = Packed::new();
        let mut all = self.carry.iter();
        all.all(|(place, value)| carried::pack(&mut packed, *place, value))
            .then_some(packed)
    }

    /// Those of some headers that the request does not have.
    pub(super) fn missing(&self, headers: &[u8]) -> Packed {
        let mut packed = Packed::new();
        let missing = carried::unpack(headers)
            .filter(|(place, _)| self.carry.iter().all(|(one, _)| one != place));
        for (place, value) in missing {
            carried::pack(&mut packed, place, value);
        }
        packed
    }

    /// Ids of traces that the request has.
    pub(super) fn ids(&self, group: &Group) -> impl Iterator<Item = TraceId<'r>> {
        self.ids
            .iter()
            .filter_map(|(place, value)| group.carriers.get(*place)?.trace_id(value))
    }

    /// Id in the first header that can have one, if the request is followed.
    pub(super) fn first_probe(&self, group: &Group) -> Option<u128> {
        let carrier = group.carriers.first()?;
        let mut first = self.ids.iter().take_while(|(place, _)| *place == 0);
        first.find_map(|(_, value)| carrier.trace_id(value)?.probe())
    }
}
