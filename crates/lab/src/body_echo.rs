//! The upstream of measurements: answers with the request's body, and does little else.
//!
//! Unlike [`crate::echo`], it records and describes nothing, so it costs little: one thread serves some
//! 100,000 requests a second.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Longest body that is taken and given, in bytes.
const LONGEST_BODY: usize = 64 * 1024 * 1024;
/// Longest delay.
const LONGEST_DELAY: Duration = Duration::from_mins(1);

/// The request headers that change an answer, for the command's help.
pub const HELP: &str = "\
Request headers that change the answer:
  x-echo-headers: true   append the request's headers as JSON, after a line break
  x-echo-status: NNN     answer with this status
  x-echo-delay-ms: N     answer after so many milliseconds
  x-echo-size: N         answer with N bytes in place of the request's body";

/// Upstream that runs on threads of its own. Dropping it ends it.
#[derive(Debug)]
pub struct BodyEcho {
    address: SocketAddr,
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    stop: Option<oneshot::Sender<()>>,
    handle: Option<std::thread::JoinHandle<()>>,
    id: i32,
}

impl BodyEcho {
    /// Starts it; it accepts connections when this returns.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on.
    pub fn start(listen: SocketAddr, threads: usize) -> anyhow::Result<Self> {
        let mut echo = Self {
            address: listen,
            threads: Vec::new(),
        };
        let socket = std::net::TcpListener::bind(listen)
            .with_context(|| format!("cannot listen on {listen}"))?;
        socket.set_nonblocking(true)?;
        echo.address = socket.local_addr()?;
        for _ in 0..threads.max(1) {
            let socket = socket.try_clone()?;
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (stop, stopped) = oneshot::channel();
            let (started, start) = std::sync::mpsc::channel();
            let handle = std::thread::Builder::new()
                .name("echo".to_owned())
                .spawn(move || {
                    let _ = started.send(rustix::thread::gettid().as_raw_nonzero().get());
                    serve(&runtime, socket, stopped);
                })?;
            echo.threads.push(Thread {
                stop: Some(stop),
                handle: Some(handle),
                id: start.recv()?,
            });
        }
        Ok(echo)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Thread ids of its threads in this process, to pin them and to read their CPU times.
    pub fn thread_ids(&self) -> Vec<i32> {
        self.threads.iter().map(|thread| thread.id).collect()
    }

    /// Serves until the process is interrupted (Ctrl-C).
    ///
    /// # Errors
    ///
    /// The signal cannot be waited for.
    pub fn wait_for_interrupt(self) -> anyhow::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime
            .block_on(tokio::signal::ctrl_c())
            .context("cannot wait for Ctrl-C")
    }
}

impl Drop for BodyEcho {
    fn drop(&mut self) {
        for thread in &mut self.threads {
            // A thread that ended has no receiver any more.
            thread.stop.take().map(|stop| stop.send(()));
            let _ = thread.handle.take().map(std::thread::JoinHandle::join);
        }
    }
}

