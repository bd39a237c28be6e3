//! The kit itself.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

mod cases;
mod circuits;
mod driver;
mod facts;
mod keeping;
mod permissions;
mod scripted;
mod waiting;
