//! What a gateway tells systemd (`Type=notify`): that it serves, what it does, and that it is alive. Without systemd
//! nothing is told.

use std::env;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The service manager, if there is one.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    listens: bool,
    /// Interval of signs of life, if they are wanted.
    interval: Option<Duration>,
    told: Instant,
}

impl ServiceManager {
    pub(crate) fn of_environment() -> Self {
        let mut microseconds = 0;
        let is_wanted = if env::var_os("WATCHDOG_PID").is_some() {
            sd_notify::watchdog_enabled(false, &mut microseconds)
        } else {
            // sd_watchdog_enabled(3) does not ask for it; a command that is to become the main process does not have it.
            let interval = env::var("WATCHDOG_USEC").ok();
            microseconds = interval.and_then(|text| text.parse().ok()).unwrap_or(0);
            microseconds > 0
        };
        Self {
            listens: env::var_os("NOTIFY_SOCKET").is_some(),
            // Half of the time after which systemd acts, as sd_watchdog_enabled(3) recommends.
            interval: is_wanted.then(|| Duration::from_micros(microseconds / 2)),
            told: Instant::now(),
        }
    }

    pub(crate) fn ready(&self) {
        self.tell(&[NotifyState::Ready]);
    }

    /// Whether there is one.
    pub(crate) fn listens(&self) -> bool {
        self.listens
    }

    /// Tells that another process runs the gateway from now on.
    pub(crate) fn main_process(&self, process: u32) {
        self.tell(&[NotifyState::MainPid(process)]);
    }

    pub(crate) fn status(&self, text: &str) {
        self.tell(&[NotifyState::Status(text)]);
    }

    pub(crate) fn stopping(&self) {
        self.tell(&[NotifyState::Stopping]);
    }

    /// Tells that the gateway is alive, when it is time.
    pub(crate) fn alive(&mut self) {
        if self
            .interval
            .is_some_and(|interval| self.told.elapsed() >= interval)
        {
            self.told = Instant::now();
            self.tell(&[NotifyState::Watchdog]);
        }
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        if self.listens {
            // A service manager that does not take it changes nothing.
            let _ = sd_notify::notify(false, states);
        }
    }
}
