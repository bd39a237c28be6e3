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
/// Streams that the gateway allows at once on one connection.
const STREAMS: usize = 100;
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

/// A client that does all it can at once, again and again.
async fn flood(
    attacker: Attacker,
    address: SocketAddr,
    counts: Arc<Counts>,
    stopped: Arc<AtomicBool>,
) {
    let mut next = tokio::time::interval(Duration::from_millis(attacker.pause_ms));
    next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !stopped.load(Ordering::Relaxed) {
        next.tick().await;
        if flood_once(&attacker, address, &counts).await.is_err() {
            counts.add(0);
        }
    }
}

/// Opens HTTP/2 connections, sends all at once on them, and closes them.
async fn flood_once(
    attacker: &Attacker,
    address: SocketAddr,
    counts: &Arc<Counts>,
) -> anyhow::Result<()> {
    let streams = match attacker.drive {
        Drive::InTurn | Drive::Frames(_) => 1,
        Drive::AtOnce(streams) | Drive::Reset(streams) => streams,
    };
    // The sockets close with these tasks.
    let mut connections = JoinSet::new();
    let mut senders = Vec::new();
    for _ in 0..streams.div_ceil(STREAMS) {
        let socket = TcpStream::connect(address).await?;
        let (sender, connection) = h2::client::handshake(socket).await?;
        connections.spawn(connection);
        senders.push(sender.ready().await?);
    }
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
    if let (Drive::Frames(frames), Some(sender)) = (attacker.drive, senders.pop()) {
        counts.add(send_frames(sender, request, frames).await?);
        return Ok(());
    }
    let mut answers = JoinSet::new();
    let mut left = streams;
    for sender in &mut senders {
        for _ in 0..left.min(STREAMS) {
            let (answer, _) = sender.send_request(request.clone(), true)?;
            answers.spawn(async move { answer.await.map(|answer| answer.status().as_u16()) });
        }
        left = left.saturating_sub(STREAMS);
    }
    if let Drive::Reset(_) = attacker.drive {
        tokio::time::sleep(OPEN).await;
        counts.add(0);
        return Ok(());
    }
    tokio::time::timeout(PATIENCE, async {
        while let Some(answer) = answers.join_next().await {
            counts.add(answer?.unwrap_or(0));
        }
        anyhow::Ok(())
    })
    .await?
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
