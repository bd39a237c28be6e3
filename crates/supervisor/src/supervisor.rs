//! Does what the state machine decides: threads, files, Envoy, signals.
//!
//! The trap: the loop must not wait for what can hang. Compiling, handing over and looking at Envoy's health have threads of
//! their own, which send their outcomes. What the loop itself asks of Envoy (whether a start is done, log files, the drain)
//! ends within the admin client's time limit, or that of the drain.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use outrider_envoy_process::{Drained, Envoy, Error, LogLine, Options, StandardOutput};
use outrider_gateway::{Compiled, Plan};
use serde_json::Value;

use crate::apply::{self, Applied, Part};
use crate::courier::{self, Courier};
use crate::machine::{Action, Event, Exit, Machine};
use crate::notify::ServiceManager;
use crate::refusals::{Refusals, Teller};
use crate::report::Report;
use crate::revision::Revision;
use crate::signals::Requests;
use crate::state::State;
use crate::watch::{Seen, Watch};
use crate::{places, ports};

/// Interval of looks at signals, files and Envoy: while something is under way, and else.
const BUSY: Duration = Duration::from_millis(10);
const CALM: Duration = Duration::from_millis(50);
const READY_WITHIN: Duration = Duration::from_mins(1);
/// How long Envoy may take to end once it has drained.
const END_WITHIN: Duration = Duration::from_secs(3);
/// Interval of looks at Envoy's health, and how many have to fail.
const HEALTH: Duration = Duration::from_secs(5);
const SILENT: u32 = 2;
/// The log comes through a pipe, and may lag behind the counters.
const LOG_LAG: Duration = Duration::from_millis(500);
/// An address that was in use a moment ago may be free now.
const FREE_WITHIN: Duration = Duration::from_secs(1);

/// What came of compiling the file.
#[derive(Debug)]
pub struct Compilation {
    /// The plan, or the file's problems.
    pub compiled: Compiled,
    /// The files that were read, as they were before.
    pub seen: Seen,
}

/// Shows a line of Envoy's log; `true`: the line is a reason that a report will tell. Must not block: Envoy waits.
pub type LogSink = Box<dyn FnMut(&LogLine, bool) + Send>;

