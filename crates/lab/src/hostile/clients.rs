//! The attackers' clients: one request after the other, or as many at once as one HTTP/2 connection takes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::attackers::{Attacker, Drive};
use crate::client::{Connection, Target};

/// Time for an answer to an attacker.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which the streams of [`Drive::Reset`] are open, so that each has begun.
const OPEN: Duration = Duration::from_millis(300);

/// The attackers' clients, on a thread of their own.
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    counts: BTreeMap<&'static str, Arc<Counts>>,
    thread: std::thread::JoinHandle<()>,
}

/// Answers that the clients of one attacker received, by status.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: AtomicU64,
    statuses: std::sync::Mutex<BTreeMap<u16, u64>>,
}

impl Counts {
    /// How many answers had each status; 0: none came.
    pub(super) fn statuses(&self) -> BTreeMap<u16, u64> {
        self.statuses
            .lock()
            .map(|statuses| statuses.clone())
            .unwrap_or_default()
    }

    fn add(&self, status: u16) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut statuses) = self.statuses.lock() {
            *statuses.entry(status).or_default() += 1;
        }
    }
}

impl Clients {
    /// Starts the clients of these attackers.
    ///
    /// # Errors
    /// Names the resource that the system lacks.
    pub(super) fn start(attackers: &[Attacker], address: SocketAddr) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let counts: BTreeMap<&'static str, Arc<Counts>> = attackers
            .iter()
            .map(|attacker| (attacker.name, Arc::default()))
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (attackers, stopped, shared) = (attackers.to_vec(), Arc::clone(&stop), counts.clone());
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for attacker in attackers {
                    let Some(counts) = shared.get(attacker.name) else {
                        continue;
                    };
                    for _ in 0..attacker.clients {
                        let (counts, stopped) = (Arc::clone(counts), Arc::clone(&stopped));
                        let attacker = attacker.clone();
                        match attacker.drive {
                            Drive::InTurn => {
                                tasks.spawn(client(attacker, address, counts, stopped));
                            }
                            _ => {
                                tasks.spawn(flood(attacker, address, counts, stopped));
                            }
                        }
                    }
                }
                while !stopped.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // The clients are gone at once, with all their connections.
                tasks.shutdown().await;
            });
        });
        Ok(Self {
            stop,
            counts,
            thread,
        })
    }

    /// Stops them, and returns what they got.
    pub(super) fn stop(self) -> BTreeMap<&'static str, Arc<Counts>> {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.thread.join());
        self.counts
    }
}

async fn client(
    attacker: Attacker,
    address: SocketAddr,
    counts: Arc<Counts>,
    stopped: Arc<AtomicBool>,
) {
    let target = Target::http1(address);
    let mut connection = None;
    while !stopped.load(Ordering::Relaxed) {
        let opened = match connection.take() {
            Some(open) => Some(open),
            None => Connection::open(&target).await.ok(),
        };
        let Some(mut open) = opened else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let request = attacker.request().timeout(PATIENCE);
        let status = match open.send(request).await {
            Ok(response) => {
                connection = Some(open);
                response.status
            }
            // No answer: 0 in the table.
            Err(_) => 0,
        };
        counts.add(status);
        tokio::time::sleep(Duration::from_millis(attacker.pause_ms)).await;
    }
}

/// A client that opens an HTTP/2 connection, does all it can at once on it, and closes it.
async fn flood(
    attacker: Attacker,
    address: SocketAddr,
    counts: Arc<Counts>,
    stopped: Arc<AtomicBool>,
) {
    while !stopped.load(Ordering::Relaxed) {
        if flood_once(&attacker, address, &counts).await.is_err() {
            counts.add(0);
        }
        tokio::time::sleep(Duration::from_millis(attacker.pause_ms)).await;
    }
}

async fn flood_once(
    attacker: &Attacker,
    address: SocketAddr,
    counts: &Arc<Counts>,
) -> anyhow::Result<()> {
    let socket = TcpStream::connect(address).await?;
    let (mut sender, connection) = h2::client::handshake(socket).await?;
    // Ends with the task that floods, which is when the socket closes.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        drop(connection.await);
        None
    });
    let request = http::Request::builder()
        .method(if attacker.drive.has_body() {
            "POST"
        } else {
            "GET"
        })
        .uri(format!(
            "http://{}/{}/x",
            super::ATTACKED_HOST,
            attacker.name
        ))
        .header("x-echo-path", attacker.drive.echo_path())
        .body(())?;
    match attacker.drive {
        Drive::InTurn => {}
        Drive::Frames(frames) => {
            counts.add(send_frames(sender.ready().await?, request, frames).await?);
        }
        Drive::AtOnce(streams) | Drive::Reset(streams) => {
            for _ in 0..streams {
                // Waits while the gateway allows no more streams at once.
                sender = tokio::time::timeout(PATIENCE, sender.ready()).await??;
                let (answer, _) = sender.send_request(request.clone(), true)?;
                tasks.spawn(
                    async move { Some(answer.await.map(|answer| answer.status().as_u16())) },
                );
            }
            if let Drive::Reset(_) = attacker.drive {
                tokio::time::sleep(OPEN).await;
                counts.add(0);
                return Ok(());
            }
            let all = async {
                let mut left = streams;
                while left > 0
                    && let Some(done) = tasks.join_next().await
                {
                    if let Some(answer) = done? {
                        counts.add(answer.unwrap_or(0));
                        left -= 1;
                    }
                }
                anyhow::Ok(())
            };
            tokio::time::timeout(PATIENCE, all).await??;
        }
    }
    Ok(())
}

/// Sends a body in so many frames of one byte, and returns the status of the answer.
async fn send_frames(
    mut sender: SendRequest<Bytes>,
    request: http::Request<()>,
    frames: usize,
) -> anyhow::Result<u16> {
    let (answer, mut body) = sender.send_request(request, false)?;
    body.reserve_capacity(frames);
    for frame in 1..=frames {
        body.send_data(Bytes::from_static(b"x"), frame == frames)?;
    }
    let answer = tokio::time::timeout(PATIENCE, answer)
        .await
        .context("no answer")??;
    Ok(answer.status().as_u16())
}
