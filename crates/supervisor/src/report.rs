//! What a supervisor has to say.

use std::net::SocketAddr;
use std::time::Duration;

use outrider_gateway::Plan;
use outrider_plugin_formats::Problem;

/// News of a gateway, in the order in which it happens.
#[derive(Debug)]
#[non_exhaustive]
pub enum Report<'a> {
    /// The file has problems; what was served before goes on.
    Refused(&'a [Problem]),
    /// The file has problems and nothing was served yet: what an earlier run served last is served.
    Fallback,
    /// The file compiled.
    Compiled {
        /// What it said before; `None` at first.
        before: Option<&'a Plan>,
        /// What it says now.
        plan: &'a Plan,
    },
    /// Envoy serves.
    Serving {
        /// What it serves; `None`: what an earlier run served last.
        plan: Option<&'a Plan>,
        /// Where each listener listens, by its name.
        addresses: Vec<(String, SocketAddr)>,
        /// Envoy's admin interface.
        admin: SocketAddr,
        /// Time since the beginning, or since Envoy ended.
        took: Duration,
        /// How often Envoy was started again until now.
        restarts: u32,
    },
    /// A change is served.
    Applied {
        /// What was served before, as far as is known.
        before: Option<&'a Plan>,
        /// What is served now.
        plan: Option<&'a Plan>,
        /// Time since the change was noticed.
        took: Duration,
        /// Listeners whose connections drain because the change replaced them.
        replaced: Vec<String>,
    },
    /// The file was read, and says what is served.
    InStep {
        /// Whether it did not before.
        was_refused: bool,
    },
    /// Envoy refused a part of a change, and serves what it served before.
    Declined {
        /// What the part is: `routes`.
        part: &'a str,
        /// Why, with the place in the file where that is known.
        reason: String,
    },
    /// A change broke off, and Envoy may serve a part of it. It is tried again.
    BrokeOff {
        /// Why.
        error: &'a anyhow::Error,
    },
    /// Envoy refused parts of what it was started with.
    StartRefused(Vec<String>),
    /// Envoy has ended, and is started again.
    Ended(&'a anyhow::Error),
    /// Envoy has not answered for so long.
    Silent(Duration),
    /// Envoy answers again.
    Answers,
    /// Log files were opened again, or why not.
    Reopened(Result<(), &'a anyhow::Error>),
    /// What is not essential failed.
    Warning(&'a anyhow::Error),
    /// There is no gateway to take over from; this one starts as usual.
    NobodyBefore,
    /// Another command begins to take over: nothing is applied until it serves or gives up.
    Offered,
    /// The command that began to take over gave up; what is served goes on.
    Withdrawn,
    /// The command that began to take over failed late; Envoy is started anew.
    TakeOverFailed,
    /// The command of this process serves now; this one's connections drain.
    TakenOver(u32),
    /// The gateway that was taken over from has ended.
    TookOver,
    /// This command is started anew, by a signal, to take over.
    Upgrading,
    /// Requests under way may end.
    Draining,
    /// So many requests under way were cut off.
    CutOff(u64),
    /// The gateway has stopped.
    Stopped,
}