/// How to run a gateway.
pub struct Settings {
    /// The gateway's file, for messages.
    pub file: PathBuf,
    /// Envoy's executable.
    pub envoy: PathBuf,
    /// Outrider's module.
    pub module: PathBuf,
    /// The state folder; `None`: the user's usual one.
    pub state: Option<PathBuf>,
    /// How long requests and connections may last when the gateway stops.
    pub drain: Duration,
    /// Whether a file that is refused at first ends the gateway, though an earlier run served one that was good.
    pub is_strict: bool,
    /// Compiles the file. Called on a thread of its own, one at a time.
    pub compile: Arc<dyn Fn() -> Compilation + Send + Sync>,
    /// Shows Envoy's log.
    pub log: LogSink,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// What a thread has done.
enum Done {
    Compiled(Box<Compilation>),
    /// A change was handed over.
    Applied(Shared, anyhow::Result<Applied>),
    Healthy(bool),
}

type Shared = Arc<Revision>;
type Log = Arc<std::sync::Mutex<LogSink>>;

/// Runs a gateway until it is asked to stop, or cannot begin.
///
/// # Errors
/// Nothing was served yet, and something around the gateway is missing: an address, the state folder, Envoy.
pub fn run(settings: Settings, report: &mut dyn FnMut(Report<'_>)) -> anyhow::Result<Exit> {
    let state = State::take(&settings.file, settings.state.as_deref())?;
    let requests = Requests::listen()?;
    let modules = state.install_module(&settings.module)?;
    let last_good = Revision::last_good(&state).unwrap_or_else(|error| {
        report(Report::Warning(&error));
        None
    });
    let fallback = last_good.filter(|_| !settings.is_strict).map(Arc::new);
    let (done, outcomes) = channel();
    let now = Instant::now();
    let mut supervisor = Supervisor {
        machine: Machine::new(fallback),
        refusals: Refusals::default(),
        log: Arc::new(std::sync::Mutex::new(settings.log)),
        watch: Watch::new(),
        manager: ServiceManager::of_environment(),
        envoy: None,
        starting: None,
        said: None,
        refused: false,
        change: None,
        noticed: now,
        health_at: now,
        silent: 0,
        restarts: 0,
        file: settings.file,
        binary: settings.envoy,
        module: settings.module,
        drain: settings.drain,
        compile: settings.compile,
        state: Arc::new(state),
        modules,
        requests,
        done,
        outcomes,
        report,
    };
    supervisor.run()
}

/// An Envoy that does not serve yet.
struct Starting {
    revision: Shared,
    began: Instant,
}

struct Supervisor<'a> {
    machine: Machine<Shared>,
    envoy: Option<Envoy>,
    starting: Option<Starting>,
    /// What the file said when it last had no problem.
    said: Option<Shared>,
    /// Whether the file has problems, or Envoy refused it.
    refused: bool,
    /// The change that is handed over, and whether it is to break off, because Envoy has ended.
    change: Option<Arc<AtomicBool>>,
    /// When the change that is under way was noticed, or Envoy ended.
    noticed: Instant,
    health_at: Instant,
    /// Looks at Envoy's health in a row that failed.
    silent: u32,
    restarts: u32,
    watch: Watch,
    manager: ServiceManager,
    refusals: Refusals,
    log: Log,
    file: PathBuf,
    binary: PathBuf,
    module: PathBuf,
    /// The folder of the module's copy.
    modules: PathBuf,
    drain: Duration,
    compile: Arc<dyn Fn() -> Compilation + Send + Sync>,
    state: Arc<State>,
    requests: Requests,
    done: Sender<Done>,
    outcomes: Receiver<Done>,
    report: &'a mut dyn FnMut(Report<'_>),
}

