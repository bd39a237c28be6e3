//! `make chaos`: random plugins, clients, upstreams and changes of the configuration against one gateway, by a seed,
//! for a bounded time.
//!
//! Held against it: Envoy lives; requests to hosts without random plugins end in time; every body that calm tenants
//! send or receive is right to the byte; memory comes back when the random plugins are gone; no request stays under
//! way; and no line of the log says that something panicked or was critical.
//!
//! The trap: threads and sockets are not seeded. A seed repeats programs, requests, faults and changes, not the moments
//! at which they meet; where a run failed, run the seed again for as long.

mod calm;
mod clients;
mod counts;
pub(crate) mod frames;
mod gateway;
mod report;
mod upstreams;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::Admin;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Protocol;
use crate::echo::Echo;
use crate::free_address;
use crate::random::Random;
use crate::soak::memory;
use crate::up::{Up, save};
use clients::Client;
use counts::{Counts, PauseWatch};
use gateway::{CALM_HOSTS, Gateway, State};
use report::{Idle, MEMORY_LEFT, Report, Round, mib};
use upstreams::Faulty;

/// Time until the gateway answers.
const READY: Duration = Duration::from_mins(2);
/// Time with calm clients only, before memory is compared.
const WARM_UP: Duration = Duration::from_secs(8);
/// A run has so many rounds as of this length fit into it, at least one.
const ROUND: Duration = Duration::from_mins(3);
/// Time after a round in which the lowest memory is taken. Counts as part of the round.
const REST: Duration = Duration::from_secs(20);
/// Time that memory has to come back after a round.
const SETTLE: Duration = Duration::from_secs(40);
/// The logs have at most so many bytes, or the run ends before the disk is full.
const MOST_LOG: u64 = 2 * 1024 * 1024 * 1024;
/// With so many wrong answers a run ends early.
const MOST_WRONG: usize = 100;
/// Time that requests under way have to end when no client is left: Envoy's idle timeout of streams, and a bit.
///
/// Envoy's HTTP/1.1 codec does not read while a request is under way and the next one has come, and does not see a
/// reset of the client meanwhile, with or without plugins. A plugin that sleeps for hours holds such a stream until
/// that timeout.
const IDLE: Duration = Duration::from_secs(330);
/// Clients of each kind.
const CALM: usize = 6;
const FAULTY: usize = 3;
const WILD: usize = 8;
/// Envoy's counters that the report shows.
const COUNTERS: &str = r"^(http\.(main|second)\.(downstream_cx_total|downstream_rq_total|downstream_rq_rx_reset|downstream_rq_tx_reset|downstream_cx_protocol_error|downstream_rq_[2-5]xx)|cluster\.(echo|echo-h2|other|faulty|faulty-h2)(/callouts)?\.(upstream_rq_total|upstream_cx_total|upstream_cx_protocol_error|upstream_rq_rx_reset|upstream_rq_tx_reset|upstream_rq_timeout))$";

/// A fault that a run makes on purpose, to show that it would be reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeededFault {
    /// A plugin of calm hosts changes a byte now and then.
    Byte,
    /// A plugin of calm hosts holds a request for an hour now and then.
    Stall,
    /// Envoy gets SIGSEGV.
    Crash,
}

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
    /// Where `chaos.md` and `chaos.json` are written; `None`: nowhere.
    pub output: Option<PathBuf>,
    /// `None` except to test the judge.
    pub fault: Option<SeededFault>,
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
    let mut report = Report::new(options.seed, options.duration.as_secs());
    let result = chaos(options, folder.path().to_owned(), &mut report, out).await;
    if let Err(error) = result {
        report.problems.push(format!("{error:#}"));
    }
    if let Some(output) = &options.output {
        std::fs::create_dir_all(output)?;
        save(&output.join("chaos.json"), report.json()?)?;
        save(&output.join("chaos.md"), report.page())?;
    }
    if report.problems.is_empty() {
        writeln!(out, "chaos: everything held")?;
        return Ok(());
    }
    anyhow::bail!(
        "chaos did not hold with SEED={} (logs and files: {}):\n  {}",
        options.seed,
        folder.keep().display(),
        report.problems.join("\n  ")
    )
}

