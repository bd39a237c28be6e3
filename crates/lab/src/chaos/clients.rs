//! The clients: calm ones, each of whose answers is compared byte for byte, and wild ones, which break requests off
//! and the protocol with them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::counts::Counts;
use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, block, frame,
};
use super::gateway::{CALM_HOSTS, FAULTY_HOSTS, WILD_HOSTS};
use super::upstreams::reset_on_close;
use crate::Protocol;
use crate::client::{Abort, ClientError, Connection, Request, Response, Target};
use crate::echo::pattern;
use crate::random::Random;

/// A request of a calm client that takes longer hangs.
const HANG: Duration = Duration::from_secs(15);
/// Time for one turn of a wild client.
const TURN: Duration = Duration::from_secs(5);
/// What a client needs.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) address: SocketAddr,
    pub(super) counts: Arc<Counts>,
    pub(super) stopped: watch::Receiver<bool>,
}

impl Client {
    fn goes_on(&self) -> bool {
        self.stopped.has_changed().is_ok() && !*self.stopped.borrow()
    }

    /// Sends requests whose answers are known, until stopped.
    pub(super) async fn calm(self, mut random: Random) {
        while self.goes_on() {
            let protocol = if random.chance(50) {
                Protocol::Http1
            } else {
                Protocol::Http2
            };
            let target = Target::plain(protocol, self.address);
            let since = Instant::now();
            let mut connection = match Connection::open(&target).await {
                Ok(connection) => connection,
                Err(error) => {
                    self.counts.wrong(since, &format!("calm client: {error}"));
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            };
            for _ in 0..random.between(1, 12) {
                if !self.goes_on() || !self.exchange(&mut connection, protocol, &mut random).await {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(random.below(10))).await;
            }
        }
    }

    /// One request and its answer; returns whether the connection goes on.
    async fn exchange(
        &self,
        connection: &mut Connection,
        protocol: Protocol,
        random: &mut Random,
    ) -> bool {
        let host = random.word(CALM_HOSTS);
        let bits = random.between(1, 17);
        // The plugin of rewrite.test leaves bodies alone that are not there.
        let size = usize::try_from(random.below(1 << bits).max(1)).unwrap_or(1);
        let body = pattern(size);
        let wants_echo = random.chance(60);
        let path = if wants_echo {
            "/echo".to_owned()
        } else {
            format!("/bytes/{size}")
        };
        let has_trailer = wants_echo && random.chance(30);
        let request = if wants_echo {
            let request = Request::post("/calm", Vec::new());
            let request = if random.chance(40) {
                let cut = size / 3;
                request.pieces([body.slice(..cut), body.slice(cut..)])
            } else {
                request.body(body.clone())
            };
            if has_trailer {
                request.trailer("x-trailer", "yes").accept_trailers()
            } else {
                request
            }
        } else {
            Request::get("/calm")
        };
        let request = request
            .host(host)
            .header("x-echo-path", &path)
            .timeout(HANG);
        let described = format!("{protocol} {host} {path} with {size} bytes");
        let since = Instant::now();
        let response = match connection.send(request).await {
            Ok(response) => response,
            // The connection ended before the request was sent.
            Err(ClientError::NotSent(_)) => return false,
            Err(error) => {
                self.counts.wrong(since, &format!("{described}: {error}"));
                return false;
            }
        };
        let expected = match host {
            "rewrite.test" => [b"<", body.as_ref(), b">"].concat(),
            _ => body.to_vec(),
        };
        if response.status != 200 || response.body != expected {
            let same = response
                .body
                .iter()
                .zip(&expected)
                .take_while(|(one, other)| one == other)
                .count();
            let text: String = response.text().chars().take(120).collect();
            self.counts.wrong(
                since,
                &format!(
                    "{described}: status {}, {} bytes, the first {same} of them right: {text}",
                    response.status,
                    response.body.len()
                ),
            );
            return false;
        }
        self.counts.compared.fetch_add(1, Ordering::Relaxed);
        self.compare_rest(since, &described, host, has_trailer, &response);
        response.headers.get("connection") != Some("close")
    }

    /// Compares what plugins and trailers add to the body.
    fn compare_rest(
        &self,
        since: Instant,
        described: &str,
        host: &str,
        has_trailer: bool,
        response: &Response,
    ) {
        let header = |name| response.headers.get(name);
        if matches!(host, "pausing.test" | "guest.test" | "chain.test")
            && header("x-seen") != Some("yes")
        {
            self.counts
                .wrong(since, &format!("{described}: the guest did not run"));
        }
        match header("x-parts") {
            Some("same") => {
                self.counts.callouts.fetch_add(1, Ordering::Relaxed);
            }
            Some("other") => self.counts.wrong(
                since,
                &format!("{described}: a callout's answer is not what was sent"),
            ),
            _ => {}
        }
        // Upstreams of these hosts speak HTTP/2, so trailers need no announcement on the way.
        if has_trailer && host.ends_with("-h2.test") {
            self.counts.trailers.fetch_add(1, Ordering::Relaxed);
            if response.trailers.get("x-trailer") != Some("yes") {
                self.counts
                    .wrong(since, &format!("{described}: the trailer is missing"));
            }
        }
    }

    /// Sends requests to hosts whose upstreams break the protocol: any answer is right, but it has to come.
    pub(super) async fn faulty(self, mut random: Random) {
        while self.goes_on() {
            let protocol = if random.chance(50) {
                Protocol::Http1
            } else {
                Protocol::Http2
            };
            let Ok(mut connection) = Connection::open(&Target::plain(protocol, self.address)).await
            else {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            };
            for _ in 0..random.between(1, 10) {
                if !self.goes_on() {
                    break;
                }
                let host = random.word(FAULTY_HOSTS);
                let request = wild_request(&mut random).host(host).timeout(HANG);
                let since = Instant::now();
                match connection.send(request).await {
                    Err(ClientError::Timeout(_)) => {
                        let what = format!("{protocol} {host}: no end within {HANG:?}");
                        self.counts.wrong(since, &what);
                        break;
                    }
                    Err(_) => {
                        self.counts.ended.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    Ok(_) => {
                        self.counts.ended.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Does all that a client should not do, until stopped.
    pub(super) async fn wild(self, mut random: Random) {
        while self.goes_on() {
            let turn = random.fork();
            // What comes of it, and whether it comes in time, is not judged.
            let _ = tokio::time::timeout(TURN, self.turn(turn)).await;
            self.counts.turns.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(random.below(20))).await;
        }
    }

    async fn turn(&self, mut random: Random) -> std::io::Result<()> {
        let host = match random.below(4) {
            0 => random.word(CALM_HOSTS),
            1 => random.word(FAULTY_HOSTS),
            _ => random.word(WILD_HOSTS),
        };
        match random.below(10) {
            0..5 => {
                let protocol = if random.chance(50) {
                    Protocol::Http1
                } else {
                    Protocol::Http2
                };
                let target = Target::plain(protocol, self.address);
                if let Ok(mut connection) = Connection::open(&target).await {
                    for _ in 0..random.between(1, 6) {
                        let request = wild_request(&mut random).host(host).timeout(TURN / 2);
                        let request = match random.below(8) {
                            0 => request.abort_after(0, Abort::Stream),
                            1 => request.abort_after(10, Abort::Stream),
                            2 => request.abort_after(10, Abort::Connection),
                            _ => request,
                        };
                        if connection.send(request).await.is_err() {
                            break;
                        }
                    }
                }
                Ok(())
            }
            5..8 => self.raw_http1(host, random).await,
            _ => self.raw_http2(host, random).await,
        }
    }

    async fn raw_http1(&self, host: &str, mut random: Random) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(self.address).await?;
        let head = |line: &str| format!("{line} HTTP/1.1\r\nhost: {host}\r\n");
        let bytes: Vec<u8> = match random.below(14) {
            0 => head("GET /half").into_bytes(),
            1 => (head("POST /half") + "content-length: 100\r\n\r\nabc").into_bytes(),
            2 => (head("POST /chunks") + "transfer-encoding: chunked\r\n\r\n5\r\nab").into_bytes(),
            3 => (head("POST /chunks") + "transfer-encoding: chunked\r\n\r\nzz\r\nab\r\n")
                .into_bytes(),
            4 => (head("OPTIONS *") + "\r\n").into_bytes(),
            5 => (head("HEAD /status/200") + "\r\n").into_bytes(),
            6 => (head("GET /%2e%2e%2fx%5cy") + "\r\n").into_bytes(),
            7 => (head("GET /large") + &format!("x-large: {}\r\n\r\n", "x".repeat(70_000)))
                .into_bytes(),
            8 => (head("POST /trailers")
                + "transfer-encoding: chunked\r\ntrailer: x\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n")
                .into_bytes(),
            9 => (head("GET /first") + "\r\n").repeat(5).into_bytes(),
            10 => (head("CONNECT a:1") + "\r\n").into_bytes(),
            11 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            12 => (0..random.between(1, 2000))
                .map(|_| random.number() as u8)
                .collect(),
            _ => (head("GET /upgrade") + "connection: upgrade\r\nupgrade: websocket\r\n\r\n")
                .into_bytes(),
        };
        stream.write_all(&bytes).await?;
        linger(stream, random).await
    }

    async fn raw_http2(&self, host: &str, mut random: Random) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(self.address).await?;
        let mut bytes = PREFACE.to_vec();
        // A window of a few bytes holds answers up.
        let window = random
            .word(&["0", "1", "65535"])
            .parse::<u32>()
            .unwrap_or(0);
        let setting = [vec![0, 4], window.to_be_bytes().to_vec()].concat();
        bytes.extend(frame(SETTINGS, 0, 0, &setting));
        let request = |method: &str, path: &str| {
            block(&[
                (":method", method),
                (":path", path),
                (":scheme", "http"),
                (":authority", host),
            ])
        };
        let mut id = 1;
        for _ in 0..random.between(1, 40) {
            match random.below(12) {
                0..4 => {
                    let path = random.word(&["/bytes/20000", "/status/200", "/delay/20"]);
                    let block = request("GET", path);
                    bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, &block));
                }
                4 | 5 => {
                    bytes.extend(frame(HEADERS, END_HEADERS, id, &request("POST", "/echo")));
                    bytes.extend(frame(DATA, 0, id, b"part of a body"));
                    match random.below(4) {
                        0 | 1 => bytes.extend(frame(DATA, END_STREAM, id, b"the rest")),
                        2 => {
                            let trailers = block(&[("x-trailer", "yes")]);
                            bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, &trailers));
                        }
                        _ => {}
                    }
                }
                // Many streams that are reset at once.
                6 | 7 => {
                    for _ in 0..random.between(1, 30) {
                        let block = request("GET", "/delay/5");
                        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, id, &block));
                        bytes.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
                        id += 2;
                    }
                }
                8 => bytes.extend(frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    id,
                    &request("HEAD", "/bytes/9"),
                )),
                9 => bytes.extend(frame(WINDOW_UPDATE, 0, 0, &1000_u32.to_be_bytes())),
                10 => {
                    bytes.extend(frame(HEADERS, 0, id, &request("GET", "/")));
                    bytes.extend(frame(
                        CONTINUATION,
                        END_HEADERS,
                        id,
                        &block(&[("x-more", "yes")]),
                    ));
                }
                _ => match random.below(6) {
                    0 => bytes.extend(frame(GOAWAY, 0, 0, &[0; 8])),
                    1 => bytes.extend(frame(DATA, 0, id, b"no head")),
                    2 => bytes.extend(frame(HEADERS, END_HEADERS, id, &[0xff; 9])),
                    3 => {
                        let mut block = request("POST", "/echo");
                        block.extend(super::frames::block(&[("content-length", "50")]));
                        bytes.extend(frame(HEADERS, END_HEADERS, id, &block));
                        bytes.extend(frame(DATA, END_STREAM, id, b"abc"));
                    }
                    _ => bytes.extend(frame(
                        RST_STREAM,
                        0,
                        id.saturating_sub(2).max(1),
                        &8_u32.to_be_bytes(),
                    )),
                },
            }
            id += 2;
            if random.chance(30) {
                stream.write_all(&bytes).await?;
                bytes.clear();
                tokio::time::sleep(Duration::from_millis(random.below(10))).await;
            }
        }
        stream.write_all(&bytes).await?;
        linger(stream, random).await
    }
}

