//! What comes beside a stream's phases: the ends of callouts, ticks, queues with something in them, and looking
//! at what waits.

use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{CalloutFailure, Cause, Fault, HttpStreamId, Wake, WakeId, own_headers};
use wasmtime::Store;

use super::exchanges::{grpc_done, grpc_event};
use super::{enter, small};
use crate::contexts::{Callout, Root};
use crate::exports::Exports;
use crate::grpc::{self, Failure};
use crate::mailbox::{self, Mail, Outcome};
use crate::state::{Moment, Response, State};
use crate::trouble::Trouble;

/// How long a pause that nothing else ends goes on before it is looked at again.
const SHORTEST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_LOOK: Duration = Duration::from_millis(40);
/// The stream pauses. Where a callout is under way, its end wakes the stream. Otherwise somebody else has to
/// let it go on, such as a root that ticks: a timer looks whether that has happened.
pub(super) fn watch(store: &mut Store<State>, place: usize) -> Result<(), Fault> {
    let state = store.data_mut();
    let period = state
        .contexts
        .roots
        .iter()
        .map(|root| root.tick)
        .filter(|tick| *tick > 0)
        .min();
    let Some(context) = state.contexts.at_mut(place).filter(|context| {
        context.watch.is_none() && (context.callouts.is_empty() || period.is_some())
    }) else {
        return Ok(());
    };
    let doubled = SHORTEST_LOOK.saturating_mul(1 << context.looks.min(8));
    let mut delay = doubled.min(LONGEST_LOOK);
    if let Some(period) = period {
        delay = delay.min(Duration::from_millis(u64::from(period)));
    }
    let Some(stream) = state.lent.stream_mut() else {
        return Ok(());
    };
    match stream.start_timer(delay) {
        Ok(timer) => {
            context.watch = Some(timer);
            Ok(())
        }
        // Something else will wake it, or it never goes on: better an end than that.
        Err(_) if !context.callouts.is_empty() => Ok(()),
        Err(failure) => Err(Fault {
            cause: Cause::Error,
            message: format!("it paused a stream that nothing can wake: {failure}"),
        }),
    }
}

/// A timer of `watch` is due.
pub(super) fn look(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    timer: u64,
) -> Result<(), Trouble> {
    let state = store.data_mut();
    let own_id = state.own_id;
    if let Some(context) = state.contexts.at_mut(place)
        && context.watch == Some(timer)
    {
        context.watch = None;
        context.looks = context.looks.saturating_add(1);
    }
    background(store, exports, Duration::ZERO)?;
    store.data_mut().effective = own_id;
    Ok(())
}

/// As `background`, at a stream's call: only where that comes by no other way.
#[inline]
pub(super) fn background_with_streams(
    store: &mut Store<State>,
    exports: &Exports,
) -> Result<(), Trouble> {
    if has_background(store.data()) {
        background(store, exports, Duration::ZERO)
    } else {
        Ok(())
    }
}

/// Whether there may be something to do at a stream's call that comes by no other way.
#[inline]
pub(super) fn has_background(state: &State) -> bool {
    (state.contexts.has_ticks() || state.mailbox.has_mail()) && !state.shared.runs_beside_streams()
}

/// Calls the roots whose time has come, or comes within `slack`, and delivers the mailbox.
///
/// A VM does so for a tenth of a worker's time at most: CPU time that a turn takes is followed by nine times as much in
/// which there is none. Turns of less than [`FREE_TURN`] are not counted.
pub(super) fn background(
    store: &mut Store<State>,
    exports: &Exports,
    slack: Duration,
) -> Result<(), Trouble> {
    let state = store.data();
    if state.shared.clock.now() < state.rests_until {
        return Ok(());
    }
    let before = (state.effective, state.root, state.moment);
    let began = state.shared.thread_cpu_time();
    let done = tick(store, exports, slack).and_then(|()| deliver(store, exports));
    let state = store.data_mut();
    let ended = state.shared.thread_cpu_time();
    let took = ended
        .unwrap_or_default()
        .saturating_sub(began.unwrap_or_default());
    if took >= FREE_TURN {
        state.rests_until = state.shared.clock.now() + took.saturating_mul(REST);
    }
    done?;
    (state.effective, state.root, state.moment) = before;
    Ok(())
}

/// CPU time of a turn that is not counted.
const FREE_TURN: Duration = Duration::from_micros(200);
/// A turn is followed by so many times its CPU time without one.
const REST: u32 = 9;

/// Returns the time until the next turn, or `None` if nothing is to be done.
pub(super) fn next_due(state: &State) -> Option<Duration> {
    let now = state.shared.clock.now();
    let rest = state.rests_until.saturating_sub(now);
    if state.mailbox.has_mail() {
        return Some(rest);
    }
    let ticking = state.contexts.roots.iter().filter(|root| root.tick > 0);
    let due = ticking.map(|root| root.next_tick.saturating_sub(now)).min();
    due.map(|due| due.max(rest))
}

/// So much is told at once; what it leads to is told later.
const MOST_NOTICES: usize = 64;

fn deliver(store: &mut Store<State>, exports: &Exports) -> Result<(), Trouble> {
    for _ in 0..MOST_NOTICES {
        let state = store.data_mut();
        match state.mailbox.take() {
            None => return Ok(()),
            Some(Mail::Queue { root, token }) => {
                if state.contexts.root(root).is_none() {
                    continue;
                }
                let Some(on_queue_ready) = &exports.on_queue_ready else {
                    continue;
                };
                act_for_root(store, root);
                let arguments = (root.cast_signed(), token.cast_signed());
                enter(store, "proxy_on_queue_ready", on_queue_ready, arguments)?;
            }
            Some(Mail::Callout { token, outcome }) => {
                let callouts = &mut state.contexts.callouts;
                let Some(found) = callouts.iter().position(|one| one.token == token) else {
                    continue;
                };
                let callout = callouts.swap_remove(found);
                http_done(store, exports, &callout, outcome)?;
            }
            Some(Mail::Grpc { token, event }) => {
                let id = HttpStreamId(u64::from(token));
                event.with(|event| grpc_event(store, exports, None, id, &event))?;
            }
        }
    }
    Ok(())
}

