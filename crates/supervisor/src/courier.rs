//! Hands one file to Envoy and waits for its answer.
//!
//! Envoy watches the folder and reads a file when something is renamed over it. Its counters tell
//! whether it took it; its log tells why not.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use outrider_envoy_process::{Admin, Error};

use crate::refusals::Refusals;

/// A configuration of many thousand routes takes Envoy's main thread seconds to read, and on a busy
/// machine longer; meanwhile nothing is lost.
const PATIENCE: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(3);
/// The log comes through a pipe, and may lag behind the counters.
const LOG_PATIENCE: Duration = Duration::from_millis(500);

/// One file of dynamic configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// A regular expression for the names, up to the last dot, of the counters that tell of it.
    pub(crate) counters: String,
}

/// What Envoy did with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It serves by it.
    Taken,
    /// It goes on with what it had, for this reason.
    Refused(String),
}

/// What the counters say of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    taken: u64,
    refused: u64,
}

/// Hands over files.
#[derive(Debug)]
pub(crate) struct Courier<'a> {
    admin: &'a Admin,
    refusals: &'a Refusals,
    /// Set when Envoy has ended. Another one may soon answer at the same address.
    ended: &'a AtomicBool,
}

impl<'a> Courier<'a> {
    pub(crate) fn new(admin: &'a Admin, refusals: &'a Refusals, ended: &'a AtomicBool) -> Self {
        Self {
            admin,
            refusals,
            ended,
        }
    }

    /// Replaces the file and waits for Envoy's verdict. Where nothing of Envoy's reads the file yet (a certificate that no
    /// listener names so far), there is none: it will be read with what comes to name it.
    ///
    /// # Errors
    /// The file cannot be written, Envoy is gone, or there is no verdict within a minute.
    pub(crate) fn hand_over(&self, document: &Document, text: &str) -> anyhow::Result<Verdict> {
        let before = self.counts(document)?;
        self.refusals.take();
        replace(&document.path, text)?;
        let Some(before) = before else {
            return Ok(Verdict::Taken);
        };
        let start = Instant::now();
        loop {
            let now = self.counts(document)?.unwrap_or(before);
            if now.refused > before.refused {
                return Ok(Verdict::Refused(self.reason()));
            }
            if now.taken > before.taken {
                return Ok(Verdict::Taken);
            }
            if start.elapsed() > PATIENCE {
                bail!(
                    "Envoy did not take up {} within {} s",
                    document.path.display(),
                    PATIENCE.as_secs()
                );
            }
            thread::sleep(STEP);
        }
    }

    /// `None`: nothing reads it.
    fn counts(&self, document: &Document) -> anyhow::Result<Option<Counts>> {
        let filter = format!(
            r"^{}\.update_(success|rejected|failure)$",
            document.counters
        );
        let start = Instant::now();
        let stats = loop {
            if self.ended.load(Ordering::SeqCst) {
                bail!("Envoy has ended");
            }
            match self.admin.stats(&filter) {
                // Envoy's main thread has no time to answer, but may yet.
                Err(Error::Admin { busy: true, .. }) if start.elapsed() < PATIENCE => {}
                stats => break stats?,
            }
        };
        if stats.is_empty() {
            return Ok(None);
        }
        let mut counts = Counts::default();
        for (name, value) in stats {
            if name.ends_with("_success") {
                counts.taken += value;
            } else {
                counts.refused += value;
            }
        }
        Ok(Some(counts))
    }

    fn reason(&self) -> String {
        let start = Instant::now();
        loop {
            if let Some(reason) = self.refusals.take().pop() {
                return reason;
            }
            if start.elapsed() > LOG_PATIENCE {
                return "it gave no reason".to_owned();
            }
            thread::sleep(STEP);
        }
    }
}

/// Puts a file in place of another in one step; a reader sees the old one or the new one. Only its owner may
/// read it: configuration of plugins may hold secrets.
pub(crate) fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    // Left by a command that was killed, perhaps with another mode.
    let _ = fs::remove_file(&new);
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("{} cannot be written", path.display()))
}
