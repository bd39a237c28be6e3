//! `outrider plugin test`: runs plugins' cases, without Envoy, and with `--envoy` again on the real one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use clap::Args;
use outrider_lab::Protocol;
use outrider_plugin_api::LoadError;
use outrider_plugin_formats::{BudgetsForm, PluginCode, PluginPackage, Problem};
use outrider_plugin_replay::{Outcome, Subject, Tools, replay};
use outrider_plugin_testkit::{
    Case, CaseLog, CaseResult, Difference, LoadedPlugin, load_cases, run_cases,
};
use serde_json::{Value, json};

use crate::compiled;
use crate::exit::{self, Exit};
use crate::output::{self, BAD, BOLD, DIM, GOOD, Styled, WARN};
use crate::trial::{Place, TrialProcess, entry_of};

const EXAMPLES: &str = "\
Examples:
  outrider plugin test                 the plugin in this folder, or every one below it
  outrider plugin test plugins/hello
  outrider plugin test plugins/hello --envoy     once more, on the real Envoy
  outrider plugin test -v --case greets          cases with such names, with their logs
  outrider plugin test plugins --json | jq -r '.plugins[] | select(.ok | not) | .folder'";

/// Run the cases of plugins, without Envoy or on it
///
/// The cases are the files cases/*.yaml in a plugin's folder: what comes in, and what has to come of
/// it. Upstreams, services that the plugin asks, and the clock are the case's own; waiting takes no
/// time.
///
/// Cases run with every permission (`allow: all`) and the budgets that the manifest asks for. A
/// gateway grants neither unless its file says so: `outrider check` tells what is missing there.
///
/// With --envoy, the cases run without Envoy first, and then on the real one, through a gateway that
/// `outrider up` serves. What needs a clock that is put forward, or facts that only a script can
/// make true, is not replayed; each such case is named with the reason.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// A plugin's folder, or one with plugins below it
    #[arg(value_name = "DIR", default_value = ".")]
    folders: Vec<PathBuf>,
    /// Run the cases on the real Envoy, too; see `outrider envoy --help` for which one
    #[arg(long)]
    envoy: bool,
    /// Load this module in it; otherwise liboutrider.so beside this command, or in ../lib of it
    #[arg(
        long,
        value_name = "FILE",
        env = "OUTRIDER_MODULE",
        hide_env_values = true
    )]
    module: Option<PathBuf>,
    /// Run only the cases whose names contain this text
    #[arg(long = "case", value_name = "TEXT")]
    filter: Option<String>,
    /// Show what plugins log in every case, and every difference, those that follow from a failure too
    #[arg(long, short)]
    verbose: bool,
    /// Print JSON: {"ok", "problems", "plugins": [{"folder", "plugin", "ok", "problems", "cases":
    /// [{"file", "line", "name", "differences": [{"what", "expected", "got"}], "logs": [{"level",
    /// "message"}], "envoy": {"replayed", "reason", "differences"}}]}]}; "envoy" is there with --envoy
    #[arg(long)]
    json: bool,
}

/// What marks a folder as a plugin's.
const MANIFEST: &str = outrider_plugin_store::MANIFEST;
/// What marks a folder as a cache, by common agreement; build systems fill theirs with thousands of
/// files.
const CACHE: &str = "CACHEDIR.TAG";
const DEEPEST: usize = 16;

/// What came of one plugin.
struct Report {
    folder: PathBuf,
    /// Unknown where its manifest cannot be read.
    plugin: Option<String>,
    /// The budgets that its manifest asks for, which its cases run with.
    budgets: Option<BudgetsForm>,
    cases: Vec<Case>,
    results: Vec<CaseResult>,
    /// What came of each case on Envoy; empty without `--envoy`.
    replayed: Vec<Outcome>,
    /// Why its cases could not run.
    problems: Vec<Problem>,
}

impl Report {
    fn is_right(&self) -> bool {
        self.problems.is_empty() && self.wrong().next().is_none()
    }

    /// Each case with what came out differently on Envoy.
    fn told(&self) -> impl Iterator<Item = (&CaseResult, Option<&Outcome>)> {
        let replayed = self.replayed.iter().map(Some);
        self.results
            .iter()
            .zip(replayed.chain(std::iter::repeat(None)))
    }

    /// The cases that came out differently, here or on Envoy.
    fn wrong(&self) -> impl Iterator<Item = (&CaseResult, &[Difference])> {
        self.told().filter_map(|(result, outcome)| {
            let on_envoy = differences_of(outcome);
            (!result.is_right() || !on_envoy.is_empty()).then_some((result, on_envoy))
        })
    }

