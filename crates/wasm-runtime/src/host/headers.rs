//! Header maps: the stream's, and those of callouts' responses.
//!
//! As in Envoy, a guest has a map from the callback that brings it until that direction goes on: later it is
//! absent, though the proxy still has it. In `relaxed` mode what the proxy has can be read.

use outrider_plugin_api::bytes::replace as fill;
use outrider_plugin_api::{HeaderError, HeaderMap, LogLevel, OwnedHeaders, Stream};

use crate::abi::{Map, Status};
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split, write_u32};
use crate::pairs::{self, Writer};
use crate::state::{Moment, State};

/// Whether the guest may read a map of its stream.
fn may_read(state: &State, map: HeaderMap) -> bool {
    let Some(context) = state.context() else {
        return false;
    };
    context.maps.has(map) || (state.shared.options.relaxed && state.is_own())
}

/// The stream, if the guest may change one of its maps. As in Envoy, the route follows the request's headers.
#[inline]
fn to_change(state: &mut State, map: HeaderMap) -> Option<&mut (dyn Stream + 'static)> {
    // Looked at once: this is the hottest of all host functions.
    if !state.is_own() || state.moment == Moment::Log {
        return None;
    }
    let context = state.contexts.at_mut(state.own?)?;
    let stream = state.lent.stream_mut()?;
    if !context.maps.has(map) {
        return None;
    }
    if map == HeaderMap::RequestHeaders {
        context.route_is_stale = true;
    }
    Some(stream)
}

/// The names and values of a map that is not the stream's; one without any is absent.
fn other(state: &State, map: Map) -> Option<&OwnedHeaders> {
    let pairs = match map {
        Map::CalloutHeaders | Map::GrpcInitialMetadata => &state.response.headers,
        Map::CalloutTrailers | Map::GrpcTrailingMetadata => &state.response.trailers,
        Map::Stream(_) => return None,
    };
    (!pairs.is_empty()).then_some(pairs)
}

/// A value to the scratch bytes. Whether the map, and the name in it, are there.
fn find(state: &mut State, map: Map, name: &[u8]) -> Option<bool> {
    let mut scratch = std::mem::take(&mut state.scratch);
    scratch.clear();
    let found = match map {
        Map::Stream(map) if may_read(state, map) => state.stream().map(|stream| {
            stream
                .header(map, name, 0)
                .map(|value| fill(&mut scratch, value))
                .is_some()
        }),
        Map::Stream(_) => None,
        _ => other(state, map).map(|pairs| {
            pairs
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name))
                .map(|(_, value)| fill(&mut scratch, value))
                .is_some()
        }),
    };
    state.scratch = scratch;
    found
}

