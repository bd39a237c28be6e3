//! Tests of the run against a scripted host.

mod bounds;
mod framing;
mod host;
mod memory;
mod routes;
mod separate;
mod share;
mod undo;
mod unseen_request;
#[expect(dead_code, reason = "the parts that only later tests use")]
mod wire;
