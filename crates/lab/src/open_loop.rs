//! A load at a steady rate, whatever the answers do (an open loop), and the latency of each request from the
//! moment at which it was **meant** to be sent: a server that stalls for a second delays all requests of that
//! second, and all of them count.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::client::{ClientError, Connection, Request, Response, Target};

/// Connections that a lane with keep-alive opens before the first request, and uses in turn.
const POOL: usize = 8;

/// How many failures are kept in words.
const DETAILED: usize = 8;

type Make = Arc<dyn Fn(u64) -> Request + Send + Sync>;
type Check = Arc<dyn Fn(u64, &Response) -> Result<(), String> + Send + Sync>;

/// One kind of request at a steady rate.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    /// Each request on a connection of its own; else on connections that are kept.
    pub(crate) new_connections: bool,
    /// Requests a second.
    pub(crate) rate: u32,
    pub(crate) make: Make,
    pub(crate) check: Check,
}

impl fmt::Debug for Lane {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lane")
            .field("name", &self.name)
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// When it was meant to be sent.
    pub(crate) intended: Instant,
    /// From then to the whole answer, or to the failure.
    pub(crate) latency: Duration,
    pub(crate) answered: bool,
}

/// A lane that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) name: &'static str,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// What a lane saw.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) name: &'static str,
    pub(crate) samples: Vec<Sample>,
    /// Connections that the gateway closed.
    pub(crate) closed: u64,
    /// The first failures, in words.
    pub(crate) details: Vec<String>,
}

#[derive(Debug, Default)]
struct Shared {
    pool: Mutex<VecDeque<Connection>>,
    seen: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    samples: Vec<Sample>,
    closed: u64,
    details: Vec<String>,
}

impl Lane {
    /// Opens the connections and begins.
    pub(crate) async fn start(self) -> Result<Running, ClientError> {
        let shared = Arc::new(Shared::default());
        if !self.new_connections {
            for _ in 0..POOL {
                let connection = Connection::open(&self.target).await?;
                shared.put(connection);
            }
        }
        let (stop, stopped) = watch::channel(false);
        let name = self.name;
        let task = tokio::spawn(run(self, Arc::clone(&shared), stopped));
        Ok(Running {
            name,
            shared,
            stop,
            task,
        })
    }
}

impl Running {
    /// Waits for the requests that are under way, and ends.
    pub(crate) async fn stop(self) -> Seen {
        self.stop.send_replace(true);
        // A lane that panicked has lost its samples, which the judge finds missing.
        drop(self.task.await);
        let mut seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Seen {
            name: self.name,
            samples: std::mem::take(&mut seen.samples),
            closed: seen.closed,
            details: std::mem::take(&mut seen.details),
        }
    }
}

impl Shared {
    fn take(&self) -> Option<Connection> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.pop_front()
    }

    fn put(&self, connection: Connection) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.push_back(connection);
    }

    fn closed(&self) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.closed += 1;
    }

    fn record(&self, sample: Sample, failure: Option<String>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = failure
            && seen.details.len() < DETAILED
        {
            seen.details.push(failure);
        }
        seen.samples.push(sample);
    }
}

async fn run(lane: Lane, shared: Arc<Shared>, stopped: watch::Receiver<bool>) {
    let interval = Duration::from_secs(1) / lane.rate.max(1);
    let lane = Arc::new(lane);
    let mut tasks = JoinSet::new();
    let mut intended = Instant::now() + interval;
    let mut number = 0;
    while stopped.has_changed().is_ok() && !*stopped.borrow() {
        tokio::time::sleep_until(intended.into()).await;
        tasks.spawn(exchange(
            Arc::clone(&lane),
            Arc::clone(&shared),
            number,
            intended,
        ));
        number += 1;
        intended += interval;
        while tasks.try_join_next().is_some() {}
    }
    while tasks.join_next().await.is_some() {}
}

async fn exchange(lane: Arc<Lane>, shared: Arc<Shared>, number: u64, intended: Instant) {
    let result = attempt(&lane, &shared, number).await;
    let failure = match &result {
        Ok(response) => (lane.check)(number, response).err(),
        Err(error) => Some(error.to_string()),
    };
    let sample = Sample {
        intended,
        latency: intended.elapsed(),
        answered: failure.is_none(),
    };
    shared.record(
        sample,
        failure.map(|failure| format!("request {number}: {failure}")),
    );
}

async fn attempt(lane: &Lane, shared: &Shared, number: u64) -> Result<Response, ClientError> {
    loop {
        let kept = if lane.new_connections {
            None
        } else {
            shared.take()
        };
        let was_kept = kept.is_some();
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(&lane.target).await?,
        };
        let result = connection.send((lane.make)(number)).await;
        match result {
            // The gateway closed a kept connection before it saw the request: nothing is lost.
            Err(ClientError::NotSent(_)) if was_kept => shared.closed(),
            Ok(response) => {
                if !lane.new_connections {
                    shared.put(connection);
                }
                return Ok(response);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the latency below which `percent` of 100 of the sorted latencies are, in milliseconds.
pub(crate) fn percentile(sorted: &[Duration], percent: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = ((last as f64) * percent / 100.0).round() as usize;
    sorted
        .get(index.min(last))
        .map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::echo::Echo;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn stall_counts_for_each_request_that_it_delays() {
        let echo = Echo::start("echo").await.unwrap();
        let lane = Lane {
            name: "stalled",
            target: Target::http1(echo.address()),
            new_connections: false,
            rate: 100,
            // Each of the first 20 takes 300 ms: a closed loop of one connection would send three of them.
            make: Arc::new(|number| {
                let path = if number < 20 { "/delay/300" } else { "/" };
                Request::get(path)
            }),
            check: Arc::new(|_, response| {
                if response.status == 200 {
                    Ok(())
                } else {
                    Err(response.status.to_string())
                }
            }),
        };
        let running = lane.start().await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let seen = running.stop().await;
        let slow = |sample: &&Sample| sample.latency >= Duration::from_millis(295);
        assert_eq!(seen.samples.iter().filter(slow).count(), 20);
        assert!(seen.samples.len() > 40, "{}", seen.samples.len());
        assert!(seen.samples.iter().all(|sample| sample.answered));
    }

    #[test]
    fn percentile_of_sorted_latencies() {
        let sorted: Vec<Duration> = (1..=101).map(Duration::from_millis).collect();
        assert!((percentile(&sorted, 50.0) - 51.0).abs() < 1e-9);
        assert!((percentile(&sorted, 99.0) - 100.0).abs() < 1e-9);
        assert!(percentile(&[], 50.0).abs() < 1e-9);
    }
}
