//! An HTTP server on loopback that answers as its test says, and notes what it was asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A request as the server got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Vec<u8>,
}

/// What is sent back.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of the body that are sent before the connection is closed; all of them if `None`.
    pub(crate) cut: Option<usize>,
    /// Time before anything is sent.
    pub(crate) delay: Duration,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            cut: None,
            delay: Duration::ZERO,
        }
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    pub(crate) fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

type Script = dyn Fn(&Asked, usize) -> Reply + Send + Sync;

/// The server; it ends when it is dropped.
pub(crate) struct Server {
    pub(crate) host: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// A server whose answers `script` gives, with the number of the request from 0.
    pub(crate) fn start(script: impl Fn(&Asked, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let script: Arc<Script> = Arc::new(script);
        let (noted, ended) = (Arc::clone(&asked), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (script, noted) = (Arc::clone(&script), Arc::clone(&noted));
                // A connection for each request keeps what is asked in order.
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || {
                    let _ = answer(stream, &*script, &noted);
                });
            }
        });
        Self {
            host,
            asked,
            ends,
            thread: Some(thread),
        }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.host);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(stream: TcpStream, script: &Script, noted: &Mutex<Vec<Asked>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    if method.is_empty() {
        return Ok(());
    }
    let (mut authorization, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => authorization = Some(value.trim().to_owned()),
            "content-length" => length = value.trim().parse().unwrap_or(0),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let asked = Asked {
        method,
        path,
        authorization,
        body,
    };
    let number = {
        let mut noted = noted.lock().unwrap();
        noted.push(asked.clone());
        noted.len() - 1
    };
    let reply = script(&asked, number);
    std::thread::sleep(reply.delay);
    let mut stream = stream;
    let mut head = Vec::new();
    write!(
        head,
        "HTTP/1.1 {} Reply\r\nconnection: close\r\n",
        reply.status
    )?;
    let has_length = reply
        .headers
        .iter()
        .any(|(name, _)| name == "content-length");
    if !has_length {
        write!(head, "content-length: {}\r\n", reply.body.len())?;
    }
    for (name, value) in &reply.headers {
        write!(head, "{name}: {value}\r\n")?;
    }
    head.extend_from_slice(b"\r\n");
    stream.write_all(&head)?;
    if asked.method != "HEAD" {
        let count = reply.cut.unwrap_or(reply.body.len());
        let sent = reply.body.get(..count).unwrap_or(&reply.body);
        stream.write_all(sent)?;
    }
    Ok(())
}
