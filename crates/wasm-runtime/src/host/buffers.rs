//! Buffers: the stream's bodies, what callouts brought, and configurations.

use std::ops::Range;

use outrider_plugin_api::Direction;

use crate::abi::{Buffer, Status};
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split, write_u32};
use crate::state::{Moment, State};

/// Which part of a buffer the guest sees: of a body that is held back, what it has not seen; an error: it is not
/// there.
fn extent(state: &mut State, buffer: Buffer) -> Result<Range<usize>, Status> {
    let length = match buffer {
        Buffer::Body(direction) => {
            let (hidden, length) = state.body(direction).unwrap_or_default();
            return Ok(hidden..hidden + length);
        }
        Buffer::CalloutBody if !state.response.is_there => return Err(Status::NotFound),
        Buffer::CalloutBody | Buffer::GrpcMessage => state.response.body.len(),
        Buffer::VmConfiguration => state.shared.options.vm_configuration.len(),
        Buffer::PluginConfiguration if state.moment == Moment::Configure => {
            let root = state.root;
            state.contexts.root(root).map_or(0, |root| root.text.len())
        }
        Buffer::PluginConfiguration => return Err(Status::NotFound),
        Buffer::ForeignArguments => state.foreign.len(),
        Buffer::Network => 0,
    };
    Ok(0..length)
}

/// Copies a part of a buffer to the scratch bytes.
///
/// # Errors
/// The budget is used up.
fn copy(state: &mut State, buffer: Buffer, start: usize, end: usize) -> wasmtime::Result<()> {
    let mut scratch = std::mem::take(&mut state.scratch);
    scratch.clear();
    let time = &state.time;
    let mut copied = Ok(());
    let mut offset = 0_usize;
    let mut whole = |piece: &[u8]| {
        let from = start.saturating_sub(offset).min(piece.len());
        let to = end.saturating_sub(offset).min(piece.len());
        offset += piece.len();
        if copied.is_ok()
            && let Some(part) = piece.get(from..to)
        {
            copied = time.append(&mut scratch, part);
        }
    };
    match buffer {
        Buffer::Body(direction) => {
            if let Some(stream) = state.stream() {
                stream.body_pieces(direction, &mut whole);
            }
        }
        Buffer::CalloutBody | Buffer::GrpcMessage => whole(&state.response.body),
        Buffer::VmConfiguration => whole(&state.shared.options.vm_configuration),
        Buffer::PluginConfiguration => {
            let root = state.root;
            if let Some(root) = state.contexts.root(root) {
                whole(&root.text);
            }
        }
        Buffer::ForeignArguments => whole(&state.foreign),
        Buffer::Network => {}
    }
    state.scratch = scratch;
    copied
}

pub(crate) fn get(
    guest: &mut Guest<'_>,
    buffer: i32,
    start: i32,
    most: i32,
    value: i32,
    length_place: i32,
) -> Answer {
    let Some(buffer) = Buffer::from_number(buffer) else {
        return Ok(Status::BadArgument);
    };
    let state = guest.data_mut();
    let seen = match extent(state, buffer) {
        Ok(seen) => seen,
        Err(status) => return Ok(status),
    };
    let start = seen
        .start
        .saturating_add(start as u32 as usize)
        .min(seen.end);
    let end = start.saturating_add(most as u32 as usize).min(seen.end);
    copy(state, buffer, start, end)?;
    hand_over(guest, value, length_place)
}

pub(crate) fn configuration(guest: &mut Guest<'_>, value: i32, length_place: i32) -> Answer {
    let state = guest.data_mut();
    // The first version of the ABI has one function for both, and the plugin's can be read at any time.
    state.scratch.clear();
    if state.moment == Moment::VmStart {
        let text = &state.shared.options.vm_configuration;
        state.scratch.extend_from_slice(text);
    } else {
        let root = state.effective_root();
        if let Some(root) = state.contexts.root(root) {
            state.scratch.extend_from_slice(&root.text);
        }
    }
    hand_over(guest, value, length_place)
}

pub(crate) fn status(guest: &mut Guest<'_>, buffer: i32, length_place: i32, flags: i32) -> Answer {
    let Some(buffer) = Buffer::from_number(buffer) else {
        return Ok(Status::BadArgument);
    };
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let seen = match extent(state, buffer) {
        Ok(seen) => seen,
        Err(status) => return Ok(status),
    };
    let length = u32::try_from(seen.len()).unwrap_or(u32::MAX);
    if write_u32(memory, length_place, length) != Status::Ok {
        return Ok(Status::InvalidMemoryAccess);
    }
    Ok(write_u32(memory, flags, 0))
}

pub(crate) fn set(
    guest: &mut Guest<'_>,
    buffer: i32,
    start: i32,
    size: i32,
    value: i32,
    length: i32,
) -> Answer {
    let Some(buffer) = Buffer::from_number(buffer) else {
        return Ok(Status::BadArgument);
    };
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(value) = bytes(memory, value, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Buffer::Body(direction) = buffer else {
        return Ok(Status::BadArgument);
    };
    Ok(splice(
        state,
        direction,
        start as u32 as usize,
        size as u32 as usize,
        value,
    ))
}

/// As in Envoy, a body is changed at its ends only, but for `relaxed` mode: a part at its beginning is
/// replaced, or something is put at its end.
fn splice(
    state: &mut State,
    direction: Direction,
    start: usize,
    size: usize,
    value: &[u8],
) -> Status {
    if state.moment == Moment::Log {
        return Status::BadArgument;
    }
    let relaxed = state.shared.options.relaxed;
    let Some((hidden, length)) = state.body(direction) else {
        return Status::BadArgument;
    };
    let part = if start == 0 {
        0..size.min(length)
    } else if start >= length {
        length..length
    } else if relaxed {
        start..start.saturating_add(size).min(length)
    } else {
        return Status::BadArgument;
    };
    let Some(stream) = state.stream_mut() else {
        return Status::BadArgument;
    };
    let part = part.start + hidden..part.end + hidden;
    match stream.splice_body(direction, part, value) {
        Ok(()) => Status::Ok,
        Err(error) => {
            let message = format!("proxy_set_buffer_bytes: {error}");
            state.log(outrider_plugin_api::LogLevel::Warn, &message);
            Status::InternalFailure
        }
    }
}
