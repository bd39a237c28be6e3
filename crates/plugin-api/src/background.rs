//! What a proxy does for plugins where there is no stream: it calls them on their workers, makes their
//! callouts, counts and logs.

use std::fmt::Debug;
use std::time::Duration;

use crate::callout::{
    CalloutFailure, CalloutRequest, CalloutResponse, HttpStreamEvent, HttpStreamRequest,
};
use crate::memory::{MemoryExceeded, Reservation};
use crate::metric::MetricId;
use crate::stream::LogLevel;

/// Is told what came of a callout; called once.
pub type CalloutDone = Box<dyn for<'a> FnOnce(Result<CalloutResponse<'a>, CalloutFailure>) + Send>;

/// Is told what comes on an HTTP stream, in turn; nothing after [`HttpStreamEvent::Complete`] and
/// [`HttpStreamEvent::Failed`].
pub type HttpStreamTold = Box<dyn for<'a> FnMut(HttpStreamEvent<'a>) + Send>;

/// The plugin's side of an HTTP stream that is no stream's. When it is dropped, what is still under way is reset,
/// and nothing more is told.
pub trait HttpStreamHandle: Debug + Send + Sync {
    /// Sends a part of the request's body. What comes after `end_of_stream`, or when all is over, is dropped.
    ///
    /// # Errors
    /// [`CalloutFailure::Memory`], and nothing was sent.
    fn send(&self, data: &[u8], end_of_stream: bool) -> Result<(), CalloutFailure>;
}

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

    /// Opens an HTTP stream that is no stream's. `told` hears of what comes, on a thread of the proxy's that must
    /// not be kept. It ends, as failed, when the proxy takes a new configuration.
    ///
    /// # Errors
    /// As for `start_callout`.
    fn start_http_stream(
        &self,
        request: &HttpStreamRequest<'_>,
        told: HttpStreamTold,
    ) -> Result<Box<dyn HttpStreamHandle>, CalloutFailure>;

    /// Reserves bytes of an event that waits for the plugin, in the plugin's memory account. `None` where no account is
    /// kept.
    ///
    /// # Errors
    /// The account is full.
    fn reserve(&self, _bytes: usize) -> Result<Option<Reservation>, MemoryExceeded> {
        Ok(None)
    }

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