impl Supervisor<'_> {
    fn run(&mut self) -> anyhow::Result<Exit> {
        let mut events = VecDeque::from([Event::Changed]);
        loop {
            if events.is_empty() {
                self.wait(&mut events)?;
            }
            while let Some(event) = events.pop_front() {
                for action in self.machine.handle(Instant::now(), event) {
                    if let Action::Exit(exit) = action {
                        self.end(exit);
                        return Ok(exit);
                    }
                    events.extend(self.perform(action)?);
                }
            }
        }
    }

    /// Waits a moment, and collects what happened.
    fn wait(&mut self, events: &mut VecDeque<Event<Shared>>) -> anyhow::Result<()> {
        let interval = if self.starting.is_some() { BUSY } else { CALM };
        match self.outcomes.recv_timeout(interval) {
            Ok(outcome) => events.extend(self.outcome(outcome)?),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if self.requests.stop() {
            events.push_back(Event::Stop);
            return Ok(());
        }
        events.extend(self.look_at_envoy()?);
        if self.watch.changed() || self.requests.take_reload() {
            self.noticed = Instant::now();
            events.push_back(Event::Changed);
        }
        if self.requests.take_reopen() {
            let reopened = self.reopen();
            (self.report)(Report::Reopened(reopened.as_ref().copied()));
        }
        self.look_at_health();
        self.manager.alive();
        events.push_back(Event::Time);
        Ok(())
    }

    fn outcome(&mut self, outcome: Done) -> anyhow::Result<Option<Event<Shared>>> {
        Ok(match outcome {
            Done::Compiled(compilation) => Some(self.compiled(*compilation)),
            Done::Applied(to, applied) => {
                let change = self.change.take();
                if change.is_some_and(|change| change.load(Ordering::SeqCst)) {
                    // Envoy ended meanwhile, and the change with it.
                    return Ok(Some(Event::Ended));
                }
                self.refusals.expect(Teller::Log);
                Some(self.applied(&to, applied))
            }
            Done::Healthy(is_healthy) => {
                self.healthy(is_healthy);
                None
            }
        })
    }

    fn perform(&mut self, action: Action<Shared>) -> anyhow::Result<Option<Event<Shared>>> {
        match action {
            Action::Compile => {
                let compile = Arc::clone(&self.compile);
                self.spawn("compile", move || Done::Compiled(Box::new(compile())))?;
            }
            Action::Start(revision) => return self.start(revision),
            Action::Apply { from, to } => self.apply(from, to)?,
            Action::Kill => {
                self.starting = None;
                self.envoy = None;
            }
            Action::Drain => {
                self.drain();
                return Ok(Some(Event::Drained));
            }
            Action::TellFallback => (self.report)(Report::Fallback),
            Action::Exit(_) => {}
        }
        Ok(None)
    }

    /// Does something on a thread of its own, which sends the outcome.
    fn spawn(
        &self,
        name: &str,
        work: impl FnOnce() -> Done + Send + 'static,
    ) -> anyhow::Result<()> {
        let done = self.done.clone();
        thread::Builder::new()
            .name(name.to_owned())
            // Nobody listens any more where the gateway has ended.
            .spawn(move || drop(done.send(work())))
            .context("no thread can be started")?;
        Ok(())
    }

    fn compiled(&mut self, compilation: Compilation) -> Event<Shared> {
        let Compilation { compiled, seen } = compilation;
        self.watch.set(paths(&compiled.files), &seen);
        let Some(plan) = compiled.plan else {
            self.refused = true;
            (self.report)(Report::Refused(&compiled.problems));
            return Event::Refused;
        };
        let revision = Arc::new(Revision::new(plan, &self.state));
        if let Some(plan) = &revision.plan {
            let before = self.said.as_ref().and_then(|said| said.plan.as_ref());
            (self.report)(Report::Compiled { before, plan });
        }
        // Places in the file are a part of the plan: what Envoy is told decides whether anything is to be done.
        let served = self
            .machine
            .taken()
            .filter(|served| served.files == revision.files);
        let same = served.map(Arc::clone);
        self.said = Some(Arc::clone(&revision));
        if std::mem::take(&mut self.refused) && same.is_some() {
            (self.report)(Report::InStep);
        }
        Event::Compiled(same.unwrap_or(revision))
    }

    /// Starts Envoy.
    fn start(&mut self, revision: Shared) -> anyhow::Result<Option<Event<Shared>>> {
        let is_first = self.machine.taken().is_none();
        match self.launch(&revision, is_first) {
            Ok(envoy) => {
                self.envoy = Some(envoy);
                self.starting = Some(Starting {
                    revision,
                    began: Instant::now(),
                });
                Ok(None)
            }
            Err(error) if is_first => Err(error),
            Err(error) => {
                (self.report)(Report::Ended(&error));
                Ok(Some(Event::Ended))
            }
        }
    }

    fn launch(&self, revision: &Revision, is_first: bool) -> anyhow::Result<Envoy> {
        if let Some(plan) = revision.plan.as_ref().filter(|_| is_first) {
            ports::check(&self.file, plan)?;
        }
        revision.keep_modules(&self.state)?;
        let folder = self.state.folder();
        apply::write_all(folder, &revision.files)?;
        let bootstrap = self.state.file("bootstrap.json");
        courier::replace(&bootstrap, &revision.files.bootstrap.to_string())?;
        self.refusals.expect(Teller::Supervisor);
        self.refusals.take();
        let mut options = Options::new(&self.binary, &bootstrap);
        options.concurrency = revision.workers;
        options.module_folder = Some(self.modules.clone());
        options.standard_output = StandardOutput::Inherit;
        let (refusals, log) = (self.refusals.clone(), Arc::clone(&self.log));
        options.log_sink = Some(Box::new(move |line| {
            let is_told = refusals.collect(line);
            let mut log = log
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            log(line, is_told);
        }));
        Ok(Envoy::start(options)?)
    }

    /// Whether Envoy has ended, or serves now.
    fn look_at_envoy(&mut self) -> anyhow::Result<Option<Event<Shared>>> {
        let Some(envoy) = &mut self.envoy else {
            return Ok(None);
        };
        let Some(starting) = &self.starting else {
            return match ended(envoy.check_running()) {
                Ok(()) => Ok(None),
                Err(error) => Ok(self.ended(&error)),
            };
        };
        match envoy.wait_ready(Duration::ZERO) {
            Ok(()) => {}
            Err(Error::NotReady { .. }) if starting.began.elapsed() < READY_WITHIN => {
                return Ok(None);
            }
            other => {
                let Err(error) = ended(other) else {
                    return Ok(None);
                };
                if self.machine.taken().is_none() {
                    return Err(error);
                }
                return Ok(self.ended(&error));
            }
        }
        let Some(starting) = self.starting.take() else {
            return Ok(None);
        };
        if let Some(reasons) = self.refused_at_start(&starting.revision)? {
            // What Envoy cannot listen at or load is a fault around the gateway; anything else it refuses is one of
            // the file.
            if self.machine.taken().is_none()
                && reasons.iter().any(|reason| reason.contains("Envoy cannot"))
            {
                bail!("{}", reasons.join("\n"));
            }
            if self.machine.taken().is_some() {
                self.restarts += 1;
            } else {
                self.refused = true;
            }
            (self.report)(Report::StartRefused(reasons));
            return Ok(Some(Event::StartRefused));
        }
        self.refusals.expect(Teller::Log);
        self.serving(&starting.revision)?;
        Ok(Some(Event::Started))
    }

    fn serving(&mut self, revision: &Revision) -> anyhow::Result<()> {
        let Some(envoy) = &self.envoy else {
            return Ok(());
        };
        (self.report)(Report::Serving {
            plan: revision.plan.as_ref(),
            addresses: listening(envoy)?,
            admin: envoy.admin()?.address(),
            took: self.noticed.elapsed(),
            restarts: self.restarts,
        });
        self.silent = 0;
        self.health_at = Instant::now() + HEALTH;
        self.kept(revision);
        self.manager.ready();
        self.tell_status();
        Ok(())
    }

    /// Envoy took a revision whole.
    fn kept(&mut self, revision: &Revision) {
        if let Err(error) = revision.keep(&self.state) {
            (self.report)(Report::Warning(&error));
        }
    }

    fn tell_status(&self) {
        self.manager.status(if self.refused {
            "serving; the file was refused, and what worked goes on"
        } else {
            "serving"
        });
    }

    /// Tells that Envoy has ended. Where a change is handed over, the event follows upon the end of that: two changes at
    /// once would mix their files.
    fn ended(&mut self, error: &anyhow::Error) -> Option<Event<Shared>> {
        self.noticed = Instant::now();
        self.restarts += 1;
        self.starting = None;
        self.envoy = None;
        (self.report)(Report::Ended(error));
        self.manager.status("Envoy ended, and is started again");
        match &self.change {
            Some(change) => {
                change.store(true, Ordering::SeqCst);
                None
            }
            None => Some(Event::Ended),
        }
    }

    /// Why Envoy refused parts of what it was started with; it would serve without them.
    fn refused_at_start(&self, revision: &Revision) -> anyhow::Result<Option<Vec<String>>> {
        let Some(envoy) = &self.envoy else {
            return Ok(None);
        };
        let rejections = envoy.rejections()?;
        if rejections.is_empty() {
            return Ok(None);
        }
        let begin = Instant::now();
        let mut reasons: BTreeSet<String> = BTreeSet::new();
        while reasons.is_empty() && begin.elapsed() < LOG_LAG {
            thread::sleep(BUSY);
            reasons.extend(self.refusals.take());
        }
        if reasons.is_empty() {
            reasons.extend(rejections.into_iter().map(|rejection| {
                format!(
                    "Envoy refused its configuration ({})",
                    rejection.subscription
                )
            }));
        }
        // Envoy knows the module by its copy only.
        let copy = format!("module {}", crate::module::FILE);
        let module = format!("module {}", self.module.display());
        let reasons = reasons.into_iter().map(|reason| {
            with_place(&self.file, revision.plan.as_ref(), &reason).replace(&copy, &module)
        });
        Ok(Some(reasons.collect()))
    }

    /// Hands a change over, on a thread of its own.
    fn apply(&mut self, from: Vec<Shared>, to: Shared) -> anyhow::Result<()> {
        let Some(envoy) = &self.envoy else {
            return Ok(());
        };
        let admin = envoy.admin()?.clone();
        let (state, refusals) = (Arc::clone(&self.state), self.refusals.clone());
        let file = self.file.clone();
        let change = Arc::new(AtomicBool::new(false));
        self.change = Some(Arc::clone(&change));
        refusals.expect(Teller::Supervisor);
        self.spawn("apply", move || {
            let courier = Courier::new(&admin, &refusals, &change);
            let applied = hand_over(&file, &state, &courier, &from, &to);
            Done::Applied(to, applied)
        })
    }

    fn applied(&mut self, to: &Revision, applied: anyhow::Result<Applied>) -> Event<Shared> {
        let before = self.machine.taken().cloned();
        match applied {
            Ok(Applied::All(is_change)) => {
                if is_change {
                    let old = before.as_ref().map(|before| &before.files.lds);
                    (self.report)(Report::Applied {
                        before: before.as_ref().and_then(|before| before.plan.as_ref()),
                        plan: to.plan.as_ref(),
                        took: self.noticed.elapsed(),
                        replaced: old
                            .map_or_else(Vec::new, |old| replaced_listeners(old, &to.files.lds)),
                    });
                    self.kept(to);
                }
                self.tell_status();
                Event::Applied
            }
            Ok(Applied::Refused(part, reason)) => {
                self.refused = true;
                (self.report)(Report::Declined {
                    part: part.words(),
                    reason: with_place(&self.file, to.plan.as_ref(), &reason),
                });
                self.tell_status();
                Event::Declined
            }
            Err(error) => {
                (self.report)(Report::BrokeOff { error: &error });
                Event::BrokeOff
            }
        }
    }

    fn look_at_health(&mut self) {
        let now = Instant::now();
        if self.starting.is_some() || now < self.health_at {
            return;
        }
        let admin = self.envoy.as_ref().and_then(|envoy| envoy.admin().ok());
        if let Some(admin) = admin.cloned() {
            // The next look comes after this one's outcome.
            self.health_at = now + HEALTH * 10;
            let looks = self.spawn("health", move || Done::Healthy(admin.get("/ready").is_ok()));
            if let Err(error) = looks {
                (self.report)(Report::Warning(&error));
            }
        }
    }

    fn healthy(&mut self, is_healthy: bool) {
        self.health_at = Instant::now() + HEALTH;
        if is_healthy {
            if self.silent >= SILENT {
                (self.report)(Report::Answers);
                self.tell_status();
            }
            self.silent = 0;
            return;
        }
        self.silent = self.silent.saturating_add(1);
        if self.silent == SILENT {
            (self.report)(Report::Silent(HEALTH * 2 * SILENT));
            self.manager.status("Envoy does not answer");
        }
    }

    fn reopen(&self) -> anyhow::Result<()> {
        let envoy = self.envoy.as_ref().context("Envoy does not run")?;
        let answer = envoy.admin_post("/reopen_logs")?;
        if answer.status != 200 {
            bail!("Envoy says {}", answer.body.trim());
        }
        Ok(())
    }

    fn drain(&mut self) {
        let Some(envoy) = &self.envoy else {
            return;
        };
        (self.report)(Report::Draining);
        self.manager.stopping();
        let requests = self.requests.clone();
        match envoy.drain(self.drain, &|| requests.stop_at_once()) {
            Ok(Drained::Idle) => {}
            Ok(Drained::Busy(requests)) => (self.report)(Report::CutOff(requests)),
            Err(error) => (self.report)(Report::Warning(&anyhow!(error))),
        }
    }

    fn end(&mut self, exit: Exit) {
        if let Some(envoy) = self.envoy.take() {
            let at_once = self.requests.stop_at_once() || self.starting.is_some();
            envoy.stop(if at_once { Duration::ZERO } else { END_WITHIN });
        }
        if exit == Exit::Stopped {
            (self.report)(Report::Stopped);
        }
    }
}

