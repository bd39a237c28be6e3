//! CPU time of Envoy for each request: one Envoy with a listener for each variant, each under load for
//! a moment, in turns, over many rounds whose order rotates.
//!
//! Not throughput: on a shared machine that says what the neighbours did. The trap: CPU time still
//! depends on how warm caches are and how fast the clock runs, so only differences within a round
//! count, and the baseline's twin says how much of a difference is none.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use outrider_envoy_process::{Envoy, Level, Options};

use super::bootstrap::{Answers, Listener, bootstrap};
use super::load::{Connection, request};
use super::report::{Timed, Times};
use super::settle::settle;
use super::variant::Variant;
use crate::experiment::counters::ProcessCounters;
use crate::free_address::own_addresses;

const CONNECTIONS: usize = 8;
const SLICE: Duration = Duration::from_millis(150);
const READY: Duration = Duration::from_mins(1);

/// Loads each variant in each round.
pub(crate) fn measure(
    envoy: &Path,
    modules: &Path,
    upstream: SocketAddr,
    variants: &[Variant],
    rounds: usize,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Times> {
    let folder = tempfile::Builder::new()
        .prefix("outrider-bench-")
        .tempdir()?;
    let addresses = own_addresses(variants.len())?;
    let listeners = variants
        .iter()
        .zip(&addresses)
        .map(|(variant, address)| {
            let answers = Answers::from(variant.shape);
            Listener::new(*address, answers, variant.filters.clone())
        })
        .collect();
    let file = folder.path().join("bootstrap.json");
    fs::write(
        &file,
        bootstrap(listeners, Some(upstream), true).to_string(),
    )?;
    let mut options = Options::new(envoy, file);
    options.concurrency = Some(1);
    options.module_folder = Some(modules.to_owned());
    options.log_level = Level::Error;
    let mut envoy = Envoy::start(options)?;
    envoy.wait_ready(READY)?;
    let process = envoy.process_id();
    settle(process)?;
    let mut loads = Vec::new();
    for (variant, address) in variants.iter().zip(addresses) {
        let connections: Result<Vec<_>, _> = (0..CONNECTIONS)
            .map(|_| Connection::open(address))
            .collect();
        loads.push((connections?, request(variant.shape)));
    }
    let mut microseconds = vec![Vec::new(); variants.len()];
    // The first round warms.
    for round in 0..=rounds {
        let mut order: Vec<_> = (0..variants.len()).collect();
        order.rotate_left(round * 7 % variants.len().max(1));
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (Some((connections, bytes)), Some(results)) =
                (loads.get_mut(index), microseconds.get_mut(index))
            else {
                continue;
            };
            let each = slice(process, connections, bytes)?;
            if round > 0 {
                results.push((each * 1000.0).round() / 1000.0);
            }
        }
        write!(out, ".")?;
        out.flush()?;
    }
    writeln!(out)?;
    envoy.stop(Duration::from_secs(5));
    Ok(Times {
        connections: CONNECTIONS,
        slice_ms: SLICE.as_millis() as u64,
        timed: variants
            .iter()
            .zip(microseconds)
            .map(|(variant, microseconds)| Timed {
                workload: variant.workload.clone(),
                mechanism: variant.mechanism,
                shape: variant.shape,
                microseconds,
            })
            .collect(),
    })
}

/// One moment of load; CPU microseconds for each request.
fn slice(process: u32, connections: &mut [Connection], request: &[u8]) -> anyhow::Result<f64> {
    let before = ProcessCounters::read(process)?;
    let end = Instant::now() + SLICE;
    let mut requests = 0_u64;
    while Instant::now() < end {
        for connection in connections.iter_mut() {
            connection.send(request)?;
        }
        for connection in connections.iter_mut() {
            connection.receive()?;
            requests += 1;
        }
    }
    let spent = ProcessCounters::read(process)?.since(before).cpu;
    Ok(spent as f64 / 1000.0 / requests as f64)
}
