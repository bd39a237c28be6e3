use proptest::prelude::*;
use wasmtime::{Engine, Instance, Module, Store, Trap};

use super::*;

fn wasm(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

/// A function that is a loop around a table, as Go's are, with four parts.
fn parts(jumps: [&str; 4]) -> String {
    let [first, second, third, fourth] = jumps;
    format!(
        "(module (func (param $part i32) (param $other i32)
           (loop $again
             (block $d (block $c (block $b (block $a
               (br_table $a $b $c $d $again (local.get $part)))
               {first})
               {second})
               {third})
               {fourth}
             unreachable)))"
    )
}

fn set_and(number: i32, jump: &str) -> String {
    format!("i32.const {number} local.set $part {jump}")
}

#[test]
fn a_jump_forward_is_direct() {
    for (number, block) in [(1, "$b"), (2, "$c"), (3, "$d")] {
        for around in ["", "block", "local.get $other if"] {
            let end = if around.is_empty() { "" } else { "end" };
            let module = |jump: &str| {
                let jump = format!("{around} {} {end}", set_and(number, jump));
                wasm(&parts([&jump, "return", "return", "return"]))
            };
            assert_eq!(
                *direct(&module("br $again")),
                module(&format!("br {block}"))
            );
        }
    }
}

#[test]
fn every_other_jump_stays() {
    for jump in [
        // Back, to itself, to the loop, and to what is in no table and so to the loop.
        &set_and(0, "br $again"),
        &set_and(1, "br $again"),
        &set_and(4, "br $again"),
        &set_and(-1, "br $again"),
        // Not known, or not for the table.
        "local.get $other local.set $part br $again",
        "i32.const 3 local.set $other br $again",
        "i32.const 3 local.tee $part drop br $again",
        "i32.const 3 local.set $part nop br $again",
        "i32.const 3 local.set $part local.get $other br_if $again",
        // Of another loop.
        "loop $inner i32.const 3 local.set $part br $inner end",
    ] {
        let module = wasm(&parts(["", jump, "", ""]));
        assert!(matches!(direct(&module), Cow::Borrowed(_)), "{jump}");
    }
    for beginning in [
        "local.get $part drop",
        "(block (result i32) i32.const 0) drop",
        "(loop $inner (br_if $inner (local.get $other)))",
    ] {
        let text = parts([&set_and(3, "br $again"), "", "", ""]);
        let module = wasm(&text.replace("(loop $again", &format!("(loop $again {beginning}")));
        assert!(matches!(direct(&module), Cow::Borrowed(_)), "{beginning}");
    }
}

#[test]
fn a_loop_without_a_way_back_is_a_block() {
    for (jump, stays) in [
        ("", false),
        (&*set_and(3, "br $d"), false),
        ("loop $inner br $inner end", false),
        (&set_and(0, "br $again"), true),
        ("local.get $other br_if $again", true),
        ("local.get $other br_table $d $again", true),
        ("local.get $other br_table $again $d", true),
        ("local.get $other if br $again end", true),
    ] {
        let text = parts(["", jump, "", ""]).replace("$c $d $again", "$c $d");
        let block = text.replace("(loop $again", "(block $again");
        let expected = if stays { &text } else { &block };
        assert_eq!(*direct(&wasm(&text)), wasm(expected), "{jump}");
    }
    // It gives a value.
    let typed = wasm("(module (func (result i32) (loop (result i32) (i32.const 1))))");
    assert!(matches!(direct(&typed), Cow::Borrowed(_)));
}

#[test]
fn a_long_operand_keeps_its_length() {
    let blocks = 300;
    // The depth of the loop, 300, has two bytes, and that of a near block would have one.
    for target in [1, 100, 299] {
        let mut text = format!(
            "(module (func (export \"run\") (param $part i32) (result i32)
               loop $again {} local.get $part br_table ",
            "block ".repeat(blocks)
        );
        for depth in 0..blocks {
            text.push_str(&format!("{depth} "));
        }
        for part in 0..blocks {
            text.push_str(&match part {
                0 => format!("end {} ", set_and(target, "br $again")),
                part => format!("end i32.const {part} return "),
            });
        }
        text.push_str("end unreachable))");
        let module = wasm(&text);
        let changed = direct(&module);
        assert_eq!(changed.len(), module.len());
        assert!(matches!(changed, Cow::Owned(_)));
        assert_eq!(run(&engine(), &changed, 0), Ok(target));
    }
}

