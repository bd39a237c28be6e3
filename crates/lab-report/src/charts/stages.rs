//! Chart of the stages of a request: where its time goes.

use super::{TOP, series_class};
use crate::chart::{Anchor, Drawing, SERIES, Scale, WIDTH, number, time};
use crate::judgement::Group;

/// Mean time of each stage, one after another as a request passes them. `None` without stages.
pub(crate) fn stages(group: &Group) -> Option<Drawing> {
    const NAME: f64 = 250.0;
    const VALUES: f64 = WIDTH - 150.0;
    const ROW: f64 = 24.0;
    if group.stages.is_empty() {
        return None;
    }
    let bottom = TOP + ROW * group.stages.len() as f64;
    let mut drawing = Drawing::new(
        &format!("{}: where the time goes", group.name),
        "Mean time of each stage; a bar begins where the stage before ended.",
        bottom + 46.0,
    );
    let whole: f64 = group.stages.iter().map(|stage| stage.mean_us).sum();
    let scale = Scale::linear([0.0, whole], NAME, VALUES);
    for tick in scale.ticks() {
        drawing.line((scale.at(tick), TOP), (scale.at(tick), bottom), "grid");
        drawing.text(
            (scale.at(tick), bottom + 16.0),
            Anchor::Middle,
            "tick",
            number(tick),
        );
    }
    let mut begin = 0.0;
    for (stage, index) in group.stages.iter().zip(0..) {
        let y = TOP + ROW * f64::from(index) + ROW / 2.0;
        let end = begin + stage.mean_us;
        let text = format!("{}, p99 {}", time(stage.mean_us), time(stage.p99_us));
        drawing.text((NAME - 8.0, y + 4.0), Anchor::End, "label", &stage.name);
        drawing.rect(
            (scale.at(begin), y - 7.0),
            ((scale.at(end) - scale.at(begin)).max(0.5), 14.0),
            &series_class("stage", index as usize % SERIES),
            &text,
        );
        drawing.text((VALUES + 10.0, y + 4.0), Anchor::Start, "value", text);
        begin = end;
    }
    drawing.text(
        (f64::midpoint(NAME, VALUES), bottom + 36.0),
        Anchor::Middle,
        "unit",
        "µs since the request arrived, mean",
    );
    Some(drawing)
}
