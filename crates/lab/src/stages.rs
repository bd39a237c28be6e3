//! Stages of a request on its way through proxies: access logs with Envoy's own time points, one line a request, joined by
//! a request index across hops (article 002's four stamps and `x-idx`, without a patched Envoy).
//!
//! Each proxy logs [`FIELDS`] as JSON: the index, its start on the system's clock, and the time points in nanoseconds after
//! it. The system's clock joins the hops, so all have to run on one machine; a stage between two hops that comes out
//! negative is counted as 0, and told.

use std::collections::BTreeMap;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use outrider_lab_report::Stage;
use outrider_load::{histogram_text, new_histogram};
use serde::Deserialize;

/// Request header with the index.
pub const INDEX_HEADER: &str = "x-idx";

/// Fields of the access log by name, with Envoy's command operators.
pub const FIELDS: [(&str, &str); 10] = [
    ("index", "%REQ(X-IDX)%"),
    // Microseconds are what Envoy prints of a date; nanoseconds of it come as digits behind the second.
    ("start", "%START_TIME(%s.%9f)%"),
    ("received", "%COMMON_DURATION(DS_RX_BEG:DS_RX_END:ns)%"),
    (
        "upstream_begun",
        "%COMMON_DURATION(DS_RX_BEG:US_TX_BEG:ns)%",
    ),
    ("upstream_sent", "%COMMON_DURATION(DS_RX_BEG:US_TX_END:ns)%"),
    ("answer_begun", "%COMMON_DURATION(DS_RX_BEG:US_RX_BEG:ns)%"),
    (
        "answer_received",
        "%COMMON_DURATION(DS_RX_BEG:US_RX_END:ns)%",
    ),
    (
        "response_begun",
        "%COMMON_DURATION(DS_RX_BEG:DS_TX_BEG:ns)%",
    ),
    ("response_sent", "%COMMON_DURATION(DS_RX_BEG:DS_TX_END:ns)%"),
    ("status", "%RESPONSE_CODE%"),
];

/// One line of an access log.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Line {
    index: Option<Number>,
    start: Option<Number>,
    received: Option<Number>,
    upstream_begun: Option<Number>,
    upstream_sent: Option<Number>,
    answer_begun: Option<Number>,
    response_begun: Option<Number>,
    response_sent: Option<Number>,
}

/// A number, or its digits as text: Envoy prints what it has as the one or the other.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(f64),
    Text(String),
}

impl Number {
    fn integer(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number as i64),
            Self::Text(text) => text.parse().ok(),
        }
    }

    /// Seconds and their decimal places, as nanoseconds.
    fn nanoseconds(&self) -> Option<i64> {
        let Self::Text(text) = self else {
            return None;
        };
        let (seconds, decimals) = text.split_once('.')?;
        let decimals: String = decimals
            .chars()
            .chain("000000000".chars())
            .take(9)
            .collect();
        seconds
            .parse::<i64>()
            .ok()?
            .checked_mul(1_000_000_000)?
            .checked_add(decimals.parse().ok()?)
    }
}

/// Time points of a request in one proxy, in nanoseconds: the first on the system's clock, the others after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamps {
    start: i64,
    received: i64,
    upstream_begun: i64,
    upstream_sent: i64,
    answer_begun: i64,
    response_begun: i64,
    response_sent: i64,
}

impl Line {
    /// `None` if a point is missing, as for a request without an index or one that reached no upstream.
    fn stamps(&self) -> Option<(u64, Stamps)> {
        let integer = |number: &Option<Number>| number.as_ref().and_then(Number::integer);
        let index = u64::try_from(integer(&self.index)?).ok()?;
        Some((
            index,
            Stamps {
                start: self.start.as_ref()?.nanoseconds()?,
                received: integer(&self.received)?,
                upstream_begun: integer(&self.upstream_begun)?,
                upstream_sent: integer(&self.upstream_sent)?,
                answer_begun: integer(&self.answer_begun)?,
                response_begun: integer(&self.response_begun)?,
                response_sent: integer(&self.response_sent)?,
            },
        ))
    }
}