#[test]
fn what_is_no_module_stays() {
    for bytes in [&b""[..], b"\0asm", b"\0asm\x01\0\0\0\x0a\xff", b"text"] {
        assert_eq!(*direct(bytes), *bytes);
    }
}

fn engine() -> Engine {
    Engine::default()
}

/// What a module's `run` did, as a number.
fn run(engine: &Engine, module: &[u8], part: i32) -> Result<i32, Trap> {
    let mut store = Store::new(engine, ());
    let module = Module::new(engine, module).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let run = instance
        .get_typed_func::<i32, i32>(&mut store, "run")
        .unwrap();
    run.call(&mut store, part)
        .map_err(|error| *error.downcast_ref::<Trap>().unwrap())
}

/// How a part ends, after it has noted that it ran.
#[derive(Debug, Clone)]
enum End {
    Falls,
    Jumps(i32),
    /// From within blocks, for some of what was noted.
    JumpsIf(usize, i32),
    /// To wherever what was noted says.
    Wanders,
    Returns,
    Traps,
}

fn end() -> impl Strategy<Value = End> {
    let number = -1..8_i32;
    prop_oneof![
        2 => Just(End::Falls),
        4 => number.clone().prop_map(End::Jumps),
        6 => (0..3_usize, number).prop_map(|(blocks, number)| End::JumpsIf(blocks, number)),
        1 => Just(End::Wanders),
        1 => Just(End::Returns),
        1 => Just(End::Traps),
    ]
}

/// A module whose `run` goes through parts and answers which ones, in which order, until a hundred have run.
fn wandering(parts: &[End], table: &[usize]) -> String {
    let mut text = String::from(
        "(module (func (export \"run\") (param $part i32) (result i32)
           (local $noted i32) (local $left i32)
           (local.set $left (i32.const 100))
           block $out loop $again ",
    );
    let blocks = parts.len();
    text.push_str(&"block ".repeat(blocks));
    text.push_str("local.get $part br_table ");
    for depth in table {
        // Each of the blocks, the loop, the block around it.
        text.push_str(&format!("{} ", depth % (blocks + 2)));
    }
    for (number, end) in parts.iter().enumerate() {
        text.push_str(&format!(
            " end
             (local.set $noted (i32.add (i32.mul (local.get $noted) (i32.const 31)) (i32.const {number})))
             (local.set $left (i32.sub (local.get $left) (i32.const 1)))
             (br_if $out (i32.eqz (local.get $left))) "
        ));
        text.push_str(&match end {
            End::Falls => String::new(),
            End::Jumps(number) => set_and(*number, "br $again"),
            End::JumpsIf(blocks, number) => format!(
                "{} (i32.and (local.get $noted) (i32.const 2)) if {} end {}",
                "block ".repeat(*blocks),
                set_and(*number, "br $again"),
                "end ".repeat(*blocks)
            ),
            End::Wanders => {
                "(local.set $part (i32.and (local.get $noted) (i32.const 7))) br $again".to_owned()
            }
            End::Returns => "(return (local.get $noted))".to_owned(),
            End::Traps => "unreachable".to_owned(),
        });
    }
    text.push_str(" end end local.get $noted))");
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_function_does_what_it_did(
        parts in prop::collection::vec(end(), 1..7),
        table in prop::collection::vec(0..9_usize, 1..8),
    ) {
        let engine = engine();
        let module = wasm(&wandering(&parts, &table));
        // A table may be a way round on its own, with nothing that ends it.
        prop_assume!(!table.iter().any(|depth| depth % (parts.len() + 2) == parts.len()));
        let changed = direct(&module);
        for part in 0..8 {
            prop_assert_eq!(run(&engine, &module, part), run(&engine, &changed, part));
        }
    }

    #[test]
    fn a_damaged_module_is_as_valid_as_it_was(
        parts in prop::collection::vec(end(), 1..7),
        table in prop::collection::vec(0..9_usize, 1..8),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut module = wasm(&wandering(&parts, &table));
        for (at, byte) in damage {
            *at.get_mut(&mut module) = byte;
        }
        let engine = engine();
        let changed = direct(&module);
        let said = |module: &[u8]| Module::validate(&engine, module).map_err(|error| error.to_string());
        prop_assert_eq!(said(&module), said(&changed));
    }
}