fn serve(runtime: &Runtime, socket: std::net::TcpListener, stopped: oneshot::Receiver<()>) {
    runtime.block_on(async {
        let Ok(socket) = TcpListener::from_std(socket) else {
            return;
        };
        let accept = async {
            loop {
                match socket.accept().await {
                    Ok((stream, _)) => {
                        tokio::spawn(connection(stream));
                    }
                    // Most likely out of descriptors: the next accept may succeed.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        tokio::select! {
            () = accept => {}
            _ = stopped => {}
        }
    });
}

async fn connection(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
    // How a connection ends is the client's to judge.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, LONGEST_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return refuse(&format!("the body cannot be read: {error}")),
    };
    match reply(&head.headers, body).await {
        Ok(response) => response,
        Err(problem) => refuse(&problem),
    }
}

async fn reply(headers: &HeaderMap, mut body: Bytes) -> Result<Response<Full<Bytes>>, String> {
    if let Some(size) = number(headers, "x-echo-size")? {
        if size > LONGEST_BODY {
            return Err(format!("x-echo-size is at most {LONGEST_BODY}"));
        }
        body = vec![b'x'; size].into();
    }
    if headers
        .get("x-echo-headers")
        .is_some_and(|value| value == "true")
    {
        body = with_headers(&body, headers);
    }
    if let Some(delay) = number(headers, "x-echo-delay-ms")? {
        let delay = Duration::from_millis(delay as u64);
        if delay > LONGEST_DELAY {
            return Err(format!(
                "x-echo-delay-ms is at most {}",
                LONGEST_DELAY.as_millis()
            ));
        }
        tokio::time::sleep(delay).await;
    }
    let mut response = Response::new(Full::new(body));
    if let Some(status) = number(headers, "x-echo-status")? {
        *response.status_mut() = u16::try_from(status)
            .ok()
            .filter(|status| *status >= 200)
            .and_then(|status| StatusCode::from_u16(status).ok())
            .ok_or_else(|| format!("x-echo-status must be between 200 and 999; got {status}"))?;
    }
    if let Some(kind) = headers.get("content-type") {
        response.headers_mut().insert("content-type", kind.clone());
    }
    Ok(response)
}

fn number(headers: &HeaderMap, name: &str) -> Result<Option<usize>, String> {
    headers
        .get(name)
        .map(|value| {
            let text = value.to_str().unwrap_or_default();
            text.parse()
                .map_err(|_| format!("{name} must be a number; got {text:?}"))
        })
        .transpose()
}

/// The body, a line break, and the headers as a JSON object of arrays.
fn with_headers(body: &Bytes, headers: &HeaderMap) -> Bytes {
    let mut object = serde_json::Map::new();
    for name in headers.keys() {
        let values = headers.get_all(name).iter();
        let values = values.map(|value| {
            String::from_utf8_lossy(value.as_bytes())
                .into_owned()
                .into()
        });
        object.insert(name.to_string(), serde_json::Value::Array(values.collect()));
    }
    let mut bytes = BytesMut::from(body.as_ref()).writer();
    // A buffer takes all that is written.
    let _ = writeln!(bytes, "\n{}", serde_json::Value::Object(object));
    bytes.into_inner().freeze()
}

fn refuse(problem: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(format!("{problem}\n").into()));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::client::{Request, Target};

    fn echo() -> BodyEcho {
        BodyEcho::start(SocketAddr::from(([127, 0, 0, 1], 0)), 2).unwrap()
    }

    #[tokio::test]
    async fn body_comes_back_with_the_headers_if_asked() {
        let echo = echo();
        for target in [Target::http1(echo.address()), Target::http2(echo.address())] {
            let request =
                Request::post("/", b"hello".to_vec()).header("content-type", "text/plain");
            let response = target.send(request.clone()).await.unwrap();
            assert_eq!((response.status, response.text().as_str()), (200, "hello"));
            assert_eq!(response.headers.get("content-type"), Some("text/plain"));
            let response = target
                .send(request.header("x-echo-headers", "true"))
                .await
                .unwrap();
            let text = response.text();
            let (body, json) = text.split_once('\n').unwrap();
            assert_eq!(body, "hello");
            let json: serde_json::Value = serde_json::from_str(json).unwrap();
            assert_eq!(json["content-type"][0], "text/plain");
        }
    }

    #[tokio::test]
    async fn status_size_and_delay_follow_the_headers() {
        let echo = echo();
        let target = Target::http1(echo.address());
        let begin = Instant::now();
        let request = Request::get("/")
            .header("x-echo-status", "418")
            .header("x-echo-size", "1000");
        let response = target
            .send(request.header("x-echo-delay-ms", "50"))
            .await
            .unwrap();
        assert_eq!((response.status, response.body.len()), (418, 1000));
        assert!(begin.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn header_that_cannot_be_followed_is_refused_with_its_reason() {
        let echo = echo();
        for (name, value) in [
            ("x-echo-status", "99"),
            ("x-echo-status", "ok"),
            ("x-echo-size", "99999999999"),
            ("x-echo-delay-ms", "-1"),
        ] {
            let request = Request::get("/").header(name, value);
            let response = Target::http1(echo.address()).send(request).await.unwrap();
            assert_eq!(response.status, 400);
            assert!(response.text().contains(name), "{}", response.text());
        }
    }

    #[test]
    fn address_in_use_is_refused() {
        let echo = echo();
        let error = BodyEcho::start(echo.address(), 1).unwrap_err().to_string();
        assert!(
            error.contains(&format!("cannot listen on {}", echo.address())),
            "{error}"
        );
    }
}