/// Hands a change over to Envoy, and waits for its verdict.
fn hand_over(
    file: &Path,
    state: &State,
    courier: &Courier<'_>,
    from: &[Shared],
    to: &Shared,
) -> anyhow::Result<Applied> {
    if let Some(why) = obstacle(file, from, to.plan.as_ref()) {
        return Ok(Applied::Refused(Part::Listeners, why));
    }
    to.keep_modules(state)?;
    let possible: Vec<_> = from.iter().map(|revision| &revision.files).collect();
    apply::apply(state.folder(), courier, &possible, &to.files)
}

/// Why Envoy cannot listen at an address that a change adds. Envoy itself would share the port with another Envoy, and
/// each would get a part of the connections.
fn obstacle(file: &Path, from: &[Shared], plan: Option<&Plan>) -> Option<String> {
    // Of a revision of an earlier run the addresses are not known.
    let known: Option<Vec<&Plan>> = from.iter().map(|from| from.plan.as_ref()).collect();
    let known = known?;
    let is_served = |address: SocketAddr| {
        let mut listeners = known.iter().flat_map(|plan| &plan.listeners);
        listeners.any(|listener| listener.address == address)
    };
    let began = Instant::now();
    loop {
        let error = ports::check_added(file, plan?, &is_served).err()?;
        if began.elapsed() > FREE_WITHIN {
            return Some(error.to_string());
        }
        thread::sleep(CALM);
    }
}

