//! Lanes as the first links of a chain: [`outrider_lanes`] with a stream's headers, Envoy's counters and a clock.
//!
//! A link sees request headers and the stream's end. What it holds in the table of traces is kept by worker, so that no
//! worker waits for another one.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use outrider_lanes::{
    Carrier, Group, Handled, Hold, Holds, LaneMemory, LaneNames, Outcome, Proxy, Request,
    RequestHeaders, Role, Rules, Seconds, TraceTable,
};
use outrider_plugin_api::{
    Attribute, Call, ConfiguredPlugin, Decision, Direction, FailureAction, FailureLogHandle,
    FailurePolicy, Fault, FaultLog, HeaderMap, Interest, Link, LinkMetrics, MetricId, MetricKind,
    Metrics, Permissions, Scalar, Slot, Stream, Wake,
};
use outrider_plugin_formats::{LaneGroup, LaneRole, LaneUse};

use crate::circuits;
use crate::document::Refusal;
use crate::hops::{self, Place, PlaceCounts};
use crate::last_faults;
use crate::metrics::Definer;
use crate::plugin;

/// Traces that a process has room for: 4 MiB.
const TRACES: usize = 131_072;
/// Name of the link, for messages. No plugin has a slash in its name.
const NAME: &str = "outrider/lanes";

/// Live traces of the process: inbound and outbound requests of a sidecar come through different filters.
pub(crate) static MEMORY: LazyLock<LaneMemory> = LazyLock::new(|| LaneMemory {
    names: LaneNames::default(),
    traces: TraceTable::new(TRACES),
});

static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Seconds since the first call, from 1.
fn now() -> Seconds {
    let elapsed = ORIGIN.elapsed().as_secs();
    Seconds::try_from(elapsed)
        .unwrap_or(Seconds::MAX)
        .saturating_add(1)
}

/// Groups of lanes of one filter configuration, with the links that scopes use.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    groups: BTreeMap<String, LaneGroup>,
    gateway: Vec<LaneUse>,
    workers: usize,
    /// By group and role: most routes have the same.
    links: Mutex<BTreeMap<String, Link>>,
}

impl Lanes {
    pub(crate) fn new(groups: Vec<LaneGroup>, gateway: Vec<LaneUse>, workers: usize) -> Self {
        Self {
            groups: groups
                .into_iter()
                .map(|group| (group.name.clone(), group))
                .collect(),
            gateway,
            workers,
            links: Mutex::default(),
        }
    }

    /// Links of a scope, in the order of its list; an empty list stands for the gateway's. A group that is not there is a
    /// refusal, and its link fails closed: clients might choose their lane themselves.
    pub(crate) fn links(&self, scope: &str, uses: &[LaneUse]) -> (Vec<Link>, Vec<Refusal>) {
        let uses = if uses.is_empty() { &self.gateway } else { uses };
        let mut refusals = Vec::new();
        let mut made = Vec::new();
        for one in uses {
            match self.link(scope, one) {
                Ok(link) => made.push(link),
                Err(refusal) => {
                    refusals.push(refusal);
                    made.push(plugin::missing(NAME));
                }
            }
        }
        (made, refusals)
    }

    fn link(&self, scope: &str, lane: &LaneUse) -> Result<Link, Refusal> {
        let key = format!("{lane:?}");
        // The map is valid whatever panicked while it was locked. Workers come here only if a chain is missing.
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&key) {
            return Ok(link.clone());
        }
        let Some(group) = self.groups.get(&lane.group) else {
            return Err(Refusal::new(format!(
                "{scope} is part of the lanes `{}`, which the gateway's configuration does not have",
                lane.group
            )));
        };
        let link = link_of(LaneLink::new(group, lane, self.workers)?);
        links.insert(key, link.clone());
        Ok(link)
    }
}

fn link_of(lanes: LaneLink) -> Link {
    Link {
        name: NAME.into(),
        plugin: Some(Arc::new(lanes)),
        interest: Interest {
            request_headers: true,
            ..Interest::default()
        },
        failure_policy: FailurePolicy::new(500, |_| FailureAction::Closed),
        metrics: LinkMetrics {
            calls: None,
            replies: None,
            errors: Default::default(),
            circuit_open: None,
            circuit_opened: None,
            log_dropped: None,
        },
        faults: FailureLogHandle::new(FaultLog::new(last_faults::of(NAME))),
        times: None,
        circuit: circuits::none(),
        permissions: Arc::new(Permissions::all()),
        logs: Arc::default(),
        memory: Arc::default(),
    }
}

