//! What stands around a gateway in demonstrations, tests and measurements: an upstream that tells
//! what reached it ([`echo`]), a client that tells what came back ([`client`]), and a load that tells
//! whether anything was lost ([`steady`]).
//!
//! Not for production, and not for other hosts: everything here is meant for loopback.
//!
//! The trap: HTTP/1.1 trailers are sent only when they were announced. The client announces those of
//! its requests by itself (`trailer: name`); to be given those of a response, a request must carry
//! `te: trailers`.

pub mod bench;
mod body;
pub mod body_echo;
pub mod chain;
pub mod chaos;
pub mod client;
pub mod demo;
pub mod demo_lanes;
pub mod echo;
pub mod experiment;
mod ext_proc;
mod free_address;
mod grpc_server;
mod headers;
pub mod hello;
pub mod hostile;
mod open_loop;
pub mod operations;
pub mod programs;
pub mod random;
pub mod scenario;
pub mod soak;
pub mod stages;
pub mod steady;
mod telemetry_sink;
pub mod tls;
mod up;

use std::io::Write as _;
use std::process::ExitCode;

pub use free_address::free_address;
pub use headers::Headers;

/// Returns the exit code of a program whose run ended so, after its error is on standard error.
pub fn exit_code(run: anyhow::Result<()>) -> ExitCode {
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to try when standard error is gone, too.
            let _ = writeln!(std::io::stderr(), "\n{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Which HTTP a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// HTTP/1.1 with keep-alive.
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    Http2,
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        })
    }
}
