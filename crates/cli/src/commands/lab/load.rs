//! `outrider lab load`: a load on a URL, and how its answers were.

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgGroup, Args, ValueEnum};
use outrider_load::{
    Arrivals, Load, PERCENTILES, Pacing, Phase, PhaseSummary, Progress, Protocol, RequestTemplate,
    Schedule, Session, SessionOptions, Summary, Target, Trust, parse_request_file,
};

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
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(super) struct Arguments {
    /// Target; its path is that of the requests
    #[arg(value_name = "URL")]
    url: String,
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
    /// Connections that are kept
    #[arg(long, short = 'c', value_name = "N", default_value_t = 16)]
    connections: usize,
    /// Requests at the same time on one HTTP/2 connection
    #[arg(long, value_name = "N", default_value_t = 16)]
    streams: usize,
    /// Threads that send
    #[arg(long, short = 't', value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Protocol of the requests
    #[arg(long, value_name = "PROTOCOL", default_value = "http1")]
    protocol: ProtocolArgument,
    /// Method
    #[arg(
        long,
        short = 'X',
        value_name = "METHOD",
        default_value = "GET",
        conflicts_with = "requests"
    )]
    method: String,
    /// Header of the requests; again for each
    #[arg(
        long = "header",
        short = 'H',
        value_name = "NAME: VALUE",
        conflicts_with = "requests"
    )]
    headers: Vec<String>,
    /// Body of the requests
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["body_file", "requests"])]
    body: Option<String>,
    /// File with the body; for gRPC, the message without its prefix
    #[arg(long, value_name = "FILE", conflicts_with = "requests")]
    body_file: Option<PathBuf>,
    /// File with requests
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Time limit of a request, from its send
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// Statuses that count as success
    #[arg(long, value_name = "FROM-TO", default_value = "200-299", value_parser = statuses)]
    expect: RangeInclusive<u16>,
    /// Accept any certificate
    #[arg(long, short = 'k', conflicts_with = "ca")]
    insecure: bool,
    /// File with the certificate of the authority to trust, PEM
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print JSON, with the histograms
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ProtocolArgument {
    /// HTTP/1.1
    Http1,
    /// HTTP/2, without TLS by prior knowledge
    Http2,
    /// gRPC unary calls
    Grpc,
}

/// Rates and length of a phase.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: f64,
    to: f64,
    duration: Duration,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e7 => Ok(rate),
        _ => Err("a rate is a number of requests a second above 0, for example 1000".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0)];
    units
        .iter()
        .find_map(|(unit, seconds)| {
            let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
            Duration::try_from_secs_f64(number * seconds).ok()
        })
        .filter(|duration| *duration <= Duration::from_hours(24))
        .ok_or_else(|| "a time is written as 500ms, 10s or 2m, and at most a day".to_owned())
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

fn statuses(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if from <= to && (100..=599).contains(&from) && to <= 599 => {
            Ok(from..=to)
        }
        _ => Err("statuses are written as 200-299 or 404".to_owned()),
    }
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

    fn requests(&self, target: &Target) -> anyhow::Result<Vec<RequestTemplate>> {
        if let Some(file) = &self.requests {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            return parse_request_file(&text).with_context(|| file.display().to_string());
        }
        let mut request = RequestTemplate {
            method: self.method.clone(),
            ..RequestTemplate::get(target.path())
        };
        for line in &self.headers {
            request = request.header_line(line)?;
        }
        if let Some(file) = &self.body_file {
            let body = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            request.body = body.into();
        } else if let Some(body) = &self.body {
            request.body = body.clone().into();
        }
        Ok(vec![request])
    }

    fn options(&self) -> SessionOptions {
        SessionOptions {
            protocol: match self.protocol {
                ProtocolArgument::Http1 => Protocol::Http1,
                ProtocolArgument::Http2 => Protocol::Http2,
                ProtocolArgument::Grpc => Protocol::Grpc,
            },
            connections: self.connections,
            streams: self.streams,
            threads: self.threads,
            trust: match &self.ca {
                Some(file) => Trust::File(file.clone()),
                None if self.insecure => Trust::Anything,
                None => Trust::PublicAuthorities,
            },
            timeout: self.timeout,
            expected: self.expect.clone(),
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let target = Target::parse(&arguments.url)?;
    let requests = arguments.requests(&target)?;
    let mut session = Session::open(&target, &arguments.options())?;
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

/// Microseconds in the unit that reads best, with three digits.
fn time(microseconds: f64) -> String {
    let (value, unit) = match microseconds {
        value if value >= 1e6 => (value / 1e6, "s"),
        value if value >= 1e3 => (value / 1e3, "ms"),
        value => (value, "µs"),
    };
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rates_and_statuses_are_read_or_refused() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        for text in ["10", "s", "-1s", "1e9m", "NaNs"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["0", "-5", "NaN", "inf", "many"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(step("1000:10s").is_ok() && step("1000").is_err() && ramp("1-2:1s").is_ok());
        assert_eq!(statuses("404"), Ok(404..=404));
        assert!(statuses("299-200").is_err() && statuses("1000").is_err());
    }

    #[test]
    fn time_has_three_digits_and_a_unit() {
        let times = [0.25, 12.34, 999.4, 1234.0, 320_000.0, 2_500_000.0].map(time);
        assert_eq!(
            times,
            [
                "0.25 µs", "12.3 µs", "999 µs", "1.23 ms", "320 ms", "2.50 s"
            ]
        );
    }
}
