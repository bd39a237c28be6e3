//! Ctrl-C, SIGTERM and a closed terminal as flags that the loop reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How often the command was asked to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopRequests(Arc<AtomicUsize>);

impl StopRequests {
    /// Starts counting; from now on these signals no longer end the process.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let requests = Self::default();
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals cannot be listened to")?;
        let counter = Arc::clone(&requests.0);
        std::thread::spawn(move || {
            for _ in signals.forever() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        Ok(requests)
    }

    /// The first request: stop in good order.
    pub(crate) fn stop(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }

    /// The second: stop at once.
    pub(crate) fn stop_at_once(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 1
    }
}
