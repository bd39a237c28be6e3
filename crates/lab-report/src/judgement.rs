//! The judgement of a run: what each variant costs, how sure that is, and what cannot be said.

use std::collections::BTreeMap;
use std::fmt;

use outrider_load::read_histogram;
use serde::Serialize;

use crate::record::{Gate, MIN_ROUNDS, Measure, Role, Run, Slice, SliceKind, Stage};
use crate::statistics::{Effect, median, paired_effect};

/// What a run shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// Each group of variants.
    pub groups: Vec<Group>,
    /// Slices that were used.
    pub kept: usize,
    /// Slices that were not, by the first gate that they failed.
    pub rejected: BTreeMap<Gate, usize>,
}

/// What a group of variants shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// Name.
    pub name: String,
    /// What its variants do, in words.
    pub about: String,
    /// CPU microseconds for each request of the baseline: median over its kept slices.
    pub baseline_us: f64,
    /// Difference between the two baselines: the noise. `None` where there is no twin.
    pub noise: Option<Effect>,
    /// Each variant, baselines included, in the order of the run.
    pub rows: Vec<Row>,
    /// Pairs that were asked for.
    pub comparisons: Vec<Comparison>,
    /// Cost of each variant beyond the one before it, in a group whose variants build on each other.
    pub steps: Vec<Comparison>,
    /// How each variant behaves as the rate grows; empty without slices at several rates.
    pub curves: Vec<Curve>,
    /// Values that were measured beside slices.
    pub measures: Vec<MeasureRow>,
    /// Stages of a request.
    pub stages: Vec<StageRow>,
}

/// Behaviour of a variant as the rate grows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Index of the variant.
    pub variant: usize,
    /// Its name.
    pub name: String,
    /// One point for each rate at which at least one slice was used, rising.
    pub points: Vec<CurvePoint>,
}

/// Behaviour of a variant at one rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Requests a second that were meant to be sent.
    pub offered: f64,
    /// Requests a second that were answered: median over its slices.
    pub achieved: f64,
    /// Latency percentiles in microseconds: 50, 90, 99, 99.9.
    pub latency_us: [f64; 4],
    /// Processors' worth of CPU time of each process: median.
    pub cpu: BTreeMap<String, f64>,
    /// Resident memory of each process in MiB: median.
    pub memory_mib: BTreeMap<String, f64>,
    /// Whether at least half of its slices were answered in their time.
    pub is_sustained: bool,
    /// Slices that were used.
    pub kept: usize,
    /// Slices that were not.
    pub rejected: usize,
}

/// Values of one kind in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasureRow {
    /// Name of the variant, or of a part of it.
    pub name: String,
    /// What was measured.
    pub what: String,
    /// Unit.
    pub unit: String,
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Number of values.
    pub count: usize,
}

/// Time of one stage in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageRow {
    /// Name.
    pub name: String,
    /// Mean, which adds up over the stages.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Requests.
    pub count: u64,
}

/// What one variant shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Index of the variant.
    pub variant: usize,
    /// Its name.
    pub name: String,
    /// Its part in the group.
    pub role: Role,
    /// CPU microseconds for each request: median over its kept slices.
    pub cpu_us: f64,
    /// What it adds to the baseline. `None` of the baseline itself, and without common rounds.
    pub added: Option<Change>,
    /// Requests a second at full load: median over its kept slices.
    pub rate: f64,
    /// Latency percentiles at the fixed rate, or at the highest of several rates that all variants sustained, in
    /// microseconds: 50, 90, 99, 99.9. `None` without such slices.
    pub latency_us: Option<[f64; 4]>,
    /// Difference of the 99th percentile to the baseline's, in the rounds that had both. `None` as of `added`.
    pub p99: Option<LatencyChange>,
    /// Slices of CPU time that were used.
    pub kept: usize,
    /// Slices of CPU time that were not, by the first gate that they failed.
    pub rejected: BTreeMap<Gate, usize>,
}

