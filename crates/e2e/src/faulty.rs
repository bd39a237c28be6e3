//! An upstream that answers wrongly, over HTTP/1.1 or HTTP/2 with prior knowledge. It writes frames of its own: a
//! library would not send these.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamFault {
    /// 200 with the body `abc`; to a `HEAD`, too, where that is wrong.
    Body,
    /// A `content-length` of 50, three bytes, and the end of the response.
    Short,
    /// Headers, three bytes, and a reset: over HTTP/1.1 the connection closes.
    ResetMidway,
    /// No response: over HTTP/2 a `GOAWAY`, and then the connection closes.
    GoAway,
    /// The connection closes after the headers.
    Close,
    /// Bytes that are not HTTP.
    Garbage,
    /// No answer.
    Nothing,
}

impl UpstreamFault {
    /// Every fault.
    pub const ALL: [Self; 7] = [
        Self::Body,
        Self::Short,
        Self::ResetMidway,
        Self::GoAway,
        Self::Close,
        Self::Garbage,
        Self::Nothing,
    ];

    /// A name for an upstream in `outrider.yaml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Short => "short",
            Self::ResetMidway => "reset-midway",
            Self::GoAway => "go-away",
            Self::Close => "close",
            Self::Garbage => "garbage",
            Self::Nothing => "nothing",
        }
    }
}

/// A running upstream of which every answer has one fault. Dropping it ends it.
#[derive(Debug)]
pub struct FaultyUpstream {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl FaultyUpstream {
    /// Starts one on any free port of loopback.
    ///
    /// # Errors
    /// There is no free port.
    pub fn start(fault: UpstreamFault) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let requests = Arc::new(AtomicUsize::new(0));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&requests));
        let thread = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for connection in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(connection) = connection else { continue };
                connections.extend(connection.try_clone());
                let counted = Arc::clone(&counted);
                std::thread::spawn(move || {
                    // Envoy may close it at any time.
                    let _closed = serve(connection, fault, &counted);
                });
            }
            for connection in connections {
                let _closed = connection.shutdown(std::net::Shutdown::Both);
            }
        });
        Ok(Self {
            address,
            stop,
            requests,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests have come.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyUpstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn serve(
    mut connection: TcpStream,
    fault: UpstreamFault,
    requests: &AtomicUsize,
) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut start = [0; 4];
    connection.read_exact(&mut start)?;
    if PREFACE.starts_with(&start) {
        let mut rest = [0; 20];
        connection.read_exact(&mut rest)?;
        serve_http2(&mut connection, fault, requests)
    } else {
        serve_http1(&mut connection, &start, fault, requests)
    }
}

fn serve_http1(
    connection: &mut TcpStream,
    start: &[u8],
    fault: UpstreamFault,
    requests: &AtomicUsize,
) -> io::Result<()> {
    let mut head = start.to_vec();
    let mut byte = [0; 1];
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            connection.read_exact(&mut byte)?;
            head.extend(byte);
        }
        head.clear();
        requests.fetch_add(1, Ordering::Relaxed);
        let answer: &[u8] = match fault {
            UpstreamFault::Body => b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            UpstreamFault::Short | UpstreamFault::ResetMidway => {
                b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nabc"
            }
            UpstreamFault::GoAway => b"",
            UpstreamFault::Close => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            UpstreamFault::Garbage => b"\x00\x01 nothing of HTTP\r\n\r\n",
            UpstreamFault::Nothing => continue,
        };
        connection.write_all(answer)?;
        if fault != UpstreamFault::Body {
            return connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Types and flags of HTTP/2 frames.
mod frame {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RST_STREAM: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const END_STREAM: u8 = 1;
    pub(super) const ACK: u8 = 1;
    pub(super) const END_HEADERS: u8 = 4;
}

fn send(
    connection: &mut TcpStream,
    kind: u8,
    flags: u8,
    stream: u32,
    load: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(load.len())
        .map_err(io::Error::other)?
        .to_be_bytes();
    let mut frame = length.get(1..).unwrap_or_default().to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(load);
    connection.write_all(&frame)
}

/// Sends a HEADERS frame with `:status 200` and a `content-length`, as HPACK has them without its dynamic table.
fn send_headers(connection: &mut TcpStream, stream: u32, length: &str) -> io::Result<()> {
    let mut block = vec![0x88, 0x0f, 0x0d];
    block.extend(u8::try_from(length.len()));
    block.extend(length.as_bytes());
    send(
        connection,
        frame::HEADERS,
        frame::END_HEADERS,
        stream,
        &block,
    )
}

fn serve_http2(
    connection: &mut TcpStream,
    fault: UpstreamFault,
    requests: &AtomicUsize,
) -> io::Result<()> {
    send(connection, frame::SETTINGS, 0, 0, &[])?;
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head)?;
        let [a, b, c, kind, flags, s0, s1, s2, s3] = head;
        let length = u32::from_be_bytes([0, a, b, c]);
        let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
        let mut load = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        connection.read_exact(&mut load)?;
        match kind {
            frame::SETTINGS if flags & frame::ACK == 0 => {
                send(connection, frame::SETTINGS, frame::ACK, 0, &[])?;
            }
            frame::PING if flags & frame::ACK == 0 => {
                send(connection, frame::PING, frame::ACK, 0, &load)?;
            }
            frame::HEADERS => {
                requests.fetch_add(1, Ordering::Relaxed);
                if !answer_http2(connection, fault, stream)? {
                    return connection.shutdown(std::net::Shutdown::Both);
                }
            }
            _ => {}
        }
    }
}

/// Returns whether the connection goes on.
fn answer_http2(connection: &mut TcpStream, fault: UpstreamFault, stream: u32) -> io::Result<bool> {
    let end = frame::END_STREAM;
    match fault {
        UpstreamFault::Body => {
            send_headers(connection, stream, "3")?;
            send(connection, frame::DATA, end, stream, b"abc")?;
        }
        UpstreamFault::Short => {
            send_headers(connection, stream, "50")?;
            send(connection, frame::DATA, end, stream, b"abc")?;
        }
        UpstreamFault::ResetMidway => {
            send_headers(connection, stream, "50")?;
            send(connection, frame::DATA, 0, stream, b"abc")?;
            send(
                connection,
                frame::RST_STREAM,
                0,
                stream,
                &2_u32.to_be_bytes(),
            )?;
        }
        UpstreamFault::GoAway => {
            // No stream was processed, and an error.
            send(connection, frame::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 11])?;
            return Ok(false);
        }
        UpstreamFault::Close => {
            send_headers(connection, stream, "50")?;
            return Ok(false);
        }
        UpstreamFault::Garbage => {
            connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")?;
            return Ok(false);
        }
        UpstreamFault::Nothing => {}
    }
    Ok(true)
}