pub(crate) fn get(
    guest: &mut Guest<'_>,
    map: i32,
    key: i32,
    key_length: i32,
    value: i32,
    length: i32,
) -> Answer {
    let Some(map) = Map::from_number(map) else {
        return Ok(Status::BadArgument);
    };
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(name) = bytes(memory, key, key_length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    match find(state, map, name) {
        Some(true) => hand_over(guest, value, length),
        // The first version of the ABI knows no absent header.
        Some(false) if state.is_first_version => hand_over(guest, value, length),
        Some(false) => Ok(Status::NotFound),
        None if state.moment == Moment::Log => Ok(Status::NotFound),
        None if state.shared.options.relaxed => Ok(Status::NotFound),
        None => Ok(Status::BadArgument),
    }
}

/// What can be done to a map.
enum Change<'a> {
    Add(&'a [u8], &'a [u8]),
    Replace(&'a [u8], &'a [u8]),
    Remove(&'a [u8]),
}

#[inline]
fn change(state: &mut State, map: i32, change: &Change<'_>) -> Status {
    let Some(Map::Stream(map)) = Map::from_number(map) else {
        return Status::BadArgument;
    };
    let Some(stream) = to_change(state, map) else {
        return Status::BadArgument;
    };
    let done = match change {
        Change::Add(name, value) => stream.add_header(map, name, value),
        Change::Replace(name, value) => stream.set_header(map, name, value),
        Change::Remove(name) => stream.remove_header(map, name),
    };
    status_of(stream, done)
}

/// The status for a change of a map. Few statuses are known to SDKs, so the log names the reason.
fn status_of(stream: &dyn Stream, result: Result<(), HeaderError>) -> Status {
    match result {
        Ok(()) => Status::Ok,
        Err(HeaderError::Absent) => Status::BadArgument,
        Err(refused) => {
            if stream.log_enabled(LogLevel::Warn) {
                stream.log(
                    LogLevel::Warn,
                    &format!("a header is not changed: {refused}"),
                );
            }
            Status::BadArgument
        }
    }
}

pub(crate) fn add(
    guest: &mut Guest<'_>,
    map: i32,
    key: i32,
    key_length: i32,
    value: i32,
    length: i32,
) -> Answer {
    write(
        guest,
        map,
        (key, key_length),
        (value, length),
        |name, value| Change::Add(name, value),
    )
}

pub(crate) fn replace(
    guest: &mut Guest<'_>,
    map: i32,
    key: i32,
    key_length: i32,
    value: i32,
    length: i32,
) -> Answer {
    write(
        guest,
        map,
        (key, key_length),
        (value, length),
        |name, value| Change::Replace(name, value),
    )
}

/// Changes a header as `kind` says. Name and value are where the guest has them, with their lengths.
#[inline]
fn write(
    guest: &mut Guest<'_>,
    map: i32,
    (name, name_length): (i32, i32),
    (value, value_length): (i32, i32),
    kind: for<'a> fn(&'a [u8], &'a [u8]) -> Change<'a>,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let name = bytes(memory, name, name_length);
    let value = bytes(memory, value, value_length);
    Ok(match (name, value) {
        (Some(name), Some(value)) => change(state, map, &kind(name, value)),
        _ => Status::InvalidMemoryAccess,
    })
}

pub(crate) fn remove(guest: &mut Guest<'_>, map: i32, key: i32, key_length: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    Ok(match bytes(memory, key, key_length) {
        Some(name) => change(state, map, &Change::Remove(name)),
        None => Status::InvalidMemoryAccess,
    })
}

/// Collects a map; one that is absent is empty.
fn collect(state: &State, map: Map, writer: &mut Writer) {
    match map {
        Map::Stream(map) => {
            if may_read(state, map)
                && let Some(stream) = state.stream()
            {
                stream.headers(map, &mut |name, value| writer.push(name, value));
            }
        }
        _ => {
            for (name, value) in other(state, map).into_iter().flatten() {
                writer.push(name, value);
            }
        }
    }
}

pub(crate) fn get_pairs(guest: &mut Guest<'_>, map: i32, place: i32, length: i32) -> Answer {
    let Some(map) = Map::from_number(map) else {
        return Ok(Status::BadArgument);
    };
    let state = guest.data_mut();
    let mut writer = std::mem::take(&mut state.writer);
    writer.clear();
    collect(state, map, &mut writer);
    state.scratch.clear();
    writer.write(&mut state.scratch);
    state.writer = writer;
    hand_over(guest, place, length)
}

pub(crate) fn set_pairs(guest: &mut Guest<'_>, map: i32, place: i32, length: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(Map::Stream(map)) = Map::from_number(map) else {
        return Ok(Status::BadArgument);
    };
    let Some(bytes) = bytes(memory, place, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(stream) = to_change(state, map) else {
        return Ok(Status::BadArgument);
    };
    // As in Envoy, what is no map is an empty one.
    let headers = pairs::read(bytes).unwrap_or_default();
    let done = stream.replace_headers(map, &headers);
    Ok(status_of(stream, done))
}

pub(crate) fn size(guest: &mut Guest<'_>, map: i32, place: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(map) = Map::from_number(map) else {
        return Ok(Status::BadArgument);
    };
    // As in Envoy: the bytes of names and values, not those of the map as it is handed over.
    let mut size = 0;
    match map {
        Map::Stream(map) => {
            if state.moment == Moment::Log || !may_read(state, map) {
                return Ok(Status::BadArgument);
            }
            let Some(stream) = state.stream() else {
                return Ok(Status::BadArgument);
            };
            stream.headers(map, &mut |name, value| size += name.len() + value.len());
        }
        // As in Envoy, nobody says how large those of callouts are.
        _ => return Ok(Status::BadArgument),
    }
    Ok(write_u32(
        memory,
        place,
        u32::try_from(size).unwrap_or(u32::MAX),
    ))
}