/// One group and role.
#[derive(Debug)]
struct LaneLink {
    proxy: Proxy<'static>,
    /// Seconds for which a trace is remembered after its last request.
    remember: Seconds,
    counters: Counters,
    place: Place,
    /// By worker.
    counts: PlaceCounts,
    /// By worker.
    kept: Box<[Mutex<KeptHolds>]>,
}

impl LaneLink {
    fn new(group: &LaneGroup, lane: &LaneUse, workers: usize) -> Result<Self, Refusal> {
        let role = &lane.role;
        let word = match role {
            LaneRole::Edge => "edge",
            LaneRole::Inbound => "inbound",
            LaneRole::Outbound => "outbound",
            LaneRole::Stamp(_) => "stamp",
        };
        let place = Place::new(&group.name, word, lane.place.as_ref());
        Ok(Self {
            counts: hops::counts_of(&place, workers),
            place,
            proxy: Proxy::new(
                Group {
                    name: group.name.clone(),
                    header: group.header.clone(),
                    baggage: group.baggage.clone(),
                    fallback: group.fallback.clone(),
                    baseline: group.baseline.clone(),
                    carriers: group
                        .correlate
                        .iter()
                        .map(|header| Carrier::of_header(header))
                        .collect(),
                    carry: group.carry.clone(),
                },
                role_of(group, lane)?,
                &MEMORY,
            ),
            remember: group.remember,
            counters: Counters::define(&group.name),
            kept: (0..workers.max(1)).map(|_| Mutex::default()).collect(),
        })
    }

    /// Asks for the baseline's version where the lane's has no usable host: another route has to take requests with this
    /// header. Where none does, such as for hosts outside of the group, nothing changes.
    fn fall_back(&self, stream: &mut dyn Stream, header: &str) -> bool {
        if stream.usable_hosts() > 0 {
            return false;
        }
        let before = cluster_of(stream);
        StreamRequest(stream).set(header, b"1");
        stream.clear_route_cache();
        if cluster_of(stream) == before {
            StreamRequest(stream).remove(header);
            stream.clear_route_cache();
            return false;
        }
        if let Some(counter) = self.counters.of(Outcome::FellBack) {
            stream.add_metric(counter, 1);
        }
        true
    }

    /// Counts the request for reports, and keeps what was done if it is followed.
    fn note(&self, stream: &dyn Stream, handled: &Handled, falls_back: bool) {
        let is_lost = matches!(handled.outcome, Outcome::Unmatched | Outcome::Ambiguous);
        if let Some(counts) = self.counts.get(stream.worker()) {
            counts.add(handled.lane, falls_back, is_lost);
        }
        if let Some(trace) = handled.probe {
            let host = stream.header(HeaderMap::RequestHeaders, b":authority", 0);
            let lane = handled.lane.map_or("", |lane| MEMORY.names.name(lane));
            let outcome = OUTCOMES.iter().find(|(one, _)| *one == handled.outcome);
            let outcome = outcome.map_or("", |(_, word)| *word);
            let host = host.unwrap_or_default();
            hops::keep(trace, &self.place, host, lane, outcome, falls_back);
        }
    }

