//! gRPC calls and streams, over HTTP streams of the proxy.

use std::time::Duration;

use outrider_plugin_api::{CalloutFailure, HttpStreamId, HttpStreamRequest, WakeId};

use crate::abi::Status;
use crate::contexts::{Callout, TokenKind};
use crate::grpc::{Incoming, Kind, framed};
use crate::guest_memory::{Answer, Guest, bytes, split, write_u32};
use crate::pairs;
use crate::proto;
use crate::state::State;

/// What a guest says of an exchange that it begins.
struct Request<'a> {
    upstream: &'a [u8],
    service: &'a [u8],
    method: &'a [u8],
    metadata: &'a [u8],
    /// Of a call.
    message: Option<&'a [u8]>,
    timeout: u32,
}

/// The cluster and the authority of Envoy's `GrpcService`, which SDKs may send in the place of a name.
fn grpc_service(bytes: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let service = proto::fields(bytes)?;
    let envoy = proto::fields(proto::bytes(&service, 1)?)?;
    Some((proto::bytes(&envoy, 1)?, proto::bytes(&envoy, 2)))
}

fn begin(state: &mut State, request: &Request<'_>) -> Result<u32, Status> {
    let metadata = pairs::read(request.metadata).ok_or(Status::BadArgument)?;
    let path = [b"/", request.service, b"/", request.method].concat();
    let timeout = format!("{}m", request.timeout);
    let body = request.message.map(framed).unwrap_or_default();
    let root = state.effective_root();
    let most = state.shared.memory_budget;
    let (Some(place), Some(stream)) = (state.own, state.lent.stream_mut()) else {
        return Err(Status::InternalFailure);
    };
    let mut start = |cluster: &[u8], authority: &[u8]| {
        let mut headers: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"POST"),
            (b":path", &path),
            (b":authority", authority),
            (b":scheme", b"http"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ];
        if request.timeout > 0 {
            headers.push((b"grpc-timeout", timeout.as_bytes()));
        }
        headers.extend(metadata.iter().filter(|(name, _)| !name.starts_with(b":")));
        stream.start_http_stream(&HttpStreamRequest {
            cluster,
            headers: &headers,
            body: &body,
            end_of_stream: request.message.is_some(),
            timeout: (request.timeout > 0)
                .then(|| Duration::from_millis(u64::from(request.timeout))),
        })
    };
    if request.upstream.is_empty() {
        return Err(Status::ParseFailure);
    }
    let started = match start(request.upstream, request.upstream) {
        Err(CalloutFailure::ClusterNotFound) => {
            let (cluster, authority) =
                grpc_service(request.upstream).ok_or(Status::ParseFailure)?;
            start(cluster, authority.unwrap_or(cluster))
        }
        started => started,
    };
    let id = started.map_err(|failure| match failure {
        CalloutFailure::ClusterNotFound => Status::ParseFailure,
        _ => Status::InternalFailure,
    })?;
    let kind = if request.message.is_some() {
        Kind::Call
    } else {
        Kind::Stream
    };
    let token = state.contexts.token(match kind {
        Kind::Call => TokenKind::GrpcCall,
        Kind::Stream => TokenKind::GrpcStream,
    });
    if let Some(context) = state.contexts.at_mut(place) {
        context.callouts.push(Callout {
            token,
            wake: WakeId::HttpStream(id),
            root,
            grpc: Some(Box::new(Incoming::new(kind, most))),
        });
    }
    Ok(token)
}

fn answer(memory: &mut [u8], place: i32, begun: Result<u32, Status>) -> Status {
    match begun {
        Ok(token) => write_u32(memory, place, token),
        Err(status) => status,
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "they are the interface's arguments"
)]
pub(crate) fn call(
    guest: &mut Guest<'_>,
    upstream: i32,
    upstream_length: i32,
    service: i32,
    service_length: i32,
    method: i32,
    method_length: i32,
    metadata: i32,
    metadata_length: i32,
    message: i32,
    message_length: i32,
    timeout: i32,
    token: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let (Some(upstream), Some(service), Some(method), Some(metadata), Some(message), Some(_)) = (
        bytes(memory, upstream, upstream_length),
        bytes(memory, service, service_length),
        bytes(memory, method, method_length),
        bytes(memory, metadata, metadata_length),
        bytes(memory, message, message_length),
        bytes(memory, token, 4),
    ) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let begun = begin(
        state,
        &Request {
            upstream,
            service,
            method,
            metadata,
            message: Some(message),
            timeout: timeout.cast_unsigned(),
        },
    );
    Ok(answer(memory, token, begun))
}

