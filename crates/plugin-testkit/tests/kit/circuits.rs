//! A chain whose plugin fails again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::scripted::{Build, chain_with};
use outrider_plugin_api::{Cause, Chain, Decision, Fault, Interest, Phase};
use outrider_plugin_testkit::{
    Arrival, Headers, Message, MetricTable, Outcome, ScriptedHost, play,
};

const BOTH: Interest = Interest {
    request_headers: true,
    request_body: outrider_plugin_api::BodyMode::None,
    request_trailers: false,
    response_headers: true,
    response_body: outrider_plugin_api::BodyMode::None,
    response_trailers: false,
    log: true,
};

struct Bench {
    chain: Arc<Chain>,
    metrics: MetricTable,
    bad: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    /// Sums over all streams.
    opened: i64,
    open: i64,
    refused: i64,
    log: Vec<String>,
}

impl Bench {
    /// A plugin that fails in `phase` while it is bad; its circuit opens after 3 streams.
    fn new(phase: Phase, finish: impl Fn(Build) -> Build) -> Self {
        Self::failing_by(Cause::Time, phase, finish)
    }

    /// The same, with another cause of its failures.
    fn failing_by(cause: Cause, phase: Phase, finish: impl Fn(Build) -> Build) -> Self {
        let (bad, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let mut metrics = MetricTable::new();
        let build = {
            let (bad, calls) = (Arc::clone(&bad), Arc::clone(&calls));
            Build::new("shaky", BOTH, move |_, call, _| {
                calls.fetch_add(1, Ordering::Relaxed);
                if call.phase == phase && bad.load(Ordering::Relaxed) {
                    return Err(Fault {
                        cause,
                        message: "main.lua:3: too long".to_owned(),
                    });
                }
                Ok(Decision::Continue)
            })
        };
        Self {
            chain: chain_with(vec![finish(build.circuit(3))], &mut metrics),
            metrics,
            bad,
            calls,
            opened: 0,
            open: 0,
            refused: 0,
            log: Vec::new(),
        }
    }

    /// One stream at a time of day; answers its status and response-code detail.
    fn stream(&mut self, at: u64) -> (String, String) {
        let request = Message {
            headers: Headers::new().with(":method", "GET").with(":path", "/"),
            ..Message::default()
        };
        let answer = Message {
            headers: Headers::new().with(":status", "200"),
            ..Message::default()
        };
        let host = ScriptedHost::starting_at(Duration::from_millis(at));
        let outcome: Outcome = play(
            Arc::clone(&self.chain),
            &request,
            &answer,
            Arrival::ALL[0],
            host,
        );
        assert_eq!(outcome.problems, Vec::<String>::new());
        let value = |name: &str| {
            let id = self.metrics.id(&format!("outrider.plugin.shaky.{name}"));
            assert!(id.is_some(), "{name}");
            outcome.host.metric_value(id)
        };
        self.opened += value("circuit_opened");
        self.open += value("circuit_open");
        self.refused += value("errors.circuit");
        self.log.extend(
            outcome
                .host
                .log
                .borrow()
                .iter()
                .map(|line| format!("{:?} {}: {}", line.level, line.plugin, line.message)),
        );
        let status = outcome.response.as_ref().unwrap().headers.text(":status");
        (status, outcome.details.clone())
    }

    fn status(&mut self, at: u64) -> String {
        self.stream(at).0
    }

    fn calls(&self) -> u64 {
        self.calls.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn a_plugin_that_fails_again_and_again_is_not_called_and_is_tried_again() {
    let mut bench = Bench::new(Phase::RequestHeaders, |build| build);
    for _ in 0..3 {
        let (status, details) = bench.stream(0);
        assert_eq!((&*status, &*details), ("500", "outrider.shaky.time"));
    }
    bench.calls();
    assert_eq!((bench.opened, bench.open, bench.refused), (1, 1, 0));
    for at in [0, 500, 999] {
        let (status, details) = bench.stream(at);
        assert_eq!((&*status, &*details), ("500", "outrider.shaky.circuit"));
    }
    assert_eq!(bench.calls(), 0);
    assert_eq!((bench.opened, bench.open, bench.refused), (1, 1, 3));
    // The trial fails: twice the pause.
    assert_eq!(bench.stream(1000).1, "outrider.shaky.time");
    assert_eq!(bench.stream(2999).1, "outrider.shaky.circuit");
    bench.bad.store(false, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(bench.status(3000), "200");
    }
    assert_eq!((bench.opened, bench.open, bench.refused), (2, 0, 4));
    insta::assert_snapshot!(bench.log.join("\n"));
}

#[test]
fn failing_later_on_a_stream_counts_as_much() {
    for phase in [Phase::ResponseHeaders, Phase::Log] {
        let mut bench = Bench::new(phase, Build::open);
        for _ in 0..3 {
            assert_eq!(bench.status(0), "200");
        }
        assert!(bench.calls() > 0);
        for _ in 0..3 {
            assert_eq!(bench.status(0), "200");
        }
        assert_eq!(bench.calls(), 0, "{phase:?}");
        assert_eq!((bench.opened, bench.open, bench.refused), (1, 1, 3));
    }
}

#[test]
fn good_streams_in_between_do_not_hide_failures() {
    let mut bench = Bench::new(Phase::RequestHeaders, |build| build);
    for bad in [true, false, true, false, true] {
        bench.bad.store(bad, Ordering::Relaxed);
        bench.stream(0);
    }
    assert_eq!((bench.opened, bench.open), (1, 1));
}

#[test]
fn errors_of_single_requests_never_open_it() {
    let mut bench = Bench::failing_by(Cause::Error, Phase::RequestHeaders, |build| build);
    for _ in 0..100 {
        let (status, details) = bench.stream(0);
        assert_eq!((&*status, &*details), ("500", "outrider.shaky.error"));
    }
    bench.bad.store(false, Ordering::Relaxed);
    assert_eq!(bench.status(0), "200");
    assert_eq!((bench.opened, bench.open, bench.refused), (0, 0, 0));
    assert_eq!(bench.log, [""; 0]);
}
