//! Signals as counters that the supervisor reads: none of the usual ones ends the process by itself.

use std::fs::File;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// What the process was asked for by signals.
#[derive(Debug, Clone, Default)]
pub(crate) struct Requests(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    stops: AtomicUsize,
    reload: AtomicBool,
    reopen: AtomicBool,
    upgrade: AtomicBool,
}

impl Requests {
    /// Starts counting; from now on these signals no longer end the process.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let requests = Self::default();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])
            .context("signals cannot be listened to")?;
        let counts = Arc::clone(&requests.0);
        let has_terminal = std::io::stdin().is_terminal();
        std::thread::spawn(move || {
            for signal in signals.forever() {
                match signal {
                    // The terminal was closed: nobody is left who could stop the gateway.
                    SIGHUP if has_terminal && File::open("/dev/tty").is_err() => counts.stop(),
                    SIGHUP => counts.reload.store(true, Ordering::SeqCst),
                    SIGUSR1 => counts.reopen.store(true, Ordering::SeqCst),
                    SIGUSR2 => counts.upgrade.store(true, Ordering::SeqCst),
                    _ => counts.stop(),
                }
            }
        });
        Ok(requests)
    }

    /// Whether SIGINT or SIGTERM came: stop in good order.
    pub(crate) fn stop(&self) -> bool {
        self.0.stops.load(Ordering::SeqCst) > 0
    }

    /// Whether it came twice: stop at once.
    pub(crate) fn stop_at_once(&self) -> bool {
        self.0.stops.load(Ordering::SeqCst) > 1
    }

    /// Whether SIGHUP came since the last call: read the file again.
    pub(crate) fn take_reload(&self) -> bool {
        self.0.reload.swap(false, Ordering::SeqCst)
    }

    /// Whether SIGUSR1 came since the last call: open log files again.
    pub(crate) fn take_reopen(&self) -> bool {
        self.0.reopen.swap(false, Ordering::SeqCst)
    }

    /// Whether SIGUSR2 came since the last call: start this command anew, and have it take over.
    pub(crate) fn take_upgrade(&self) -> bool {
        self.0.upgrade.swap(false, Ordering::SeqCst)
    }

    /// How often SIGINT or SIGTERM came.
    pub(crate) fn stops(&self) -> usize {
        self.0.stops.load(Ordering::SeqCst)
    }
}

impl Counts {
    fn stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
    }
}
