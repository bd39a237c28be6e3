//! `make chaos`: random plugins, clients, upstreams and changes of the configuration against one gateway, by a seed,
//! for a bounded time.
//!
//! Held against it: Envoy lives; requests to hosts without random plugins end in time; every body that calm tenants
//! send or receive is right to the byte; memory comes back when the random plugins are gone; no request stays under
//! way; and no line of the log says that something panicked or was critical.
//!
//! The trap: threads and sockets are not seeded. A seed repeats programs, requests, faults and changes, not the moments
//! at which they meet; where a run failed, run the seed again for as long.

mod clients;
pub(crate) mod frames;
mod gateway;
mod upstreams;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::Admin;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Protocol;
use crate::echo::Echo;
use crate::random::Random;
use crate::soak::memory;
use crate::up::{Up, free_address};
use clients::{Client, Counts};
use gateway::{CALM_HOSTS, Gateway, State};
use upstreams::Faulty;

/// More of the entry of the plugin that makes callouts.
const CALLS_SETTINGS: &str = ", allow: {upstreams: [echo, faulty, faulty-h2]}";

/// Time until the gateway answers.
const READY: Duration = Duration::from_mins(2);
/// Time with calm clients only, before memory is compared.
const WARM_UP: Duration = Duration::from_secs(8);
/// Time that memory and open requests have to come back.
const SETTLE: Duration = Duration::from_secs(40);
/// Resident memory at the end is at most so much above that after the warm-up.
const MEMORY_LEFT: u64 = 160 * 1024 * 1024;
/// The logs have at most so many bytes, or the run ends before the disk is full.
const MOST_LOG: u64 = 2 * 1024 * 1024 * 1024;
/// Clients of each kind.
const CALM: usize = 6;
const FAULTY: usize = 3;
const WILD: usize = 8;

/// What a run is made with.
#[derive(Debug, Clone)]
pub struct ChaosOptions {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// How long the chaos lasts.
    pub duration: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Milliseconds between two changes of the configuration, at most; 0: no changes after a first few.
    pub change_ms: u64,
}

/// Runs chaos, and prints what was done to `out`.
///
/// # Errors
/// Names what did not hold, the seed, and the folder with logs and files, which is kept.
pub async fn run(options: &ChaosOptions, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("outrider-chaos-")
        .tempdir()?;
    writeln!(
        out,
        "chaos: seed {}, {} s, in {}",
        options.seed,
        options.duration.as_secs(),
        folder.path().display()
    )?;
    let result = chaos(options, folder.path().to_owned(), out).await;
    match result {
        Ok(problems) if problems.is_empty() => {
            writeln!(out, "chaos: everything held")?;
            Ok(())
        }
        result => {
            let kept = folder.keep();
            let problems = match result {
                Ok(problems) => problems.join("\n  "),
                Err(error) => format!("{error:#}"),
            };
            anyhow::bail!(
                "chaos did not hold with SEED={} (logs and files: {}):\n  {problems}",
                options.seed,
                kept.display()
            )
        }
    }
}

