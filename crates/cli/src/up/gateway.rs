//! A gateway's life under `outrider up`: started, kept in step with its file, drained, stopped.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use outrider_envoy_process::{Drained, Envoy, Error, Options, Search, StandardOutput};
use outrider_gateway::Compiled;
use outrider_gateway::envoy::{self, Files};
use outrider_gateway::plan::Plan;
use outrider_plugin_formats::Problem;
use serde_json::Value;

use crate::commands::up::Arguments;
use crate::compiled;
use crate::exit::Exit;
use crate::loader::compile_and_listen;
use crate::output::{self, BAD, BOLD, DIM, GOOD, Styled, WARN};
use crate::up::apply::{self, Applied};
use crate::up::changes::RestartOnly;
use crate::up::courier::{self, Courier};
use crate::up::log_view::{self, Refusals, Teller};
use crate::up::rendered::layout;
use crate::up::signals::StopRequests;
use crate::up::state::State;
use crate::up::watch::Watch;
use crate::up::{changes, module, places, ports, served};

/// How often files and Envoy are looked at.
const LOOK: Duration = Duration::from_millis(50);
const READY_WITHIN: Duration = Duration::from_mins(1);
/// How long Envoy may take to end once it has drained.
const END_WITHIN: Duration = Duration::from_secs(3);

/// Runs a gateway until it is asked to stop.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let begin = Instant::now();
    let since = SystemTime::now();
    let compiled = compile(&arguments.file);
    let Some(plan) = compiled.plan else {
        output::problems(&compiled.problems);
        return Ok(Exit::Problems);
    };
    let found = Search::from_environment(arguments.envoy.clone()).find()?;
    if let Some(warning) = &found.warning {
        output::warning(warning);
    }
    let module = module::find(arguments.module.as_deref())?;
    ports::check(&arguments.file, &plan)?;
    let state = State::take(&arguments.file, arguments.state.as_deref())?;
    let stop = StopRequests::listen()?;

    let files = envoy::files(&plan, &layout(&plan, state.folder()));
    apply::write_all(state.folder(), &files)?;
    let bootstrap = state.file("bootstrap.json");
    courier::replace(&bootstrap, &files.bootstrap.to_string())?;

    let refusals = Refusals::default();
    refusals.expect(Teller::Command);
    let mut options = Options::new(&found.binary, &bootstrap);
    options.concurrency = plan.workers;
    options.module_folder = Some(state.link_module(&module)?.to_path_buf());
    options.standard_output = StandardOutput::Inherit;
    options.log_sink = Some(log_view::sink(arguments.verbosity(), refusals.clone()));
    let mut envoy = Envoy::start(options)?;
    if let Waited::Stopped = wait_ready(&mut envoy, &stop)? {
        return Ok(Exit::Good);
    }
    if let Some(exit) = refused_at_start(&envoy, &refusals, &arguments.file, &plan, &module)? {
        return Ok(exit);
    }

    refusals.expect(Teller::Log);

    output::line(format_args!(
        "{} {} with Envoy {}, ready in {}",
        Styled(GOOD, "serving"),
        Styled(BOLD, arguments.file.display()),
        found.version,
        seconds(begin.elapsed())
    ));
    let admin = envoy.admin()?.address();
    served::print(&plan, &listening(&envoy)?, admin);
    output::line(Styled(
        DIM,
        "Changes are applied when they are saved. Ctrl-C drains and stops.",
    ));

    let mut gateway = Gateway {
        file: arguments.file.clone(),
        state,
        refusals,
        started: RestartOnly::of(&plan),
        plan,
        files,
        watch: Watch::default(),
        told: Vec::new(),
        behind: false,
    };
    gateway.watch.set(paths(&compiled.files), since);
    while !stop.stop() {
        ended(envoy.check_running())?;
        if gateway.watch.changed() {
            gateway.follow(&mut envoy, &stop)?;
        }
        thread::sleep(LOOK);
    }
    wind_down(envoy, arguments.drain_time(), &stop);
    Ok(Exit::Good)
}