/// A proxy's access log.
#[derive(Debug)]
pub struct Hop {
    /// Name, for example `client sidecar`.
    pub name: String,
    stamps: BTreeMap<u64, Stamps>,
}

impl Hop {
    /// Reads an access log; lines of requests without an index, or without an upstream, are passed over.
    ///
    /// # Errors
    ///
    /// A line is not the JSON of [`FIELDS`], or none has all of them.
    pub fn read(name: &str, text: &str) -> anyhow::Result<Self> {
        let mut stamps = BTreeMap::new();
        for (line, number) in text.lines().zip(1..) {
            if line.trim().is_empty() {
                continue;
            }
            let line: Line = serde_json::from_str(line).with_context(|| {
                format!("{name}, line {number}: not a line of an access log with the fields of `lab stages`")
            })?;
            if let Some((index, points)) = line.stamps() {
                stamps.insert(index, points);
            }
        }
        anyhow::ensure!(
            !stamps.is_empty(),
            "{name}: no line has all time points: requests need the header `{INDEX_HEADER}`, and an upstream"
        );
        Ok(Self {
            name: name.to_owned(),
            stamps,
        })
    }
}

/// Stages of the requests that all hops logged, and counts of the others.
#[derive(Debug)]
pub struct Joined {
    /// Stages in the order in which a request passes them.
    pub stages: Vec<Stage>,
    /// Requests that all hops have.
    pub requests: usize,
    /// Requests that some hop lacks.
    pub incomplete: usize,
    /// Stages between hops that came out negative.
    pub negative: u64,
}

/// Joins hops, the first the one that the client called.
///
/// # Errors
///
/// No request passed all of them.
pub fn join(group: &str, hops: &[Hop]) -> anyhow::Result<Joined> {
    let first = hops.first().context("there is no hop to join")?;
    let mut sums: Vec<(String, Histogram<u64>)> = Vec::new();
    let (mut requests, mut incomplete, mut negative) = (0, 0, 0);
    for index in first.stamps.keys() {
        let passed: Option<Vec<(&str, Stamps)>> = hops
            .iter()
            .map(|hop| Some((hop.name.as_str(), *hop.stamps.get(index)?)))
            .collect();
        let Some(passed) = passed else {
            incomplete += 1;
            continue;
        };
        requests += 1;
        for (place, (name, time)) in stages_of(&passed).into_iter().enumerate() {
            if time < 0 {
                negative += 1;
            }
            if sums.len() <= place {
                sums.push((name, new_histogram()));
            }
            if let Some((_, histogram)) = sums.get_mut(place) {
                // 0 is below what the histogram tells apart.
                histogram.saturating_record(u64::try_from(time).unwrap_or(0).max(1));
            }
        }
    }
    anyhow::ensure!(
        requests > 0,
        "no request is in the logs of all hops: they have to be of the same requests"
    );
    Ok(Joined {
        stages: sums
            .into_iter()
            .map(|(name, time)| Stage {
                group: group.to_owned(),
                name,
                time: histogram_text(&time),
            })
            .collect(),
        requests,
        incomplete,
        negative,
    })
}

