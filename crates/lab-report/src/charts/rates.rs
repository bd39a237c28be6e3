//! Charts over the rate: latency to the knee, CPU time and memory.

use super::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, direct_labels, series_class, vertical_axis};
use crate::chart::{Anchor, Drawing, Scale, number, time};
use crate::judgement::{Curve, CurvePoint, Group};

/// 99th percentile of the latency over the rate. What some variant does not sustain is shaded; points that are not
/// sustained are hollow. `None` without slices at several rates.
pub(crate) fn latency(group: &Group) -> Option<Drawing> {
    let curves = shown(group)?;
    let mut drawing = Drawing::new(
        &format!("{}: latency as the rate grows", group.name),
        "99th percentile from the intended send time; logarithmic. Shaded: rates that some variant does not sustain. \
         Hollow points are not sustained.",
        HEIGHT,
    );
    let x = rate_scale(&curves);
    shade(&mut drawing, group, x);
    let p99 = |point: &CurvePoint| {
        let [_, _, p99, _] = point.latency_us;
        p99
    };
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(p99));
    let y = Scale::log(values, BOTTOM, TOP);
    lines(&mut drawing, &curves, x, y, time, &p99);
    Some(drawing)
}

/// Processors' worth of CPU time of all processes of a variant over the rate.
pub(crate) fn cpu(group: &Group) -> Option<Drawing> {
    let curves = shown(group)?;
    let mut drawing = Drawing::new(
        &format!("{}: CPU as the rate grows", group.name),
        "Processors' worth of CPU time of all proxies and what they need, without the generator and the upstream.",
        HEIGHT,
    );
    let x = rate_scale(&curves);
    shade(&mut drawing, group, x);
    let value = |point: &CurvePoint| point.cpu.values().sum::<f64>();
    let y = linear(&curves, &value)?;
    lines(&mut drawing, &curves, x, y, number, &value);
    Some(drawing)
}

/// Resident memory of all processes of a variant over the rate.
pub(crate) fn memory(group: &Group) -> Option<Drawing> {
    let curves = shown(group)?;
    let mut drawing = Drawing::new(
        &format!("{}: memory as the rate grows", group.name),
        "Resident memory of all proxies, in MiB. They serve all variants in turns, so it only grows.",
        HEIGHT,
    );
    let x = rate_scale(&curves);
    shade(&mut drawing, group, x);
    let value = |point: &CurvePoint| point.memory_mib.values().sum::<f64>();
    let y = linear(&curves, &value)?;
    lines(
        &mut drawing,
        &curves,
        x,
        y,
        |mib| format!("{} MiB", number(mib)),
        &value,
    );
    Some(drawing)
}

fn shown(group: &Group) -> Option<Vec<&Curve>> {
    let curves: Vec<&Curve> = group.curves.iter().collect();
    (!curves.is_empty()).then_some(curves)
}

/// A linear scale from 0. `None` if all values are 0.
fn linear(curves: &[&Curve], value: &dyn Fn(&CurvePoint) -> f64) -> Option<Scale> {
    let values: Vec<f64> = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(value))
        .collect();
    let is_seen = values.iter().any(|value| *value > 0.0);
    is_seen.then(|| Scale::linear(values.into_iter().chain([0.0]), BOTTOM, TOP))
}

fn rate_scale(curves: &[&Curve]) -> Scale {
    let rates = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|point| point.offered));
    Scale::linear(rates.chain([0.0]), LEFT, RIGHT)
}

fn shade(drawing: &mut Drawing, group: &Group, x: Scale) {
    if let Some((rate, name)) = group.first_unsustained() {
        drawing.rect(
            (x.at(rate), TOP),
            (RIGHT - x.at(rate), BOTTOM - TOP),
            "band",
            &format!("from {rate:.0} requests a second on, {name} does not keep up"),
        );
    }
    for tick in x.ticks() {
        drawing.line((x.at(tick), TOP), (x.at(tick), BOTTOM), "grid");
        drawing.text(
            (x.at(tick), BOTTOM + 16.0),
            Anchor::Middle,
            "tick",
            number(tick),
        );
    }
    drawing.text(
        (f64::midpoint(LEFT, RIGHT), BOTTOM + 36.0),
        Anchor::Middle,
        "unit",
        "requests a second that were meant to be sent",
    );
}

fn lines(
    drawing: &mut Drawing,
    curves: &[&Curve],
    x: Scale,
    y: Scale,
    label: impl Fn(f64) -> String,
    value: &dyn Fn(&CurvePoint) -> f64,
) {
    vertical_axis(drawing, y, &label);
    let mut labels = Vec::new();
    for (series, curve) in curves.iter().enumerate() {
        let at = |point: &CurvePoint| (x.at(point.offered), y.at(value(point)));
        let points: Vec<(f64, f64)> = curve.points.iter().map(at).collect();
        drawing.path(&points, &series_class("line", series), &curve.name);
        for point in &curve.points {
            let class = if point.is_sustained {
                "point"
            } else {
                "point hollow"
            };
            drawing.dot(
                at(point),
                &series_class(class, series),
                format!(
                    "{}, {:.0} requests a second: {}{}",
                    curve.name,
                    point.offered,
                    label(value(point)),
                    if point.is_sustained {
                        ""
                    } else {
                        "; not sustained"
                    }
                ),
            );
        }
        labels.push((
            points.last().map_or(BOTTOM, |point| point.1),
            series,
            curve.name.clone(),
        ));
    }
    direct_labels(drawing, labels);
}
