//! `outrider lab load`: a load on a URL, and how its answers were.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::{ArgGroup, Args};
use outrider_load::{
    Arrivals, Load, PERCENTILES, Pacing, Phase, PhaseSummary, Progress, Schedule, Summary,
};

use super::requests::{RequestArguments, duration, rate, time};

use crate::exit::{self, Exit};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider lab load http://127.0.0.1:10000/ --rate 1000
  outrider lab load http://127.0.0.1:10000/ --rate 5000 --poisson --duration 30s --warm-up 2s
  outrider lab load http://127.0.0.1:10000/ --steps 1000:10s,2000:10s,4000:10s
  outrider lab load http://127.0.0.1:10000/ --ramp 100-5000:60s
  outrider lab load http://127.0.0.1:10000/ --max --connections 64 --threads 2
  outrider lab load https://shop.test/cart -X POST -H 'content-type: application/json' --body '{\"n\":1}' --rate 100
  outrider lab load http://127.0.0.1:50051/pkg.Service/Call --protocol grpc --body-file message.bin --rate 100

A request file (--requests) holds requests as HTTP/1.1 writes them, separated by lines of `###`; they are sent in turns.";

/// Send requests by a schedule, and report latencies from the intended send times
///
/// With --rate, --steps or --ramp, requests are sent at their times whatever the answers do (open loop), and the latency
/// of each counts from the time at which it was meant to be sent: while the target stalls, requests become late, and that
/// counts. The service time, from the actual send, stands beside it. With --max each connection sends its next request
/// when the answer is there (closed loop): the most that the target serves to so many connections.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
#[command(group = ArgGroup::new("pace").required(true).args(["rate", "max", "steps", "ramp"]))]
pub(super) struct Arguments {
    /// Requests a second
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// As many requests as the connections carry: a closed loop
    #[arg(long)]
    max: bool,
    /// Rates one after another, each for a time
    #[arg(long, value_name = "RATE:TIME,…", value_delimiter = ',', value_parser = step)]
    steps: Vec<Step>,
    /// A rate that changes linearly
    #[arg(long, value_name = "FROM-TO:TIME", value_parser = ramp)]
    ramp: Option<Step>,
    /// Length of the load, with --rate and --max
    #[arg(long, short = 'd', value_name = "TIME", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Time before it that is not counted, at the first rate
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    warm_up: Duration,
    /// Random distances between requests, as independent clients have them, in place of equal ones
    #[arg(long, conflicts_with = "max")]
    poisson: bool,
    /// Seed of the random distances
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    requests: RequestArguments,
    /// Print JSON, with the histograms
    #[arg(long)]
    json: bool,
}

/// Rates and length of a phase.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: f64,
    to: f64,
    duration: Duration,
}

fn step(text: &str) -> Result<Step, String> {
    let (at, length) = text
        .split_once(':')
        .ok_or("a step is written as RATE:TIME, for example 1000:10s")?;
    let at = rate(at)?;
    Ok(Step {
        from: at,
        to: at,
        duration: duration(length)?,
    })
}

fn ramp(text: &str) -> Result<Step, String> {
    const FORM: &str = "a ramp is written as FROM-TO:TIME, for example 100-5000:60s";
    let (rates, length) = text.split_once(':').ok_or(FORM)?;
    let (from, to) = rates.split_once('-').ok_or(FORM)?;
    Ok(Step {
        from: rate(from)?,
        to: rate(to)?,
        duration: duration(length)?,
    })
}

