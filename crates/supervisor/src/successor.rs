//! The command that SIGUSR2 starts, and this process once that one has taken over.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::signals::Requests;

const POLL: Duration = Duration::from_millis(50);

/// A command that is to take over.
#[derive(Debug)]
pub(crate) struct Upgrade {
    child: Child,
    /// How many requests to stop were passed on.
    stops: usize,
}

impl Upgrade {
    /// Starts it.
    pub(crate) fn start(mut command: Command) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            // The new process is another one than systemd expects signs of life from, by its number.
            .env_remove("WATCHDOG_PID")
            // A Ctrl-C in the terminal reaches this process, which passes it on: once.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        Ok(Self { child, stops: 0 })
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Passes on what this process was asked for by signals since it was called last.
    pub(crate) fn pass_on(&mut self, requests: &Requests) {
        let stops = requests.stops();
        let signals = [
            (stops > self.stops, Signal::TERM),
            (requests.take_reload(), Signal::HUP),
            (requests.take_reopen(), Signal::USR1),
            (requests.take_upgrade(), Signal::USR2),
        ];
        self.stops = stops;
        if self.ended().is_some() {
            return;
        }
        let process = Pid::from_child(&self.child);
        for (came, signal) in signals {
            if came {
                // Not reaped yet, so the number is still this child's.
                let _ = kill_process(process, signal);
            }
        }
    }

    /// Passes signals on until the command ends, and returns its exit code. Whoever started this process waits for it: a
    /// terminal, or a container whose first process it is.
    pub(crate) fn follow(mut self, requests: &Requests) -> u8 {
        loop {
            if let Some(status) = self.ended() {
                // As a shell tells a signal.
                let code = status.code().or(status.signal().map(|signal| 128 + signal));
                return code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            }
            self.pass_on(requests);
            thread::sleep(POLL);
        }
    }
}