/// A running gateway and what it was made from.
#[derive(Debug)]
struct Gateway {
    file: PathBuf,
    state: State,
    refusals: Refusals,
    started: RestartOnly,
    plan: Plan,
    files: Files,
    watch: Watch,
    /// The problems that were told last; none since the file had none.
    told: Vec<Problem>,
    /// Whether the last change was not applied.
    behind: bool,
}

impl Gateway {
    /// Brings Envoy in step with the file, or says why not.
    fn follow(&mut self, envoy: &mut Envoy, stop: &StopRequests) -> anyhow::Result<()> {
        let begin = Instant::now();
        let since = SystemTime::now();
        let Some(compiled) = self.compile_unless(envoy, stop)? else {
            return Ok(());
        };
        self.watch.set(paths(&compiled.files), since);
        let Some(plan) = compiled.plan else {
            // Editors save more than once.
            if self.told != compiled.problems {
                output::problems(&compiled.problems);
                output::note(Styled(WARN, "not applied; what worked goes on"));
                self.told = compiled.problems;
            }
            self.behind = true;
            return Ok(());
        };
        self.told.clear();
        for key in self.started.needs_restart(&self.plan, &plan) {
            output::warning(format_args!(
                "{key} changed; that takes effect when `outrider up` is started again"
            ));
        }
        let files = envoy::files(&plan, &layout(&plan, self.state.folder()));
        let steps = apply::steps(&self.files, &files);
        if steps.is_empty() {
            if std::mem::take(&mut self.behind) {
                output::line(format_args!(
                    "{}: the file is again as what is served",
                    Styled(GOOD, "no problems")
                ));
            }
            self.plan = plan;
            return Ok(());
        }
        let courier = Courier::new(envoy.admin()?, &self.refusals);
        self.refusals.expect(Teller::Command);
        let applied = apply::apply(self.state.folder(), &courier, &self.files, steps);
        self.refusals.expect(Teller::Log);
        match applied {
            Ok(Applied::All) => {
                output::line(format_args!(
                    "{} in {} ms: {}",
                    Styled(GOOD, "applied"),
                    begin.elapsed().as_millis(),
                    changes::summary(&self.plan, &plan).join(", ")
                ));
                for name in replaced_listeners(&self.files.lds, &files.lds) {
                    output::warning(format_args!(
                        "this change replaced listener {name}: its connections drain"
                    ));
                }
                self.plan = plan;
                self.files = files;
                self.behind = false;
            }
            Ok(Applied::Refused(part, why)) => {
                self.behind = true;
                output::note(format_args!(
                    "{} the {} ({}): {}\n{}",
                    Styled(BAD, "Envoy refused"),
                    part.words(),
                    part.file_name(),
                    with_place(&self.file, &plan, &why),
                    Styled(WARN, "not applied; what worked goes on")
                ));
            }
            // The loop tells of an Envoy that has ended.
            Err(error) => output::error(&error.context("the change may be applied in part")),
        }
        Ok(())
    }

    /// Compiles the file; none: the command was asked to stop meanwhile. That a large Wasm module is
    /// compiled keeps nobody from stopping, nor from hearing of an Envoy that has ended.
    fn compile_unless(
        &self,
        envoy: &mut Envoy,
        stop: &StopRequests,
    ) -> anyhow::Result<Option<Compiled>> {
        let (sender, receiver) = channel();
        let file = self.file.clone();
        thread::Builder::new()
            .name("compile".to_owned())
            // Nobody listens any more where the command has been asked to stop.
            .spawn(move || drop(sender.send(compile(&file))))
            .context("no thread can be started")?;
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(compiled) => return Ok(Some(compiled)),
                Err(RecvTimeoutError::Timeout) if stop.stop() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => ended(envoy.check_running())?,
                Err(RecvTimeoutError::Disconnected) => bail!("the file's compilation broke off"),
            }
        }
    }
}

