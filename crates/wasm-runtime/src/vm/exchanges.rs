//! The parts and the ends of gRPC calls and streams.

use outrider_plugin_api::{CalloutFailure, HttpStreamEvent, HttpStreamId, WakeId, own_headers};
use wasmtime::Store;

use super::events::act_for_root;
use super::{enter, small};
use crate::contexts::Callout;
use crate::exports::Exports;
use crate::grpc::{self, Failure, Kind, Part};
use crate::state::State;
use crate::trouble::Trouble;

/// Something has come on an HTTP stream that carries gRPC: of the stream at a place, or, with none, of a root.
pub(super) fn grpc_event(
    store: &mut Store<State>,
    exports: &Exports,
    place: Option<usize>,
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
                response.headers = own_headers(headers);
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
                response.trailers = own_headers(trailers);
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
    let Some(callout) = store.data_mut().contexts.take_callout(place, wake) else {
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
        && place.is_some()
        && let Some(stream) = store.data_mut().lent.stream_mut()
    {
        stream.cancel(wake);
    }
    let answer = grpc.answer.clone();
    grpc_done(store, exports, &callout, kind, answer, outcome)
}

/// The kind, the root and the token of an exchange that is under way.
fn grpc_of(
    store: &mut Store<State>,
    place: Option<usize>,
    wake: WakeId,
) -> Option<(Kind, u32, u32)> {
    let callout = store.data_mut().contexts.callout(place, wake)?;
    Some((callout.grpc.as_ref()?.kind, callout.root, callout.token))
}

/// A chunk has come: its messages are told. Answers what is wrong with it.
fn grpc_data(
    store: &mut Store<State>,
    exports: &Exports,
    place: Option<usize>,
    wake: WakeId,
    pieces: &[&[u8]],
) -> Result<Option<Failure>, Trouble> {
    let mut fresh = Some(pieces);
    loop {
        // Looked for each time: the guest may cancel in between.
        let Some(callout) = store.data_mut().contexts.callout(place, wake) else {
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

/// A root is over: it is told that nothing comes of its exchanges that are under way. That each of them has ended
/// comes as well, sooner or later than this, and finds nobody then.
pub(super) fn end_exchanges(
    store: &mut Store<State>,
    exports: &Exports,
    root: u32,
) -> Result<(), Trouble> {
    for callout in store.data_mut().contexts.take_exchanges(root) {
        if let Some(grpc) = &callout.grpc {
            let failure = Failure {
                code: grpc::code::UNAVAILABLE,
                message: "the configuration is over".to_owned(),
            };
            grpc_done(store, exports, &callout, grpc.kind, None, failure)?;
        }
    }
    Ok(())
}

/// An exchange is over.
pub(super) fn grpc_done(
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
