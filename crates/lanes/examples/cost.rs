//! Requests through the two sides of a sidecar beside 100,000 live traces, to count what a lane costs:
//!
//! ```sh
//! cargo build --release -p outrider-lanes --example cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/cost 0
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/cost 10000
//! ```
//!
//! The difference of the two totals, divided by 10,000, is the cost of one inbound request with its end and of one outbound
//! request, without what Envoy's interface to headers costs.

use std::collections::BTreeMap;

use outrider_lanes::{
    Carrier, Found, Group, LaneMemory, LaneNames, Outcome, Proxy, Request, RequestHeaders, Role,
    TraceTable,
};

/// Traces that are live all the time.
const LIVE: u128 = 100_000;

/// Headers in order, as a proxy has them: looked for by comparing names.
struct Headers(Vec<(String, Vec<u8>)>);

impl Request for Headers {
    fn visit_header(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
        for (_, value) in self.0.iter().filter(|(one, _)| one == name) {
            visit(value);
        }
    }

    fn path(&self) -> &[u8] {
        b"/"
    }
}

impl RequestHeaders for Headers {
    fn headers<'s>(&'s self, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        for (name, value) in &self.0 {
            visit(name.as_bytes(), value);
        }
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        self.remove(name);
        self.0.push((name.to_owned(), value.to_vec()));
    }

    fn add(&mut self, name: &str, value: &[u8]) {
        self.0.push((name.to_owned(), value.to_vec()));
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(one, _)| one != name);
    }
}

fn main() {
    let rounds: u128 = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let group = Group {
        name: "hello".to_owned(),
        header: "x-outrider-lane".to_owned(),
        baggage: None,
        fallback: None,
        baseline: "en".to_owned(),
        carriers: [
            "traceparent",
            "b3",
            "x-b3-traceid",
            "uber-trace-id",
            "x-datadog-trace-id",
            "x-request-id",
        ]
        .map(Carrier::of_header)
        .to_vec(),
        carry: Vec::new(),
    };
    let memory = LaneMemory {
        names: LaneNames::default(),
        traces: TraceTable::new(131_072),
    };
    let inbound = Proxy::new(group.clone(), Role::Inbound(None), &memory);
    let outbound = Proxy::new(group, Role::Outbound, &memory);
    let request = |number: u128, lane: Option<&str>| {
        let lane = lane.map(|lane| ("x-outrider-lane".to_owned(), lane.as_bytes().to_vec()));
        let others = BTreeMap::from([
            (
                "traceparent",
                format!("00-{number:032x}-00000000000000a1-01"),
            ),
            ("accept", "*/*".to_owned()),
            ("user-agent", "curl".to_owned()),
        ]);
        let others = others
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into_bytes()));
        Headers(others.chain(lane).collect())
    };
    for number in 1..=LIVE {
        let done = inbound.handle(&mut request(number, Some("fr")), 1);
        assert_eq!(done.outcome, Outcome::Remembered);
    }

    // Made before, so that making them is not counted with the rounds' own work.
    let mut requests: Vec<(Headers, Headers)> = (0..10_000)
        .map(|number| {
            (
                request(LIVE + 1 + number, Some("fr")),
                request(LIVE + 1 + number, None),
            )
        })
        .collect();
    for (received, sent) in requests
        .iter_mut()
        .take(usize::try_from(rounds).unwrap_or(0))
    {
        let held = inbound.handle(received, 1);
        let sent = outbound.handle(sent, 1);
        assert_eq!((sent.outcome, sent.is_changed), (Outcome::Restored, true));
        memory.release(held.holds, 1, 10);
    }
    assert_ne!(
        memory.traces.find(
            memory.traces.key(
                memory.traces.group("hello"),
                Carrier::TraceParent
                    .trace_id(b"00-00000000000000000000000000000001-00000000000000a1-01")
                    .unwrap_or(outrider_lanes::TraceId::Number(1))
            ),
            1
        ),
        Found::Nothing
    );
}
