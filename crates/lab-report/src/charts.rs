//! The charts of a report.

pub(crate) mod rates;
pub(crate) mod stages;

use hdrhistogram::Histogram;

use crate::chart::{Anchor, Drawing, SERIES, Scale, WIDTH, number, time};
use crate::judgement::{Group, Verdict};
use crate::record::{Role, Run, Slice, SliceKind};

const LEFT: f64 = 60.0;
const RIGHT: f64 = WIDTH - 220.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 270.0;
const HEIGHT: f64 = 320.0;
/// How many times longer than the second longest a bar is cut.
const CUT: f64 = 3.0;
/// Least distance of two labels, one below the other.
const LABEL: f64 = 14.0;

/// CPU time that each variant of a group adds, with intervals and the band of noise.
/// `None` if no variant was compared.
pub(crate) fn cpu(group: &Group) -> Option<Drawing> {
    const NAME: f64 = 190.0;
    const VALUES: f64 = WIDTH - 190.0;
    const ROW: f64 = 26.0;
    let rows: Vec<_> = group
        .rows
        .iter()
        .filter_map(|row| Some((row, row.added?)))
        .collect();
    if rows.is_empty() {
        return None;
    }
    let bottom = TOP + ROW * rows.len() as f64;
    let mut drawing = Drawing::new(
        &format!("{}: CPU time added to a request", group.name),
        &format!(
            "Bars: microseconds of CPU per request beyond the baseline of {}. Whiskers: 95 % intervals. Band: noise.",
            time(group.baseline_us)
        ),
        bottom + 46.0,
    );
    let floor = group.noise.map(|noise| noise.reach()).unwrap_or_default();
    // One variant that costs many times what the others do would make their bars unreadable: its bar is cut.
    let mut highest: Vec<f64> = rows.iter().map(|(_, added)| added.effect.high).collect();
    highest.sort_by(f64::total_cmp);
    let usual = highest
        .iter()
        .rev()
        .nth(1)
        .copied()
        .unwrap_or_default()
        .max(floor);
    let limit = match highest.last() {
        Some(last) if usual > 0.0 && *last > CUT * usual => usual * 1.25,
        _ => f64::INFINITY,
    };
    let ends = rows
        .iter()
        .flat_map(|(_, added)| [added.effect.low, added.effect.high, 0.0])
        .map(|end| end.min(limit));
    let scale = Scale::linear(ends.chain([-floor, floor]), NAME, VALUES);
    drawing.rect(
        (scale.at(-floor), TOP),
        (scale.at(floor) - scale.at(-floor), bottom - TOP),
        "band",
        &format!("noise floor: ± {floor:.2} µs"),
    );
    for tick in scale.ticks() {
        drawing.line((scale.at(tick), TOP), (scale.at(tick), bottom), "grid");
        drawing.text(
            (scale.at(tick), bottom + 16.0),
            Anchor::Middle,
            "tick",
            number(tick),
        );
    }
    for ((row, added), index) in rows.iter().zip(0..) {
        let y = TOP + ROW * f64::from(index) + ROW / 2.0;
        let (zero, end) = (scale.at(0.0), scale.at(added.effect.median));
        let class = match (added.verdict, row.role) {
            (Verdict::More, _) => "bar more",
            (Verdict::Less, _) => "bar less",
            _ => "bar unseen",
        };
        drawing.text((NAME - 8.0, y + 4.0), Anchor::End, "label", &row.name);
        drawing.rect(
            (zero.min(end), y - 8.0),
            ((end - zero).abs(), 16.0),
            class,
            &added.to_string(),
        );
        if added.effect.median > limit {
            let text = "cut: the bar is longer than the chart";
            for x in [end - 16.0, end - 10.0] {
                drawing.path(&[(x - 4.0, y + 9.0), (x + 4.0, y - 9.0)], "cut", text);
            }
        }
        let (low, high) = (scale.at(added.effect.low), scale.at(added.effect.high));
        if added.effect.high <= limit {
            drawing.line((low, y), (high, y), "whisker");
            for x in [low, high] {
                drawing.line((x, y - 4.0), (x, y + 4.0), "whisker");
            }
        }
        let text = match added.verdict {
            Verdict::ProvesNothing => "proves nothing".to_owned(),
            Verdict::NoDifference => "no difference seen".to_owned(),
            _ => format!(
                "{:+.2} µs [{:.2}, {:.2}]",
                added.effect.median, added.effect.low, added.effect.high
            ),
        };
        drawing.text((VALUES + 10.0, y + 4.0), Anchor::Start, "value", text);
    }
    drawing.line((scale.at(0.0), TOP), (scale.at(0.0), bottom), "axis");
    drawing.text(
        (f64::midpoint(NAME, VALUES), bottom + 36.0),
        Anchor::Middle,
        "unit",
        "µs of CPU per request, added",
    );
    Some(drawing)
}