/// Stages of one request in nanoseconds. They add up to the time from its arrival at the first hop to the end of the
/// response there.
fn stages_of(hops: &[(&str, Stamps)]) -> Vec<(String, i64)> {
    let mut there = Vec::new();
    let mut back = Vec::new();
    for (index, (name, stamps)) in hops.iter().enumerate() {
        there.push((format!("{name}: request received"), stamps.received));
        there.push((
            format!("{name}: filters, request"),
            stamps.upstream_begun - stamps.received,
        ));
        there.push((
            format!("{name}: request sent"),
            stamps.upstream_sent - stamps.upstream_begun,
        ));
        let answer_begun = stamps.start + stamps.answer_begun;
        match hops.get(index + 1) {
            Some((next, after)) => {
                there.push((
                    format!("{name} to {next}"),
                    after.start - stamps.start - stamps.upstream_sent,
                ));
                back.push((
                    format!("{next} to {name}"),
                    answer_begun - after.start - after.response_begun,
                ));
            }
            None => there.push((
                "upstream".to_owned(),
                stamps.answer_begun - stamps.upstream_sent,
            )),
        }
        back.push((
            format!("{name}: filters, response"),
            stamps.response_begun - stamps.answer_begun,
        ));
    }
    // Each hop's part of the way back comes after that of the hop behind it.
    let mut ordered = Vec::new();
    for index in (0..hops.len()).rev() {
        // A hop with a successor has two parts: from there, and its filters.
        let parts = if index + 1 == hops.len() { 1 } else { 2 };
        let (from, to) = (2 * index, 2 * index + parts);
        ordered.extend(back.get(from..to).unwrap_or_default().iter().cloned());
    }
    there.extend(ordered);
    if let Some((name, stamps)) = hops.first() {
        there.push((
            format!("{name}: response sent"),
            stamps.response_sent - stamps.response_begun,
        ));
    }
    there
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(index: u64, start: &str, points: [i64; 6]) -> String {
        let [received, begun, sent, answer, response, end] = points;
        format!(
            r#"{{"index":"{index}","start":"{start}","received":{received},"upstream_begun":{begun},"upstream_sent":{sent},"answer_begun":{answer},"answer_received":{answer},"response_begun":{response},"response_sent":{end},"status":200}}"#
        )
    }

    #[test]
    fn stages_add_up_to_the_whole_and_are_in_order() {
        let client = line(7, "100.000001000", [10, 30, 40, 600, 620, 650]);
        let server = line(7, "100.000001090", [5, 25, 35, 435, 450, 470]);
        let hops = [
            Hop::read("client", &client).unwrap(),
            Hop::read("server", &server).unwrap(),
        ];
        let passed: Vec<(&str, Stamps)> = hops
            .iter()
            .map(|hop| (hop.name.as_str(), hop.stamps[&7]))
            .collect();
        let stages = stages_of(&passed);
        let texts: Vec<(&str, i64)> = stages
            .iter()
            .map(|(name, time)| (name.as_str(), *time))
            .collect();
        assert_eq!(
            texts,
            [
                ("client: request received", 10),
                ("client: filters, request", 20),
                ("client: request sent", 10),
                ("client to server", 50),
                ("server: request received", 5),
                ("server: filters, request", 20),
                ("server: request sent", 10),
                ("upstream", 400),
                ("server: filters, response", 15),
                ("server to client", 60),
                ("client: filters, response", 20),
                ("client: response sent", 30),
            ]
        );
        let whole: i64 = stages.iter().map(|(_, time)| time).sum();
        assert_eq!(whole, 650);
        let joined = join("chain", &hops).unwrap();
        assert_eq!(
            (joined.requests, joined.incomplete, joined.negative),
            (1, 0, 0)
        );
        assert_eq!(joined.stages.len(), 12);
    }

    #[test]
    fn requests_that_a_hop_lacks_are_counted_and_other_lines_are_refused() {
        let points = [1, 2, 3, 4, 5, 6];
        let client = format!("{}\n{}\n", line(1, "1.5", points), line(2, "1.5", points));
        let hops = [
            Hop::read("client", &client).unwrap(),
            Hop::read("server", &line(2, "1.4", points)).unwrap(),
        ];
        let joined = join("chain", &hops).unwrap();
        assert_eq!((joined.requests, joined.incomplete), (1, 1));
        assert_eq!(
            joined.negative, 1,
            "the server began before the client sent"
        );
        let error = format!("{:#}", Hop::read("client", "GET / 200").unwrap_err());
        assert!(error.starts_with("client, line 1: not a line"), "{error}");
        let without = r#"{"index":null,"start":"1.5","received":1}"#;
        let error = Hop::read("client", without).unwrap_err().to_string();
        assert!(error.contains("`x-idx`"), "{error}");
        let others = [Hop::read("client", &line(9, "1.5", points)).unwrap()];
        assert!(join("chain", &[]).is_err() && join("chain", &others).is_ok());
    }
}
