//! Lane of one request at one proxy of a call chain: chosen, remembered or restored, by the proxy's role.
//!
//! | role | reads | writes |
//! |---|---|---|
//! | edge | the entry rules | the lane's header; one that comes from outside is dropped |
//! | inbound | the lane's header, or baggage; headers to carry along | the table of traces |
//! | outbound, permissive | the lane's header, baggage, or the table of traces | the lane's header, where the service did not pass it on; and headers that are carried along |
//! | outbound, strict | the sidecar's own lane | the lane's header |
//!
//! Requests of a mirrored lane come with the lane's name behind `mirror.`, the copy to the lane's version and the original to the
//! baseline's: each sidecar knows by its own version which of the two it has.
//!
//! A request of the baseline has no header. The trap: it is remembered all the same, so that a trace id which a
//! client uses for two lanes is noticed when one of them is the baseline.

mod seen;

use outrider_plugin_formats::MIRRORED_LANE;
use smallvec::SmallVec;

use crate::baggage;
use crate::carried::{self, Packed};
use crate::names::{LaneId, LaneNames};
use crate::rules::{Request, Rules};
use crate::table::{Found, GroupKey, Held, Hold, Seconds, TraceKey, TraceTable};
use crate::trace::Carrier;
use seen::{Seen, Watched};

/// Maximum number of ids of one request under which its lane is remembered.
pub const MOST_IDS: usize = 8;

/// Request whose headers can be changed.
pub trait RequestHeaders: Request {
    /// Visits all headers with their names in lower case.
    fn headers<'s>(&'s self, visit: &mut dyn FnMut(&'s [u8], &'s [u8]));

    /// Replaces all values of a header by one.
    fn set(&mut self, name: &str, value: &[u8]);

    /// Adds a value of a header.
    fn add(&mut self, name: &str, value: &[u8]);

    /// Removes all values of a header.
    fn remove(&mut self, name: &str);
}

/// Group of lanes, as all proxies of the chain have it.
#[derive(Debug, Clone)]
pub struct Group {
    /// Name of the group.
    pub name: String,
    /// Header that carries the lane, in lower case.
    pub header: String,
    /// Key of the member of `baggage` that carries the lane, too.
    pub baggage: Option<String>,
    /// Header by which a proxy asks for the baseline's version, in lower case: nobody else may set it.
    pub fallback: Option<String>,
    /// Name of the lane that serves where another one has no version of a service.
    pub baseline: String,
    /// Headers by whose ids a lane is remembered, in the order in which they are asked.
    pub carriers: Vec<Carrier>,
    /// Headers that are carried along unchanged where services do not pass them on, in lower case; those behind the first
    /// [`MOST_CARRIED_HEADERS`] are not.
    pub carry: Vec<String>,
}

/// Role of a proxy in the chain.
#[derive(Debug, Clone)]
pub enum Role {
    /// Gateway to which requests come from outside.
    Edge(Rules),
    /// Sidecar, for requests to its service; with the lane that the service's version belongs to, where that is known.
    Inbound(Option<String>),
    /// Sidecar, for requests of its service: the lane of the request that caused them.
    Outbound,
    /// Sidecar, for requests of its service: the lane that the service's version belongs to.
    OutboundStrict(String),
}

/// Outcome for one request, for counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Edge: a rule gave the request a lane.
    Entered,
    /// The request is the baseline's: no rule, or no header, says otherwise.
    Baseline,
    /// Inbound: the lane is remembered.
    Remembered,
    /// Inbound: the request has no id to remember its lane by.
    NoTraceId,
    /// Inbound: the table of traces is full for at least one of the ids.
    TableFull,
    /// Inbound: another request with the same id has another lane.
    Conflict,
    /// The header's value is not the name of a lane, or one name too many.
    InvalidName,
    /// Outbound: the service passed the header on.
    Passed,
    /// Outbound: the lane was remembered.
    Restored,
    /// Outbound: the request has no id of a trace that is remembered.
    Unmatched,
    /// Outbound: requests of different lanes have the id.
    Ambiguous,
    /// Outbound, strict: the request has the lane of the service's version.
    Stamped,
    /// Inbound: the headers to carry along are too long, and none of them is. Counted beside one of the others.
    CarryTooLong,
    /// Outbound: the request got headers that its service did not pass on. Counted beside one of the others.
    Carried,
    /// Outbound: headers to carry along differ among requests with one id, or have given way to those of later traces.
    /// Counted beside one of the others.
    CarryLost,
    /// Edge and outbound: the lane's version of the service has no usable host, and the baseline's serves. Counted beside
    /// one of the others.
    FellBack,
}

