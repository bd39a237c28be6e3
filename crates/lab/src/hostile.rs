//! `make soak-hostile`: other tenants' requests beside hostile plugins of every kind at once, on two workers.
//!
//! Three phases of one gateway: without the attackers, with them, and after they have left. The other tenants'
//! requests come at a steady rate on four lanes (a plain route on kept and on new connections, a route with a sound
//! Lua plugin, one with a sound Wasm plugin), and their latency counts from the moment at which each was meant to be
//! sent ([`crate::open_loop`]). Figures are compared with the baseline of the same run, because machines differ; a
//! lane that goes to the upstream directly shows how far the machine alone was slower in a phase.
//!
//! Clients that send all they can at once (`--only frames,at-once,reset`) cost a gateway without plugins time, too, so
//! theirs send the same in the baseline, to the same routes without plugins: what is judged is what the plugins add.
//!
//! The trap: attackers' clients need CPU time, too. They run on one thread of their own, and wait for their answers.

mod attackers;
mod clients;
mod report;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::Admin;

use crate::client::{Request, Response, Target};
use crate::echo::{Echo, pattern};
use crate::free_address;
use crate::open_loop::{Lane, Running};
use crate::programs::wasm;
use crate::soak::memory;
use crate::up::{Up, save};
use attackers::{Attacker, Code, Drive};
use clients::{Clients, Counts};
use report::{AttackerReport, Phase, Report, ResourceSample};

/// Host of the attackers' project.
const ATTACKED_HOST: &str = "attacked.test";
/// Host of the other tenant's project.
const TENANT_HOST: &str = "tenant.test";
/// Time until the gateway answers. A debug build compiles the guests slowly.
const READY: Duration = Duration::from_mins(2);
/// Time that an update with all attackers may take.
const APPLIED: Duration = Duration::from_mins(2);
/// Time for a request of the other tenants.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests a second on each lane.
const RATE: u32 = 40;
/// Bytes of an answer.
const ANSWER: usize = 500;
/// Interval between two samples of memory, CPU time and log.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// What a run is made with.
#[derive(Debug, Clone)]
pub struct HostileOptions {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// Time of the three phases together: a fifth for the baseline, three fifths for the attack.
    pub duration: Duration,
    /// Names of attackers; empty: all but those whose clients send all they can at once, which are judged apart.
    pub only: Vec<String>,
    /// Where `hostile.md` and `hostile.json` are written; `None`: nowhere.
    pub output: Option<PathBuf>,
}

/// Runs the attack, prints the page to `out`, and writes the report.
///
/// # Errors
/// Names each bound that was missed.
pub async fn run(options: &HostileOptions, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let attackers: Vec<Attacker> = attackers::all()
        .into_iter()
        .filter(|attacker| {
            if options.only.is_empty() {
                attacker.drive == Drive::InTurn
            } else {
                options.only.iter().any(|name| name == attacker.name)
            }
        })
        .collect();
    anyhow::ensure!(
        !attackers.is_empty(),
        "no attacker has one of these names: {}",
        options.only.join(", ")
    );
    let folder = tempfile::Builder::new()
        .prefix("outrider-hostile-")
        .tempdir()?;
    let log = folder.path().join("gateway.log");
    let echo = Echo::start("echo").await?;
    let sink = Echo::start("sink").await?;
    let gateway = Gateway {
        folder: folder.path().to_owned(),
        listen: free_address()?,
        admin: free_address()?,
        echo: echo.address(),
        sink: sink.address(),
    };
    gateway.write_plugins(&attackers)?;
    gateway.write(&[])?;
    let mut up = Up::start(&options.outrider, &gateway.file(), &log)?;
    let report = async {
        up.wait_ready(gateway.listen, TENANT_HOST, "/plain", READY)
            .await
            .context("the gateway did not become ready")?;
        attack(&gateway, &attackers, &mut up, options.duration, out).await
    }
    .await;
    let stopped = up.stop().await;
    let mut report = report
        .map_err(|error| anyhow::anyhow!("{error:#}\n\nEnd of the log:\n{}", up.last_lines()))?;
    if let Err(error) = stopped {
        report.wrong(format!("the command did not stop well: {error:#}"));
    }
    echo.stop().await;
    sink.stop().await;
    if let Some(output) = &options.output {
        fs::create_dir_all(output)?;
        save(&output.join("hostile.json"), report.json()?)?;
        save(&output.join("hostile.md"), report.page())?;
    }
    out.write_all(report.page().as_bytes())?;
    anyhow::ensure!(
        report.problems.is_empty(),
        "isolation did not hold:\n  {}",
        report.problems.join("\n  ")
    );
    Ok(())
}

