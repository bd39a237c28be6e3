//! What comes beside a stream's phases: the ends of callouts, parts of gRPC calls, ticks, queues with something
//! in them, and looking at what waits.

use std::time::Duration;

use outrider_plugin_api::{
    CalloutFailure, Cause, Fault, HttpStreamEvent, HttpStreamId, Wake, WakeId,
};
use wasmtime::Store;

use super::{enter, small};
use crate::contexts::Callout;
use crate::exports::Exports;
use crate::grpc::{self, Failure, Kind, Part};
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
    background(store, exports)?;
    store.data_mut().effective = own_id;
    Ok(())
}

/// Calls the roots whose time has come, and those whose queues have something in them.
#[inline]
pub(super) fn background(store: &mut Store<State>, exports: &Exports) -> Result<(), Trouble> {
    let state = store.data();
    let ticks = state.contexts.roots.iter().any(|root| root.tick > 0);
    if !ticks && !state.mailbox.has_mail() {
        return Ok(());
    }
    let before = (state.effective, state.root, state.moment);
    tick(store, exports)?;
    deliver(store, exports)?;
    let state = store.data_mut();
    (state.effective, state.root, state.moment) = before;
    Ok(())
}

/// So many notices are delivered at once; what they lead to is delivered later.
const MOST_NOTICES: usize = 64;

fn deliver(store: &mut Store<State>, exports: &Exports) -> Result<(), Trouble> {
    let Some(on_queue_ready) = &exports.on_queue_ready else {
        return Ok(());
    };
    for _ in 0..MOST_NOTICES {
        let state = store.data_mut();
        let Some((root, token)) = state.mailbox.take() else {
            return Ok(());
        };
        if state.contexts.root(root).is_none() {
            continue;
        }
        act_for_root(store, root);
        let arguments = (root.cast_signed(), token.cast_signed());
        enter(store, "proxy_on_queue_ready", on_queue_ready, arguments)?;
    }
    Ok(())
}

/// The guest acts for a root.
fn act_for_root(store: &mut Store<State>, root: u32) {
    let state = store.data_mut();
    state.effective = root;
    state.root = root;
    state.moment = Moment::Other;
}

/// Calls the roots whose time has come.
fn tick(store: &mut Store<State>, exports: &Exports) -> Result<(), Trouble> {
    let Some(on_tick) = &exports.on_tick else {
        return Ok(());
    };
    let now = store.data().shared.clock.now();
    loop {
        let state = store.data_mut();
        let due = state
            .contexts
            .roots
            .iter_mut()
            .find(|root| root.tick > 0 && root.next_tick <= now);
        let Some(root) = due else { return Ok(()) };
        root.next_tick = now + Duration::from_millis(u64::from(root.tick));
        let id = root.id;
        act_for_root(store, id);
        enter(store, "proxy_on_tick", on_tick, id.cast_signed())?;
    }
}

/// What came of something that the guest started on a stream.
pub(super) fn told(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    wake: &Wake<'_>,
) -> Result<(), Trouble> {
    let own_id = store.data().own_id;
    match wake {
        Wake::Callout(id, outcome) => {
            if let Some(callout) = take(store, place, WakeId::Callout(*id)) {
                let response = match outcome {
                    Ok(response) => Ok((response.headers, response.body)),
                    Err(failure) => Err(*failure),
                };
                http_done(store, exports, &callout, response)?;
            }
        }
        Wake::HttpStream(id, event) => grpc_event(store, exports, place, *id, event)?,
        Wake::Timer(_) | Wake::Body => {}
    }
    store.data_mut().effective = own_id;
    Ok(())
}

/// Takes a callout out that is over.
fn take(store: &mut Store<State>, place: usize, wake: WakeId) -> Option<Callout> {
    let context = store.data_mut().contexts.at_mut(place)?;
    let found = context.callouts.iter().position(|one| one.wake == wake)?;
    Some(context.callouts.swap_remove(found))
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

/// Headers and body of a response.
type Parts<'a> = (&'a [(&'a [u8], &'a [u8])], &'a [&'a [u8]]);

/// What Envoy says of a callout that took too long, and of one whose connection broke.
const TIMEOUT: &str = "upstream request timeout";
const RESET: &str = "upstream connect error or disconnect/reset before headers";

