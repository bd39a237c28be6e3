//! `make soak`: mixed faults at full load on two workers, for ten minutes: memory stays flat, nothing
//! crashes, the streams of a plugin that fails are affected as its policy says, and no others.
//!
//! Each route has a plugin of its own ([`routes`]); all are loaded at once, as fast as the answers come,
//! while `outrider.yaml` and a plugin's code change every few seconds. What the client saw has to agree
//! with Envoy's statistics.
//!
//! Not a measurement of speed: the client takes its share of the same machine.

pub(crate) mod memory;
mod report;
mod routes;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::Admin;

use crate::client::Target;
use crate::demo::gateway::Gateway;
use crate::echo::Echo;
use crate::free_address;
use crate::steady::{Steady, SteadyPlan};
use memory::Memory;
use report::{MemorySample, Report, RouteReport};
use routes::{Answer, Expect, ROUTES, Route};

/// What a soak is run with.
#[derive(Debug, Clone)]
pub struct SoakOptions {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// How long the load runs.
    pub duration: Duration,
    /// Where `soak.md` and `soak.json` are written; none: nowhere.
    pub output: Option<PathBuf>,
}

/// How long the gateway may take until it answers.
const READY: Duration = Duration::from_mins(1);
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the gateway's file is changed.
const UPDATE_EVERY: Duration = Duration::from_secs(4);
/// How often memory is looked at.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);

/// What the client counted on one route.
#[derive(Debug, Default)]
struct Counts {
    good: AtomicU64,
    without: AtomicU64,
    policy: AtomicU64,
}

/// Runs the soak, tells of it to `out`, and writes the report. An error names what did not hold.
pub async fn run(options: &SoakOptions, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("outrider-soak-")
        .tempdir()?;
    let echo = Echo::start("echo").await?;
    let (listen, admin) = (free_address()?, free_address()?);
    let file = folder.path().join("outrider.yaml");
    for route in ROUTES {
        save(
            &folder.path().join(format!("{}.lua", route.name)),
            route.code,
        )?;
    }
    let write_version = |version: u64| -> anyhow::Result<()> {
        save(&folder.path().join("stamp.lua"), &routes::stamp(version))?;
        let text = routes::gateway(listen, admin, echo.address(), version);
        save(&file, &text)
    };
    write_version(0)?;
    let mut gateway = Gateway::start(&options.outrider, &file)?;
    let told = async {
        let address = listen;
        gateway
            .wait_ready_at(address, "/", READY)
            .await
            .context("the gateway did not become ready")?;
        let envoy = memory::child(gateway.process().context("the command has ended")?, "envoy")?;
        writeln!(
            out,
            "soak: {} routes at full load for {} s, two workers, an update every {} s",
            ROUTES.len(),
            options.duration.as_secs(),
            UPDATE_EVERY.as_secs()
        )?;
        let report = soak(options.duration, address, admin, envoy, &write_version, out).await?;
        anyhow::Ok(report)
    }
    .await;
    let stopped = gateway.stop().await;
    let mut report = told.map_err(|error| {
        let said = gateway.last_lines(30);
        anyhow::anyhow!("{error:#}\n\nThe last lines of the command:\n{said}")
    })?;
    if let Err(error) = stopped {
        report.wrong(format!("the command did not stop well: {error:#}"));
    }
    echo.stop().await;
    if let Some(output) = &options.output {
        fs::create_dir_all(output)?;
        save(&output.join("soak.json"), &report.json()?)?;
        save(&output.join("soak.md"), &report.page())?;
    }
    out.write_all(report.page().as_bytes())?;
    anyhow::ensure!(
        report.problems.is_empty(),
        "the soak did not hold:\n  {}",
        report.problems.join("\n  ")
    );
    Ok(())
}

