//! Tries a configuration with an Envoy that listens nowhere, before it takes the sockets of one that serves: Envoy's hot
//! restart has no way back, and an Envoy that refuses a part serves without it.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::{Envoy, Error, Options};
use outrider_gateway::envoy::Files;

use crate::refusals::Refusals;
use crate::{apply, courier};

const POLL: Duration = Duration::from_millis(20);
const READY_WITHIN: Duration = Duration::from_mins(1);
/// The log comes through a pipe, and may lag behind the counters.
const LOG_LAG: Duration = Duration::from_millis(500);

/// Returns why Envoy refuses parts of this configuration; none: it takes it whole.
///
/// # Errors
/// Envoy does not start, or the wait is `interrupted`.
pub(crate) fn refusals(
    binary: &Path,
    modules: &Path,
    folder: &Path,
    files: &Files,
    interrupted: &dyn Fn() -> bool,
) -> anyhow::Result<BTreeSet<String>> {
    let bootstrap = folder.join("bootstrap.json");
    apply::write_all(folder, files)?;
    courier::replace(&bootstrap, &files.bootstrap.to_string())?;
    let told = Refusals::default();
    let mut options = Options::new(binary, &bootstrap);
    options.concurrency = Some(1);
    options.module_folder = Some(modules.to_owned());
    let collected = told.clone();
    options.log_sink = Some(Box::new(move |line| {
        collected.collect(line);
    }));
    let mut envoy = Envoy::start(options)?;
    let began = Instant::now();
    loop {
        match envoy.wait_ready(Duration::ZERO) {
            Ok(()) => break,
            Err(Error::NotReady { .. }) if began.elapsed() < READY_WITHIN => {}
            Err(error) => return Err(error).context("a trial, beside the gateway that runs"),
        }
        anyhow::ensure!(!interrupted(), "the gateway was asked to stop");
        thread::sleep(POLL);
    }
    let rejections = envoy.rejections()?;
    if rejections.is_empty() {
        return Ok(BTreeSet::new());
    }
    let refused = Instant::now();
    let mut reasons = BTreeSet::new();
    while reasons.is_empty() && refused.elapsed() < LOG_LAG {
        thread::sleep(POLL);
        reasons.extend(told.take());
    }
    if reasons.is_empty() {
        reasons.extend(rejections.into_iter().map(|rejection| {
            format!(
                "Envoy refused its configuration ({})",
                rejection.subscription
            )
        }));
    }
    Ok(reasons)
}