/// As in Envoy's host, some failures are responses.
fn synthetic(response: &mut Response, status: &[u8], text: &str) {
    response.headers = grpc::own(&[
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
    outcome: Result<Parts<'_>, CalloutFailure>,
) -> Result<(), Trouble> {
    let state = store.data_mut();
    let response = &mut state.response;
    response.clear();
    response.is_there = true;
    let status = match outcome {
        Ok((headers, body)) => {
            response.headers = grpc::own(headers);
            for piece in body {
                response.body.extend_from_slice(piece);
            }
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

/// Something has come on an HTTP stream that carries gRPC.
fn grpc_event(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    id: HttpStreamId,
    event: &HttpStreamEvent<'_>,
) -> Result<(), Trouble> {
    let wake = WakeId::HttpStream(id);
    let Some((kind, root, token)) = grpc_of(store, place, wake) else {
        return Ok(());
    };
    let arguments = |number: usize| (root.cast_signed(), token.cast_signed(), small(number));
    let failure = |code, message: &str| {
        Some(Failure {
            code,
            message: message.to_owned(),
        })
    };
    let ended = || {
        failure(
            grpc::code::UNKNOWN,
            "the response ended without a grpc-status",
        )
    };
    let outcome = match event {
        HttpStreamEvent::Headers {
            headers,
            end_of_stream,
        } => {
            let wrong = grpc::of_http(headers).filter(|_| grpc::status(headers).is_none());
            if wrong.is_none()
                && kind == Kind::Stream
                && let Some(function) = &exports.on_grpc_receive_initial_metadata
            {
                let response = &mut store.data_mut().response;
                response.clear();
                response.headers = grpc::own(headers);
                act_for_root(store, root);
                enter(
                    store,
                    "proxy_on_grpc_receive_initial_metadata",
                    function,
                    arguments(headers.len()),
                )?;
            }
            match wrong {
                Some(wrong) => Some(wrong),
                None if *end_of_stream => grpc::status(headers).or_else(ended),
                None => None,
            }
        }
        HttpStreamEvent::Data {
            pieces,
            end_of_stream,
        } => {
            let wrong = grpc_data(store, exports, place, wake, pieces)?;
            match wrong {
                Some(wrong) => Some(wrong),
                None if *end_of_stream => ended(),
                None => None,
            }
        }
        HttpStreamEvent::Trailers(trailers) => {
            if kind == Kind::Stream
                && let Some(function) = &exports.on_grpc_receive_trailing_metadata
            {
                let response = &mut store.data_mut().response;
                response.clear();
                response.trailers = grpc::own(trailers);
                act_for_root(store, root);
                enter(
                    store,
                    "proxy_on_grpc_receive_trailing_metadata",
                    function,
                    arguments(trailers.len()),
                )?;
            }
            grpc::status(trailers).or_else(ended)
        }
        HttpStreamEvent::Complete => ended(),
        HttpStreamEvent::Failed(CalloutFailure::Timeout) => failure(
            grpc::code::UNAVAILABLE,
            "upstream request timeout{response_timeout}",
        ),
        HttpStreamEvent::Failed(reason) => failure(grpc::code::UNAVAILABLE, &reason.to_string()),
    };
    let Some(outcome) = outcome else {
        return Ok(());
    };
    let Some(callout) = take(store, place, wake) else {
        // The guest has cancelled it meanwhile.
        return Ok(());
    };
    let Some(grpc) = &callout.grpc else {
        return Ok(());
    };
    let is_over = matches!(
        event,
        HttpStreamEvent::Complete | HttpStreamEvent::Failed(_)
    );
    let is_half_open = grpc.sends || matches!(event, HttpStreamEvent::Data { .. });
    if !is_over
        && is_half_open
        && let Some(stream) = store.data_mut().lent.stream_mut()
    {
        stream.cancel(wake);
    }
    let answer = grpc.answer.clone();
    grpc_done(store, exports, &callout, kind, answer, outcome)
}

/// The kind, the root and the token of an exchange that is under way.
fn grpc_of(store: &Store<State>, place: usize, wake: WakeId) -> Option<(Kind, u32, u32)> {
    let context = store.data().contexts.at(place)?;
    let callout = context.callouts.iter().find(|one| one.wake == wake)?;
    Some((callout.grpc.as_ref()?.kind, callout.root, callout.token))
}

/// A chunk has come: its messages are told. Answers what is wrong with it.
fn grpc_data(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    wake: WakeId,
    pieces: &[&[u8]],
) -> Result<Option<Failure>, Trouble> {
    let mut fresh = Some(pieces);
    loop {
        // Looked for each time: the guest may cancel in between.
        let Some(context) = store.data_mut().contexts.at_mut(place) else {
            return Ok(None);
        };
        let Some(callout) = context.callouts.iter_mut().find(|one| one.wake == wake) else {
            return Ok(None);
        };
        let (root, token) = (callout.root, callout.token);
        let Some(grpc) = &mut callout.grpc else {
            return Ok(None);
        };
        if let Some(pieces) = fresh.take() {
            grpc.feed(pieces);
        }
        let message = match grpc.next() {
            Ok(Part::Message(message)) => message,
            Ok(Part::Nothing) => return Ok(None),
            Err(failure) => return Ok(Some(failure)),
        };
        if grpc.kind == Kind::Call {
            grpc.answer = Some(message);
            continue;
        }
        if let Some(function) = &exports.on_grpc_receive {
            let arguments = (
                root.cast_signed(),
                token.cast_signed(),
                small(message.len()),
            );
            let response = &mut store.data_mut().response;
            response.clear();
            response.body = message;
            act_for_root(store, root);
            enter(store, "proxy_on_grpc_receive", function, arguments)?;
        }
    }
}

/// An exchange is over.
fn grpc_done(
    store: &mut Store<State>,
    exports: &Exports,
    callout: &Callout,
    kind: Kind,
    answer: Option<Vec<u8>>,
    outcome: Failure,
) -> Result<(), Trouble> {
    let (root, token) = (callout.root.cast_signed(), callout.token.cast_signed());
    let code = outcome.code;
    let state = store.data_mut();
    state.response.clear();
    if let Some(root) = state.contexts.root(callout.root) {
        root.outcome = (code, outcome.message);
    }
    act_for_root(store, callout.root);
    let told = match (kind, code, answer) {
        (Kind::Call, grpc::code::OK, Some(message)) => {
            let length = small(message.len());
            store.data_mut().response.body = message;
            match &exports.on_grpc_receive {
                Some(function) => enter(
                    store,
                    "proxy_on_grpc_receive",
                    function,
                    (root, token, length),
                ),
                None => Ok(()),
            }
        }
        (kind, code, _) => {
            // A call that ended well without its message did not end well.
            let code = if kind == Kind::Call && code == grpc::code::OK {
                grpc::code::INTERNAL
            } else {
                code
            };
            match &exports.on_grpc_close {
                Some(function) => enter(
                    store,
                    "proxy_on_grpc_close",
                    function,
                    (root, token, code.cast_signed()),
                ),
                None => Ok(()),
            }
        }
    };
    store.data_mut().response.clear();
    told
}