/// The file's plan, with what this machine adds to it.
fn compile(file: &Path) -> Compiled {
    let (mut compiled, lines) = compile_and_listen(file);
    // Envoy shows what plugins log; of its compiled code it finds what is made now.
    for warning in compiled::warnings(&lines) {
        output::warning(warning);
    }
    output::warnings(&compiled.warnings);
    if let Some(plan) = &mut compiled.plan {
        // The document holds text; a folder of another name is gone without.
        let folder = compiled::folder().and_then(|folder| Some(folder.to_str()?.to_owned()));
        plan.filter.compiled_folder = folder;
    }
    compiled
}

/// How waiting for Envoy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    Ready,
    Stopped,
}

fn wait_ready(envoy: &mut Envoy, stop: &StopRequests) -> anyhow::Result<Waited> {
    let begin = Instant::now();
    loop {
        match envoy.wait_ready(Duration::from_millis(100)) {
            Ok(()) => return Ok(Waited::Ready),
            Err(Error::NotReady { .. }) if stop.stop() => return Ok(Waited::Stopped),
            Err(Error::NotReady { .. }) if begin.elapsed() < READY_WITHIN => {}
            other => ended(other)?,
        }
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

/// Says what of the first configuration Envoy refused; it would serve without it.
fn refused_at_start(
    envoy: &Envoy,
    refusals: &Refusals,
    file: &Path,
    plan: &Plan,
    module: &Path,
) -> anyhow::Result<Option<Exit>> {
    let rejections = envoy.rejections()?;
    if rejections.is_empty() {
        return Ok(None);
    }
    // The log comes through a pipe and may lag behind the counters.
    let begin = Instant::now();
    let mut reasons: BTreeSet<String> = BTreeSet::new();
    while reasons.is_empty() && begin.elapsed() < Duration::from_millis(500) {
        thread::sleep(Duration::from_millis(20));
        reasons.extend(refusals.take());
    }
    if reasons.is_empty() {
        reasons.extend(rejections.into_iter().map(|rejection| {
            format!(
                "Envoy refused its configuration ({})",
                rejection.subscription
            )
        }));
    }
    // What Envoy cannot listen at or load is a fault around the command; anything else it refuses is
    // one of the file.
    let around = reasons
        .iter()
        .any(|reason| reason.starts_with("Envoy cannot"));
    for reason in reasons {
        output::note(format_args!(
            "{} {}",
            Styled(BAD, "error:"),
            // Envoy knows the module by the link in the state folder only.
            with_place(file, plan, &reason).replace(
                &format!("module {}", module::FILE),
                &format!("module {}", module.display())
            )
        ));
    }
    Ok(Some(if around {
        Exit::Environment
    } else {
        Exit::Problems
    }))
}

/// Puts the place in the user's file before a reason, where it is known.
fn with_place(file: &Path, plan: &Plan, reason: &str) -> String {
    match places::of_reason(file, plan, reason) {
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

fn wind_down(envoy: Envoy, patience: Duration, stop: &StopRequests) {
    output::line("draining; Ctrl-C again stops at once");
    match envoy.drain(patience, &|| stop.stop_at_once()) {
        Ok(Drained::Idle) => {}
        Ok(Drained::Busy(requests)) => output::warning(format_args!(
            "{} under way {} cut off",
            output::counted(usize::try_from(requests).unwrap_or(usize::MAX), "request"),
            if requests == 1 { "is" } else { "are" }
        )),
        Err(error) => output::warning(error),
    }
    envoy.stop(if stop.stop_at_once() {
        Duration::ZERO
    } else {
        END_WITHIN
    });
    output::line("stopped");
}

fn paths(files: &[String]) -> BTreeSet<PathBuf> {
    files.iter().map(PathBuf::from).collect()
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
