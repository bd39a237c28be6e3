//! How long a plugin's calls take, as histograms in the proxy's statistics: one for each phase that
//! the plugin is called in.
//!
//! What is measured is one call into the plugin, or one resumption of a call that paused; time spent
//! waiting is in neither. A link without this costs one branch for each call.

use crate::host::Host;
use crate::metric::{MetricId, MetricKind, Metrics};
use crate::phase::{BodyMode, Phase};
use crate::plugin::Interest;

/// The histograms of one plugin, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallTimes {
    phases: [Option<MetricId>; Phase::ALL.len()],
}

impl CallTimes {
    /// Defines `outrider.plugin.<name>.time_ns.<phase>` for the phases that the plugin handles; of a
    /// direction whose headers it handles, its body too, which a headers handler may wait for.
    pub fn define(plugin: &str, interest: Interest, metrics: &mut dyn Metrics) -> Self {
        let handled = |phase: Phase| {
            let direction = phase.direction();
            let headers = interest.headers(direction);
            match phase {
                Phase::RequestHeaders | Phase::ResponseHeaders => headers,
                Phase::RequestBody | Phase::ResponseBody => {
                    headers || interest.body(direction) != BodyMode::None
                }
                Phase::RequestTrailers | Phase::ResponseTrailers => interest.trailers(direction),
                Phase::Log => interest.log,
            }
        };
        let phases = Phase::ALL.map(|phase| {
            let word = phase.to_string().replace(' ', "_");
            let name = format!("outrider.plugin.{plugin}.time_ns.{word}");
            handled(phase).then(|| metrics.define(MetricKind::Histogram, &name))?
        });
        Self { phases }
    }

    /// A call of a phase that began at `began` is over.
    #[inline(never)]
    fn record<H: Host>(&self, phase: Phase, began: u64, host: &mut H) {
        if let Some(metric) = self.phases.get(phase.index()).copied().flatten() {
            let nanos = host.monotonic_nanos().saturating_sub(began);
            host.record_metric(metric, nanos);
        }
    }
}

/// Measures one call.
#[derive(Debug)]
pub(crate) struct Stopwatch<'a>(Option<(&'a CallTimes, u64)>);

impl<'a> Stopwatch<'a> {
    /// Starts, if there is anything to measure for.
    #[inline]
    pub(crate) fn start<H: Host>(times: Option<&'a CallTimes>, host: &H) -> Self {
        Self(times.map(|times| (times, host.monotonic_nanos())))
    }

    /// The call is over.
    #[inline]
    pub(crate) fn stop<H: Host>(self, phase: Phase, host: &mut H) {
        if let Some((times, began)) = self.0 {
            times.record(phase, began, host);
        }
    }
}