/// Addresses and files of the gateway.
struct Gateway {
    folder: PathBuf,
    listen: SocketAddr,
    admin: SocketAddr,
    echo: SocketAddr,
    sink: SocketAddr,
}

impl Gateway {
    fn file(&self) -> PathBuf {
        self.folder.join("outrider.yaml")
    }

    fn logs(&self) -> PathBuf {
        self.folder.join("plugin-logs")
    }

    fn write_plugins(&self, attackers: &[Attacker]) -> anyhow::Result<()> {
        save(
            &self.folder.join("sound.lua"),
            "return { version = 'v2', on_response_header = function() envoy.resp.set_header('x-seen', 'yes') end }",
        )?;
        save(
            &self.folder.join("sound-wasm.wasm"),
            wasm::sound().module()?,
        )?;
        for attacker in attackers {
            let file = self.folder.join(attacker.file());
            match &attacker.code {
                Code::Lua(code) => save(&file, code)?,
                Code::Wasm(guest) => save(&file, guest.module()?)?,
            }
        }
        Ok(())
    }

    /// Writes `outrider.yaml` with these attackers.
    fn write(&self, attackers: &[Attacker]) -> anyhow::Result<()> {
        let Self {
            listen,
            admin,
            echo,
            sink,
            ..
        } = self;
        let mut plugins = String::new();
        let mut routes = String::new();
        for attacker in attackers {
            let (name, file) = (attacker.name, attacker.file());
            let _ = writeln!(
                plugins,
                "  {name}: {{source: {file}, circuit: off, budgets: {{memory_mib: {}}}{}}}",
                attacker.memory_mib, attacker.settings
            );
            let _ = writeln!(
                routes,
                "      - {{match: {{prefix: /{name}/}}, to: sink, use: [{name}]}}"
            );
        }
        save(
            &self.file(),
            format!(
                "gateway:
  listeners: [{{name: main, address: '{listen}'}}]
  admin: '{admin}'
  workers: 2
  plugin_logs: plugin-logs
plugins:
  sound: {{source: sound.lua}}
  sound-wasm: {{source: sound-wasm.wasm}}
{plugins}projects:
  - name: tenant
    hosts: [{TENANT_HOST}]
    routes:
      - {{match: {{prefix: /lua}}, to: echo, use: [sound]}}
      - {{match: {{prefix: /wasm}}, to: echo, use: [sound-wasm]}}
      - {{match: {{prefix: /}}, to: echo}}
  - name: attacked
    hosts: [{ATTACKED_HOST}]
    routes:
{routes}      - {{match: {{prefix: /}}, to: sink}}
upstreams:
  echo: {{endpoints: ['{echo}']}}
  sink: {{endpoints: ['{sink}']}}
  dead: {{endpoints: ['127.0.0.1:1']}}
"
            ),
        )
    }

    fn lane(&self, name: &'static str, path: &'static str, new_connections: bool) -> Lane {
        let sees_plugin = path != "/plain";
        lane_at(self.listen, name, path, new_connections, sees_plugin)
    }
}

