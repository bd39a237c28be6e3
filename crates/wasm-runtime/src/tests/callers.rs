//! A guest that calls any host function with any arguments, in each of its callbacks, and logs what it was
//! answered.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{Direction, HeaderMap, Phase, Slot};
use proptest::prelude::*;
use wasmtime::{Extern, Store, ValType};

use super::fake::{FakeStream, Probe, shared};
use crate::Clock;
use crate::abi::Version;
use crate::engine::engine;
use crate::pairs::Writer;
use crate::state::State;

/// Functions with their parameters: whether each is one of 64 bits.
pub(super) type Functions = Vec<(String, String, Vec<bool>)>;

pub(super) fn functions() -> Functions {
    let engine = engine().unwrap();
    let linker = crate::host::linker(engine).unwrap();
    let state = State::new(engine, Arc::new(shared()));
    let mut store = Store::new(engine, state);
    let mut functions: Functions = linker
        .iter(&mut store)
        .map(|(module, name, item)| (module.to_owned(), name.to_owned(), item))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(module, name, item)| {
            let Extern::Func(function) = item else {
                panic!("{name} is no function");
            };
            let wide = |kind: ValType| matches!(kind, ValType::I64);
            let parameters = function.ty(&store).params().map(wide).collect();
            (module, name, parameters)
        })
        .collect();
    functions.sort();
    functions
}

/// Where the guest has what it is to do: not where arguments point to.
const ARGUMENTS: usize = 32_768;

/// What lies in the guest's memory for arguments to point at: where, and what.
fn blocks() -> Vec<(i64, Vec<u8>)> {
    let mut pairs = Vec::new();
    let mut writer = Writer::default();
    for (name, value) in [(":method", "GET"), (":path", "/"), (":authority", "auth")] {
        writer.push(name.as_bytes(), value.as_bytes());
    }
    writer.write(&mut pairs);
    let mut broken = pairs.clone();
    // The first name is longer than all of it.
    broken[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let texts: [&[u8]; 13] = [
        &pairs,
        &broken,
        b"\xff\xfe",
        b"auth",
        b"request\0path",
        b"compress",
        b"set_dynamic_metadata",
        b"counter",
        b"\x0a\x03own\x12\x01v",
        br#"{"namespace":"n","key":"k","value":[1]}"#,
        b"verify_signature",
        b"sign",
        b"\x0a\x06sha256\x12\x03key",
    ];
    let places = (0..).map(|number| 4096 + 128 * number);
    places.zip(texts.into_iter().map(<[u8]>::to_vec)).collect()
}

/// Bytes as a string of WebAssembly's text format.
fn quoted(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "\\{byte:02x}").unwrap();
        text
    })
}

