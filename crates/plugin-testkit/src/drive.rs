//! Plays one request and its response through a chain, as Envoy would: what a filter manager does
//! with verdicts and effects, on a fake clock.
//!
//! Not a proxy: there is no router, no codec and no network. The upstream answers when the request
//! is complete.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Attribute, CalloutFailure, CalloutResponse, Chain, ChainRun, Direction, Effects, HeaderMap,
    Host as _, HttpStreamEvent, Reply, Verdict, Wake,
};

use crate::headers::Headers;
use crate::host::{Event, ScriptedHost, StreamPart};

/// Whether a body is larger than the proxy gathers of a callout's response.
fn is_over(body: &[Vec<u8>], limit: usize) -> bool {
    limit > 0 && body.iter().map(Vec::len).sum::<usize>() > limit
}

/// Headers, body and trailers as somebody sends them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Headers, pseudo headers included.
    pub headers: Headers,
    /// The body's chunks; none: no body.
    pub chunks: Vec<Vec<u8>>,
    /// Trailers.
    pub trailers: Option<Headers>,
}

/// Headers, body and trailers as somebody got them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sent {
    /// Headers, pseudo headers included.
    pub headers: Headers,
    /// Body.
    pub body: Vec<u8>,
    /// Trailers.
    pub trailers: Option<Headers>,
    /// Whether it came to its end.
    pub complete: bool,
}

/// How the end of a body without trailers is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfStream {
    /// With the last chunk, as HTTP/2 can.
    WithLastChunk,
    /// By an empty chunk, as Envoy's HTTP/1 codec does.
    Separate,
}

/// When the rest of a message arrives once a plugin waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// While it waits.
    AtOnce,
    /// After what it waits for has happened.
    Later,
}

/// How messages arrive: what must make no difference to what a plugin does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// How bodies end.
    pub end_of_stream: EndOfStream,
    /// What happens while a plugin waits.
    pub rest: Rest,
}

impl Arrival {
    /// Every way.
    pub const ALL: [Self; 4] = [
        Self::new(EndOfStream::WithLastChunk, Rest::AtOnce),
        Self::new(EndOfStream::WithLastChunk, Rest::Later),
        Self::new(EndOfStream::Separate, Rest::AtOnce),
        Self::new(EndOfStream::Separate, Rest::Later),
    ];

    /// One way.
    pub const fn new(end_of_stream: EndOfStream, rest: Rest) -> Self {
        Self {
            end_of_stream,
            rest,
        }
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.end_of_stream {
            EndOfStream::WithLastChunk => "when a body ends with its last chunk",
            EndOfStream::Separate => "when a body's end comes apart from its last chunk",
        })?;
        f.write_str(match self.rest {
            Rest::AtOnce => "",
            Rest::Later => " and more arrives only after the plugin has waited",
        })
    }
}

/// What became of an exchange.
#[derive(Debug)]
pub struct Outcome {
    /// What the upstream got; none: it was never asked.
    pub upstream_request: Option<Sent>,
    /// What the client got; none: the stream hung, or was reset before its headers.
    pub response: Option<Sent>,
    /// The response-code detail.
    pub details: String,
    /// The stream ended with a reset: a reply came when the response was already on its way.
    pub reset: bool,
    /// What the chain did that no chain may do: a stream that hangs, for example.
    pub problems: Vec<String>,
    /// The stream as the proxy kept it: log, faults, callouts, metrics, metadata, clock.
    pub host: ScriptedHost,
}

/// Plays `request` and the upstream's `answer` through `chain`.
pub fn play(
    chain: Arc<Chain>,
    request: &Message,
    answer: &Message,
    arrival: Arrival,
    host: ScriptedHost,
) -> Outcome {
    let is_head = request.headers.get(b":method") == Some(b"HEAD");
    let mut drive = Drive {
        run: ChainRun::new(chain),
        host,
        arrival,
        answer,
        is_head,
        request: Side::fed(request, arrival, false),
        response: Side::default(),
        details: String::new(),
        over: false,
        reset: false,
        problems: Vec::new(),
    };
    drive.play();
    Outcome {
        upstream_request: drive.request.out,
        response: drive.response.out,
        details: drive.details,
        reset: drive.reset,
        problems: drive.problems,
        host: drive.host,
    }
}

