//! gRPC calls and streams, over HTTP streams of the proxy.

use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    CALLOUT_COST, CalloutFailure, HttpStreamEvent, HttpStreamId, HttpStreamRequest, MOST_UNDER_WAY,
    WakeId,
};

use super::callouts::{Lives, may_outlive_streams, refusal};
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

impl<'a> Request<'a> {
    fn kind(&self) -> Kind {
        match self.message {
            Some(_) => Kind::Call,
            None => Kind::Stream,
        }
    }

    /// Hands the HTTP request to `start`.
    fn send<T>(
        &self,
        cluster: &[u8],
        authority: &[u8],
        start: impl FnOnce(&HttpStreamRequest<'_>) -> Result<T, CalloutFailure>,
    ) -> Result<Result<T, CalloutFailure>, Status> {
        let metadata = pairs::read(self.metadata).ok_or(Status::BadArgument)?;
        let path = [b"/", self.service, b"/", self.method].concat();
        let timeout = format!("{}m", self.timeout);
        let mut headers: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"POST"),
            (b":path", &path),
            (b":authority", authority),
            (b":scheme", b"http"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ];
        if self.timeout > 0 {
            headers.push((b"grpc-timeout", timeout.as_bytes()));
        }
        headers.extend(metadata.iter().filter(|(name, _)| !name.starts_with(b":")));
        Ok(start(&HttpStreamRequest {
            cluster,
            headers: &headers,
            body: &self.message.map(framed).unwrap_or_default(),
            end_of_stream: self.message.is_some(),
            timeout: (self.timeout > 0).then(|| Duration::from_millis(u64::from(self.timeout))),
        }))
    }

    /// The cluster and the authority that its upstream stands for, if it is Envoy's `GrpcService`.
    fn service_of(&self) -> Option<(&'a [u8], &'a [u8])> {
        let (cluster, authority) = grpc_service(self.upstream)?;
        Some((cluster, authority.unwrap_or(cluster)))
    }
}

fn begin(state: &mut State, request: &Request<'_>) -> Result<u32, Status> {
    let root = state.effective_root();
    // What follows from the answer that a stream waited for is what it waits for next.
    let is_of_stream = state.is_own() || (state.answers_stream && state.own.is_some());
    if !is_of_stream && let Some(begun) = begin_of_root(state, root, request) {
        return begun;
    }
    let most = state.shared.memory_budget;
    let (Some(place), Some(stream)) = (state.own, state.lent.stream_mut()) else {
        return Err(Status::InternalFailure);
    };
    let mut start = |cluster: &[u8], authority: &[u8]| {
        request.send(cluster, authority, |request| {
            stream.start_http_stream(request)
        })
    };
    if request.upstream.is_empty() {
        return Err(Status::ParseFailure);
    }
    let started = match start(request.upstream, request.upstream)? {
        // A service in protobuf is no upstream's name, and may not be sent as an authority.
        Err(
            CalloutFailure::ClusterNotFound
            | CalloutFailure::NotAllowed
            | CalloutFailure::BadHeader(_),
        ) => {
            let (cluster, authority) = request.service_of().ok_or(Status::ParseFailure)?;
            start(cluster, authority)?
        }
        started => started,
    };
    let id = started.map_err(|failure| match failure {
        CalloutFailure::ClusterNotFound | CalloutFailure::NotAllowed => Status::ParseFailure,
        _ => Status::InternalFailure,
    })?;
    let token = state.contexts.token(token_kind(request.kind()));
    if let Some(context) = state.contexts.at_mut(place) {
        context.callouts.push(Callout {
            token,
            wake: WakeId::HttpStream(id),
            root,
            grpc: Some(Box::new(Incoming::new(request.kind(), most))),
        });
    }
    Ok(token)
}

fn token_kind(kind: Kind) -> TokenKind {
    match kind {
        Kind::Call => TokenKind::GrpcCall,
        Kind::Stream => TokenKind::GrpcStream,
    }
}