async fn chaos(
    options: &ChaosOptions,
    folder: PathBuf,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Vec<String>> {
    let mut random = Random::new(options.seed);
    let echo = Echo::start("echo").await?;
    let other = Echo::start("other").await?;
    let faulty = Faulty::start(Protocol::Http1, random.fork()).await?;
    let faulty_h2 = Faulty::start(Protocol::Http2, random.fork()).await?;
    let log = folder.join("gateway.log");
    let mut gateway = Gateway {
        folder,
        listen: free_address()?,
        second: free_address()?,
        admin: free_address()?,
        echo: echo.address(),
        other: other.address(),
        faulty: faulty.address,
        faulty_h2: faulty_h2.address,
        state: State::default(),
    };
    gateway.write_calm()?;
    let mut up = Up::start(
        &options.outrider,
        &gateway.folder.join("outrider.yaml"),
        &log,
    )?;
    for host in CALM_HOSTS {
        up.wait_ready(gateway.listen, host, "/status/200", READY)
            .await?;
    }
    let envoy = up.envoy()?;
    let counts = Arc::new(Counts::default());
    let (stop_calm, calm_stopped) = watch::channel(false);
    let (stop_wild, wild_stopped) = watch::channel(false);
    let began = Instant::now();
    let client = |stopped: &watch::Receiver<bool>| Client {
        address: gateway.listen,
        counts: Arc::clone(&counts),
        stopped: stopped.clone(),
        began,
    };
    let mut calm = JoinSet::new();
    let mut wild = JoinSet::new();
    for _ in 0..CALM {
        calm.spawn(client(&calm_stopped).calm(random.fork()));
    }
    tokio::time::sleep(WARM_UP).await;
    let baseline = memory::of(envoy)?.resident;
    for _ in 0..FAULTY {
        calm.spawn(client(&calm_stopped).faulty(random.fork()));
    }
    for number in 0..WILD {
        let mut client = client(&wild_stopped);
        // Some come by the listener that comes and goes.
        if number % 4 == 3 {
            client.address = gateway.second;
        }
        wild.spawn(client.wild(random.fork()));
    }

    let mut problems = Vec::new();
    let mut changes = 0_u64;
    let mut most = baseline;
    let mut next_report = Duration::from_mins(1);
    let end = Instant::now() + options.duration;
    while Instant::now() < end {
        if options.change_ms > 0 || changes < 12 {
            gateway.change(&mut random)?;
            changes += 1;
        }
        let pause = random.between(50, options.change_ms.max(100));
        tokio::time::sleep(Duration::from_millis(pause)).await;
        if let Some(status) = up.exit_status()? {
            problems.push(format!(
                "the gateway ended by itself after {:.1} s and {changes} changes: {status}",
                began.elapsed().as_secs_f64()
            ));
            problems.extend(up.lines_with(&["critical", "panicked"], 5)?);
            let (_, wrong) = counts.problems();
            problems.extend(wrong);
            return Ok(problems);
        }
        most = most.max(memory::of(envoy).map_or(0, |memory| memory.resident));
        anyhow::ensure!(
            up.log_size() < MOST_LOG,
            "the log has {} bytes; the run ends before the disk is full",
            up.log_size()
        );
        if began.elapsed() > next_report {
            writeln!(
                out,
                "  {:>5} s  {} answers compared, {} turns of wild clients, {changes} changes, {} MiB",
                began.elapsed().as_secs(),
                counts.compared.load(Ordering::Relaxed),
                counts.turns.load(Ordering::Relaxed),
                mib(most)
            )?;
            next_report += Duration::from_mins(1);
        }
        if counts.problems().0 >= 100 {
            problems.push("100 answers were wrong; the run ends early".to_owned());
            break;
        }
    }

    // The random plugins and their clients go, the calm ones stay a while.
    stop_wild.send_replace(true);
    while wild.join_next().await.is_some() {}
    gateway.write_calm()?;
    let settled = Instant::now();
    let mut last = u64::MAX;
    while settled.elapsed() < SETTLE && last > baseline + MEMORY_LEFT {
        tokio::time::sleep(Duration::from_millis(500)).await;
        last = memory::of(envoy)
            .context("Envoy is gone at the end")?
            .resident;
    }
    stop_calm.send_replace(true);
    while calm.join_next().await.is_some() {}
    if last > baseline + MEMORY_LEFT {
        problems.push(format!(
            "memory stays: {} MiB without random plugins, {} before them; {} more are allowed",
            mib(last),
            mib(baseline),
            mib(MEMORY_LEFT)
        ));
    }
    let open = wait_idle(&Admin::new(gateway.admin)).await?;
    if open > 0 {
        problems.push(format!(
            "{open} requests are under way, though no client is left"
        ));
    }
    if let Err(error) = up.stop().await {
        problems.push(format!("the command did not stop well: {error:#}"));
    }
    let bad = [
        "critical",
        "panicked",
        "ENVOY_BUG",
        "assert failure",
        "re-entered",
    ];
    for line in up.lines_with(&bad, 20)? {
        problems.push(format!("the log says: {line}"));
    }
    let (wrong, details) = counts.problems();
    if wrong > 0 {
        problems.push(format!("{wrong} answers were wrong or did not come:"));
        problems.extend(details);
    }
    let compared = counts.compared.load(Ordering::Relaxed);
    let ended = counts.ended.load(Ordering::Relaxed);
    let turns = counts.turns.load(Ordering::Relaxed);
    if compared == 0 || ended == 0 || turns == 0 || changes == 0 {
        problems.push("nothing was compared, so nothing was shown".to_owned());
    }
    writeln!(
        out,
        "chaos: {compared} answers compared, {ended} requests to faulty upstreams, {turns} turns of wild clients, \
         {changes} changes;\n       resident memory {} MiB before, {} at most, {} after",
        mib(baseline),
        mib(most),
        mib(last)
    )?;
    Ok(problems)
}

/// Waits until no request is under way; returns how many are left.
async fn wait_idle(admin: &Admin) -> anyhow::Result<u64> {
    let began = Instant::now();
    loop {
        let statistics = admin.stats(r"^http\..*downstream_rq_active$")?;
        // The admin interface counts its own request.
        let open: u64 = statistics
            .iter()
            .filter(|(name, _)| !name.starts_with("http.admin."))
            .map(|(_, value)| value)
            .sum();
        if open == 0 || began.elapsed() > SETTLE {
            return Ok(open);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}
