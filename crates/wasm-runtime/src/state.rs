//! What host functions find in the store of the VM that calls them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outrider_plugin_api::{Direction, HeaderMap, LogLevel, MetricId, OwnedHeaders, Reply, Stream};
use wasmtime::{Engine, Global, Memory, ResourceLimiter, TypedFunc};

use crate::contexts::{Context, Contexts, Maps};
use crate::mailbox::Mailbox;
use crate::memory::Lent;
use crate::pairs::Writer;
use crate::room::Asking;
use crate::shared::{MetricNumbers, Shared};
use crate::time::CallTime;

/// Whether host functions take the short way, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate(u8);

impl Gate {
    /// Each call is logged.
    pub(crate) const TRACE: Self = Self(1);
    /// The guest's start functions run.
    pub(crate) const STARTING: Self = Self(2);
    /// The guest's allocator runs.
    pub(crate) const ALLOCATING: Self = Self(4);
    /// A sequence of callbacks runs at a stream's beginning, or its end, and the guest may be in a later one
    /// than it was seen in.
    pub(crate) const BEGINNING: Self = Self(8);
    pub(crate) const ENDING: Self = Self(16);
    /// The guest is being instantiated: its start section may run, and its memory has not been looked up.
    pub(crate) const INSTANTIATING: Self = Self(32);

    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn set(&mut self, other: Self) {
        self.0 |= other.0;
    }

    #[inline]
    pub(crate) fn unset(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What came of a callout, while the guest is told of it.
#[derive(Debug, Default)]
pub(crate) struct Response {
    /// The guest is being told of it.
    pub(crate) is_there: bool,
    pub(crate) headers: OwnedHeaders,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: OwnedHeaders,
}

impl Response {
    /// The guest has been told, or is told of something else.
    pub(crate) fn clear(&mut self) {
        self.is_there = false;
        self.headers.clear();
        self.trailers.clear();
        self.body.clear();
    }
}

/// Which callback of the guest runs, as far as host functions care.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Moment {
    /// One with a stream.
    #[default]
    Stream,
    /// The stream is over: maps can be read, and nothing else can be done.
    Log,
    /// The VM's configuration can be read.
    VmStart,
    /// So can the plugin's.
    Configure,
    /// A root's, or none at all.
    Other,
}

/// What is to be done about metrics once there is a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MetricChange {
    Add(MetricId, i64),
    Record(MetricId, u64),
}

impl MetricChange {
    fn metric(self) -> MetricId {
        match self {
            Self::Add(metric, _) | Self::Record(metric, _) => metric,
        }
    }
}

/// Memory budget of a VM: its memories and its tables together.
#[derive(Debug)]
pub(crate) struct Limits {
    budget: usize,
    /// Bytes in use. Only the VM's thread writes it.
    used: Arc<AtomicUsize>,
    /// The guest was refused more, since the present call began.
    pub(crate) refused: bool,
}

/// Bytes of one element of a table.
const ELEMENT: usize = size_of::<usize>();

/// More elements than this a guest's tables do not have: large Go programs use 200,000.
const MOST_ELEMENTS: usize = 4_000_000;

impl Limits {
    pub(crate) fn new(budget: usize) -> Self {
        Self {
            budget,
            used: Arc::default(),
            refused: false,
        }
    }

    /// Bytes in use.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the gauge of the bytes in use.
    pub(crate) fn gauge(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.used)
    }

    /// Replaces `current` bytes by `desired` bytes if the budget holds them.
    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let used = self.used().saturating_sub(current).saturating_add(desired);
        if used > self.budget {
            self.refused = true;
            return false;
        }
        self.used.store(used, Ordering::Relaxed);
        true
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(self.grow(current, desired))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > MOST_ELEMENTS {
            self.refused = true;
            return Ok(false);
        }
        Ok(self.grow(
            current.saturating_mul(ELEMENT),
            desired.saturating_mul(ELEMENT),
        ))
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        // One is not the guest's (`room`).
        17
    }
}

