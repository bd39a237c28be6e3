//! Properties: facts about the stream by their path, each encoded as its kind asks: texts as they are, whole
//! numbers, times and durations as 8 bytes (times in nanoseconds), truth values as one, maps as header maps;
//! all little-endian.
//!
//! The trap: a path's parts are separated by a NUL, not by a dot.

use std::collections::BTreeMap;

use outrider_plugin_api::{
    Attribute, FilterStateKind, HeaderMap, LogLevel, MetadataSource, Scalar, Stream,
};

use crate::abi::Status;
use crate::grpc;
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split};
use crate::pairs::Writer;
use crate::state::{Moment, State};

/// What a look-up found; the value is in the scratch bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Yes,
    No,
    /// It is there, and has no encoding.
    Unserializable,
}

fn trimmed(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"\0").unwrap_or(path)
}

/// The key of a property of a guest's own in the stream's filter state, as in Envoy.
fn filter_state_key(path: &[u8]) -> Vec<u8> {
    [b"wasm.", path].concat()
}

pub(crate) fn get(
    guest: &mut Guest<'_>,
    path: i32,
    path_length: i32,
    value: i32,
    length: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(path) = bytes(memory, path, path_length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    if path.is_empty() {
        return Ok(Status::SerializationFailure);
    }
    let path = trimmed(path);
    let mut scratch = std::mem::take(&mut state.scratch);
    scratch.clear();
    let found = look_up(state, path, &mut scratch);
    state.scratch = scratch;
    match found {
        Found::Yes => hand_over(guest, value, length),
        Found::No => Ok(Status::NotFound),
        Found::Unserializable => Ok(Status::SerializationFailure),
    }
}

pub(crate) fn set(
    guest: &mut Guest<'_>,
    path: i32,
    path_length: i32,
    value: i32,
    length: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let (Some(path), Some(value)) = (
        bytes(memory, path, path_length),
        bytes(memory, value, length),
    ) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let path = trimmed(path);
    let Some(context) = state.context_mut() else {
        return Ok(Status::NotFound);
    };
    let count = context.properties.len();
    let others = context.properties.iter().filter(|(known, _)| known != path);
    let used: usize = others.map(|(path, value)| path.len() + value.len()).sum();
    if used.saturating_add(path.len() + value.len()) > MOST_PROPERTY_BYTES {
        return Ok(Status::InternalFailure);
    }
    match context
        .properties
        .iter_mut()
        .find(|(known, _)| known == path)
    {
        Some((_, old)) => {
            old.clear();
            old.extend_from_slice(value);
        }
        None if count < MOST_PROPERTIES => {
            context.properties.push((path.to_vec(), value.to_vec()));
        }
        None => return Ok(Status::InternalFailure),
    }
    let key = filter_state_key(path);
    if let Some(stream) = state.stream_mut()
        && let Err(error) = stream.set_filter_state(&key, value, FilterStateKind::Bytes)
        && stream.log_enabled(LogLevel::Debug)
    {
        // Filter state is written once: others go on seeing the first value.
        let key = key.escape_ascii();
        stream.log(
            LogLevel::Debug,
            &format!("proxy_set_property: {key} {error}"),
        );
    }
    Ok(Status::Ok)
}

/// A map with nothing in it, as a property's value.
const EMPTY_MAP: &[u8] = &[0; 4];
/// How many properties of its own a guest may have on one stream.
const MOST_PROPERTIES: usize = 1024;
/// Bytes of their paths and values together.
const MOST_PROPERTY_BYTES: usize = 1024 * 1024;

fn look_up(state: &mut State, path: &[u8], into: &mut Vec<u8>) -> Found {
    // As in Envoy, one whose name has parts is found below `filter_state` only.
    if !path.contains(&0)
        && let Some(context) = state.context()
        && let Some((_, value)) = context.properties.iter().find(|(known, _)| known == path)
    {
        into.extend_from_slice(value);
        return Found::Yes;
    }
    let constant = match path {
        b"plugin_name" => Some(&state.shared.plugin),
        b"plugin_root_id" => Some(&state.shared.options.root_id),
        b"plugin_vm_id" => Some(&state.shared.options.vm_id),
        _ => None,
    };
    if let Some(text) = constant {
        into.extend_from_slice(text.as_bytes());
        return Found::Yes;
    }
    if path.starts_with(b"xds\0") {
        state.refresh_route();
    }
    let visible = Visible::of(state);
    let Some(stream) = state.stream() else {
        // As in Envoy, it is there without a stream, too, as a whole.
        return if path == b"xds" {
            Found::Unserializable
        } else {
            Found::No
        };
    };
    if let Some(key) = path.strip_prefix(b"filter_state\0wasm.")
        && let Some(context) = state.context()
        && let Some((_, value)) = context.properties.iter().find(|(known, _)| known == key)
    {
        into.extend_from_slice(value);
        return Found::Yes;
    }
    let found = of_stream(stream, visible, path, into);
    if found == Found::No
        && !path.contains(&0)
        && let Some(value) = stream.filter_state(&filter_state_key(path))
    {
        into.extend_from_slice(value);
        return Found::Yes;
    }
    found
}

/// What of the stream's maps the guest may see, and whether the stream is over.
#[expect(clippy::struct_excessive_bools, reason = "one for each map")]
#[derive(Debug, Clone, Copy)]
struct Visible {
    request: bool,
    response: bool,
    trailers: bool,
    request_trailers: bool,
    over: bool,
}

impl Visible {
    fn of(state: &State) -> Self {
        let all = state.shared.options.relaxed || state.moment == Moment::Log;
        let has = |map| all || state.context().is_some_and(|context| context.maps.has(map));
        Self {
            request: has(HeaderMap::RequestHeaders),
            response: has(HeaderMap::ResponseHeaders),
            trailers: has(HeaderMap::ResponseTrailers),
            request_trailers: has(HeaderMap::RequestTrailers),
            over: state.moment == Moment::Log,
        }
    }
}

fn of_stream(stream: &dyn Stream, visible: Visible, path: &[u8], into: &mut Vec<u8>) -> Found {
    let mut parts = path.split(|byte| *byte == 0);
    let (first, second) = (parts.next().unwrap_or_default(), parts.next());
    let third = parts.next();
    let map = match (first, second) {
        (b"request", Some(b"headers")) => Some((HeaderMap::RequestHeaders, visible.request)),
        (b"request", Some(b"trailers")) => {
            Some((HeaderMap::RequestTrailers, visible.request_trailers))
        }
        (b"response", Some(b"headers")) => Some((HeaderMap::ResponseHeaders, visible.response)),
        (b"response", Some(b"trailers")) => Some((HeaderMap::ResponseTrailers, visible.trailers)),
        _ => None,
    };
    if let Some((map, seen)) = map {
        return of_map(stream, map, seen, third, into);
    }
    match (first, second) {
        (b"metadata", _) => {
            of_metadata(stream, MetadataSource::Dynamic, second, third, parts, into)
        }
        (b"xds", Some(b"route_metadata")) => {
            let key = parts.next();
            of_metadata(stream, MetadataSource::Route, third, key, parts, into)
        }
        (b"xds", Some(b"cluster_metadata")) => {
            let key = parts.next();
            of_metadata(stream, MetadataSource::Cluster, third, key, parts, into)
        }
        (b"xds", Some(b"upstream_host_metadata")) => {
            let key = parts.next();
            match third {
                None if has_upstream(stream) => Found::Unserializable,
                None => Found::No,
                _ => of_metadata(stream, MetadataSource::Host, third, key, parts, into),
            }
        }
        (b"upstream_filter_state", None) if !has_upstream(stream) => Found::No,
        (
            b"filter_state"
            | b"upstream_filter_state"
            | b"request"
            | b"response"
            | b"connection"
            | b"upstream"
            | b"xds"
            | b"source"
            | b"destination",
            None,
        ) => Found::Unserializable,
        (b"xds", Some(b"listener_direction")) => {
            encode(Scalar::Number(0.0), Encoding::Whole, into);
            Found::Yes
        }
        (b"xds", Some(b"listener_metadata" | b"virtual_host_metadata")) if third.is_none() => {
            Found::Yes
        }
        (b"response", Some(b"grpc_status")) if third.is_none() => {
            grpc_status(stream, visible, into)
        }
        (b"filter_state", Some(key)) => match stream.filter_state(key) {
            Some(value) => {
                into.extend_from_slice(value);
                Found::Yes
            }
            None => Found::No,
        },
        (b"connection_id", None) => of_attribute(stream, visible, Attribute::ConnectionId, into),
        (_, Some(second)) if third.is_none() => {
            let name = [first, second].join(&b'.');
            let attribute = std::str::from_utf8(&name).ok().and_then(Attribute::named);
            match attribute {
                Some(attribute) => of_attribute(stream, visible, attribute, into),
                None => Found::No,
            }
        }
        _ => Found::No,
    }
}

/// A map with each name once, and its values with commas between them.
fn joined(stream: &dyn Stream, map: HeaderMap) -> Writer {
    let mut fields: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut places: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    stream.headers(map, &mut |name, value| {
        let known = places.get(name).and_then(|place| fields.get_mut(*place));
        if let Some((_, values)) = known {
            values.push(b',');
            values.extend_from_slice(value);
        } else {
            places.insert(name.to_vec(), fields.len());
            fields.push((name.to_vec(), value.to_vec()));
        }
    });
    let mut writer = Writer::default();
    for (name, value) in &fields {
        writer.push(name, value);
    }
    writer
}

fn of_map(
    stream: &dyn Stream,
    map: HeaderMap,
    seen: bool,
    name: Option<&[u8]>,
    into: &mut Vec<u8>,
) -> Found {
    let Some(name) = name else {
        // As in Envoy, a map that the guest does not have is empty.
        if seen {
            joined(stream, map).write(into);
        }
        if into.is_empty() {
            into.extend_from_slice(EMPTY_MAP);
        }
        return Found::Yes;
    };
    if !seen || stream.header(map, name, 0).is_none() {
        return Found::No;
    }
    let mut is_first = true;
    stream.headers(map, &mut |key, value| {
        if key.eq_ignore_ascii_case(name) {
            if !std::mem::take(&mut is_first) {
                into.push(b',');
            }
            into.extend_from_slice(value);
        }
    });
    Found::Yes
}

/// A value below `filter_metadata`; what is no text, number or truth value cannot be had, and all of it
/// together is a message whose bytes Envoy does not show.
fn of_metadata<'a>(
    stream: &dyn Stream,
    source: MetadataSource,
    field: Option<&[u8]>,
    namespace: Option<&[u8]>,
    mut keys: impl Iterator<Item = &'a [u8]>,
    into: &mut Vec<u8>,
) -> Found {
    match (field, namespace) {
        (None, _) => Found::Yes,
        (Some(b"filter_metadata"), None) => {
            into.extend_from_slice(EMPTY_MAP);
            Found::Yes
        }
        (Some(b"filter_metadata"), Some(namespace)) => {
            let (Some(key), None) = (keys.next(), keys.next()) else {
                return Found::No;
            };
            match stream.metadata(source, namespace, key) {
                Some(value) => {
                    encode(value, Encoding::Double, into);
                    Found::Yes
                }
                None => Found::No,
            }
        }
        _ => Found::No,
    }
}