/// Holds of one request on its traces.
pub type Holds = SmallVec<[Hold; 2]>;

/// Result of [`Proxy::handle`].
#[derive(Debug, PartialEq, Eq)]
pub struct Handled {
    /// Outcome for the lane.
    pub outcome: Outcome,
    /// Outcome for headers that are carried along, if there are any.
    pub carried: Option<Outcome>,
    /// Lane with which the request goes on, the baseline's included; `None` if its name has no number.
    pub lane: Option<LaneId>,
    /// Whether a header changed that routes look at, so that the route has to be selected again.
    pub is_changed: bool,
    /// Whether the request leaves in another lane than the baseline.
    pub is_in_lane: bool,
    /// Id of the request's trace, if the request is followed: see [`crate::PROBE`].
    pub probe: Option<u128>,
    /// Holds on the request's traces: [`LaneMemory::release`] has to follow when the request has ended.
    pub holds: Holds,
}

/// Live traces and lane names of one process.
#[derive(Debug)]
pub struct LaneMemory {
    /// Names of lanes.
    pub names: LaneNames,
    /// Live traces.
    pub traces: TraceTable,
}

impl LaneMemory {
    /// Releases the holds of a finished request. Its traces stay in the table for `later` seconds, at least one, for calls
    /// that the service makes after its response.
    pub fn release(&self, holds: Holds, now: Seconds, later: Seconds) {
        for hold in holds {
            self.traces.release(hold, now.saturating_add(later.max(1)));
        }
    }
}

/// A proxy of the chain, in one role of one group.
#[derive(Debug)]
pub struct Proxy<'m> {
    group: Group,
    role: Role,
    memory: &'m LaneMemory,
    key: GroupKey,
    /// Number of the baseline's name.
    baseline: Option<LaneId>,
    watched: Watched,
}

/// What becomes of a request.
struct Verdict<'v> {
    outcome: Outcome,
    /// Lane with which the request goes on, and its number; `None` for the baseline.
    lane: Option<(&'v str, Option<LaneId>)>,
    /// Whether the request has to say so.
    is_written: bool,
    probe: Option<u128>,
    holds: Holds,
    /// Headers that were carried along.
    headers: Packed,
    carried: Option<Outcome>,
}

impl<'v> Verdict<'v> {
    fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            lane: None,
            is_written: false,
            probe: None,
            holds: Holds::new(),
            headers: Packed::new(),
            carried: None,
        }
    }

    /// The request has to name the lane; `None` for the baseline.
    fn written(outcome: Outcome, lane: Option<(&'v str, Option<LaneId>)>) -> Self {
        Self {
            lane,
            is_written: true,
            ..Self::new(outcome)
        }
    }
}

/// What has to change in a request.
#[derive(Default)]
struct Edits {
    /// The header of fallbacks is removed.
    fallback: bool,
    /// The lane's header is set, or removed for the baseline.
    lane: bool,
    /// The request has no header of the lane.
    is_new: bool,
    /// The line that replaces the baggage; an empty one removes it.
    baggage: Option<Vec<u8>>,
    /// Headers that were carried along which the request does not have.
    headers: Packed,
}

impl<'m> Proxy<'m> {
    /// Returns a proxy in a role of a group, with the memory that all proxies of the process share.
    pub fn new(group: Group, role: Role, memory: &'m LaneMemory) -> Self {
        if !group.carry.is_empty() {
            memory.traces.carry();
        }
        Self {
            key: memory.traces.group(&group.name),
            baseline: memory.names.add(group.baseline.as_bytes()).ok(),
            watched: Watched::new(&group),
            group,
            role,
            memory,
        }
    }

