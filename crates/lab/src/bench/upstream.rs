//! The upstream of requests with a body: takes the body, answers `ok`.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A running upstream. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    _accepting: JoinSet<()>,
}

impl Upstream {
    /// Listens on any free port of the loopback.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let socket = TcpListener::bind("127.0.0.1:0").await?;
        let address = socket.local_addr()?;
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(socket));
        Ok(Self {
            address,
            _accepting: accepting,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(socket: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = socket.accept().await else {
            continue;
        };
        // Without it answers are late, and nothing else is wrong.
        let _ = stream.set_nodelay(true);
        connections.spawn(async move {
            // A connection that breaks is told of by who waits for its answer.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: hyper::Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    // One that breaks off gets no answer that anybody reads.
    let _ = request.into_body().collect().await;
    Ok(Response::new(Full::new(Bytes::from_static(b"ok"))))
}