async fn soak(
    duration: Duration,
    address: SocketAddr,
    admin: SocketAddr,
    envoy: u32,
    write_version: &impl Fn(u64) -> anyhow::Result<()>,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Report> {
    let admin = Admin::new(admin);
    let mut loads = Vec::new();
    for route in ROUTES {
        let counts = Arc::new(Counts::default());
        loads.push((
            route,
            Arc::clone(&counts),
            load(*route, address, counts).await?,
        ));
    }
    let began = Instant::now();
    let mut version = 0;
    let mut samples = Vec::new();
    let mut next_update = began + UPDATE_EVERY;
    let mut next_told = began + Duration::from_mins(1);
    while began.elapsed() < duration {
        tokio::time::sleep(SAMPLE_EVERY).await;
        let Memory {
            resident,
            shared_out,
        } = memory::of(envoy)
            .with_context(|| format!("Envoy is gone after {} s", began.elapsed().as_secs()))?;
        samples.push(MemorySample {
            second: began.elapsed().as_secs_f64(),
            resident,
            proportional: shared_out,
        });
        if Instant::now() >= next_update {
            version += 1;
            write_version(version)?;
            next_update = Instant::now() + UPDATE_EVERY;
        }
        if Instant::now() >= next_told {
            let requests: u64 = loads.iter().map(|(.., load)| load.so_far().requests).sum();
            writeln!(
                out,
                "  {:>4} s  {requests} requests, {version} updates, {:.1} MiB resident",
                began.elapsed().as_secs(),
                resident as f64 / 1_048_576.0
            )?;
            next_told += Duration::from_mins(1);
        }
    }
    let mut report = Report::new(duration, version, samples);
    let mut routes = Vec::new();
    for (route, counts, load) in loads {
        routes.push((route, counts, load.stop().await));
    }
    let stats = stats(&admin)?;
    for (route, counts, summary) in routes {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let errors: BTreeMap<String, u64> =
            ["error", "time", "memory", "unavailable", "circuit", "share"]
                .into_iter()
                .map(|cause| {
                    (
                        cause.to_owned(),
                        value(&stats, route.name, &format!("errors.{cause}")),
                    )
                })
                .collect();
        report.add(RouteReport {
            name: route.name.to_owned(),
            what: route.what.to_owned(),
            requests: summary.requests,
            good: get(&counts.good),
            without: get(&counts.without),
            policy: get(&counts.policy),
            failed: summary.failed,
            closed_connections: summary.closed_connections,
            details: summary.details,
            circuit_opened: value(&stats, route.name, "circuit_opened"),
            errors,
        });
        judge(route, &mut report);
    }
    let envoy_again = memory::of(envoy);
    if envoy_again.is_err() {
        report.wrong("Envoy is gone at the end".to_owned());
    }
    report.judge_memory();
    Ok(report)
}

/// What has to hold of one route.
fn judge(route: &Route, report: &mut Report) {
    let Some(seen) = report.routes.last().cloned() else {
        return;
    };
    let name = &seen.name;
    let mut wrong = |problem: String| report.wrong(format!("{name}: {problem}"));
    if seen.requests == 0 || seen.good == 0 {
        wrong("nothing was served".to_owned());
    }
    if seen.failed > 0 || seen.closed_connections > 0 {
        wrong(format!(
            "{} wrong answers, {} closed connections: {}",
            seen.failed,
            seen.closed_connections,
            seen.details.join("; ")
        ));
    }
    let affected = seen.policy + seen.without;
    let counted: u64 = seen.errors.values().sum();
    if affected != counted {
        wrong(format!(
            "the client saw {affected} streams that were affected, the statistics say {counted}"
        ));
    }
    for (cause, count) in &seen.errors {
        if *count > 0 && !route.causes.contains(&cause.as_str()) {
            wrong(format!("{count} failures with cause {cause}"));
        }
    }
    if route.expect != Expect::Good && affected == 0 {
        wrong("no stream was affected, so nothing was shown".to_owned());
    }
    if route
        .causes
        .first()
        .is_some_and(|main| seen.errors.get(*main) == Some(&0))
    {
        wrong(format!(
            "no failure of the kind that it is for: {:?}",
            route.causes
        ));
    }
    if route.causes.contains(&"circuit") && name == "flapping" && seen.circuit_opened == 0 {
        wrong("its circuit never opened".to_owned());
    }
}

async fn load(route: Route, address: SocketAddr, counts: Arc<Counts>) -> anyhow::Result<Steady> {
    let plan = SteadyPlan::new(
        Target::http1(address),
        route.connections,
        crate::client::Request::get("/"),
    )
    .requests(move |turn| route.request(turn).timeout(PATIENCE))
    .check(move |turn, response| {
        let counter = match route.check(turn, response)? {
            Answer::Good => &counts.good,
            Answer::Without => &counts.without,
            Answer::Policy => &counts.policy,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    Ok(plan.start().await?)
}

/// The statistics of the plugins.
fn stats(admin: &Admin) -> anyhow::Result<BTreeMap<String, u64>> {
    Ok(admin.stats(r"outrider\.plugin")?)
}

fn value(stats: &BTreeMap<String, u64>, plugin: &str, what: &str) -> u64 {
    value_of(stats, &format!("outrider.plugin.{plugin}.{what}")).unwrap_or(0)
}

fn value_of(stats: &BTreeMap<String, u64>, ending: &str) -> Option<u64> {
    stats
        .iter()
        .find(|(name, _)| name.ends_with(ending))
        .map(|(_, value)| *value)
}

/// Saves as an editor does: a whole new file, renamed.
fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    fs::rename(&draft, path)?;
    Ok(())
}
