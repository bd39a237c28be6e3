//! What a proxy does for plugins where there is no stream: it calls them on their workers, makes their
//! callouts, counts and logs.

use std::fmt::Debug;
use std::time::Duration;

use crate::callout::{CalloutFailure, CalloutRequest, CalloutResponse};
use crate::metric::MetricId;
use crate::stream::LogLevel;

/// Is told what came of a callout; called once.
pub type CalloutDone = Box<dyn for<'a> FnOnce(Result<CalloutResponse<'a>, CalloutFailure>) + Send>;

/// See the module. Everything may be called on any thread, and nothing waits.
pub trait Background: Debug + Send + Sync {
    /// Whether the proxy calls plugins without a stream. Where it does not, `ring_in` does nothing and callouts
    /// are refused: what waits is done while streams pass.
    fn is_there(&self) -> bool;

    /// Has [`Plugin::background`](crate::Plugin::background) of every plugin called once on each worker when so
    /// much time has passed. What was asked for before stays; calls that would come at once come as one.
    fn ring_in(&self, delay: Duration);

    /// Starts a callout that is no stream's. `done` is told of its end, on a thread of the proxy's that must
    /// not be kept.
    ///
    /// # Errors
    /// [`CalloutFailure::MissingHeaders`], or [`CalloutFailure::CannotStart`] where the proxy calls no plugin
    /// without a stream. Whether there is such an upstream, `done` is told.
    fn start_callout(
        &self,
        request: &CalloutRequest<'_>,
        done: CalloutDone,
    ) -> Result<(), CalloutFailure>;

    /// As [`Stream::add_metric`](crate::Stream::add_metric). `false`: no configuration of the proxy's has it
    /// (yet).
    fn add_metric(&self, metric: MetricId, amount: i64) -> bool;

    /// As [`Stream::record_metric`](crate::Stream::record_metric). `false`: as for `add_metric`.
    fn record_metric(&self, metric: MetricId, value: u64) -> bool;

    /// Whether lines of a level are written.
    fn log_enabled(&self, level: LogLevel) -> bool;

    /// Writes a line of a plugin to the proxy's log.
    fn log(&self, level: LogLevel, plugin: &str, message: &str);
}
