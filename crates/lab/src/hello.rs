//! A service of a chain: it greets, and calls the next services for the rest of its answer.
//!
//! `GET /hello/eric` to `hello1`, which speaks French and calls `hello2`, is answered with
//! `Bonjour eric@hello1:<Bonjour eric@hello2:`. Several next services are called at once, and their answers stand in the
//! order of the list. It knows nothing of lanes: it passes on the headers that it is told to, and no other. With the header
//! `title: Dr.` it greets `Dr. eric`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::client::{ClientError, Request, Response, Target};

/// Longest wait for a next service.
const PATIENCE: Duration = Duration::from_secs(20);

/// A service and what it calls.
#[derive(Debug, Clone)]
pub struct HelloOptions {
    /// Name of the service, the same for all of its versions.
    pub name: String,
    /// Word that it greets with.
    pub greeting: String,
    /// Where it listens; port 0 for any that is free.
    pub listen: SocketAddr,
    /// Where its calls go: the outbound listener of its sidecar.
    pub proxy: SocketAddr,
    /// Services that it calls, by the hosts under which the proxy knows them.
    pub next: Vec<String>,
    /// Headers that it passes on, in lower case.
    pub passes: Vec<String>,
    /// Whether it answers at once, and calls the next services afterwards.
    pub calls_later: Option<Duration>,
}

/// A running service; ends when it is dropped, with its connections.
#[derive(Debug)]
pub struct Hello {
    address: SocketAddr,
    _connections: JoinSet<()>,
}

impl Hello {
    /// Starts the service in the current Tokio runtime; it accepts connections when this returns.
    pub async fn start(options: HelloOptions) -> anyhow::Result<Self> {
        let socket = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("cannot listen on {}", options.listen))?;
        let address = socket.local_addr()?;
        let mut connections = JoinSet::new();
        connections.spawn(accept(socket, Arc::new(options)));
        Ok(Self {
            address,
            _connections: connections,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(socket: TcpListener, options: Arc<HelloOptions>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = socket.accept() => if let Ok((stream, _)) = accepted {
                connections.spawn(serve(stream, Arc::clone(&options)));
            } else {
                // Out of descriptors, most likely: the next accept may do better.
                tokio::time::sleep(Duration::from_millis(10)).await;
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, options: Arc<HelloOptions>) {
    // Small answers leave at once; a socket that refuses this still works.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(Arc::clone(&options), request));
    // How a connection ends is the client's to judge.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    options: Arc<HelloOptions>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let who = path.strip_prefix("/hello/").unwrap_or("you").to_owned();
    let passed: Vec<(String, String)> = options
        .passes
        .iter()
        .flat_map(|name| {
            request
                .headers()
                .get_all(name)
                .iter()
                .map(move |value| (name, value))
        })
        .filter_map(|(name, value)| Some((name.clone(), value.to_str().ok()?.to_owned())))
        .collect();
    let title = request.headers().get("title");
    let title = title.and_then(|title| title.to_str().ok());
    let title = title.map_or_else(String::new, |title| format!("{title} "));
    let mut body = format!("{} {title}{who}@{}:", options.greeting, options.name);
    let rest = call_all(Arc::clone(&options), path, passed);
    if options.calls_later.is_some() {
        tokio::spawn(rest);
        return Ok(hyper::Response::new(Full::new(body.into())));
    }
    for response in rest.await {
        body.push('<');
        match response {
            Ok(response) if response.status == 200 => {
                body.push_str(&String::from_utf8_lossy(&response.body));
            }
            Ok(response) => body.extend(["status ", response.status.to_string().as_str()]),
            Err(error) => body.push_str(&error.to_string()),
        }
    }
    Ok(hyper::Response::new(Full::new(body.into())))
}

/// Calls all next services at once; their answers are in the order of the list.
async fn call_all(
    options: Arc<HelloOptions>,
    path: String,
    passed: Vec<(String, String)>,
) -> Vec<Result<Response, ClientError>> {
    if let Some(wait) = options.calls_later {
        tokio::time::sleep(wait).await;
    }
    let calls: Vec<_> = options
        .next
        .iter()
        .map(|host| {
            let mut request = Request::get(&path).host(host).timeout(PATIENCE);
            for (name, value) in &passed {
                request = request.header(name, value);
            }
            let target = Target::http1(options.proxy);
            tokio::spawn(async move { target.send(request).await })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        // A call that panicked has no answer.
        let lost = || {
            Err(ClientError::Closed(
                "the call ended without an answer".to_owned(),
            ))
        };
        answers.push(call.await.unwrap_or_else(|_| lost()));
    }
    answers
}
