//! A run: connections, threads, and the result of all of them together.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::http1::{Http1, Http1Request};
use crate::http2::Http2;
use crate::outcome::{Outcome, Tally};
use crate::request::RequestTemplate;
use crate::schedule::Pacing;
use crate::target::{Protocol, Target, Trust};

/// Time that threads get to be ready before a run begins.
const LEAD: Duration = Duration::from_millis(5);
/// Nanoseconds between two observations of a run.
const OBSERVATION: u64 = 500_000_000;

/// How a target is spoken to.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// Protocol of the requests.
    pub protocol: Protocol,
    /// Connections of all threads together.
    pub connections: usize,
    /// Requests at the same time on one HTTP/2 connection.
    pub streams: usize,
    /// Threads that send.
    pub threads: usize,
    /// Certificates that are accepted.
    pub trust: Trust,
    /// Time limit of a request, from its send.
    pub timeout: Duration,
    /// Statuses that count as success.
    pub expected: RangeInclusive<u16>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            protocol: Protocol::Http1,
            connections: 16,
            streams: 16,
            threads: 1,
            trust: Trust::PublicAuthorities,
            timeout: Duration::from_secs(10),
            expected: 200..=299,
        }
    }
}

/// What a run does.
#[derive(Debug, Clone)]
pub struct Load {
    /// Pace of the requests.
    pub pacing: Pacing,
    /// Requests, sent in turns.
    pub requests: Vec<RequestTemplate>,
}

/// State of a run, for people who watch it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Seconds since the begin.
    pub seconds: f64,
    /// Requests that were sent.
    pub sent: u64,
    /// Successes.
    pub succeeded: u64,
    /// Failures.
    pub failed: u64,
    /// Median latency so far in nanoseconds.
    pub p50: u64,
    /// 99th percentile of the latency so far in nanoseconds.
    pub p99: u64,
}

/// Connections to one target, which last for several runs.
#[derive(Debug)]
pub struct Session {
    target: Target,
    options: SessionOptions,
    threads: Vec<Engine>,
}

#[derive(Debug)]
enum Engine {
    Http1(Http1),
    Http2(Box<Http2>),
}

/// One thread's share of a run.
#[derive(Debug)]
pub(crate) struct Part<'run> {
    pub(crate) pacing: &'run Pacing,
    /// Number of the thread, from 0.
    pub(crate) index: usize,
    /// Number of threads.
    pub(crate) count: usize,
    pub(crate) begin: Instant,
    /// Nanoseconds.
    pub(crate) timeout: u64,
    pub(crate) expected: RangeInclusive<u16>,
}

impl Part<'_> {
    /// The phase, if its requests are recorded.
    pub(crate) fn measured(&self, phase: usize) -> Option<usize> {
        let is_measured = match self.pacing {
            Pacing::Closed { .. } => true,
            Pacing::Open(schedule) => schedule
                .phases
                .get(phase)
                .is_some_and(|phase| phase.is_measured),
        };
        is_measured.then_some(phase)
    }

    pub(crate) fn is_expected(&self, status: u16) -> bool {
        self.expected.contains(&status)
    }
}

/// Caller of the function that watches a run.
pub(crate) struct Observer<'run> {
    next: u64,
    report: &'run mut (dyn FnMut(&Progress) + Send),
}

impl Observer<'_> {
    /// Reports the state of a run, not more often than every [`OBSERVATION`].
    pub(crate) fn observe(&mut self, now: u64, outcome: &Outcome) {
        if now >= self.next {
            self.next = now + OBSERVATION;
            let mut total = Tally::default();
            for phase in &outcome.phases {
                total.add(phase);
            }
            (self.report)(&Progress {
                seconds: now as f64 / 1e9,
                sent: total.sent,
                succeeded: total.succeeded,
                failed: total.failed(),
                p50: total.latency.value_at_quantile(0.5),
                p99: total.latency.value_at_quantile(0.99),
            });
        }
    }
}