    fn kept(&self, worker: usize) -> Option<MutexGuard<'_, KeptHolds>> {
        let kept = self.kept.get(worker)?;
        // The lists are valid whatever panicked while they were locked.
        Some(kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Holds in the slot of a stream, which [`LaneLink::take`] takes out again.
    fn keep(&self, holds: Holds, worker: usize) -> Slot {
        if let Some(slot) = slot_of(&holds) {
            return slot;
        }
        if let Some(mut kept) = self.kept(worker) {
            return Slot(kept.keep(holds) | IN_LIST);
        }
        // Not a worker: nothing would give them back.
        MEMORY.release(holds, now(), self.remember);
        Slot::default()
    }

    fn take(&self, slot: Slot, worker: usize) -> Holds {
        if slot.0 & IN_LIST == 0 {
            return holds_of(slot);
        }
        let kept = self.kept(worker);
        kept.map(|mut kept| kept.take(slot.0 & !IN_LIST))
            .unwrap_or_default()
    }
}

fn role_of(group: &LaneGroup, lane: &LaneUse) -> Result<Role, Refusal> {
    Ok(match &lane.role {
        LaneRole::Edge => {
            Role::Edge(Rules::of(group).map_err(|error| Refusal::new(error.to_string()))?)
        }
        LaneRole::Inbound => Role::Inbound(lane.place.as_ref().map(|place| place.version.clone())),
        LaneRole::Outbound => Role::Outbound,
        LaneRole::Stamp(lane) => Role::OutboundStrict(lane.clone()),
    })
}

/// In a stream's slot: the holds are in the worker's list, at the place that the other bits are.
const IN_LIST: u64 = 1 << 63;

/// One hold or two, as most requests have, by their numbers from 1; `None` if there are more.
fn slot_of(holds: &[Hold]) -> Option<Slot> {
    let number = |hold: &Hold| {
        let number = hold.number().checked_add(1)?;
        (number < 1 << 31).then_some(u64::from(number))
    };
    match holds {
        [] => Some(Slot::default()),
        [one] => Some(Slot(number(one)?)),
        [one, other] => Some(Slot(number(one)? | number(other)? << 32)),
        _ => None,
    }
}

fn holds_of(slot: Slot) -> Holds {
    let [one, other] = [slot.0 & u64::from(u32::MAX), slot.0 >> 32];
    [one, other]
        .into_iter()
        .filter_map(|number| u32::try_from(number).ok()?.checked_sub(1))
        .map(Hold::from_number)
        .collect()
}

impl ConfiguredPlugin for LaneLink {
    fn call(
        &self,
        slot: &mut Slot,
        _call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        let handled = {
            let mut request = StreamRequest(stream);
            self.proxy.handle(&mut request, now())
        };
        for outcome in [Some(handled.outcome), handled.carried]
            .into_iter()
            .flatten()
        {
            if let Some(counter) = self.counters.of(outcome) {
                stream.add_metric(counter, 1);
            }
        }
        if handled.is_changed {
            stream.clear_route_cache();
        }
        let falls_back = match &self.proxy.group().fallback {
            Some(header) if handled.is_in_lane => self.fall_back(stream, header),
            _ => false,
        };
        self.note(stream, &handled, falls_back);
        *slot = self.keep(handled.holds, stream.worker());
        Ok(Decision::Continue)
    }

    fn resume(
        &self,
        _slot: &mut Slot,
        _direction: Direction,
        _wake: Wake<'_>,
        _stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        Ok(Decision::Continue)
    }

    fn end(&self, slot: Slot, worker: usize) {
        if slot.0 != 0 {
            MEMORY.release(self.take(slot, worker), now(), self.remember);
        }
    }
}

/// Cluster that the request's route leads to.
fn cluster_of(stream: &dyn Stream) -> Option<Vec<u8>> {
    match stream.attribute(Attribute::XdsClusterName)? {
        Scalar::String(name) => Some(name.to_vec()),
        _ => None,
    }
}

/// Holds of those streams of one worker that have more than a slot has room for.
#[derive(Debug, Default)]
struct KeptHolds {
    streams: Vec<Holds>,
    /// Places of `streams` that no stream has.
    free: Vec<usize>,
}

impl KeptHolds {
    /// Returns the number of the place.
    fn keep(&mut self, holds: Holds) -> u64 {
        let place = self.free.pop().unwrap_or(self.streams.len());
        match self.streams.get_mut(place) {
            Some(free) => *free = holds,
            None => self.streams.push(holds),
        }
        place as u64
    }

    fn take(&mut self, number: u64) -> Holds {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        let holds = self.streams.get_mut(place).map(std::mem::take);
        let holds = holds.unwrap_or_default();
        // No stream keeps nothing: the place is given back once.
        if !holds.is_empty() {
            self.free.push(place);
        }
        holds
    }
}

/// Counters of a group: `outrider.lanes.<group>.<outcome>`.
#[derive(Debug)]
struct Counters([Option<MetricId>; OUTCOMES.len()]);

/// Outcomes with their names in Envoy's statistics.
const OUTCOMES: [(Outcome, &str); 16] = [
    (Outcome::Entered, "entered"),
    (Outcome::Baseline, "baseline"),
    (Outcome::Remembered, "remembered"),
    (Outcome::NoTraceId, "no_trace_id"),
    (Outcome::TableFull, "table_full"),
    (Outcome::Conflict, "conflict"),
    (Outcome::InvalidName, "invalid_name"),
    (Outcome::Passed, "passed"),
    (Outcome::Restored, "restored"),
    (Outcome::Unmatched, "unmatched"),
    (Outcome::Ambiguous, "ambiguous"),
    (Outcome::Stamped, "stamped"),
    (Outcome::CarryTooLong, "carry_too_long"),
    (Outcome::Carried, "carried"),
    (Outcome::CarryLost, "carry_lost"),
    (Outcome::FellBack, "fallback"),
];

impl Counters {
    fn define(group: &str) -> Self {
        Self(OUTCOMES.map(|(_, word)| {
            Definer.define(
                MetricKind::Counter,
                &format!("outrider.lanes.{group}.{word}"),
            )
        }))
    }

