//! A gateway that serves cases: `outrider up` as a child process.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use outrider_envoy_process::Admin;
use serde_json::Value;
use tempfile::TempDir;

use crate::output::Output;
use crate::replay::Tools;

/// How long a gateway may take to serve, and to end. Busy machines are slow, and a large Wasm plugin takes
/// seconds for each of its configurations.
const PATIENCE: Duration = Duration::from_mins(5);
/// How long Envoy may take to take or refuse a document.
const VERDICT: Duration = Duration::from_mins(1);
/// The command's state folder, beside its file.
const STATE: &str = ".state";
/// The last line of what the command says of its start.
const STARTED: &str = "Ctrl-C drains and stops";

/// Runs while it lives.
#[derive(Debug)]
pub(crate) struct Gateway {
    folder: TempDir,
    child: Child,
    /// What the command says, both streams, Envoy's log included.
    pub(crate) output: Output,
    pub(crate) address: SocketAddr,
    admin: Admin,
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl Gateway {
    /// Runs `outrider up` on a file that `yaml` makes of the addresses of listener and admin interface.
    ///
    /// # Errors
    /// It does not come up; the error tells what the command said.
    pub(crate) fn start(
        tools: &Tools,
        yaml: impl FnOnce(SocketAddr, SocketAddr) -> String,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let (address, admin) = (free_address()?, free_address()?);
        let file = folder.path().join("outrider.yaml");
        fs::write(&file, yaml(address, admin))?;
        let mut command = Command::new(&tools.outrider);
        command
            .arg("up")
            .arg(&file)
            .arg("--state")
            .arg(folder.path().join(STATE))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in [("--envoy", &tools.envoy), ("--module", &tools.module)] {
            if let Some(value) = value {
                command.arg(name).arg(value);
            }
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("{} does not start", tools.outrider.display()))?;
        let output = Output::default();
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            output.read_from(stdout);
            output.read_from(stderr);
        }
        let mut gateway = Self {
            folder,
            child,
            output,
            address,
            admin: Admin::new(admin),
        };
        gateway.wait_ready()?;
        Ok(gateway)
    }

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.child.try_wait()?.is_some() {
                // The readers of its output are a moment behind.
                std::thread::sleep(Duration::from_millis(100));
                bail!("{}", self.output.text());
            }
            let ready = self
                .admin
                .get("/ready")
                .is_ok_and(|answer| answer.status == 200);
            if ready && TcpStream::connect(self.address).is_ok() {
                // Whoever waits for what it says next must not find what it says of its start.
                self.output.wait(STARTED, PATIENCE)?;
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "outrider up does not serve:\n{}",
                self.output.text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Counters whose names end so and that are not zero.
    pub(crate) fn not_zero(&self, endings: &str) -> anyhow::Result<Vec<String>> {
        let counters = self.admin.stats(&format!("({endings})$"))?;
        Ok(counters
            .iter()
            .filter(|(_, value)| **value > 0)
            .map(|(name, value)| format!("{name}: {value}"))
            .collect())
    }

    /// Where the command keeps the filter's document for Envoy.
    fn document_file(&self) -> PathBuf {
        self.folder.path().join(STATE).join("ecds.json")
    }

    /// The filter's document.
    pub(crate) fn document(&self) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&fs::read_to_string(
            self.document_file(),
        )?)?)
    }

    /// Gives the filter's document to Envoy behind the command's back, as another control plane would,
    /// and answers whether it was taken.
    pub(crate) fn hand_over(&self, document: &Value) -> anyhow::Result<bool> {
        let before = self.verdicts()?;
        let file = self.document_file();
        let new = file.with_extension("handed");
        fs::write(&new, document.to_string())?;
        fs::rename(new, file)?;
        let deadline = Instant::now() + VERDICT;
        loop {
            let now = self.verdicts()?;
            if now.1 > before.1 {
                return Ok(false);
            }
            if now.0 > before.0 {
                return Ok(true);
            }
            ensure!(
                Instant::now() < deadline,
                "Envoy did not take up the filter's document:\n{}",
                self.output.text()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// How often Envoy took the filter's document, and how often it refused it.
    fn verdicts(&self) -> anyhow::Result<(u64, u64)> {
        let counters = self.admin.stats(
            r"^extension_config_discovery\.http_filter\.outrider\.(update_success|update_rejected|update_failure|config_fail)$",
        )?;
        let sum = |taken: bool| {
            counters
                .iter()
                .filter(|(name, _)| name.ends_with(".update_success") == taken)
                .map(|(_, value)| value)
                .sum()
        };
        Ok((sum(true), sum(false)))
    }

    /// Ends the command as Ctrl-C does, and answers Envoy's access log and all that was said. A panic or
    /// a broken assertion in it is an error.
    pub(crate) fn stop(mut self) -> anyhow::Result<(String, Output)> {
        let log = self.folder.path().join("access.log");
        self.signal("-TERM")?;
        // The folder goes with the gateway, and the command's own end removes nothing in it.
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            ensure!(
                Instant::now() < deadline,
                "outrider up does not end:\n{}",
                self.output.text()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let lines = fs::read_to_string(&log).with_context(|| log.display().to_string())?;
        self.output.assert_no_bugs()?;
        Ok((lines, self.output.clone()))
    }

    fn signal(&self, name: &str) -> anyhow::Result<()> {
        let sent = Command::new("kill")
            .args([name, &self.child.id().to_string()])
            .status()?;
        ensure!(sent.success(), "the gateway has ended already");
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // SIGTERM lets the command stop its Envoy; what is left after that is killed.
        if matches!(self.child.try_wait(), Ok(None)) {
            drop(self.signal("-TERM"));
            let deadline = Instant::now() + Duration::from_secs(10);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