/// The guest, marked with a version. The header `x-args` holds the function's number and the arguments, of 64
/// bits each.
pub(super) fn module(functions: &Functions, version: Version) -> Vec<u8> {
    let position = |wanted: &str| {
        functions
            .iter()
            .position(|(_, name, _)| name == wanted)
            .unwrap()
    };
    let (get, log) = (
        position("proxy_get_header_map_value"),
        position("proxy_log"),
    );
    let mut imports = String::new();
    let mut calls = String::new();
    for (index, (module, name, parameters)) in functions.iter().enumerate() {
        let mut kinds = String::new();
        let mut arguments = String::new();
        for (place, wide) in parameters.iter().enumerate() {
            let kind = if *wide { "i64" } else { "i32" };
            let at = ARGUMENTS + 8 * (place + 1);
            write!(kinds, " {kind}").unwrap();
            write!(arguments, " ({kind}.load (i32.const {at}))").unwrap();
        }
        let answers = !matches!(
            name.as_str(),
            "proc_exit" | "emscripten_notify_memory_growth"
        );
        let result = if answers { "(result i32)" } else { "" };
        writeln!(
            imports,
            r#"(import "{module}" "{name}" (func $f{index} (param{kinds}) {result}))"#
        )
        .unwrap();
        let call = format!("(call $f{index}{arguments})");
        let call = if answers {
            format!("(call $answered {call})")
        } else {
            format!("{call} (call $answered (i32.const 0))")
        };
        writeln!(
            calls,
            "(if (i32.eq (i32.load (i32.const {ARGUMENTS})) (i32.const {index})) (then {call}))"
        )
        .unwrap();
    }
    // What a call has written elsewhere than it should is not there for the next one.
    let (mut data, mut restore) = (String::new(), String::new());
    let fixed = [(100, b"x-args".to_vec()), (110, b"=".to_vec())];
    for (number, (place, bytes)) in fixed.into_iter().chain(blocks()).enumerate() {
        writeln!(data, r#"(data $d{number} "{}")"#, quoted(&bytes)).unwrap();
        writeln!(
            restore,
            "(memory.init $d{number} (i32.const {place}) (i32.const 0) (i32.const {}))",
            bytes.len()
        )
        .unwrap();
    }
    let end = match version {
        Version::V0_1_0 => "",
        Version::V0_2_0 | Version::V0_2_1 => "i32",
    };
    wat::parse_str(format!(
        r#"(module {imports}
          (memory (export "memory") 2)
          {data}
          (global $next (mut i32) (i32.const {ARGUMENTS}))
          (func (export "{marker}"))
          (func (export "malloc") (param i32) (result i32) (global.get $next))
          (func $answered (param $answer i32)
            (i32.store8 (i32.const 111) (i32.add (i32.const 48) (local.get $answer)))
            (drop (call $f{log} (i32.const 2) (i32.const 110) (i32.const 2))))
          (func $run {calls})
          (func (export "proxy_on_request_headers") (param i32 i32 {end}) (result i32)
            {restore}
            (global.set $next (i32.const {ARGUMENTS}))
            (drop (call $f{get} (i32.const 0) (i32.const 100) (i32.const 6) (i32.const 0) (i32.const 4)))
            (global.set $next (i32.const 60000))
            (call $run) (i32.const 0))
          (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (call $run) (i32.const 0))
          (func (export "proxy_on_tick") (param i32) (call $run))
          (func (export "proxy_on_queue_ready") (param i32 i32) (call $run))
          (func (export "proxy_on_log") (param i32) (call $run))
          (func (export "proxy_on_done") (param i32) (result i32) (call $run) (i32.const 1))
          (func (export "proxy_on_delete") (param i32) (call $run)))"#,
        marker = version.marker(),
    ))
    .unwrap()
}

/// What a stream's callbacks came to, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exchange {
    /// What the function answered in each callback that came back.
    pub(super) answers: Vec<i32>,
    /// What the first one says that did not come back.
    pub(super) fault: Option<String>,
}

/// A stream with a body, all of whose callbacks call a function.
pub(super) fn exchange(probe: &Probe, function: usize, arguments: &[i64]) -> Exchange {
    let mut bytes = (function as u64).to_le_bytes().to_vec();
    for argument in arguments {
        bytes.extend_from_slice(&argument.to_le_bytes());
    }
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    stream.bodies.insert(Direction::Request, b"body".to_vec());
    stream
        .maps
        .get_mut(&HeaderMap::RequestHeaders)
        .unwrap()
        .push((b"x-args".to_vec(), bytes));
    let phases = [Phase::RequestHeaders, Phase::RequestBody, Phase::Log];
    let fault = phases
        .into_iter()
        .find_map(|phase| probe.call(phase, &mut slot, &mut stream).err());
    probe.configured.end(slot, 0);
    let answers = stream
        .logged()
        .iter()
        .filter_map(|line| line.strip_prefix('='))
        .filter_map(|answer| answer.bytes().next())
        .map(|answer| i32::from(answer) - 48)
        .collect();
    Exchange {
        answers,
        fault: fault.map(|fault| fault.message),
    }
}

/// A time that is later each time that it is asked for: what failed is mended at once.
pub(super) fn leaping() -> Clock {
    let now = std::sync::atomic::AtomicU64::new(0);
    Clock::new(move || Duration::from_mins(now.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
}

/// Arguments: small numbers, edges of the memory, anything, and pointers with lengths that make sense.
pub(super) fn arguments() -> impl Strategy<Value = Vec<i64>> {
    let blocks: Vec<(i64, i64)> = blocks()
        .into_iter()
        .map(|(place, bytes)| (place, i64::try_from(bytes.len()).unwrap()))
        .collect();
    let edges = [-1, 131_070, 131_072, i64::from(i32::MAX), 65_536];
    let one = prop_oneof![
        4 => 0_i64..12,
        2 => Just(100_i64),
        2 => 1000_i64..2000,
        1 => proptest::sample::select(edges.to_vec()),
        1 => any::<i64>(),
    ];
    let some = prop_oneof![
        2 => one.prop_map(|one| vec![one]),
        1 => proptest::sample::select(blocks).prop_map(|(place, length)| vec![place, length]),
    ];
    proptest::collection::vec(some, 13)
        .prop_map(|parts| parts.concat().into_iter().take(13).collect())
}