    fn of(&self, outcome: Outcome) -> Option<MetricId> {
        let place = OUTCOMES.iter().position(|(one, _)| *one == outcome)?;
        self.0.get(place).copied().flatten()
    }
}

/// Request headers of a stream.
struct StreamRequest<'s>(&'s mut dyn Stream);

impl Request for StreamRequest<'_> {
    fn visit_header(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        let map = HeaderMap::RequestHeaders;
        for index in 0..self.0.header_count(map, name.as_bytes()) {
            if let Some(value) = self.0.header(map, name.as_bytes(), index) {
                visit(value);
            }
        }
    }

    fn path(&self) -> &[u8] {
        self.0
            .header(HeaderMap::RequestHeaders, b":path", 0)
            .unwrap_or_default()
    }
}

impl RequestHeaders for StreamRequest<'_> {
    fn headers<'s>(&'s self, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.0.headers(HeaderMap::RequestHeaders, visit);
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        let map = HeaderMap::RequestHeaders;
        let is_set = self.0.set_header(map, name.as_bytes(), value);
        if is_set.is_err() {
            // Without room for it, the baseline serves, and not the lane that was there.
            self.remove(name);
        }
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        // Without room for it, the request goes without.
        let _ = self
            .0
            .add_header(HeaderMap::RequestHeaders, name.as_bytes(), value);
    }

    fn remove(&mut self, name: &str) {
        // Only headers of the connection stay, and `outrider check` lets none of them carry a lane.
        let _ = self
            .0
            .remove_header(HeaderMap::RequestHeaders, name.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(numbers: &[u32]) -> Holds {
        numbers
            .iter()
            .map(|number| Hold::from_number(*number))
            .collect()
    }

    #[test]
    fn one_hold_or_two_are_in_the_slot() {
        for numbers in [&[][..], &[0], &[7], &[0, 0], &[5, 1 << 25], &[1 << 25, 0]] {
            let slot = slot_of(&holds(numbers)).unwrap();
            assert_eq!(slot.0 & IN_LIST, 0);
            assert_eq!(slot == Slot::default(), numbers.is_empty());
            assert_eq!(holds_of(slot), holds(numbers));
        }
        for numbers in [&[1, 2, 3][..], &[u32::MAX], &[0, 1 << 31]] {
            assert!(slot_of(&holds(numbers)).is_none());
        }
    }

    #[test]
    fn places_of_streams_are_used_again_and_each_is_taken_once() {
        let mut kept = KeptHolds::default();
        let first = kept.keep(holds(&[1, 2, 3]));
        let second = kept.keep(holds(&[4]));
        assert_ne!(first, second);
        assert_eq!(kept.take(first).len(), 3);
        assert_eq!(kept.keep(holds(&[5])), first);
        assert_eq!(kept.take(second).len(), 1);
        assert_eq!(kept.take(first).len(), 1);
        assert_eq!(kept.streams.len(), 2);
        assert!(kept.take(first).is_empty() && kept.take(99).is_empty());
        assert_eq!(kept.free.len(), 2);
    }

    #[test]
    fn scope_without_lanes_has_the_gateway_s_and_unknown_groups_are_refused() {
        let group = LaneGroup {
            name: "shop".to_owned(),
            header: "x-lane".to_owned(),
            baggage: None,
            fallback: None,
            baseline: "v1".to_owned(),
            correlate: vec!["traceparent".to_owned()],
            carry: Vec::new(),
            remember: 10,
            sticky: Vec::new(),
            rules: Vec::new(),
        };
        let of = |name: &str, role| LaneUse {
            group: name.to_owned(),
            role,
            place: None,
        };
        let lanes = Lanes::new(vec![group], vec![of("shop", LaneRole::Inbound)], 2);
        let (base, refusals) = lanes.links("gateway", &[]);
        assert_eq!((base.len(), refusals.len()), (1, 0));
        let (own, _) = lanes.links("project a", &[of("shop", LaneRole::Outbound)]);
        let same = |one: &Link, other: &Link| {
            Arc::ptr_eq(one.plugin.as_ref().unwrap(), other.plugin.as_ref().unwrap())
        };
        assert!(!same(base.first().unwrap(), own.first().unwrap()));
        let (again, _) = lanes.links("project b", &[of("shop", LaneRole::Outbound)]);
        assert!(same(again.first().unwrap(), own.first().unwrap()));

        let (none, refusals) = lanes.links("project c", &[of("shoe", LaneRole::Edge)]);
        assert!(none.first().unwrap().plugin.is_none());
        let said: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "project c is part of the lanes `shoe`, which the gateway's configuration does not have"
            ]
        );
    }
}
