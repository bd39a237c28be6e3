//! HTTP/2 and gRPC over `h2`, on a runtime of one thread.
//!
//! The runtime's timers have milliseconds, so the pacing task yields to the connections in turns over the last part of
//! the way to the next send time.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Ping;
use h2::client::{self, SendRequest};
use http::Request;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio_rustls::TlsConnector;

use crate::clock::{RunClock, thread_cpu_time};
use crate::error::LoadError;
use crate::outcome::{ErrorKind, Outcome, Tally};
use crate::run::{Observer, Part, SessionOptions};
use crate::schedule::{Due, Pacing};
use crate::target::{Protocol, Target};

/// The last part of the way to a send time, in nanoseconds, in which the pacing task yields instead of sleeping.
const POLL: u64 = 1_500_000;
/// Time limit of opening a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Time between two attempts to open a connection again.
const RETRY: Duration = Duration::from_millis(100);
/// Flow-control window of a stream and of a connection: 1 MiB, so that windows do not slow a load down.
const WINDOW: u32 = 1 << 20;

type Head = (Request<()>, Bytes);

/// Connections of one thread.
#[derive(Debug)]
pub(crate) struct Http2 {
    runtime: Runtime,
    target: Target,
    tls: Option<Arc<ClientConfig>>,
    connections: Vec<SendRequest<Bytes>>,
    streams: usize,
    is_grpc: bool,
}

impl Http2 {
    /// Opens the connections and waits for them.
    pub(crate) fn open(
        target: &Target,
        tls: Option<Arc<ClientConfig>>,
        connections: usize,
        options: &SessionOptions,
    ) -> Result<Self, LoadError> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // A task that yields must not keep the sockets waiting.
            .event_interval(1)
            .build()?;
        let mut opened = Self {
            runtime,
            target: target.clone(),
            tls,
            connections: Vec::new(),
            streams: options.streams,
            is_grpc: options.protocol == Protocol::Grpc,
        };
        for _ in 0..connections {
            let connection = opened.connect()?;
            opened.connections.push(connection);
        }
        Ok(opened)
    }

    fn connect(&self) -> Result<SendRequest<Bytes>, LoadError> {
        let (target, tls) = (self.target.clone(), self.tls.clone());
        let connecting = async move {
            match tokio::time::timeout(CONNECT, connect(&target, tls)).await {
                Ok(result) => result,
                Err(_) => Err(LoadError::Connect {
                    address: target.address,
                    reason: format!("no connection within {} s", CONNECT.as_secs()),
                }),
            }
        };
        self.runtime.block_on(connecting)
    }
}

impl Http2 {
    /// Sends the requests of one thread's part of a run, and waits for their responses.
    pub(crate) fn run(
        &mut self,
        requests: &[Head],
        part: &Part<'_>,
        observer: &mut Observer<'_>,
    ) -> Outcome {
        std::thread::sleep(
            part.begin
                .saturating_duration_since(std::time::Instant::now()),
        );
        let clock = RunClock::from(part.begin);
        let slots = self.connections.iter().map(|sender| Slot {
            sender: sender.clone(),
            is_open: true,
            free: self.streams,
            free_since: 0,
        });
        let run = Run {
            shared: Rc::new(Shared {
                outcome: RefCell::new(Outcome {
                    phases: vec![Tally::default(); part.pacing.phases()],
                    ..Outcome::default()
                }),
                slots: RefCell::new(slots.collect()),
                freed: Notify::new(),
                clock,
                target: self.target.clone(),
                tls: self.tls.clone(),
                is_grpc: self.is_grpc,
                expected: part.expected.clone(),
                timeout: Duration::from_nanos(part.timeout),
                window: Cell::new((u64::MAX, 0)),
                busy: Cell::new(0),
                finished: Cell::new(0),
            }),
            requests,
            part,
            next_request: part.index,
            polled: 0,
        };
        let begin = clock.now();
        let cpu_before = thread_cpu_time();
        let shared = Rc::clone(&run.shared);
        let polled = LocalSet::new().block_on(&self.runtime, run.drive(observer));
        // Connections that were opened again serve the next run.
        self.connections = shared
            .slots
            .borrow()
            .iter()
            .map(|slot| slot.sender.clone())
            .collect();
        let mut outcome = shared.outcome.take();
        let cpu = thread_cpu_time().saturating_sub(cpu_before);
        outcome.elapsed = clock.now().saturating_sub(begin);
        outcome.generator_cpu = cpu;
        outcome.generator_busy = cpu.saturating_sub(polled);
        outcome.busiest_thread = outcome.generator_busy;
        let (first, last) = shared.window.get();
        outcome.seconds = last.saturating_sub(first) as f64 / 1e9;
        outcome
    }
}

