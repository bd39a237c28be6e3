//! A load generator in its own right, used by `outrider lab load` and by the lab's scenarios.
//!
//! - **Open loop**: requests are sent by a [`Schedule`], whatever the answers do. The latency of a request is counted
//!   from the time at which it was meant to be sent, so a target that stalls delays all requests that were due
//!   meanwhile, and all of them count. The service time, from the actual send, stands beside it.
//! - **Closed loop**: each connection sends its next request as soon as the answer is there.
//!
//! HTTP/1.1 has an event loop of its own over epoll (`http1`), so that the generator costs little and keeps its
//! schedule to some microseconds. HTTP/2 and gRPC run on `h2` (`http2`).
//!
//! Not here: what a proxy's CPU time was, and which of two results is better. The trap: a generator shares the machine
//! with its target. [`Outcome::limit`] says when the generator, and not the target, was the limit.

mod clock;
mod error;
mod http1;
mod http2;
mod limit;
mod outcome;
mod request;
mod response;
mod run;
mod schedule;
mod search;
mod socket;
mod summary;
mod target;

pub use error::LoadError;
pub use limit::Limit;
pub use outcome::{ErrorKind, LATE, Outcome, Tally, histogram_text, new_histogram, read_histogram};
pub use request::{RequestError, RequestTemplate, parse_request_file};
pub use run::{Load, Progress, Session, SessionOptions};
pub use schedule::{Arrivals, Pacing, Phase, Schedule};
pub use search::{SearchEnd, SearchResult, SearchSettings, SearchStep, Trial, search};
pub use summary::{Distribution, PERCENTILES, PhaseSummary, SCHEMA, Summary};
pub use target::{Protocol, Target, Trust};