    /// The group that the proxy is part of.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Applies the role to the headers of a request.
    pub fn handle(&self, request: &mut dyn RequestHeaders, now: Seconds) -> Handled {
        let (verdict, edits) = {
            let seen = self.watched.look(&*request);
            let verdict = self.decide(&seen, &*request, now);
            let edits = self.edits(&seen, &verdict);
            (verdict, edits)
        };
        if edits.fallback
            && let Some(header) = &self.group.fallback
        {
            request.remove(header);
        }
        match edits.baggage {
            None => {}
            Some(line) if line.is_empty() => request.remove(seen::BAGGAGE),
            Some(line) => request.set(seen::BAGGAGE, &line),
        }
        if edits.lane {
            match verdict.lane {
                // An addition spares Envoy the search for what is to be replaced.
                Some((lane, _)) if edits.is_new => {
                    request.add(&self.group.header, lane.as_bytes());
                }
                Some((lane, _)) => request.set(&self.group.header, lane.as_bytes()),
                None => request.remove(&self.group.header),
            }
        }
        let mut carried = verdict.carried;
        for (place, value) in carried::unpack(&edits.headers) {
            if let Some(name) = self.group.carry.get(usize::from(place)) {
                request.add(name, value);
                carried = Some(Outcome::Carried);
            }
        }
        Handled {
            outcome: verdict.outcome,
            carried,
            lane: verdict.lane.map_or(self.baseline, |(_, number)| number),
            is_changed: edits.fallback || edits.lane,
            is_in_lane: verdict.lane.is_some() && !matches!(self.role, Role::Inbound(_)),
            probe: verdict.probe,
            holds: verdict.holds,
        }
    }

    fn decide(&self, seen: &Seen<'_>, request: &dyn Request, now: Seconds) -> Verdict<'_> {
        let verdict = match &self.role {
            Role::Edge(rules) => {
                let lane = rules.choose(request).map(|rule| rule.lane.as_str());
                let lane = lane.and_then(|lane| self.in_lane(lane));
                let outcome = if lane.is_some() {
                    Outcome::Entered
                } else {
                    Outcome::Baseline
                };
                Verdict::written(outcome, lane)
            }
            Role::Inbound(own) => return self.remember(seen, own.as_deref(), now),
            Role::Outbound => return self.send(seen, now),
            Role::OutboundStrict(lane) => Verdict::written(Outcome::Stamped, self.in_lane(lane)),
        };
        Verdict {
            probe: seen.first_probe(&self.group),
            ..verdict
        }
    }

    /// A lane of the configuration with its number; `None` for the baseline.
    fn in_lane<'v>(&self, lane: &'v str) -> Option<(&'v str, Option<LaneId>)> {
        (lane != self.group.baseline).then(|| (lane, self.memory.names.add(lane.as_bytes()).ok()))
    }

    /// A lane that was remembered, or that a request named.
    fn known(&self, lane: LaneId) -> Option<(&'m str, Option<LaneId>)> {
        (Some(lane) != self.baseline).then(|| (self.memory.names.name(lane), Some(lane)))
    }