/// Increments of a group whose variants build on each other: each bar begins where the one before ended. `None` for
/// other groups.
pub(crate) fn waterfall(group: &Group) -> Option<Drawing> {
    const NAME: f64 = 190.0;
    const VALUES: f64 = WIDTH - 190.0;
    const ROW: f64 = 26.0;
    if group.steps.is_empty() {
        return None;
    }
    let bottom = TOP + ROW * (group.steps.len() + 1) as f64;
    let mut drawing = Drawing::new(
        &format!("{}: each part of the chain", group.name),
        "Each bar begins where the one before ended. Whiskers: 95 % intervals of the single step.",
        bottom + 46.0,
    );
    let mut ends = vec![0.0, group.baseline_us];
    let mut sum = group.baseline_us;
    for step in &group.steps {
        let low = sum + step.change.effect.low;
        let high = sum + step.change.effect.high;
        sum += step.change.effect.median;
        ends.extend([low, high, sum]);
    }
    let scale = Scale::linear(ends, NAME, VALUES);
    for tick in scale.ticks() {
        drawing.line((scale.at(tick), TOP), (scale.at(tick), bottom), "grid");
        drawing.text(
            (scale.at(tick), bottom + 16.0),
            Anchor::Middle,
            "tick",
            number(tick),
        );
    }
    let mut bar = |index: usize, name: &str, from: f64, to: f64, class: &str, text: &str| {
        let y = TOP + ROW * index as f64 + ROW / 2.0;
        let (begin, end) = (scale.at(from.min(to)), scale.at(from.max(to)));
        drawing.text((NAME - 8.0, y + 4.0), Anchor::End, "label", name);
        drawing.rect((begin, y - 8.0), (end - begin, 16.0), class, text);
        drawing.text((VALUES + 10.0, y + 4.0), Anchor::Start, "value", text);
        y
    };
    let base = format!("{:.2} µs", group.baseline_us);
    let first = group.rows.first().map(|row| row.name.as_str());
    let mut sum = group.baseline_us;
    bar(
        0,
        first.unwrap_or("baseline"),
        0.0,
        sum,
        "bar unseen",
        &base,
    );
    let mut whiskers = Vec::new();
    for (step, index) in group.steps.iter().zip(1..) {
        let effect = step.change.effect;
        let class = match step.change.verdict {
            Verdict::More => "bar more",
            Verdict::Less => "bar less",
            _ => "bar unseen",
        };
        let text = match step.change.verdict {
            Verdict::ProvesNothing => "proves nothing".to_owned(),
            Verdict::NoDifference => "no difference seen".to_owned(),
            _ => format!(
                "{:+.2} µs [{:.2}, {:.2}]",
                effect.median, effect.low, effect.high
            ),
        };
        let y = bar(index, &step.name, sum, sum + effect.median, class, &text);
        whiskers.push((y, sum + effect.low, sum + effect.high));
        sum += effect.median;
    }
    for (y, low, high) in whiskers {
        let (low, high) = (scale.at(low), scale.at(high));
        drawing.line((low, y), (high, y), "whisker");
        for x in [low, high] {
            drawing.line((x, y - 4.0), (x, y + 4.0), "whisker");
        }
    }
    drawing.text(
        (f64::midpoint(NAME, VALUES), bottom + 36.0),
        Anchor::Middle,
        "unit",
        "µs of CPU per request",
    );
    Some(drawing)
}

/// Percentiles of the latency of each variant, on a scale on which each step is ten times as rare.
pub(crate) fn percentiles(run: &Run, group: &Group) -> Option<Drawing> {
    let lines = latencies(run, group);
    let (_, _, first) = lines.first()?;
    let mut drawing = Drawing::new(
        &format!("{}: latency by percentile", group.name),
        "Latency from the intended send time. Both axes are logarithmic.",
        HEIGHT,
    );
    let most = lines
        .iter()
        .map(|(_, _, latency)| latency.len())
        .max()
        .unwrap_or(first.len());
    // Beyond it a percentile would rest on fewer than ten values.
    let rarest = (most as f64 / 10.0).clamp(10.0, 1e5);
    let x = Scale::log([1.0, rarest * 0.99], LEFT, RIGHT);
    let at = |latency: &Histogram<u64>, rarity: f64| {
        latency.value_at_quantile(1.0 - 1.0 / rarity) as f64 / 1e3
    };
    let ends = lines
        .iter()
        .flat_map(|(_, _, latency)| [at(latency, 1.0).max(1.0), at(latency, rarest)]);
    let y = Scale::log(ends, BOTTOM, TOP);
    for rarity in [1.0, 2.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0] {
        if rarity <= rarest * 1.001 {
            let percentile = if rarity <= 1.0 {
                0.0
            } else {
                100.0 - 100.0 / rarity
            };
            drawing.line((x.at(rarity), TOP), (x.at(rarity), BOTTOM), "grid");
            let text = if rarity <= 1.0 {
                "min".to_owned()
            } else {
                format!("p{percentile}")
            };
            drawing.text((x.at(rarity), BOTTOM + 16.0), Anchor::Middle, "tick", text);
        }
    }
    vertical_axis(&mut drawing, y, time);
    let mut labels = Vec::new();
    for (series, name, latency) in &lines {
        let steps = 60;
        let points: Vec<(f64, f64)> = (0..=steps)
            .map(|step| rarest.powf(f64::from(step) / f64::from(steps)))
            .map(|rarity| (x.at(rarity), y.at(at(latency, rarity))))
            .collect();
        drawing.path(&points, &series_class("line", *series), name);
        labels.push((
            points.last().map_or(BOTTOM, |point| point.1),
            *series,
            (*name).to_owned(),
        ));
    }
    direct_labels(&mut drawing, labels);
    drawing.text(
        (f64::midpoint(LEFT, RIGHT), BOTTOM + 36.0),
        Anchor::Middle,
        "unit",
        "percentile of the latency",
    );
    Some(drawing)
}

