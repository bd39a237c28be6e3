//! Chains of services, each behind a sidecar of its own, that pass on nothing but a trace's id.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::rules::{Condition, Part, Rule, Test, WHOLE};

type Headers = BTreeMap<String, Vec<String>>;

impl Request for Headers {
    fn visit_header(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for value in self.get(name).into_iter().flatten() {
            visit(value.as_bytes());
        }
    }

    fn path(&self) -> &[u8] {
        b"/"
    }
}

impl RequestHeaders for Headers {
    fn headers<'s>(&'s self, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        for (name, values) in self {
            for value in values {
                visit(name.as_bytes(), value.as_bytes());
            }
        }
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        let value = String::from_utf8(value.to_vec()).unwrap();
        self.insert(name.to_owned(), vec![value]);
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        let value = String::from_utf8(value.to_vec()).unwrap();
        self.entry(name.to_owned()).or_default().push(value);
    }

    fn remove(&mut self, name: &str) {
        Headers::remove(self, name);
    }
}

fn headers(pairs: &[(&str, &str)]) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in pairs {
        headers
            .entry((*name).to_owned())
            .or_default()
            .push((*value).to_owned());
    }
    headers
}

fn group() -> Group {
    Group {
        name: "hello".to_owned(),
        header: "x-lane".to_owned(),
        baggage: None,
        fallback: None,
        baseline: "en".to_owned(),
        carriers: ["traceparent", "b3", "x-b3-traceid", "x-request-id"]
            .map(Carrier::of_header)
            .to_vec(),
        carry: Vec::new(),
    }
}

/// A proxy that is there for one request.
fn handle(
    group: &Group,
    role: &Role,
    request: &mut Headers,
    memory: &LaneMemory,
    now: Seconds,
) -> Handled {
    Proxy::new(group.clone(), role.clone(), memory).handle(request, now)
}

fn memory() -> LaneMemory {
    LaneMemory {
        names: LaneNames::default(),
        traces: TraceTable::new(10_000),
    }
}

fn edge() -> Role {
    let is_french = Condition::Part(Part::Header("user".to_owned()), Test::Exact(b"fr".to_vec()));
    Role::Edge(Rules::new(
        "hello",
        Vec::new(),
        vec![Rule {
            lane: "fr".to_owned(),
            condition: is_french,
            priority: 0,
            weight: WHOLE,
        }],
    ))
}

fn traceparent(id: u128) -> String {
    format!("00-{id:032x}-00000000000000a1-01")
}

fn lane(headers: &Headers) -> Option<&str> {
    headers.get("x-lane").map(|values| values[0].as_str())
}

#[test]
fn edge_alone_chooses_the_lane() {
    let (group, memory) = (group(), memory());
    for (sent, expected, outcome, is_changed) in [
        (
            headers(&[("user", "fr")]),
            Some("fr"),
            Outcome::Entered,
            true,
        ),
        (headers(&[("user", "en")]), None, Outcome::Baseline, false),
        // From outside.
        (
            headers(&[("user", "en"), ("x-lane", "fr")]),
            None,
            Outcome::Baseline,
            true,
        ),
        (
            headers(&[("user", "fr"), ("x-lane", "it")]),
            Some("fr"),
            Outcome::Entered,
            true,
        ),
        (
            headers(&[("user", "fr"), ("x-lane", "fr"), ("x-lane", "it")]),
            Some("fr"),
            Outcome::Entered,
            true,
        ),
        (
            headers(&[("user", "fr"), ("x-lane", "fr")]),
            Some("fr"),
            Outcome::Entered,
            false,
        ),
    ] {
        let mut request = sent.clone();
        let done = handle(&group, &edge(), &mut request, &memory, 1);
        assert_eq!(lane(&request), expected, "{sent:?}");
        assert_eq!(
            (done.outcome, done.is_changed),
            (outcome, is_changed),
            "{sent:?}"
        );
        assert!(request.get("x-lane").is_none_or(|values| values.len() == 1));
    }
}