/// Starts everything, runs the rounds, and judges.
async fn chaos(
    options: &ChaosOptions,
    folder: PathBuf,
    report: &mut Report,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
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
        fault: options.fault,
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
    let counts = Arc::new(Counts::new());
    let watch = PauseWatch::start(&counts);
    let mut run = Run {
        options,
        envoy: up.envoy()?,
        admin: Admin::new(gateway.admin),
        gateway,
        up,
        counts,
        random,
        began: Instant::now(),
    };
    let result = run.rounds(report, out).await;
    drop(watch);
    run.add_counts(report);
    result?;
    writeln!(
        out,
        "chaos: {} answers compared, {} of callouts; {} requests to faulty upstreams, {} turns of wild clients, {} \
         changes",
        report.compared,
        report.callouts,
        report.ended,
        report.turns,
        report.change_count()
    )?;
    Ok(())
}

/// A run, as long as its gateway lives.
struct Run<'options> {
    options: &'options ChaosOptions,
    gateway: Gateway,
    up: Up,
    envoy: u32,
    admin: Admin,
    counts: Arc<Counts>,
    random: Random,
    began: Instant,
}

impl Run<'_> {
    fn client(&self, stopped: &watch::Receiver<bool>) -> Client {
        Client {
            address: self.gateway.listen,
            counts: Arc::clone(&self.counts),
            stopped: stopped.clone(),
        }
    }

    fn resident(&self) -> anyhow::Result<u64> {
        Ok(memory::of(self.envoy).context("Envoy is gone")?.resident)
    }

    /// Runs all rounds beside calm and faulty clients, then waits for the end of all requests, and stops the gateway.
    async fn rounds(
        &mut self,
        report: &mut Report,
        out: &mut (dyn Write + Send),
    ) -> anyhow::Result<()> {
        let (stop_calm, calm_stopped) = watch::channel(false);
        let mut calm = JoinSet::new();
        for _ in 0..CALM {
            calm.spawn(self.client(&calm_stopped).calm(self.random.fork()));
        }
        tokio::time::sleep(WARM_UP).await;
        report.baseline = self.resident()?;
        for _ in 0..FAULTY {
            calm.spawn(self.client(&calm_stopped).faulty(self.random.fork()));
        }
        let count = (self.options.duration.as_secs() / ROUND.as_secs()).max(1);
        let length = self.options.duration / u32::try_from(count)?;
        for number in 0..count {
            let is_alive = self.round(length, number, report).await?;
            if !is_alive {
                return Ok(());
            }
            if let Some(round) = report.rounds.last() {
                writeln!(
                    out,
                    "  {:>5} s  {} answers compared, {} turns of wild clients, {} changes, {} MiB at most, {} after",
                    round.second,
                    round.compared,
                    round.turns,
                    round.changes,
                    mib(round.most),
                    mib(round.settled)
                )?;
            }
            if self.counts.problems().0 >= MOST_WRONG {
                report.problems.push(format!(
                    "{MOST_WRONG} answers were wrong; the run ends early"
                ));
                break;
            }
        }
        stop_calm.send_replace(true);
        while calm.join_next().await.is_some() {}
        self.finish(report).await
    }

    /// One round of wild clients and changes, and the pause after it; returns whether Envoy lives.
    async fn round(
        &mut self,
        length: Duration,
        number: u64,
        report: &mut Report,
    ) -> anyhow::Result<bool> {
        let (stop_wild, wild_stopped) = watch::channel(false);
        let mut wild = JoinSet::new();
        for number in 0..WILD {
            let mut client = self.client(&wild_stopped);
            // Some come by the listener that comes and goes.
            if number % 4 == 3 {
                client.address = self.gateway.second;
            }
            wild.spawn(client.wild(self.random.fork()));
        }
        let begin = Instant::now();
        let end = begin + length.saturating_sub(REST).max(length / 2);
        let mut most = self.resident()?;
        let mut changes = 0;
        while Instant::now() < end && self.counts.problems().0 < MOST_WRONG {
            let change_ms = self.options.change_ms;
            if change_ms > 0 || changes < 12 {
                let kind = self.gateway.change(&mut self.random)?;
                *report.changes.entry(kind).or_default() += 1;
                changes += 1;
            }
            let pause = self.random.between(50, change_ms.max(100));
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if self.options.fault == Some(SeededFault::Crash) && begin.elapsed() > length / 4 {
                let envoy = i32::try_from(self.envoy).ok().and_then(Pid::from_raw);
                // It may have ended by itself, which is reported, too.
                let _ = kill_process(envoy.context("Envoy has no process id")?, Signal::SEGV);
            }
            if let Some(end) = self.up.unasked_end()? {
                report.problems.push(format!(
                    "{end}, after {:.1} s, in round {}",
                    self.began.elapsed().as_secs_f64(),
                    number + 1
                ));
                report
                    .problems
                    .extend(self.up.lines_with(&["critical", "panicked"], 5)?);
                return Ok(false);
            }
            // An Envoy that has just died is found by the next turn.
            most = most.max(self.resident().unwrap_or(0));
            anyhow::ensure!(
                self.up.log_size() < MOST_LOG,
                "the log has {} bytes; the run ends before the disk is full",
                self.up.log_size()
            );
        }
        // The random plugins and their clients go, the calm ones stay.
        stop_wild.send_replace(true);
        while wild.join_next().await.is_some() {}
        self.gateway.write_calm()?;
        let settled = self.settle(report.baseline).await?;
        let allocated = self.allocated()?;
        report.rounds.push(Round {
            second: self.began.elapsed().as_secs(),
            most,
            settled,
            allocated,
            changes: report.change_count(),
            compared: self.counts.compared.load(Ordering::Relaxed),
            turns: self.counts.turns.load(Ordering::Relaxed),
        });
        Ok(true)
    }

    /// Returns the bytes that Envoy's allocator has given out.
    fn allocated(&self) -> anyhow::Result<u64> {
        let stats = self.admin.stats(r"^server\.memory_allocated$")?;
        Ok(stats.values().sum())
    }

    /// Returns the lowest resident memory of a while without random plugins.
    async fn settle(&self, baseline: u64) -> anyhow::Result<u64> {
        let begin = Instant::now();
        let mut lowest = u64::MAX;
        while begin.elapsed() < REST
            || (begin.elapsed() < SETTLE && lowest > baseline + MEMORY_LEFT)
        {
            tokio::time::sleep(Duration::from_millis(500)).await;
            lowest = lowest.min(self.resident()?);
        }
        Ok(lowest)
    }

    /// Waits until no request is under way, stops the gateway, and judges all but its memory after a round.
    async fn finish(&mut self, report: &mut Report) -> anyhow::Result<()> {
        let open = wait_idle(&self.admin).await?;
        if !open.is_empty() {
            report.problems.push(format!(
                "requests are under way, though no client is left: {}",
                open.join(", ")
            ));
        }
        report.idle = Some(Idle {
            settled: self.settle(report.baseline).await?,
            allocated: self.allocated()?,
        });
        report.counters = self.admin.stats(COUNTERS)?;
        report.counters.retain(|_, count| *count > 0);
        if let Err(error) = self.up.stop().await {
            report
                .problems
                .push(format!("the command did not stop well: {error:#}"));
        }
        let bad = [
            "critical",
            "panicked",
            "ENVOY_BUG",
            "assert failure",
            "re-entered",
        ];
        for line in self.up.lines_with(&bad, 20)? {
            report.problems.push(format!("the log says: {line}"));
        }
        report.judge_memory();
        Ok(())
    }

    /// Adds what the clients counted, and judges it.
    fn add_counts(&self, report: &mut Report) {
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        report.compared = count(&self.counts.compared);
        report.callouts = count(&self.counts.callouts);
        report.trailers = count(&self.counts.trailers);
        report.ended = count(&self.counts.ended);
        report.turns = count(&self.counts.turns);
        let (wrong, details, unjudged) = self.counts.problems();
        if wrong > 0 {
            report
                .problems
                .push(format!("{wrong} answers were wrong or did not come:"));
            report.problems.extend(details);
        }
        report.unjudged = unjudged;
        let (pauses, paused) = self.counts.pauses();
        report.pauses = pauses;
        report.paused_seconds = paused.as_secs_f64();
        let nothing = [
            ("answer of a calm host", report.compared),
            ("callout in parts", report.callouts),
            ("trailer", report.trailers),
            ("request to a faulty upstream", report.ended),
            ("turn of a wild client", report.turns),
            ("change", report.change_count()),
        ];
        for (what, count) in nothing {
            if count == 0 {
                report
                    .problems
                    .push(format!("no {what} was seen, so nothing was shown"));
            }
        }
    }
}

/// Waits until no request is under way; returns the gauges that say otherwise.
async fn wait_idle(admin: &Admin) -> anyhow::Result<Vec<String>> {
    let began = Instant::now();
    loop {
        let statistics = admin.stats(r"^http\..*downstream_rq_active$")?;
        // The admin interface counts its own request.
        let open: Vec<String> = statistics
            .iter()
            .filter(|(name, count)| **count > 0 && !name.starts_with("http.admin."))
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if open.is_empty() || began.elapsed() > IDLE {
            return Ok(open);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
