//! Drawings as inline SVG: shapes with classes, which the report's style sheet colours for light, dark and paper.

use askama::Template;

/// Width of every drawing, in its own units; the page scales it.
pub(crate) const WIDTH: f64 = 760.0;
/// Number of colours that series have; each also has a dash pattern or a marker of its own.
pub(crate) const SERIES: usize = 8;

/// A chart.
#[derive(Debug, Template)]
#[template(path = "chart.svg", escape = "html")]
pub(crate) struct Drawing {
    /// Number within the page, for the ids that labels refer to.
    pub(crate) id: usize,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) shapes: Vec<Shape>,
}

/// Part of a drawing. Coordinates have one digit behind the point: renderings stay short and equal.
#[derive(Debug)]
pub(crate) enum Shape {
    Line {
        from: (f64, f64),
        to: (f64, f64),
        class: String,
    },
    Rect {
        at: (f64, f64),
        size: (f64, f64),
        class: String,
        title: String,
    },
    Text {
        at: (f64, f64),
        anchor: &'static str,
        class: &'static str,
        text: String,
    },
    Path {
        points: String,
        class: String,
        title: String,
    },
    Dot {
        at: (f64, f64),
        class: String,
        title: String,
    },
}

/// Position of the end of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    pub(crate) fn new(title: &str, description: &str, height: f64) -> Self {
        Self {
            id: 0,
            title: title.to_owned(),
            description: description.to_owned(),
            width: WIDTH,
            height,
            shapes: Vec::new(),
        }
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.shapes.push(Shape::Line {
            from,
            to,
            class: class.to_owned(),
        });
    }

    pub(crate) fn rect(&mut self, at: (f64, f64), size: (f64, f64), class: &str, title: &str) {
        self.shapes.push(Shape::Rect {
            at,
            size: (size.0.max(0.0), size.1.max(0.0)),
            class: class.to_owned(),
            title: title.to_owned(),
        });
    }

    pub(crate) fn text(
        &mut self,
        at: (f64, f64),
        anchor: Anchor,
        class: &'static str,
        text: impl Into<String>,
    ) {
        self.shapes.push(Shape::Text {
            at,
            anchor: match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            },
            class,
            text: text.into(),
        });
    }

    pub(crate) fn dot(&mut self, at: (f64, f64), class: &str, title: String) {
        self.shapes.push(Shape::Dot {
            at,
            class: class.to_owned(),
            title,
        });
    }

    pub(crate) fn path(&mut self, points: &[(f64, f64)], class: &str, title: &str) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.shapes.push(Shape::Path {
            points: points.join(" "),
            class: class.to_owned(),
            title: title.to_owned(),
        });
    }
}

/// Mapping of values to positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
    is_log: bool,
}

impl Scale {
    /// A linear scale from `begin` to `end` that holds these values, with ends at round numbers.
    pub(crate) fn linear(values: impl IntoIterator<Item = f64>, begin: f64, end: f64) -> Self {
        let (low, high) = extremes(values);
        let step = round_step((high - low).max(1e-9) / 5.0);
        Self {
            from: (low / step).floor() * step,
            to: ((high / step).ceil() * step).max((low / step).floor() * step + step),
            begin,
            end,
            is_log: false,
        }
    }

    /// A logarithmic scale that holds these values above 0, with ends at 1, 2 or 5 times a power of ten.
    pub(crate) fn log(values: impl IntoIterator<Item = f64>, begin: f64, end: f64) -> Self {
        let (low, high) = extremes(values.into_iter().filter(|value| *value > 0.0));
        let (low, high) = if high > 0.0 {
            (low.max(1e-9), high)
        } else {
            (1.0, 10.0)
        };
        let ticks = log_ticks(low / 10.0, high * 10.0);
        Self {
            from: ticks
                .iter()
                .copied()
                .rfind(|tick| *tick <= low)
                .unwrap_or(low),
            to: ticks
                .iter()
                .copied()
                .find(|tick| *tick > high)
                .unwrap_or(high),
            begin,
            end,
            is_log: true,
        }
    }

    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = if self.is_log {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.begin + share.clamp(0.0, 1.0) * (self.end - self.begin)
    }

    pub(crate) fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let ticks = log_ticks(self.from, self.to);
            // Over many decades, 2 and 5 would crowd.
            let decades = (self.to / self.from).log10();
            let is_wanted =
                |tick: &f64| decades < 2.5 || (tick.log10() - tick.log10().round()).abs() < 1e-6;
            return ticks.into_iter().filter(is_wanted).collect();
        }
        let step = round_step((self.to - self.from) / 5.0);
        let count = ((self.to - self.from) / step).round() as usize;
        (0..=count)
            .map(|index| self.from + index as f64 * step)
            .collect()
    }
}

fn extremes(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|value| value.is_finite());
    let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high { (0.0, 1.0) } else { (low, high) }
}

/// The next of 1, 2 and 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|candidate| *candidate >= step * 0.999)
        .unwrap_or(step)
}

fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    (first..=last)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power)))
        .filter(|tick| *tick >= low * 0.999 && *tick <= high * 1.001)
        .collect()
}

/// A number with as many digits as a label needs.
pub(crate) fn number(value: f64) -> String {
    let magnitude = value.abs();
    let text = match magnitude {
        magnitude if magnitude >= 100.0 => format!("{value:.0}"),
        magnitude if magnitude >= 10.0 => format!("{value:.1}"),
        magnitude if magnitude >= 1.0 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Microseconds in the unit that reads best.
pub(crate) fn time(microseconds: f64) -> String {
    match microseconds {
        value if value >= 1e6 => format!("{} s", number(value / 1e6)),
        value if value >= 1e3 => format!("{} ms", number(value / 1e3)),
        value => format!("{} µs", number(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_their_values_and_have_round_ticks() {
        let scale = Scale::linear([0.0, 3.7], 100.0, 500.0);
        assert_eq!(scale.ticks(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert!((scale.at(4.0) - 500.0).abs() < 1e-9 && (scale.at(0.0) - 100.0).abs() < 1e-9);
        let scale = Scale::log([30.0, 900.0], 0.0, 100.0);
        assert!(scale.at(30.0) > 0.0 && scale.at(900.0) < 100.0);
        let ticks: Vec<String> = scale.ticks().into_iter().map(number).collect();
        assert_eq!(ticks, ["20", "50", "100", "200", "500", "1000"]);
        // Nothing, one value, and values that are no numbers still make a scale.
        for values in [vec![], vec![5.0], vec![f64::NAN, f64::INFINITY]] {
            let scale = Scale::linear(values.clone(), 0.0, 10.0);
            assert!(scale.at(5.0).is_finite() && scale.ticks().len() < 20);
            let scale = Scale::log(values, 0.0, 10.0);
            assert!(scale.at(5.0).is_finite() && scale.ticks().len() < 20);
        }
    }
}
