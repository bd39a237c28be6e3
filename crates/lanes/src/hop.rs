//! Lane of one request at one proxy of a call chain: chosen, remembered or restored, by the proxy's role.
//!
//! | role | reads | writes |
//! |---|---|---|
//! | edge | the entry rules | the lane's header; one that comes from outside is dropped |
//! | inbound | the lane's header, or baggage | the table of traces |
//! | outbound, permissive | the lane's header, baggage, or the table of traces | the lane's header, where the service did not pass it on |
//! | outbound, strict | the sidecar's own lane | the lane's header |
//!
//! A request of the baseline has no header. The trap: it is remembered all the same, so that a trace id which a
//! client uses for two lanes is noticed when one of them is the baseline.

use crate::baggage;
use crate::names::LaneNames;
use crate::rules::{Request, Rules};
use crate::table::{Found, Held, Hold, Seconds, TraceKey, TraceTable};
use crate::trace::Carrier;

/// Maximum number of ids of one request under which its lane is remembered.
pub const MOST_IDS: usize = 8;

/// Header of W3C Baggage.
const BAGGAGE: &str = "baggage";

/// Request whose headers can be changed.
pub trait RequestHeaders: Request {
    /// Replaces all values of a header by one.
    fn set(&mut self, name: &str, value: &[u8]);

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
}

/// Role of a proxy in the chain.
#[derive(Debug, Clone)]
pub enum Role {
    /// Gateway to which requests come from outside.
    Edge(Rules),
    /// Sidecar, for requests to its service.
    Inbound,
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
    /// Edge and outbound: the lane's version of the service has no usable host, and the baseline's serves. Counted beside
    /// one of the others.
    FellBack,
}

/// Result of [`Group::handle`].
#[derive(Debug, PartialEq, Eq)]
pub struct Handled {
    /// Outcome for the lane.
    pub outcome: Outcome,
    /// Whether a header changed that routes look at, so that the route has to be selected again.
    pub is_changed: bool,
    /// Whether the request leaves in another lane than the baseline.
    pub is_in_lane: bool,
    /// Id of the request's trace, if the request is followed: see [`crate::PROBE`].
    pub probe: Option<u128>,
    /// Holds on the request's traces: [`LaneMemory::release`] has to follow when the request has ended.
    pub holds: Vec<Hold>,
}

impl Handled {
    fn new(outcome: Outcome, is_changed: bool) -> Self {
        Self {
            outcome,
            is_changed,
            is_in_lane: false,
            probe: None,
            holds: Vec::new(),
        }
    }

    fn in_lane(self, lane: Option<&str>) -> Self {
        Self {
            is_in_lane: lane.is_some(),
            ..self
        }
    }
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
    pub fn release(&self, holds: Vec<Hold>, now: Seconds, later: Seconds) {
        for hold in holds {
            self.traces.release(hold, now.saturating_add(later.max(1)));
        }
    }
}

impl Group {
    /// Applies a role to the headers of a request.
    pub fn handle(
        &self,
        role: &Role,
        request: &mut dyn RequestHeaders,
        memory: &LaneMemory,
        now: Seconds,
    ) -> Handled {
        let is_freed = self.remove_fallback(request);
        let handled = self.apply(role, request, memory, now);
        Handled {
            is_changed: handled.is_changed || is_freed,
            probe: handled.probe.or_else(|| match handled.outcome {
                // Their ids were not asked for.
                Outcome::Entered | Outcome::Baseline | Outcome::Passed | Outcome::Stamped => {
                    self.probe(request)
                }
                _ => None,
            }),
            ..handled
        }
    }

    /// Id of the request's trace in the first header that can have one, if the request is followed.
    fn probe(&self, request: &dyn Request) -> Option<u128> {
        let mut probe = None;
        let carrier = self.carriers.first()?;
        request.visit_header(carrier.header(), &mut |value| {
            probe = probe.or_else(|| carrier.trace_id(value)?.probe());
        });
        probe
    }

    /// Removes a request for the baseline's version that is not this proxy's own. Returns whether there was one.
    fn remove_fallback(&self, request: &mut dyn RequestHeaders) -> bool {
        let Some(header) = &self.fallback else {
            return false;
        };
        let mut is_there = false;
        request.visit_header(header, &mut |_| is_there = true);
        if is_there {
            request.remove(header);
        }
        is_there
    }

    fn apply(
        &self,
        role: &Role,
        request: &mut dyn RequestHeaders,
        memory: &LaneMemory,
        now: Seconds,
    ) -> Handled {
        match role {
            Role::Edge(rules) => {
                let lane = rules.choose(request).map(|rule| rule.lane.clone());
                let lane = lane.filter(|lane| *lane != self.baseline);
                let outcome = if lane.is_some() {
                    Outcome::Entered
                } else {
                    Outcome::Baseline
                };
                let is_changed = self.write(request, lane.as_deref());
                Handled::new(outcome, is_changed).in_lane(lane.as_deref())
            }
            Role::Inbound => self.remember(request, memory, now),
            Role::Outbound => self.restore(request, memory, now),
            Role::OutboundStrict(lane) => {
                let lane = Some(lane.as_str()).filter(|lane| *lane != self.baseline);
                Handled::new(Outcome::Stamped, self.write(request, lane)).in_lane(lane)
            }
        }
    }

