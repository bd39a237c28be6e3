//! The report: a page, a summary, tables and histograms, all from one run.

use askama::Template;
use hdrhistogram::Histogram;

use crate::chart::{Drawing, number, time};
use crate::charts::{self, rates, stages};
use crate::judgement::{
    Change, Comparison, CurvePoint, Group, Judgement, MeasureRow, Row, StageRow, Verdict,
};
use crate::record::{Gate, Role, Run, SliceKind};

/// Files of a report, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Name and text of each file.
    pub files: Vec<(String, String)>,
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'run> {
    run: &'run Run,
    judgement: &'run Judgement,
    sections: Vec<Section<'run>>,
    slices: String,
    gates: Vec<(&'static str, usize)>,
}

struct Section<'run> {
    group: &'run Group,
    cpu: Option<String>,
    waterfall: Option<String>,
    percentiles: Option<String>,
    distribution: Option<String>,
    rate_latency: Option<String>,
    rate_cpu: Option<String>,
    rate_memory: Option<String>,
    stages: Option<String>,
}

#[derive(Template)]
#[template(path = "summary.md", escape = "none")]
struct Summary<'run> {
    run: &'run Run,
    judgement: &'run Judgement,
}

/// Renders the report of a run.
///
/// # Errors
///
/// A template cannot be filled.
pub fn render(run: &Run) -> Result<Rendered, askama::Error> {
    let judgement = Judgement::of(run);
    let mut drawn = 0;
    let mut draw = |mut drawing: Drawing| {
        drawn += 1;
        drawing.id = drawn;
        drawing.render()
    };
    let mut sections = Vec::new();
    for group in &judgement.groups {
        sections.push(Section {
            group,
            cpu: charts::cpu(group).map(&mut draw).transpose()?,
            waterfall: charts::waterfall(group).map(&mut draw).transpose()?,
            percentiles: charts::percentiles(run, group).map(&mut draw).transpose()?,
            distribution: charts::distribution(run, group)
                .map(&mut draw)
                .transpose()?,
            rate_latency: rates::latency(group).map(&mut draw).transpose()?,
            rate_cpu: rates::cpu(group).map(&mut draw).transpose()?,
            rate_memory: rates::memory(group).map(&mut draw).transpose()?,
            stages: stages::stages(group).map(&mut draw).transpose()?,
        });
    }
    let page = Page {
        run,
        judgement: &judgement,
        sections,
        slices: draw(charts::slices(run))?,
        gates: Gate::ALL
            .into_iter()
            .filter_map(|gate| Some((gate.describe(), *judgement.rejected.get(&gate)?)))
            .collect(),
    };
    let summary = Summary {
        run,
        judgement: &judgement,
    };
    let mut files = vec![
        ("report.html".to_owned(), page.render()?),
        ("summary.md".to_owned(), summary.render()?),
        ("results.csv".to_owned(), results(&judgement)),
        ("slices.csv".to_owned(), slices(run)),
    ];
    if judgement
        .groups
        .iter()
        .any(|group| !group.curves.is_empty())
    {
        files.push(("rates.csv".to_owned(), rates_table(&judgement)));
    }
    for (variant, index) in run.variants.iter().zip(0..) {
        if let Some(latency) = run.latency(index) {
            files.push((
                format!("{}.hgrm", file_name(&variant.group, &variant.name)),
                hgrm(&latency),
            ));
        }
    }
    Ok(Rendered { files })
}

