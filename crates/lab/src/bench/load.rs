//! The client that is not measured: blocking, HTTP/1.1 with keep-alive, one request at a time on a
//! connection. Every answer is looked at; one that is not a 200 ends the measurement.

use std::borrow::Cow;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::workload::{BODY_BYTES, Shape, VALUE};

/// Under callgrind, on a busy machine, Envoy takes minutes to start and to answer its first request, and many more
/// where it has Coraza to compile.
const PATIENCE: Duration = Duration::from_mins(40);
const RETRY: Duration = Duration::from_millis(1);

/// What a browser says of itself.
pub(crate) const BROWSER: &str = "\
user-agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r
accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r
accept-language: en-US,en;q=0.5\r
accept-encoding: gzip, deflate\r
cookie: session=0123456789abcdef\r
";

/// What it asks for.
pub(crate) const BROWSER_PATH: &str = "/search?q=red+shoes&page=2";

/// The bytes of a request of this shape.
pub(crate) fn request(shape: Shape) -> Vec<u8> {
    match shape {
        Shape::Plain => get("/", ""),
        Shape::TenHeaders => {
            let headers: Vec<_> = (1..=10)
                .map(|number| format!("x-h-{number}: {VALUE}\r\n"))
                .collect();
            get("/", &headers.concat())
        }
        Shape::Body => {
            let mut bytes =
                format!("POST / HTTP/1.1\r\nhost: bench\r\ncontent-length: {BODY_BYTES}\r\n\r\n")
                    .into_bytes();
            bytes.extend(std::iter::repeat_n(b'b', BODY_BYTES));
            bytes
        }
        Shape::Browser => get(BROWSER_PATH, BROWSER),
        Shape::Traced => traced(1),
    }
}

/// The bytes of the request of this number: those of a shape, with a trace id of its own where the shape has one.
pub(crate) fn numbered(shape: Shape, bytes: &[u8], number: u64) -> Cow<'_, [u8]> {
    match shape {
        Shape::Traced => traced(number).into(),
        _ => bytes.into(),
    }
}

fn traced(number: u64) -> Vec<u8> {
    // Ids of tracing libraries are random: neighbours have nothing in common.
    let id = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let headers = format!("x-lane: fr\r\ntraceparent: 00-{id:032x}-00000000000000a1-01\r\n");
    get("/", &headers)
}

/// A GET of this path; `headers` are lines with their ends.
pub(crate) fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: bench\r\n{headers}\r\n").into_bytes()
}

/// A connection that is kept.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    /// Connects once.
    pub(crate) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// Connects as soon as somebody listens; `alive` says why nobody ever will. Until then Envoy is
    /// not asked anything: what it would answer would be counted.
    pub(crate) fn open_when_there(
        address: SocketAddr,
        mut alive: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let begin = Instant::now();
        loop {
            match Self::open(address) {
                Ok(connection) => return Ok(connection),
                Err(error) if begin.elapsed() > PATIENCE => return Err(error),
                Err(_) => {
                    alive()?;
                    thread::sleep(RETRY);
                }
            }
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.send(request)?;
        self.receive()
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        Ok(self.stream.write_all(request)?)
    }

    /// Waits for one whole answer.
    pub(crate) fn receive(&mut self) -> anyhow::Result<()> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(length) = whole_answer(&self.received)? {
                self.received.drain(..length);
                return Ok(());
            }
            let length = self.stream.read(&mut chunk).context("no whole answer")?;
            anyhow::ensure!(
                length > 0,
                "the connection was closed within an answer: {:?}",
                String::from_utf8_lossy(&self.received)
            );
            self.received
                .extend_from_slice(chunk.get(..length).unwrap_or_default());
        }
    }
}

/// How long the first answer is, when all of it is there.
fn whole_answer(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = bytes.windows(END.len()).position(|window| window == END) else {
        return Ok(None);
    };
    let head = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default());
    anyhow::ensure!(
        head.starts_with("HTTP/1.1 200 "),
        "not the answer of a benchmark: {head}"
    );
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .with_context(|| format!("an answer without a length: {head}"))?;
    let whole = end + END.len() + length;
    Ok((bytes.len() >= whole).then_some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_whole_or_not() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for length in 0..answer.len() {
            assert_eq!(whole_answer(&answer[..length]).unwrap(), None, "{length}");
        }
        let mut two = answer.to_vec();
        two.extend_from_slice(answer);
        assert_eq!(whole_answer(&two).unwrap(), Some(answer.len()));
        assert!(whole_answer(b"HTTP/1.1 500 No\r\n\r\n").is_err());
        assert!(whole_answer(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn requests_are_what_their_shapes_say() {
        for shape in Shape::ALL {
            let text = String::from_utf8(request(shape)).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert_eq!(
                head.lines().filter(|line| line.starts_with("x-h-")).count(),
                if shape == Shape::TenHeaders { 10 } else { 0 }
            );
            assert_eq!(
                body.len(),
                if shape == Shape::Body { BODY_BYTES } else { 0 }
            );
        }
    }
}
