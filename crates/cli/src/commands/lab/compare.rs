//! `outrider lab compare`: what changed between two runs, or differs between two gateways' files.

use std::path::{Path, PathBuf};

use clap::Args;
use outrider_lab::experiment::ExperimentOptions;
use outrider_lab::scenario::{ConfigurationSettings, Scenario};
use outrider_lab_report::{Judgement, Role, compare_runs};
use serde_json::json;

use super::requests::rate;
use super::run::{measure, print};
use super::{read_run, write_report};
use crate::exit::{self, Exit};
use crate::output::{self, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider lab compare before after                          # two runs, each a folder or its run.json
  outrider lab compare before/run.json after/run.json --json
  outrider lab compare before.yaml after.yaml                # two gateways' files: measured now, side by side
  outrider lab compare before.yaml after.yaml --path /cart --host shop.test -H 'x-api-key: 1' --output compared";

/// Compare two runs of a scenario, or two files of gateways
///
/// Of two runs, only what variants add to their baselines is compared, each within its own run, so runs on different days
/// can be; on different machines they cannot. Two gateways' files are measured now: each in an Envoy of its own on
/// loopback, the first one twice for the noise floor, with the same requests in slices that alternate. Listeners get other
/// addresses; upstreams are those of the files, and have to run.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// Run before: its run.json, or the folder that holds it; or a gateway's file
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Run after, or the other gateway's file
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Path of the requests, for gateways' files
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,
    /// Host of the requests
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Header of the requests; again for each
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Requests a second of the slices of which latencies are taken
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = rate)]
    rate: f64,
    /// Minutes of measuring, at most
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    minutes: f64,
    /// Folder for a report
    #[arg(long, short = 'o', value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Envoy to run [default: the installed one]
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
}

/// Whether a path is that of a gateway's file, and not of a run.
fn is_gateway(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Measures two gateways' files.
fn measure_files(arguments: &Arguments) -> anyhow::Result<Exit> {
    anyhow::ensure!(
        arguments.path.starts_with('/'),
        "--path must begin with `/`; got `{}`",
        arguments.path
    );
    for file in [&arguments.before, &arguments.after] {
        anyhow::ensure!(file.is_file(), "cannot read {}", file.display());
    }
    let name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let mut scenario = Scenario::of_configurations(
        ConfigurationSettings {
            before: arguments.before.clone(),
            after: arguments.after.clone(),
            path: arguments.path.clone(),
            host: arguments.host.clone(),
            headers: arguments.headers.clone(),
        },
        arguments.rate,
    );
    scenario.minutes = arguments.minutes;
    scenario.check()?;
    let command = ["outrider", "lab", "compare"].map(str::to_owned);
    let result = measure(
        &scenario,
        &ExperimentOptions {
            outrider: PathBuf::new(),
            modules: PathBuf::new(),
            guests: PathBuf::new(),
            plugins: PathBuf::from("plugins"),
            envoy: arguments.envoy.clone(),
            minutes: None,
            seed: 1,
            command: command
                .into_iter()
                .chain([name(&arguments.before), name(&arguments.after)])
                .collect(),
        },
    )?;
    if let Some(folder) = &arguments.output {
        write_report(&result, folder)?;
        output::note(format_args!(
            "report: {}",
            folder.join("report.html").display()
        ));
    }
    let judgement = Judgement::of(&result);
    if arguments.json {
        output::json(&serde_json::to_value(&judgement)?);
        return Ok(Exit::Good);
    }
    print(&judgement);
    for row in judgement.groups.iter().flat_map(|group| &group.rows) {
        if let (Role::Measured, Some(p99)) = (row.role, row.p99) {
            output::line(format_args!(
                "  {:<28} p99 at {:.0} requests a second: {p99}",
                row.name, arguments.rate
            ));
        }
        if row.role != Role::Baseline {
            let reasons: Vec<String> = row
                .rejected
                .iter()
                .map(|(gate, count)| format!("{count} by {}", gate.describe()))
                .collect();
            output::line(format_args!(
                "  {:<28} {} rounds kept, {} rejected{}{}",
                row.name,
                row.kept,
                row.rejected.values().sum::<usize>(),
                if reasons.is_empty() { "" } else { ": " },
                reasons.join(", ")
            ));
        }
    }
    Ok(Exit::Good)
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match (is_gateway(&arguments.before), is_gateway(&arguments.after)) {
        (true, true) => return measure_files(arguments),
        (false, false) => {}
        _ => {
            anyhow::bail!("compare two runs, or two gateways' files (.yaml): these are one of each")
        }
    }
    let before = read_run(&arguments.before)?;
    let after = read_run(&arguments.after)?;
    if before.environment.processor != after.environment.processor {
        output::warning(format_args!(
            "the runs are of different processors ({}, {}): the difference is that of the machines, too",
            before.environment.processor, after.environment.processor
        ));
    }
    let variants = before
        .variants
        .iter()
        .filter(|variant| variant.role == Role::Measured);
    let mut rows = Vec::new();
    let mut group = "";
    for variant in variants {
        let Some(change) = compare_runs(&before, &after, &variant.group, &variant.name) else {
            continue;
        };
        if arguments.json {
            rows.push(json!({ "group": variant.group, "variant": variant.name, "change": change }));
            continue;
        }
        if group != variant.group {
            group = &variant.group;
            output::line(format_args!("{}", Styled(output::BOLD, group)));
        }
        output::line(format_args!("  {:<28} {change}", variant.name));
        rows.push(json!({}));
    }
    anyhow::ensure!(
        !rows.is_empty(),
        "the two runs have no variant in common that both measured"
    );
    if arguments.json {
        output::json(&rows.into());
    }
    Ok(Exit::Good)
}
