//! What a gateway does next: a state machine without Envoy, files, threads or a clock of its own.
//!
//! Three things change by themselves: the file (compiled, or refused), Envoy (starts, runs, ends), and what Envoy serves
//! (a revision, or nobody knows: a change broke off). [`Machine::handle`] takes one event and returns what has to be done;
//! whoever does it reports the outcome as another event. What is served becomes what the file says as soon as that is
//! possible:
//!
//! | what is served | the file | Envoy runs | Envoy is down |
//! |---|---|---|---|
//! | what the file says | | nothing to do | start it with that, after a pause |
//! | an older revision | compiled | apply it | start with the older one, then apply |
//! | an older revision | refused | wait for the next change | start with the older one |
//! | unknown | any | apply all parts again, with growing pauses | start with the last that Envoy took whole |
//! | nothing yet | refused | | serve the last good one of an earlier run, or end |
//!
//! Another command may take over: while it starts its Envoy, nothing is applied; once that serves, this Envoy's
//! connections drain. If the other gives up, this Envoy goes on, or is started anew where its sockets were handed over.
//!
//! An Envoy that refuses at a start what it took before (a certificate is gone, a port is taken) is started again after a
//! pause, with the file's revision if that is another one.
//!
//! The type `R` is a revision of the configuration. The machine only compares revisions.

use std::time::{Duration, Instant};

/// Pause after the first failure; each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// An Envoy that ran for as long has not failed because of its start.
const STEADY: Duration = Duration::from_mins(1);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event<R> {
    /// Files changed, or somebody asked for them to be read again.
    Changed,
    /// The file compiled to this revision.
    Compiled(R),
    /// The file has problems.
    Refused,
    /// Envoy answers, and took all parts of what it was started with.
    Started,
    /// Envoy answers, but refused a part of what it was started with.
    StartRefused,
    /// Envoy has ended, and so has the change that was under way.
    Ended,
    /// Envoy took all parts of a change.
    Applied,
    /// Envoy refused a part of a change, and serves what it served before.
    Declined,
    /// A change broke off: a file could not be written, or Envoy did not answer.
    BrokeOff,
    /// Another command asks to take over.
    TakeOver,
    /// It gave up before it began to start its Envoy.
    Withdrawn,
    /// It gave up later: whether this Envoy still listens is unknown.
    TakeOverFailed,
    /// Its Envoy serves.
    TakenOver,
    /// The gateway is asked to stop.
    Stop,
    /// No request is under way any more, or the time for that is over.
    Drained,
    /// Time has passed.
    Time,
}

/// What has to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action<R> {
    /// Read and compile the file. Its outcome is [`Event::Compiled`] or [`Event::Refused`].
    Compile,
    /// Start Envoy with this revision. Its outcome is [`Event::Started`], [`Event::StartRefused`] or [`Event::Ended`].
    Start(R),
    /// Take Envoy to this revision from one of those that it may serve, the last that it took whole first. The outcome is
    /// [`Event::Applied`], [`Event::Declined`] or [`Event::BrokeOff`].
    Apply { from: Vec<R>, to: R },
    /// End Envoy at once; [`Action::Start`] follows.
    Kill,
    /// Tell the command that asks to take over that it may, and change nothing until it serves or gives up.
    Offer,
    /// Tell it that it has to wait.
    Busy,
    /// Tell it that everything is its own now. [`Event::Drained`] follows when it has ended this Envoy.
    Release,
    /// Let requests under way end. The outcome is [`Event::Drained`].
    Drain,
    /// End with this outcome.
    Exit(Exit),
    /// Tell that the last good revision is served in place of the refused file.
    TellFallback,
}