/// How many requests had which latency: shapes that percentiles hide, such as a second hump.
pub(crate) fn distribution(run: &Run, group: &Group) -> Option<Drawing> {
    let lines = latencies(run, group);
    lines.first()?;
    let mut drawing = Drawing::new(
        &format!("{}: distribution of the latency", group.name),
        "Share of the requests by latency. Both axes are logarithmic, so a second hump shows.",
        HEIGHT,
    );
    let binned: Vec<_> = lines
        .iter()
        .map(|(series, name, latency)| (*series, *name, bins(latency)))
        .collect();
    let x = Scale::log(
        binned
            .iter()
            .flat_map(|(_, _, bins)| bins.iter().map(|bin| bin.0)),
        LEFT,
        RIGHT,
    );
    let y = Scale::log(
        binned
            .iter()
            .flat_map(|(_, _, bins)| bins.iter().map(|bin| bin.1)),
        BOTTOM,
        TOP,
    );
    for tick in x.ticks() {
        drawing.line((x.at(tick), TOP), (x.at(tick), BOTTOM), "grid");
        drawing.text(
            (x.at(tick), BOTTOM + 16.0),
            Anchor::Middle,
            "tick",
            time(tick),
        );
    }
    vertical_axis(&mut drawing, y, |share| format!("{} %", number(share)));
    let mut labels = Vec::new();
    for (series, name, bins) in &binned {
        let points: Vec<(f64, f64)> = bins
            .iter()
            .map(|(value, share)| (x.at(*value), y.at(*share)))
            .collect();
        drawing.path(&points, &series_class("line", *series), name);
        labels.push((
            points.last().map_or(BOTTOM, |point| point.1),
            *series,
            (*name).to_owned(),
        ));
    }
    direct_labels(&mut drawing, labels);
    drawing.text(
        (f64::midpoint(LEFT, RIGHT), BOTTOM + 36.0),
        Anchor::Middle,
        "unit",
        "latency",
    );
    Some(drawing)
}

