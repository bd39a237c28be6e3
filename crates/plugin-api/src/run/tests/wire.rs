//! A stream through a chain, with what leaves it: what Envoy's filter manager does around the run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::host::FakeHost;
use crate::{
    BodyBuffer, BodyMode, Call, Cause, Chain, ChainRun, Circuit, CircuitPolicy, ConfiguredPlugin,
    Decision, Direction, Effects, FailureAction, FailurePolicy, Fault, HeaderMap, Interest, Link,
    LinkMetrics, LogLevel, MetricId, MetricKind, Metrics, OwnedHeaders, Permissions, Reaction,
    Reply, Slot, Stream, Verdict, Wake, WakeId,
};

/// How a scripted plugin is called.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked<'a> {
    Call(Call),
    Resume(Direction, Wake<'a>),
    Event(Wake<'a>),
}

type Handler = dyn Fn(Asked<'_>, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync;
type Share = dyn Fn() -> Option<Duration> + Send + Sync;

/// A plugin that is a function.
pub(super) struct Scripted {
    handler: Box<Handler>,
    share: Box<Share>,
    sees_response_without_request: bool,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl ConfiguredPlugin for Scripted {
    fn call(&self, _: &mut Slot, call: Call, stream: &mut dyn Stream) -> Result<Decision, Fault> {
        (self.handler)(Asked::Call(call), stream)
    }

    fn resume(
        &self,
        _: &mut Slot,
        direction: Direction,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        (self.handler)(Asked::Resume(direction, wake), stream)
    }

    fn event(
        &self,
        _: &mut Slot,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Reaction, Fault> {
        match (self.handler)(Asked::Event(wake), stream)? {
            Decision::Reply(reply) => Ok(Reaction::reply(reply)),
            _ => Ok(Reaction::default()),
        }
    }

    fn wait_for_share(&self, _: usize, _: Duration) -> Option<Duration> {
        (self.share)()
    }

    fn sees_response_without_request(&self) -> bool {
        self.sees_response_without_request
    }

    fn end(&self, _: Slot, _: usize) {}
}

/// Numbers metrics as they are defined.
#[derive(Default)]
struct Numbered(Vec<String>);

impl Metrics for Numbered {
    fn define(&mut self, _: MetricKind, name: &str) -> Option<MetricId> {
        self.0.push(name.to_owned());
        u32::try_from(self.0.len() - 1).ok().map(MetricId)
    }

    fn log_enabled(&self, _: LogLevel) -> bool {
        true
    }

    fn log(&mut self, _: LogLevel, _: &str, _: &str) {}
}

pub(super) fn error(message: &str) -> Fault {
    Fault {
        cause: Cause::Error,
        message: message.to_owned(),
    }
}

/// All headers, and bodies chunk by chunk.
pub(super) fn streaming() -> Interest {
    Interest {
        request_headers: true,
        request_body: BodyMode::Stream,
        request_trailers: true,
        response_headers: true,
        response_body: BodyMode::Stream,
        response_trailers: true,
        log: true,
    }
}

/// All headers, and bodies whole.
pub(super) fn whole() -> Interest {
    Interest {
        request_body: BodyMode::Whole,
        response_body: BodyMode::Whole,
        ..streaming()
    }
}

pub(super) fn link(
    action: FailureAction,
    interest: Interest,
    handler: impl Fn(Asked<'_>, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync + 'static,
) -> Link {
    link_with_share(action, interest, || None, handler)
}

/// A link that sees no response without the request.
pub(super) fn link_with_request(
    interest: Interest,
    handler: impl Fn(Asked<'_>, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync + 'static,
) -> Link {
    let plugin = Scripted {
        handler: Box::new(handler),
        share: Box::new(|| None),
        sees_response_without_request: false,
    };
    Link {
        plugin: Some(Arc::new(plugin)),
        ..link(FailureAction::Closed, interest, |_, _| {
            Ok(Decision::Continue)
        })
    }
}

pub(super) fn link_with_share(
    action: FailureAction,
    interest: Interest,
    share: impl Fn() -> Option<Duration> + Send + Sync + 'static,
    handler: impl Fn(Asked<'_>, &mut dyn Stream) -> Result<Decision, Fault> + Send + Sync + 'static,
) -> Link {
    Link {
        name: "p".into(),
        plugin: Some(Arc::new(Scripted {
            handler: Box::new(handler),
            share: Box::new(share),
            sees_response_without_request: true,
        })),
        interest,
        failure_policy: FailurePolicy::new(500, |_| action),
        metrics: LinkMetrics::define("p", &mut Numbered::default()),
        faults: Arc::default(),
        times: None,
        circuit: Arc::new(Circuit::new(
            "gateway".to_owned(),
            Some(CircuitPolicy::default()),
            Arc::default(),
        )),
        permissions: Arc::new(Permissions {
            leave_project: false,
            ..Permissions::all()
        }),
        logs: Arc::default(),
        memory: Arc::default(),
    }
}

/// What left the chain in one direction.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) headers: Option<OwnedHeaders>,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Option<OwnedHeaders>,
    pub(super) ended: bool,
}

impl Sent {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let all = self.headers.as_ref()?.iter();
        all.filter(|(key, _)| key == name.as_bytes())
            .find_map(|(_, value)| std::str::from_utf8(value).ok())
    }
}

#[derive(Debug, Default)]
struct Side {
    sent: Sent,
    end: bool,
    trailers_came: bool,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) run: ChainRun,
    pub(super) host: FakeHost,
    pub(super) reply: Option<Reply>,
    sides: [Side; 2],
}

impl Wire {
    pub(super) fn new(links: Vec<Link>) -> Self {
        Self {
            run: ChainRun::new(Arc::new(Chain::new(links))),
            host: FakeHost {
                limit: 1 << 20,
                ..FakeHost::default()
            },
            reply: None,
            sides: Default::default(),
        }
    }

    pub(super) fn sent(&self, direction: Direction) -> &Sent {
        &self.sides[usize::from(direction == Direction::Response)].sent
    }

    fn side(&mut self, direction: Direction) -> &mut Side {
        &mut self.sides[usize::from(direction == Direction::Response)]
    }

    pub(super) fn headers(&mut self, direction: Direction, headers: &[(&str, &str)], end: bool) {
        if self.reply.is_some() {
            return;
        }
        *self.host.map(direction.headers()) = Some(super::host::list(headers));
        self.side(direction).end = end;
        let (verdict, effects) = self.run.on_headers(direction, end, &mut self.host);
        self.after(direction, verdict, effects);
    }

    pub(super) fn body(&mut self, direction: Direction, bytes: &[u8], end: bool) {
        if self.reply.is_some() {
            return;
        }
        *self.host.buffer(direction, BodyBuffer::Received) = Some(bytes.to_vec());
        self.side(direction).end |= end;
        let (verdict, effects) = self.run.on_body(direction, end, &mut self.host);
        if matches!(verdict, Verdict::Pause | Verdict::Hold) {
            self.hold(direction);
        }
        self.after(direction, verdict, effects);
        *self.host.buffer(direction, BodyBuffer::Received) = None;
    }

    pub(super) fn trailers(&mut self, direction: Direction, trailers: &[(&str, &str)]) {
        if self.reply.is_some() {
            return;
        }
        let map = trailers_of(direction);
        *self.host.map(map) = Some(super::host::list(trailers));
        self.side(direction).trailers_came = true;
        self.side(direction).end = true;
        let (verdict, effects) = self.run.on_trailers(direction, &mut self.host);
        self.after(direction, verdict, effects);
    }

    pub(super) fn wake(&mut self, wake: Wake<'_>) {
        let effects = self.run.on_wake(wake, &mut self.host);
        self.carry_out(effects);
    }

    /// How long a timer that has fired waits for its plugin's share of CPU.
    pub(super) fn wait_for_share(&mut self, timer: u64) -> Option<Duration> {
        let id = WakeId::Timer(timer);
        self.run.wait_for_share(id, 0, self.host.nanos)
    }

    /// Fires the next timer; `false` if none runs.
    pub(super) fn fire(&mut self) -> bool {
        let Some(timer) = self.host.fire() else {
            return false;
        };
        self.wake(Wake::Timer(timer));
        true
    }

    fn hold(&mut self, direction: Direction) {
        let received = self.host.buffer(direction, BodyBuffer::Received).take();
        let held = self.host.buffer(direction, BodyBuffer::Held);
        held.get_or_insert_default()
            .extend(received.unwrap_or_default());
    }

    fn after(&mut self, direction: Direction, verdict: Verdict, effects: Effects) {
        if verdict == Verdict::Continue {
            self.forward(direction);
        }
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Effects) {
        if let Some(reply) = effects.reply {
            self.reply = Some(*reply);
            return;
        }
        if effects.resume_request {
            self.forward(Direction::Request);
        }
        if effects.resume_response {
            self.forward(Direction::Response);
        }
    }

    /// Everything that is here leaves.
    fn forward(&mut self, direction: Direction) {
        let headers = self.host.map(direction.headers()).clone();
        let trailers = self.host.map(trailers_of(direction)).clone();
        let held = self.host.buffer(direction, BodyBuffer::Held).take();
        let received = self.host.buffer(direction, BodyBuffer::Received).take();
        let side = self.side(direction);
        if side.sent.headers.is_none() {
            side.sent.headers = headers;
        }
        side.sent.body.extend(held.unwrap_or_default());
        side.sent.body.extend(received.unwrap_or_default());
        side.sent.ended = side.end;
        if side.trailers_came {
            side.sent.trailers = trailers;
        }
    }

    pub(super) fn log(&mut self) {
        self.run.on_log(&mut self.host);
        self.run.end(0);
    }
}

fn trailers_of(direction: Direction) -> HeaderMap {
    match direction {
        Direction::Request => HeaderMap::RequestTrailers,
        Direction::Response => HeaderMap::ResponseTrailers,
    }
}