impl Session {
    /// Opens the connections.
    ///
    /// # Errors
    ///
    /// The settings are wrong, or the target does not accept a connection or its protocol.
    pub fn open(target: &Target, options: &SessionOptions) -> Result<Self, LoadError> {
        let wrong = |text: &str| Err(LoadError::Settings(text.to_owned()));
        if options.connections == 0 || options.threads == 0 || options.streams == 0 {
            return wrong("a load needs at least one connection, one thread and one stream");
        }
        if options.threads > options.connections {
            return wrong(
                "each thread needs a connection of its own: use at most as many threads as connections",
            );
        }
        if options.timeout.is_zero() {
            return wrong("the time limit of a request must be longer than 0");
        }
        let tls = target.tls(&options.trust, options.protocol)?;
        let threads = (0..options.threads)
            .map(|index| {
                // The first threads have one more where it does not divide evenly.
                let share = (options.connections + options.threads - 1 - index) / options.threads;
                match options.protocol {
                    Protocol::Http1 => Ok(Engine::Http1(Http1::open(target, tls.clone(), share)?)),
                    Protocol::Http2 | Protocol::Grpc => {
                        let opened = Http2::open(target, tls.clone(), share, options)?;
                        Ok(Engine::Http2(Box::new(opened)))
                    }
                }
            })
            .collect::<Result<_, LoadError>>()?;
        Ok(Self {
            target: target.clone(),
            options: options.clone(),
            threads,
        })
    }

    /// Carries a run out and waits for its end: at most the time limit of a request longer than its pacing.
    ///
    /// # Errors
    ///
    /// A request cannot be sent as it is described.
    pub fn run(&mut self, load: &Load) -> Result<Outcome, LoadError> {
        self.run_observed(load, &mut |_| {})
    }

    /// Carries a run out, and reports its progress twice a second: that of the first thread, times the number of threads.
    ///
    /// # Errors
    ///
    /// A request cannot be sent as it is described.
    pub fn run_observed(
        &mut self,
        load: &Load,
        report: &mut (dyn FnMut(&Progress) + Send),
    ) -> Result<Outcome, LoadError> {
        if load.requests.is_empty() {
            return Err(LoadError::Settings(
                "a load needs at least one request".to_owned(),
            ));
        }
        let count = self.threads.len();
        let begin = if count > 1 {
            Instant::now() + LEAD
        } else {
            Instant::now()
        };
        let part = |index| Part {
            pacing: &load.pacing,
            index,
            count,
            begin,
            timeout: u64::try_from(self.options.timeout.as_nanos()).unwrap_or(u64::MAX),
            expected: self.options.expected.clone(),
        };
        let http1: Vec<Http1Request> = match self.options.protocol {
            Protocol::Http1 => load
                .requests
                .iter()
                .map(|request| {
                    Ok(Http1Request {
                        bytes: request.http1(&self.target)?,
                        has_no_response_body: request.is_head(),
                    })
                })
                .collect::<Result<_, LoadError>>()?,
            Protocol::Http2 | Protocol::Grpc => Vec::new(),
        };
        let http2 = match self.options.protocol {
            Protocol::Http1 => Vec::new(),
            protocol => load
                .requests
                .iter()
                .map(|request| Ok(request.http2(&self.target, protocol)?))
                .collect::<Result<_, LoadError>>()?,
        };
        let (http1, http2) = (http1.as_slice(), http2.as_slice());
        let run = |engine: &mut Engine, part: &Part<'_>, observer: &mut Observer<'_>| match engine {
            Engine::Http1(engine) => engine.run(http1, part, observer),
            Engine::Http2(engine) => engine.run(http2, part, observer),
        };
        let factor = count as u64;
        let mut scaled = |progress: &Progress| {
            report(&Progress {
                sent: progress.sent * factor,
                succeeded: progress.succeeded * factor,
                failed: progress.failed * factor,
                ..*progress
            });
        };
        let mut observer = Observer {
            next: 0,
            report: &mut scaled,
        };
        let mut outcome = Outcome::default();
        std::thread::scope(|scope| {
            let mut engines = self.threads.iter_mut().enumerate();
            let first = engines.next();
            let others: Vec<_> = engines
                .map(|(index, engine)| {
                    let (part, run) = (part(index), &run);
                    scope.spawn(move || {
                        let mut nobody = |_: &Progress| {};
                        let mut observer = Observer {
                            next: u64::MAX,
                            report: &mut nobody,
                        };
                        run(engine, &part, &mut observer)
                    })
                })
                .collect();
            if let Some((index, engine)) = first {
                outcome.add(&run(engine, &part(index), &mut observer));
            }
            for other in others {
                if let Ok(part) = other.join() {
                    outcome.add(&part);
                }
            }
        });
        Ok(outcome)
    }
}