/// Reads for a while, then ends the connection politely or by a reset.
async fn linger(mut stream: TcpStream, mut random: Random) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    let end = Instant::now() + Duration::from_millis(random.below(300));
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        match tokio::time::timeout(left, stream.read(&mut buffer)).await {
            Ok(Ok(0)) | Err(_) => break,
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) => {}
        }
    }
    if random.chance(50) {
        reset_on_close(&stream);
    }
    Ok(())
}

/// A sound request of any kind.
fn wild_request(random: &mut Random) -> Request {
    let method = random.word(&[
        "GET", "GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH",
    ]);
    let path = random.word(&[
        "/status/200",
        "/bytes/30000",
        "/echo",
        "/delay/20",
        "/trailers",
        "/slow-body?chunks=3&interval_ms=5",
        "/status/204",
        "/status/304",
        "/x?a=1e999&b=%00",
    ]);
    let mut request = Request::new(method, path);
    if matches!(method, "POST" | "PUT" | "PATCH") {
        let size = usize::try_from(random.below(40_000)).unwrap_or(0);
        request = if random.chance(50) {
            request.body(pattern(size))
        } else {
            request.pieces([pattern(size), pattern(10)])
        };
        if random.chance(30) {
            request = request.trailer("x-trailer", "yes");
        }
    }
    if random.chance(30) {
        request = request.accept_trailers();
    }
    if random.chance(20) {
        request = request.header("x-large", &"x".repeat(8_000));
    }
    request
}