/// Difference of one variant to another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// Microseconds of CPU for each request.
    pub effect: Effect,
    /// The median as a share of the other variant's cost.
    pub relative: f64,
    /// Noise floor in microseconds: a difference within it means nothing.
    pub floor: f64,
    /// What may be said.
    pub verdict: Verdict,
}

/// Difference of the 99th percentile of a variant's latency to another's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyChange {
    /// Microseconds.
    pub effect: Effect,
    /// Noise floor in microseconds.
    pub floor: f64,
    /// What may be said.
    pub verdict: Verdict,
}

/// What may be said of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It costs more.
    More,
    /// It costs less.
    Less,
    /// The interval holds zero, or the difference lies within the noise.
    NoDifference,
    /// Too few rounds were kept to say anything.
    ProvesNothing,
}

/// Two variants of a group, compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The variant in question.
    pub name: String,
    /// The one that it is compared with.
    pub with: String,
    /// Difference between them.
    pub change: Change,
    /// What the one adds to the baseline, as a share of what the other adds; `None` where either adds nothing that was
    /// seen.
    pub share: Option<f64>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Effect {
            median,
            low,
            high,
            count,
        } = self.effect;
        match self.verdict {
            Verdict::ProvesNothing => write!(
                f,
                "proves nothing: {count} rounds kept, {MIN_ROUNDS} are needed"
            ),
            Verdict::NoDifference => write!(
                f,
                "no difference seen: {median:+.2} µs [{low:+.2}, {high:+.2}], noise floor ± {:.2}",
                self.floor
            ),
            Verdict::More | Verdict::Less => write!(
                f,
                "{median:+.2} µs per request [{low:+.2}, {high:+.2}] ({:+.1} %), noise floor ± {:.2}",
                self.relative * 100.0,
                self.floor
            ),
        }
    }
}

impl fmt::Display for LatencyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Effect {
            median,
            low,
            high,
            count,
        } = self.effect;
        match self.verdict {
            Verdict::ProvesNothing => write!(f, "proves nothing: {count} rounds"),
            Verdict::NoDifference => {
                write!(
                    f,
                    "no difference seen: {median:+.0} µs [{low:+.0}, {high:+.0}]"
                )
            }
            Verdict::More | Verdict::Less => write!(f, "{median:+.0} µs [{low:+.0}, {high:+.0}]"),
        }
    }
}

impl Verdict {
    fn of(effect: &Effect, floor: f64) -> Self {
        if effect.count < MIN_ROUNDS {
            Self::ProvesNothing
        } else if effect.holds_zero() || effect.median.abs() <= floor {
            Self::NoDifference
        } else if effect.median > 0.0 {
            Self::More
        } else {
            Self::Less
        }
    }
}

impl Change {
    fn of(effect: Effect, base: f64, floor: f64) -> Self {
        let verdict = Verdict::of(&effect, floor);
        Self {
            effect,
            relative: if base > 0.0 {
                effect.median / base
            } else {
                0.0
            },
            floor,
            verdict,
        }
    }

    /// Whether a difference was seen.
    pub fn is_seen(&self) -> bool {
        matches!(self.verdict, Verdict::More | Verdict::Less)
    }
}

impl Judgement {
    /// Judges a run.
    pub fn of(run: &Run) -> Self {
        let mut rejected = BTreeMap::new();
        for gate in run.slices.iter().filter_map(|slice| slice.failed.first()) {
            *rejected.entry(*gate).or_default() += 1;
        }
        Self {
            groups: run
                .groups()
                .into_iter()
                .map(|name| Group::of(run, name))
                .collect(),
            kept: run
                .slices
                .iter()
                .filter(|slice| slice.failed.is_empty())
                .count(),
            rejected,
        }
    }
}