/// Every slice over time, as a ratio to its variant's median, with those that were rejected and why.
pub(crate) fn slices(run: &Run) -> Drawing {
    let mut drawing = Drawing::new(
        "Every slice over time",
        "CPU time per request of each slice, as a ratio to the median of its variant. Crosses were rejected.",
        HEIGHT + 20.0,
    );
    let medians: Vec<f64> = (0..run.variants.len())
        .map(|index| {
            let mut values: Vec<f64> = run.of(index, SliceKind::Cpu).map(Slice::cpu_us).collect();
            crate::statistics::median(&mut values)
        })
        .collect();
    let ratio = |slice: &Slice| {
        let median = medians.get(slice.variant).copied().unwrap_or_default();
        if median > 0.0 {
            slice.cpu_us() / median
        } else {
            1.0
        }
    };
    let shown: Vec<&Slice> = run
        .slices
        .iter()
        .filter(|slice| slice.kind == SliceKind::Cpu)
        .collect();
    let x = Scale::linear(
        shown.iter().map(|slice| slice.at / 60.0).chain([0.0]),
        LEFT,
        WIDTH - 20.0,
    );
    let y = Scale::linear(
        shown
            .iter()
            .map(|slice| ratio(slice).clamp(0.5, 2.0))
            .chain([0.9, 1.1]),
        BOTTOM,
        TOP,
    );
    // First, since it takes the width of an empty drawing.
    vertical_axis(&mut drawing, y, number);
    for tick in x.ticks() {
        drawing.text(
            (x.at(tick), BOTTOM + 16.0),
            Anchor::Middle,
            "tick",
            number(tick),
        );
    }
    for slice in shown {
        let at = (x.at(slice.at / 60.0), y.at(ratio(slice).clamp(0.5, 2.0)));
        let name = run
            .variants
            .get(slice.variant)
            .map(|one| format!("{}, {}", one.group, one.name));
        let name = name.unwrap_or_default();
        if slice.failed.is_empty() {
            drawing.dot(at, "kept", format!("{name}: {:.2} µs", slice.cpu_us()));
        } else {
            let reasons: Vec<&str> = slice.failed.iter().map(|gate| gate.describe()).collect();
            let title = format!(
                "{name}: {:.2} µs, rejected: {}",
                slice.cpu_us(),
                reasons.join(", ")
            );
            cross(&mut drawing, at, &title);
        }
    }
    drawing.text(
        (f64::midpoint(LEFT, WIDTH), BOTTOM + 36.0),
        Anchor::Middle,
        "unit",
        "minutes since the begin",
    );
    drawing.dot((LEFT, BOTTOM + 56.0), "kept", "used".to_owned());
    drawing.text((LEFT + 8.0, BOTTOM + 60.0), Anchor::Start, "tick", "used");
    cross(&mut drawing, (LEFT + 70.0, BOTTOM + 56.0), "rejected");
    drawing.text(
        (LEFT + 80.0, BOTTOM + 60.0),
        Anchor::Start,
        "tick",
        "rejected; the reason is its tooltip and in the table",
    );
    drawing
}

fn cross(drawing: &mut Drawing, at: (f64, f64), title: &str) {
    for rise in [3.0, -3.0] {
        let ends = [(at.0 - 3.0, at.1 - rise), (at.0 + 3.0, at.1 + rise)];
        drawing.path(&ends, "rejected", title);
    }
}

/// Latencies of a group's variants, each with the number of its series. The twin is left out: it is the baseline.
fn latencies<'run>(run: &'run Run, group: &Group) -> Vec<(usize, &'run str, Histogram<u64>)> {
    let rate = group.highest_sustained();
    group
        .rows
        .iter()
        .filter(|row| row.role != Role::Twin)
        .filter_map(|row| {
            Some((
                run.variants.get(row.variant)?.name.as_str(),
                run.latency(row.variant)
                    .or_else(|| run.latency_at(row.variant, rate?))?,
            ))
        })
        .zip(0..)
        .map(|((name, latency), series)| (series, name, latency))
        .collect()
}

/// Shares in percent of twelve bins in each decade, in microseconds.
fn bins(latency: &Histogram<u64>) -> Vec<(f64, f64)> {
    const PER_DECADE: f64 = 12.0;
    let mut bins = std::collections::BTreeMap::<i32, u64>::new();
    for value in latency.iter_recorded() {
        let microseconds = value.value_iterated_to() as f64 / 1e3;
        let bin = (microseconds.max(1e-3).log10() * PER_DECADE).floor() as i32;
        *bins.entry(bin).or_default() += value.count_at_value();
    }
    let all = latency.len().max(1) as f64;
    bins.into_iter()
        .map(|(bin, count)| {
            (
                10_f64.powf((f64::from(bin) + 0.5) / PER_DECADE),
                100.0 * count as f64 / all,
            )
        })
        .collect()
}

fn series_class(what: &str, series: usize) -> String {
    format!("{what} s{}", series % SERIES)
}

fn vertical_axis(drawing: &mut Drawing, scale: Scale, label: impl Fn(f64) -> String) {
    let right = if drawing.shapes.is_empty() {
        WIDTH - 20.0
    } else {
        RIGHT
    };
    for tick in scale.ticks() {
        drawing.line((LEFT, scale.at(tick)), (right, scale.at(tick)), "grid");
        drawing.text(
            (LEFT - 6.0, scale.at(tick) + 4.0),
            Anchor::End,
            "tick",
            label(tick),
        );
    }
}

/// Names beside the ends of their lines, moved apart where they would overlap.
fn direct_labels(drawing: &mut Drawing, mut labels: Vec<(f64, usize, String)>) {
    labels.sort_by(|first, second| first.0.total_cmp(&second.0));
    let mut lowest = TOP - LABEL;
    for (y, _, _) in &mut labels {
        *y = y.max(lowest + LABEL);
        lowest = *y;
    }
    let overflow = (lowest - BOTTOM).max(0.0);
    for (y, series, name) in labels {
        let y = y - overflow;
        drawing.path(
            &[(RIGHT + 8.0, y), (RIGHT + 26.0, y)],
            &series_class("line", series),
            "",
        );
        drawing.text((RIGHT + 32.0, y + 4.0), Anchor::Start, "label", name);
    }
}