    /// The cases that did not run on Envoy, with the reasons.
    fn not_replayed(&self) -> impl Iterator<Item = (&CaseResult, &str)> {
        self.told().filter_map(|(result, outcome)| match outcome {
            Some(Outcome::NotReplayed(why)) => Some((result, why.as_str())),
            Some(Outcome::Replayed(_)) | None => None,
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let begun = Instant::now();
    let (folders, problems) = find(&arguments.folders);
    let mut reports: Vec<Report> = Vec::new();
    for folder in folders {
        let report = test(folder, arguments.filter.as_deref());
        if !arguments.json && !arguments.envoy {
            tell(&report, arguments.verbose);
        }
        reports.push(report);
    }
    if arguments.envoy {
        replay_all(&mut reports, arguments)?;
        if !arguments.json {
            for report in &reports {
                tell(report, arguments.verbose);
            }
        }
    }
    let mut problems = problems;
    if let Some(text) = &arguments.filter
        && reports
            .iter()
            .all(|report| report.cases.is_empty() && report.problems.is_empty())
    {
        let message = format!("no case has {text:?} in its name");
        problems.push(Problem {
            file: "--case".to_owned(),
            line: 0,
            column: 0,
            message,
            mend: Some("`outrider plugin test -v` shows all names".to_owned()),
        });
    }
    let is_right = problems.is_empty() && reports.iter().all(Report::is_right);
    if arguments.json {
        output::json(&json!({
            "ok": is_right,
            "problems": problems,
            "plugins": reports.iter().map(to_json).collect::<Vec<_>>(),
        }));
    } else {
        for problem in &problems {
            output::line(output::problem(problem));
        }
        sum_up(&reports, problems.len(), begun);
    }
    Ok(if is_right { Exit::Good } else { Exit::Problems })
}

/// Runs the cases of the plugins that load on the real Envoy: those of one body limit share one.
fn replay_all(reports: &mut [Report], arguments: &Arguments) -> anyhow::Result<()> {
    let mut subjects = Vec::new();
    let mut places = Vec::new();
    for (place, report) in reports.iter().enumerate() {
        let (Some(plugin), true) = (&report.plugin, report.problems.is_empty()) else {
            continue;
        };
        let folder = fs::canonicalize(&report.folder)
            .with_context(|| report.folder.display().to_string())?;
        // One configuration that is not accepted would keep the gateway of all cases from starting.
        let unfit = report.results.iter().enumerate();
        let unfit = unfit.filter(|(_, result)| {
            let mut differences = result.differences.iter();
            differences.any(|difference| difference.what == "the configuration")
        });
        subjects.push(Subject {
            folder,
            plugin: plugin.clone(),
            budgets: json!(report.budgets),
            cases: report.cases.clone(),
            unfit: unfit.map(|(number, _)| number).collect(),
        });
        places.push(place);
    }
    let tools = Tools {
        outrider: std::env::current_exe()?,
        envoy: None,
        module: arguments.module.clone(),
    };
    let outcomes = replay(&subjects, Protocol::Http1, &tools)
        .context("the cases cannot be replayed on Envoy")?;
    for (place, outcome) in places.into_iter().zip(outcomes) {
        if let Some(report) = reports.get_mut(place) {
            report.replayed = outcome;
        }
    }
    Ok(())
}

/// The plugins' folders that `folders` are, or that are below them, each once.
fn find(folders: &[PathBuf]) -> (Vec<PathBuf>, Vec<Problem>) {
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for folder in folders {
        let before = (found.len(), problems.len());
        if !folder.exists() {
            problems.push(problem(folder, "there is no such folder", None));
        } else if !folder.is_dir() {
            problems.push(problem(
                folder,
                "this is a file; cases belong to a plugin that is a folder",
                Some("give the folder that has the plugin.yaml"),
            ));
        } else {
            search(folder, 0, &mut found, &mut problems);
            if (found.len(), problems.len()) == before {
                problems.push(problem(
                    folder,
                    "there is no plugin in this folder, nor below it",
                    Some(
                        "a plugin is a folder with a plugin.yaml in it; `outrider plugin new lua NAME` makes one",
                    ),
                ));
            }
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|folder| {
        let real = fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        seen.insert(real)
    });
    (found, problems)
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>, problems: &mut Vec<Problem>) {
    if folder.join(MANIFEST).is_file() {
        // `./hello` is `hello`, as one would write it oneself.
        let short = folder.strip_prefix(".").unwrap_or(folder);
        let is_here = short.as_os_str().is_empty();
        found.push(if is_here { folder } else { short }.to_owned());
        return;
    }
    if depth == DEEPEST || folder.join(CACHE).is_file() {
        return;
    }
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => {
            problems.push(problem(folder, &format!("cannot be read: {error}"), None));
            return;
        }
    };
    let mut below: Vec<_> = entries
        .into_iter()
        .filter(|entry| {
            // Links are not followed: they may form rings.
            entry.file_type().is_ok_and(|kind| kind.is_dir())
                && !entry.file_name().as_encoded_bytes().starts_with(b".")
        })
        .map(|entry| entry.path())
        .collect();
    below.sort();
    for folder in below {
        search(&folder, depth + 1, found, problems);
    }
}

fn problem(place: &Path, message: &str, mend: Option<&str>) -> Problem {
    Problem {
        file: place.display().to_string(),
        line: 0,
        column: 0,
        message: message.to_owned(),
        mend: mend.map(str::to_owned),
    }
}

fn test(folder: PathBuf, filter: Option<&str>) -> Report {
    let mut report = Report {
        folder,
        plugin: None,
        budgets: None,
        cases: Vec::new(),
        results: Vec::new(),
        replayed: Vec::new(),
        problems: Vec::new(),
    };
    let package = match outrider_plugin_store::open(&report.folder) {
        Ok(package) => package,
        Err(problems) => {
            report.problems = problems;
            return report;
        }
    };
    report.plugin = Some(package.manifest.name.clone());
    report.budgets = package.manifest.budgets;
    let place = Place {
        folder: &package.folder,
        module: match &package.code {
            PluginCode::Module(module) => Some(module.clone()),
            PluginCode::Files(_) => None,
        },
    };
    if let Err(mut problem) = TrialProcess::default().survive(&entry_of(&package), &place) {
        problem.file = report.folder.display().to_string();
        report.problems = vec![problem];
        return report;
    }
    let plugin = load(&package).map_err(|error| vec![LoadedPlugin::problem(&package, &error)]);
    let cases = load_cases(&report.folder.join("cases"));
    match (plugin, cases) {
        (Ok(plugin), Ok(mut cases)) => {
            cases.retain(|case| filter.is_none_or(|text| case.name.contains(text)));
            report.results = run_cases(&plugin, &cases);
            report.cases = cases;
        }
        // All that is wrong at once, the code's and the cases'.
        (plugin, cases) => {
            report.problems = [plugin.err(), cases.err()]
                .into_iter()
                .flatten()
                .flatten()
                .collect();
        }
    }
    report
}

/// Loads a plugin, and says so where it takes long.
fn load(package: &PluginPackage) -> Result<LoadedPlugin, LoadError> {
    let load = || LoadedPlugin::from_package_keeping(package, compiled::folder());
    match &package.code {
        PluginCode::Files(_) => load(),
        PluginCode::Module(module) => {
            compiled::telling(&package.manifest.name, module.bytes.len(), load)
        }
    }
}

fn to_json(report: &Report) -> Value {
    json!({
        "folder": report.folder.display().to_string(),
        "plugin": report.plugin,
        "ok": report.is_right(),
        "problems": report.problems,
        "cases": report.told().map(case_to_json).collect::<Vec<_>>(),
    })
}

fn case_to_json((result, outcome): (&CaseResult, Option<&Outcome>)) -> Value {
    let mut case = json!(result);
    if let (Some(outcome), Some(members)) = (outcome, case.as_object_mut()) {
        let on_envoy = match outcome {
            Outcome::Replayed(differences) => {
                json!({"replayed": true, "differences": differences})
            }
            Outcome::NotReplayed(why) => json!({"replayed": false, "reason": why}),
        };
        members.insert("envoy".to_owned(), on_envoy);
    }
    case
}

fn tell(report: &Report, verbose: bool) {
    let folder = report.folder.display();
    let name = match &report.plugin {
        Some(plugin) if !report.folder.ends_with(plugin) => format!(
            "{} {}",
            Styled(BOLD, plugin),
            Styled(DIM, format!("({folder})"))
        ),
        _ => Styled(BOLD, folder).to_string(),
    };
    let ran = report.results.len();
    if report.is_right() {
        let cases = output::counted(ran, "case");
        output::line(format_args!("{}    {name}: {cases}", Styled(GOOD, "ok")));
        if verbose {
            for (result, on_envoy) in report.told() {
                tell_case(result, differences_of(on_envoy), report, verbose);
            }
        }
    } else if report.problems.is_empty() {
        let wrong = report.wrong().count();
        output::line(format_args!(
            "{} {name}: {wrong} of {}",
            Styled(BAD, "wrong"),
            output::counted(ran, "case")
        ));
        tell_wrong(report, verbose);
        output::line("");
    } else {
        output::line(format_args!(
            "{} {name}: its cases cannot run",
            Styled(BAD, "wrong")
        ));
        for problem in &report.problems {
            output::line(output::problem(problem));
        }
        output::line("");
    }
    for (result, why) in report.not_replayed() {
        output::line(format_args!(
            "  {} {}:{}: {}: {why}",
            Styled(WARN, "not replayed:"),
            result.file,
            result.line,
            result.name
        ));
    }
}

/// Tells each failure of the plugin once, with the first case that shows it; with `verbose`, everything.
fn tell_wrong(report: &Report, verbose: bool) {
    if verbose {
        for (result, on_envoy) in report.told() {
            tell_case(result, differences_of(on_envoy), report, verbose);
        }
        return;
    }
    let mut told: Vec<&str> = Vec::new();
    for (result, on_envoy) in report.wrong() {
        let failure = failure_of(result);
        if let Some(failure) = failure {
            if told.contains(&failure) {
                continue;
            }
            told.push(failure);
        }
        tell_case(result, on_envoy, report, verbose);
        let same: Vec<String> = (report.wrong())
            .map(|(other, _)| other)
            .filter(|other| failure.is_some() && failure_of(other) == failure)
            .filter(|other| !std::ptr::eq(*other, result))
            .map(|other| format!("{}:{}: {}", other.file, other.line, other.name))
            .collect();
        if !same.is_empty() {
            let cases = output::counted(same.len(), "more case");
            output::line(format_args!("    the same in {cases}:"));
            for case in same {
                output::line(format_args!("      {case}"));
            }
        }
    }
}

/// What the plugin failed with where it should not have, without Envoy.
fn failure_of(result: &CaseResult) -> Option<&str> {
    let failure = result.differences.iter().find(|item| item.is_failure());
    failure.map(|failure| failure.got.as_str())
}

fn differences_of(outcome: Option<&Outcome>) -> &[Difference] {
    match outcome {
        Some(Outcome::Replayed(differences)) => differences,
        Some(Outcome::NotReplayed(_)) | None => &[],
    }
}

fn tell_case(result: &CaseResult, on_envoy: &[Difference], report: &Report, verbose: bool) {
    let CaseResult {
        file,
        line,
        name,
        differences,
        logs,
    } = result;
    output::line(format_args!(
        "{}: {name}",
        Styled(BOLD, format!("{file}:{line}"))
    ));
    let place = if report.replayed.is_empty() {
        ""
    } else {
        "without Envoy: "
    };
    tell_differences(differences, place, verbose);
    tell_differences(on_envoy, "on Envoy: ", verbose);
    for CaseLog { level, message } in logs {
        if !verbose && matches!(*level, "trace" | "debug") {
            continue;
        }
        output::line(format_args!(
            "    {} {message}",
            Styled(DIM, format!("{level}:"))
        ));
    }
}

/// A failure of the plugin is told alone: most other differences follow from it.
fn tell_differences(differences: &[Difference], place: &str, verbose: bool) {
    let is_failed = differences.iter().any(Difference::is_failure);
    let is_folded = |difference: &&Difference| is_failed && !verbose && !difference.is_failure();
    let folded = differences.iter().filter(is_folded).count();
    for difference in differences.iter().filter(|item| !is_folded(item)) {
        let Difference {
            what,
            expected,
            got,
        } = difference;
        output::line(format_args!(
            "    {place}{what}\n      expected: {}\n      got:      {}",
            Styled(GOOD, expected),
            Styled(BAD, got)
        ));
    }
    if folded > 0 {
        let others = output::counted(folded, "other difference");
        output::line(format_args!(
            "    {place}{others} may follow from it; -v shows them"
        ));
    }
}

fn sum_up(reports: &[Report], problems: usize, begun: Instant) {
    let ran: usize = reports.iter().map(|report| report.results.len()).sum();
    let wrong: usize = reports.iter().map(|report| report.wrong().count()).sum();
    let problems = problems
        + reports
            .iter()
            .map(|report| report.problems.len())
            .sum::<usize>();
    let cases = format!(
        "{} of {}",
        output::counted(ran, "case"),
        output::counted(reports.len(), "plugin")
    );
    let not_replayed: usize = reports
        .iter()
        .map(|report| report.not_replayed().count())
        .sum();
    let cases = if reports.iter().any(|report| !report.replayed.is_empty()) {
        format!("{cases}, {} of them on Envoy, too", ran - not_replayed)
    } else {
        cases
    };
    let mut parts = Vec::new();
    if wrong > 0 {
        parts.push(format!("{wrong} wrong"));
    }
    if problems > 0 {
        parts.push(output::counted(problems, "problem"));
    }
    let verdict = if parts.is_empty() {
        Styled(GOOD, "all as they should be".to_owned())
    } else {
        Styled(BAD, parts.join(", "))
    };
    let took = format!("{} ms", begun.elapsed().as_millis());
    output::line(format_args!(
        "{cases}: {verdict} {}",
        Styled(DIM, format!("({took})"))
    ));
}