impl Group {
    fn of(run: &Run, name: &str) -> Self {
        let members: Vec<usize> = (0..run.variants.len())
            .filter(|index| {
                run.variants
                    .get(*index)
                    .is_some_and(|variant| variant.group == name)
            })
            .collect();
        let with_role = |role| {
            members.iter().copied().find(|index| {
                run.variants
                    .get(*index)
                    .is_some_and(|variant| variant.role == role)
            })
        };
        let (baseline, twin) = (with_role(Role::Baseline), with_role(Role::Twin));
        let baseline_us = baseline.map(|index| cpu_us(run, index)).unwrap_or_default();
        let noise = baseline
            .zip(twin)
            .and_then(|(baseline, twin)| effect(run, baseline, twin));
        let floor = noise.map(|noise| noise.reach()).unwrap_or_default();
        let added = |index: usize| {
            let baseline = baseline.filter(|baseline| *baseline != index)?;
            Some(Change::of(
                effect(run, baseline, index)?,
                baseline_us,
                floor,
            ))
        };
        let p99_floor = baseline
            .zip(twin)
            .and_then(|(baseline, twin)| p99_effect(run, baseline, twin))
            .map(|noise| noise.reach())
            .unwrap_or_default();
        let p99 = |index: usize| {
            let baseline = baseline.filter(|baseline| *baseline != index)?;
            let effect = p99_effect(run, baseline, index)?;
            Some(LatencyChange {
                effect,
                floor: p99_floor,
                verdict: Verdict::of(&effect, p99_floor),
            })
        };
        let curves: Vec<Curve> = members
            .iter()
            .filter_map(|index| Curve::of(run, *index))
            .collect();
        let common = highest_sustained(&curves);
        let rows = members
            .iter()
            .filter_map(|index| {
                let variant = run.variants.get(*index)?;
                let mut rejected = BTreeMap::new();
                for gate in run
                    .of(*index, SliceKind::Cpu)
                    .filter_map(|slice| slice.failed.first())
                {
                    *rejected.entry(*gate).or_default() += 1;
                }
                let rate = |slice: &Slice| slice.requests as f64 / slice.seconds.max(1e-9);
                let mut rates: Vec<f64> = run.kept(*index, SliceKind::Cpu).map(rate).collect();
                Some(Row {
                    variant: *index,
                    name: variant.name.clone(),
                    role: variant.role,
                    cpu_us: cpu_us(run, *index),
                    added: added(*index),
                    rate: median(&mut rates),
                    latency_us: run
                        .latency(*index)
                        .or_else(|| run.latency_at(*index, common?))
                        .map(|latency| {
                            [0.5, 0.9, 0.99, 0.999]
                                .map(|quantile| latency.value_at_quantile(quantile) as f64 / 1e3)
                        }),
                    p99: p99(*index),
                    kept: rates.len(),
                    rejected,
                })
            })
            .collect();
        let compare = |variant: usize, with: usize| {
            let effect = effect(run, with, variant)?;
            let share = match (added(variant), added(with)) {
                (Some(this), Some(other)) if this.is_seen() && other.is_seen() => {
                    Some(this.effect.median / other.effect.median)
                }
                _ => None,
            };
            Some(Comparison {
                name: run.variants.get(variant)?.name.clone(),
                with: run.variants.get(with)?.name.clone(),
                change: Change::of(effect, cpu_us(run, with), floor),
                share,
            })
        };
        let comparisons = run
            .pairs
            .iter()
            .filter(|pair| members.contains(&pair.variant) && members.contains(&pair.with))
            .filter_map(|pair| compare(pair.variant, pair.with))
            .collect();
        let steps = if run.cumulative.iter().any(|group| group == name) {
            let of_role = |index: &usize| {
                run.variants
                    .get(*index)
                    .is_some_and(|variant| variant.role != Role::Twin)
            };
            let built: Vec<usize> = members.iter().copied().filter(of_role).collect();
            built
                .windows(2)
                .filter_map(|pair| compare(*pair.last()?, *pair.first()?))
                .collect()
        } else {
            Vec::new()
        };
        Self {
            name: name.to_owned(),
            about: members
                .iter()
                .filter_map(|index| run.variants.get(*index))
                .map(|variant| variant.about.clone())
                .next()
                .unwrap_or_default(),
            baseline_us,
            noise,
            rows,
            comparisons,
            steps,
            curves,
            measures: run
                .measures
                .iter()
                .filter(|measure| measure.group == name)
                .map(MeasureRow::of)
                .collect(),
            stages: run
                .stages
                .iter()
                .filter(|stage| stage.group == name)
                .filter_map(StageRow::of)
                .collect(),
        }
    }

