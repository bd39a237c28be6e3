//! What a chain asks of a runtime.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::callout::{Wake, WakeId};
use crate::failure::Fault;
use crate::metric::Metrics;
use crate::phase::{BodyMode, Direction, Phase};
use crate::status::PluginStatus;
use crate::stream::Stream;

/// One call of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// At which point of the stream.
    pub phase: Phase,
    /// Whether nothing more of this direction follows: no body after headers, no chunk and no
    /// trailers after a chunk.
    pub end_of_stream: bool,
}

/// What a plugin answers to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Go on with the next plugin.
    Continue,
    /// Wait: the plugin will be resumed.
    Pause(Pause),
    /// End the stream with this response.
    Reply(Box<Reply>),
}

/// What a paused plugin waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// An event of something that it started (see [`ConfiguredPlugin`]).
    Event,
    /// The whole body of the direction of the call. Only from a headers phase; resumed with
    /// [`Wake::Body`], at once when there is no body. The plugin's body phase is then not called.
    WholeBody,
    /// More of the body of the direction of the call, for a plugin that streams. From a body phase: what it
    /// was given is held back, and it is called again with that and what has come meanwhile as one chunk.
    /// From a headers phase: the headers are held back while its body and trailers phases are called as
    /// usual; the first of them that continues lets all of it go on. Where nothing more can come, because
    /// the stream ends with this call, it is [`Pause::Event`]. A [`Reaction`] also ends it.
    MoreBody,
}

/// What a plugin answers to an event beside its calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reaction {
    /// End the stream with this response; once there is another, it is passed over.
    pub reply: Option<Box<Reply>>,
    /// A call in the request's direction that paused is done.
    pub continue_request: bool,
    /// The same of the response's direction.
    pub continue_response: bool,
}

impl Reaction {
    /// Nothing but a reply.
    pub fn reply(reply: Box<Reply>) -> Self {
        Self {
            reply: Some(reply),
            ..Self::default()
        }
    }
}

/// A response that a plugin makes itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers, without `:status`.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Body, possibly empty.
    pub body: Vec<u8>,
    /// Response-code detail for access logs; empty: the chain fills in `outrider.<plugin>`.
    pub details: String,
    /// Which plugins see it as the response, when it is made in a request phase.
    pub audience: Audience,
}

/// Plugins that see a plugin's reply as the response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Audience {
    /// All plugins but the one that made it.
    #[default]
    Others,
    /// All of them: so do filters of Envoy's own, which pass their replies themselves.
    Everyone,
    /// Not even the client: the stream is reset. A host that cannot reset streams sends the reply.
    Nobody,
}

/// Which phases a plugin handles.
#[expect(
    clippy::struct_excessive_bools,
    reason = "one flag a phase, as runtimes find the handlers"
)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interest {
    /// Has a handler of request headers.
    pub request_headers: bool,
    /// How it wants request bodies.
    pub request_body: BodyMode,
    /// Has a handler of request trailers.
    pub request_trailers: bool,
    /// Has a handler of response headers.
    pub response_headers: bool,
    /// How it wants response bodies.
    pub response_body: BodyMode,
    /// Has a handler of response trailers.
    pub response_trailers: bool,
    /// Has a handler of the log phase.
    pub log: bool,
}

impl Interest {
    /// Whether the headers of a direction are handled.
    pub fn headers(&self, direction: Direction) -> bool {
        match direction {
            Direction::Request => self.request_headers,
            Direction::Response => self.response_headers,
        }
    }

    /// How bodies of a direction are wanted.
    pub fn body(&self, direction: Direction) -> BodyMode {
        match direction {
            Direction::Request => self.request_body,
            Direction::Response => self.response_body,
        }
    }

    /// Whether the trailers of a direction are handled.
    pub fn trailers(&self, direction: Direction) -> bool {
        match direction {
            Direction::Request => self.request_trailers,
            Direction::Response => self.response_trailers,
        }
    }
}

/// A plugin's own state on one stream: a number that means something to its runtime alone. Starts
/// as 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot(pub u64);

/// The configuration of a plugin for one scope, as JSON texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScopedConfig {
    /// Where it holds, for messages: `gateway`, or `project shop, route cart`.
    pub scope: String,
    /// The gateway's part alone.
    pub base: Option<Arc<str>>,
    /// What project and route together say (a merge patch), if they say anything.
    pub route: Option<Arc<str>>,
    /// The effective configuration: the patch applied to the base.
    pub effective: Arc<str>,
    /// Whose place it takes, if anybody's.
    pub place: Option<ConfigPlace>,
}

/// What one configuration after the other is for. Streams that begin have the newest of a place; older ones live
/// on for streams that have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigPlace {
    /// The filter's and the scope's names: no other place in the process is called so.
    pub name: Arc<str>,
    /// The number of the generation. A configuration of a higher one is newer, whenever it came.
    pub generation: u64,
}

/// Why a plugin, or a configuration of it, cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plugin {plugin}: {message}")]
pub struct LoadError {
    /// The plugin's name.
    pub plugin: String,
    /// What is wrong; starts with `file:line:` where a place is known.
    pub message: String,
}

