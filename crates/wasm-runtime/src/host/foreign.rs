//! Functions that a proxy offers beyond the interface, by their names: those of Envoy that plugins use, and
//! ours. Each takes bytes and answers bytes.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Decompress, FlushDecompress};
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
    let status = run(state, name, arguments, &mut scratch)?;
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

/// Bytes that are compressed or uncompressed between two checks of the budget.
const CHUNK: usize = 32 * 1024;
/// Bytes of arguments that are a document, which takes many times its length to read.
const MOST_DOCUMENT: usize = 64 * 1024;

fn compress(state: &mut State, arguments: &[u8], into: &mut Vec<u8>) -> Answer {
    let mut encoder = ZlibEncoder::new(into, Compression::default());
    for part in arguments.chunks(CHUNK) {
        state.time.check()?;
        if encoder.write_all(part).is_err() {
            return Ok(Status::SerializationFailure);
        }
    }
    Ok(match encoder.finish() {
        Ok(_) => Status::Ok,
        Err(_) => Status::SerializationFailure,
    })
}

fn uncompress(state: &mut State, arguments: &[u8], into: &mut Vec<u8>) -> Answer {
    // No more than the guest could hold.
    let most = state.shared.memory_budget;
    let mut decoder = Decompress::new(true);
    let mut rest = arguments;
    let mut room = vec![0; CHUNK];
    loop {
        state.time.check()?;
        let (taken, given) = (decoder.total_in(), decoder.total_out());
        // Both are bounded: a part of nothing but empty blocks gives no bytes, and a small one many.
        let part = rest.get(..CHUNK).unwrap_or(rest);
        let Ok(status) = decoder.decompress(part, &mut room, FlushDecompress::None) else {
            return Ok(Status::SerializationFailure);
        };
        let taken = usize::try_from(decoder.total_in() - taken).unwrap_or(usize::MAX);
        let given = usize::try_from(decoder.total_out() - given).unwrap_or(usize::MAX);
        rest = rest.get(taken..).unwrap_or_default();
        into.extend_from_slice(room.get(..given).unwrap_or_default());
        if into.len() > most {
            return Ok(Status::SerializationFailure);
        }
        match (status, taken, given) {
            (flate2::Status::StreamEnd, ..) => return Ok(Status::Ok),
            // The text ends before the stream does.
            (_, 0, 0) => return Ok(Status::SerializationFailure),
            _ => {}
        }
    }
}

fn run(state: &mut State, name: &[u8], arguments: &[u8], into: &mut Vec<u8>) -> Answer {
    match name {
        b"compress" => return compress(state, arguments, into),
        b"uncompress" => return uncompress(state, arguments, into),
        _ => {}
    }
    Ok(match name {
        b"clear_route_cache" => replies::clear_route(state),
        b"set_envoy_filter_state" => set_filter_state(state, arguments),
        b"declare_property" => declare_property(arguments),
        b"verify_signature" => signatures::verify(arguments, into),
        b"sign" => signatures::sign(arguments, into),
        b"set_dynamic_metadata" if arguments.len() > MOST_DOCUMENT => Status::BadArgument,
        b"set_dynamic_metadata" => set_dynamic_metadata(state, arguments),
        _ => Status::NotFound,
    })
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
        Err(FilterStateError::Unknown | FilterStateError::NotAllowed) => {
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
    match stream.set_metadata_tree(namespace.as_bytes(), key.as_bytes(), &tree(value)) {
        Ok(()) => Status::Ok,
        Err(_denied) => Status::BadArgument,
    }
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
