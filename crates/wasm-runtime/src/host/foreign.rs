//! Functions that a proxy offers beyond the interface, by their names: those of Envoy that plugins use, and
//! ours. Each takes bytes and answers bytes.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use outrider_plugin_api::{FilterStateError, FilterStateKind, MetadataTree};
use serde_json::Value;

use crate::abi::Status;
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split};
use crate::host::replies;
use crate::proto;
use crate::state::{Moment, State};

mod signatures;

/// Names of the functions that `proxy_call_foreign_function` knows.
pub const NAMES: &[&str] = &[
    "compress",
    "uncompress",
    "clear_route_cache",
    "set_envoy_filter_state",
    "declare_property",
    "verify_signature",
    "sign",
    "set_dynamic_metadata",
];

pub(crate) fn call(
    guest: &mut Guest<'_>,
    name: i32,
    name_length: i32,
    arguments: i32,
    arguments_length: i32,
    result: i32,
    length: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let (Some(name), Some(arguments)) = (
        bytes(memory, name, name_length),
        bytes(memory, arguments, arguments_length),
    ) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let mut scratch = std::mem::take(&mut state.scratch);
    scratch.clear();
    let status = run(state, name, arguments, &mut scratch);
    if status != Status::Ok {
        scratch.clear();
    }
    state.scratch = scratch;
    if status == Status::NotFound {
        return Ok(status);
    }
    match hand_over(guest, result, length)? {
        Status::Ok => Ok(status),
        outside => Ok(outside),
    }
}

fn run(state: &mut State, name: &[u8], arguments: &[u8], into: &mut Vec<u8>) -> Status {
    match name {
        b"compress" => {
            let mut encoder = ZlibEncoder::new(into, Compression::default());
            match encoder
                .write_all(arguments)
                .and_then(|()| encoder.finish().map(|_| ()))
            {
                Ok(()) => Status::Ok,
                Err(_) => Status::SerializationFailure,
            }
        }
        b"uncompress" => {
            // No more than the guest could hold.
            let most = state.shared.memory_budget as u64;
            let mut decoder = ZlibDecoder::new(arguments).take(most + 1);
            match decoder.read_to_end(into) {
                Ok(length) if length as u64 <= most => Status::Ok,
                _ => Status::SerializationFailure,
            }
        }
        b"clear_route_cache" => replies::clear_route(state),
        b"set_envoy_filter_state" => set_filter_state(state, arguments),
        b"declare_property" => declare_property(arguments),
        b"verify_signature" => signatures::verify(arguments, into),
        b"sign" => signatures::sign(arguments, into),
        b"set_dynamic_metadata" => set_dynamic_metadata(state, arguments),
        _ => Status::NotFound,
    }
}

/// `SetEnvoyFilterStateArguments`: a path, a value, and a span, which is the stream's whatever it says.
fn set_filter_state(state: &mut State, arguments: &[u8]) -> Status {
    let Some(fields) = proto::fields(arguments) else {
        return Status::BadArgument;
    };
    let Some(path) = proto::bytes(&fields, 1) else {
        return Status::BadArgument;
    };
    let value = proto::bytes(&fields, 2).unwrap_or_default();
    let Some(stream) = state.stream_mut() else {
        return Status::NotFound;
    };
    // An object that the proxy knows by this key is that; other keys hold the bytes.
    let typed = stream.set_filter_state(path, value, FilterStateKind::Typed);
    let set = match typed {
        Err(FilterStateError::Unknown) => {
            stream.set_filter_state(path, value, FilterStateKind::Bytes)
        }
        set => set,
    };
    match set {
        Ok(()) => Status::Ok,
        Err(_) => Status::BadArgument,
    }
}

/// `DeclarePropertyArguments`: there is nothing to do, as each property holds the bytes that it is given.
fn declare_property(arguments: &[u8]) -> Status {
    let named = proto::fields(arguments)
        .and_then(|fields| proto::bytes(&fields, 1))
        .is_some_and(|name| !name.is_empty());
    if named {
        Status::Ok
    } else {
        Status::BadArgument
    }
}

/// Ours: `{"namespace": "…", "key": "…", "value": …}`, in JSON. The value may be of any depth.
fn set_dynamic_metadata(state: &mut State, arguments: &[u8]) -> Status {
    let Ok(arguments) = serde_json::from_slice::<Value>(arguments) else {
        return Status::BadArgument;
    };
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let (Some(namespace), Some(key), Some(value)) =
        (text("namespace"), text("key"), arguments.get("value"))
    else {
        return Status::BadArgument;
    };
    if state.moment == Moment::Log {
        return Status::BadArgument;
    }
    let Some(stream) = state.stream_mut() else {
        return Status::BadArgument;
    };
    stream.set_metadata_tree(namespace.as_bytes(), key.as_bytes(), &tree(value));
    Status::Ok
}

/// A document's value; `serde_json` bounds its depth.
fn tree(value: &Value) -> MetadataTree {
    match value {
        Value::Null => MetadataTree::Null,
        Value::Bool(value) => MetadataTree::Bool(*value),
        Value::Number(number) => MetadataTree::Number(number.as_f64().unwrap_or_default()),
        Value::String(text) => MetadataTree::String(text.as_bytes().to_vec()),
        Value::Array(values) => MetadataTree::List(values.iter().map(tree).collect()),
        Value::Object(fields) => MetadataTree::Map(
            fields
                .iter()
                .map(|(name, value)| (name.as_bytes().to_vec(), tree(value)))
                .collect(),
        ),
    }
}
