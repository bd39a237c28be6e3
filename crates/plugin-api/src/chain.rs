//! The ordered plugins that one stream passes.

use std::any::Any;
use std::sync::Arc;

use crate::call_times::CallTimes;
use crate::circuit::Circuit;
use crate::failure::{CAUSES, Cause, FailureLogHandle, FailurePolicy};
use crate::log_budget::LogBudget;
use crate::memory::MemoryAccount;
use crate::metric::{MetricId, MetricKind, Metrics};
use crate::permissions::Permissions;
use crate::phase::{BodyMode, Direction};
use crate::plugin::{ConfiguredPlugin, Interest};

/// A plugin's own counters.
#[derive(Debug, Clone, Copy)]
pub struct LinkMetrics {
    /// Calls of handlers.
    pub calls: Option<MetricId>,
    /// Local replies that the plugin made.
    pub replies: Option<MetricId>,
    /// Failures, by cause.
    pub errors: [Option<MetricId>; CAUSES],
    /// Circuits that are open now.
    pub circuit_open: Option<MetricId>,
    /// Number of times that a circuit opened.
    pub circuit_opened: Option<MetricId>,
    /// Log lines that the plugin's log budget dropped.
    pub log_dropped: Option<MetricId>,
}

impl LinkMetrics {
    /// Defines the metrics of a plugin: `outrider.plugin.<name>.calls`, `.replies`,
    /// `.errors.<cause>`, `.circuit_open` (a gauge), `.circuit_opened` and `.log_dropped`.
    pub fn define(plugin: &str, metrics: &mut dyn Metrics) -> Self {
        let mut define =
            |kind, what: &str| metrics.define(kind, &format!("outrider.plugin.{plugin}.{what}"));
        let circuit_open = define(MetricKind::Gauge, "circuit_open");
        let mut counter = |what: &str| define(MetricKind::Counter, what);
        Self {
            calls: counter("calls"),
            replies: counter("replies"),
            errors: Cause::ALL.map(|cause| counter(&format!("errors.{cause}"))),
            circuit_open,
            circuit_opened: counter("circuit_opened"),
            log_dropped: counter("log_dropped"),
        }
    }
}

/// One plugin's place in a chain.
#[derive(Debug, Clone)]
pub struct Link {
    /// The plugin's name.
    pub name: Arc<str>,
    /// The plugin with the configuration of the chain's scope; absent when it could not be had, and
    /// then every stream gets the failure policy for [`Cause::Unavailable`].
    pub plugin: Option<Arc<dyn ConfiguredPlugin>>,
    /// Which phases it handles.
    pub interest: Interest,
    /// Failure policy of its streams.
    pub failure_policy: FailurePolicy,
    /// Its counters.
    pub metrics: LinkMetrics,
    /// Which of its faults are logged; shared by all chains that it stands in.
    pub faults: FailureLogHandle,
    /// Where the time of its calls is recorded; none: it is not measured.
    pub times: Option<Arc<CallTimes>>,
    /// Whether it is called at all.
    pub circuit: Arc<Circuit>,
    /// Permissions of the plugin.
    pub permissions: Arc<Permissions>,
    /// Log budget; shared by all chains that it stands in.
    pub logs: Arc<LogBudget>,
    /// Memory account; shared by all chains that it stands in.
    pub memory: Arc<MemoryAccount>,
}

/// The ordered plugins that the streams of one scope pass: requests from first to last, responses
/// from last to first.
#[derive(Debug, Default)]
pub struct Chain {
    links: Box<[Link]>,
    request: Handled,
    response: Handled,
    log: bool,
    project: Option<Arc<str>>,
    attachment: Option<Attachment>,
}

/// Something of the chain's scope that is not the plugins' business, and that a stream finds without a search.
pub type Attachment = Arc<dyn Any + Send + Sync>;

/// What at least one link of a chain handles of a direction.
#[derive(Debug, Clone, Copy, Default)]
struct Handled {
    headers: bool,
    /// Bodies or trailers.
    parts: bool,
}

impl Handled {
    fn of(links: &[Link], direction: Direction) -> Self {
        let any = |handles: fn(&Interest, Direction) -> bool| {
            links.iter().any(|link| handles(&link.interest, direction))
        };
        Self {
            headers: any(Interest::headers),
            parts: any(Interest::trailers)
                || any(|interest, direction| interest.body(direction) != BodyMode::None),
        }
    }
}

impl Chain {
    /// A chain of plugins in the order of requests.
    pub fn new(links: Vec<Link>) -> Self {
        Self {
            request: Handled::of(&links, Direction::Request),
            response: Handled::of(&links, Direction::Response),
            log: links.iter().any(|link| link.interest.log),
            links: links.into_boxed_slice(),
            project: None,
            attachment: None,
        }
    }

    /// The same chain, as that of a project's routes.
    #[must_use]
    pub fn of_project(mut self, project: &str) -> Self {
        self.project = Some(project.into());
        self
    }

    /// The same chain, with something else of its scope.
    #[must_use]
    pub fn with_attachment(mut self, attachment: Option<Attachment>) -> Self {
        self.attachment = attachment;
        self
    }

    /// Returns what [`Chain::with_attachment`] was given.
    pub fn attachment(&self) -> Option<&Attachment> {
        self.attachment.as_ref()
    }

    /// Returns the project whose routes have this chain, or `None` for the gateway's own chain.
    pub fn project(&self) -> Option<&Arc<str>> {
        self.project.as_ref()
    }

    fn handled(&self, direction: Direction) -> Handled {
        match direction {
            Direction::Request => self.request,
            Direction::Response => self.response,
        }
    }

    /// Whether a link handles anything of a direction.
    pub(crate) fn handles(&self, direction: Direction) -> bool {
        let handled = self.handled(direction);
        handled.headers || handled.parts
    }

    /// Whether a link handles what follows the headers of a direction.
    pub(crate) fn handles_parts(&self, direction: Direction) -> bool {
        self.handled(direction).parts
    }

    /// Whether a link handles the log phase.
    pub(crate) fn handles_log(&self) -> bool {
        self.log
    }

    /// Its plugins, in the order of requests.
    pub fn links(&self) -> &[Link] {
        &self.links
    }
}