/// Adds Envoy's last lines to the news of its end.
fn ended(result: Result<(), Error>) -> anyhow::Result<()> {
    match result {
        Err(Error::Ended {
            status,
            reason,
            last_lines,
        }) => {
            let mut lines = last_lines.join("\n  ");
            if !lines.is_empty() {
                lines = format!("\nits last lines:\n  {lines}");
            }
            bail!("Envoy ended by itself ({status}): {reason}{lines}")
        }
        other => Ok(other?),
    }
}

/// Puts the place in the user's file before a reason, where it is known.
fn with_place(file: &Path, plan: Option<&Plan>, reason: &str) -> String {
    match plan.and_then(|plan| places::of_reason(file, plan, reason)) {
        Some(place) => format!("{place}: {reason}"),
        None => reason.to_owned(),
    }
}

/// Where each listener listens.
fn listening(envoy: &Envoy) -> anyhow::Result<Vec<(String, SocketAddr)>> {
    let body = envoy.admin_get("/listeners?format=json")?.body;
    let page: Value =
        serde_json::from_str(&body).context("Envoy's list of listeners is no JSON")?;
    let listeners = page.pointer("/listener_statuses").and_then(Value::as_array);
    Ok(listeners
        .into_iter()
        .flatten()
        .filter_map(|listener| {
            let name = listener.get("name")?.as_str()?;
            let socket = listener.pointer("/local_address/socket_address")?;
            let ip = socket.get("address")?.as_str()?.parse().ok()?;
            let port = socket.get("port_value")?.as_u64()?.try_into().ok()?;
            Some((name.to_owned(), SocketAddr::new(ip, port)))
        })
        .collect())
}

/// Listeners that are in both documents and differ.
fn replaced_listeners(old: &Value, new: &Value) -> Vec<String> {
    let resources = |document: &Value| -> Vec<Value> {
        let resources = document.get("resources").and_then(Value::as_array);
        resources.cloned().unwrap_or_default()
    };
    let old = resources(old);
    resources(new)
        .iter()
        .filter_map(|listener| {
            let before = old
                .iter()
                .find(|before| before.get("name") == listener.get("name"))?;
            (before != listener).then(|| listener.get("name")?.as_str().map(str::to_owned))?
        })
        .collect()
}

fn paths(files: &[String]) -> BTreeSet<PathBuf> {
    files.iter().map(PathBuf::from).collect()
}
