//! `make soak-operations`: a gateway is operated for ten minutes under keep-alive load, HTTP/1.1 and HTTP/2: changed, in storms
//! too, refused, reloaded, stopped and started, taken over, upgraded by a signal, and its processes stand still. No
//! request that was sent is lost, and no connection is refused but while the gateway is stopped.
//!
//! Clients send POST requests, which nobody may send twice, one after the other on a connection, and connect again when they are
//! told to close. Each operation waits until what it did is served.

mod clients;
mod report;

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Connection, Request, Target};
use crate::echo::Echo;
use crate::free_address;
use crate::random::Random;
use crate::soak::memory;
use crate::tls::{Identity, Trust};
use crate::up::{Up, save};
use clients::Clients;
use report::Report;

/// What a run is made of.
#[derive(Debug, Clone)]
pub struct OperationsOptions {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// How long the gateway is operated.
    pub duration: Duration,
    /// What determines the order of operations.
    pub seed: u64,
    /// Where `operations.md` and `operations.json` are written; none: nowhere.
    pub output: Option<PathBuf>,
}

/// How long an operation may take until what it did is served. Machines that run this are busy.
const WITHIN: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(20);
/// Time between two operations.
const REST: Duration = Duration::from_millis(700);
/// How long processes stand still.
const STILL: Duration = Duration::from_millis(1500);
/// Saves of a storm, and the time between two.
const STORM: u64 = 40;
const STORM_EVERY: Duration = Duration::from_millis(25);
/// The name that the certificate is for, and the time between its file and its key's.
pub(crate) const SERVER: &str = "shop.test";
const BETWEEN_FILES: Duration = Duration::from_millis(100);
/// What `--drain` says, in seconds.
const DRAIN: &str = "3";

const GATEWAY: &str = "
gateway:
  listeners:
    - {name: main, address: '{listen}'}
    - {name: secure, address: '{secure}', tls: {certificate: tls.pem, private_key: tls.key}}
  admin: '{admin}'
  workers: 2
  access_log: {path: access.log, format: '%RESPONSE_CODE%'}
  use:
    - {plugin: stamp, config: {version: '{version}'}}
plugins:
  stamp: {source: stamp.lua}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /}, to: {upstream}}
upstreams:
  {upstream}: {endpoints: ['{echo}']}
";

/// One of the things that are done to a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Configuration,
    Code,
    Upstream,
    Certificate,
    Storm,
    Broken,
    Gone,
    Reload,
    Reopen,
    EnvoyStill,
    CommandStill,
    TakeOver,
    Upgrade,
    Restart,
}

impl Operation {
    const ALL: [Self; 14] = [
        Self::Configuration,
        Self::Code,
        Self::Upstream,
        Self::Certificate,
        Self::Storm,
        Self::Broken,
        Self::Gone,
        Self::Reload,
        Self::Reopen,
        Self::EnvoyStill,
        Self::CommandStill,
        Self::TakeOver,
        Self::Upgrade,
        Self::Restart,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Configuration => "a plugin's configuration changes",
            Self::Code => "a plugin's code changes",
            Self::Upstream => "the upstream of all routes is another one",
            Self::Certificate => "certificate and key are renewed, one file after the other",
            Self::Storm => "40 saves within a second",
            Self::Broken => "a file with a problem is saved, then the good one",
            Self::Gone => "the file is removed, and comes back",
            Self::Reload => "SIGHUP",
            Self::Reopen => "the access log is renamed, SIGUSR1",
            Self::EnvoyStill => "Envoy stands still for 1.5 s",
            Self::CommandStill => "the command stands still for 1.5 s, and a change comes",
            Self::TakeOver => "`up --take-over`",
            Self::Upgrade => "SIGUSR2",
            Self::Restart => "SIGTERM, and a start",
        }
    }
}

/// Operates a gateway, tells of it to `out`, and writes the report.
///
/// # Errors
/// Something was lost, or an operation did not do what it should; each is named.
pub async fn run(options: &OperationsOptions, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("outrider-operations-")
        .tempdir()?;
    let echo = Echo::start("echo").await?;
    writeln!(
        out,
        "operations: seed {}, {} s",
        options.seed,
        options.duration.as_secs()
    )?;
    let mut gateway = Gateway::start(&options.outrider, folder.path(), echo.address()).await?;
    let clients = Clients::start(gateway.files.listen, gateway.files.secure);
    let mut report = Report::new(options.seed, options.duration);
    let operated = operate(options, &mut gateway, &clients, &mut report, out).await;
    clients.end(&mut report).await;
    let stopped = gateway.up.stop().await;
    for end in [operated, stopped] {
        if let Err(error) = end {
            let said = gateway.up.last_lines();
            report
                .problems
                .push(format!("{error:#}\nThe last lines of the log:\n{said}"));
        }
    }
    let bad = [
        "critical",
        "panicked",
        "ENVOY_BUG",
        "assert failure",
        "ended by itself",
        "started anew",
    ];
    for line in gateway.up.lines_with(&bad, 20)? {
        report.problems.push(format!("the log says: {line}"));
    }
    echo.stop().await;
    if let Some(output) = &options.output {
        fs::create_dir_all(output)?;
        save(&output.join("operations.json"), report.json()?)?;
        save(&output.join("operations.md"), report.page())?;
    }
    out.write_all(report.page().as_bytes())?;
    ensure!(
        report.problems.is_empty(),
        "it did not hold:\n  {}",
        report.problems.join("\n  ")
    );
    Ok(())
}