/// See the module.
pub(crate) struct State {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lent: Lent,
    pub(crate) gate: Gate,
    pub(crate) limits: Limits,
    /// Time budget of the call.
    pub(crate) time: CallTime,
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<i32, i32>>,
    /// How far a sequence of callbacks is.
    pub(crate) stage: Option<Global>,
    pub(crate) contexts: Contexts,
    pub(crate) moment: Moment,
    /// The place of the context whose stream is lent.
    pub(crate) own: Option<usize>,
    /// The number of that context; 0: none.
    pub(crate) own_id: u32,
    /// The number of the context that the guest acts for.
    pub(crate) effective: u32,
    /// The guest is told of what the stream that is lent has waited for.
    pub(crate) answers_stream: bool,
    /// The root of the callback that runs.
    pub(crate) root: u32,
    /// What the guest replied to the stream that is lent.
    pub(crate) reply: Option<Box<Reply>>,
    /// What a callout brought.
    pub(crate) response: Response,
    /// Bytes on their way into the guest's memory.
    pub(crate) scratch: Vec<u8>,
    /// Those that wait for room there, and the two places where the guest is told of them.
    pub(crate) handed: Vec<u8>,
    pub(crate) places: (i32, i32),
    pub(crate) asking: Asking,
    pub(crate) writer: Writer,
    /// What a foreign function was given.
    pub(crate) foreign: Vec<u8>,
    /// The guest was made for ABI 0.1.0.
    pub(crate) is_first_version: bool,
    /// The errors that the guest logged since its start, or its configuration, began.
    pub(crate) complaints: Vec<String>,
    /// Lines that were logged where there was nothing to log to.
    unsaid: VecDeque<(LogLevel, String)>,
    /// The guest's numbers for metrics.
    pub(crate) metrics: MetricNumbers,
    /// Changes of metrics for which there was no stream.
    uncounted: Vec<MetricChange>,
    /// When ticks, queue notifications and roots' callouts are delivered next, by the plugin's clock.
    pub(crate) rests_until: Duration,
    /// What it is to be told when it runs next.
    pub(crate) mailbox: Arc<Mailbox>,
    /// The queues, and their roots, that the guest wants to be told of once its VM has a worker. None: it has one.
    pub(crate) queues: Option<Vec<(u32, u32)>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("plugin", &self.shared.plugin)
            .field("limits", &self.limits)
            .field("contexts", &self.contexts)
            .finish_non_exhaustive()
    }
}

/// How many lines are kept until there is something to log to.
const MOST_UNSAID: usize = 256;
/// How many errors of a guest are kept that refuses its configuration.
const MOST_COMPLAINTS: usize = 8;
/// How many changes of metrics are.
const MOST_UNCOUNTED: usize = 4096;

impl State {
    pub(crate) fn new(engine: &Engine, shared: Arc<Shared>) -> Self {
        let limits = Limits::new(shared.memory_budget);
        let mut gate = Gate::INSTANTIATING;
        if shared.options.trace {
            gate.set(Gate::TRACE);
        }
        Self {
            time: CallTime::new(engine, &shared),
            shared,
            lent: Lent::NOTHING,
            gate,
            limits,
            memory: None,
            allocate: None,
            stage: None,
            contexts: Contexts::default(),
            moment: Moment::Other,
            own: None,
            own_id: 0,
            effective: 0,
            answers_stream: false,
            root: 0,
            reply: None,
            response: Response::default(),
            scratch: Vec::new(),
            handed: Vec::new(),
            places: (0, 0),
            asking: Asking::No,
            writer: Writer::default(),
            foreign: Vec::new(),
            is_first_version: false,
            complaints: Vec::new(),
            unsaid: VecDeque::new(),
            metrics: MetricNumbers::default(),
            uncounted: Vec::new(),
            rests_until: Duration::ZERO,
            mailbox: Arc::default(),
            queues: None,
        }
    }