/// State that the tasks of a run share.
struct Shared {
    outcome: RefCell<Outcome>,
    slots: RefCell<Vec<Slot>>,
    /// A stream ended, or a connection was opened.
    freed: Notify,
    clock: RunClock,
    target: Target,
    tls: Option<Arc<ClientConfig>>,
    is_grpc: bool,
    expected: RangeInclusive<u16>,
    timeout: Duration,
    /// Times of the first recorded send and of the last recorded response.
    window: Cell<(u64, u64)>,
    /// Requests under way.
    busy: Cell<usize>,
    /// Requests that ended.
    finished: Cell<u64>,
}

/// One connection during a run.
struct Slot {
    sender: SendRequest<Bytes>,
    is_open: bool,
    /// How many more streams it may have.
    free: usize,
    free_since: u64,
}

struct Run<'run> {
    shared: Rc<Shared>,
    requests: &'run [Head],
    part: &'run Part<'run>,
    next_request: usize,
    /// Nanoseconds of waiting by yielding.
    polled: u64,
}

impl Run<'_> {
    async fn drive(mut self, observer: &mut Observer<'_>) -> u64 {
        match self.part.pacing {
            Pacing::Closed { warm_up, seconds } => {
                let warm_up = (warm_up * 1e9) as u64;
                let end = warm_up + (seconds * 1e9) as u64;
                self.closed(warm_up, end, observer).await;
                self.drain(end, observer).await;
            }
            Pacing::Open(schedule) => {
                let end = u64::try_from(schedule.duration().as_nanos()).unwrap_or(u64::MAX);
                let mut times = schedule.times(self.part.index, self.part.count);
                let mut next = times.next_due();
                while let Some(due) = next {
                    if self.shared.clock.now() > end.saturating_add(self.part.timeout) {
                        break;
                    }
                    if self.send_at(due, observer).await {
                        next = times.next_due();
                    }
                }
                self.drain(end, observer).await;
                let now = self.shared.clock.now();
                let mut outcome = self.shared.outcome.borrow_mut();
                while let Some(due) = next {
                    if let Some(tally) = self
                        .part
                        .measured(due.phase)
                        .and_then(|phase| outcome.phases.get_mut(phase))
                    {
                        tally.due += 1;
                        tally.record_unsent(now.saturating_sub(due.nanoseconds));
                    }
                    next = times.next_due();
                }
            }
        }
        self.polled
    }

    async fn closed(&mut self, warm_up: u64, end: u64, observer: &mut Observer<'_>) {
        loop {
            let now = self.shared.clock.now();
            if now >= end {
                return;
            }
            observer.observe(now, &self.shared.outcome.borrow());
            if let Some(index) = self.free_slot() {
                self.send(index, now, (now >= warm_up).then_some(0), false);
            } else {
                let wait = Duration::from_nanos((end - now).min(50_000_000));
                let _ = tokio::time::timeout(wait, self.shared.freed.notified()).await;
            }
        }
    }

    /// Waits for a send time and a free stream for a while. Returns whether the request was sent.
    async fn send_at(&mut self, due: Due, observer: &mut Observer<'_>) -> bool {
        let now = self.shared.clock.now();
        observer.observe(now, &self.shared.outcome.borrow());
        if due.nanoseconds > now {
            let left = due.nanoseconds - now;
            if left > POLL {
                let until = self.shared.clock.instant(due.nanoseconds - POLL);
                tokio::time::sleep_until(until.into()).await;
            } else {
                let finished = self.shared.finished.get();
                tokio::task::yield_now().await;
                if finished == self.shared.finished.get() {
                    self.polled += self.shared.clock.now() - now;
                }
            }
            return false;
        }
        if let Some(index) = self.free_slot() {
            self.send(index, due.nanoseconds, self.part.measured(due.phase), true);
            return true;
        }
        let _ = tokio::time::timeout(Duration::from_millis(50), self.shared.freed.notified()).await;
        false
    }

    /// Waits for the requests under way: until the end of the run, and then at most the time limit of a request.
    async fn drain(&self, end: u64, observer: &mut Observer<'_>) {
        let last = end.saturating_add(self.part.timeout);
        loop {
            let now = self.shared.clock.now();
            if (now >= end && self.shared.busy.get() == 0) || now > last {
                return;
            }
            observer.observe(now, &self.shared.outcome.borrow());
            let _ =
                tokio::time::timeout(Duration::from_millis(5), self.shared.freed.notified()).await;
        }
    }

    /// Index of the connection with the most free streams.
    fn free_slot(&self) -> Option<usize> {
        let slots = self.shared.slots.borrow();
        let open = slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_open && slot.free > 0);
        open.max_by_key(|(_, slot)| slot.free)
            .map(|(index, _)| index)
    }

    fn send(&mut self, index: usize, intended: u64, phase: Option<usize>, is_open_loop: bool) {
        let shared = Rc::clone(&self.shared);
        let Some((head, body)) = self.requests.get(self.next_request) else {
            return;
        };
        self.next_request = (self.next_request + self.part.count) % self.requests.len().max(1);
        let (head, body) = (clone_head(head), body.clone());
        let now = shared.clock.now();
        let (sender, free_since) = {
            let mut slots = shared.slots.borrow_mut();
            let Some(slot) = slots.get_mut(index) else {
                return;
            };
            slot.free -= 1;
            (slot.sender.clone(), slot.free_since)
        };
        let mut outcome = shared.outcome.borrow_mut();
        if let Some(tally) = phase.and_then(|phase| outcome.phases.get_mut(phase)) {
            tally.due += 1;
            if is_open_loop {
                tally.record_send(intended, free_since, now);
            } else {
                tally.sent += 1;
            }
        }
        drop(outcome);
        shared.busy.set(shared.busy.get() + 1);
        tokio::task::spawn_local(async move {
            let exchanging = exchange(&shared, sender, head, body);
            let result = tokio::time::timeout(shared.timeout, exchanging).await;
            shared.finish(
                index,
                phase,
                intended,
                now,
                result.unwrap_or(Err(ErrorKind::Timeout)),
            );
        });
    }
}

