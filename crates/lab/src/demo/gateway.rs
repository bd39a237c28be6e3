//! The `outrider up` that the demonstration runs: a child process, seen through its output, its
//! listener and its exit status.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};

use crate::client::{Request, Target};

/// How often is looked again.
const POLL: Duration = Duration::from_millis(20);

/// A message is complete when nothing follows for this long.
const QUIET: Duration = Duration::from_millis(250);

/// How long the command may take to stop.
const STOP: Duration = Duration::from_secs(10);

/// The running command. Dropping it kills it; [`Gateway::stop`] asks it.
#[derive(Debug)]
pub(crate) struct Gateway {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Gateway {
    /// Starts `outrider up FILE`.
    pub(crate) fn start(outrider: &Path, file: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(outrider)
            .arg("up")
            .arg(file)
            .arg("--state")
            .arg(file.with_file_name(".state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", outrider.display()))?;
        let lines = Arc::default();
        if let Some(output) = child.stdout.take() {
            collect(output, Arc::clone(&lines));
        }
        if let Some(output) = child.stderr.take() {
            collect(output, Arc::clone(&lines));
        }
        Ok(Self { child, lines })
    }

    /// Waits until the gateway answers; returns how long that took.
    pub(crate) async fn wait_ready(
        &mut self,
        address: SocketAddr,
        within: Duration,
    ) -> anyhow::Result<Duration> {
        self.wait_ready_at(address, "/healthz", within).await
    }

    /// As [`Gateway::wait_ready`], with another path to ask for.
    pub(crate) async fn wait_ready_at(
        &mut self,
        address: SocketAddr,
        path: &str,
        within: Duration,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let target = Target::http1(address);
        loop {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("the command ended by itself: {status}");
            }
            let probe = Request::get(path)
                .header("user-agent", "outrider-demo")
                .timeout(Duration::from_secs(1));
            if let Ok(response) = target.send(probe).await
                && response.status == 200
            {
                return Ok(began.elapsed());
            }
            anyhow::ensure!(
                began.elapsed() < within,
                "{address}{path} did not answer 200 within {within:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// How many lines the command has printed: a place to look on from.
    pub(crate) fn line_count(&self) -> usize {
        self.lock().len()
    }

    /// Waits for the command to print a line with this text after the first `from` lines; returns
    /// what it printed since then, once it falls silent.
    pub(crate) async fn wait_for_text(
        &self,
        from: usize,
        text: &str,
        within: Duration,
    ) -> anyhow::Result<Vec<String>> {
        let began = Instant::now();
        let mut seen = (self.line_count(), Instant::now());
        loop {
            let printed = self.lines_from(from);
            if self.line_count() != seen.0 {
                seen = (self.line_count(), Instant::now());
            }
            if printed.iter().any(|line| line.contains(text)) && seen.1.elapsed() >= QUIET {
                return Ok(printed);
            }
            anyhow::ensure!(
                began.elapsed() < within,
                "the command printed nothing with {text:?} within {within:?}, only:\n{}",
                printed.join("\n")
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// The command's process.
    pub(crate) fn process(&self) -> Option<u32> {
        self.child.id()
    }

    /// The last lines that the command printed.
    pub(crate) fn last_lines(&self, count: usize) -> String {
        let all = self.line_count();
        self.lines_from(all.saturating_sub(count)).join("\n")
    }

    /// Does what Ctrl-C does, and waits; an error when the command does not end well.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(id) = self.child.id() else {
            anyhow::bail!("the command had ended before it was stopped");
        };
        let id = i32::try_from(id)
            .ok()
            .and_then(Pid::from_raw)
            .context("the command has no process id")?;
        kill_process(id, Signal::INT).context("cannot signal the command")?;
        let status = tokio::time::timeout(STOP, self.child.wait())
            .await
            .with_context(|| format!("the command did not stop within {STOP:?}"))??;
        anyhow::ensure!(
            status.success(),
            "the command should end with success after Ctrl-C, but: {status}"
        );
        Ok(())
    }

    fn lines_from(&self, from: usize) -> Vec<String> {
        self.lock().iter().skip(from).cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn collect(output: impl AsyncRead + Unpin + Send + 'static, lines: Arc<Mutex<Vec<String>>>) {
    tokio::spawn(async move {
        let mut reader = BufReader::new(output).lines();
        while let Ok(Some(line)) = reader.next_line().await {
            lines
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(line);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    /// A command of this shell code, which is given `up FILE`.
    fn command(folder: &Path, code: &str) -> PathBuf {
        let path = folder.join("command");
        fs::write(&path, format!("#!/bin/sh\n{code}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn output_is_waited_for_and_ctrl_c_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        // Not in the shell: it cannot trap a signal that was ignored when it began, as it is below a
        // job in the background.
        let code = r#"exec python3 -uc '
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
print(*sys.argv[1:])
print("wrong: prefx\nmend it", file=sys.stderr)
while True: time.sleep(0.05)
' "$@""#;
        let path = command(folder.path(), code);
        let mut gateway = Gateway::start(&path, Path::new("x.yaml")).unwrap();
        gateway.wait_for_text(0, "up x.yaml", SOON).await.unwrap();
        let told = gateway.wait_for_text(0, "prefx", SOON).await.unwrap();
        assert!(told.contains(&"mend it".to_owned()), "{told:?}");
        let error = gateway
            .wait_for_text(gateway.line_count(), "prefx", Duration::from_millis(50))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("printed nothing with"),
            "{error}"
        );
        gateway.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_command_that_fails_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = command(folder.path(), "echo no Envoy here >&2; exit 3");
        let mut gateway = Gateway::start(&path, Path::new("x.yaml")).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let error = gateway.wait_ready(address, SOON).await.unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        gateway.wait_for_text(0, "no Envoy", SOON).await.unwrap();
        assert!(gateway.last_lines(5).contains("no Envoy here"));
        assert!(gateway.stop().await.is_err());
    }
}