    fn remember(&self, seen: &Seen<'_>, own: Option<&str>, now: Seconds) -> Verdict<'_> {
        let name = seen.names_lane(&self.group);
        let mirrored = name.and_then(|name| name.strip_prefix(MIRRORED_LANE.as_bytes()));
        let lane = match (mirrored, name) {
            // It came to the lane's version: this is the copy. The original is the baseline's.
            (Some(lane), _) if own.is_some_and(|own| own.as_bytes() == lane) => {
                self.memory.names.add(lane).ok()
            }
            (Some(_), _) | (None, None) => self.baseline,
            (None, Some(name)) => self.memory.names.add(name).ok(),
        };
        let Some(lane) = lane else {
            // It would be carried on as it is by a service that passes it on, and reach no lane.
            return Verdict::written(Outcome::InvalidName, None);
        };
        let (keys, probe) = self.keys(seen);
        let outcome = if keys.is_empty() {
            Outcome::NoTraceId
        } else {
            Outcome::Remembered
        };
        let mut verdict = Verdict {
            lane: self.known(lane),
            is_written: mirrored.is_some(),
            probe,
            ..Verdict::new(outcome)
        };
        let headers = (!self.group.carry.is_empty()).then(|| seen.packed());
        if headers == Some(None) {
            verdict.carried = Some(Outcome::CarryTooLong);
        }
        // Others of the trace must not get headers in place of those that are too long.
        let headers = headers.map(Option::unwrap_or_default);
        for key in keys {
            match self
                .memory
                .traces
                .hold_with(key, lane, headers.as_deref(), now)
            {
                Held::Held(hold) => verdict.holds.push(hold),
                Held::Conflict(hold) => {
                    verdict.outcome = Outcome::Conflict;
                    verdict.holds.push(hold);
                }
                Held::Full => verdict.outcome = Outcome::TableFull,
            }
        }
        verdict
    }

    /// A request of the service.
    fn send(&self, seen: &Seen<'_>, now: Seconds) -> Verdict<'_> {
        let name = seen.names_lane(&self.group);
        if name.is_some() && self.group.carry.is_empty() {
            return Verdict {
                probe: seen.first_probe(&self.group),
                ..self.pass_on(name.unwrap_or_default())
            };
        }
        let (keys, probe) = self.keys(seen);
        let verdict = match name {
            Some(name) => self.pass_on(name),
            None => self.restore(&keys, now),
        };
        let verdict = Verdict { probe, ..verdict };
        if self.group.carry.is_empty() {
            verdict
        } else {
            self.carry_on(verdict, &keys, now)
        }
    }

    /// The service passed a lane on: what came as baggage becomes the header that routes look at.
    fn pass_on(&self, name: &[u8]) -> Verdict<'_> {
        match self.memory.names.add(name) {
            Ok(lane) => Verdict::written(Outcome::Passed, self.known(lane)),
            Err(_) => Verdict::written(Outcome::InvalidName, None),
        }
    }

    fn restore(&self, keys: &[TraceKey], now: Seconds) -> Verdict<'_> {
        let traces = &self.memory.traces;
        let mut found = keys.iter().map(|key| traces.find(*key, now));
        match found.find(|found| *found != Found::Nothing) {
            Some(Found::Lane(lane)) => Verdict::written(Outcome::Restored, self.known(lane)),
            Some(Found::Ambiguous) => Verdict::new(Outcome::Ambiguous),
            Some(Found::Nothing) | None => Verdict::new(Outcome::Unmatched),
        }
    }

    /// Headers that were carried along with the first of these traces that is remembered.
    fn carry_on<'v>(&self, verdict: Verdict<'v>, keys: &[TraceKey], now: Seconds) -> Verdict<'v> {
        let traces = &self.memory.traces;
        let is_known = |key: &&TraceKey| traces.find(**key, now) != Found::Nothing;
        let Some(key) = keys.iter().find(is_known) else {
            return verdict;
        };
        match traces.carried(*key, now) {
            Some(headers) => Verdict { headers, ..verdict },
            None => Verdict {
                carried: Some(Outcome::CarryLost),
                ..verdict
            },
        }
    }

    /// Keys of the ids that a request has, each once; and one of the ids, if the request is followed.
    fn keys(&self, seen: &Seen<'_>) -> (SmallVec<[TraceKey; MOST_IDS]>, Option<u128>) {
        let (mut keys, mut probe) = (SmallVec::new(), None);
        for id in seen.ids(&self.group) {
            probe = probe.or_else(|| id.probe());
            let key = self.memory.traces.key(self.key, id);
            if keys.len() < MOST_IDS && !keys.contains(&key) {
                keys.push(key);
            }
        }
        (keys, probe)
    }

    fn edits(&self, seen: &Seen<'_>, verdict: &Verdict<'_>) -> Edits {
        let lane = verdict.lane.map(|(lane, _)| lane);
        let baggage = self.group.baggage.as_ref();
        Edits {
            fallback: seen.has_fallback,
            lane: verdict.is_written
                && match lane {
                    None => seen.lanes > 0,
                    Some(lane) => seen.lanes != 1 || seen.lane != Some(lane.as_bytes()),
                },
            is_new: seen.lanes == 0,
            baggage: baggage
                .filter(|_| verdict.is_written)
                .and_then(|key| baggage::with(&seen.baggage, key, lane)),
            headers: seen.missing(&verdict.headers),
        }
    }
}

#[cfg(test)]
mod tests;
