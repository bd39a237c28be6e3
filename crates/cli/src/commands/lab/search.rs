//! `outrider lab search`: the highest rate that keeps a latency bound.

use std::time::Duration;

use clap::Args;
use outrider_load::{Load, Pacing, Schedule, SearchEnd, SearchSettings, SearchStep, Trial, search};

use super::requests::{RequestArguments, duration, rate};
use crate::exit::{self, Exit};
use crate::output::{self, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider lab search http://127.0.0.1:10000/ --bound 10ms
  outrider lab search http://127.0.0.1:10000/ --bound 50ms --percentile 99.9 --slice 5s --json";

/// Find the highest rate at which a percentile of the latency keeps a bound
///
/// The rate is doubled until it breaks the bound, then bisected. A rate holds if two of three slices hold; the result is
/// confirmed by a longer run. Where the generator becomes the limit before the target, the result says so.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// Longest latency of the percentile, from the intended send time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    bound: Duration,
    /// Percentile that the bound is for
    #[arg(long, value_name = "P", default_value_t = 99.0, value_parser = percentile)]
    percentile: f64,
    /// First rate, in requests a second
    #[arg(long, value_name = "N", default_value = "500", value_parser = rate)]
    start: f64,
    /// Highest rate that is tried
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = rate)]
    highest: f64,
    /// Length of a slice
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    slice: Duration,
    /// Length of the run that confirms the result
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    confirm: Duration,
    #[command(flatten)]
    requests: RequestArguments,
    /// Print JSON: {"rate", "end", "steps": [{"rate", "holds", "trials"}]}
    #[arg(long)]
    json: bool,
}

fn percentile(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percentile) if percentile > 0.0 && percentile < 100.0 => Ok(percentile),
        _ => Err("a percentile is a number between 0 and 100, for example 99.9".to_owned()),
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    for (name, length) in [
        ("bound", arguments.bound),
        ("slice", arguments.slice),
        ("confirm", arguments.confirm),
    ] {
        anyhow::ensure!(!length.is_zero(), "--{name} must be longer than 0");
    }
    let settings = SearchSettings {
        start: arguments.start,
        highest: arguments.highest,
        percentile: arguments.percentile,
        bound: arguments.bound,
        slice: arguments.slice,
        confirm: arguments.confirm,
        precision: 0.02,
    };
    let (mut session, requests) = arguments.requests.open()?;
    let mut load = |rate: f64, length: Duration| {
        let outcome = session.run(&Load {
            pacing: Pacing::Open(Schedule::uniform(rate, length)),
            requests: requests.clone(),
        })?;
        Ok(settings.judge(&outcome))
    };
    let result = search(&settings, &mut load, &mut view)?;
    if arguments.json {
        output::json(&serde_json::to_value(&result)?);
    } else if let Some(rate) = result.rate {
        output::line(format_args!(
            "{} requests a second keep p{} within {:?}: {}",
            Styled(output::BOLD, rate),
            arguments.percentile,
            arguments.bound,
            result.end
        ));
    } else {
        output::line(format_args!("no rate found: {}", result.end));
    }
    Ok(match result.end {
        SearchEnd::StartBreaks | SearchEnd::NotConfirmed => Exit::Problems,
        _ => Exit::Good,
    })
}

/// A rate that was tried, beside the result.
fn view(step: &SearchStep) {
    let reason = step.trials.iter().rev().find_map(|trial| match trial {
        Trial::Holds => None,
        Trial::Breaks(reason) | Trial::GeneratorBound(reason) => Some(reason.as_str()),
    });
    let is_unknown = step
        .trials
        .iter()
        .any(|trial| matches!(trial, Trial::GeneratorBound(_)));
    let word = match (step.holds, is_unknown) {
        (true, _) => "holds",
        (false, true) => "is not known",
        (false, false) => "breaks",
    };
    let reason = reason
        .map(|reason| format!(" ({reason})"))
        .unwrap_or_default();
    output::note(format_args!("{:>10}/s {word}{reason}", step.rate));
}