#[test]
fn lane_is_restored_by_any_id_that_the_service_passes_on() {
    let (group, memory) = (group(), memory());
    let trace = traceparent(0xabc);
    let mut inbound = headers(&[
        ("x-lane", "fr"),
        ("traceparent", &trace),
        ("x-request-id", "r1"),
    ]);
    let done = handle(&group, &Role::Inbound(None), &mut inbound, &memory, 1);
    assert_eq!(done.outcome, Outcome::Remembered);
    assert_eq!(done.holds.len(), 2);
    let b3 = format!("{:032x}-00000000000000a2-1", 0xabc);
    for (sent, outcome, expected) in [
        (
            headers(&[("traceparent", &trace)]),
            Outcome::Restored,
            Some("fr"),
        ),
        (
            headers(&[("x-request-id", "r1")]),
            Outcome::Restored,
            Some("fr"),
        ),
        // The service writes another format than it reads.
        (headers(&[("b3", &b3)]), Outcome::Restored, Some("fr")),
        (
            headers(&[("x-b3-traceid", "0000000000000abc")]),
            Outcome::Restored,
            Some("fr"),
        ),
        (
            headers(&[("x-request-id", "r2"), ("traceparent", &trace)]),
            Outcome::Restored,
            Some("fr"),
        ),
        (headers(&[("x-request-id", "r2")]), Outcome::Unmatched, None),
        (headers(&[]), Outcome::Unmatched, None),
        (
            headers(&[("x-lane", "it"), ("traceparent", &trace)]),
            Outcome::Passed,
            Some("it"),
        ),
    ] {
        let mut request = sent.clone();
        let done = handle(&group, &Role::Outbound, &mut request, &memory, 1);
        assert_eq!(
            (done.outcome, lane(&request)),
            (outcome, expected),
            "{sent:?}"
        );
        assert_eq!(done.is_changed, outcome == Outcome::Restored);
    }
    // The service answers, and calls later.
    memory.release(done.holds, 10, 5);
    let later = |now| {
        let mut request = headers(&[("traceparent", &trace)]);
        handle(&group, &Role::Outbound, &mut request, &memory, now).outcome
    };
    assert_eq!(later(14), Outcome::Restored);
    assert_eq!(later(15), Outcome::Unmatched);
}

#[test]
fn malformed_lanes_do_not_go_on() {
    let (group, memory) = (group(), memory());
    for name in ["f r", "fr/../it", "-fr", &"f".repeat(64)] {
        let mut request = headers(&[("x-lane", name), ("x-request-id", "r1")]);
        let done = handle(&group, &Role::Inbound(None), &mut request, &memory, 1);
        assert_eq!(done.outcome, Outcome::InvalidName);
        assert!(done.is_changed && done.holds.is_empty());
        assert_eq!(lane(&request), None);
    }
}

#[test]
fn copied_id_makes_the_trace_ambiguous_and_moves_no_request() {
    let (group, memory) = (group(), memory());
    let inbound = |lane: Option<&str>| {
        let mut request = headers(&[("x-request-id", "victim")]);
        if let Some(lane) = lane {
            request.set("x-lane", lane.as_bytes());
        }
        handle(&group, &Role::Inbound(None), &mut request, &memory, 1)
    };
    let outbound = || {
        let mut request = headers(&[("x-request-id", "victim")]);
        let done = handle(&group, &Role::Outbound, &mut request, &memory, 1);
        (done.outcome, lane(&request).map(str::to_owned))
    };
    let victim = inbound(None);
    assert_eq!(outbound(), (Outcome::Restored, None));
    let attacker = inbound(Some("fr"));
    assert_eq!(attacker.outcome, Outcome::Conflict);
    assert_eq!(outbound(), (Outcome::Ambiguous, None));
    memory.release(attacker.holds, 1, 1);
    assert_eq!(outbound(), (Outcome::Ambiguous, None));
    memory.release(victim.holds, 1, 1);
}

