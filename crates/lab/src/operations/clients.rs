//! Clients that may lose nothing.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::task::JoinHandle;

use super::SERVER;
use super::report::Report;
use crate::client::{ClientError, Connection, Request, Target};
use crate::tls::Trust;

const HTTP1: usize = 12;
const HTTP2: usize = 4;
/// Of each of them, with TLS.
const WITH_TLS: usize = 2;
/// How long a request may take: processes stand still meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause after a connection that was refused.
const AGAIN: Duration = Duration::from_millis(5);
/// Requests that are told one by one.
const TOLD: usize = 20;

/// What clients count together.
#[derive(Debug, Default)]
struct Counts {
    connections: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    told: Mutex<Vec<String>>,
    /// Slowest answer, in microseconds.
    slowest: AtomicU64,
    stop: AtomicBool,
    may_be_refused: AtomicBool,
}

/// Clients that send one request after the other.
#[derive(Debug)]
pub(super) struct Clients {
    counts: Arc<Counts>,
    answered: Vec<Arc<AtomicU64>>,
    tasks: Vec<JoinHandle<()>>,
    began: Instant,
}

impl Clients {
    /// `secure` is the listener with TLS.
    pub(super) fn start(address: SocketAddr, secure: SocketAddr) -> Self {
        let counts = Arc::new(Counts::default());
        let began = Instant::now();
        // Which certificate is served is looked at by who renews it.
        let with_tls = |target: Target| vec![target.with_tls(SERVER, Trust::Anything); WITH_TLS];
        let targets = [
            vec![Target::http1(address); HTTP1],
            vec![Target::http2(address); HTTP2],
            with_tls(Target::http1(secure)),
            with_tls(Target::http2(secure)),
        ]
        .concat();
        let (mut answered, mut tasks) = (Vec::new(), Vec::new());
        for target in targets {
            let count = Arc::new(AtomicU64::new(0));
            answered.push(Arc::clone(&count));
            tasks.push(tokio::spawn(send(
                target,
                Arc::clone(&counts),
                count,
                began,
            )));
        }
        Self {
            counts,
            answered,
            tasks,
            began,
        }
    }

    /// Whether connections may be refused from now on.
    pub(super) fn expect_refusals(&self, may_be_refused: bool) {
        let flag = &self.counts.may_be_refused;
        flag.store(may_be_refused, Ordering::SeqCst);
    }

    /// Waits until each client has got ten answers more.
    pub(super) async fn go_on(&self, within: Duration) -> anyhow::Result<()> {
        let counts = || -> Vec<u64> {
            let of = self.answered.iter();
            of.map(|count| count.load(Ordering::SeqCst)).collect()
        };
        let (before, began) = (counts(), Instant::now());
        while (counts().iter().zip(&before)).any(|(now, before)| *now < before + 10) {
            ensure!(
                began.elapsed() < within,
                "a client got no ten answers within {within:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    pub(super) fn answered(&self) -> u64 {
        let of = self.answered.iter();
        of.map(|count| count.load(Ordering::SeqCst)).sum()
    }

    pub(super) fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::SeqCst)
    }

    /// Ends the clients, and adds what they counted.
    pub(super) async fn end(mut self, report: &mut Report) {
        self.counts.stop.store(true, Ordering::SeqCst);
        for task in std::mem::take(&mut self.tasks) {
            if let Err(error) = task.await {
                report.problems.push(format!("a client ended: {error}"));
            }
        }
        let get = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        report.seconds = self.began.elapsed().as_secs_f64();
        report.clients = (HTTP1, HTTP2, 2 * WITH_TLS);
        report.answered = self.answered();
        report.connections = get(&self.counts.connections);
        report.refused = get(&self.counts.refused);
        report.lost = get(&self.counts.lost);
        report.slowest = Duration::from_micros(get(&self.counts.slowest));
        if report.lost > 0 {
            let told = self
                .counts
                .told
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            report
                .problems
                .push(format!("{} requests were lost:", report.lost));
            report.problems.extend(told.iter().cloned());
        }
    }
}

async fn send(target: Target, counts: Arc<Counts>, answered: Arc<AtomicU64>, began: Instant) {
    let stops = || counts.stop.load(Ordering::SeqCst);
    let lost = |what: String| {
        counts.lost.fetch_add(1, Ordering::SeqCst);
        let mut told = counts.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < TOLD {
            told.push(format!("{:.1} s: {what}", began.elapsed().as_secs_f64()));
        }
    };
    while !stops() {
        let expected = counts.may_be_refused.load(Ordering::SeqCst);
        let mut connection = match Connection::open(&target).await {
            Ok(connection) => connection,
            Err(error) => {
                // Nothing was sent. A stop may have begun, or ended, in between.
                if expected || counts.may_be_refused.load(Ordering::SeqCst) {
                    counts.refused.fetch_add(1, Ordering::SeqCst);
                } else {
                    lost(format!("no connection, {}: {error}", target.protocol));
                }
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let number = counts.connections.fetch_add(1, Ordering::SeqCst);
        let mut sent = 0_u64;
        while !stops() && !connection.closed_within(Duration::ZERO).await {
            let body = format!("client {number}, request {sent}");
            let request = Request::post("/delay/3", body).timeout(PATIENCE);
            let before = Instant::now();
            let response = connection.send(request).await;
            let took = u64::try_from(before.elapsed().as_micros()).unwrap_or(u64::MAX);
            match response {
                Ok(response) if response.status == 200 => {
                    answered.fetch_add(1, Ordering::SeqCst);
                    counts.slowest.fetch_max(took, Ordering::SeqCst);
                }
                Ok(response) => lost(format!("{}: {}", response.status, response.text())),
                // Closed in that moment; nothing was sent.
                Err(ClientError::NotSent(_)) => break,
                Err(error) => {
                    lost(format!(
                        "request {sent} of a connection, {}: {error}",
                        target.protocol
                    ));
                    break;
                }
            }
            sent += 1;
        }
    }
}
