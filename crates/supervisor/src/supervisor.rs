//! Does what the state machine decides: threads, files, Envoy, signals.
//!
//! The trap: the loop must not wait for what can hang. Compiling, handing over and looking at Envoy's health have threads of
//! their own, which send their outcomes. What the loop itself asks of Envoy (whether a start is done, log files, the drain)
//! ends within the admin client's time limit, or that of the drain.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use outrider_envoy_process::{
    Drained, Envoy, Error, FIRST_FLUSH, HotRestart, LogLine, Options, StandardOutput,
};
use outrider_gateway::{Compiled, Plan};
use serde_json::Value;

use crate::apply::{self, Applied, Part};
use crate::courier::{self, Courier};
use crate::handover::{self, Asked, Door, Offer, Predecessor, Said, Successor};
use crate::machine::{Action, Event, Exit, Machine};
use crate::memory;
use crate::notify::ServiceManager;
use crate::refusal::{self, Refusal};
use crate::refusals::{Refusals, Teller};
use crate::report::Report;
use crate::revision::Revision;
use crate::signals::Requests;
use crate::state::State;
use crate::successor::Upgrade;
use crate::watch::{Seen, Watch};
use crate::{places, ports, trial};

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

/// How long another command may take to compile its file before it takes over, and then to start its Envoy.
const OFFER_HOLDS: Duration = Duration::from_mins(5);
/// How long the Envoy before may go on when its time to drain is over.
const GRACE: Duration = Duration::from_secs(15);

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
    /// Whether to take over from the gateway that runs with the same state folder.
    pub takes_over: bool,
    /// The command that SIGUSR2 starts; it has to take over.
    pub successor: Box<dyn Fn() -> Command>,
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
    Said(Said),
}

impl From<Said> for Done {
    fn from(said: Said) -> Self {
        Self::Said(said)
    }
}

type Shared = Arc<Revision>;
type Log = Arc<std::sync::Mutex<LogSink>>;