impl Shared {
    fn finish(
        self: &Rc<Self>,
        index: usize,
        phase: Option<usize>,
        intended: u64,
        sent: u64,
        result: Result<u16, ErrorKind>,
    ) {
        let now = self.clock.now();
        self.busy.set(self.busy.get() - 1);
        self.finished.set(self.finished.get() + 1);
        if let Some(phase) = phase {
            let (first, last) = self.window.get();
            self.window.set((first.min(sent), last.max(now)));
            let mut outcome = self.outcome.borrow_mut();
            if let Some(tally) = outcome.phases.get_mut(phase) {
                let latency = now.saturating_sub(intended);
                match result {
                    Ok(status) => {
                        let is_expected = self.expected.contains(&status);
                        tally.record_response(
                            status,
                            is_expected,
                            latency,
                            now.saturating_sub(sent),
                        );
                    }
                    Err(ErrorKind::Timeout) => tally.record_timeout(latency),
                    Err(kind) => tally.record_error(kind),
                }
            }
        }
        let mut slots = self.slots.borrow_mut();
        if let Some(slot) = slots.get_mut(index) {
            slot.free += 1;
            slot.free_since = now;
            if matches!(result, Err(ErrorKind::Closed)) && slot.is_open {
                slot.is_open = false;
                tokio::task::spawn_local(Rc::clone(self).reopen(index));
            }
        }
        self.freed.notify_one();
    }

