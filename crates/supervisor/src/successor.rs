//! The command that SIGUSR2 starts, and this process once that one has taken over.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::signals::Requests;

const POLL: Duration = Duration::from_millis(50);

/// Starts a command that is to take over.
pub(crate) fn start(mut command: Command) -> anyhow::Result<Child> {
    command
        .stdin(Stdio::null())
        // The new process is another one than systemd expects signs of life from, by its number.
        .env_remove("WATCHDOG_PID")
        // A Ctrl-C in the terminal reaches this process, which passes it on: once.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))
}

/// Passes signals on until the command ends, and returns its exit code. Whoever started this process waits for it: a
/// terminal, or a container whose first process it is.
pub(crate) fn follow(mut child: Child, requests: &Requests) -> anyhow::Result<u8> {
    let process = Pid::from_child(&child);
    let mut passed = requests.stops();
    loop {
        if let Some(status) = child.try_wait()? {
            // As a shell tells a signal.
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
        let stops = requests.stops();
        let signals = [
            (stops > passed, Signal::TERM),
            (requests.take_reload(), Signal::HUP),
            (requests.take_reopen(), Signal::USR1),
            (requests.take_upgrade(), Signal::USR2),
        ];
        passed = stops;
        for (came, signal) in signals {
            if came {
                // Not reaped yet, so the number is still this child's.
                let _ = kill_process(process, signal);
            }
        }
        thread::sleep(POLL);
    }
}
