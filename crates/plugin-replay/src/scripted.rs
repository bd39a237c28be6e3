//! An upstream that answers what a test has written down, and keeps what it was asked.
//!
//! Unlike the lab's echo service it knows no paths: the next request gets the next answer. So it is for
//! tests that send one request at a time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Sleep;

/// Names and values, in order.
pub type Fields = Vec<(String, String)>;

/// What a request gets.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: Fields,
    /// The body.
    pub body: AnswerBody,
    /// How long it takes until the answer begins.
    pub after: Duration,
    /// The time between two pieces of the body.
    pub every: Duration,
    /// Instead of all that.
    pub failure: Option<AnswerFailure>,
}

impl Default for Answer {
    /// 200 without a body, at once.
    fn default() -> Self {
        Self {
            status: 200,
            headers: Fields::new(),
            body: AnswerBody::Whole(Bytes::new()),
            after: Duration::ZERO,
            every: Duration::ZERO,
            failure: None,
        }
    }
}

/// How a body is sent.
#[derive(Debug, Clone)]
pub enum AnswerBody {
    /// In one piece, with its length.
    Whole(Bytes),
    /// In these pieces without a length, and these trailers after them.
    Pieces(Vec<Bytes>, Fields),
}

/// How an answer can fail to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFailure {
    /// It never comes.
    Never,
    /// The connection is closed.
    Close,
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// `Host`, or `:authority`.
    pub host: String,
    /// Headers without pseudo-headers.
    pub headers: Fields,
    /// The body.
    pub body: Bytes,
    /// Trailers.
    pub trailers: Fields,
}

impl Received {
    /// All values of a header.
    pub fn header(&self, name: &str) -> Vec<&str> {
        values(&self.headers, name)
    }
}

/// All values of a name.
pub fn values<'f>(fields: &'f Fields, name: &str) -> Vec<&'f str> {
    fields
        .iter()
        .filter(|(other, _)| other.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
        .collect()
}

#[derive(Debug, Default)]
struct State {
    answers: VecDeque<Answer>,
    received: Vec<Received>,
}

/// A scripted upstream, HTTP/1.1 and HTTP/2 on one port. Dropping it ends it.
#[derive(Debug)]
pub struct Scripted {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    listening: Option<JoinSet<()>>,
}

impl Scripted {
    /// Starts one on any free port of loopback.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start() -> anyhow::Result<Self> {
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let mut scripted = Self {
            address: socket.local_addr()?,
            state: Arc::default(),
            listening: None,
        };
        scripted.serve(socket);
        Ok(scripted)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes every connection, and from now on refuses new ones.
    pub async fn refuse(&mut self) {
        if let Some(mut listening) = self.listening.take() {
            listening.shutdown().await;
        }
    }

    /// Accepts connections again.
    ///
    /// # Errors
    /// Somebody else has taken the port.
    pub async fn accept(&mut self) -> anyhow::Result<()> {
        if self.listening.is_none() {
            let socket = TcpListener::bind(self.address)
                .await
                .with_context(|| format!("cannot listen on {} again", self.address))?;
            self.serve(socket);
        }
        Ok(())
    }

    /// Forgets what was received, and gives these answers next. A request beyond them gets 599.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        let mut state = lock(&self.state);
        state.received.clear();
        state.answers = answers.into_iter().collect();
    }

    /// What was received since the last script, in the order in which requests were complete.
    pub fn received(&self) -> Vec<Received> {
        lock(&self.state).received.clone()
    }

    fn serve(&mut self, socket: TcpListener) {
        let mut listening = JoinSet::new();
        listening.spawn(accept(socket, Arc::clone(&self.state)));
        self.listening = Some(listening);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(socket: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(connection(stream, Arc::clone(&state)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, state: Arc<Mutex<State>>) {
    // A socket that refuses this still works.
    drop(stream.set_nodelay(true));
    let close = Arc::new(Notify::new());
    let service = service_fn({
        let close = Arc::clone(&close);
        move |request| answer(Arc::clone(&state), Arc::clone(&close), request)
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    tokio::select! {
        // How a connection ends is the client's to judge.
        _ = builder.serve_connection(TokioIo::new(stream), service) => {}
        () = close.notified() => {}
    }
}

fn fields(map: &http::HeaderMap) -> Fields {
    map.iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect()
}

async fn answer(
    state: Arc<Mutex<State>>,
    close: Arc<Notify>,
    request: http::Request<Incoming>,
) -> Result<http::Response<BoxBody<Bytes, Infallible>>, http::Error> {
    let (head, body) = request.into_parts();
    let host = head
        .headers
        .get(http::header::HOST)
        .and_then(|host| host.to_str().ok())
        .or_else(|| head.uri.authority().map(http::uri::Authority::as_str))
        .unwrap_or_default()
        .to_owned();
    let Ok(body) = body.collect().await else {
        // The client went away; nobody reads this.
        return http::Response::builder()
            .status(400)
            .body(BoxBody::default());
    };
    let trailers = body.trailers().map(fields).unwrap_or_default();
    let received = Received {
        method: head.method.to_string(),
        path: head
            .uri
            .path_and_query()
            .map_or_else(|| head.uri.path().to_owned(), ToString::to_string),
        host,
        headers: fields(&head.headers),
        body: body.to_bytes(),
        trailers,
    };
    let answer = {
        let mut state = lock(&state);
        state.received.push(received);
        state.answers.pop_front()
    };
    let Some(answer) = answer else {
        return http::Response::builder()
            .status(599)
            .body(BoxBody::default());
    };
    tokio::time::sleep(answer.after).await;
    match answer.failure {
        Some(AnswerFailure::Never) => std::future::pending::<()>().await,
        Some(AnswerFailure::Close) => {
            close.notify_one();
            std::future::pending::<()>().await;
        }
        None => {}
    }
    let mut response = http::Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    match answer.body {
        AnswerBody::Whole(content) => response.body(Full::new(content).boxed()),
        AnswerBody::Pieces(pieces, trailers) => {
            let mut frames: VecDeque<Frame<Bytes>> = pieces.into_iter().map(Frame::data).collect();
            if !trailers.is_empty() {
                let mut map = http::HeaderMap::new();
                for (name, value) in &trailers {
                    response = response.header(http::header::TRAILER, name);
                    map.append(
                        http::HeaderName::try_from(name)?,
                        http::HeaderValue::try_from(value)?,
                    );
                }
                frames.push_back(Frame::trailers(map));
            }
            response.body(
                Pieces {
                    frames,
                    every: answer.every,
                    pause: None,
                }
                .boxed(),
            )
        }
    }
}

/// A body of frames with pauses between them, whose length is not told.
struct Pieces {
    frames: VecDeque<Frame<Bytes>>,
    every: Duration,
    pause: Option<Pin<Box<Sleep>>>,
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        let frame = self.frames.pop_front();
        let is_followed = self.frames.front().is_some_and(Frame::is_data);
        if is_followed && !self.every.is_zero() {
            self.pause = Some(Box::pin(tokio::time::sleep(self.every)));
        }
        Poll::Ready(frame.map(Ok))
    }
}