/// How a gateway ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to stop.
    Stopped,
    /// Another command has taken over.
    TakenOver,
    /// Another command had taken over that this one started, and it ended with this code.
    Followed(u8),
    /// Its file is refused, and nothing was served yet.
    Refused,
    /// Envoy ended before it served anything.
    EnvoyEnded,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compiling {
    No,
    Running,
    /// Files changed after it began.
    Outdated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Envoy {
    /// It was never started.
    NotStarted,
    Starting,
    Running {
        since: Instant,
    },
    /// It ended, and is started again then.
    Down {
        until: Instant,
    },
    /// It runs, and another command starts an Envoy that takes over.
    Offered {
        since: Instant,
    },
    TakenOver,
    Draining,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Machine<R> {
    compiling: Compiling,
    envoy: Envoy,
    /// What the file said when it last had no problem.
    wanted: Option<R>,
    /// What Envoy refused last.
    declined: Option<R>,
    /// What Envoy may serve; the first is what it last took whole. One: that is served.
    served: Vec<R>,
    /// What Envoy is started with.
    starting: Option<R>,
    /// What Envoy refused at its last start, though it took it before or the file says so.
    unstartable: Option<R>,
    /// The change that is under way.
    applying: Option<R>,
    /// The last good revision of an earlier run, until something is served.
    fallback: Option<R>,
    /// Ends of Envoy, and changes that broke off, in a row.
    crashes: u32,
    broken: u32,
    apply_after: Option<Instant>,
}

impl<R: Clone + PartialEq> Machine<R> {
    /// A gateway that has not begun: [`Event::Changed`] begins it. `fallback` is served if the file is refused at first.
    pub(crate) fn new(fallback: Option<R>) -> Self {
        Self {
            compiling: Compiling::No,
            envoy: Envoy::NotStarted,
            wanted: None,
            declined: None,
            served: Vec::new(),
            starting: None,
            unstartable: None,
            applying: None,
            fallback,
            crashes: 0,
            broken: 0,
            apply_after: None,
        }
    }

    /// Takes one event at a time, and returns what has to be done, in order.
    pub(crate) fn handle(&mut self, now: Instant, event: Event<R>) -> Vec<Action<R>> {
        match (self.envoy, &event) {
            (Envoy::Draining, Event::Drained | Event::Ended) => {
                return vec![Action::Exit(Exit::Stopped)];
            }
            (Envoy::TakenOver, Event::Drained | Event::Ended) => {
                return vec![Action::Exit(Exit::TakenOver)];
            }
            (Envoy::Draining | Envoy::TakenOver, _) => return Vec::new(),
            _ => {}
        }
        match event {
            Event::Changed if self.compiling == Compiling::No => {
                self.compiling = Compiling::Running;
                return vec![Action::Compile];
            }
            Event::Changed => self.compiling = Compiling::Outdated,
            Event::Compiled(_) | Event::Refused if self.compiling == Compiling::Outdated => {
                self.compiling = Compiling::Running;
                return vec![Action::Compile];
            }
            Event::Compiled(revision) => {
                self.compiling = Compiling::No;
                // Somebody saved it again, perhaps to have it tried again.
                self.declined = None;
                self.broken = 0;
                self.apply_after = None;
                self.wanted = Some(revision);
            }
            Event::Refused => {
                self.compiling = Compiling::No;
                if self.envoy == Envoy::NotStarted {
                    return self.fall_back();
                }
            }
            Event::Started => {
                self.envoy = Envoy::Running { since: now };
                self.fallback = None;
                self.unstartable = None;
                self.served = self.starting.take().into_iter().collect();
            }
            Event::StartRefused => {
                let refused = self.starting.take();
                let mut actions = vec![Action::Kill];
                if self.served.is_empty() {
                    self.declined = refused;
                    self.envoy = Envoy::NotStarted;
                    actions.extend(self.fall_back());
                } else {
                    self.unstartable = refused;
                    actions.extend(self.ended(now));
                }
                return actions;
            }
            Event::Ended => return self.ended(now),
            Event::Applied => {
                self.broken = 0;
                self.served = self.applying.take().into_iter().collect();
            }
            Event::Declined => {
                self.broken = 0;
                self.served.truncate(1);
                self.declined = self.applying.take();
            }
            Event::BrokeOff => {
                if let Some(revision) = self.applying.take()
                    && !self.served.contains(&revision)
                {
                    self.served.push(revision);
                }
                self.apply_after = Some(now + pause(self.broken));
                self.broken += 1;
            }
            Event::TakeOver => return self.offer(),
            Event::Withdrawn => {
                if let Envoy::Offered { since } = self.envoy {
                    self.envoy = Envoy::Running { since };
                }
            }
            Event::TakeOverFailed => {
                if matches!(self.envoy, Envoy::Offered { .. }) {
                    let mut actions = vec![Action::Kill];
                    actions.extend(self.ended(now));
                    return actions;
                }
            }
            Event::TakenOver => {
                let offered = matches!(self.envoy, Envoy::Offered { .. });
                self.envoy = Envoy::TakenOver;
                return if offered {
                    vec![Action::Release]
                } else {
                    // It ended meanwhile, and was to be started again.
                    vec![Action::Kill, Action::Release]
                };
            }
            Event::Stop => return self.stop(),
            Event::Drained => {}
            Event::Time => {
                if let Envoy::Running { since } = self.envoy
                    && now.saturating_duration_since(since) >= STEADY
                {
                    self.crashes = 0;
                }
            }
        }
        self.next(now)
    }

    /// Whether what is served is what the file said when it last had no problem.
    pub(crate) fn is_in_step(&self) -> bool {
        self.served.len() == 1 && self.served.first() == self.wanted.as_ref()
    }

    /// What Envoy last took whole.
    pub(crate) fn taken(&self) -> Option<&R> {
        self.served.first()
    }

    /// What has to be done by itself.
    fn next(&mut self, now: Instant) -> Vec<Action<R>> {
        match self.envoy {
            Envoy::NotStarted => match self.wanted.clone() {
                Some(wanted) => self.start(wanted),
                None => Vec::new(),
            },
            Envoy::Down { until } if until <= now => {
                let mut revisions = self.served.iter().chain(&self.wanted);
                let startable =
                    revisions.find(|revision| self.unstartable.as_ref() != Some(revision));
                let revision = startable.or(self.served.first()).cloned();
                revision.map_or_else(Vec::new, |revision| self.start(revision))
            }
            Envoy::Running { .. } => self.apply(now),
            Envoy::Starting
            | Envoy::Down { .. }
            | Envoy::Offered { .. }
            | Envoy::TakenOver
            | Envoy::Draining => Vec::new(),
        }
    }

    fn offer(&mut self) -> Vec<Action<R>> {
        match self.envoy {
            // What a change that broke off left of it may be served, and nobody could say what the other takes over.
            Envoy::Running { since } if self.applying.is_none() && self.served.len() == 1 => {
                self.envoy = Envoy::Offered { since };
                vec![Action::Offer]
            }
            _ => vec![Action::Busy],
        }
    }

    fn start(&mut self, revision: R) -> Vec<Action<R>> {
        self.envoy = Envoy::Starting;
        self.starting = Some(revision.clone());
        vec![Action::Start(revision)]
    }

    fn apply(&mut self, now: Instant) -> Vec<Action<R>> {
        let is_due = self.apply_after.is_none_or(|at| at <= now);
        if self.applying.is_some() || !is_due || self.is_in_step() {
            return Vec::new();
        }
        // A revision that Envoy refused is not tried again, but what is unknown has to become known.
        let is_known = self.served.len() == 1;
        let wanted = match &self.wanted {
            Some(wanted) if self.declined.as_ref() != Some(wanted) => Some(wanted),
            _ if is_known => None,
            _ => self.served.first(),
        };
        let Some(to) = wanted.cloned() else {
            return Vec::new();
        };
        self.apply_after = None;
        self.applying = Some(to.clone());
        vec![Action::Apply {
            from: self.served.clone(),
            to,
        }]
    }

    fn fall_back(&mut self) -> Vec<Action<R>> {
        match self.fallback.take() {
            Some(revision) => {
                let mut actions = vec![Action::TellFallback];
                actions.extend(self.start(revision));
                actions
            }
            None => vec![Action::Exit(Exit::Refused)],
        }
    }

    fn ended(&mut self, now: Instant) -> Vec<Action<R>> {
        if self.served.is_empty() {
            return vec![Action::Exit(Exit::EnvoyEnded)];
        }
        // What it served when it ended is what it last took whole: it is started with that.
        self.served.truncate(1);
        self.starting = None;
        self.applying = None;
        let until = now
            + if self.crashes == 0 {
                Duration::ZERO
            } else {
                pause(self.crashes - 1)
            };
        self.crashes += 1;
        self.envoy = Envoy::Down { until };
        self.next(now)
    }

    fn stop(&mut self) -> Vec<Action<R>> {
        match self.envoy {
            Envoy::Running { .. } | Envoy::Offered { .. } => {
                self.envoy = Envoy::Draining;
                vec![Action::Drain]
            }
            Envoy::NotStarted
            | Envoy::Starting
            | Envoy::Down { .. }
            | Envoy::TakenOver
            | Envoy::Draining => {
                self.envoy = Envoy::Draining;
                vec![Action::Kill, Action::Exit(Exit::Stopped)]
            }
        }
    }
}

/// The pause after so many failures before this one.
fn pause(failures: u32) -> Duration {
    FIRST_PAUSE
        .saturating_mul(1 << failures.min(16))
        .min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests;