    /// Opens a connection again; tries until it succeeds or the run ends.
    async fn reopen(self: Rc<Self>, index: usize) {
        loop {
            self.outcome.borrow_mut().reconnects += 1;
            if let Ok(sender) = connect(&self.target, self.tls.clone()).await {
                if let Some(slot) = self.slots.borrow_mut().get_mut(index) {
                    slot.sender = sender;
                    slot.is_open = true;
                    slot.free_since = self.clock.now();
                }
                self.freed.notify_one();
                return;
            }
            if let Some(tally) = self.outcome.borrow_mut().phases.last_mut() {
                tally.record_error(ErrorKind::Connect);
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Sends one request and reads its response to the end. Returns the status.
async fn exchange(
    shared: &Shared,
    sender: SendRequest<Bytes>,
    head: Request<()>,
    body: Bytes,
) -> Result<u16, ErrorKind> {
    let kind = |error: h2::Error| {
        if error.is_io() || error.is_go_away() {
            ErrorKind::Closed
        } else {
            ErrorKind::Reset
        }
    };
    let mut sender = sender.ready().await.map_err(|_| ErrorKind::Closed)?;
    let size = body.len() as u64;
    let (response, mut stream) = sender.send_request(head, body.is_empty()).map_err(kind)?;
    if !body.is_empty() {
        stream.send_data(body, true).map_err(kind)?;
    }
    let response = response.await.map_err(kind)?;
    let status = response.status().as_u16();
    let early = response.headers().get("grpc-status").cloned();
    let mut body = response.into_body();
    let mut received = 0;
    while let Some(chunk) = body.data().await {
        let length = chunk.map_err(kind)?.len();
        received += length as u64;
        // The stream may have ended already, which frees its window, too.
        let _ = body.flow_control().release_capacity(length);
    }
    {
        let mut outcome = shared.outcome.borrow_mut();
        outcome.bytes_sent += size;
        outcome.bytes_received += received;
    }
    if shared.is_grpc {
        let trailers = body.trailers().await.map_err(kind)?;
        let late = trailers.and_then(|trailers| trailers.get("grpc-status").cloned());
        if late.or(early).is_none_or(|status| status != "0") {
            return Err(ErrorKind::GrpcStatus);
        }
    }
    Ok(status)
}

async fn connect(
    target: &Target,
    tls: Option<Arc<ClientConfig>>,
) -> Result<SendRequest<Bytes>, LoadError> {
    let address = target.address;
    let refused = |error: std::io::Error| LoadError::Connect {
        address,
        reason: error.to_string(),
    };
    let stream = TcpStream::connect(address).await.map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    match tls {
        None => handshake(stream, target).await,
        Some(config) => {
            let failed = |reason: String| LoadError::Tls { address, reason };
            let stream = TlsConnector::from(config)
                .connect(target.server_name()?, stream)
                .await
                .map_err(|error| failed(error.to_string()))?;
            handshake(stream, target).await
        }
    }
}

async fn handshake<S>(stream: S, target: &Target) -> Result<SendRequest<Bytes>, LoadError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |error: h2::Error| LoadError::Http2 {
        address: target.address,
        reason: error.to_string(),
    };
    let (sender, mut connection) = client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake(stream)
        .await
        .map_err(failed)?;
    let ping = connection.ping_pong();
    // Its end is seen by the requests on it. It outlives a run, so it is the runtime's task.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    // The answer to a ping shows whether the target speaks HTTP/2 at all.
    if let Some(mut ping) = ping {
        ping.ping(Ping::opaque()).await.map_err(failed)?;
    }
    sender.ready().await.map_err(failed)
}

fn clone_head(head: &Request<()>) -> Request<()> {
    let mut copy = Request::new(());
    head.method().clone_into(copy.method_mut());
    head.uri().clone_into(copy.uri_mut());
    *copy.version_mut() = head.version();
    head.headers().clone_into(copy.headers_mut());
    copy
}
