//! Replies, and letting a paused stream go on.
//!
//! Nothing of it happens at once: it is noted, and done when the guest's callback has returned.

use outrider_plugin_api::{Audience, Direction, HeaderMap, Reply};

use super::callouts::MOST_BODY;
use crate::abi::{NO_GRPC_STATUS, Status};
use crate::guest_memory::{Answer, Guest, bytes, split};
use crate::pairs;
use crate::state::{Moment, State};

#[expect(
    clippy::too_many_arguments,
    reason = "they are the interface's arguments"
)]
pub(crate) fn send(
    guest: &mut Guest<'_>,
    status: i32,
    details: i32,
    details_length: i32,
    body: i32,
    body_length: i32,
    headers: i32,
    headers_length: i32,
    grpc_status: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let (Some(details), Some(body), Some(headers)) = (
        bytes(memory, details, details_length),
        bytes(memory, body, body_length),
        bytes(memory, headers, headers_length),
    ) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    Ok(reply(
        state,
        status,
        details,
        body,
        headers,
        grpc_status as u32,
    ))
}

/// Bytes of a reply's details.
const MOST_DETAILS: usize = 1024;

/// Returns the status of a final response, or `None` for other numbers: after an interim status (1xx) a client waits for
/// another response, and takes the body for its beginning.
fn final_status(status: i32) -> Option<u16> {
    let status = u16::try_from(status).ok()?;
    (200..=599).contains(&status).then_some(status)
}

fn reply(
    state: &mut State,
    status: i32,
    details: &[u8],
    body: &[u8],
    headers: &[u8],
    grpc_status: u32,
) -> Status {
    let Some(status) = final_status(status) else {
        return Status::BadArgument;
    };
    if body.len() > MOST_BODY {
        return Status::BadArgument;
    }
    let details = details.get(..MOST_DETAILS).unwrap_or(details);
    let relaxed = state.shared.options.relaxed;
    // A root that answers a callout replies to nobody, in Envoy; in relaxed mode, to the stream that the
    // callout is of.
    let of_callout = relaxed && state.context().is_none() && state.own.is_some();
    if of_callout {
        state.effective = state.own_id;
    }
    let is_own = state.is_own();
    let over = state.context().map(|context| context.is_over);
    match over {
        // The stream is past all replies.
        Some(true) => return Status::InternalFailure,
        Some(false) => {}
        // As in Envoy: a root's reply is taken, and nothing comes of it.
        None if relaxed => return Status::InternalFailure,
        None => return Status::Ok,
    }
    let mut list: Vec<(Vec<u8>, Vec<u8>)> = pairs::read(headers)
        .unwrap_or_default()
        .into_iter()
        .filter(|(name, _)| !name.is_empty() && !name.starts_with(b":"))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
        .collect();
    if grpc_status != NO_GRPC_STATUS
        && let Some(stream) = state.stream()
    {
        let is_grpc = stream
            .header(HeaderMap::RequestHeaders, b"content-type", 0)
            .is_some_and(|kind| kind.starts_with(b"application/grpc"));
        if is_grpc {
            list.retain(|(name, _)| name != b"grpc-status");
            list.push((
                b"grpc-status".to_vec(),
                grpc_status.to_string().into_bytes(),
            ));
        }
    }
    let reply = Box::new(Reply {
        status,
        headers: list,
        body: body.to_vec(),
        details: String::from_utf8_lossy(details).replace(' ', "_"),
        audience: Audience::Everyone,
    });
    // The first one counts.
    if is_own {
        state.reply.get_or_insert(reply);
    } else if let Some(context) = state.context_mut() {
        context.reply.get_or_insert(reply);
    }
    Status::Ok
}

fn go_on(state: &mut State, direction: Direction) -> Status {
    let is_own = state.is_own();
    if let Some(context) = state.context_mut()
        && !context.is_over
    {
        // Where nothing is paused there is nothing to go on with, but a callback may say so before it
        // pauses.
        let wait = context.wait(direction);
        wait.go_on |= wait.paused || is_own;
    }
    Status::Ok
}

pub(crate) fn continue_stream(guest: &mut Guest<'_>, stream: i32) -> Answer {
    let state = guest.data_mut();
    Ok(match stream {
        0 => go_on(state, Direction::Request),
        1 => go_on(state, Direction::Response),
        // Of network filters.
        2 => Status::Ok,
        3 => Status::Unimplemented,
        _ => Status::BadArgument,
    })
}

pub(crate) fn continue_request(guest: &mut Guest<'_>) -> Answer {
    Ok(go_on(guest.data_mut(), Direction::Request))
}

pub(crate) fn continue_response(guest: &mut Guest<'_>) -> Answer {
    Ok(go_on(guest.data_mut(), Direction::Response))
}

pub(crate) fn close_stream(guest: &mut Guest<'_>, stream: i32) -> Answer {
    let state = guest.data_mut();
    if !matches!(stream, 0 | 1) {
        let known = matches!(stream, 2 | 3);
        return Ok(if known {
            Status::Ok
        } else {
            Status::BadArgument
        });
    }
    let reply = Box::new(Reply {
        status: 503,
        details: "wasm_close_stream".to_owned(),
        audience: Audience::Nobody,
        ..Reply::default()
    });
    let is_own = state.is_own();
    let over = state.context().is_none_or(|context| context.is_over);
    if over {
        return Ok(Status::Ok);
    }
    if is_own {
        state.reply.get_or_insert(reply);
    } else if let Some(context) = state.context_mut() {
        context.reply.get_or_insert(reply);
    }
    Ok(Status::Ok)
}

pub(crate) fn clear_route_cache(guest: &mut Guest<'_>) -> Answer {
    Ok(clear_route(guest.data_mut()))
}

pub(crate) fn clear_route(state: &mut State) -> Status {
    if state.moment != Moment::Log
        && let Some(stream) = state.stream_mut()
    {
        stream.clear_route_cache();
    }
    Status::Ok
}
