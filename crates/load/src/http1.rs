//! HTTP/1.1 over epoll: one thread, connections that are kept, one request at a time on each.
//!
//! The loop sleeps until shortly before the next intended send time and polls the rest of the way, because a timer of
//! the kernel is late by tens of microseconds. Requests that are due while every connection is busy are not queued:
//! the schedule's iterator stands at the oldest of them, so an overload takes no memory.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustls::ClientConfig;

use crate::clock::{RunClock, thread_cpu_time};
use crate::error::LoadError;
use crate::outcome::{ErrorKind, Outcome, Tally};
use crate::response::ResponseReader;
use crate::run::{Observer, Part};
use crate::schedule::{Due, Pacing, Times};
use crate::socket::Socket;
use crate::target::Target;

/// The last nanoseconds before a send time, in which the loop polls instead of sleeping.
const POLL: u64 = 80_000;
/// Nanoseconds between two searches for requests that took too long.
const TIMEOUT_CHECK: u64 = 20_000_000;
/// Nanoseconds between two attempts to open a connection that was refused.
const RETRY: u64 = 100_000_000;
/// Bytes that are read at once.
const BUFFER: usize = 64 * 1024;
/// Events that are taken from epoll at once.
const EVENTS: usize = 256;

/// Request as bytes.
#[derive(Debug, Clone)]
pub(crate) struct Http1Request {
    pub(crate) bytes: Bytes,
    pub(crate) has_no_response_body: bool,
}

/// Connections of one thread.
#[derive(Debug)]
pub(crate) struct Http1 {
    target: Target,
    tls: Option<Arc<ClientConfig>>,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    idle: VecDeque<usize>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    socket: Option<Socket>,
    reader: ResponseReader,
    state: State,
    /// Whether epoll reports that the socket can be written to.
    watches_write: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Free since this time.
    Idle(u64),
    /// A request is under way.
    Busy(InFlight),
    /// The connection is being opened.
    Opening,
    /// Opening failed; the next attempt is at this time.
    Closed(u64),
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    intended: u64,
    sent: u64,
    /// `None` during the warm-up.
    phase: Option<usize>,
    request: usize,
    /// Bytes of the request that were written.
    written: usize,
}

/// End of an attempt to go on with a connection.
enum Step {
    Wait,
    Finished {
        status: u16,
        is_kept: bool,
    },
    Failed(ErrorKind),
    /// The target closed a connection that carried no request.
    ClosedIdle,
}

impl Http1 {
    /// Opens the connections and waits for them.
    pub(crate) fn open(
        target: &Target,
        tls: Option<Arc<ClientConfig>>,
        connections: usize,
    ) -> Result<Self, LoadError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        // Without it the kernel may add 50 µs to each sleep. Where it is refused, sends are later, and the report says so.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut opened = Vec::new();
        for index in 0..connections {
            let socket = Socket::connect(target, tls.as_ref())?;
            epoll::add(
                &epoll,
                &socket,
                epoll::EventData::new_u64(index as u64),
                epoll::EventFlags::IN,
            )
            .map_err(io::Error::from)?;
            opened.push(Connection {
                socket: Some(socket),
                reader: ResponseReader::new(),
                state: State::Idle(0),
                watches_write: false,
            });
        }
        Ok(Self {
            target: target.clone(),
            tls,
            epoll,
            connections: opened,
            idle: VecDeque::new(),
            buffer: vec![0; BUFFER],
        })
    }

    /// Sends the requests of one thread's part of a run, and waits for their responses.
    pub(crate) fn run(
        &mut self,
        requests: &[Http1Request],
        part: &Part<'_>,
        observer: &mut Observer<'_>,
    ) -> Outcome {
        self.idle.clear();
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if let State::Idle(since) = &mut connection.state {
                *since = 0;
                self.idle.push_back(index);
            }
        }
        let mut run = Run::new(self, requests, part);
        run.go(observer);
        run.outcome
    }
}

/// Source of the next send.
enum Source<'run> {
    Closed {
        warm_up: u64,
        end: u64,
    },
    Open {
        times: Times<'run>,
        next: Option<Due>,
        end: u64,
    },
}

/// One run over the connections of a thread.
struct Run<'run> {
    http: &'run mut Http1,
    requests: &'run [Http1Request],
    part: &'run Part<'run>,
    clock: RunClock,
    source: Source<'run>,
    outcome: Outcome,
    /// Requests under way.
    busy: usize,
    next_request: usize,
    first_send: Option<u64>,
    last_response: u64,
    next_timeout_check: u64,
}