fn file_name(group: &str, name: &str) -> String {
    let plain = |text: &str| -> String {
        let dashed: String = text
            .chars()
            .map(|letter| {
                if letter.is_ascii_alphanumeric() {
                    letter.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .collect();
        dashed
            .split('-')
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("-")
    };
    format!("{}-{}", plain(group), plain(name))
}

/// A field of CSV (RFC 4180).
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn results(judgement: &Judgement) -> String {
    let mut lines = vec![
        "group,variant,role,cpu_us,added_us,low_us,high_us,noise_us,verdict,rounds_kept,requests_per_second,p50_us,p90_us,p99_us,p999_us".to_owned(),
    ];
    for group in &judgement.groups {
        for row in &group.rows {
            let number = |value: f64| format!("{value:.3}");
            let added = row.added.map_or_else(
                || ",,,,".to_owned(),
                |change| {
                    let Change {
                        effect,
                        floor,
                        verdict,
                        ..
                    } = change;
                    let verdict = match verdict {
                        Verdict::More => "more",
                        Verdict::Less => "less",
                        Verdict::NoDifference => "no-difference",
                        Verdict::ProvesNothing => "proves-nothing",
                    };
                    format!(
                        "{:.3},{:.3},{:.3},{floor:.3},{verdict}",
                        effect.median, effect.low, effect.high
                    )
                },
            );
            let role = match row.role {
                Role::Baseline => "baseline",
                Role::Twin => "twin",
                Role::Measured => "measured",
            };
            let latency = row
                .latency_us
                .map_or_else(|| ",,,".to_owned(), |values| values.map(number).join(","));
            lines.push(format!(
                "{},{},{role},{},{added},{},{:.1},{latency}",
                field(&group.name),
                field(&row.name),
                number(row.cpu_us),
                row.kept,
                row.rate
            ));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn rates_table(judgement: &Judgement) -> String {
    let mut lines = vec![
        "group,variant,offered_per_second,achieved_per_second,sustained,p50_us,p90_us,p99_us,p999_us,processors,memory_mib,kept,rejected".to_owned(),
    ];
    for group in &judgement.groups {
        for curve in &group.curves {
            for point in &curve.points {
                let latency = point.latency_us.map(|value| format!("{value:.3}"));
                lines.push(format!(
                    "{},{},{:.1},{:.1},{},{},{:.4},{:.1},{},{}",
                    field(&group.name),
                    field(&curve.name),
                    point.offered,
                    point.achieved,
                    point.is_sustained,
                    latency.join(","),
                    point.cpu.values().sum::<f64>(),
                    point.memory_mib.values().sum::<f64>(),
                    point.kept,
                    point.rejected
                ));
            }
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn slices(run: &Run) -> String {
    let mut lines = vec![
        "at_s,round,group,variant,kind,offered_per_second,seconds,requests,errors,cpu_us,run_queue_ms,foreign_ms,pressure_ms,steal_ms,generator_share,memory_kib,rejected".to_owned(),
    ];
    for slice in &run.slices {
        let Some(variant) = run.variants.get(slice.variant) else {
            continue;
        };
        let milliseconds = |nanoseconds: u64| format!("{:.3}", nanoseconds as f64 / 1e6);
        let failed: Vec<&str> = slice.failed.iter().map(|gate| gate.describe()).collect();
        lines.push(
            [
                format!("{:.3}", slice.at),
                slice.round.to_string(),
                field(&variant.group),
                field(&variant.name),
                match slice.kind {
                    SliceKind::Cpu => "cpu".to_owned(),
                    SliceKind::Latency => "latency".to_owned(),
                    SliceKind::Rate => "rate".to_owned(),
                },
                number(slice.offered),
                format!("{:.3}", slice.seconds),
                slice.requests.to_string(),
                slice.errors.values().sum::<u64>().to_string(),
                format!("{:.3}", slice.cpu_us()),
                milliseconds(slice.run_queue_ns),
                milliseconds(slice.foreign_ns),
                slice.pressure_ns.map(milliseconds).unwrap_or_default(),
                milliseconds(slice.steal_ns),
                format!("{:.3}", slice.generator_share),
                slice.memory_kib.to_string(),
                field(&failed.join("; ")),
            ]
            .join(","),
        );
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The percentile table that HdrHistogram's tools plot, in milliseconds.
fn hgrm(latency: &Histogram<u64>) -> String {
    let mut lines = vec![format!(
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )];
    let mut below = 0;
    for value in latency.iter_quantiles(5) {
        below += value.count_since_last_iteration();
        let quantile = value.quantile();
        let rarity = if quantile < 1.0 {
            format!("{:14.2}", 1.0 / (1.0 - quantile))
        } else {
            String::new()
        };
        lines.push(format!(
            "{:12.3} {quantile:14.12} {below:10} {rarity}",
            value.value_iterated_to() as f64 / 1e6
        ));
    }
    lines.push(format!(
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]\n#[Max     = {:12.3}, Total count    = {:12}]\n#[Buckets = {:12}, SubBuckets     = {:12}]\n",
        latency.mean() / 1e6,
        latency.stdev() / 1e6,
        latency.max() as f64 / 1e6,
        latency.len(),
        latency.buckets(),
        2048
    ));
    lines.join("\n")
}

impl Row {
    /// Percentiles as a page shows them.
    fn latencies(&self) -> [String; 4] {
        self.latency_us.map_or_else(
            || ["", "", "", ""].map(str::to_owned),
            |values| values.map(time),
        )
    }

    fn rejected_count(&self) -> usize {
        self.rejected.values().sum()
    }
}

impl Group {
    /// Whether there were slices at full load, and none was used.
    fn has_no_kept(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.kept == 0)
    }

    /// Processes of the curves, in order.
    fn processes(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .curves
            .iter()
            .flat_map(|curve| &curve.points)
            .flat_map(|point| point.cpu.keys())
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Sentences that say how far each variant keeps up.
    fn rate_verdicts(&self) -> Vec<(&str, Option<f64>, bool)> {
        self.curves
            .iter()
            .map(|curve| {
                let highest = curve.highest_sustained();
                let is_whole = curve.points.iter().all(|point| point.is_sustained);
                (curve.name.as_str(), highest, is_whole)
            })
            .collect()
    }
}

impl CurvePoint {
    /// Processors' worth of CPU time of a process; 0 if it took no part.
    fn cpu_of(&self, process: &str) -> f64 {
        self.cpu.get(process).copied().unwrap_or_default()
    }

    /// Percentiles as a page shows them.
    fn latencies(&self) -> [String; 4] {
        self.latency_us.map(time)
    }
}

impl MeasureRow {
    fn median_text(&self) -> String {
        self.text(self.median)
    }

    fn min_text(&self) -> String {
        self.text(self.min)
    }

    fn max_text(&self) -> String {
        self.text(self.max)
    }

    fn text(&self, value: f64) -> String {
        format!("{} {}", number(value), self.unit)
    }
}

impl StageRow {
    /// Mean, median and 99th percentile as a page shows them.
    fn times(&self) -> [String; 3] {
        [self.mean_us, self.p50_us, self.p99_us].map(time)
    }
}

impl Comparison {
    /// The share in words, where there is one.
    fn share_text(&self) -> String {
        self.share
            .map(|share| format!("{share:.2}"))
            .unwrap_or_default()
    }
}