    /// Whether the guest acts for the stream that is lent.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.own_id != 0 && self.effective == self.own_id
    }

    /// The stream that the guest acts for, if it is at hand.
    #[inline]
    pub(crate) fn stream(&self) -> Option<&dyn Stream> {
        if self.is_own() {
            self.lent.stream()
        } else {
            None
        }
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn stream_mut(&mut self) -> Option<&mut (dyn Stream + 'static)> {
        if self.is_own() {
            self.lent.stream_mut()
        } else {
            None
        }
    }

    /// The context that the guest acts for, if it is a stream's.
    #[inline]
    pub(crate) fn context(&self) -> Option<&Context> {
        let place = if self.is_own() {
            self.own?
        } else {
            self.contexts.find(self.effective)?
        };
        self.contexts.at(place)
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn context_mut(&mut self) -> Option<&mut Context> {
        let place = if self.is_own() {
            self.own?
        } else {
            self.contexts.find(self.effective)?
        };
        self.contexts.at_mut(place)
    }

    /// The body of a direction as the guest sees it: how many bytes before it are out of its sight, and how
    /// many it has. None: there is no body now.
    pub(crate) fn body(&mut self, direction: Direction) -> Option<(usize, usize)> {
        let length = self.stream()?.body_len(direction)?;
        let hidden = self
            .context_mut()
            .map_or(0, |context| *context.hidden(direction))
            .min(length);
        Some((hidden, length - hidden))
    }

    /// The number of the root of the context that the guest acts for.
    pub(crate) fn effective_root(&self) -> u32 {
        match self.context() {
            Some(context) => context.root,
            None => self.root,
        }
    }

    /// The guest logs something: why it refuses a configuration is among its last errors.
    #[inline]
    pub(crate) fn note_line(&mut self, level: LogLevel, line: &[u8]) {
        if level >= LogLevel::Error
            && matches!(self.moment, Moment::VmStart | Moment::Configure)
            && self.complaints.len() < MOST_COMPLAINTS
        {
            self.complaints
                .push(String::from_utf8_lossy(line).trim().to_owned());
        }
    }

    /// The guest acts for the stream of the context at a place, whose next callback comes.
    #[inline]
    pub(crate) fn act_for(&mut self, place: usize) {
        let (id, root) = self
            .contexts
            .at(place)
            .map_or((0, 0), |context| (context.id, context.root));
        self.own = Some(place);
        self.own_id = id;
        self.effective = id;
        self.root = root;
        self.moment = Moment::Stream;
        self.answers_stream = false;
        self.reply = None;
    }

    /// The call is over.
    #[inline]
    pub(crate) fn act_for_none(&mut self) {
        self.own = None;
        self.own_id = 0;
        self.effective = 0;
        self.root = 0;
        self.moment = Moment::Other;
    }

    /// The context whose stream is lent.
    #[inline]
    pub(crate) fn own_context(&mut self) -> Option<&mut Context> {
        self.contexts.at_mut(self.own?)
    }

    /// The callback that brings a map comes.
    #[inline]
    pub(crate) fn map_comes(&mut self, map: HeaderMap) {
        self.effective = self.own_id;
        if let Some(context) = self.own_context() {
            context.maps.open(map);
        }
    }

    /// The stream's last callback with its maps comes.
    #[inline]
    pub(crate) fn log_comes(&mut self) {
        self.moment = Moment::Log;
        if let Some(context) = self.own_context() {
            context.maps = Maps::ALL;
            context.is_over = true;
        }
    }

    /// The stream is over. As in Envoy, the maps are gone with the log.
    pub(crate) fn done_comes(&mut self) {
        self.moment = Moment::Other;
        self.effective = self.own_id;
        if let Some(context) = self.own_context() {
            context.is_over = true;
            context.maps = Maps::default();
        }
    }

    /// What the guest waits with its stream's route for: the request's headers have changed.
    pub(crate) fn refresh_route(&mut self) {
        if let Some(place) = self.own
            && let Some(context) = self.contexts.at_mut(place)
            && std::mem::take(&mut context.route_is_stale)
            && let Some(stream) = self.lent.stream_mut()
        {
            stream.clear_route_cache();
        }
    }

    /// Whether lines of a level are written.
    pub(crate) fn log_enabled(&mut self, level: LogLevel) -> bool {
        if let Some(stream) = self.lent.stream() {
            stream.log_enabled(level)
        } else if let Some(metrics) = self.lent.metrics_mut() {
            metrics.log_enabled(level)
        } else if let Some(background) = &self.shared.background {
            background.log_enabled(level)
        } else {
            level >= LogLevel::Info
        }
    }

    /// Writes a line, now or, where there is nothing to write to, when there is.
    pub(crate) fn log(&mut self, level: LogLevel, message: &str) {
        if let Some(stream) = self.lent.stream() {
            if stream.log_enabled(level) {
                stream.log(level, message);
            }
        } else if let Some(metrics) = self.lent.metrics_mut() {
            if metrics.log_enabled(level) {
                metrics.log(level, &self.shared.plugin, message);
            }
        } else if let Some(background) = &self.shared.background {
            if background.log_enabled(level) {
                background.log(level, &self.shared.plugin, message);
            }
        } else if self.unsaid.len() < MOST_UNSAID {
            self.unsaid.push_back((level, message.to_owned()));
        }
    }

    /// Adds to a metric, or sets it.
    pub(crate) fn change_metric(&mut self, change: MetricChange) {
        match self.lent.stream_mut() {
            Some(stream) => apply(stream, change),
            None if self.shared.count(change) => {}
            None => self.count_later(change),
        }
    }

    /// Keeps a change for the next stream. Additions to one metric become one: ticks may come for hours without a stream.
    fn count_later(&mut self, change: MetricChange) {
        let mut changes = self.uncounted.iter_mut().rev();
        let last = changes.find(|known| known.metric() == change.metric());
        if let (Some(MetricChange::Add(_, sum)), MetricChange::Add(_, amount)) = (last, change) {
            *sum = sum.saturating_add(amount);
        } else if self.uncounted.len() < MOST_UNCOUNTED {
            self.uncounted.push(change);
        }
    }

    /// There is a stream, or the VM is called beside all: what waited is said and counted.
    #[inline]
    pub(crate) fn catch_up(&mut self) {
        if !self.unsaid.is_empty() || !self.uncounted.is_empty() {
            self.catch_up_now();
        }
    }

    #[cold]
    fn catch_up_now(&mut self) {
        let unsaid = std::mem::take(&mut self.unsaid);
        for (level, line) in unsaid {
            self.log(level, &line);
        }
        let uncounted = std::mem::take(&mut self.uncounted);
        for change in uncounted {
            self.change_metric(change);
        }
    }

    /// What waited for a stream in a VM that is over.
    pub(crate) fn inherit(&mut self, other: &mut Self) {
        self.unsaid.append(&mut other.unsaid);
        self.uncounted.append(&mut other.uncounted);
    }
}

fn apply(stream: &mut dyn Stream, change: MetricChange) {
    match change {
        MetricChange::Add(metric, amount) => stream.add_metric(metric, amount),
        MetricChange::Record(metric, value) => stream.record_metric(metric, value),
    }
}