/// How a number is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Double,
    Whole,
    /// Milliseconds, as nanoseconds.
    Nanoseconds,
}

fn encode(value: Scalar<'_>, encoding: Encoding, into: &mut Vec<u8>) {
    match value {
        Scalar::String(text) => into.extend_from_slice(text),
        Scalar::Bool(value) => into.push(u8::from(value)),
        Scalar::Number(number) => into.extend_from_slice(&match encoding {
            Encoding::Double => number.to_le_bytes(),
            Encoding::Whole => (number as i64).to_le_bytes(),
            Encoding::Nanoseconds => ((number * 1e6) as i64).to_le_bytes(),
        }),
    }
}

/// Whether what is not there is an empty text, as in Envoy.
fn is_empty_text(stream: &dyn Stream, attribute: Attribute) -> bool {
    match attribute {
        Attribute::ConnectionRequestedServerName => true,
        Attribute::UpstreamTransportFailureReason => has_upstream(stream),
        _ => false,
    }
}

/// Whether an upstream was chosen.
fn has_upstream(stream: &dyn Stream) -> bool {
    stream.attribute(Attribute::UpstreamAddress).is_some()
}

/// What a response stands for in gRPC: as it says, or what gRPC makes of its status.
fn grpc_status(stream: &dyn Stream, visible: Visible, into: &mut Vec<u8>) -> Found {
    if !visible.response {
        return Found::No;
    }
    let said = match stream.attribute(Attribute::ResponseGrpcStatus) {
        Some(Scalar::Number(number)) => Some(number as i64),
        _ => None,
    };
    let of_status = || {
        let status = stream.header(HeaderMap::ResponseHeaders, b":status", 0)?;
        let status = std::str::from_utf8(status).ok()?.parse().ok()?;
        Some(i64::from(grpc::code_of_http(status)))
    };
    match said.or_else(of_status) {
        Some(status) => {
            into.extend_from_slice(&i64::to_le_bytes(status));
            Found::Yes
        }
        None => Found::No,
    }
}