#[derive(Debug)]
enum Piece {
    Headers { headers: Headers, end: bool },
    Chunk { bytes: Vec<u8>, end: bool },
    Trailers(Headers),
}

/// One direction of the exchange.
#[derive(Debug, Default)]
struct Side {
    /// What is still to come.
    input: VecDeque<Piece>,
    /// The last of it has come.
    ended: bool,
    /// A plugin waits.
    paused: bool,
    /// Nothing more goes on.
    stopped: bool,
    /// What went on.
    out: Option<Sent>,
}

impl Side {
    fn fed(message: &Message, arrival: Arrival, without_body: bool) -> Self {
        let mut input = VecDeque::new();
        let chunks: &[Vec<u8>] = if without_body { &[] } else { &message.chunks };
        let trailers = message.trailers.as_ref().filter(|_| !without_body);
        input.push_back(Piece::Headers {
            headers: message.headers.clone(),
            end: chunks.is_empty() && trailers.is_none(),
        });
        let separate = arrival.end_of_stream == EndOfStream::Separate;
        for (index, bytes) in chunks.iter().enumerate() {
            input.push_back(Piece::Chunk {
                bytes: bytes.clone(),
                end: trailers.is_none() && !separate && index + 1 == chunks.len(),
            });
        }
        if let Some(trailers) = trailers {
            input.push_back(Piece::Trailers(trailers.clone()));
        } else if separate && !chunks.is_empty() {
            input.push_back(Piece::Chunk {
                bytes: Vec::new(),
                end: true,
            });
        }
        Self {
            input,
            ..Self::default()
        }
    }

    fn is_complete(&self) -> bool {
        self.out.as_ref().is_some_and(|out| out.complete)
    }
}

struct Drive<'a> {
    run: ChainRun,
    host: ScriptedHost,
    arrival: Arrival,
    answer: &'a Message,
    is_head: bool,
    request: Side,
    response: Side,
    details: String,
    over: bool,
    reset: bool,
    problems: Vec<String>,
}