#[expect(
    clippy::too_many_arguments,
    reason = "they are the interface's arguments"
)]
pub(crate) fn stream(
    guest: &mut Guest<'_>,
    upstream: i32,
    upstream_length: i32,
    service: i32,
    service_length: i32,
    method: i32,
    method_length: i32,
    metadata: i32,
    metadata_length: i32,
    token: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let (Some(upstream), Some(service), Some(method), Some(metadata), Some(_)) = (
        bytes(memory, upstream, upstream_length),
        bytes(memory, service, service_length),
        bytes(memory, method, method_length),
        bytes(memory, metadata, metadata_length),
        bytes(memory, token, 4),
    ) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let begun = begin(
        state,
        &Request {
            upstream,
            service,
            method,
            metadata,
            message: None,
            timeout: 0,
        },
    );
    Ok(answer(memory, token, begun))
}

/// The exchange of a token: its place among the stream's callouts, and its HTTP stream.
fn find(state: &mut State, token: i32) -> Result<(usize, usize, HttpStreamId), Status> {
    let token = token.cast_unsigned();
    if !matches!(token & 3, 1 | 2) {
        return Err(Status::BadArgument);
    }
    let place = state.own.ok_or(Status::NotFound)?;
    let context = state.contexts.at(place).ok_or(Status::NotFound)?;
    let index = context
        .callouts
        .iter()
        .position(|one| one.token == token)
        .ok_or(Status::NotFound)?;
    match context.callouts.get(index).map(|one| one.wake) {
        Some(WakeId::HttpStream(id)) => Ok((place, index, id)),
        _ => Err(Status::NotFound),
    }
}

pub(crate) fn send(
    guest: &mut Guest<'_>,
    token: i32,
    message: i32,
    length: i32,
    end_of_stream: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(message) = bytes(memory, message, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    if token.cast_unsigned() & 3 != TokenKind::GrpcStream as u32 {
        return Ok(Status::BadArgument);
    }
    let (place, index, id) = match find(state, token) {
        Ok(found) => found,
        Err(status) => return Ok(status),
    };
    if !sends(state, place, index) {
        // As in Envoy, nobody hears of it.
        return Ok(Status::Ok);
    }
    let ends = end_of_stream != 0;
    let Some(stream) = state.lent.stream_mut() else {
        return Ok(Status::NotFound);
    };
    let sent = stream.send_http_stream_data(id, &framed(message), ends);
    if ends {
        stop_sending(state, place, index);
    }
    Ok(if sent { Status::Ok } else { Status::NotFound })
}

/// Whether the guest's side of an exchange is open.
fn sends(state: &State, place: usize, index: usize) -> bool {
    let callout = state
        .contexts
        .at(place)
        .and_then(|context| context.callouts.get(index));
    callout
        .and_then(|callout| callout.grpc.as_ref())
        .is_some_and(|grpc| grpc.sends)
}

fn stop_sending(state: &mut State, place: usize, index: usize) {
    if let Some(context) = state.contexts.at_mut(place)
        && let Some(callout) = context.callouts.get_mut(index)
        && let Some(grpc) = &mut callout.grpc
    {
        grpc.sends = false;
    }
}

pub(crate) fn cancel(guest: &mut Guest<'_>, token: i32) -> Answer {
    let state = guest.data_mut();
    let (place, index, id) = match find(state, token) {
        Ok(found) => found,
        Err(status) => return Ok(status),
    };
    if let Some(context) = state.contexts.at_mut(place) {
        context.callouts.remove(index);
    }
    if let Some(stream) = state.lent.stream_mut() {
        stream.cancel(WakeId::HttpStream(id));
    }
    Ok(Status::Ok)
}

/// Ends a stream's sending; a call is cancelled.
pub(crate) fn close(guest: &mut Guest<'_>, token: i32) -> Answer {
    if token.cast_unsigned() & 3 == 1 {
        return cancel(guest, token);
    }
    let state = guest.data_mut();
    let (place, index, id) = match find(state, token) {
        Ok(found) => found,
        Err(status) => return Ok(status),
    };
    if let Some(stream) = state.lent.stream_mut() {
        stream.send_http_stream_data(id, b"", true);
    }
    stop_sending(state, place, index);
    Ok(Status::Ok)
}
