//! How headers, chunks and trailers pass from link to link: what is called next, and what follows
//! from how a call ended.

use super::ChainRun;
use super::call::{Action, Step};
use super::flow::{Chunk, Hold, Progress, Task, Until};
use crate::callout::Wake;
use crate::host::Host;
use crate::phase::{BodyMode, Direction, HeaderMap, Phase};
use crate::plugin::Call;
use crate::view::Window;

impl ChainRun {
    /// Passes headers, chunks and trailers on until there are no more, or something stops them.
    pub(super) fn advance<H: Host>(&mut self, direction: Direction, host: &mut H) -> Progress {
        let links = self.states.len();
        loop {
            let flow = self.flow(direction);
            if flow.finished {
                return Progress::Ended;
            }
            if flow.suspended.is_some() {
                return Progress::Blocked;
            }
            if flow.hold.is_none() && flow.headers_seen && flow.cursor < links {
                self.pass_on_headers(direction, host);
                continue;
            }
            // Links at `limit` and beyond get no chunks and no trailers yet.
            let limit = flow.hold.map_or(flow.cursor, |hold| match hold.until {
                Until::LetGo => hold.position + 1,
                Until::WholeBody | Until::ResumedWithBody => hold.position,
            });
            if let Some(chunk) = flow.chunk {
                if chunk.next < limit {
                    self.join_kept(direction, chunk.next);
                    let step = if self.interest_at(direction, chunk.next).body(direction)
                        == BodyMode::Stream
                    {
                        let call = Call {
                            phase: Phase::body(direction),
                            end_of_stream: chunk.end,
                        };
                        self.invoke(direction, chunk.next, Task::Chunk, Action::Call(call), host)
                    } else {
                        Step::Done
                    };
                    self.complete(direction, chunk.next, Task::Chunk, step, host);
                } else {
                    match flow.hold {
                        Some(hold) if chunk.end => self.whole_body(direction, hold, host),
                        hold => {
                            let flow = self.flow_mut(direction);
                            flow.chunk = None;
                            flow.kept.retain(|kept| kept.position < limit);
                            if hold.is_none() {
                                self.chunk_left(direction, chunk.window, host);
                            }
                        }
                    }
                }
                continue;
            }
            if flow.data_waits {
                let (_, total) = self.body_lengths(direction, host);
                let flow = self.flow_mut(direction);
                let window = Window {
                    start: flow.fresh.min(total),
                    end: total,
                };
                flow.chunk = Some(Chunk {
                    next: 0,
                    window,
                    end: flow.end_waits,
                });
                flow.fresh = total;
                flow.data_waits = false;
                continue;
            }
            if let Some(position) = flow.trailers {
                if position < limit {
                    let step = if self.interest_at(direction, position).trailers(direction) {
                        let call = Call {
                            phase: Phase::trailers(direction),
                            end_of_stream: true,
                        };
                        self.invoke(
                            direction,
                            position,
                            Task::Trailers,
                            Action::Call(call),
                            host,
                        )
                    } else {
                        Step::Done
                    };
                    self.complete(direction, position, Task::Trailers, step, host);
                    continue;
                }
                if let Some(hold) = flow.hold {
                    self.whole_body(direction, hold, host);
                    continue;
                }
            }
            return if flow.hold.is_some() || !flow.kept.is_empty() {
                Progress::Holding
            } else {
                Progress::Clear
            };
        }
    }

    /// A chunk comes to a link: with it goes what the link kept.
    fn join_kept(&mut self, direction: Direction, position: usize) {
        let flow = self.flow_mut(direction);
        if flow.kept.is_empty() {
            return;
        }
        if let Some(start) = flow.take_kept(position)
            && let Some(chunk) = &mut flow.chunk
        {
            chunk.window.start = start;
        }
    }

    /// A link is done with headers that it held.
    fn let_headers_go<H: Host>(&mut self, direction: Direction, position: usize, host: &mut H) {
        if self.flow(direction).is_held_by(position) {
            self.flow_mut(direction).hold = None;
            self.headers_left(direction, position, host);
        }
    }

    /// A link that keeps headers or a body, or waits, is done with that.
    pub(super) fn let_go<H: Host>(&mut self, direction: Direction, position: usize, host: &mut H) {
        let suspended = self.flow(direction).suspended;
        if let Some((_, task)) = suspended.filter(|(waits, _)| *waits == position) {
            self.flow_mut(direction).suspended = None;
            self.drop_share_wait(direction, host);
            self.complete(direction, position, task, Step::Done, host);
            return;
        }
        self.let_headers_go(direction, position, host);
        let flow = self.flow_mut(direction);
        if flow.chunk.is_some() {
            // Another link waits with a chunk before this one.
            flow.hand_on(position);
        } else if let Some(window) = flow.kept_by(position) {
            flow.take_kept(position);
            flow.chunk = Some(Chunk {
                next: position + 1,
                window,
                end: false,
            });
        }
    }