#[test]
fn strict_sidecar_stamps_its_own_lane() {
    let (group, memory) = (group(), memory());
    for (own, sent, expected) in [
        ("fr", headers(&[]), Some("fr")),
        ("fr", headers(&[("x-lane", "it")]), Some("fr")),
        ("en", headers(&[("x-lane", "it")]), None),
    ] {
        let mut request = sent;
        let role = Role::OutboundStrict(own.to_owned());
        let done = handle(&group, &role, &mut request, &memory, 1);
        assert_eq!((done.outcome, lane(&request)), (Outcome::Stamped, expected));
    }
}

/// A chain of services, each with a sidecar. Each calls the next one `calls` times, at once, with nothing but the
/// trace's id. Returns the versions that served.
struct Chain {
    group: Group,
    /// Lanes that have a version of each service, and the memory of its sidecar.
    services: Vec<(Vec<&'static str>, LaneMemory)>,
    calls: usize,
    served: AtomicUsize,
}

impl Chain {
    fn new(services: &[&[&'static str]], calls: usize) -> Self {
        Self {
            group: group(),
            services: services
                .iter()
                .map(|lanes| (lanes.to_vec(), memory()))
                .collect(),
            calls,
            served: AtomicUsize::new(0),
        }
    }

    /// One request from outside; `expected` is its lane.
    fn request(&self, user: &str, id: u128, now: Seconds) -> Vec<Vec<String>> {
        let mut request = headers(&[("user", user), ("traceparent", &traceparent(id))]);
        handle(&self.group, &edge(), &mut request, &memory(), now);
        let mut served = vec![Vec::new(); self.services.len()];
        self.serve(0, request, id, now, &mut served);
        served
    }

    fn serve(
        &self,
        hop: usize,
        mut request: Headers,
        id: u128,
        now: Seconds,
        served: &mut Vec<Vec<String>>,
    ) {
        let Some((versions, memory)) = self.services.get(hop) else {
            return;
        };
        // The route that an Envoy chooses by the header.
        let asked = lane(&request).unwrap_or("en").to_owned();
        let version = if versions.contains(&asked.as_str()) {
            &asked
        } else {
            "en"
        };
        served[hop].push(version.to_owned());
        self.served.fetch_add(1, Ordering::Relaxed);
        let done = handle(&self.group, &Role::Inbound(None), &mut request, memory, now);
        assert_eq!(done.outcome, Outcome::Remembered);
        for _ in 0..self.calls {
            let mut next = headers(&[("traceparent", &traceparent(id))]);
            let done = handle(&self.group, &Role::Outbound, &mut next, memory, now);
            assert_eq!(done.outcome, Outcome::Restored);
            self.serve(hop + 1, next, id, now, served);
        }
        memory.release(done.holds, now, 2);
    }
}

#[test]
fn baseline_serves_a_missing_version_and_the_lane_goes_on() {
    let chain = Chain::new(&[&["en", "fr"], &["en"], &["en", "fr"]], 1);
    assert_eq!(chain.request("fr", 1, 1), [["fr"], ["en"], ["fr"]]);
    assert_eq!(chain.request("en", 2, 1), [["en"], ["en"], ["en"]]);
}

#[test]
fn interleaved_requests_of_two_lanes_never_cross() {
    for hops in 1..=5_usize {
        let services = vec![["en", "fr"].as_slice(); hops];
        let chain = Chain::new(&services, if hops <= 3 { 3 } else { 1 });
        thread::scope(|scope| {
            for worker in 0..4_u128 {
                let chain = &chain;
                scope.spawn(move || {
                    for round in 0..500_u32 {
                        let id = u128::from(round) * 4 + worker + 1;
                        let user = if id.count_ones() % 2 == 0 { "fr" } else { "en" };
                        let served = chain.request(user, id, round / 10 + 1);
                        assert!(
                            served.iter().flatten().all(|version| version == user),
                            "{served:?}"
                        );
                    }
                });
            }
        });
        assert!(chain.served.load(Ordering::Relaxed) >= 2000 * hops);
    }
}

#[test]
fn full_table_leaves_the_baseline_to_serve() {
    let group = group();
    let memory = LaneMemory {
        names: LaneNames::default(),
        traces: TraceTable::new(8),
    };
    let mut full = 0;
    for number in 0..1000 {
        let id = format!("r{number}");
        let mut request = headers(&[("x-lane", "fr"), ("x-request-id", &id)]);
        let done = handle(&group, &Role::Inbound(None), &mut request, &memory, 1);
        let mut next = headers(&[("x-request-id", &id)]);
        let found = handle(&group, &Role::Outbound, &mut next, &memory, 1).outcome;
        if done.outcome == Outcome::TableFull {
            full += 1;
            assert_eq!(found, Outcome::Unmatched);
        } else {
            assert_eq!(found, Outcome::Restored);
        }
    }
    assert!(full > 900, "{full}");
}

#[test]
fn services_that_pass_baggage_on_carry_the_lane() {
    let (group, memory) = (group(), memory());
    let group = Group {
        baggage: Some("lane".to_owned()),
        fallback: None,
        ..group
    };
    let mut request = headers(&[
        ("user", "fr"),
        ("baggage", "a=1,lane=it"),
        ("baggage", "b=2"),
    ]);
    handle(&group, &edge(), &mut request, &memory, 1);
    assert_eq!(lane(&request), Some("fr"));
    assert_eq!(request["baggage"], ["lane=fr,a=1,b=2"]);

    // No id of a trace, and no header: the baggage is enough.
    let mut outbound = headers(&[("baggage", "a=1,lane=fr;p=1")]);
    let done = handle(&group, &Role::Outbound, &mut outbound, &memory, 1);
    assert_eq!((done.outcome, done.is_changed), (Outcome::Passed, true));
    assert_eq!(lane(&outbound), Some("fr"));

    let mut forged = headers(&[("user", "en"), ("baggage", "lane=fr")]);
    handle(&group, &edge(), &mut forged, &memory, 1);
    assert_eq!((lane(&forged), forged.get("baggage")), (None, None));

    let mut invalid = headers(&[("baggage", "a=1,lane=f%20r")]);
    let done = handle(&group, &Role::Outbound, &mut invalid, &memory, 1);
    assert_eq!(done.outcome, Outcome::InvalidName);
    assert_eq!(invalid["baggage"], ["a=1"]);
}

#[test]
fn a_request_for_the_baseline_is_only_the_proxy_s_own() {
    let group = Group {
        fallback: Some("x-lane-fallback".to_owned()),
        ..group()
    };
    let memory = memory();
    let trace = traceparent(7);
    for (role, is_in_lane) in [
        (edge(), true),
        (Role::Inbound(None), false),
        (Role::Outbound, true),
        (Role::OutboundStrict("fr".to_owned()), true),
        (Role::OutboundStrict("en".to_owned()), false),
    ] {
        let mut request = headers(&[
            ("user", "fr"),
            ("x-lane", "fr"),
            ("x-lane-fallback", "1"),
            ("traceparent", &trace),
        ]);
        let handled = handle(&group, &role, &mut request, &memory, 1);
        assert!(handled.is_changed, "{role:?}");
        assert_eq!(handled.is_in_lane, is_in_lane, "{role:?}");
        assert!(!request.contains_key("x-lane-fallback"), "{role:?}");
    }
    // Restored, and the baseline's.
    let mut request = headers(&[("traceparent", &trace)]);
    let handled = handle(&group, &Role::Outbound, &mut request, &memory, 1);
    assert!(handled.is_in_lane && handled.outcome == Outcome::Restored);
    let mut request = headers(&[]);
    let handled = handle(&group, &Role::Outbound, &mut request, &memory, 1);
    assert!(!handled.is_in_lane && !handled.is_changed);
}

#[test]
fn headers_are_carried_along_unless_the_service_passes_them_on() {
    let group = Group {
        carry: vec!["user".to_owned(), "x-tag".to_owned()],
        ..group()
    };
    let memory = memory();
    let trace = traceparent(7);
    let mut inbound = headers(&[
        ("traceparent", &trace),
        ("user", "fr"),
        ("x-tag", "one"),
        ("x-tag", "two"),
        ("other", "stays behind"),
    ]);
    let held = handle(&group, &Role::Inbound(None), &mut inbound, &memory, 1);
    assert_eq!((held.outcome, held.carried), (Outcome::Remembered, None));
    let tags = ["one", "two"].map(str::to_owned).to_vec();
    for (sent, user, outcome) in [
        (headers(&[("traceparent", &trace)]), "fr", Outcome::Restored),
        // Whatever the service passes on stays as it is.
        (
            headers(&[("traceparent", &trace), ("user", "it"), ("x-lane", "fr")]),
            "it",
            Outcome::Passed,
        ),
    ] {
        let mut request = sent;
        let done = handle(&group, &Role::Outbound, &mut request, &memory, 1);
        assert_eq!(
            (done.outcome, done.carried),
            (outcome, Some(Outcome::Carried))
        );
        assert_eq!(
            (&request["user"], &request["x-tag"]),
            (&vec![user.to_owned()], &tags)
        );
        assert!(!request.contains_key("other"));
    }
    let all = [
        ("traceparent", trace.as_str()),
        ("user", "it"),
        ("x-tag", "x"),
    ];
    let mut request = headers(&all);
    let done = handle(&group, &Role::Outbound, &mut request, &memory, 1);
    assert_eq!((done.carried, request), (None, headers(&all)));
}

#[test]
fn copied_id_gets_no_header_into_the_requests_of_others() {
    let group = Group {
        carry: vec!["user".to_owned()],
        ..group()
    };
    let memory = memory();
    let inbound = |pairs: &[(&str, &str)]| {
        let mut request = headers(&[("x-request-id", "victim")]);
        for (name, value) in pairs {
            request.set(name, value.as_bytes());
        }
        handle(&group, &Role::Inbound(None), &mut request, &memory, 1)
    };
    let outbound = || {
        let mut request = headers(&[("x-request-id", "victim")]);
        let done = handle(&group, &Role::Outbound, &mut request, &memory, 1);
        assert_eq!(done.outcome, Outcome::Restored);
        (done.carried, request.get("user").cloned())
    };
    assert_eq!(inbound(&[]).outcome, Outcome::Remembered);
    assert_eq!(outbound(), (None, None));
    assert_eq!(inbound(&[("user", "admin")]).carried, None);
    assert_eq!(outbound(), (Some(Outcome::CarryLost), None));
    let long = "a".repeat(carried::MOST_CARRIED);
    assert_eq!(
        inbound(&[("user", &long)]).carried,
        Some(Outcome::CarryTooLong)
    );
    assert_eq!(outbound(), (Some(Outcome::CarryLost), None));
}

#[test]
fn copy_of_a_mirrored_request_is_the_lane_s_and_the_original_the_baseline_s() {
    let group = group();
    for (own, sent, expected) in [
        (Some("fr"), "mirror.fr", Some("fr")),
        (Some("en"), "mirror.fr", None),
        (Some("it"), "mirror.fr", None),
        (None, "mirror.fr", None),
        // The copy on its way to the next services.
        (Some("fr"), "fr", Some("fr")),
        (Some("fr"), "mirror.", None),
    ] {
        let memory = memory();
        let trace = traceparent(7);
        let role = Role::Inbound(own.map(str::to_owned));
        let mut request = headers(&[("x-lane", sent), ("traceparent", &trace)]);
        let done = handle(&group, &role, &mut request, &memory, 1);
        assert_eq!(done.outcome, Outcome::Remembered);
        assert_eq!(lane(&request), expected, "{own:?} {sent}");
        let mut next = headers(&[("traceparent", &trace)]);
        let done = handle(&group, &Role::Outbound, &mut next, &memory, 1);
        assert_eq!(done.outcome, Outcome::Restored);
        assert_eq!(lane(&next), expected, "{own:?} {sent}");
    }
}