/// The guest acts for a root.
pub(super) fn act_for_root(store: &mut Store<State>, root: u32) {
    let state = store.data_mut();
    state.effective = root;
    state.root = root;
    state.moment = Moment::Other;
}

/// Calls the roots whose time has come.
fn tick(store: &mut Store<State>, exports: &Exports, slack: Duration) -> Result<(), Trouble> {
    let Some(on_tick) = &exports.on_tick else {
        return Ok(());
    };
    let state = store.data();
    let now = state.shared.clock.now();
    // Listed before the first is called, so that each is called once in a turn.
    let due: Vec<(u32, u32)> = state
        .contexts
        .roots
        .iter()
        // Never earlier than after the least period.
        .filter(|root| {
            let slack = slack.min(period(root).saturating_sub(LEAST_PERIOD));
            root.tick > 0 && root.next_tick <= now + slack
        })
        .map(|root| (root.id, root.configuration))
        .collect();
    for (id, configuration) in due {
        let shared = Arc::clone(&store.data().shared);
        let wait = shared.tick_failures().wait(configuration, now);
        if let Some(root) = store.data_mut().contexts.root(id) {
            root.next_tick = now + wait.max(period(root));
        } else {
            // An earlier one removed it.
            continue;
        }
        if !wait.is_zero() {
            continue;
        }
        act_for_root(store, id);
        let ticked = enter(store, "proxy_on_tick", on_tick, id.cast_signed());
        let now = shared.clock.now();
        shared
            .tick_failures()
            .note(configuration, ticked.is_ok(), now);
        ticked?;
        if let Some(root) = store.data_mut().contexts.root(id) {
            // Counted from the tick's end.
            root.next_tick = now + period(root);
        }
    }
    Ok(())
}

/// The least period of ticks.
const LEAST_PERIOD: Duration = Duration::from_millis(10);

/// Returns the period of a root's ticks.
fn period(root: &Root) -> Duration {
    Duration::from_millis(u64::from(root.tick)).max(LEAST_PERIOD)
}

/// What came of something that the guest started on a stream.
pub(super) fn told(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    wake: &Wake<'_>,
) -> Result<(), Trouble> {
    let own_id = store.data().own_id;
    store.data_mut().answers_stream = true;
    match wake {
        Wake::Callout(id, outcome) => {
            if let Some(callout) = store
                .data_mut()
                .contexts
                .take_callout(Some(place), WakeId::Callout(*id))
            {
                http_done(store, exports, &callout, mailbox::own(*outcome))?;
            }
        }
        Wake::HttpStream(id, event) => grpc_event(store, exports, Some(place), *id, event)?,
        Wake::Timer(_) | Wake::Body => {}
    }
    let state = store.data_mut();
    state.answers_stream = false;
    state.effective = own_id;
    Ok(())
}

/// The stream is over with callouts under way: their roots are told that nothing comes of them, so that
/// each token is told of once.
pub(super) fn abandoned(
    store: &mut Store<State>,
    exports: &Exports,
    callouts: impl IntoIterator<Item = Callout>,
) -> Result<(), Trouble> {
    for callout in callouts {
        if let Some(grpc) = &callout.grpc {
            let failure = Failure {
                code: grpc::code::UNAVAILABLE,
                message: "the stream is over".to_owned(),
            };
            let kind = grpc.kind;
            grpc_done(store, exports, &callout, kind, None, failure)?;
        } else {
            http_done(store, exports, &callout, Err(CalloutFailure::StreamOver))?;
        }
    }
    Ok(())
}

/// What Envoy says of a callout that took too long, and of one whose connection broke.
const TIMEOUT: &str = "upstream request timeout";
const RESET: &str = "upstream connect error or disconnect/reset before headers";

/// As in Envoy's host, some failures are responses.
fn synthetic(response: &mut Response, status: &[u8], text: &str) {
    response.headers = own_headers(&[
        (b":status", status),
        (b"content-length", text.len().to_string().as_bytes()),
        (b"content-type", b"text/plain"),
    ]);
    response.body.extend_from_slice(text.as_bytes());
}

fn http_done(
    store: &mut Store<State>,
    exports: &Exports,
    callout: &Callout,
    outcome: Outcome,
) -> Result<(), Trouble> {
    let state = store.data_mut();
    let response = &mut state.response;
    response.clear();
    response.is_there = true;
    let status = match outcome {
        Ok((headers, body)) => {
            response.headers = headers;
            response.body = body;
            (0, "")
        }
        Err(CalloutFailure::Timeout) => {
            synthetic(response, b"504", TIMEOUT);
            (0, "")
        }
        Err(CalloutFailure::Reset) => {
            synthetic(response, b"503", RESET);
            (0, "")
        }
        Err(_) => (11, "reset"),
    };
    let (headers, body) = (small(response.headers.len()), small(response.body.len()));
    if let Some(root) = state.contexts.root(callout.root) {
        root.outcome = (status.0, status.1.to_owned());
    }
    act_for_root(store, callout.root);
    let told = match &exports.on_http_call_response {
        Some(function) => enter(
            store,
            "proxy_on_http_call_response",
            function,
            (
                callout.root.cast_signed(),
                callout.token.cast_signed(),
                headers,
                body,
                0,
            ),
        ),
        None => Ok(()),
    };
    store.data_mut().response.clear();
    told
}
