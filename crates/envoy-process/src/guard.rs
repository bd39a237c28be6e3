//! Ends Envoy when its parent is gone, however the parent went.
//!
//! `Drop` covers returns and panics, the command's signal handling covers Ctrl-C; nothing in the
//! parent covers SIGKILL. So a small shell waits at the end of a pipe whose other end only the parent
//! holds: when the pipe closes, it ends Envoy. The kernel's parent-death signal would do the same, but
//! is bound to the thread that started the child (a test's thread ends before its process), and
//! setting it needs `unsafe`.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = r#"
read -r _
kill -TERM "$1" 2>/dev/null || exit 0
for _ in 1 2 3 4 5; do
    sleep 1
    kill -0 "$1" 2>/dev/null || exit 0
done
kill -KILL "$1" 2>/dev/null
"#;

/// The waiting shell. Dropping it ends the shell and leaves the guarded process alone.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    /// Guards the process `id`, a child of this process.
    pub(crate) fn over(id: u32) -> io::Result<Self> {
        Command::new("/bin/sh")
            .args(["-c", SCRIPT, "outrider-guard", &id.to_string()])
            // Our end of the pipe is closed in every other child (close-on-exec), so only the end of
            // this process, or of `self`, closes it.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C in the terminal is for the command, which then stops Envoy in its own way.
            .process_group(0)
            .spawn()
            .map(Self)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // First the shell, then (with `Child`) the pipe: the other way round it would wake and kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn closing_the_pipe_ends_the_guarded_process() {
        let mut guarded = Command::new("sleep").arg("60").spawn().unwrap();
        let mut guard = Guard::over(guarded.id()).unwrap();
        drop(guard.0.stdin.take());
        let start = Instant::now();
        while guarded.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(5), "still running");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn dropping_the_guard_spares_the_guarded_process() {
        let mut guarded = Command::new("sleep").arg("60").spawn().unwrap();
        drop(Guard::over(guarded.id()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(guarded.try_wait().unwrap().is_none());
        guarded.kill().unwrap();
        guarded.wait().unwrap();
    }
}
