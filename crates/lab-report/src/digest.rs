//! The numbers of a run that a README shows: a table in microseconds of CPU and one in milliseconds, and a chart.

use askama::Template;

use crate::chart::{Drawing, number};
use crate::charts;
use crate::judgement::{Group, Judgement, Row, Verdict};
use crate::record::{Role, Run};

/// Mechanisms that the tables show, in the order of their columns, by the names that variants have.
const COLUMNS: [&str; 8] = [
    "native filter",
    "native module",
    "Outrider Lua",
    "Envoy's Lua filter",
    "Outrider, Rust",
    "Envoy's Wasm filter, Rust",
    "Outrider, Go",
    "Envoy's Wasm filter, Go",
];
/// The last column: an external process.
const EXTERNAL: &str = "external process (ext_proc)";
/// Group whose costs the chart shows.
const CHART: &str = "normal";

/// Digest of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    /// Markdown: the tables with what they say.
    pub markdown: String,
    /// The chart, as a file of its own.
    pub chart: String,
}

#[derive(Template)]
#[template(path = "digest.md", escape = "none")]
struct Page<'run> {
    run: &'run Run,
    columns: Vec<&'static str>,
    rows: Vec<Costs<'run>>,
    latencies: Vec<Latencies<'run>>,
    kept: usize,
    rejected: usize,
}

struct Costs<'run> {
    name: &'run str,
    baseline: String,
    floor: String,
    cells: Vec<String>,
}

struct Latencies<'run> {
    name: &'run str,
    cells: Vec<String>,
}

#[derive(Template)]
#[template(path = "digest.svg", escape = "none")]
struct ChartFile<'chart> {
    /// The opening tag of the drawing.
    head: &'chart str,
    style: &'static str,
    rest: &'chart str,
}

/// Renders the digest of a run of the mechanisms.
///
/// # Errors
///
/// A template cannot be filled.
pub fn digest(run: &Run) -> Result<Digest, askama::Error> {
    let judgement = Judgement::of(run);
    let has = |name: &&str| run.variants.iter().any(|variant| variant.name == **name);
    let columns: Vec<&'static str> = COLUMNS.into_iter().chain([EXTERNAL]).filter(has).collect();
    let shown = |group: &&Group| {
        group
            .rows
            .iter()
            .any(|row| columns.contains(&row.name.as_str()))
    };
    let row = |group: &'_ Group, name: &str| group.rows.iter().position(|row| row.name == name);
    let rows = judgement
        .groups
        .iter()
        .filter(shown)
        .map(|group| Costs {
            name: &group.name,
            baseline: format!("{:.1}", group.baseline_us),
            floor: group
                .noise
                .map_or_else(String::new, |noise| format!("± {:.2}", noise.reach())),
            cells: columns
                .iter()
                .map(|name| row(group, name).and_then(|index| group.rows.get(index)))
                .map(|row| row.map_or_else(String::new, cost))
                .collect(),
        })
        .collect();
    let latencies = judgement
        .groups
        .iter()
        .filter(shown)
        .filter(|group| group.rows.iter().any(|row| row.latency_us.is_some()))
        .map(|group| Latencies {
            name: &group.name,
            cells: group
                .rows
                .iter()
                .find(|row| row.role == Role::Baseline)
                .into_iter()
                .map(latency)
                .chain(columns.iter().map(|name| {
                    row(group, name)
                        .and_then(|index| group.rows.get(index))
                        .map_or_else(String::new, latency)
                }))
                .collect(),
        })
        .collect();
    let page = Page {
        run,
        columns: columns.clone(),
        rows,
        latencies,
        kept: judgement.kept,
        rejected: run.slices.len() - judgement.kept,
    };
    let chart = judgement
        .groups
        .iter()
        .find(|group| group.name == CHART)
        .or_else(|| judgement.groups.first())
        .and_then(charts::cpu)
        .unwrap_or_else(|| Drawing::new("nothing was measured", "", 20.0));
    let chart = chart.render()?;
    let (head, rest) = chart.split_at(chart.find('>').map_or(0, |end| end + 1));
    Ok(Digest {
        markdown: page.render()?,
        chart: ChartFile {
            head,
            style: include_str!("../templates/report.css"),
            rest,
        }
        .render()?,
    })
}

/// Cost with its interval, or what may be said in its place.
fn cost(row: &Row) -> String {
    let Some(added) = row.added else {
        return String::new();
    };
    let effect = added.effect;
    match added.verdict {
        Verdict::ProvesNothing => "too few rounds".to_owned(),
        Verdict::NoDifference => "none seen".to_owned(),
        Verdict::More | Verdict::Less => format!(
            "{:+.2} [{:.2}, {:.2}]",
            effect.median, effect.low, effect.high
        ),
    }
}

/// Median and 99th percentile in milliseconds.
fn latency(row: &Row) -> String {
    row.latency_us.map_or_else(String::new, |[p50, _, p99, _]| {
        format!("{} / {}", number(p50 / 1e3), number(p99 / 1e3))
    })
}
