//! One `outrider up` for load with hostile plugins: its output goes to a file, because plugins may write
//! more than a process wants to keep in memory.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Request, Target};
use crate::soak::memory;

/// Interval between two looks at the gateway.
const POLL: Duration = Duration::from_millis(20);

/// Time that the command may take to stop.
const STOP: Duration = Duration::from_secs(20);

/// How much of the end of the log [`Up::last_lines`] reads.
const TAIL: u64 = 64 * 1024;

/// The running command. Dropping it kills the command, which takes Envoy along.
#[derive(Debug)]
pub(crate) struct Up {
    child: Child,
    log: PathBuf,
    /// Its Envoy's process, once it has answered.
    envoy: Option<u32>,
}

impl Up {
    /// Starts `outrider up FILE`; both of its output streams are appended to `log`.
    pub(crate) fn start(outrider: &Path, file: &Path, log: &Path) -> anyhow::Result<Self> {
        Self::start_with(outrider, file, log, &[])
    }

    /// As [`Up::start`], with further arguments.
    pub(crate) fn start_with(
        outrider: &Path,
        file: &Path,
        log: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<Self> {
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        let child = Command::new(outrider)
            .arg("up")
            .arg(file)
            .arg("--state")
            .arg(file.with_file_name(".state"))
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot run {}", outrider.display()))?;
        Ok(Self {
            child,
            log: log.to_owned(),
            envoy: None,
        })
    }

    /// Waits until `GET path` of `host` is answered with 200.
    pub(crate) async fn wait_ready(
        &mut self,
        address: SocketAddr,
        host: &str,
        path: &str,
        within: Duration,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let target = Target::http1(address);
        loop {
            if let Some(end) = self.unasked_end()? {
                anyhow::bail!("{end}\n{}", self.last_lines());
            }
            let probe = Request::get(path)
                .host(host)
                .timeout(Duration::from_secs(1));
            if let Ok(response) = target.send(probe).await
                && response.status == 200
            {
                self.envoy = Some(self.envoy()?);
                return Ok(());
            }
            anyhow::ensure!(
                began.elapsed() < within,
                "{host}{path} did not answer 200 within {within:?}\n{}",
                self.last_lines()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns what ended by itself: the command, or the Envoy that answered first, which the command starts again.
    pub(crate) fn unasked_end(&mut self) -> anyhow::Result<Option<String>> {
        if let Some(status) = self.exit_status()? {
            return Ok(Some(format!("the command ended by itself: {status}")));
        }
        let is_gone = self
            .envoy
            .is_some_and(|first| self.envoy().ok() != Some(first));
        Ok(is_gone.then(|| "Envoy ended by itself".to_owned()))
    }

    /// Returns how the command ended, or `None` while it runs.
    fn exit_status(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Returns the command's process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the command.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let id = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("the command has no process id")?;
        kill_process(id, signal).context("cannot signal the command")
    }

    /// Returns the process id of its Envoy.
    pub(crate) fn envoy(&self) -> anyhow::Result<u32> {
        memory::child(self.child.id(), "envoy")
    }

    /// Returns the bytes that the command and its Envoy have written.
    pub(crate) fn log_size(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |metadata| metadata.len())
    }

    /// Returns the log from a byte on, at most a megabyte of it.
    pub(crate) fn text_from(&self, from: u64) -> anyhow::Result<String> {
        use std::io::{Read as _, Seek as _, SeekFrom};
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(from))?;
        let mut text = Vec::new();
        file.take(1024 * 1024).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the lines of the log that contain one of `words`, at most `most` of them.
    pub(crate) fn lines_with(&self, words: &[&str], most: usize) -> anyhow::Result<Vec<String>> {
        use std::io::{BufRead as _, BufReader};
        let mut found = Vec::new();
        let mut reader = BufReader::new(File::open(&self.log)?);
        let mut line = Vec::new();
        while found.len() < most && reader.read_until(b'\n', &mut line)? > 0 {
            let text = String::from_utf8_lossy(&line);
            // Plugins may log any word; Envoy's own critical lines name no plugin.
            let is_plugins = text.contains("plugin ");
            if words
                .iter()
                .any(|word| text.contains(word) && !(is_plugins && *word == "critical"))
            {
                found.push(text.trim_end().chars().take(300).collect());
            }
            line.clear();
        }
        Ok(found)
    }

    /// Returns the end of the log.
    pub(crate) fn last_lines(&self) -> String {
        use std::io::{Read as _, Seek as _, SeekFrom};
        let mut text = Vec::new();
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            file.read_to_end(&mut text)?;
            Ok(text)
        };
        let text = read().unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(30)..)
            .unwrap_or_default()
            .iter()
            .map(|line| line.chars().take(400).collect::<String>())
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Does what Ctrl-C does, and waits for the end.
    ///
    /// # Errors
    /// The command had ended before, does not end, or ends with a failure.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.exit_status()? {
            anyhow::bail!("the command had ended before it was stopped: {status}");
        }
        self.signal(Signal::INT)?;
        self.wait_end(STOP).await
    }

    /// Waits until the command has ended by itself, or because it was asked to.
    ///
    /// # Errors
    /// It does not end, or ends with a failure.
    pub(crate) async fn wait_end(&mut self, within: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.exit_status()? {
                anyhow::ensure!(
                    status.success(),
                    "the command should end with success, but: {status}"
                );
                return Ok(());
            }
            anyhow::ensure!(
                began.elapsed() < within,
                "the command did not end within {within:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // Envoy is a child of the command: it is killed by its own id, or it would outlive a command that is killed.
        let envoy = self.envoy().ok();
        drop(self.child.kill());
        drop(self.child.wait());
        if let Some(envoy) = envoy
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
        {
            // It may have ended with the command.
            let _ = kill_process(envoy, Signal::KILL);
        }
    }
}

/// Saves a file as editors do: a new file is renamed over the old one.
pub(crate) fn save(path: &Path, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, content)?;
    fs::rename(&draft, path)?;
    Ok(())
}
