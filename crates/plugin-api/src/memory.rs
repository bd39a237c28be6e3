//! Memory account of one plugin: the bytes that the proxy and the host keep for it outside of its VMs.
//!
//! A VM has a limit of its own. What a plugin hands to the proxy (the body of a reply or a callout, headers, metadata,
//! bytes put into a body) leaves the VM, and may stay for as long as a client or an upstream does not read. So each
//! such operation makes a [`Reservation`] first, which lives exactly as long as the bytes: it is part of the pending
//! operation, the queued event or the stream, and frees its bytes when that is dropped. All streams, workers and
//! versions of a plugin share one account.
//!
//! The trap: the proxy may keep bytes after the stream that sent them has ended (a reply in the write buffer of an
//! HTTP/1.1 connection). The account cannot see those; they are bounded by the body limit for each connection, like
//! those of any response.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::phase::Direction;

/// Cost in bytes of one entry (a header, a value of metadata, an event) beside its own bytes.
pub const ENTRY_COST: usize = 64;

/// Bytes of headers, metadata and small bodies that each stream may take without a reservation. They cost less than
/// the stream itself does in the proxy.
const FREE_BYTES: usize = 8 * 1024;

/// The least number of bytes after which the proxy has passed a part of a body on.
const LEAST_WINDOW: usize = 64 * 1024;

/// Least time between two log lines about refusals, in milliseconds.
const LOG_INTERVAL_MS: u64 = 10_000;

/// The reservation does not fit into the plugin's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the plugin has as much under way as its memory budget allows: {limit} bytes of bodies, headers and metadata that \
     Envoy keeps for all its requests; raise the plugin's `budgets.memory_mib` in outrider.yaml"
)]
pub struct MemoryExceeded {
    /// Limit of the account in bytes.
    pub limit: usize,
}

/// Account of one plugin, shared by all its streams.
#[derive(Debug)]
pub struct MemoryAccount {
    limit: AtomicUsize,
    used: AtomicUsize,
    /// When a refusal was logged last, in milliseconds since the Unix epoch; 0: never.
    logged_at: AtomicU64,
}

impl MemoryAccount {
    /// Limit in bytes where the configuration says nothing.
    pub const DEFAULT_LIMIT: usize = 16 * 1024 * 1024;

    /// An account with a limit in bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            logged_at: AtomicU64::new(0),
        }
    }

    /// Changes the limit for reservations that follow.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Bytes that are reserved now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Reserves bytes until the reservation is dropped.
    ///
    /// # Errors
    /// [`MemoryExceeded`], and nothing is reserved.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, MemoryExceeded> {
        self.add(bytes)?;
        Ok(Reservation {
            account: Arc::clone(self),
            bytes,
        })
    }

    /// Returns whether a refusal at `unix_ms` is logged: one each ten seconds.
    pub(crate) fn logs_refusal(&self, unix_ms: u64) -> bool {
        let last = self.logged_at.load(Ordering::Relaxed);
        (last == 0 || unix_ms.saturating_sub(last) >= LOG_INTERVAL_MS)
            && self
                .logged_at
                .compare_exchange(last, unix_ms.max(1), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn add(&self, bytes: usize) -> Result<(), MemoryExceeded> {
        let limit = self.limit.load(Ordering::Relaxed);
        // The counter guards no other memory.
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .map(|_| ())
            .map_err(|_| MemoryExceeded { limit })
    }
}

impl Default for MemoryAccount {
    fn default() -> Self {
        Self::new(Self::DEFAULT_LIMIT)
    }
}

/// Reserved bytes of an account; dropping it frees them.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<MemoryAccount>,
    bytes: usize,
}

impl Reservation {
    /// Reserves more bytes.
    ///
    /// # Errors
    /// [`MemoryExceeded`], and the reservation stays as it was.
    pub fn grow(&mut self, bytes: usize) -> Result<(), MemoryExceeded> {
        self.account.add(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Returns the cost of headers that the proxy keeps.
pub fn headers_cost<N: AsRef<[u8]>, V: AsRef<[u8]>>(headers: &[(N, V)]) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_ref().len() + value.as_ref().len() + ENTRY_COST)
        .sum()
}

/// Lifetime of bytes that a stream's plugin made the proxy keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Until the stream ends.
    WithStream,
    /// Until the proxy has passed the body of a direction on.
    InBody(Direction),
}

/// When an entry of [`StreamMemory`] is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Release {
    StreamEnd,
    /// When so many bytes of the direction's body have been received.
    Received(Direction, usize),
}

#[derive(Debug)]
struct Entry {
    link: usize,
    release: Release,
    memory: Reservation,
}