async fn operate(
    options: &OperationsOptions,
    gateway: &mut Gateway,
    clients: &Clients,
    report: &mut Report,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut random = Random::new(options.seed);
    let mut left: Vec<Operation> = Vec::new();
    while began.elapsed() < options.duration {
        if left.is_empty() {
            // Each as often as the others, in an order of its own each time.
            left.extend(Operation::ALL);
        }
        let index = usize::try_from(random.below(left.len() as u64))?;
        let operation = left.swap_remove(index);
        let before = Instant::now();
        gateway
            .perform(operation, clients)
            .await
            .with_context(|| format!("{} s, {}", began.elapsed().as_secs(), operation.name()))?;
        report.add(operation.name(), before.elapsed());
        tokio::time::sleep(REST).await;
        clients
            .go_on(WITHIN)
            .await
            .with_context(|| format!("after {}", operation.name()))?;
        if left.is_empty() {
            writeln!(
                out,
                "  {:>4} s  {} operations, {} requests, {} lost",
                began.elapsed().as_secs(),
                report.operations(),
                clients.answered(),
                clients.lost()
            )?;
        }
    }
    Ok(())
}

/// The gateway's files.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    listen: SocketAddr,
    /// The listener with TLS.
    secure: SocketAddr,
    admin: SocketAddr,
    echo: SocketAddr,
    /// What the plugin's configuration says.
    version: u64,
    /// What its code says.
    code: u64,
    upstream: u64,
}

impl Files {
    fn file(&self) -> PathBuf {
        self.folder.join("outrider.yaml")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn text(&self) -> String {
        GATEWAY
            .replace("{listen}", &self.listen.to_string())
            .replace("{secure}", &self.secure.to_string())
            .replace("{admin}", &self.admin.to_string())
            .replace("{echo}", &self.echo.to_string())
            .replace("{version}", &self.version.to_string())
            .replace("{upstream}", &format!("echo-{}", self.upstream))
    }

    fn write(&self) -> anyhow::Result<()> {
        save(&self.file(), self.text())
    }

    /// Another certificate with its key, in the same files.
    async fn renew(&self) -> anyhow::Result<Identity> {
        let identity = Identity::generate(&[SERVER])?;
        save(&self.folder.join("tls.pem"), &identity.certificate)?;
        tokio::time::sleep(BETWEEN_FILES).await;
        save(&self.folder.join("tls.key"), &identity.private_key)?;
        Ok(identity)
    }

    fn write_code(&self) -> anyhow::Result<()> {
        let code = format!(
            "local handler = {{ version = 'v2' }}\nfunction handler:on_response_header()\n  \
             envoy.resp.set_header('x-version', envoy.config().version .. '/{}')\nend\nreturn handler\n",
            self.code
        );
        save(&self.folder.join("stamp.lua"), code)
    }
}

/// A gateway that is operated.
#[derive(Debug)]
struct Gateway {
    up: Up,
    outrider: PathBuf,
    files: Files,
    /// The process of the command that serves: that of `up`, or one that it follows.
    serves: u32,
}

impl Gateway {
    async fn start(outrider: &Path, folder: &Path, echo: SocketAddr) -> anyhow::Result<Self> {
        let files = Files {
            folder: folder.to_owned(),
            listen: free_address()?,
            secure: free_address()?,
            admin: free_address()?,
            echo,
            version: 0,
            code: 0,
            upstream: 0,
        };
        files.renew().await?;
        files.write_code()?;
        files.write()?;
        let mut gateway = Self {
            up: start(outrider, &files, &[])?,
            outrider: outrider.to_owned(),
            files,
            serves: 0,
        };
        gateway.wait_ready().await?;
        Ok(gateway)
    }

