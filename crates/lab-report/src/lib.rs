//! Results of the lab: the file `run.json` ([`Run`]), the judgement of what it shows ([`Judgement`]), and the report
//! that is rendered from it ([`render`]): `report.html`, `summary.md`, CSV and `.hgrm`.
//!
//! Everything here is a function of `run.json`: no clock, no machine, no network. So a report can be rendered again
//! anywhere, and two renderings are equal.
//!
//! The trap: a number is only as good as its gates. Slices that failed one stay in the file and in the charts, with the
//! reason, and never enter an estimate.

mod chart;
mod charts;
mod digest;
mod judgement;
pub mod lint;
mod record;
mod render;
mod statistics;

pub use digest::{Digest, digest};
pub use judgement::{
    Change, Comparison, Curve, CurvePoint, Group, Judgement, LatencyChange, MeasureRow, Row,
    StageRow, Verdict, compare_runs,
};
pub use record::{
    Absent, Environment, Gate, LatencyResult, MIN_ROUNDS, Measure, Pair, ProcessUse, ReadError,
    Role, Run, SCHEMA, Settings, Slice, SliceKind, Stage, Variant,
};
pub use render::{Rendered, render};
pub use statistics::{Effect, paired_effect};