/// Returns a lane of requests to this address.
fn lane_at(
    address: SocketAddr,
    name: &'static str,
    path: &'static str,
    new_connections: bool,
    sees_plugin: bool,
) -> Lane {
    let body = pattern(ANSWER);
    Lane {
        name,
        target: Target::http1(address),
        new_connections,
        rate: RATE,
        make: Arc::new(move |_| {
            Request::get(path)
                .host(TENANT_HOST)
                .header("x-echo-path", &format!("/bytes/{ANSWER}"))
                .timeout(PATIENCE)
        }),
        check: Arc::new(move |_, response: &Response| {
            let is_seen = response.headers.get("x-seen") == Some("yes");
            if response.status != 200 {
                Err(format!("status {}", response.status))
            } else if response.body != body {
                Err("another body than the upstream's".to_owned())
            } else if is_seen != sees_plugin {
                Err("the plugin did not run".to_owned())
            } else {
                Ok(())
            }
        }),
    }
}

/// Waits for a phase's end, and takes samples meanwhile.
async fn phase(
    up: &mut Up,
    envoy: u32,
    gateway: &Gateway,
    began: Instant,
    length: Duration,
    samples: &mut Vec<ResourceSample>,
) -> anyhow::Result<()> {
    let end = Instant::now() + length;
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        tokio::time::sleep(left.min(SAMPLE_EVERY)).await;
        if let Some(end) = up.unasked_end()? {
            anyhow::bail!("{end}, after {} s", began.elapsed().as_secs());
        }
        let resident = memory::of(envoy)
            .with_context(|| format!("Envoy is gone after {} s", began.elapsed().as_secs()))?
            .resident;
        samples.push(ResourceSample {
            second: began.elapsed().as_secs_f64(),
            resident,
            cpu_seconds: cpu_seconds(envoy),
            log_bytes: up.log_size(),
            plugin_log_bytes: folder_size(&gateway.logs()),
        });
        let written = up.log_size() + folder_size(&gateway.logs());
        anyhow::ensure!(
            written < report::MOST_LOG,
            "the logs have {written} bytes; the run ends before the disk is full"
        );
    }
    Ok(())
}

