#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

mod beside;
mod call_time;
mod callers;
mod callouts;
mod corpus;
mod exchanges;
mod fake;
mod faults;
mod hostile;
mod kept;
mod loading;
mod made;
mod off_worker;
mod sequences;
mod shares;
mod signatures;
mod spare;
mod streams;
mod superseded;