fn of_attribute(
    stream: &dyn Stream,
    visible: Visible,
    attribute: Attribute,
    into: &mut Vec<u8>,
) -> Found {
    let is_of_request_headers = matches!(
        attribute,
        Attribute::RequestPath
            | Attribute::RequestUrlPath
            | Attribute::RequestHost
            | Attribute::RequestScheme
            | Attribute::RequestMethod
            | Attribute::RequestReferer
            | Attribute::RequestUserAgent
            | Attribute::RequestId
            | Attribute::RequestQuery
    );
    let hidden = (is_of_request_headers && !visible.request)
        || (attribute == Attribute::RequestDuration && !visible.over);
    if hidden {
        return Found::No;
    }
    let encoding = match attribute {
        Attribute::RequestTime | Attribute::RequestDuration | Attribute::ResponseBackendLatency => {
            Encoding::Nanoseconds
        }
        _ => Encoding::Whole,
    };
    match stream.attribute(attribute) {
        Some(value) => {
            encode(value, encoding, into);
            Found::Yes
        }
        None if is_empty_text(stream, attribute) => Found::Yes,
        None if attribute == Attribute::ConnectionMtls => {
            encode(Scalar::Bool(false), encoding, into);
            Found::Yes
        }
        // A request without a body has the size 0, and one that is not sent yet was sent as often.
        None if matches!(
            attribute,
            Attribute::RequestSize | Attribute::UpstreamRequestAttemptCount
        ) =>
        {
            encode(Scalar::Number(0.0), encoding, into);
            Found::Yes
        }
        None => Found::No,
    }
}
