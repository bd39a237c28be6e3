//! Cases of plugins, replayed on the real Envoy: the files that `plugin-testkit` runs without one, through a
//! gateway that `outrider up` serves, between a client and upstreams that answer by script.
//!
//! Not here: what a case is, and running it without Envoy. One gateway serves all cases of one body limit:
//! each case has a plugin entry of its own that has the case's configuration at the gateway, is off in the
//! project, and is on in the case's own route (found by a header) with the case's route configuration.
//!
//! The trap: here time passes by itself. What only a clock that is put forward can show is not replayed,
//! and says so ([`Outcome::NotReplayed`]).

mod check;
mod gateway;
mod output;
mod refused;
mod replay;
mod scripted;

pub use output::Output;
pub use replay::{Outcome, Subject, Tools, replay};
pub use scripted::{Answer, AnswerBody, AnswerFailure, Fields, Received, Scripted, values};