impl<'run> Run<'run> {
    fn new(http: &'run mut Http1, requests: &'run [Http1Request], part: &'run Part<'run>) -> Self {
        let source = match part.pacing {
            Pacing::Closed { warm_up, seconds } => Source::Closed {
                warm_up: nanoseconds(*warm_up),
                end: nanoseconds(warm_up + seconds),
            },
            Pacing::Open(schedule) => {
                let mut times = schedule.times(part.index, part.count);
                let next = times.next_due();
                Source::Open {
                    times,
                    next,
                    end: u64::try_from(schedule.duration().as_nanos()).unwrap_or(u64::MAX),
                }
            }
        };
        Self {
            http,
            requests,
            part,
            clock: RunClock::from(part.begin),
            source,
            outcome: Outcome {
                phases: vec![Tally::default(); part.pacing.phases()],
                ..Outcome::default()
            },
            busy: 0,
            next_request: part.index,
            first_send: None,
            last_response: 0,
            next_timeout_check: 0,
        }
    }

    fn go(&mut self, observer: &mut Observer<'_>) {
        std::thread::sleep(
            self.part
                .begin
                .saturating_duration_since(std::time::Instant::now()),
        );
        let begin = self.clock.now();
        let cpu_before = thread_cpu_time();
        let mut waited = 0;
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            let now = self.clock.now();
            self.send_due(now);
            if self.is_finished(now) {
                break;
            }
            if now >= self.next_timeout_check {
                self.next_timeout_check = now + TIMEOUT_CHECK;
                self.check_timeouts(now);
            }
            observer.observe(now, &self.outcome);
            let sleep = self.time_to_sleep();
            let before = self.clock.now();
            self.wait(sleep, &mut events);
            waited += self.clock.now().saturating_sub(before);
            for event in &events {
                let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                self.handle(index);
            }
        }
        self.give_up(self.clock.now());
        let cpu = thread_cpu_time().saturating_sub(cpu_before);
        let outcome = &mut self.outcome;
        outcome.elapsed = self.clock.now().saturating_sub(begin);
        outcome.generator_cpu = cpu;
        outcome.generator_busy = match self.source {
            Source::Closed { .. } => cpu,
            // What it polled for is no work.
            Source::Open { .. } => outcome.elapsed.saturating_sub(waited).min(cpu),
        };
        outcome.busiest_thread = outcome.generator_busy;
        let first = self.first_send.unwrap_or_default();
        outcome.seconds = self.last_response.saturating_sub(first) as f64 / 1e9;
    }

    /// Sends all requests that are due and for which a connection is free.
    fn send_due(&mut self, now: u64) {
        loop {
            let Some(index) = self.http.idle.front().copied() else {
                return;
            };
            let (intended, phase) = match &mut self.source {
                Source::Closed { warm_up, end } => {
                    if now >= *end {
                        return;
                    }
                    (now, (now >= *warm_up).then_some(0))
                }
                Source::Open { times, next, .. } => {
                    let Some(due) = *next else {
                        return;
                    };
                    if due.nanoseconds > now {
                        return;
                    }
                    *next = times.next_due();
                    (due.nanoseconds, self.part.measured(due.phase))
                }
            };
            self.http.idle.pop_front();
            self.send(index, intended, phase);
        }
    }

    fn send(&mut self, index: usize, intended: u64, phase: Option<usize>) {
        let now = self.clock.now();
        let request = self.next_request;
        self.next_request = (request + self.part.count) % self.requests.len().max(1);
        let Some(connection) = self.http.connections.get_mut(index) else {
            return;
        };
        let free_since = match connection.state {
            State::Idle(since) => since,
            _ => now,
        };
        connection.state = State::Busy(InFlight {
            intended,
            sent: now,
            phase,
            request,
            written: 0,
        });
        self.busy += 1;
        if let Some(tally) = phase.and_then(|phase| self.outcome.phases.get_mut(phase)) {
            tally.due += 1;
            match self.source {
                Source::Closed { .. } => tally.sent += 1,
                Source::Open { .. } => tally.record_send(intended, free_since, now),
            }
            self.first_send.get_or_insert(now);
        }
        if let Err(kind) = self.write(index) {
            self.fail(index, kind);
        }
    }

    /// Writes the rest of a connection's request.
    fn write(&mut self, index: usize) -> Result<(), ErrorKind> {
        let Some(connection) = self.http.connections.get_mut(index) else {
            return Ok(());
        };
        let (State::Busy(flight), Some(socket)) = (&mut connection.state, &mut connection.socket)
        else {
            return Ok(());
        };
        let bytes = self
            .requests
            .get(flight.request)
            .map_or(&[][..], |request| request.bytes.as_ref());
        while let Some(rest) = bytes.get(flight.written..).filter(|rest| !rest.is_empty()) {
            match socket.write(rest) {
                Ok(count) => {
                    flight.written += count;
                    self.outcome.bytes_sent += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ErrorKind::Closed),
            }
        }
        let watch = flight.written < bytes.len() || socket.wants_write();
        if watch != connection.watches_write {
            connection.watches_write = watch;
            self.watch(index);
        }
        Ok(())
    }

    /// Tells epoll which events of a connection are wanted.
    fn watch(&self, index: usize) {
        if let Some(Connection {
            socket: Some(socket),
            watches_write,
            ..
        }) = self.http.connections.get(index)
        {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, *watches_write);
            let data = epoll::EventData::new_u64(index as u64);
            // The socket is registered as long as it is open.
            let _ = epoll::modify(&self.http.epoll, socket, data, flags);
        }
    }

    fn is_finished(&self, now: u64) -> bool {
        let (is_over, end) = match &self.source {
            Source::Closed { end, .. } => (now >= *end, *end),
            Source::Open { next, end, .. } => (next.is_none() && now >= *end, *end),
        };
        (is_over && self.busy == 0) || now > end.saturating_add(self.part.timeout)
    }

    /// Nanoseconds that nothing has to be done for, but for events.
    fn time_to_sleep(&self) -> u64 {
        let now = self.clock.now();
        let mut until = self.next_timeout_check;
        match &self.source {
            Source::Closed { end, .. } => {
                if now < *end {
                    until = until.min(*end);
                }
            }
            Source::Open { next, end, .. } => match next {
                // Requests that are due already wait for a connection, so for an event.
                Some(due) if !self.http.idle.is_empty() => {
                    until = until.min(due.nanoseconds.saturating_sub(POLL));
                }
                None if now < *end => until = until.min(*end),
                _ => {}
            },
        }
        until.saturating_sub(now)
    }

    /// Waits for events, at most so long.
    fn wait(&self, nanoseconds: u64, events: &mut Vec<epoll::Event>) {
        events.clear();
        let mut timeout = Timespec {
            tv_sec: (nanoseconds / 1_000_000_000).cast_signed(),
            tv_nsec: (nanoseconds % 1_000_000_000).cast_signed(),
        };
        if nanoseconds > 0 && matches!(self.source, Source::Open { .. }) {
            // The time limit of epoll_wait has milliseconds; that of ppoll, nanoseconds.
            let mut ready = [PollFd::new(&self.http.epoll, PollFlags::IN)];
            let _ = poll(&mut ready, Some(&timeout));
            timeout = Timespec::default();
        }
        // An interrupted wait is one without events.
        let _ = epoll::wait(
            &self.http.epoll,
            rustix::buffer::spare_capacity(events),
            Some(&timeout),
        );
    }

    fn handle(&mut self, index: usize) {
        match self.step(index) {
            Step::Wait => {}
            Step::Finished { status, is_kept } => self.finish(index, status, is_kept),
            Step::Failed(kind) => self.fail(index, kind),
            Step::ClosedIdle => {
                self.http.idle.retain(|idle| *idle != index);
                self.reopen(index);
            }
        }
    }

    fn step(&mut self, index: usize) -> Step {
        let Some(connection) = self.http.connections.get_mut(index) else {
            return Step::Wait;
        };
        let Some(socket) = &mut connection.socket else {
            return Step::Wait;
        };
        if matches!(connection.state, State::Opening) {
            if socket.take_error().is_some() {
                return Step::Failed(ErrorKind::Connect);
            }
            connection.state = State::Idle(self.clock.now());
            connection.watches_write = false;
            self.http.idle.push_back(index);
            self.watch(index);
            return Step::Wait;
        }
        if connection.watches_write {
            if let Err(error) = socket.flush()
                && error.kind() != io::ErrorKind::WouldBlock
            {
                return Step::Failed(ErrorKind::Closed);
            }
            if let Err(kind) = self.write(index) {
                return Step::Failed(kind);
            }
        }
        self.read(index)
    }

    fn read(&mut self, index: usize) -> Step {
        let Some(connection) = self.http.connections.get_mut(index) else {
            return Step::Wait;
        };
        let Some(socket) = &mut connection.socket else {
            return Step::Wait;
        };
        let (is_busy, has_no_body) = match &connection.state {
            State::Busy(flight) => {
                let request = self.requests.get(flight.request);
                (
                    true,
                    request.is_some_and(|request| request.has_no_response_body),
                )
            }
            _ => (false, false),
        };
        loop {
            match socket.read(&mut self.http.buffer) {
                Ok(0) if !is_busy => return Step::ClosedIdle,
                Ok(0) => {
                    return match connection.reader.close() {
                        Some(finished) => Step::Finished {
                            status: finished.status,
                            is_kept: false,
                        },
                        None => Step::Failed(ErrorKind::Closed),
                    };
                }
                Ok(count) => {
                    self.outcome.bytes_received += count as u64;
                    let bytes = self.http.buffer.get(..count).unwrap_or_default();
                    if !is_busy {
                        return Step::ClosedIdle;
                    }
                    match connection.reader.read(bytes, has_no_body) {
                        Ok(Some(finished)) => {
                            return Step::Finished {
                                status: finished.status,
                                is_kept: finished.is_kept,
                            };
                        }
                        Ok(None) if count < BUFFER && matches!(socket, Socket::Plain(_)) => {
                            return Step::Wait;
                        }
                        Ok(None) => {}
                        Err(_) => return Step::Failed(ErrorKind::Malformed),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Step::Wait,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if !is_busy => return Step::ClosedIdle,
                Err(_) => return Step::Failed(ErrorKind::Closed),
            }
        }
    }

    fn finish(&mut self, index: usize, status: u16, is_kept: bool) {
        let now = self.clock.now();
        let Some(connection) = self.http.connections.get_mut(index) else {
            return;
        };
        if let State::Busy(flight) = connection.state {
            connection.state = State::Idle(now);
            self.busy -= 1;
            if let Some(tally) = flight
                .phase
                .and_then(|phase| self.outcome.phases.get_mut(phase))
            {
                let is_expected = self.part.is_expected(status);
                tally.record_response(
                    status,
                    is_expected,
                    now - flight.intended.min(now),
                    now - flight.sent.min(now),
                );
                self.last_response = now;
            }
        }
        if is_kept {
            self.http.idle.push_back(index);
            // In a closed loop the next request follows at once.
            if matches!(self.source, Source::Closed { .. }) {
                self.send_due(now);
            }
        } else {
            self.reopen(index);
        }
    }

    fn fail(&mut self, index: usize, kind: ErrorKind) {
        let now = self.clock.now();
        let Some(connection) = self.http.connections.get_mut(index) else {
            return;
        };
        let state = connection.state;
        connection.state = State::Closed(now + RETRY);
        if let State::Busy(flight) = state {
            self.busy -= 1;
            if let Some(tally) = self.tally(flight.phase) {
                match kind {
                    ErrorKind::Timeout => tally.record_timeout(now.saturating_sub(flight.intended)),
                    kind => tally.record_error(kind),
                }
            }
            self.reopen(index);
        } else {
            connection.socket = None;
            if let Some(tally) = self.outcome.phases.last_mut() {
                tally.record_error(kind);
            }
        }
    }

    fn tally(&mut self, phase: Option<usize>) -> Option<&mut Tally> {
        self.outcome.phases.get_mut(phase?)
    }

    /// Closes a connection and begins to open it again.
    fn reopen(&mut self, index: usize) {
        let opened = Socket::start(&self.http.target, self.http.tls.as_ref());
        let now = self.clock.now();
        let Some(connection) = self.http.connections.get_mut(index) else {
            return;
        };
        self.outcome.reconnects += 1;
        connection.reader = ResponseReader::new();
        connection.socket = None;
        connection.state = State::Closed(now + RETRY);
        if let Ok(socket) = opened {
            let data = epoll::EventData::new_u64(index as u64);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
            if epoll::add(&self.http.epoll, &socket, data, flags).is_ok() {
                connection.socket = Some(socket);
                connection.state = State::Opening;
                connection.watches_write = true;
            }
        }
    }

    fn check_timeouts(&mut self, now: u64) {
        for index in 0..self.http.connections.len() {
            match self
                .http
                .connections
                .get(index)
                .map(|connection| connection.state)
            {
                Some(State::Busy(flight))
                    if now.saturating_sub(flight.sent) > self.part.timeout =>
                {
                    self.fail(index, ErrorKind::Timeout);
                }
                Some(State::Closed(until)) if now >= until => self.reopen(index),
                _ => {}
            }
        }
    }

    /// Counts what is left when time is over.
    fn give_up(&mut self, now: u64) {
        for index in 0..self.http.connections.len() {
            if let Some(State::Busy(_)) = self
                .http
                .connections
                .get(index)
                .map(|connection| connection.state)
            {
                self.fail(index, ErrorKind::Timeout);
            }
        }
        if let Source::Open { times, next, .. } = &mut self.source {
            while let Some(due) = *next {
                if let Some(tally) = self
                    .part
                    .measured(due.phase)
                    .and_then(|phase| self.outcome.phases.get_mut(phase))
                {
                    tally.due += 1;
                    tally.record_unsent(now.saturating_sub(due.nanoseconds));
                }
                *next = times.next_due();
            }
        }
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}
