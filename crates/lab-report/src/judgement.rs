//! The judgement of a run: what each variant costs, how sure that is, and what cannot be said.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::record::{Gate, MIN_ROUNDS, Role, Run, Slice, SliceKind};
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
    /// Latency percentiles at the fixed rate, in microseconds: 50, 90, 99, 99.9. `None` without latency slices.
    pub latency_us: Option<[f64; 4]>,
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

impl Change {
    fn of(effect: Effect, base: f64, floor: f64) -> Self {
        let verdict = if effect.count < MIN_ROUNDS {
            Verdict::ProvesNothing
        } else if effect.holds_zero() || effect.median.abs() <= floor {
            Verdict::NoDifference
        } else if effect.median > 0.0 {
            Verdict::More
        } else {
            Verdict::Less
        };
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
                    latency_us: run.latency(*index).map(|latency| {
                        [0.5, 0.9, 0.99, 0.999]
                            .map(|quantile| latency.value_at_quantile(quantile) as f64 / 1e3)
                    }),
                    kept: rates.len(),
                    rejected,
                })
            })
            .collect();
        let comparisons = run
            .pairs
            .iter()
            .filter(|pair| members.contains(&pair.variant) && members.contains(&pair.with))
            .filter_map(|pair| {
                let effect = effect(run, pair.with, pair.variant)?;
                let share = match (added(pair.variant), added(pair.with)) {
                    (Some(this), Some(other)) if this.is_seen() && other.is_seen() => {
                        Some(this.effect.median / other.effect.median)
                    }
                    _ => None,
                };
                Some(Comparison {
                    name: run.variants.get(pair.variant)?.name.clone(),
                    with: run.variants.get(pair.with)?.name.clone(),
                    change: Change::of(effect, cpu_us(run, pair.with), floor),
                    share,
                })
            })
            .collect();
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
        }
    }
}

fn cpu_us(run: &Run, variant: usize) -> f64 {
    let mut values: Vec<f64> = run
        .kept(variant, SliceKind::Cpu)
        .map(Slice::cpu_us)
        .collect();
    median(&mut values)
}

/// Differences of `variant` to `baseline` in the rounds in which both were kept.
fn effect(run: &Run, baseline: usize, variant: usize) -> Option<Effect> {
    let by_round = |index| -> BTreeMap<usize, f64> {
        run.kept(index, SliceKind::Cpu)
            .map(|slice| (slice.round, slice.cpu_us()))
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
