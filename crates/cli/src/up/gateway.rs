//! `outrider up`: gives a gateway to the supervisor, and says what it reports.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::Search;
use outrider_gateway::Plan;
use outrider_plugin_formats::Problem;
use outrider_supervisor::{self as supervisor, Compilation, Report, Settings};

use crate::commands::up::Arguments;
use crate::compiled;
use crate::exit::Exit;
use crate::loader::compile_watched;
use crate::output::{self, BAD, BOLD, DIM, GOOD, Styled, WARN};
use crate::up::changes::RestartOnly;
use crate::up::{changes, log_view, served};

const TAKE_OVER: &str = "--take-over";
/// Editors save more than once: what follows within this time is not told again.
const SAME_SAVE: Duration = Duration::from_secs(1);

/// Runs a gateway until it is asked to stop.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let found = Search::from_environment(arguments.envoy.clone()).find()?;
    if let Some(warning) = &found.warning {
        output::warning(warning);
    }
    let file = arguments.file.clone();
    let settings = Settings {
        file: arguments.file.clone(),
        envoy: found.binary.clone(),
        module: supervisor::find_module(arguments.module.as_deref())?,
        state: arguments.state.clone(),
        drain: arguments.drain_time(),
        is_strict: arguments.strict,
        takes_over: arguments.take_over,
        successor: successor()?,
        compile: Arc::new(move || compile(&file)),
        log: log_view::show(arguments.verbosity()),
    };
    // From here on nobody who does not read holds up the gateway.
    output::queue();
    let mut words = Words {
        file: arguments.file.clone(),
        version: found.version.to_string(),
        served: false,
        told: Vec::new(),
        told_at: Instant::now(),
        started: None,
    };
    let exit = supervisor::run(settings, &mut |report| words.say(report));
    Ok(match exit? {
        supervisor::Exit::Stopped | supervisor::Exit::TakenOver => Exit::Good,
        supervisor::Exit::Followed(code) => Exit::Of(code),
        supervisor::Exit::Refused => Exit::Problems,
        supervisor::Exit::EnvoyEnded => Exit::Environment,
    })
}

/// This command again, to take over from itself. Its file is found now: later another one may be in its place, which is
/// what is wanted, or the folder that this process runs in may be gone.
fn successor() -> anyhow::Result<Box<dyn Fn() -> Command>> {
    let program = std::env::current_exe().context("this command's own file is not known")?;
    Ok(Box::new(move || {
        let mut command = Command::new(&program);
        let arguments = std::env::args_os().skip(1);
        command
            .args(arguments.filter(|argument| argument != TAKE_OVER))
            .arg(TAKE_OVER);
        command
    }))
}

/// What was said, as far as it decides what is said next.
struct Words {
    file: PathBuf,
    version: String,
    /// Whether anything was served yet.
    served: bool,
    /// The problems that were told last; none since the file had none.
    told: Vec<Problem>,
    /// When what came of the file was told last.
    told_at: Instant,
    started: Option<RestartOnly>,
}

impl Words {
    fn say(&mut self, report: Report<'_>) {
        let is_outcome = matches!(
            report,
            Report::Refused(_)
                | Report::Serving { .. }
                | Report::Applied { .. }
                | Report::InStep { .. }
                | Report::Declined { .. }
        );
        self.tell(report);
        if is_outcome {
            self.told_at = Instant::now();
        }
    }

