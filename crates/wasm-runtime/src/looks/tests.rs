use arbitrary::Unstructured;
use proptest::prelude::*;
use wasmparser::{Validator, WasmFeatures};

use super::*;

fn wasm(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

fn valid(module: &[u8]) {
    let features = WasmFeatures::default();
    Validator::new_with_features(features)
        .validate_all(module)
        .unwrap();
}

/// How many looks each function has got.
fn looks(text: &str) -> Vec<usize> {
    let module = wasm(text);
    valid(&put_into(&module).unwrap());
    let read = Read::new(&module).unwrap();
    read.bodies.iter().map(|body| body.looks.len()).collect()
}

#[test]
fn what_ends_by_itself_has_none() {
    assert_eq!(
        looks(
            "(module (import \"env\" \"proxy_done\" (func $done (result i32)))
               (memory 1) (export \"a\" (func $a))
               (func $a call $b call $b block call $done br_if 0 end)
               (func $b call $c call $c)
               (func $c i32.const 0 i32.load drop))"
        ),
        [0, 0, 0]
    );
}

#[test]
fn each_way_round_has_one() {
    let text = "(module (type $t (func)) (table 1 funcref)
           (func $loops loop loop br 1 end end loop end)
           (func $itself (param i32) local.get 0 if i32.const 0 call $itself end)
           (func $one call $other)
           (func $other call $one)
           (func $through i32.const 0 call_indirect (type $t))
           (func $in_the_end return_call $in_the_end)
           (func $far call $far1) (func $far1 call $far2) (func $far2 call $far)
           (func $outside call $one call $far))";
    assert_eq!(looks(text), [3, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn a_look_is_at_a_place_once() {
    let text = "(module (type $t (func)) (table 1 funcref)
           (func i32.const 0 loop (param i32) call_indirect (type $t) end)
           (func $a (param funcref) call $a))";
    assert_eq!(
        looks(text.replace("call $a", "local.get 0 call $a").as_str()),
        [1, 1]
    );
}

/// Each function calls the next one twice: none comes round, and a call of the first is more than a lifetime.
#[test]
fn what_grows_beyond_all_bounds_has_some() {
    const DEPTH: usize = 64;
    let functions: Vec<String> = (0..DEPTH)
        .map(|number| format!("(func call {} call {})", number + 1, number + 1))
        .collect();
    let looks = looks(&format!("(module {} (func nop))", functions.concat()));
    let with: Vec<usize> = (0..=DEPTH).filter(|number| looks[*number] > 0).collect();
    // Some twenty calls deep there are as many instructions as may be; from there on it begins anew.
    assert!(with.len() >= 3 && with.len() <= 4, "{with:?}");
    assert!(
        with.windows(2)
            .all(|pair| (17..=21).contains(&(pair[1] - pair[0]))),
        "{with:?}"
    );
}

/// Panics call each other, and are called everywhere; only one of them is.
#[test]
fn of_calls_that_do_not_return_one_counts() {
    let panics = "(block br 0 call $panic unreachable)"
        .replace("(block", "")
        .replace(')', "");
    let large = "nop ".repeat(1000);
    let body = format!("block {panics} end ").repeat(2000);
    let looks = looks(&format!("(module (func $a {body}) (func $panic {large}))"));
    assert_eq!(looks, [0, 0]);
}

#[test]
fn sections_that_are_not_there_are_added_and_others_stay() {
    for text in [
        "(module)",
        "(module (func))",
        "(module (memory 1) (data (i32.const 0) \"a\"))",
        "(module (table 1 funcref) (elem (i32.const 0) $f) (func $f))",
        "(module (global (mut i32) (i32.const 0)) (func $f global.get 0 drop) (start $f))",
        "(module (import \"env\" \"proxy_done\" (func $f)) (start $f))",
        "(module (memory 1) (func i32.const 0 i32.const 0 i32.const 0 memory.init 0) (data \"a\"))",
        "(module (rec (type (func)) (type (func (param i32)))) (func (type 1)))",
    ] {
        let before = wasm(text);
        let after = put_into(&before).unwrap();
        valid(&after);
        let exports = |module: &[u8]| {
            let mut names = Vec::new();
            for payload in Parser::new(0).parse_all(module) {
                if let Payload::ExportSection(exports) = payload.unwrap() {
                    names.extend(
                        exports
                            .into_iter()
                            .map(|export| export.unwrap().name.to_owned()),
                    );
                }
            }
            names
        };
        let mut added = vec![TIME, LOOK];
        if text.contains("start") {
            added.push(START);
        }
        assert_eq!(exports(&after), added, "{text}");
        assert!(
            !Parser::new(0)
                .parse_all(&after)
                .any(|payload| matches!(payload, Ok(Payload::StartSection { .. })))
        );
    }
}

#[test]
fn names_stay_and_what_would_be_wrong_goes() {
    let module = wasm(
        "(module (@custom \".debug_line\" \"lines\") (@custom \".debug_info\" \"more\") (@custom \"kept\" \"text\")
           (@custom \"metadata.code.trace_inst\" \"\\00\")
           (func $named loop br 0 end))",
    );
    let after = put_into(&module).unwrap();
    valid(&after);
    let customs: Vec<String> = Parser::new(0)
        .parse_all(&after)
        .filter_map(|payload| match payload.unwrap() {
            Payload::CustomSection(section) => Some(section.name().to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(customs, ["metadata.code.branch_hint", "kept", "name"]);
    assert!(
        after
            .windows(LINES.len())
            .any(|bytes| bytes == LINES.as_bytes())
    );
}

/// The operators of a module's functions, and where they are.
fn operators(module: &[u8]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CodeSectionEntry(body) = payload.unwrap() {
            let mut reader = body.get_operators_reader().unwrap();
            while !reader.eof() {
                let (operator, place) = reader.read_with_offset().unwrap();
                found.push((format!("{operator:?}"), place));
            }
        }
    }
    found
}

/// Puts looks into a module and sees to it that the result is valid, and that it is the same but for them.
fn is_the_same_with_looks(module: &[u8]) {
    /// How many operators a look has.
    const LOOK: usize = 5;
    let after = put_into(module).unwrap();
    valid(&after);
    let places = Places::of(module).unwrap();
    let read = Read::new(module).unwrap();
    let was = operators(module);
    let its_memory = format!("memory: {}", read.counts.memories);
    let now = operators(&after);
    // The last one is the function that looks call.
    let (mut now, mut next, mut looks) = (&now[..now.len() - 3], 0, 0);
    let origin = |place| places.origin(place).map(|origin| origin + read.code.start);
    while !now.is_empty() {
        let is_look =
            now.len() > 1 && now[1].0.starts_with("I32Load8U") && now[1].0.contains(&its_memory);
        let length = if is_look {
            looks += 1;
            // They are found where the operator is that it is put before.
            LOOK
        } else {
            assert_eq!(now[0].0, was[next].0);
            1
        };
        for (_, place) in &now[..length] {
            assert_eq!(origin(*place), Some(was[next].1));
        }
        next += usize::from(!is_look);
        now = &now[length..];
    }
    assert_eq!(next, was.len());
    let put: usize = read.bodies.iter().map(|body| body.looks.len()).sum();
    assert_eq!(looks, put);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_module_stays_valid_and_what_it_is(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let config = wasm_smith::Config {
            gc_enabled: false,
            exceptions_enabled: false,
            custom_page_sizes_enabled: false,
            wide_arithmetic_enabled: false,
            shared_everything_threads_enabled: false,
            threads_enabled: false,
            max_memories: 3,
            max_tables: 3,
            ..wasm_smith::Config::default()
        };
        let mut bytes = Unstructured::new(&bytes);
        if let Ok(module) = wasm_smith::Module::new(config, &mut bytes) {
            is_the_same_with_looks(&module.to_bytes());
        }
    }
}

#[test]
fn every_instruction_is_found_where_it_was() {
    let text = "(module (type $t (func)) (memory 1) (table 1 funcref)
         (func $first (param i32) (local i64) nop loop i32.const 0 call_indirect (type $t) loop br 0 end end)
         (func $empty)
         (func $itself nop call $itself nop))";
    let module = wasm(text);
    let after = put_into(&module).unwrap();
    let places = Places::of(&module).unwrap();
    is_the_same_with_looks(&module);
    assert_eq!(places.origin(0), None);
    assert_eq!(places.origin(after.len() * 2), None);
}
