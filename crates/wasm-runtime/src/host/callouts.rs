//! HTTP callouts, and what is known of the last one.

use std::time::Duration;

use outrider_plugin_api::{CalloutFailure, CalloutRequest, WakeId};

use crate::abi::Status;
use crate::contexts::{Callout, TokenKind};
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split, write_u32};
use crate::pairs;

/// What a guest is told of a callout that cannot be made: few statuses, as SDKs know no others.
pub(crate) fn refusal(failure: CalloutFailure) -> Status {
    match failure {
        CalloutFailure::ClusterNotFound | CalloutFailure::MissingHeaders => Status::BadArgument,
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