    /// The lowest rate that some variant did not sustain, and that variant's name. `None` if all kept up.
    pub fn first_unsustained(&self) -> Option<(f64, &str)> {
        self.curves
            .iter()
            .filter_map(|curve| {
                let point = curve.points.iter().find(|point| !point.is_sustained)?;
                Some((point.offered, curve.name.as_str()))
            })
            .min_by(|one, other| one.0.total_cmp(&other.0))
    }

    /// The highest rate that every variant sustained, up to which all lower ones were sustained, too.
    pub fn highest_sustained(&self) -> Option<f64> {
        highest_sustained(&self.curves)
    }
}

fn highest_sustained(curves: &[Curve]) -> Option<f64> {
    curves
        .iter()
        .map(Curve::highest_sustained)
        .min_by(|one, other| one.unwrap_or(0.0).total_cmp(&other.unwrap_or(0.0)))
        .flatten()
}

/// A slice at a rate was answered in its time if the last response came this much later at the most: a share of its
/// length, and seconds.
const IN_TIME: (f64, f64) = (0.02, 0.005);

impl Curve {
    fn of(run: &Run, variant: usize) -> Option<Self> {
        let points: Vec<CurvePoint> = run
            .settings
            .rates
            .iter()
            .filter_map(|rate| CurvePoint::of(run, variant, *rate))
            .collect();
        (!points.is_empty()).then(|| Self {
            variant,
            name: run
                .variants
                .get(variant)
                .map(|variant| variant.name.clone())
                .unwrap_or_default(),
            points,
        })
    }

    /// The highest rate up to which all were sustained. `None` if the first was not.
    pub fn highest_sustained(&self) -> Option<f64> {
        self.points
            .iter()
            .take_while(|point| point.is_sustained)
            .last()
            .map(|point| point.offered)
    }
}

impl CurvePoint {
    fn of(run: &Run, variant: usize, rate: f64) -> Option<Self> {
        let latency = run.latency_at(variant, rate)?;
        let kept: Vec<&Slice> = run
            .at_rate(variant, rate)
            .filter(|slice| slice.is_kept())
            .collect();
        let median_of = |value: &dyn Fn(&Slice) -> f64| {
            let mut values: Vec<f64> = kept.iter().map(|slice| value(slice)).collect();
            median(&mut values)
        };
        let names: std::collections::BTreeSet<&String> = kept
            .iter()
            .flat_map(|slice| slice.processes.keys())
            .collect();
        let used = |slice: &Slice, name: &String| slice.processes.get(name).copied();
        let cpu = |name: &String| {
            median_of(&|slice| {
                used(slice, name).map_or(0.0, |used| {
                    used.cpu_ns as f64 / 1e9 / slice.seconds.max(1e-9)
                })
            })
        };
        let memory = |name: &String| {
            median_of(&|slice| {
                used(slice, name).map_or(0.0, |used| used.memory_kib as f64 / 1024.0)
            })
        };
        let (share, seconds) = IN_TIME;
        let longest = run.settings.rate_slice * (1.0 + share) + seconds;
        let in_time = kept
            .iter()
            .filter(|slice| slice.seconds <= longest && slice.errors.is_empty())
            .count();
        Some(Self {
            offered: rate,
            achieved: median_of(&|slice| slice.requests as f64 / slice.seconds.max(1e-9)),
            latency_us: [0.5, 0.9, 0.99, 0.999]
                .map(|quantile| latency.value_at_quantile(quantile) as f64 / 1e3),
            cpu: names
                .iter()
                .map(|name| ((*name).clone(), cpu(name)))
                .collect(),
            memory_mib: names
                .iter()
                .map(|name| ((*name).clone(), memory(name)))
                .filter(|(_, memory)| *memory > 0.0)
                .collect(),
            is_sustained: in_time * 2 >= kept.len(),
            kept: kept.len(),
            rejected: run.at_rate(variant, rate).count() - kept.len(),
        })
    }
}

