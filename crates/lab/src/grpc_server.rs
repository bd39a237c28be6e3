//! A gRPC server over a Unix socket on a thread of its own, for what Envoy calls while it is measured.

use std::future::Future;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bytes::{BufMut as _, Bytes, BytesMut};
use h2::server::{self, SendResponse};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct GrpcServer {
    socket: PathBuf,
    thread: i32,
    stop: Option<oneshot::Sender<()>>,
    handle: Option<std::thread::JoinHandle<()>>,
}

impl GrpcServer {
    /// Listens on a Unix socket at this path; it accepts connections when this returns. `answer` is called for each
    /// stream.
    ///
    /// # Errors
    ///
    /// The socket cannot be made.
    pub(crate) fn start<Answer, Done>(
        name: &str,
        socket: &Path,
        answer: Answer,
    ) -> anyhow::Result<Self>
    where
        Answer: Fn(http::Request<h2::RecvStream>, SendResponse<Bytes>) -> Done
            + Copy
            + Send
            + Sync
            + 'static,
        Done: Future<Output = ()> + Send + 'static,
    {
        let listener = std::os::unix::net::UnixListener::bind(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let (stop, stopped) = oneshot::channel();
        let (started, start) = std::sync::mpsc::channel();
        let handle = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _ = started.send(rustix::thread::gettid().as_raw_nonzero().get());
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, answer) => {}
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
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Id of its thread in this process.
    pub(crate) fn thread_id(&self) -> i32 {
        self.thread
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        self.stop.take().map(|stop| stop.send(()));
        let _ = self.handle.take().map(std::thread::JoinHandle::join);
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn accept<Answer, Done>(listener: std::os::unix::net::UnixListener, answer: Answer)
where
    Answer: Fn(http::Request<h2::RecvStream>, SendResponse<Bytes>) -> Done + Copy + Send + 'static,
    Done: Future<Output = ()> + Send + 'static,
{
    let Ok(listener) = UnixListener::from_std(listener) else {
        return;
    };
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream, answer));
    }
}

async fn connection<Answer, Done>(stream: UnixStream, answer: Answer)
where
    Answer: Fn(http::Request<h2::RecvStream>, SendResponse<Bytes>) -> Done + Copy + Send + 'static,
    Done: Future<Output = ()> + Send + 'static,
{
    let Ok(mut connection) = server::Builder::new()
        .max_concurrent_streams(1024)
        .handshake(stream)
        .await
    else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        // A stream that breaks off is Envoy's to report.
        tokio::spawn(answer(request, respond));
    }
}

/// Begins the response of a stream.
///
/// # Errors
///
/// The stream broke off.
pub(crate) fn begin(respond: &mut SendResponse<Bytes>) -> Result<h2::SendStream<Bytes>, h2::Error> {
    let mut head = http::Response::new(());
    head.headers_mut().insert(
        "content-type",
        http::HeaderValue::from_static("application/grpc"),
    );
    respond.send_response(head, false)
}

/// Ends the response with a `grpc-status`.
///
/// # Errors
///
/// The stream broke off.
pub(crate) fn finish(
    stream: &mut h2::SendStream<Bytes>,
    status: &'static str,
) -> Result<(), h2::Error> {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static(status));
    stream.send_trailers(trailers)
}

/// A message with the prefix that gRPC has: a flag, and four bytes of length. `None` if it is longer than those can say.
pub(crate) fn framed(message: &impl prost::Message) -> Option<Bytes> {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(length + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).ok()?);
    message.encode(&mut framed).ok()?;
    Some(framed.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_gone_after_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.sock");
        let start = || GrpcServer::start("server", &path, |_, _| async {});
        let server = start().unwrap();
        assert!(path.exists() && server.thread_id() > 0);
        assert!(start().is_err());
        drop(server);
        assert!(!path.exists());
    }
}