impl Arguments {
    fn pacing(&self) -> Pacing {
        if self.max {
            return Pacing::Closed {
                warm_up: self.warm_up.as_secs_f64(),
                seconds: self.duration.as_secs_f64(),
            };
        }
        let phase = |step: &Step| Phase {
            from: step.from,
            to: step.to,
            seconds: step.duration.as_secs_f64(),
            is_measured: true,
        };
        let mut phases: Vec<Phase> = self.steps.iter().chain(&self.ramp).map(phase).collect();
        phases.extend(self.rate.map(|rate| Phase::constant(rate, self.duration)));
        if let (false, Some(first)) = (self.warm_up.is_zero(), phases.first().copied()) {
            let warm_up = Phase {
                is_measured: false,
                ..Phase::constant(first.from, self.warm_up)
            };
            phases.insert(0, warm_up);
        }
        Pacing::Open(Schedule {
            arrivals: if self.poisson {
                Arrivals::Poisson
            } else {
                Arrivals::Uniform
            },
            phases,
            seed: self.seed,
        })
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let (mut session, requests) = arguments.requests.open()?;
    let pacing = arguments.pacing();
    let length = pacing.duration().as_secs_f64();
    let is_watched = std::io::stderr().is_terminal() && !arguments.json;
    let load = Load { pacing, requests };
    let outcome = session.run_observed(&load, &mut |progress| {
        if is_watched {
            view(progress, length);
        }
    })?;
    if is_watched {
        clear_view();
    }
    let summary = Summary::of(&outcome, &load.pacing);
    if arguments.json {
        output::json(&serde_json::to_value(&summary)?);
    } else {
        print(&summary);
    }
    Ok(if summary.total.succeeded == 0 {
        Exit::Environment
    } else {
        Exit::Good
    })
}

/// Rewrites the terminal's line with the state of the run.
fn view(progress: &Progress, length: f64) {
    let mut terminal = std::io::stderr().lock();
    let _ = write!(
        terminal,
        "\r\x1b[K{:>5.1} s of {length:.0}   {} sent   {} failed   p50 {}   p99 {}",
        progress.seconds,
        progress.sent,
        progress.failed,
        time(progress.p50 as f64 / 1e3),
        time(progress.p99 as f64 / 1e3),
    );
    let _ = terminal.flush();
}

fn clear_view() {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
}

fn print(summary: &Summary) {
    for (phase, number) in summary.phases.iter().zip(1..) {
        output::line(format_args!("phase {number}"));
        print_phase(phase);
        output::line("");
    }
    if !summary.phases.is_empty() {
        output::line("all phases");
    }
    print_phase(&summary.total);
    output::line(format_args!(
        "  {:<12} {:.2} µs of CPU per request; {}",
        "generator", summary.generator_us_per_request, summary.limit
    ));
    if summary.generator_bound {
        output::warning("these numbers are those of the generator, not of the target");
    }
}

fn print_phase(phase: &PhaseSummary) {
    output::line(format_args!(
        "  {:<12} {} due, {} sent, {} succeeded ({:.1}/s)",
        "requests", phase.due, phase.sent, phase.succeeded, phase.rate
    ));
    if phase.late + phase.unsent > 0 {
        output::line(format_args!(
            "  {:<12} {} sent more than 1 ms after their time, {} never sent",
            "late", phase.late, phase.unsent
        ));
    }
    for (kind, count) in &phase.errors {
        output::line(format_args!(
            "  {:<12} {count} {}",
            "failed",
            kind.describe()
        ));
    }
    if phase.statuses.len() > 1 || !phase.errors.is_empty() {
        let counts: Vec<String> = phase
            .statuses
            .iter()
            .map(|(status, count)| format!("{status}: {count}"))
            .collect();
        output::line(format_args!("  {:<12} {}", "statuses", counts.join(", ")));
    }
    let heads: Vec<String> = PERCENTILES
        .iter()
        .map(|percentile| format!("{:>10}", format!("p{percentile}")))
        .collect();
    output::line(format_args!(
        "  {:<12} {:>10}{}{:>10}",
        "",
        "mean",
        heads.concat(),
        "max"
    ));
    for (name, times) in [
        ("latency", &phase.latency_us),
        ("service time", &phase.service_us),
    ] {
        let values: Vec<String> = PERCENTILES
            .iter()
            .map(|percentile| format!("{:>10}", time(times.percentile(*percentile))))
            .collect();
        output::line(format_args!(
            "  {name:<12} {:>10}{}{:>10}",
            time(times.mean),
            values.concat(),
            time(times.max)
        ));
    }
}
