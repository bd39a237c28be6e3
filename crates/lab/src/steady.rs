//! A load that goes on until it is told to stop, and says whether anything was lost meanwhile.
//!
//! Each connection sends its next request when it has the answer to the last (a closed loop), so this
//! shows that nothing fails or is cut; it measures no latency, for which it would lie under load.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::{ClientError, Connection, Request, Response, Target};

/// How many failures are kept in detail.
const DETAILED: usize = 8;

/// The pause before connecting again where connecting failed.
const RECONNECT: Duration = Duration::from_millis(20);

/// How long a connection is watched at the end for a close that is on its way.
const LAST_LOOK: Duration = Duration::from_millis(20);

type Make = Arc<dyn Fn(Turn) -> Request + Send + Sync>;
type Check = Arc<dyn Fn(Turn, &Response) -> Result<(), String> + Send + Sync>;

/// Which request of which connection; both count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The connection's number. One that was closed is opened again under its number.
    pub connection: usize,
    /// The request's number on this connection.
    pub request: u64,
}

/// What to send, and what counts as good.
#[derive(Clone)]
pub struct SteadyPlan {
    target: Target,
    connections: usize,
    pause: Duration,
    make: Make,
    check: Check,
}

impl fmt::Debug for SteadyPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SteadyPlan")
            .field("target", &self.target)
            .field("connections", &self.connections)
            .field("pause", &self.pause)
            .finish_non_exhaustive()
    }
}

impl SteadyPlan {
    /// That many connections that send this request over and over; each status of 2xx is good.
    pub fn new(target: Target, connections: usize, request: Request) -> Self {
        Self {
            target,
            connections,
            pause: Duration::ZERO,
            make: Arc::new(move |_| request.clone()),
            check: Arc::new(|_, response| {
                if (200..300).contains(&response.status) {
                    Ok(())
                } else {
                    Err(format!("status {}: {}", response.status, excerpt(response)))
                }
            }),
        }
    }

    /// Makes each request anew.
    pub fn requests(mut self, make: impl Fn(Turn) -> Request + Send + Sync + 'static) -> Self {
        self.make = Arc::new(make);
        self
    }

    /// Judges each response, instead of by 2xx; an error says what is wrong with it.
    pub fn check(
        mut self,
        check: impl Fn(Turn, &Response) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.check = Arc::new(check);
        self
    }

    /// A pause between a response and the next request; none by default.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Opens all connections, then sends. Fails when one cannot be opened.
    pub async fn start(self) -> Result<Steady, ClientError> {
        let mut connections = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            connections.push(Connection::open(&self.target).await?);
        }
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = watch::channel(false);
        let plan = Arc::new(self);
        let mut tasks = JoinSet::new();
        for (number, connection) in connections.into_iter().enumerate() {
            let worker = Worker {
                plan: Arc::clone(&plan),
                counts: Arc::clone(&counts),
                number,
            };
            tasks.spawn(worker.run(connection, stopped.clone()));
        }
        Ok(Steady {
            connections: plan.connections,
            counts,
            began: Instant::now(),
            stop,
            tasks,
        })
    }
}