async fn attack(
    gateway: &Gateway,
    attackers: &[Attacker],
    up: &mut Up,
    duration: Duration,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Report> {
    let envoy = up.envoy()?;
    let admin = Admin::new(gateway.admin);
    let fifth = duration / 5;
    let lanes = [
        gateway.lane("plain route, kept connections", "/plain", false),
        gateway.lane("plain route, new connections", "/plain", true),
        gateway.lane("route with a Lua plugin", "/lua", false),
        gateway.lane("route with a Wasm plugin", "/wasm", false),
        lane_at(gateway.echo, report::CONTROL, "/plain", false, false),
    ];
    let mut running: Vec<Running> = Vec::new();
    for lane in lanes {
        running.push(lane.start().await?);
    }
    writeln!(
        out,
        "soak-hostile: {} hostile plugins, {} requests a second of others, {} s",
        attackers.len(),
        RATE * 4,
        duration.as_secs()
    )?;
    let floods: Vec<Attacker> = (attackers.iter())
        .filter(|attacker| attacker.drive.is_flood())
        .cloned()
        .collect();
    let without_plugins = Clients::start(&floods, gateway.listen)?;
    // Pools, caches and connections settle before anything is judged.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    let mut samples = Vec::new();
    let mut report = Report::new(duration, attackers);
    phase(up, envoy, gateway, began, fifth, &mut samples).await?;
    report.end_phase(Phase::Baseline, began, Instant::now());

    writeln!(
        out,
        "  {:>4} s  the attackers come",
        began.elapsed().as_secs()
    )?;
    let (loading, from) = (Instant::now(), up.log_size());
    gateway.write(attackers)?;
    wait_applied(gateway, up, from, loading).await?;
    without_plugins.stop();
    let clients = Clients::start(attackers, gateway.listen)?;
    report.end_phase(Phase::Loading, began, Instant::now());
    let result = phase(up, envoy, gateway, began, fifth * 3, &mut samples).await;
    report.end_phase(Phase::Attack, began, Instant::now());
    let statistics = admin.stats(r"outrider\.plugin");
    writeln!(
        out,
        "  {:>4} s  the attackers leave",
        began.elapsed().as_secs()
    )?;
    let counts = clients.stop();
    gateway.write(&[])?;
    result?;
    let left = Instant::now();
    phase(up, envoy, gateway, began, report::RECOVERY, &mut samples).await?;
    report.end_phase(Phase::Recovery, began, Instant::now());
    let rest = fifth.saturating_sub(left.elapsed());
    phase(
        up,
        envoy,
        gateway,
        began,
        rest.max(Duration::from_secs(5)),
        &mut samples,
    )
    .await?;
    report.end_phase(Phase::After, began, Instant::now());

    for lane in running {
        report.add_lane(began, lane.stop().await);
    }
    match statistics {
        Ok(statistics) => {
            for attacker in attackers {
                report
                    .attackers
                    .push(attacker_report(attacker, &counts, &statistics));
            }
        }
        Err(error) => report.wrong(format!(
            "the admin interface did not answer at the end of the attack: {error:#}"
        )),
    }
    report.samples = samples;
    for line in up.lines_with(&["critical", "panicked", "ENVOY_BUG", "assert failure"], 5)? {
        // Attackers write "forged" lines with any word they like; these begin with the plugin's name.
        if !line.contains("plugin ") {
            report.wrong(format!("the log says: {line}"));
        }
    }
    report.judge();
    Ok(report)
}

/// Waits until the routes of the attackers are served by their plugins.
async fn wait_applied(
    gateway: &Gateway,
    up: &mut Up,
    from: u64,
    began: Instant,
) -> anyhow::Result<()> {
    loop {
        if let Some(end) = up.unasked_end()? {
            anyhow::bail!("{end}, while it loaded the attackers");
        }
        let said = up.text_from(from)?;
        if said.contains("applied in") {
            return Ok(());
        }
        anyhow::ensure!(
            began.elapsed() < APPLIED,
            "{} did not take the attackers within {APPLIED:?}; the command says:\n{said}",
            gateway.file().display()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn attacker_report(
    attacker: &Attacker,
    counts: &BTreeMap<&'static str, Arc<Counts>>,
    statistics: &BTreeMap<String, u64>,
) -> AttackerReport {
    let counts = counts.get(attacker.name);
    let marker = format!("outrider.plugin.{}.errors.", attacker.name);
    let failures = statistics
        .iter()
        .filter(|(_, count)| **count > 0)
        .filter_map(|(name, count)| {
            let (_, cause) = name.split_once(&marker)?;
            Some((cause.to_owned(), *count))
        })
        .collect();
    AttackerReport {
        name: attacker.name.to_owned(),
        about: attacker.about.to_owned(),
        runtime: match attacker.code {
            Code::Lua(_) => "Lua",
            Code::Wasm(_) => "Wasm",
        },
        clients: attacker.clients,
        requests: counts.map_or(0, |counts| counts.requests.load(Ordering::Relaxed)),
        statuses: counts.map(|counts| counts.statuses()).unwrap_or_default(),
        failures,
    }
}

/// CPU time of a process, in seconds; 0 where the system does not say.
fn cpu_seconds(process: u32) -> f64 {
    let Ok(tasks) = fs::read_dir(Path::new("/proc").join(process.to_string()).join("task")) else {
        return 0.0;
    };
    let nanoseconds: u64 = tasks
        .filter_map(Result::ok)
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    nanoseconds as f64 / 1e9
}

/// Bytes of the files in a folder; 0 where it is not there.
fn folder_size(folder: &Path) -> u64 {
    fs::read_dir(folder).map_or(0, |entries| {
        entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.metadata().ok())
            .map(|metadata| metadata.len())
            .sum()
    })
}
