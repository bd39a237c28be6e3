//! A table of metrics, as plugins define them when they load.

use outrider_plugin_api::{LogLevel, MetricId, MetricKind, Metrics};

/// Metrics by id; the same kind and name are one metric.
#[derive(Debug, Clone, Default)]
pub struct MetricTable {
    defined: Vec<(MetricKind, String)>,
    logs: Vec<(LogLevel, String)>,
}

impl MetricTable {
    /// A table without metrics.
    pub fn new() -> Self {
        Self::default()
    }

    /// What plugins logged while they loaded.
    pub fn logs(&self) -> &[(LogLevel, String)] {
        &self.logs
    }

    /// The id of a metric that was defined.
    pub fn id(&self, name: &str) -> Option<MetricId> {
        let index = self.defined.iter().position(|(_, other)| other == name)?;
        u32::try_from(index).ok().map(MetricId)
    }
}

impl Metrics for MetricTable {
    fn define(&mut self, kind: MetricKind, name: &str) -> Option<MetricId> {
        match self.defined.iter().find(|(_, other)| other == name) {
            Some((other, _)) if *other != kind => None,
            Some(_) => self.id(name),
            None => {
                self.defined.push((kind, name.to_owned()));
                self.id(name)
            }
        }
    }

    fn log_enabled(&self, _level: LogLevel) -> bool {
        true
    }

    fn log(&mut self, level: LogLevel, _plugin: &str, message: &str) {
        self.logs.push((level, message.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_metric_of_one_kind() {
        let mut table = MetricTable::new();
        let counter = table.define(MetricKind::Counter, "a");
        assert_eq!(counter, Some(MetricId(0)));
        assert_eq!(table.define(MetricKind::Counter, "a"), counter);
        assert_eq!(table.define(MetricKind::Gauge, "a"), None);
        assert_eq!(table.define(MetricKind::Gauge, "b"), Some(MetricId(1)));
    }
}