/// Reservations of one stream, apart from those of its pending operations.
///
/// Bytes that a plugin puts into a body are freed when the proxy received another window of it: flow control lets the
/// peer send more than a window only after the write buffer fell below the body limit in between.
#[derive(Debug, Default)]
pub(crate) struct StreamMemory {
    entries: Vec<Entry>,
    free_used: usize,
    /// Bytes of the request's body that were received.
    request: usize,
    /// Bytes of the response's body that were received.
    response: usize,
}

impl StreamMemory {
    /// Reserves bytes for a link.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        link: usize,
        account: &Arc<MemoryAccount>,
        kept: Kept,
        window: usize,
        bytes: usize,
    ) -> Result<(), MemoryExceeded> {
        let free_used = self.free_used.saturating_add(bytes);
        if free_used <= FREE_BYTES {
            self.free_used = free_used;
            return Ok(());
        }
        self.reserve_entry(link, account, kept, window, bytes)
    }

    #[cold]
    fn reserve_entry(
        &mut self,
        link: usize,
        account: &Arc<MemoryAccount>,
        kept: Kept,
        window: usize,
        bytes: usize,
    ) -> Result<(), MemoryExceeded> {
        let release = match kept {
            Kept::WithStream => Release::StreamEnd,
            Kept::InBody(direction) => {
                // Rounded up to whole windows, so that a stream has three entries of a link at most.
                let window = window.max(LEAST_WINDOW);
                let windows = self.received(direction) / window + 2;
                Release::Received(direction, windows.saturating_mul(window))
            }
        };
        let same = |entry: &&mut Entry| entry.link == link && entry.release == release;
        if let Some(entry) = self.entries.iter_mut().find(same) {
            return entry.memory.grow(bytes);
        }
        let memory = account.reserve(bytes)?;
        self.entries.push(Entry {
            link,
            release,
            memory,
        });
        Ok(())
    }

    fn received(&self, direction: Direction) -> usize {
        match direction {
            Direction::Request => self.request,
            Direction::Response => self.response,
        }
    }

    /// Counts bytes of a body that the proxy received, and frees what it has passed on.
    #[inline]
    pub(crate) fn note_received(&mut self, direction: Direction, bytes: usize) {
        let received = match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        };
        *received = received.saturating_add(bytes);
        if !self.entries.is_empty() {
            let received = *received;
            self.entries.retain(|entry| match entry.release {
                Release::Received(of, at) => of != direction || received < at,
                Release::StreamEnd => true,
            });
        }
    }

    /// Frees everything: the stream has ended.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_over_the_limit_are_refused_and_freed_when_dropped() {
        let account = Arc::new(MemoryAccount::new(1000));
        let first = account.reserve(600).unwrap();
        assert_eq!(
            account.reserve(401).unwrap_err(),
            MemoryExceeded { limit: 1000 }
        );
        let mut second = account.reserve(300).unwrap();
        assert!(second.grow(101).is_err());
        second.grow(100).unwrap();
        assert_eq!(account.used(), 1000);
        drop(first);
        assert_eq!(account.used(), 400);
        assert!(account.reserve(usize::MAX).is_err());
        drop(second);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn lower_limit_refuses_until_enough_is_freed() {
        let account = Arc::new(MemoryAccount::new(1000));
        let first = account.reserve(900).unwrap();
        account.set_limit(500);
        assert!(account.reserve(1).is_err());
        drop(first);
        account.reserve(500).unwrap();
    }

    #[test]
    fn small_bytes_of_a_stream_need_no_reservation() {
        let account = Arc::new(MemoryAccount::new(100_000));
        let mut stream = StreamMemory::default();
        for _ in 0..8 {
            stream
                .reserve(0, &account, Kept::WithStream, 0, 1024)
                .unwrap();
        }
        assert_eq!(account.used(), 0);
        stream
            .reserve(0, &account, Kept::WithStream, 0, 1024)
            .unwrap();
        assert_eq!(account.used(), 1024);
        stream.clear();
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn bytes_of_a_body_are_freed_after_another_window_was_received() {
        let account = Arc::new(MemoryAccount::new(1_000_000));
        let mut stream = StreamMemory::default();
        let kept = Kept::InBody(Direction::Response);
        let window = 100_000;
        stream
            .reserve(0, &account, Kept::WithStream, window, 8192)
            .unwrap();
        stream.reserve(0, &account, kept, window, 50_000).unwrap();
        for _ in 0..3 {
            stream.note_received(Direction::Response, 40_000);
            assert_eq!(account.used(), 50_000);
        }
        stream.reserve(0, &account, kept, window, 7).unwrap();
        stream.note_received(Direction::Request, 1_000_000);
        assert_eq!(account.used(), 50_007);
        stream.note_received(Direction::Response, 80_000);
        assert_eq!(account.used(), 7);
        stream.note_received(Direction::Response, 100_000);
        assert_eq!(account.used(), 0);
    }
}
