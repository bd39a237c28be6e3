//! Batches of records for a receiver of the OpenTelemetry protocol.
//!
//! Records gather in a batch until it is large or old enough; full batches, compressed already, wait in a queue of bounded
//! bytes, from which a task sends one after the other. A batch leaves the queue when the receiver has taken it or will
//! never take it; until then it is sent again, with a growing pause.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use outrider_plugin_formats::{OtlpProtocol, OtlpSink};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::client::{Answer, Client};
use crate::registry::Definition;
use crate::stats::{self, Counter, SinkStatus};

/// Bytes of records after which a batch is full.
const FULL: usize = 512 * 1024;
/// Age at which a batch is sent, full or not.
const AGE: Duration = Duration::from_secs(1);
/// Bytes that may wait, where the document does not say.
const QUEUE: usize = 8 * 1024 * 1024;
/// First pause before a batch is sent again, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest pause that a receiver may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);
/// How long a sink that no access log has tries to send what it has.
const LAST: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Batch {
    body: Bytes,
    records: u64,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Batch>,
    /// Bytes of the batches, that under way included.
    bytes: usize,
    failure: Option<String>,
    /// No batch comes any more.
    closed: bool,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

impl Queue {
    fn locked(&self) -> MutexGuard<'_, State> {
        // Every state behind this lock is valid between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A receiver, with what waits for it.
#[derive(Debug)]
pub(crate) struct Otlp {
    sink: OtlpSink,
    queue: Arc<Queue>,
    /// Records of the batch that is being filled, by access log.
    scopes: BTreeMap<Box<str>, Vec<u8>>,
    records: u64,
    bytes: usize,
    since: Instant,
    unused_since: Option<Instant>,
}

impl Otlp {
    pub(crate) fn open(sink: &OtlpSink, runtime: &Runtime) -> Self {
        let queue = Arc::<Queue>::default();
        runtime.spawn(send_all(Client::new(sink.clone()), Arc::clone(&queue)));
        Self {
            sink: sink.clone(),
            queue,
            scopes: BTreeMap::new(),
            records: 0,
            bytes: 0,
            since: Instant::now(),
            unused_since: None,
        }
    }

    fn limit(&self) -> usize {
        self.sink.queue.map_or(QUEUE, |bytes| bytes as usize)
    }

    pub(crate) fn append(&mut self, definition: &Definition, fields: &[u8]) {
        self.unused_since = None;
        if self.records == 0 {
            self.since = Instant::now();
        }
        let name = definition.log.name();
        if !self.scopes.contains_key(name) {
            self.scopes.insert(name.into(), Vec::new());
        }
        let Some(records) = self.scopes.get_mut(name) else {
            return;
        };
        let before = records.len();
        let observed = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        if !crate::otlp::write_record(records, &definition.log, fields, observed) {
            return stats::add(Counter::Unknown, 1);
        }
        self.bytes += records.len() - before;
        self.records += 1;
        if self.bytes >= FULL.min(self.limit()) {
            self.seal();
        }
    }

    /// Puts the batch into the queue, or drops it where that is full.
    fn seal(&mut self) {
        if self.records == 0 {
            return;
        }
        let resource = self.sink.resource.iter();
        let scopes = self
            .scopes
            .iter()
            .filter(|(_, records)| !records.is_empty());
        let request = crate::otlp::request(
            resource.map(|(key, value)| (key.as_str(), value.as_str())),
            scopes.map(|(name, records)| (&**name, records.as_slice())),
        );
        let records = std::mem::take(&mut self.records);
        self.bytes = 0;
        self.scopes.clear();
        let body = self.body(request);
        let mut state = self.queue.locked();
        // One batch always has a place: a queue that is smaller than it would never send anything.
        if !state.batches.is_empty() && state.bytes + body.len() > self.limit() {
            return stats::add(Counter::QueueFull, records);
        }
        state.bytes += body.len();
        state.batches.push_back(Batch { body, records });
        drop(state);
        self.queue.changed.notify_one();
    }

    fn body(&self, request: Vec<u8>) -> Bytes {
        let content = if self.sink.gzip {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            // Writing to memory does not fail.
            let _in_memory = encoder.write_all(&request);
            encoder.finish().unwrap_or_default()
        } else {
            request
        };
        match self.sink.protocol {
            OtlpProtocol::Http => content.into(),
            OtlpProtocol::Grpc => {
                let mut framed = Vec::with_capacity(content.len() + 5);
                framed.push(u8::from(self.sink.gzip));
                framed.extend_from_slice(&(content.len() as u32).to_be_bytes());
                framed.extend_from_slice(&content);
                framed.into()
            }
        }
    }

    pub(crate) fn flush(&mut self, all: bool) {
        if all || self.since.elapsed() >= AGE {
            self.seal();
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.bytes + self.queue.locked().bytes
    }

    pub(crate) fn is_done(&mut self) -> bool {
        self.seal();
        if self.waiting() == 0 {
            return true;
        }
        let since = *self.unused_since.get_or_insert_with(Instant::now);
        since.elapsed() >= LAST
    }

    pub(crate) fn status(&self) -> SinkStatus {
        SinkStatus {
            place: self.sink.endpoint.clone(),
            waiting: self.waiting(),
            failure: self.queue.locked().failure.clone(),
        }
    }
}

impl Drop for Otlp {
    /// The task ends. What waits is given up: [`Otlp::is_done`] has waited for it.
    fn drop(&mut self) {
        let mut state = self.queue.locked();
        state.closed = true;
        let waiting: u64 = state.batches.drain(..).map(|batch| batch.records).sum();
        state.bytes = 0;
        drop(state);
        stats::add(Counter::Abandoned, waiting);
        self.queue.changed.notify_one();
    }
}

/// Sends the queue's batches until it is closed.
async fn send_all(mut client: Client, queue: Arc<Queue>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let next = {
            let state = queue.locked();
            if state.closed {
                return;
            }
            state.batches.front().map(|batch| batch.body.clone())
        };
        let Some(body) = next else {
            queue.changed.notified().await;
            continue;
        };
        let answer = client.send(body).await;
        let (wait, failure) = match answer {
            Ok(Answer::Accepted { rejected, message }) => {
                pause = FIRST_PAUSE;
                let records = finish(&queue);
                let rejected = rejected.min(records);
                stats::add(Counter::Written, records - rejected);
                stats::add(Counter::Rejected, rejected);
                (
                    None,
                    (rejected > 0).then(|| format!("{rejected} records were rejected: {message}")),
                )
            }
            Ok(Answer::Refused(reason)) => {
                stats::add(Counter::Rejected, finish(&queue));
                (None, Some(reason))
            }
            Ok(Answer::Later(reason, after)) => (
                Some(after.map_or(pause, |after| after.clamp(pause, LONGEST_RETRY_AFTER))),
                Some(reason),
            ),
            Err(error) => (Some(pause), Some(error.to_string())),
        };
        queue.locked().failure = failure;
        if let Some(wait) = wait {
            stats::add(Counter::Retries, 1);
            pause = (pause * 2).min(LONGEST_PAUSE);
            let until = Instant::now() + wait;
            // A queue that is closed ends the pause, and new batches do not.
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                if queue.locked().closed {
                    return;
                }
                let step = left.min(Duration::from_millis(200));
                tokio::time::sleep(step).await;
            }
        }
    }
}

/// Takes the first batch out; returns how many records it had.
fn finish(queue: &Queue) -> u64 {
    let mut state = queue.locked();
    let Some(batch) = state.batches.pop_front() else {
        return 0;
    };
    state.bytes -= batch.body.len();
    batch.records
}