    fn tell(&mut self, report: Report<'_>) {
        match report {
            Report::Refused(problems) => self.refused(problems),
            Report::Fallback => output::warning(
                "the file is refused, so the last configuration that was good is served; --strict ends instead",
            ),
            Report::Compiled { before, plan } => self.compiled(before, plan),
            Report::Serving {
                plan,
                addresses,
                admin,
                took,
                restarts,
            } => {
                output::line(format_args!(
                    "{} {} with Envoy {}, ready in {}",
                    Styled(
                        GOOD,
                        if restarts > 0 {
                            "serving again"
                        } else {
                            "serving"
                        }
                    ),
                    Styled(BOLD, self.file.display()),
                    self.version,
                    seconds(took)
                ));
                if !std::mem::replace(&mut self.served, true) {
                    served::print(plan, &addresses, admin);
                    output::line(Styled(
                        DIM,
                        "Changes are applied when they are saved. Ctrl-C drains and stops.",
                    ));
                }
            }
            Report::Applied {
                before,
                plan,
                took,
                replaced,
            } => {
                let changes = match (before, plan) {
                    (Some(before), Some(plan)) => changes::summary(before, plan).join(", "),
                    _ => "the file, in place of what was served before".to_owned(),
                };
                output::line(format_args!(
                    "{} in {} ms: {changes}",
                    Styled(GOOD, "applied"),
                    took.as_millis()
                ));
                for name in replaced {
                    output::warning(format_args!(
                        "this change replaced listener {name}: its connections drain"
                    ));
                }
            }
            Report::InStep { was_refused: true } => output::line(format_args!(
                "{}: the file is again as what is served",
                Styled(GOOD, "no problems")
            )),
            Report::InStep { was_refused: false } if self.told_at.elapsed() > SAME_SAVE => {
                output::line("no changes: the file says what is served");
            }
            Report::Declined { part, reason } => output::note(format_args!(
                "{} the {part}: {reason}\n{}",
                Styled(BAD, "Envoy refused"),
                Styled(WARN, "not applied; what worked goes on")
            )),
            Report::BrokeOff { error } => output::note(format_args!(
                "{} the change broke off and may be applied in part; it is tried again: {error:#}",
                Styled(BAD, "error:")
            )),
            Report::StartRefused(reasons) => {
                for reason in reasons {
                    output::note(format_args!("{} {reason}", Styled(BAD, "error:")));
                }
                if self.served {
                    output::note(Styled(WARN, "Envoy is started again"));
                }
            }
            Report::Ended(error) => {
                output::error(error);
                output::note(Styled(WARN, "Envoy is started again"));
            }
            Report::Silent(time) => output::warning(format_args!(
                "Envoy has not answered for {} s; it is stopped, or hangs",
                time.as_secs()
            )),
            Report::Answers => output::line("Envoy answers again"),
            Report::Reopened(Ok(())) => output::line("log files are open again"),
            Report::Reopened(Err(error)) => {
                output::warning(format_args!("log files cannot be opened again: {error:#}"));
            }
            Report::Warning(error) => output::warning(format_args!("{error:#}")),
            Report::NobodyBefore => {
                output::note("no gateway runs with this state folder: nothing to take over");
            }
            Report::Offered => output::line("another command begins to take over"),
            Report::Withdrawn => output::line("the other command gave up; what is served goes on"),
            Report::TakeOverFailed => output::warning(
                "the other command failed when it had the listening sockets; Envoy is started anew",
            ),
            Report::TakenOver(process) => output::line(format_args!(
                "{} by process {process}; connections drain",
                Styled(GOOD, "taken over")
            )),
            Report::TookOver => output::line("the gateway before has drained and ended"),
            Report::Upgrading => output::line("SIGUSR2: starting this command anew, to take over"),
            Report::Draining => output::line("draining; Ctrl-C again stops at once"),
            Report::CutOff(requests) => output::warning(format_args!(
                "{} under way {} cut off",
                output::counted(usize::try_from(requests).unwrap_or(usize::MAX), "request"),
                if requests == 1 { "is" } else { "are" }
            )),
            Report::Stopped => output::line("stopped"),
            _ => {}
        }
    }

    fn refused(&mut self, problems: &[Problem]) {
        if self.told == problems {
            if self.told_at.elapsed() > SAME_SAVE {
                output::note(format_args!(
                    "{} for the same {} as before; what worked goes on",
                    Styled(BAD, "still refused,"),
                    if problems.len() == 1 {
                        "problem"
                    } else {
                        "problems"
                    }
                ));
            }
            return;
        }
        output::problems(problems);
        if self.served {
            output::note(Styled(WARN, "not applied; what worked goes on"));
        }
        self.told = problems.to_vec();
    }

    fn compiled(&mut self, before: Option<&Plan>, plan: &Plan) {
        self.told.clear();
        let started = *self.started.get_or_insert_with(|| RestartOnly::of(plan));
        for key in before.map_or_else(Vec::new, |before| started.needs_restart(before, plan)) {
            output::warning(format_args!(
                "{key} changed; that takes effect when `outrider up` is started again"
            ));
        }
    }
}

/// The file's plan, with what this machine adds to it.
fn compile(file: &std::path::Path) -> Compilation {
    let (mut compiled, lines, seen) = compile_watched(file);
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
    Compilation { compiled, seen }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
