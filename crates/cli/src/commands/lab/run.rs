//! `outrider lab run`: a scenario, measured and reported.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use outrider_lab::experiment::{self, ExperimentOptions, ExperimentProgress};
use outrider_lab::scenario::Scenario;
use outrider_lab_report::{Judgement, Run};

use super::write_report;
use crate::exit::{self, Exit};
use crate::output::{self, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider lab run mechanisms
  outrider lab run mechanisms --minutes 2 --output try
  outrider lab run sidecars                           # two sidecars, with and without telemetry, at ten rates
  outrider lab run routes                             # 1, 100, 10,000 routes with a plugin's configuration
  outrider lab run updates                            # latency while the gateway changes ten times a second
  outrider lab run mechanisms --print > mine.yaml     # a scenario of your own, to begin with
  outrider lab run mine.yaml";

/// Measure a scenario on this machine, and write a report
///
/// Everything that it needs is started on loopback, and stopped at the end: Envoys, an upstream, a generator. Slices that were disturbed are kept in the result, shown, and not used.
#[derive(Debug, Args)]
#[command(after_help = format!("Scenarios: {}\n\n{EXAMPLES}\n\n{}", Scenario::names().collect::<Vec<_>>().join(", "), exit::HELP))]
pub(super) struct Arguments {
    /// Name of a scenario, or a file with one
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Folder for the report [default: lab-SCENARIO-TIME]
    #[arg(long, short = 'o', value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Minutes of measuring, in place of the scenario's
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Seed of the order of the slices and of the intervals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Folder of the modules for Envoy [default: that of this command]
    #[arg(long, value_name = "FOLDER")]
    modules: Option<PathBuf>,
    /// Folder of the Wasm plugins that are measured, each LANGUAGE/plugin.wasm
    #[arg(long, value_name = "FOLDER", default_value = "crates/lab/guests")]
    guests: PathBuf,
    /// Folder of the plugins that ship, each LANGUAGE/NAME
    #[arg(long, value_name = "FOLDER", default_value = "plugins")]
    plugins: PathBuf,
    /// Envoy to run [default: the installed one]
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    /// Print the scenario's file, and run nothing
    #[arg(long)]
    print: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let scenario = Scenario::load(&arguments.scenario)?;
    if arguments.print {
        match Scenario::text(&arguments.scenario) {
            Some(text) => output::raw(text.as_bytes()),
            None => output::raw(&std::fs::read(&arguments.scenario)?),
        }
        return Ok(Exit::Good);
    }
    if let Some(minutes) = arguments.minutes {
        anyhow::ensure!(
            minutes > 0.0 && minutes <= 24.0 * 60.0,
            "--minutes must be above 0 and at most a day; got {minutes}"
        );
    }
    let mut command = vec!["outrider".to_owned(), "lab".to_owned(), "run".to_owned()];
    if let Some(minutes) = arguments.minutes {
        command.extend(["--minutes".to_owned(), minutes.to_string()]);
    }
    command.extend(["--seed".to_owned(), arguments.seed.to_string()]);
    // Of a file, the name is enough: the report must not name folders of the machine.
    let name = PathBuf::from(&arguments.scenario)
        .file_stem()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    command.push(name.clone());
    let result = measure(
        &scenario,
        &ExperimentOptions {
            outrider: PathBuf::new(),
            modules: arguments.modules.clone().unwrap_or_default(),
            guests: arguments.guests.clone(),
            plugins: arguments.plugins.clone(),
            envoy: arguments.envoy.clone(),
            minutes: arguments.minutes,
            seed: arguments.seed,
            command,
        },
    )?;
    let folder = arguments.output.clone().unwrap_or_else(|| {
        let time: String = result
            .started
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect();
        PathBuf::from(format!("lab-{name}-{time}"))
    });
    write_report(&result, &folder)?;
    print(&Judgement::of(&result));
    output::line(format_args!(
        "\nreport: {}",
        folder.join("report.html").display()
    ));
    Ok(Exit::Good)
}

/// Runs a scenario with this command, and the modules beside it where no folder of theirs is named; shows the progress.
pub(super) fn measure(scenario: &Scenario, options: &ExperimentOptions) -> anyhow::Result<Run> {
    let outrider = std::env::current_exe().context("cannot find this command")?;
    let beside = outrider
        .parent()
        .context("this command is in no folder")?
        .to_owned();
    let options = ExperimentOptions {
        modules: if options.modules.as_os_str().is_empty() {
            beside
        } else {
            options.modules.clone()
        },
        outrider,
        ..options.clone()
    };
    let mut say = |text: &str| output::note(format_args!("{}", Styled(output::DIM, text)));
    let result = experiment::run(scenario, &options, &mut say, &mut view)?;
    if std::io::stderr().is_terminal() {
        output::note("");
    }
    Ok(result)
}

fn view(progress: &ExperimentProgress) {
    let text = format!(
        "{} rounds, {} slices ({} rejected), {} min {:02} s left",
        progress.rounds,
        progress.slices,
        progress.rejected,
        progress.left.as_secs() / 60,
        progress.left.as_secs() % 60
    );
    if std::io::stderr().is_terminal() {
        let mut terminal = std::io::stderr().lock();
        let _ = write!(terminal, "\r\x1b[K{text}");
        let _ = terminal.flush();
    } else {
        output::note(text);
    }
}

/// The verdicts, in a few lines for each group.
pub(super) fn print(judgement: &Judgement) {
    for group in &judgement.groups {
        let kept = group.rows.iter().any(|row| row.kept > 0);
        let baseline = match (group.rows.is_empty(), kept) {
            (true, _) => String::new(),
            (_, false) => ": no slice passed the gates, so nothing was shown".to_owned(),
            _ => format!(
                ": {:.2} µs of CPU per request of the baseline",
                group.baseline_us
            ),
        };
        output::line(format_args!(
            "\n{}{baseline}",
            Styled(output::BOLD, &group.name)
        ));
        for row in &group.rows {
            if let Some(added) = row.added {
                output::line(format_args!("  {:<28} {added}", row.name));
            }
        }
        for curve in &group.curves {
            let text = match curve.highest_sustained() {
                Some(rate) => format!("keeps up to {rate:.0} requests a second"),
                None => "does not keep up with the lowest rate".to_owned(),
            };
            output::line(format_args!("  {:<28} {text}", curve.name));
        }
        for measure in &group.measures {
            output::line(format_args!(
                "  {:<28} {}: {:.1} {}",
                measure.name, measure.what, measure.median, measure.unit
            ));
        }
    }
}