impl Drive<'_> {
    fn play(&mut self) {
        self.pump(Direction::Request);
        while !self.over {
            let Some(event) = self.host.next_event() else {
                self.problems.push(self.hanging());
                break;
            };
            let effects = self.wake(event);
            self.act(effects);
            self.arrive_later();
        }
        self.host
            .set_attribute(Attribute::ResponseCodeDetails, &*self.details);
        self.run.on_log(&mut self.host);
        self.run.end(self.host.worker());
    }

    fn wake(&mut self, event: Event) -> Effects {
        let (run, host) = (&mut self.run, &mut self.host);
        match event {
            Event::Timer(id) => run.on_wake(Wake::Timer(id), host),
            Event::Callout(id, Err(failure)) => run.on_wake(Wake::Callout(id, Err(failure)), host),
            Event::Callout(id, Ok(answer)) if is_over(&answer.body, host.body_limit) => {
                run.on_wake(Wake::Callout(id, Err(CalloutFailure::TooLarge)), host)
            }
            Event::Callout(id, Ok(answer)) => {
                let headers: Vec<_> = answer.headers.iter().collect();
                let body: Vec<_> = answer.body.iter().map(Vec::as_slice).collect();
                let response = CalloutResponse {
                    headers: &headers,
                    body: &body,
                };
                run.on_wake(Wake::Callout(id, Ok(response)), host)
            }
            Event::HttpStream(id, part) => {
                let mut tell = |event| run.on_wake(Wake::HttpStream(id, event), host);
                match part {
                    StreamPart::Headers(headers, end_of_stream) => {
                        let headers: Vec<_> = headers.iter().collect();
                        tell(HttpStreamEvent::Headers {
                            headers: &headers,
                            end_of_stream,
                        })
                    }
                    StreamPart::Data(bytes, end_of_stream) => {
                        // As for bodies: pieces find whoever counts on one.
                        let (first, second) = bytes.split_at(bytes.len() / 2);
                        tell(HttpStreamEvent::Data {
                            pieces: &[first, second],
                            end_of_stream,
                        })
                    }
                    StreamPart::Trailers(trailers) => {
                        let trailers: Vec<_> = trailers.iter().collect();
                        tell(HttpStreamEvent::Trailers(&trailers))
                    }
                    StreamPart::Complete => tell(HttpStreamEvent::Complete),
                    StreamPart::Failed(failure) => tell(HttpStreamEvent::Failed(failure)),
                }
            }
        }
    }

    /// What waited for an event to be over comes now, whether or not it was the last one.
    fn arrive_later(&mut self) {
        for direction in [Direction::Request, Direction::Response] {
            if !self.over {
                self.side(direction).paused = false;
                self.pump(direction);
            }
        }
    }

    fn hanging(&self) -> String {
        let (what, side) = if self.request.is_complete() {
            ("response", &self.response)
        } else {
            ("request", &self.request)
        };
        let why = if side.paused || !side.input.is_empty() {
            "a plugin waits for something that will never happen"
        } else {
            "the chain has all of it and lets nothing go on"
        };
        format!("the stream hangs in its {what}: {why}")
    }

    fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    /// Gives the chain what has come, until there is no more or it wants no more.
    fn pump(&mut self, direction: Direction) {
        let later = self.arrival.rest == Rest::Later;
        loop {
            let side = self.side(direction);
            if side.stopped || (later && side.paused) {
                return;
            }
            let Some(piece) = side.input.pop_front() else {
                return;
            };
            self.deliver(direction, piece);
        }
    }

    fn deliver(&mut self, direction: Direction, piece: Piece) {
        let (verdict, effects) = match piece {
            Piece::Headers { headers, end } => {
                *self.host.map_slot(direction.headers()) = Some(headers);
                self.side(direction).ended = end;
                self.run.on_headers(direction, end, &mut self.host)
            }
            Piece::Chunk { bytes, end } => {
                self.host.buffers(direction).received = Some(bytes);
                self.side(direction).ended = end;
                self.run.on_body(direction, end, &mut self.host)
            }
            Piece::Trailers(trailers) => {
                *self.host.map_slot(trailers_of(direction)) = Some(trailers);
                self.side(direction).ended = true;
                self.run.on_trailers(direction, &mut self.host)
            }
        };
        let buffers = self.host.buffers(direction);
        if let Some(received) = buffers.received.take()
            && verdict != Verdict::Stop
        {
            let held = buffers.held.get_or_insert_default();
            held.extend_from_slice(&received);
        }
        let held = buffers.held.as_ref().map_or(0, Vec::len);
        let side = self.side(direction);
        match verdict {
            Verdict::Continue => self.forward(direction),
            Verdict::Pause => side.paused = true,
            Verdict::Hold => {
                let limit = self.host.body_limit;
                if limit > 0 && held > limit {
                    self.refuse_body(direction);
                }
            }
            Verdict::Stop => side.stopped = true,
        }
        self.act(effects);
    }

    /// Lets go on what has come and was held back.
    fn forward(&mut self, direction: Direction) {
        let headers = self.host.map(direction.headers()).cloned();
        let trailers = self.host.map(trailers_of(direction)).cloned();
        let held = self.host.buffers(direction).held.take();
        let side = self.side(direction);
        side.paused = false;
        // Headers that are gone do not change any more.
        let out = side.out.get_or_insert_with(|| Sent {
            headers: headers.unwrap_or_default(),
            ..Sent::default()
        });
        if let Some(held) = held {
            out.body.extend_from_slice(&held);
        }
        if !side.ended {
            return;
        }
        out.trailers = trailers;
        out.complete = true;
        match direction {
            Direction::Request => self.answer(),
            Direction::Response => self.over = true,
        }
    }

    /// The upstream has the whole request.
    fn answer(&mut self) {
        if self.over {
            return;
        }
        self.host
            .set_attribute(Attribute::UpstreamAddress, "127.0.0.1:8080");
        self.host.set_attribute(Attribute::UpstreamPort, 8080.0);
        self.details = "via_upstream".into();
        self.response = Side::fed(self.answer, self.arrival, self.is_head);
        self.pump(Direction::Response);
    }

    fn act(&mut self, effects: Effects) {
        if self.over {
            return;
        }
        let Effects {
            reply,
            resume_request,
            resume_response,
        } = effects;
        if let Some(reply) = reply {
            self.reply(*reply);
            return;
        }
        for (wanted, direction) in [
            (resume_request, Direction::Request),
            (resume_response, Direction::Response),
        ] {
            if wanted && !self.side(direction).stopped {
                self.forward(direction);
                self.pump(direction);
            }
        }
    }

    /// Sends a reply that the chain made, which is not the chain's business any more.
    fn reply(&mut self, reply: Reply) {
        self.request.stopped = true;
        self.details.clone_from(&reply.details);
        self.over = true;
        if self.response.out.is_some() {
            self.reset = true;
            return;
        }
        let message = local_reply(reply);
        self.host.response_headers = Some(message.headers);
        self.host.response_trailers = None;
        self.host.response_body.held = None;
        let body = message.chunks.concat();
        let (verdict, effects) =
            self.run
                .on_headers(Direction::Response, body.is_empty(), &mut self.host);
        self.untouched(verdict, &effects);
        if !body.is_empty() {
            self.host.response_body.received = Some(body);
            let (verdict, effects) = self.run.on_body(Direction::Response, true, &mut self.host);
            self.untouched(verdict, &effects);
        }
        self.response.out = Some(Sent {
            headers: self.host.response_headers.clone().unwrap_or_default(),
            body: if self.is_head {
                Vec::new()
            } else {
                self.host.response_body.received.take().unwrap_or_default()
            },
            trailers: None,
            complete: true,
        });
    }

    fn untouched(&mut self, verdict: Verdict, effects: &Effects) {
        if verdict != Verdict::Continue || !effects.is_empty() {
            self.problems
                .push("the chain held its own reply back".to_owned());
        }
    }

    /// A body is larger than what is held back.
    fn refuse_body(&mut self, direction: Direction) {
        self.request.stopped = true;
        match direction {
            // The chain sees this reply: it is the proxy's.
            Direction::Request => {
                let message = local_reply(Reply {
                    status: 413,
                    body: b"Payload Too Large".to_vec(),
                    ..Reply::default()
                });
                self.details = "request_payload_too_large".into();
                self.response = Side::fed(&message, self.arrival, self.is_head);
                self.pump(Direction::Response);
            }
            // The chain is in the middle of this direction, so the reply passes it by.
            Direction::Response => {
                let message = local_reply(Reply {
                    status: 500,
                    body: b"Internal Server Error".to_vec(),
                    ..Reply::default()
                });
                self.details = "response_payload_too_large".into();
                self.response.stopped = true;
                self.over = true;
                self.response.out = Some(Sent {
                    headers: message.headers,
                    body: message.chunks.concat(),
                    trailers: None,
                    complete: true,
                });
            }
        }
    }
}

fn trailers_of(direction: Direction) -> HeaderMap {
    match direction {
        Direction::Request => HeaderMap::RequestTrailers,
        Direction::Response => HeaderMap::ResponseTrailers,
    }
}

/// The response that Envoy makes of a local reply.
fn local_reply(reply: Reply) -> Message {
    let mut headers = Headers::new().with(":status", reply.status.to_string());
    for (name, value) in &reply.headers {
        headers.add(name, value);
    }
    if reply.body.is_empty() {
        headers.remove(b"content-length");
        return Message {
            headers,
            ..Message::default()
        };
    }
    headers.set(b"content-length", reply.body.len().to_string().as_bytes());
    if headers.get(b"content-type").is_none() {
        headers.set(b"content-type", b"text/plain");
    }
    Message {
        headers,
        chunks: vec![reply.body],
        trailers: None,
    }
}

impl Outcome {
    /// Time between the request's headers and the end.
    pub fn duration(&self) -> Duration {
        self.host.age()
    }
}