    fn remember(
        &self,
        request: &mut dyn RequestHeaders,
        memory: &LaneMemory,
        now: Seconds,
    ) -> Handled {
        let (lane, mut outcome) = match self.read(request) {
            None => (
                memory.names.add(self.baseline.as_bytes()),
                Outcome::Remembered,
            ),
            Some(name) => (memory.names.add(&name), Outcome::Remembered),
        };
        let Ok(lane) = lane else {
            // It would be carried on as it is by a service that passes it on, and reach no lane.
            return Handled::new(Outcome::InvalidName, self.write(request, None));
        };
        let (keys, probe) = self.keys(request, memory);
        if keys.is_empty() {
            outcome = Outcome::NoTraceId;
        }
        let mut holds = Vec::with_capacity(keys.len());
        for key in keys {
            match memory.traces.hold(key, lane, now) {
                Held::Held(hold) => holds.push(hold),
                Held::Conflict(hold) => {
                    outcome = Outcome::Conflict;
                    holds.push(hold);
                }
                Held::Full => outcome = Outcome::TableFull,
            }
        }
        Handled {
            outcome,
            is_changed: false,
            is_in_lane: false,
            probe,
            holds,
        }
    }

    fn restore(
        &self,
        request: &mut dyn RequestHeaders,
        memory: &LaneMemory,
        now: Seconds,
    ) -> Handled {
        if let Some(name) = self.read(request) {
            if memory.names.add(&name).is_err() {
                return Handled::new(Outcome::InvalidName, self.write(request, None));
            }
            let name = std::str::from_utf8(&name).ok();
            // What came as baggage becomes the header that routes look at.
            let is_changed = self.write(request, name);
            let lane = name.filter(|name| *name != self.baseline);
            return Handled::new(Outcome::Passed, is_changed).in_lane(lane);
        }
        let (keys, probe) = self.keys(request, memory);
        let found = keys
            .into_iter()
            .map(|key| memory.traces.find(key, now))
            .find(|found| *found != Found::Nothing);
        let handled = match found {
            Some(Found::Lane(lane)) => {
                let name = Some(memory.names.name(lane)).filter(|name| *name != self.baseline);
                Handled::new(Outcome::Restored, self.write(request, name)).in_lane(name)
            }
            Some(Found::Ambiguous) => Handled::new(Outcome::Ambiguous, false),
            Some(Found::Nothing) | None => Handled::new(Outcome::Unmatched, false),
        };
        Handled { probe, ..handled }
    }

    /// Keys of the ids that a request has, each once; and one of the ids, if the request is followed.
    fn keys(&self, request: &dyn Request, memory: &LaneMemory) -> (Vec<TraceKey>, Option<u128>) {
        let (mut keys, mut probe) = (Vec::new(), None);
        for carrier in &self.carriers {
            request.visit_header(carrier.header(), &mut |value| {
                let id = carrier.trace_id(value);
                probe = probe.or_else(|| id?.probe());
                let key = id.map(|id| memory.traces.key(&self.name, id));
                let key = key.filter(|key| keys.len() < MOST_IDS && !keys.contains(key));
                keys.extend(key);
            });
        }
        (keys, probe)
    }

    /// Lane that the request names: in the header, or else as baggage.
    fn read(&self, request: &dyn Request) -> Option<Vec<u8>> {
        let mut value = None;
        request.visit_header(&self.header, &mut |one| {
            value.get_or_insert_with(|| one.to_vec());
        });
        if let (None, Some(key)) = (&value, &self.baggage) {
            request.visit_header(BAGGAGE, &mut |line| {
                value = value
                    .take()
                    .or_else(|| baggage::value(line, key).map(<[u8]>::to_vec));
            });
        }
        value.filter(|value| !value.is_empty())
    }

    /// Sets the lane's header, or removes it for the baseline; and the same as baggage. Returns whether the header changed.
    fn write(&self, request: &mut dyn RequestHeaders, lane: Option<&str>) -> bool {
        if let Some(key) = &self.baggage {
            let mut lines: Vec<Vec<u8>> = Vec::new();
            request.visit_header(BAGGAGE, &mut |line| lines.push(line.to_vec()));
            match baggage::with(&lines, key, lane) {
                None => {}
                Some(line) if line.is_empty() => request.remove(BAGGAGE),
                Some(line) => request.set(BAGGAGE, &line),
            }
        }
        let mut present: Vec<Vec<u8>> = Vec::new();
        request.visit_header(&self.header, &mut |value| present.push(value.to_vec()));
        let is_so = match (lane, present.as_slice()) {
            (None, []) => true,
            (Some(lane), [value]) => lane.as_bytes() == value,
            _ => false,
        };
        if is_so {
            return false;
        }
        match lane {
            Some(lane) => request.set(&self.header, lane.as_bytes()),
            None => request.remove(&self.header),
        }
        true
    }
}

#[cfg(test)]
mod tests;