/// Runs a gateway until it is asked to stop, or cannot begin.
///
/// # Errors
/// Nothing was served yet, and something around the gateway is missing: an address, the state folder, Envoy.
pub fn run(settings: Settings, report: &mut dyn FnMut(Report<'_>)) -> anyhow::Result<Exit> {
    let place = State::place(&settings.file, settings.state.as_deref())?;
    let predecessor = if settings.takes_over {
        let predecessor = Predecessor::ask(&place)?;
        if predecessor.is_none() {
            report(Report::NobodyBefore);
        }
        predecessor
    } else {
        None
    };
    let state = match &predecessor {
        Some(before) => State::join(place, before.offer.run)?,
        None => State::take(&settings.file, settings.state.as_deref())?,
    };
    let requests = Requests::listen()?;
    let modules = state.install_module(&settings.module)?;
    // What is refused does not take over.
    let fallback = if settings.is_strict || predecessor.is_some() {
        None
    } else {
        Revision::last_good(&state).unwrap_or_else(|error| {
            report(Report::Warning(&error));
            None
        })
    };
    let fallback = fallback.map(Arc::new);
    let sockets = Sockets::new(&state, predecessor.as_ref());
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
        refusal: None,
        change: None,
        noticed: now,
        health_at: now,
        silent: 0,
        restarts: 0,
        took_memory: false,
        sockets,
        door: None,
        before: predecessor.map(Before::Waits),
        after: None,
        upgrade: None,
        successor: settings.successor,
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
    let exit = supervisor.run()?;
    let follows = exit == Exit::TakenOver && !supervisor.manager.listens();
    match supervisor.upgrade.take().filter(|_| follows) {
        Some(upgrade) => Ok(Exit::Followed(upgrade.follow(&supervisor.requests))),
        None => Ok(exit),
    }
}

/// Where Envoys talk that take over from each other. The gateway that serves owns the folder, and is the only one that may
/// remove it.
#[derive(Debug)]
enum Sockets {
    /// This gateway's: in the state folder, or inherited from the gateway before.
    Own(PathBuf),
    /// This gateway's: the path of the state folder is too long for sockets.
    Temporary(tempfile::TempDir),
    /// Of the gateway that this one takes over from and which still serves, or of the one that has taken over.
    Others(PathBuf),
    /// This machine has no shared memory, which Envoy needs for it.
    Nowhere,
}

impl Sockets {
    fn new(state: &State, before: Option<&Predecessor>) -> Self {
        if let Some(before) = before {
            return Self::Others(before.offer.sockets.clone());
        }
        let writable = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
        if rustix::fs::access("/dev/shm", writable).is_err() {
            return Self::Nowhere;
        }
        let folder = state.file("hot");
        if HotRestart::fits(&folder) {
            // Left by an earlier run; this process holds the folder.
            let _ = std::fs::remove_dir_all(&folder);
            if crate::state::create_private(&folder).is_ok() {
                return Self::Own(folder);
            }
        }
        match tempfile::Builder::new().prefix("outrider-").tempdir() {
            Ok(folder) if HotRestart::fits(folder.path()) => Self::Temporary(folder),
            _ => Self::Nowhere,
        }
    }

    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Own(folder) | Self::Others(folder) => Some(folder),
            Self::Temporary(folder) => Some(folder.path()),
            Self::Nowhere => None,
        }
    }

    /// Makes the folder again where somebody has removed it: a program that tidies up `/tmp`, a person.
    fn restore(&self) -> anyhow::Result<()> {
        match self {
            Self::Own(folder) => crate::state::create_private(folder),
            Self::Temporary(folder) => crate::state::create_private(folder.path()),
            Self::Others(_) | Self::Nowhere => Ok(()),
        }
    }

    /// Takes the folder of the gateway before, which has left it.
    fn inherit(&mut self) {
        if let Self::Others(folder) = self {
            *self = Self::Own(std::mem::take(folder));
        }
    }

    /// Leaves the folder to the gateway that takes over.
    fn leave(&mut self) {
        *self = match std::mem::replace(self, Self::Nowhere) {
            Self::Own(folder) => Self::Others(folder),
            Self::Temporary(folder) => Self::Others(folder.keep()),
            other => other,
        };
    }
    /// Removes the folder, unless it is another gateway's. A temporary one goes by itself.
    fn remove(&self) {
        if let Self::Own(folder) = self {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// The gateway that this one takes over from.
#[derive(Debug)]
enum Before {
    /// It serves until this one does.
    Waits(Predecessor),
    /// This gateway's Envoy is being started, and takes the sockets.
    Yields(Predecessor),
    /// Its connections drain since then.
    Drains {
        predecessor: Predecessor,
        since: Instant,
    },
}

/// A command that takes over from this one.
#[derive(Debug)]
struct After {
    successor: Successor,
    progress: Progress,
    /// When it has to give up, or this gateway's Envoy has to end.
    until: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Offered,
    Starts,
    Serves,
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
    /// Why what the file says is not served: it has problems, or Envoy refused it.
    refusal: Option<Refusal>,
    /// The change that is handed over, and whether it is to break off, because Envoy has ended.
    change: Option<Arc<AtomicBool>>,
    /// When the change that is under way was noticed, or Envoy ended.
    noticed: Instant,
    health_at: Instant,
    /// Looks at Envoy's health in a row that failed.
    silent: u32,
    restarts: u32,
    /// A change took memory, which is given back at the next look at Envoy's health.
    took_memory: bool,
    sockets: Sockets,
    /// Where other commands ask to take over, while this gateway serves.
    door: Option<Door>,
    before: Option<Before>,
    after: Option<After>,
    /// The command that SIGUSR2 started.
    upgrade: Option<Upgrade>,
    successor: Box<dyn Fn() -> Command>,
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
        if self.is_taken_over() {
            // What is asked for is the other's to do.
            if let Some(upgrade) = &mut self.upgrade {
                upgrade.pass_on(&self.requests);
            }
        } else if self.requests.stop() {
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
        if !self.is_taken_over() && self.requests.take_upgrade() {
            self.upgrade();
        }
        self.look_at_upgrade();
        self.look_before();
        events.extend(self.look_after());
        self.look_at_health();
        self.manager.alive();
        events.push_back(Event::Time);
        Ok(())
    }

    fn outcome(&mut self, outcome: Done) -> anyhow::Result<Option<Event<Shared>>> {
        Ok(match outcome {
            Done::Compiled(compilation) => {
                self.took_memory = true;
                Some(self.compiled(*compilation))
            }
            Done::Applied(to, applied) => {
                let change = self.change.take();
                if change.is_some_and(|change| change.load(Ordering::SeqCst)) {
                    // Envoy ended meanwhile, and the change with it.
                    return Ok(Some(Event::Ended));
                }
                self.refusals.expect(Teller::Log);
                self.took_memory = true;
                Some(self.applied(&to, applied))
            }
            Done::Healthy(is_healthy) => {
                self.healthy(is_healthy);
                None
            }
            Done::Said(said) => self.said(said),
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
            Action::Offer => self.offer(),
            Action::Busy => {
                if let Some(after) = self.after.take() {
                    after.successor.busy();
                }
            }
            Action::Release => self.release(),
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
            let problems = compiled.problems.iter().map(ToString::to_string);
            self.refuse(&problems.collect::<Vec<_>>().join("\n"));
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
            .filter(|served| served.files == revision.files && served.workers == revision.workers);
        let same = served.map(Arc::clone);
        self.said = Some(Arc::clone(&revision));
        let was_refused = self.refusal.take().is_some();
        if was_refused {
            self.health_at = Instant::now();
        }
        if same.is_some() {
            (self.report)(Report::InStep { was_refused });
        }
        Event::Compiled(same.unwrap_or(revision))
    }

    /// Starts Envoy.
    fn start(&mut self, revision: Shared) -> anyhow::Result<Option<Event<Shared>>> {
        let is_first = self.machine.taken().is_none();
        if let Some(reasons) = self.tried(&revision)? {
            self.refuse(&reasons.join("\n"));
            (self.report)(Report::StartRefused(reasons));
            return Ok(Some(Event::StartRefused));
        }
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

    /// Why Envoy refuses a revision that is to take over; `None`: it takes it, or nothing is to be taken over.
    fn tried(&self, revision: &Revision) -> anyhow::Result<Option<Vec<String>>> {
        let Some(Before::Waits(predecessor)) = &self.before else {
            return Ok(None);
        };
        if let Some(plan) = &revision.plan {
            let is_served = |address| predecessor.offer.addresses.contains(&address);
            ports::check_added(&self.file, plan, &is_served)?;
        }
        revision.keep_modules(&self.state)?;
        let folder = self.state.run_folder().join("trial");
        crate::state::create_private(&folder)?;
        let Some(files) = revision.trial(&self.state, &folder) else {
            return Ok(None);
        };
        let requests = &self.requests;
        let reasons = trial::refusals(&self.binary, &self.modules, &folder, &files, &|| {
            requests.stop()
        })
        .map_err(|error| anyhow!("{}", self.told(revision, &format!("{error:#}"))))?;
        // A copy that stays takes room, and nothing else.
        let _ = std::fs::remove_dir_all(&folder);
        let reasons = reasons.iter().map(|reason| self.told(revision, reason));
        Ok(Some(reasons.collect::<Vec<_>>()).filter(|reasons| !reasons.is_empty()))
    }

    fn launch(&mut self, revision: &Revision, is_first: bool) -> anyhow::Result<Envoy> {
        if let Some(plan) = revision.plan.as_ref().filter(|_| is_first)
            && self.before.is_none()
        {
            ports::check(&self.file, plan)?;
        }
        revision.keep_modules(&self.state)?;
        let folder = self.state.run_folder();
        apply::write_all(&folder, &revision.files)?;
        let bootstrap = folder.join("bootstrap.json");
        courier::replace(&bootstrap, &revision.files.bootstrap.to_string())?;
        self.refusals.expect(Teller::Supervisor);
        self.refusals.take();
        let mut options = Options::new(&self.binary, &bootstrap);
        options.concurrency = self.workers(revision);
        options.module_folder = Some(self.modules.clone());
        options.standard_output = StandardOutput::Inherit;
        options.hot_restart = self.hot_restart()?;
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

    /// How many workers Envoy is started with. Where it takes over, not fewer than before: each worker takes a socket over, and
    /// the connections that wait in one that nobody takes are lost.
    fn workers(&mut self, revision: &Revision) -> Option<u32> {
        let Some(Before::Waits(predecessor)) = &self.before else {
            return revision.workers;
        };
        let before = predecessor.offer.workers;
        let usual = || thread::available_parallelism().map_or(1, |count| count.get() as u64);
        match revision.workers {
            Some(wanted) if wanted < before => {
                (self.report)(Report::Warning(&anyhow!(
                    "workers: {wanted} takes effect at the next start: a gateway that takes over has as many as the one \
                     before, {before}"
                )));
                Some(before)
            }
            None if usual() < u64::from(before) => Some(before),
            wanted => wanted,
        }
    }

    /// How Envoy is started. Where it takes over, the gateway before is told that there is no way back from here.
    fn hot_restart(&mut self) -> anyhow::Result<Option<HotRestart>> {
        let Some(folder) = self.sockets.folder().map(Path::to_owned) else {
            return Ok(None);
        };
        self.sockets.restore()?;
        let mut from = None;
        if let Some(Before::Waits(mut predecessor)) = self.before.take() {
            predecessor.starting()?;
            from = Some(predecessor.offer.generation);
            self.before = Some(Before::Yields(predecessor));
        }
        Ok(Some(HotRestart {
            folder,
            from,
            ends_after: self.drain,
        }))
    }

    /// Whether Envoy has ended, or serves now.
    fn look_at_envoy(&mut self) -> anyhow::Result<Option<Event<Shared>>> {
        let Some(envoy) = &mut self.envoy else {
            return Ok(None);
        };
        let Some(starting) = &self.starting else {
            return match ended(envoy.check_running()) {
                Ok(()) => Ok(None),
                Err(_) if self.is_taken_over() => Ok(Some(Event::Drained)),
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
                self.refuse(&reasons.join("\n"));
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
        if let Some(Before::Yields(mut predecessor)) = self.before.take() {
            let inherited = predecessor.serving().and_then(|()| self.state.inherit());
            if let Err(error) = inherited {
                // It is gone; what is served is served.
                (self.report)(Report::Warning(&error));
                self.state.inherit()?;
            }
            self.sockets.inherit();
            self.before = Some(Before::Drains {
                predecessor,
                since: Instant::now(),
            });
        }
        if self.door.is_none() {
            match Door::open(self.state.folder(), self.done.clone()) {
                Ok(door) => self.door = Some(door),
                Err(error) => (self.report)(Report::Warning(&error)),
            }
        }
        (self.report)(Report::Serving {
            plan: revision.plan.as_ref(),
            addresses: listening(envoy)?,
            admin: envoy.admin()?.address(),
            took: self.noticed.elapsed(),
            restarts: self.restarts,
        });
        self.silent = 0;
        // At once: it tells this Envoy whether the file is served.
        self.health_at = Instant::now();
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

    /// Records that the file was refused, and has the next health check, which is due at once, report it to Envoy.
    fn refuse(&mut self, reason: &str) {
        self.refusal = Some(Refusal::now(reason));
        self.health_at = Instant::now();
    }

    fn tell_status(&self) {
        self.manager.status(if self.refusal.is_some() {
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
        let mut rejections = envoy.rejections()?;
        if matches!(self.before, Some(Before::Yields(_))) {
            // Those that the Envoy before counted may be among them. This one's configuration was tried: only what cannot be
            // tried can be refused, and is in its log.
            let reasons = self.refusals.take().into_iter();
            let reasons: Vec<_> = reasons.map(|reason| self.told(revision, &reason)).collect();
            return Ok(Some(reasons).filter(|reasons| !reasons.is_empty()));
        }
        rejections.sort_by(|one, other| one.subscription.cmp(&other.subscription));
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
        let reasons = reasons.iter().map(|reason| self.told(revision, reason));
        Ok(Some(reasons.collect()))
    }

    /// A reason of Envoy's as the user is told it.
    fn told(&self, revision: &Revision, reason: &str) -> String {
        // Envoy knows the module by its copy only.
        let copy = format!("module {}", crate::module::FILE);
        let module = format!("module {}", self.module.display());
        with_place(&self.file, revision.plan.as_ref(), reason).replace(&copy, &module)
    }

    /// Starts this command anew, so that it takes over.
    fn upgrade(&mut self) {
        if self.upgrade.is_some() {
            (self.report)(Report::Warning(&anyhow!(
                "SIGUSR2: a command that takes over runs already"
            )));
            return;
        }
        match Upgrade::start((self.successor)()) {
            Ok(upgrade) => {
                (self.report)(Report::Upgrading);
                self.upgrade = Some(upgrade);
            }
            Err(error) => (self.report)(Report::Warning(&error)),
        }
    }

    /// Whether the command that SIGUSR2 started has ended without taking over.
    fn look_at_upgrade(&mut self) {
        let status = self.upgrade.as_mut().and_then(Upgrade::ended);
        if let Some(status) = status
            && !self.is_taken_over()
        {
            self.upgrade = None;
            (self.report)(Report::Warning(&anyhow!(
                "the command that was to take over ended ({status}); this one goes on"
            )));
        }
    }

    /// Whether the gateway before has ended.
    fn look_before(&mut self) {
        if let Some(Before::Drains { predecessor, since }) = &mut self.before
            && (predecessor.has_ended() || since.elapsed() > self.drain + GRACE * 2)
        {
            self.before = None;
            (self.report)(Report::TookOver);
        }
    }

    /// What a command says that takes over, or asks to.
    fn said(&mut self, said: Said) -> Option<Event<Shared>> {
        let Said { successor, asked } = said;
        let known = self.after.as_ref();
        let progress = known
            .filter(|after| after.successor == successor)
            .map(|after| after.progress);
        match (asked, progress) {
            (Some(asked @ Asked::TakeOver { .. }), None) => {
                if !handover::is_understood(&asked) {
                    successor.refuse("it is of another version; stop it, and start the new one");
                    return None;
                }
                if known.is_some() {
                    successor.busy();
                    return None;
                }
                if let Err(why) = self.can_be_taken_over() {
                    successor.refuse(&why);
                    return None;
                }
                self.after = Some(After {
                    successor,
                    progress: Progress::Offered,
                    until: Instant::now() + OFFER_HOLDS,
                });
                Some(Event::TakeOver)
            }
            (Some(Asked::Starting), Some(Progress::Offered)) => {
                if let Some(after) = &mut self.after {
                    after.progress = Progress::Starts;
                    after.until = Instant::now() + OFFER_HOLDS;
                    after.successor.go();
                }
                None
            }
            (Some(Asked::Serving { process }), Some(Progress::Starts)) => {
                if let Some(after) = &mut self.after {
                    after.progress = Progress::Serves;
                    after.until = Instant::now() + self.drain + GRACE;
                }
                self.manager.main_process(process);
                (self.report)(Report::TakenOver(process));
                Some(Event::TakenOver)
            }
            (None, Some(Progress::Serves)) => {
                // It is gone, and will not end this one's Envoy, whose connections may end in their time.
                if let Some(after) = &mut self.after {
                    after.until = after.until.checked_sub(GRACE).unwrap_or(after.until);
                }
                None
            }
            (_, None) => None,
            (_, Some(progress)) => {
                successor.dismiss();
                self.after = None;
                Some(self.given_up(progress))
            }
        }
    }

    fn given_up(&mut self, progress: Progress) -> Event<Shared> {
        if progress == Progress::Offered {
            (self.report)(Report::Withdrawn);
            Event::Withdrawn
        } else {
            (self.report)(Report::TakeOverFailed);
            self.noticed = Instant::now();
            self.restarts += 1;
            Event::TakeOverFailed
        }
    }

    /// Whether the time of a command that takes over is up.
    fn look_after(&mut self) -> Option<Event<Shared>> {
        let after = self.after.take_if(|after| Instant::now() >= after.until)?;
        after.successor.dismiss();
        match after.progress {
            Progress::Serves => Some(Event::Drained),
            progress => Some(self.given_up(progress)),
        }
    }

    fn is_taken_over(&self) -> bool {
        let mut after = self.after.iter();
        after.any(|after| after.progress == Progress::Serves)
    }

    fn can_be_taken_over(&self) -> Result<(), String> {
        let Some(folder) = self.sockets.folder() else {
            return Err("Envoy cannot hand its sockets over here: it needs a /dev/shm that it may write to, and a \
                        temporary folder with a short path"
                .to_owned());
        };
        if !folder.is_dir() {
            return Err(format!(
                "its Envoy hands sockets over through the folder {}, which somebody has removed; stop the gateway, and start \
                 it again",
                folder.display()
            ));
        }
        if matches!(self.before, Some(Before::Drains { .. })) {
            return Err(
                "it has just taken over itself, and connections of the gateway before drain; try again when they have"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn offer(&mut self) {
        let (Some(after), Some(envoy)) = (&self.after, &self.envoy) else {
            return;
        };
        let offer = listening(envoy).ok().and_then(|listening| {
            Some(Offer {
                generation: envoy.generation()?,
                sockets: self.sockets.folder()?.to_owned(),
                run: self.state.run(),
                addresses: listening.into_iter().map(|(_, address)| address).collect(),
                workers: workers(envoy)?,
            })
        });
        match offer {
            Some(offer) => {
                after.successor.offer(offer);
                (self.report)(Report::Offered);
            }
            // It ends the connection, and with it what was offered.
            None => after.successor.refuse("its Envoy does not answer"),
        }
    }

    /// Leaves everything to the command that has taken over.
    fn release(&mut self) {
        self.door = None;
        self.sockets.leave();
        if let Some(envoy) = &mut self.envoy {
            envoy.taken_over();
        }
        self.state.release();
        if let Some(after) = &self.after {
            after.successor.released();
        }
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
        // Until then counters of the Envoy before may be added to those that tell Envoy's verdict.
        let settles = match &self.before {
            Some(Before::Drains { since, .. }) => FIRST_FLUSH.saturating_sub(since.elapsed()),
            _ => Duration::ZERO,
        };
        self.spawn("apply", move || {
            thread::sleep(settles);
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
                }
                // What only a start takes up (the admin address, workers) is for the next one.
                self.kept(to);
                self.tell_status();
                Event::Applied
            }
            Ok(Applied::Refused(part, reason)) => {
                let reason = with_place(&self.file, to.plan.as_ref(), &reason);
                self.refuse(&reason);
                (self.report)(Report::Declined {
                    part: part.words(),
                    reason,
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
        if self.starting.is_some() || self.after.is_some() || now < self.health_at {
            return;
        }
        if self.change.is_none() && std::mem::take(&mut self.took_memory) {
            memory::give_back();
        }
        let admin = self.envoy.as_ref().and_then(|envoy| envoy.admin().ok());
        if let Some(admin) = admin.cloned() {
            // The next look comes after this one's outcome.
            self.health_at = now + HEALTH * 10;
            // Envoy may have been started anew since it was told last, so each look tells it again.
            let told = refusal::message(&self.file, self.refusal.as_ref());
            let looks = self.spawn("health", move || {
                Done::Healthy(admin.send(refusal::PAGE, &told).is_ok())
            });
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
        apply::forget_all_secrets(&self.state.run_folder());
        self.state.forget_run();
        self.sockets.remove();
        // It waits for this gateway's end, and this process may go on as its parent.
        if let Some(after) = self.after.take() {
            after.successor.dismiss();
        }
        if matches!(exit, Exit::Stopped | Exit::TakenOver) {
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
    apply::apply(&state.run_folder(), courier, &possible, &to.files)
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

/// How many workers Envoy has.
fn workers(envoy: &Envoy) -> Option<u32> {
    let stats = envoy.stats(r"^server\.concurrency$").ok()?;
    stats
        .values()
        .next()
        .and_then(|count| u32::try_from(*count).ok())
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
