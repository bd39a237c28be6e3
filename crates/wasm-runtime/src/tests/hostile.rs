//! Host functions with any arguments, in any callback: an answer or a trap, and the next stream is served.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use outrider_plugin_api::{Direction, HeaderMap, Phase, Slot};
use proptest::prelude::*;
use wasmtime::{Extern, Store, ValType};

use super::fake::{FakeStream, Probe, load, source};
use crate::engine::engine;
use crate::shared::{MetricNames, Shared};
use crate::state::State;
use crate::{Clock, WasmOptions, shared_data};

/// Functions with their parameters: whether each is one of 64 bits.
type Functions = Vec<(String, String, Vec<bool>)>;

fn functions() -> Functions {
    let engine = engine().unwrap();
    let linker = crate::host::linker(engine).unwrap();
    let shared = Shared {
        background: None,
        plugin: String::new(),
        file: String::new(),
        options: WasmOptions::default(),
        clock: Clock::default(),
        environment: Vec::new(),
        memory_budget: 0,
        time_budget: Duration::ZERO,
        load_budget: Duration::ZERO,
        namespace: shared_data::namespace("hostile"),
        metrics: std::sync::Mutex::new(MetricNames::default()),
    };
    let mut store = Store::new(engine, State::new(Arc::new(shared)));
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

/// A guest that calls the function whose number the header `x-args` begins with, with the numbers that follow
/// it there: in each of its callbacks.
fn module(functions: &Functions) -> Vec<u8> {
    let mut imports = String::new();
    let mut calls = String::new();
    for (index, (module, name, parameters)) in functions.iter().enumerate() {
        let mut kinds = String::new();
        let mut arguments = String::new();
        for (place, wide) in parameters.iter().enumerate() {
            let kind = if *wide { "i64" } else { "i32" };
            write!(kinds, " {kind}").unwrap();
            write!(
                arguments,
                " ({kind}.load (i32.const {}))",
                1024 + 8 * (place + 1)
            )
            .unwrap();
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
            format!("(drop {call})")
        } else {
            call
        };
        writeln!(
            calls,
            "(if (i32.eq (i32.load (i32.const 1024)) (i32.const {index})) (then {call}))"
        )
        .unwrap();
    }
    let get = functions
        .iter()
        .position(|(_, name, _)| name == "proxy_get_header_map_value")
        .unwrap();
    wat::parse_str(format!(
        r#"(module {imports}
          (memory (export "memory") 2)
          (data (i32.const 100) "x-args")
          (global $next (mut i32) (i32.const 1024))
          (func (export "proxy_abi_version_0_2_1"))
          (func (export "malloc") (param i32) (result i32) (global.get $next))
          (func $run {calls})
          (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
            (global.set $next (i32.const 1024))
            (drop (call $f{get} (i32.const 0) (i32.const 100) (i32.const 6) (i32.const 0) (i32.const 4)))
            (global.set $next (i32.const 60000))
            (call $run) (i32.const 0))
          (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (call $run) (i32.const 0))
          (func (export "proxy_on_tick") (param i32) (call $run))
          (func (export "proxy_on_queue_ready") (param i32 i32) (call $run))
          (func (export "proxy_on_log") (param i32) (call $run))
          (func (export "proxy_on_done") (param i32) (result i32) (call $run) (i32.const 1))
          (func (export "proxy_on_delete") (param i32) (call $run)))"#
    ))
    .unwrap()
}

struct Fixture {
    functions: Functions,
    probe: Probe,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let functions = functions();
    let now = AtomicU64::new(0);
    // Each look at the clock puts it forward: what failed is mended at once.
    let clock = Clock::new(move || Duration::from_mins(now.fetch_add(1, Ordering::Relaxed)));
    let mut source = source(&module(&functions));
    source.clock = clock;
    source.options.relaxed = true;
    let probe = load(source, "{}").unwrap();
    Fixture { functions, probe }
});

fn argument() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 0_i64..12,
        2 => Just(100_i64),
        2 => 1000_i64..2000,
        1 => prop_oneof![Just(-1_i64), Just(131_070), Just(131_072), Just(i64::from(i32::MAX)), Just(65_536)],
        1 => any::<i64>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn no_argument_does_harm(function in 0_u32..1000, arguments in proptest::collection::vec(argument(), 13)) {
        let fixture = &*FIXTURE;
        let function = function % fixture.functions.len() as u32;
        let mut bytes = u64::from(function).to_le_bytes().to_vec();
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
        let mut faults = Vec::new();
        for phase in [Phase::RequestHeaders, Phase::RequestBody, Phase::Log] {
            if let Err(fault) = fixture.probe.call(phase, &mut slot, &mut stream) {
                faults.push(fault.message);
                break;
            }
        }
        fixture.probe.configured.end(slot, 0);
        let (_, name, _) = &fixture.functions[function as usize];
        if name != "proc_exit" {
            // Not even a trap: what is wrong is told by a status.
            prop_assert_eq!(faults, Vec::<String>::new(), "{}", name);
        }
        let (mut next, mut other) = (Slot::default(), FakeStream::new());
        let served = fixture.probe.call(Phase::RequestHeaders, &mut next, &mut other);
        fixture.probe.configured.end(next, 0);
        prop_assert!(served.is_ok(), "{}: {:?}", name, served);
    }
}

#[test]
fn the_list_of_functions_is_what_is_linked() {
    let linked: Vec<(String, String)> = functions()
        .into_iter()
        .map(|(module, name, _)| (module, name))
        .collect();
    let mut listed: Vec<(String, String)> = crate::host_functions()
        .map(|one| (one.module.to_owned(), one.name.to_owned()))
        .collect();
    listed.sort();
    assert_eq!(listed, linked);
}