    async fn perform(&mut self, operation: Operation, clients: &Clients) -> anyhow::Result<()> {
        match operation {
            Operation::Configuration => {
                self.files.version += 1;
                self.files.write()?;
            }
            Operation::Code => {
                self.files.code += 1;
                self.files.write_code()?;
            }
            Operation::Upstream => {
                self.files.upstream += 1;
                self.files.version += 1;
                self.files.write()?;
            }
            Operation::Certificate => {
                let identity = self.files.renew().await?;
                self.wait_renewed(&identity).await?;
            }
            Operation::Storm => {
                for number in 0..STORM {
                    self.files.version += 1;
                    self.files.code += number % 2;
                    self.files.write_code()?;
                    self.files.write()?;
                    tokio::time::sleep(STORM_EVERY).await;
                }
            }
            Operation::Broken => {
                save(&self.files.file(), "gateway: {listeners: [}")?;
                tokio::time::sleep(Duration::from_millis(300)).await;
                self.files.version += 1;
                self.files.write()?;
            }
            Operation::Gone => {
                fs::remove_file(self.files.file())?;
                tokio::time::sleep(Duration::from_millis(300)).await;
                self.files.version += 1;
                self.files.write()?;
            }
            Operation::Reload => {
                self.files.version += 1;
                self.files.write()?;
                self.up.signal(Signal::HUP)?;
            }
            Operation::Reopen => {
                let log = self.files.folder.join("access.log");
                fs::rename(&log, self.files.folder.join("access.log.1"))?;
                let from = self.up.log_size();
                self.up.signal(Signal::USR1)?;
                self.wait_said(from, "log files are open again").await?;
            }
            Operation::EnvoyStill => {
                let envoy = memory::child(self.serves, "envoy")?;
                stand_still(envoy).await?;
            }
            Operation::CommandStill => {
                self.files.version += 1;
                self.files.write()?;
                stand_still(self.serves).await?;
            }
            Operation::TakeOver => self.take_over().await?,
            Operation::Upgrade => self.upgrade().await?,
            Operation::Restart => {
                clients.expect_refusals(true);
                self.up.stop().await?;
                self.up = start(&self.outrider, &self.files, &[])?;
                self.wait_ready().await?;
                clients.expect_refusals(false);
            }
        }
        self.wait_served().await
    }

    async fn take_over(&mut self) -> anyhow::Result<()> {
        // What is saved in the same moment is served by the one that takes over.
        self.files.version += 1;
        self.files.write()?;
        let from = self.up.log_size();
        let next = start(&self.outrider, &self.files, &["--take-over"])?;
        let mut before = std::mem::replace(&mut self.up, next);
        self.wait_said(from, "taken over by process").await?;
        self.wait_said(from, "has drained and ended").await?;
        before.wait_end(WITHIN).await?;
        self.serves = self.up.process();
        Ok(())
    }

    async fn upgrade(&mut self) -> anyhow::Result<()> {
        let from = self.up.log_size();
        self.up.signal(Signal::USR2)?;
        self.wait_said(from, "has drained and ended").await?;
        let said = self.up.text_from(from)?;
        let process = said
            .split_once("taken over by process ")
            .and_then(|(_, rest)| rest.split(';').next())
            .and_then(|number| number.parse().ok());
        self.serves = process.context("nobody said which process took over")?;
        Ok(())
    }

    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        self.up
            .wait_ready(self.files.listen, "any", "/status/200", WITHIN)
            .await?;
        self.serves = self.up.process();
        Ok(())
    }

    /// Waits until responses show the versions that the files say.
    async fn wait_served(&self) -> anyhow::Result<()> {
        let wanted = format!("{}/{}", self.files.version, self.files.code);
        let began = Instant::now();
        loop {
            let request = Request::get("/status/200").timeout(WITHIN);
            let response = Target::http1(self.files.listen).send(request).await?;
            let seen = response.headers.get("x-version").map(ToOwned::to_owned);
            if seen.as_deref() == Some(&wanted) {
                return Ok(());
            }
            ensure!(
                began.elapsed() < WITHIN,
                "version {wanted} is not served within {WITHIN:?}, but {seen:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until clients that trust this certificate alone are served.
    async fn wait_renewed(&self, identity: &Identity) -> anyhow::Result<()> {
        let trust = Trust::Authority(identity.certificate.clone());
        let target = Target::http1(self.files.secure).with_tls(SERVER, trust);
        let began = Instant::now();
        while let Err(error) = Connection::open(&target).await {
            ensure!(
                began.elapsed() < WITHIN,
                "the certificate is not served within {WITHIN:?}: {error}"
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn wait_said(&self, from: u64, words: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.up.text_from(from)?.contains(words) {
            ensure!(
                began.elapsed() < WITHIN,
                "nobody said {words:?} within {WITHIN:?}"
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

/// Starts the command.
fn start(outrider: &Path, files: &Files, arguments: &[&str]) -> anyhow::Result<Up> {
    let arguments = [&["--drain", DRAIN], arguments].concat();
    Up::start_with(outrider, &files.file(), &files.log(), &arguments)
}

/// Stops a process for a while, as a debugger does, or a machine without time for it.
async fn stand_still(process: u32) -> anyhow::Result<()> {
    let process = i32::try_from(process)
        .ok()
        .and_then(Pid::from_raw)
        .context("no process")?;
    kill_process(process, Signal::STOP)?;
    tokio::time::sleep(STILL).await;
    Ok(kill_process(process, Signal::CONT)?)
}
