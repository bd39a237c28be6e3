//! `outrider lab stages`: where a request's time goes inside and between proxies.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use outrider_lab::experiment::ExperimentOptions;
use outrider_lab::scenario::Scenario;
use outrider_lab::stages::{FIELDS, Hop, INDEX_HEADER, join};
use outrider_lab_report::{Judgement, StageRow};
use serde_json::json;

use super::requests::time;
use super::run::measure;
use super::write_report;
use crate::exit::{self, Exit};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider lab stages                                # two sidecars of the lab's own, 1,000 requests a second
  outrider lab stages --rate 4000 --output stages    # with a report
  outrider lab stages --format                       # the fields of an access log for proxies of your own
  outrider lab stages gateway=gw.log cart=cart.log   # joins their logs, in the order in which requests pass them";

/// Show where a request's time goes, inside and between Envoys
///
/// Each Envoy logs its own time points in nanoseconds with a request index, and the lab joins them. Without files, a
/// client's sidecar, a server's sidecar and an echo are started on loopback and get requests at a rate. With files, the
/// access logs of Envoys of your own are joined; they have to run on one machine, whose clock they share.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// Access logs to join, each with a name for its proxy
    #[arg(value_name = "NAME=FILE")]
    logs: Vec<String>,
    /// Requests a second
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000.0,
        conflicts_with = "logs"
    )]
    rate: f64,
    /// Seconds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10.0,
        conflicts_with = "logs"
    )]
    seconds: f64,
    /// Folder for a report
    #[arg(long, short = 'o', value_name = "FOLDER", conflicts_with = "logs")]
    output: Option<PathBuf>,
    /// Envoy to run [default: the installed one]
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the fields of the access log, and run nothing
    #[arg(long)]
    format: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    if arguments.format {
        let fields: serde_json::Map<String, serde_json::Value> = FIELDS
            .iter()
            .map(|(name, operator)| ((*name).to_owned(), json!(operator)))
            .collect();
        output::note(format_args!(
            "json_format of an access log; give each request a number in the header `{INDEX_HEADER}`"
        ));
        output::json(&fields.into());
        return Ok(Exit::Good);
    }
    let rows = if arguments.logs.is_empty() {
        measured(arguments)?
    } else {
        joined(&arguments.logs)?
    };
    if arguments.json {
        output::json(&serde_json::to_value(&rows)?);
        return Ok(Exit::Good);
    }
    output::line(format_args!(
        "{:<36}{:>12}{:>12}{:>12}",
        "", "mean", "p50", "p99"
    ));
    for row in &rows {
        output::line(format_args!(
            "{:<36}{:>12}{:>12}{:>12}",
            row.name,
            time(row.mean_us),
            time(row.p50_us),
            time(row.p99_us)
        ));
    }
    let whole: f64 = rows.iter().map(|row| row.mean_us).sum();
    output::line(format_args!("{:<36}{:>12}", "in all", time(whole)));
    Ok(Exit::Good)
}

fn measured(arguments: &Arguments) -> anyhow::Result<Vec<StageRow>> {
    let mut scenario = Scenario::load("stages")?;
    if let Some(stages) = &mut scenario.stages {
        stages.rate = arguments.rate;
        stages.seconds = arguments.seconds;
    }
    scenario.check()?;
    let command = ["outrider", "lab", "stages"].map(str::to_owned).to_vec();
    let run = measure(
        &scenario,
        &ExperimentOptions {
            outrider: PathBuf::new(),
            modules: PathBuf::new(),
            guests: PathBuf::new(),
            plugins: PathBuf::from("plugins"),
            envoy: arguments.envoy.clone(),
            minutes: None,
            seed: 1,
            command,
        },
    )?;
    if let Some(folder) = &arguments.output {
        write_report(&run, folder)?;
        output::note(format_args!(
            "report: {}",
            folder.join("report.html").display()
        ));
    }
    let groups = Judgement::of(&run).groups;
    Ok(groups.into_iter().flat_map(|group| group.stages).collect())
}

fn joined(logs: &[String]) -> anyhow::Result<Vec<StageRow>> {
    let hops = logs
        .iter()
        .map(|log| {
            let (name, file) = log.split_once('=').with_context(|| {
                format!(
                    "a log is written as NAME=FILE, for example gateway=access.log; got `{log}`"
                )
            })?;
            let text = std::fs::read_to_string(Path::new(file))
                .with_context(|| format!("cannot read {file}"))?;
            Hop::read(name, &text)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let joined = join("requests", &hops)?;
    output::note(format_args!(
        "{} requests joined; {} are not in all logs",
        joined.requests, joined.incomplete
    ));
    if joined.negative > 0 {
        output::warning(format_args!(
            "{} stages between proxies came out negative: their clocks differ, or the logs are in the wrong order",
            joined.negative
        ));
    }
    Ok(joined.stages.iter().filter_map(StageRow::of).collect())
}
