//! HTTP callouts, and what is known of the last one.

use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Background, CALLOUT_COST, CalloutFailure, CalloutId, CalloutRequest, MOST_UNDER_WAY, WakeId,
};

use crate::abi::Status;
use crate::contexts::{Callout, TokenKind};
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split, write_u32};
use crate::pairs;
use crate::state::State;

/// Bytes of a callout's body, and of a reply's: they are copied at once.
pub(crate) const MOST_BODY: usize = 16 * 1024 * 1024;

/// What a guest is told of a callout that cannot be made: few statuses, as SDKs know no others.
pub(crate) fn refusal(failure: CalloutFailure) -> Status {
    match failure {
        CalloutFailure::ClusterNotFound
        | CalloutFailure::NotAllowed
        | CalloutFailure::MissingHeaders
        | CalloutFailure::BadHeader(_) => Status::BadArgument,
        _ => Status::InternalFailure,
    }
}

/// A number of milliseconds as a time limit; 0 is none.
pub(crate) fn limit(milliseconds: i32) -> Option<Duration> {
    let milliseconds = milliseconds.cast_unsigned();
    (milliseconds > 0).then(|| Duration::from_millis(u64::from(milliseconds)))
}

#[expect(
    clippy::too_many_arguments,
    reason = "they are the interface's arguments"
)]
pub(crate) fn http_call(
    guest: &mut Guest<'_>,
    upstream: i32,
    upstream_length: i32,
    headers: i32,
    headers_length: i32,
    body: i32,
    body_length: i32,
    trailers: i32,
    trailers_length: i32,
    timeout: i32,
    token_place: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let (Some(upstream), Some(headers), Some(body), Some(_), Some(_)) = (
        bytes(memory, upstream, upstream_length),
        bytes(memory, headers, headers_length),
        bytes(memory, body, body_length),
        bytes(memory, trailers, trailers_length),
        bytes(memory, token_place, 4),
    ) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    if timeout < 0 {
        // As in Envoy, which takes no more than 2^31 - 1 ms.
        return Ok(Status::BadArgument);
    }
    if body.len() > MOST_BODY {
        return Ok(Status::InternalFailure);
    }
    // As in Envoy, what is no map is an empty one.
    let mut headers = pairs::read(headers).unwrap_or_default();
    let has_authority = headers.iter().any(|(name, _)| *name == b":authority");
    for (name, _) in &mut headers {
        if !has_authority && name.eq_ignore_ascii_case(b"host") {
            *name = b":authority";
        }
    }
    let request = CalloutRequest {
        cluster: upstream,
        headers: &headers,
        body,
        timeout: limit(timeout),
    };
    let root = state.effective_root();
    // What follows from the answer that a stream waited for is what it waits for next.
    let is_of_stream = state.is_own() || (state.answers_stream && state.own.is_some());
    if !is_of_stream && let Some(begun) = of_a_root(state, root, &request) {
        let (status, token) = begun.map_or_else(|status| (status, 0), |token| (Status::Ok, token));
        return Ok(match write_u32(memory, token_place, token) {
            Status::Ok => status,
            outside => outside,
        });
    }
    let (Some(place), Some(stream)) = (state.own, state.lent.stream_mut()) else {
        return Ok(Status::InternalFailure);
    };
    let id = match stream.start_callout(&request) {
        Ok(id) => id,
        Err(failure) => {
            write_u32(memory, token_place, 0);
            return Ok(refusal(failure));
        }
    };
    let token = state.contexts.token(TokenKind::HttpCall);
    if let Some(context) = state.contexts.at_mut(place) {
        context.callouts.push(Callout {
            token,
            wake: WakeId::Callout(id),
            grpc: None,
            root,
        });
    }
    Ok(write_u32(memory, token_place, token))
}

/// How a root's callout lives on beside streams.
pub(crate) enum Lives {
    /// It does not: a configuration is only checked. Nothing is sent, and nothing comes back.
    Checked,
    /// The proxy makes it.
    With(Arc<dyn Background>),
}

/// Whether what the guest begins is its root's, and outlives the stream that happens to be at hand. None: it has to
/// do with that stream, because the guest acts for another, or there is no way to do without.
pub(crate) fn may_outlive_streams(state: &mut State, root: u32) -> Option<Lives> {
    if state.context().is_some() || state.contexts.root(root).is_none() {
        return None;
    }
    if state.lent.metrics_mut().is_some() {
        return Some(Lives::Checked);
    }
    let background = state.shared.background.as_ref();
    let background = background.filter(|background| background.is_there())?;
    Some(Lives::With(Arc::clone(background)))
}

/// Begins a callout for a root.
fn of_a_root(
    state: &mut State,
    root: u32,
    request: &CalloutRequest<'_>,
) -> Option<Result<u32, Status>> {
    let lives = may_outlive_streams(state, root)?;
    if state.contexts.callouts.len() >= MOST_UNDER_WAY {
        return Some(Err(refusal(CalloutFailure::TooMany)));
    }
    let token = state.contexts.token(TokenKind::HttpCall);
    if let Lives::With(background) = lives {
        let mailbox = Arc::downgrade(&state.mailbox);
        let bell = Arc::clone(&background);
        let begun = background.start_callout(
            request,
            Box::new(move |outcome| {
                // The VM may be gone by then.
                if let Some(mailbox) = mailbox.upgrade() {
                    mailbox.put_outcome(token, outcome, &*bell);
                    bell.ring_in(Duration::ZERO);
                }
            }),
        );
        if let Err(failure) = begun {
            return Some(Err(refusal(failure)));
        }
        state.time.slot().charge(CALLOUT_COST);
    }
    state.contexts.callouts.push(Callout {
        token,
        wake: WakeId::Callout(CalloutId(u64::from(token))),
        grpc: None,
        root,
    });
    Some(Ok(token))
}

pub(crate) fn get_status(
    guest: &mut Guest<'_>,
    code_place: i32,
    message: i32,
    length: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let root = state.effective_root();
    let mut scratch = std::mem::take(&mut state.scratch);
    scratch.clear();
    let code = state.contexts.root(root).map_or(0, |root| {
        scratch.extend_from_slice(root.outcome.1.as_bytes());
        root.outcome.0
    });
    state.scratch = scratch;
    if write_u32(memory, code_place, code) != Status::Ok {
        return Ok(Status::InvalidMemoryAccess);
    }
    hand_over(guest, message, length)
}