/// A load that is under way. Dropping it ends it at once.
#[derive(Debug)]
pub struct Steady {
    connections: usize,
    counts: Arc<Counts>,
    began: Instant,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Steady {
    /// What happened so far.
    pub fn so_far(&self) -> Summary {
        self.counts.summary(self.connections, self.began.elapsed())
    }

    /// Waits until that many more requests have been answered or have failed; whether they have in
    /// time. To be sure that a change was exercised.
    pub async fn advance(&self, requests: u64, within: Duration) -> bool {
        let wanted = self.counts.requests.load(Ordering::Relaxed) + requests;
        let deadline = Instant::now() + within;
        while self.counts.requests.load(Ordering::Relaxed) < wanted {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        true
    }

    /// Lets each connection finish its request, then says what happened.
    pub async fn stop(mut self) -> Summary {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        self.so_far()
    }
}

/// What happened under a steady load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// How many connections it ran on.
    pub connections: usize,
    /// Requests that were answered or have failed.
    pub requests: u64,
    /// Those of them that failed: no whole response, or one that the check refused.
    pub failed: u64,
    /// Connections that ended before the load was stopped, however politely.
    pub closed_connections: u64,
    /// The first few failures and closes, in words.
    pub details: Vec<String>,
    /// How long it ran.
    pub elapsed: Duration,
}

impl Summary {
    /// Whether nothing failed and no connection was closed, and there was something to fail.
    pub fn is_clean(&self) -> bool {
        self.requests > 0 && self.failed == 0 && self.closed_connections == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} requests on {} connections in {:.1} s, {} failed, {} connections closed",
            self.requests,
            self.connections,
            self.elapsed.as_secs_f64(),
            self.failed,
            self.closed_connections,
        )?;
        for detail in &self.details {
            write!(formatter, "\n  {detail}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    failed: AtomicU64,
    closed: AtomicU64,
    details: Mutex<Vec<String>>,
}

impl Counts {
    fn detail(&self, make: impl FnOnce() -> String) {
        let mut details = self.details.lock().unwrap_or_else(PoisonError::into_inner);
        if details.len() < DETAILED {
            details.push(make());
        }
    }

    fn summary(&self, connections: usize, elapsed: Duration) -> Summary {
        Summary {
            connections,
            requests: self.requests.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            closed_connections: self.closed.load(Ordering::Relaxed),
            details: self
                .details
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            elapsed,
        }
    }
}

/// One connection's part of the load.
struct Worker {
    plan: Arc<SteadyPlan>,
    counts: Arc<Counts>,
    number: usize,
}

impl Worker {
    async fn run(self, first: Connection, stopped: watch::Receiver<bool>) {
        let mut connection = Some(first);
        let mut turn = Turn {
            connection: self.number,
            request: 0,
        };
        // An error says that the handle was dropped: stop, too.
        while stopped.has_changed().is_ok() && !*stopped.borrow() {
            let Some(mut open) = connection.take() else {
                connection = self.open_again().await;
                continue;
            };
            let keep = self.exchange(turn, &mut open).await;
            turn.request += 1;
            if keep {
                connection = Some(open);
            }
            if !self.plan.pause.is_zero() {
                tokio::time::sleep(self.plan.pause).await;
            }
        }
        if let Some(mut open) = connection
            && open.closed_within(LAST_LOOK).await
        {
            self.closed(turn, &open);
        }
    }

    async fn open_again(&self) -> Option<Connection> {
        match Connection::open(&self.plan.target).await {
            Ok(connection) => Some(connection),
            Err(error) => {
                self.counts.requests.fetch_add(1, Ordering::Relaxed);
                self.failed(|| format!("connection {}: {error}", self.number));
                tokio::time::sleep(RECONNECT).await;
                None
            }
        }
    }

    /// One request; whether the connection can go on.
    async fn exchange(&self, turn: Turn, connection: &mut Connection) -> bool {
        let result = connection.send((self.plan.make)(turn)).await;
        if matches!(result, Err(ClientError::NotSent(_))) {
            // Nothing was lost but the connection.
            self.closed(turn, connection);
            return false;
        }
        let judged = match &result {
            Ok(response) => (self.plan.check)(turn, response),
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = judged {
            self.failed(|| {
                format!(
                    "connection {}, request {}: {reason}",
                    turn.connection, turn.request
                )
            });
        }
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(response) if announces_close(&response) => {
                self.closed(turn, connection);
                false
            }
            Ok(_) => true,
            // The stream alone failed, the connection may be as good as before.
            Err(ClientError::Reset(_)) if !connection.is_closed() => true,
            // This end gives up on it.
            Err(ClientError::Timeout(_) | ClientError::Invalid(_) | ClientError::Aborted) => false,
            Err(_) => {
                self.closed(turn, connection);
                false
            }
        }
    }

    fn failed(&self, reason: impl FnOnce() -> String) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        self.counts.detail(reason);
    }

    fn closed(&self, turn: Turn, connection: &Connection) {
        self.counts.closed.fetch_add(1, Ordering::Relaxed);
        self.counts.detail(|| {
            format!(
                "connection {} was closed after {} requests: {}",
                turn.connection,
                turn.request,
                connection.end().unwrap_or_else(|| "announced".to_owned()),
            )
        });
    }
}

fn announces_close(response: &Response) -> bool {
    response.headers.all("connection").iter().any(|value| {
        value
            .split(',')
            .any(|word| word.trim().eq_ignore_ascii_case("close"))
    })
}

fn excerpt(response: &Response) -> String {
    response.text().chars().take(160).collect()
}