/// Begins an exchange of a root's, which outlives the stream that happens to be at hand. None: as for a root's
/// HTTP callout. Whether there is such an upstream, is found out later.
fn begin_of_root(
    state: &mut State,
    root: u32,
    request: &Request<'_>,
) -> Option<Result<u32, Status>> {
    let has = may_outlive_streams(state, root)?;
    if request.upstream.is_empty() {
        return Some(Err(Status::ParseFailure));
    }
    if state.contexts.callouts.len() >= MOST_UNDER_WAY {
        return Some(Err(Status::InternalFailure));
    }
    let token = state.contexts.token(token_kind(request.kind()));
    let mut incoming = Incoming::new(request.kind(), state.shared.memory_budget);
    let name = (request.upstream, request.upstream);
    let (cluster, authority) = request.service_of().unwrap_or(name);
    let mailbox = Arc::downgrade(&state.mailbox);
    let started = request.send(cluster, authority, |request| match has {
        Lives::Checked => Ok(None),
        Lives::With(background) => {
            let bell = Arc::clone(&background);
            let told = move |event: HttpStreamEvent<'_>| {
                // The VM may be gone by then.
                if let Some(mailbox) = mailbox.upgrade() {
                    mailbox.put_event(token, &event, &*bell);
                    bell.ring_in(Duration::ZERO);
                }
            };
            background
                .start_http_stream(request, Box::new(told))
                .map(Some)
        }
    });
    match started {
        Ok(Ok(handle)) => {
            state.time.slot().charge(CALLOUT_COST);
            incoming.handle = handle;
        }
        Ok(Err(failure)) => return Some(Err(refusal(failure))),
        Err(status) => return Some(Err(status)),
    }
    state.contexts.callouts.push(Callout {
        token,
        wake: WakeId::HttpStream(HttpStreamId(u64::from(token))),
        root,
        grpc: Some(Box::new(incoming)),
    });
    Some(Ok(token))
}

/// Bytes of the guest's: where, and how many.
type Bytes = (i32, i32);

/// Reads what the guest says: the upstream, the service, the method, metadata, and a call's message.
fn exchange(
    guest: &mut Guest<'_>,
    places: [Bytes; 4],
    message: Option<Bytes>,
    timeout: u32,
    token: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let read = |(at, length)| bytes(memory, at, length);
    let ([Some(upstream), Some(service), Some(method), Some(metadata)], Some(_)) =
        (places.map(read), read((token, 4)))
    else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let is_readable = message.is_none_or(|message| read(message).is_some());
    if !is_readable {
        return Ok(Status::InvalidMemoryAccess);
    }
    let request = Request {
        upstream,
        service,
        method,
        metadata,
        message: message.and_then(read),
        timeout,
    };
    Ok(match begin(state, &request) {
        Ok(number) => write_u32(memory, token, number),
        Err(status) => status,
    })
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
    let places = [
        (upstream, upstream_length),
        (service, service_length),
        (method, method_length),
        (metadata, metadata_length),
    ];
    let message = Some((message, message_length));
    exchange(guest, places, message, timeout.cast_unsigned(), token)
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
    let places = [
        (upstream, upstream_length),
        (service, service_length),
        (method, method_length),
        (metadata, metadata_length),
    ];
    exchange(guest, places, None, 0, token)
}

/// The exchange of a token that is a root's: its place among those of roots.
fn of_root(state: &mut State, token: i32) -> Option<usize> {
    let token = token.cast_unsigned();
    let callouts = &state.contexts.callouts;
    callouts
        .iter()
        .position(|one| one.token == token && one.grpc.is_some())
}

/// Sends on a root's exchange. Returns `None` for an exchange of a stream.
fn send_of_root(state: &mut State, token: i32, data: &[u8], ends: bool) -> Option<Status> {
    let index = of_root(state, token)?;
    let grpc = state.contexts.callouts.get_mut(index)?.grpc.as_mut()?;
    if grpc.sends
        && let Some(handle) = &grpc.handle
        && let Err(failure) = handle.send(data, ends)
    {
        return Some(refusal(failure));
    }
    grpc.sends &= !ends;
    Some(Status::Ok)
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
    let ends = end_of_stream != 0;
    let framed = framed(message);
    if let Some(status) = send_of_root(state, token, &framed, ends) {
        return Ok(status);
    }
    let (place, index, id) = match find(state, token) {
        Ok(found) => found,
        Err(status) => return Ok(status),
    };
    if !sends(state, place, index) {
        // As in Envoy, nobody hears of it.
        return Ok(Status::Ok);
    }
    let Some(stream) = state.lent.stream_mut() else {
        return Ok(Status::NotFound);
    };
    let sent = stream.send_http_stream_data(id, &framed, ends);
    if ends && sent.is_ok() {
        stop_sending(state, place, index);
    }
    Ok(match sent {
        Ok(()) => Status::Ok,
        Err(CalloutFailure::Memory(_)) => Status::InternalFailure,
        Err(_) => Status::NotFound,
    })
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
    if let Some(index) = of_root(state, token) {
        // With its handle it is reset.
        drop(state.contexts.callouts.swap_remove(index));
        return Ok(Status::Ok);
    }
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
    if let Some(status) = send_of_root(state, token, b"", true) {
        return Ok(status);
    }
    let (place, index, id) = match find(state, token) {
        Ok(found) => found,
        Err(status) => return Ok(status),
    };
    if let Some(stream) = state.lent.stream_mut() {
        // What is over already needs no end.
        let _ = stream.send_http_stream_data(id, b"", true);
    }
    stop_sending(state, place, index);
    Ok(Status::Ok)
}