    /// Gives the headers to those links that have not had them, until one is not done with them.
    #[inline]
    pub(super) fn pass_on_headers<H: Host>(&mut self, direction: Direction, host: &mut H) {
        let links = self.states.len();
        loop {
            let flow = self.flow(direction);
            let position = flow.cursor;
            if flow.finished || position >= links {
                return;
            }
            let call = Call {
                phase: Phase::headers(direction),
                end_of_stream: flow.headers_end,
            };
            let interest = self.interest_at(direction, position);
            let step = if interest.headers(direction) {
                let index = self.link_at(direction, position);
                self.invoke_for_headers(direction, index, call, host)
            } else {
                Step::Done
            };
            let may_hold = interest.body(direction) == BodyMode::Whole;
            if step != Step::Done || may_hold {
                self.complete(direction, position, Task::Headers, step, host);
                return;
            }
            self.headers_left(direction, position, host);
        }
    }

    /// Gives a chunk to those links that stream, until one is not done with it, or changes its length. Answers
    /// whether it passed all. For a flow in which nothing waits, and nothing is kept.
    #[inline]
    pub(super) fn pass_on_chunk<H: Host>(
        &mut self,
        direction: Direction,
        window: Window,
        end: bool,
        host: &mut H,
    ) -> bool {
        let call = Call {
            phase: Phase::body(direction),
            end_of_stream: end,
        };
        for position in 0..self.states.len() {
            if self.interest_at(direction, position).body(direction) != BodyMode::Stream {
                continue;
            }
            let flow = self.flow_mut(direction);
            flow.fresh = window.end;
            flow.chunk = Some(Chunk {
                next: position,
                window,
                end,
            });
            let index = self.link_at(direction, position);
            let (step, left) = self.invoke_for_chunk(direction, index, call, window, host);
            if step == Step::Done && left == window {
                continue;
            }
            self.complete(direction, position, Task::Chunk, step, host);
            return false;
        }
        self.flow_mut(direction).chunk = None;
        true
    }

    /// The body that a link waits for is complete.
    fn whole_body<H: Host>(&mut self, direction: Direction, hold: Hold, host: &mut H) {
        let (_, total) = self.body_lengths(direction, host);
        let flow = self.flow_mut(direction);
        // What is behind this link sees the body as one chunk, which this link changes first.
        let end = flow.trailers.is_none();
        flow.chunk = Some(Chunk {
            next: hold.position,
            window: Window {
                start: 0,
                end: total,
            },
            end,
        });
        flow.kept.clear();
        let action = if hold.until == Until::ResumedWithBody {
            Action::Resume(Wake::Body)
        } else {
            Action::Call(Call {
                phase: Phase::body(direction),
                end_of_stream: end,
            })
        };
        let step = self.invoke(direction, hold.position, Task::WholeBody, action, host);
        self.complete(direction, hold.position, Task::WholeBody, step, host);
    }

    /// Whether a body follows the headers. What follows a 101 is another protocol's, without an end: to
    /// collect it would be to wait for good.
    fn has_body<H: Host>(&self, direction: Direction, position: usize, host: &H) -> bool {
        let switches = || {
            direction == Direction::Response
                && self.local.is_none()
                && host.header(HeaderMap::ResponseHeaders, b":status", 0) == Some(b"101")
        };
        // What a link made itself, it does not wait for.
        let flow = self.flow(direction);
        !flow.headers_end && flow.made_by != Some(position) && !switches()
    }

    /// Draws the consequences of a call.
    pub(super) fn complete<H: Host>(
        &mut self,
        direction: Direction,
        position: usize,
        task: Task,
        step: Step,
        host: &mut H,
    ) {
        match step {
            Step::Replied => {}
            Step::Paused => self.flow_mut(direction).suspended = Some((position, task)),
            Step::Keeps if task == Task::Headers => {
                if self.has_body(direction, position, host) {
                    self.flow_mut(direction).hold = Some(Hold {
                        position,
                        until: Until::LetGo,
                    });
                } else {
                    self.flow_mut(direction).suspended = Some((position, task));
                }
            }
            Step::Keeps => {
                let flow = self.flow_mut(direction);
                if flow.chunk.is_none_or(|chunk| chunk.end) {
                    flow.suspended = Some((position, task));
                } else {
                    flow.keep(position);
                }
            }
            Step::WantsBody => {
                if self.has_body(direction, position, host) {
                    self.flow_mut(direction).hold = Some(Hold {
                        position,
                        until: Until::ResumedWithBody,
                    });
                } else {
                    // There is no body to wait for.
                    let step =
                        self.invoke(direction, position, task, Action::Resume(Wake::Body), host);
                    self.complete(direction, position, task, step, host);
                }
            }
            Step::Done => {
                let wants_body =
                    self.interest_at(direction, position).body(direction) == BodyMode::Whole;
                let holds =
                    task == Task::Headers && wants_body && self.has_body(direction, position, host);
                match task {
                    Task::Headers if holds => {
                        self.flow_mut(direction).hold = Some(Hold {
                            position,
                            until: Until::WholeBody,
                        });
                    }
                    Task::Headers => self.headers_left(direction, position, host),
                    Task::WholeBody => {
                        self.flow_mut(direction).hold = None;
                        self.headers_left(direction, position, host);
                        if let Some(chunk) = &mut self.flow_mut(direction).chunk {
                            chunk.next = position + 1;
                        }
                    }
                    Task::Chunk => {
                        self.let_headers_go(direction, position, host);
                        let flow = self.flow_mut(direction);
                        if let Some(chunk) = &mut flow.chunk {
                            chunk.next = position + 1;
                        }
                    }
                    Task::Trailers => {
                        self.flow_mut(direction).trailers = Some(position + 1);
                        self.let_go(direction, position, host);
                    }
                }
            }
        }
    }
}
