//! A link's circuit on the way of a stream: asked before the link's first call on it, told how it went
//! when the stream is over, and what becomes of it said in the log and in statistics.

use super::LinkState;
use super::call::count;
use crate::chain::Link;
use crate::circuit::{Admission, CircuitChange, WINDOW};
use crate::failure::{Cause, FailureAction, Fault};
use crate::host::Host;
use crate::stream::LogLevel;

/// Whether the link's circuit is open for this stream. Asked once a stream: one that has begun with the
/// plugin goes on with it.
pub(super) fn is_refused<H: Host>(link: &Link, state: &mut LinkState, host: &mut H) -> bool {
    if state.admission.is_some() {
        return false;
    }
    if link.circuit.is_calm() {
        state.admission = Some(Admission::Go);
        return false;
    }
    ask(link, state, host)
}

#[cold]
fn ask<H: Host>(link: &Link, state: &mut LinkState, host: &mut H) -> bool {
    let (admission, change) = link.circuit.admit(host.unix_millis());
    state.admission = Some(admission);
    tell(link, change, host);
    if admission != Admission::Refused {
        return false;
    }
    state.out = true;
    let refusals = link.metrics.errors.get(Cause::Circuit.index());
    count(host, refusals.copied().flatten());
    true
}

/// The link failed on this stream.
#[cold]
pub(super) fn failed<H: Host>(link: &Link, state: &mut LinkState, fault: &Fault, host: &mut H) {
    if state.failed {
        return;
    }
    let admission = state.admission.unwrap_or(Admission::Go);
    if !fault.cause.is_blamed() {
        // An error says nothing about what the plugin costs: the stream counts as a good one.
        if fault.cause == Cause::Error && !link.circuit.is_calm() {
            state.failed = true;
            succeeded(link, admission, host);
        }
        return;
    }
    state.failed = true;
    let change = link
        .circuit
        .failed(admission, &fault.message, host.unix_millis());
    tell(link, change, host);
}

/// The stream is over, and the link did not fail on it.
pub(super) fn over<H: Host>(link: &Link, state: &mut LinkState, host: &mut H) {
    if link.circuit.is_calm() || state.failed || state.out {
        return;
    }
    if let Some(admission) = state.admission {
        succeeded(link, admission, host);
    }
}

#[cold]
fn succeeded<H: Host>(link: &Link, admission: Admission, host: &mut H) {
    let change = link.circuit.succeeded(admission, host.unix_millis());
    tell(link, change, host);
}

fn tell<H: Host>(link: &Link, change: Option<CircuitChange>, host: &mut H) {
    let gauge = link.circuit.gauge_change();
    if gauge != 0
        && let Some(metric) = link.metrics.circuit_open
    {
        host.add_metric(metric, gauge);
    }
    let Some(change) = change else { return };
    let scope = link.circuit.scope();
    let (level, message) = match change {
        CircuitChange::Opened {
            failures,
            pause,
            last_failure,
        } => {
            count(host, link.metrics.circuit_opened);
            let why = match failures {
                0 => "a stream on trial failed".to_owned(),
                1 => "a stream failed".to_owned(),
                _ => format!("{failures} streams failed within {} s", WINDOW.as_secs()),
            };
            let policy = match link.failure_policy.action(Cause::Circuit) {
                FailureAction::Open => "streams go on without it".to_owned(),
                FailureAction::Closed => {
                    format!("streams get status {}", link.failure_policy.status())
                }
            };
            let message = format!(
                "its circuit ({scope}) opens for {} ms, as {why}: it is not called meanwhile, and \
                 {policy}. The last failure: {last_failure}",
                pause.as_millis()
            );
            (LogLevel::Warn, message)
        }
        CircuitChange::HalfOpened => (
            LogLevel::Info,
            format!("its circuit ({scope}) is half open: it is called on trial, for one stream"),
        ),
        CircuitChange::Closed { after } => (
            LogLevel::Info,
            format!(
                "its circuit ({scope}) is closed again, after {} ms",
                after.as_millis()
            ),
        ),
    };
    if host.log_enabled(level) {
        host.log(level, &link.name, &message);
    }
}