/// Per cent of one worker's CPU time that a plugin may use over a short window, unless `budgets.share` says
/// otherwise.
pub const DEFAULT_SHARE: u32 = 20;

/// One version of a plugin: its code, loaded and compiled, with a VM for each worker.
pub trait Plugin: Send + Sync + Debug {
    /// Which phases it handles.
    fn interest(&self) -> Interest;

    /// Checks a configuration, on the main thread: the plugin's own validators and `on_configure`
    /// run here. What is returned serves the streams of that scope.
    ///
    /// # Errors
    /// The configuration is refused, with the reason.
    fn configure(
        &self,
        config: &ScopedConfig,
        metrics: &mut dyn Metrics,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError>;

    /// Called on a worker beside all streams, after [`Background::ring_in`](crate::Background::ring_in): does
    /// what is due there, such as ticks. Comes also where nothing is due.
    fn background(&self, _worker: usize) {}

    /// What it uses at the moment. Callable from any thread; never waits for a worker.
    fn status(&self) -> PluginStatus;
}

/// A plugin with one configuration. Streams call it on their own workers, several at once.
///
/// What it started on a stream (callouts, timers, HTTP streams) is told to it as [`Wake`]s, in one of two
/// ways. Where a call that paused waits for it, as [`ConfiguredPlugin::waits_in`] answers, this call goes on
/// with [`ConfiguredPlugin::resume`]. Otherwise it comes as [`ConfiguredPlugin::event`], while the stream goes
/// on, or while the plugin waits for something else.
pub trait ConfiguredPlugin: Send + Sync + Debug {
    /// Calls the handler of a phase.
    ///
    /// # Errors
    /// The plugin failed; the chain applies its failure policy.
    fn call(&self, slot: &mut Slot, call: Call, stream: &mut dyn Stream)
    -> Result<Decision, Fault>;

    /// Goes on with a call in `direction` that answered [`Decision::Pause`].
    ///
    /// # Errors
    /// As for [`ConfiguredPlugin::call`].
    fn resume(
        &self,
        slot: &mut Slot,
        direction: Direction,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault>;

    /// In which direction a call that paused goes on with an event of this name; none: no such call waits
    /// for it. `started` is the direction of the call that started it. A direction in which no call of the
    /// plugin is paused counts as none.
    fn waits_in(
        &self,
        _slot: Slot,
        _id: WakeId,
        started: Direction,
        _worker: usize,
    ) -> Option<Direction> {
        Some(started)
    }

    /// An event that no paused call waits for. The stream shows its header maps as they are now, and the
    /// body that a paused call of the plugin was given, if there is one.
    ///
    /// # Errors
    /// As for [`ConfiguredPlugin::call`].
    fn event(
        &self,
        _slot: &mut Slot,
        _wake: Wake<'_>,
        _stream: &mut dyn Stream,
    ) -> Result<Reaction, Fault> {
        Ok(Reaction::default())
    }

    /// Returns how long a call has to wait until the plugin may use this worker's CPU again, or `None` if it
    /// may run now; `waited` is how long the stream has waited for the plugin. The chain asks before each call of a handler, and delays the call; after
    /// [`SHARE_PATIENCE`](crate::SHARE_PATIENCE) the stream gets the failure policy for
    /// [`Cause::Share`](crate::Cause::Share). Before a callout's answer or a timer is delivered, the host asks
    /// ([`ChainRun::wait_for_share`](crate::ChainRun::wait_for_share)), with the same bound.
    fn wait_for_share(&self, _worker: usize, _waited: Duration) -> Option<Duration> {
        None
    }

    /// Returns what a call waits for on this worker, as a sentence for people, or `None` if it need not wait.
    fn awaited(&self, _worker: usize) -> Option<String> {
        None
    }

    /// Whether a call of the log phase, which cannot wait, may run on this worker now. Else it is not made, and fails for
    /// [`Cause::Share`](crate::Cause::Share).
    fn may_log(&self, worker: usize) -> bool {
        self.wait_for_share(worker, Duration::ZERO).is_none()
    }

    /// Charges a call of the log phase that took so long to the CPU share of calls of any length.
    fn charge_log(&self, _worker: usize, _cost: Duration) {}

    /// Charges [`CALLOUT_COST`](crate::CALLOUT_COST) to the plugin's CPU share: for a callout that a stream's plugin has
    /// this worker of the proxy make beyond the first few.
    fn charge_callout(&self, _worker: usize) {}

    /// Whether response handlers are called on a stream whose request headers the plugin was not given: the proxy
    /// answered before (a bad path, headers too large), or a plugin in front of it replied. The log phase comes in
    /// any case.
    fn sees_response_without_request(&self) -> bool {
        true
    }

    /// Another scope has this configuration, too, from now on; none: one that is no place. Called on the main
    /// thread.
    fn also_for(&self, _place: Option<&ConfigPlace>) {}

    /// The stream is over, or the plugin is not called on it again: gives back what the slot holds.
    fn end(&self, slot: Slot, worker: usize);
}