impl MeasureRow {
    fn of(measure: &Measure) -> Self {
        let values = &measure.values;
        Self {
            name: measure.name.clone(),
            what: measure.what.clone(),
            unit: measure.unit.clone(),
            median: median(&mut values.clone()),
            min: values.iter().copied().reduce(f64::min).unwrap_or_default(),
            max: values.iter().copied().reduce(f64::max).unwrap_or_default(),
            count: values.len(),
        }
    }
}

impl StageRow {
    /// The numbers of a stage. `None` if its histogram cannot be read.
    pub fn of(stage: &Stage) -> Option<Self> {
        let time = read_histogram(&stage.time)?;
        Some(Self {
            name: stage.name.clone(),
            mean_us: time.mean() / 1e3,
            p50_us: time.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: time.value_at_quantile(0.99) as f64 / 1e3,
            count: time.len(),
        })
    }
}

fn cpu_us(run: &Run, variant: usize) -> f64 {
    let mut values: Vec<f64> = run
        .kept(variant, SliceKind::Cpu)
        .map(Slice::cpu_us)
        .collect();
    median(&mut values)
}

/// Differences of CPU time of `variant` to `baseline` in the rounds in which both were kept.
fn effect(run: &Run, baseline: usize, variant: usize) -> Option<Effect> {
    paired(run, baseline, variant, SliceKind::Cpu, |slice| {
        Some(slice.cpu_us())
    })
}

/// Differences of the 99th percentile of the latency, in microseconds.
fn p99_effect(run: &Run, baseline: usize, variant: usize) -> Option<Effect> {
    paired(run, baseline, variant, SliceKind::Latency, |slice| {
        let latency = read_histogram(&slice.latency.as_ref()?.latency)?;
        Some(latency.value_at_quantile(0.99) as f64 / 1e3)
    })
}

fn paired(
    run: &Run,
    baseline: usize,
    variant: usize,
    kind: SliceKind,
    value: impl Fn(&Slice) -> Option<f64>,
) -> Option<Effect> {
    let by_round = |index| -> BTreeMap<usize, f64> {
        run.kept(index, kind)
            .filter_map(|slice| Some((slice.round, value(slice)?)))
            .collect()
    };
    let base = by_round(baseline);
    let differences: Vec<f64> = by_round(variant)
        .into_iter()
        .filter_map(|(round, value)| Some(value - base.get(&round)?))
        .collect();
    paired_effect(&differences, run.settings.seed)
}

/// Compares the same variant of two runs by what it adds to its baseline in each. The runs are independent, so the
/// intervals' widths add in quadrature; the floor is the larger one. `None` where a run has no such variant, or the two
/// measured it against different baselines.
pub fn compare_runs(before: &Run, after: &Run, group: &str, name: &str) -> Option<Change> {
    let row = |run: &Run| {
        let judgement = Judgement::of(run);
        let group = judgement.groups.into_iter().find(|one| one.name == group)?;
        let row = group.rows.iter().find(|row| row.name == name)?.clone();
        Some((row.added?, row.cpu_us))
    };
    let ((before, base), (after, _)) = (row(before)?, row(after)?);
    let median = after.effect.median - before.effect.median;
    let side = |one: fn(&Effect) -> f64| one(&before.effect).hypot(one(&after.effect));
    let effect = Effect {
        median,
        low: median - side(|effect| (effect.high - effect.low) / 2.0),
        high: median + side(|effect| (effect.high - effect.low) / 2.0),
        count: before.effect.count.min(after.effect.count),
    };
    Some(Change::of(effect, base, before.floor.max(after.floor)))
}
