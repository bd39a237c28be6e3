//! An external processor for Envoy's `ext_proc` filter: gRPC over a Unix socket, on a thread of its own.
//!
//! It is the modern form of an external plugin process. Every message of Envoy is answered with "continue", so what is
//! measured is the way to another process and back. Messages: `envoy/service/ext_proc/v3/external_processor.proto`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::server;
use prost::Message as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// Longest message that is taken, in bytes.
const LONGEST: usize = 4 * 1024 * 1024;

/// `envoy.service.ext_proc.v3.ProcessingRequest`: which part of a request or response it is about.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ProcessingRequest {
    #[prost(bytes = "bytes", optional, tag = "2")]
    request_headers: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    response_headers: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    request_body: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    response_body: Option<Bytes>,
}

/// `envoy.service.ext_proc.v3.ProcessingResponse`: an empty answer for that part, which means "continue".
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ProcessingResponse {
    #[prost(bytes = "bytes", optional, tag = "1")]
    request_headers: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    response_headers: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    request_body: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    response_body: Option<Bytes>,
}

/// A running external processor. Dropping it ends it.
#[derive(Debug)]
pub struct ExtProc {
    socket: PathBuf,
    thread: i32,
    stop: Option<oneshot::Sender<()>>,
    handle: Option<std::thread::JoinHandle<()>>,
}

impl ExtProc {
    /// Listens on a Unix socket at this path; it accepts connections when this returns.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub fn start(socket: &Path) -> anyhow::Result<Self> {
        let listener = std::os::unix::net::UnixListener::bind(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let (stop, stopped) = oneshot::channel();
        let (started, start) = std::sync::mpsc::channel();
        let handle = std::thread::Builder::new()
            .name("ext-proc".to_owned())
            .spawn(move || {
                let _ = started.send(rustix::thread::gettid().as_raw_nonzero().get());
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            socket: socket.to_owned(),
            thread: start.recv()?,
            stop: Some(stop),
            handle: Some(handle),
        })
    }

    /// Path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Id of its thread in this process.
    pub fn thread_id(&self) -> i32 {
        self.thread
    }
}

impl Drop for ExtProc {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        let _ = self.handle.take().map(std::thread::JoinHandle::join);
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn accept(listener: std::os::unix::net::UnixListener) {
    let Ok(listener) = UnixListener::from_std(listener) else {
        return;
    };
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream));
    }
}

async fn connection(stream: UnixStream) {
    let Ok(mut connection) = server::Builder::new()
        .max_concurrent_streams(1024)
        .handshake(stream)
        .await
    else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        // A stream that breaks off is Envoy's to report.
        tokio::spawn(async move {
            let _ = process(request.into_body(), respond).await;
        });
    }
}

async fn process(
    mut body: h2::RecvStream,
    mut respond: server::SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let head = http::Response::builder()
        .header("content-type", "application/grpc")
        .body(());
    let Ok(head) = head else {
        return Ok(());
    };
    let mut stream = respond.send_response(head, false)?;
    let mut received = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        received.extend_from_slice(&data);
        while let Some(message) = take_message(&mut received) {
            match answer(message) {
                Some(answer) => stream.send_data(answer, false)?,
                None => return finish(&mut stream, "3"),
            }
        }
        if received.len() > LONGEST {
            return finish(&mut stream, "8");
        }
    }
    finish(&mut stream, "0")
}

fn finish(stream: &mut h2::SendStream<Bytes>, status: &'static str) -> Result<(), h2::Error> {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static(status));
    stream.send_trailers(trailers)
}

/// Takes a whole message of gRPC off the front: a flag, four bytes of length, the message.
fn take_message(received: &mut BytesMut) -> Option<Bytes> {
    let mut prefix = received.get(1..5)?;
    let length = prefix.get_u32() as usize;
    if received.len() < 5 + length {
        return None;
    }
    received.advance(5);
    Some(received.split_to(length).freeze())
}

/// The answer to a message, framed; `None` if it is none of Envoy's.
fn answer(message: Bytes) -> Option<Bytes> {
    let request = ProcessingRequest::decode(message).ok()?;
    let empty = |part: Option<Bytes>| part.map(|_| Bytes::new());
    let response = ProcessingResponse {
        request_headers: empty(request.request_headers),
        response_headers: empty(request.response_headers),
        request_body: empty(request.request_body),
        response_body: empty(request.response_body),
    };
    let length = response.encoded_len();
    let mut framed = BytesMut::with_capacity(length + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).ok()?);
    response.encode(&mut framed).ok()?;
    Some(framed.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_gets_its_answer() {
        // request_headers, empty: field 2, length 0. The answer is field 1, empty.
        assert_eq!(
            answer(Bytes::from_static(&[0x12, 0])).unwrap().as_ref(),
            [0, 0, 0, 0, 2, 0x0a, 0]
        );
        assert_eq!(answer(Bytes::from_static(&[0x1a, 5, 8])), None);
        assert_eq!(
            answer(Bytes::from_static(&[0x1a, 0])).unwrap().as_ref(),
            [0, 0, 0, 0, 2, 0x12, 0]
        );
    }

    #[test]
    fn messages_are_taken_whole() {
        let mut received = BytesMut::from(&[0, 0, 0, 0, 2, 0x12, 0, 0, 0][..]);
        assert_eq!(take_message(&mut received).unwrap().as_ref(), [0x12, 0]);
        assert_eq!(take_message(&mut received), None);
        received.extend_from_slice(&[0, 0, 0]);
        assert!(take_message(&mut received).unwrap().is_empty());
        assert!(received.is_empty());
    }

    #[test]
    fn socket_is_gone_after_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ext-proc.sock");
        let server = ExtProc::start(&path).unwrap();
        assert!(path.exists() && server.thread_id() > 0);
        assert!(ExtProc::start(&path).is_err());
        drop(server);
        assert!(!path.exists());
    }
}
