//! Upstreams that break their protocol: short bodies, bodies to HEAD, resets, GOAWAY, silence, garbage, in HTTP/1.1
//! and in HTTP/2. Each request gets a fault by chance, and now and then a sound answer.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, parse,
};
use crate::Protocol;
use crate::random::Random;

/// How long a fault of silence lasts.
const SILENCE: Duration = Duration::from_secs(2);
/// An idle connection ends after this time.
const IDLE: Duration = Duration::from_secs(20);

/// A running upstream. Dropping it ends it with all connections.
#[derive(Debug)]
pub(super) struct Faulty {
    pub(super) address: SocketAddr,
    // Its abort, when dropped, takes the listener and all connections along.
    _tasks: JoinSet<()>,
}

impl Faulty {
    /// Starts an upstream of this protocol on a free port.
    pub(super) async fn start(protocol: Protocol, mut random: Random) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            let random = random.fork();
                            connections.spawn(async move {
                                // How a connection ends is not judged.
                                let _ = match protocol {
                                    Protocol::Http1 => http1(stream, random).await,
                                    Protocol::Http2 => http2(stream, random).await,
                                };
                            });
                        }
                        Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self {
            address,
            _tasks: tasks,
        })
    }
}

/// Has the system send RST instead of FIN when the stream is dropped.
pub(super) fn reset_on_close(stream: &TcpStream) {
    // Without it the connection ends politely, which is a fault, too.
    let _ = stream.set_zero_linger();
}

async fn http1(mut stream: TcpStream, mut random: Random) -> std::io::Result<()> {
    let mut request = Vec::new();
    loop {
        request.clear();
        while !request.ends_with(b"\r\n\r\n") && request.len() < 100_000 {
            let read = tokio::time::timeout(IDLE, stream.read_buf(&mut request)).await??;
            if read == 0 {
                return Ok(());
            }
            if request.windows(4).any(|end| end == b"\r\n\r\n") {
                break;
            }
        }
        let answer: &[u8] = match random.below(18) {
            0 => b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nabc",
            1 => b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdefgh",
            2 => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n",
            3 => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            4 => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-trailer: yes\r\n\r\n",
            5 => b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nabcde",
            6 => b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\nabcde",
            7 => b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            8 => b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nabc",
            9 => b"HTTQ/9.9 xx\r\n\r\n",
            10 => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 7\r\n\r\nok",
            11 => b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
            12 => b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
            13 => b"",
            14 => {
                reset_on_close(&stream);
                return Ok(());
            }
            15 => {
                tokio::time::sleep(SILENCE).await;
                b""
            }
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        };
        stream.write_all(answer).await?;
        if !answer.ends_with(b"\r\n\r\nok") || random.chance(20) {
            if random.chance(30) {
                reset_on_close(&stream);
            }
            if random.chance(30) {
                tokio::time::sleep(Duration::from_millis(random.below(50))).await;
            }
            return Ok(());
        }
    }
}

async fn http2(mut stream: TcpStream, mut random: Random) -> std::io::Result<()> {
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        let mut head = [0; 9];
        tokio::time::timeout(IDLE, stream.read_exact(&mut head)).await??;
        let (length, kind, flags, id) = parse(head);
        let mut payload = vec![0; length.min(1 << 20)];
        stream.read_exact(&mut payload).await?;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await?;
            }
            PING if flags & ACK == 0 => stream.write_all(&frame(PING, ACK, 0, &payload)).await?,
            DATA if length > 0 => {
                let more = (length as u32).to_be_bytes();
                stream.write_all(&frame(WINDOW_UPDATE, 0, 0, &more)).await?;
                stream
                    .write_all(&frame(WINDOW_UPDATE, 0, id, &more))
                    .await?;
            }
            HEADERS => {
                let goes_on = answer(&mut stream, &mut random, id).await?;
                if !goes_on {
                    return Ok(());
                }
            }
            GOAWAY => return Ok(()),
            _ => {}
        }
    }
}

/// Answers one stream; returns whether the connection goes on.
async fn answer(stream: &mut TcpStream, random: &mut Random, id: u32) -> std::io::Result<bool> {
    let head = |headers: &[(&str, &str)], flags: u8| {
        frame(HEADERS, END_HEADERS | flags, id, &block(headers))
    };
    let good = head(&[(":status", "200"), ("x-from", "faulty")], 0);
    let mut goes_on = true;
    let bytes: Vec<u8> = match random.below(24) {
        // Fewer bytes than were announced.
        0..3 => [
            head(&[(":status", "200"), ("content-length", "50")], 0),
            frame(DATA, END_STREAM, id, b"abc"),
        ]
        .concat(),
        3 => [
            head(&[(":status", "200"), ("content-length", "2")], 0),
            frame(DATA, END_STREAM, id, b"abcdef"),
        ]
        .concat(),
        4 => [
            head(&[(":status", "204")], 0),
            frame(DATA, END_STREAM, id, b"abc"),
        ]
        .concat(),
        5 => frame(RST_STREAM, 0, id, &(random.below(14) as u32).to_be_bytes()),
        6 => [
            good,
            frame(DATA, 0, id, b"part"),
            frame(RST_STREAM, 0, id, &2_u32.to_be_bytes()),
        ]
        .concat(),
        7 => [
            frame(GOAWAY, 0, 0, &[id.to_be_bytes(), [0; 4]].concat()),
            good,
            frame(DATA, END_STREAM, id, b"last"),
        ]
        .concat(),
        8 => {
            goes_on = false;
            frame(GOAWAY, 0, 0, &[[0; 4], 1_u32.to_be_bytes()].concat())
        }
        9 => frame(DATA, END_STREAM, id, b"no head"),
        10 => [good.clone(), good].concat(),
        11 => frame(HEADERS, END_HEADERS, id, &[0xff; 40]),
        12 => [
            good,
            frame(DATA, 0, id, b"abc"),
            head(&[("x-trailer", "yes")], END_STREAM),
        ]
        .concat(),
        13 => [
            good,
            frame(DATA, 0, id, b"abc"),
            head(&[(":status", "200")], END_STREAM),
        ]
        .concat(),
        14 => frame(WINDOW_UPDATE, 0, id, &0_u32.to_be_bytes()),
        15 => frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
        16 => frame(PUSH_PROMISE, END_HEADERS, id, &[0, 0, 0, 2]),
        17 => [
            frame(HEADERS, 0, id, &block(&[(":status", "200")])),
            frame(CONTINUATION, 0, id, &[]),
        ]
        .concat(),
        18 => {
            goes_on = false;
            Vec::new()
        }
        19 => {
            reset_on_close(stream);
            return Ok(false);
        }
        // No answer, while others on this connection go on.
        20 => Vec::new(),
        21 => [
            head(&[(":status", "103")], 0),
            good,
            frame(DATA, END_STREAM, id, b"late"),
        ]
        .concat(),
        _ => [good, frame(DATA, END_STREAM, id, b"ok")].concat(),
    };
    stream.write_all(&bytes).await?;
    Ok(goes_on)
}
