//! Arguments of commands that send requests: the target, the requests and the connections.

use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use outrider_load::{
    Protocol, RequestTemplate, Session, SessionOptions, Target, Trust, parse_request_file,
};

/// Target, requests and connections of a load.
#[derive(Debug, Args)]
pub(super) struct RequestArguments {
    /// Target; its path is that of the requests
    #[arg(value_name = "URL")]
    url: String,
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

pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e7 => Ok(rate),
        _ => Err("a rate is a number of requests a second above 0, for example 1000".to_owned()),
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
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

fn statuses(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if from <= to && (100..=599).contains(&from) && to <= 599 => {
            Ok(from..=to)
        }
        _ => Err("statuses are written as 200-299 or 404".to_owned()),
    }
}

impl RequestArguments {
    /// Reads the requests and opens the connections.
    pub(super) fn open(&self) -> anyhow::Result<(Session, Vec<RequestTemplate>)> {
        let target = Target::parse(&self.url)?;
        let requests = self.templates(&target)?;
        Ok((Session::open(&target, &self.options())?, requests))
    }

    fn templates(&self, target: &Target) -> anyhow::Result<Vec<RequestTemplate>> {
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

/// Microseconds in the unit that reads best, with three digits.
pub(super) fn time(microseconds: f64) -> String {
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
