//! Metrics that plugins and chains keep, in the proxy's own statistics.

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

/// Where metrics are defined: while a plugin loads, and only then.
pub trait Metrics {
    /// Defines a metric, or finds the one of that kind and name. `None` when the table is full or
    /// the name is another kind's.
    fn define(&mut self, kind: MetricKind, name: &str) -> Option<MetricId>;
}
