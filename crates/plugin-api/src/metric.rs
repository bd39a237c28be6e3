//! Metrics that plugins and chains keep, in the proxy's own statistics.

use crate::stream::LogLevel;

/// What a metric measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// Names a metric of this process. The same name and kind always have the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricId(pub u32);

/// Definition of metrics while streams are served. The proxy shows them at once, under a name of its own for each kind
/// with the metric's name as a label.
pub trait LateMetrics: Send + Sync + std::fmt::Debug {
    /// Defines a metric, or finds the one of that kind and name; callable from any thread. `None` if the table is full or
    /// the name is another kind's.
    fn define_late(&self, kind: MetricKind, name: &str) -> Option<MetricId>;
}

/// What the proxy offers while a plugin loads or a configuration is checked, where there is no stream:
/// metrics to define, which is possible only then, and its log.
pub trait Metrics {
    /// Defines a metric, or finds the one of that kind and name. `None` when the table is full or
    /// the name is another kind's.
    fn define(&mut self, kind: MetricKind, name: &str) -> Option<MetricId>;

    /// Whether lines of a level are written.
    fn log_enabled(&self, level: LogLevel) -> bool;

    /// Writes a line of a plugin to the proxy's log.
    fn log(&mut self, level: LogLevel, plugin: &str, message: &str);
}
