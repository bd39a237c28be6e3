//! Small Proxy-Wasm guests for tests, written in WebAssembly's text form on top of a prelude: imports, an
//! allocator, and the configuration of each root context.
//!
//! In a guest's functions `(call $config (local.get $context))` is the address of the configuration that is
//! in force on a stream: its length, and behind that its bytes. A configuration with a `!` in it is refused,
//! with a line in the log.
//!
//! The trap: memory below 64 KiB is laid out by hand. Texts are from 1 KiB on, then the roots of contexts,
//! then the configurations of the newest 128 roots, of at most 252 bytes each.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};

const PRELUDE: &str = r#"
(module $guest
  (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
  (import "env" "proxy_get_buffer_bytes"
    (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_set_buffer_bytes"
    (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_value"
    (func $get_header (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_get_header_map_pairs" (func $get_headers (param i32 i32 i32) (result i32)))
  (import "env" "proxy_replace_header_map_value"
    (func $set_header (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_add_header_map_value"
    (func $add_header (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_remove_header_map_value" (func $clear_header (param i32 i32 i32) (result i32)))
  (import "env" "proxy_send_local_response"
    (func $reply (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  IMPORTS
  (memory (export "memory") 3)
  (global $heap (mut i32) (i32.const 65536))
  (func ABI)

  ;; What the host hands over is used at once, so the heap begins anew when it is full.
  (func $malloc (export "malloc") (param $size i32) (result i32)
    (local $begin i32)
    (local.set $size (i32.and (i32.add (local.get $size) (i32.const 7)) (i32.const -8)))
    (if (i32.gt_u (i32.add (global.get $heap) (local.get $size))
                  (i32.mul (memory.size) (i32.const 65536)))
      (then (global.set $heap (i32.const 65536))))
    (if (i32.gt_u (i32.add (global.get $heap) (local.get $size))
                  (i32.mul (memory.size) (i32.const 65536)))
      (then (drop (memory.grow
        (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1))))))
    (local.set $begin (global.get $heap))
    (global.set $heap (i32.add (global.get $heap) (local.get $size)))
    (local.get $begin))

  (func $root_of (param $context i32) (result i32)
    (i32.add (i32.const 8192)
      (i32.shl (i32.and (local.get $context) (i32.const 4095)) (i32.const 2))))
  (func $slot_of (param $root i32) (result i32)
    (i32.add (i32.const 32768)
      (i32.shl (i32.and (local.get $root) (i32.const 127)) (i32.const 8))))
  (func $config (param $context i32) (result i32)
    (call $slot_of (i32.load (call $root_of (local.get $context)))))

  (func (export "proxy_on_context_create") (param $context i32) (param $parent i32)
    (i32.store (call $root_of (local.get $context))
      (select (local.get $parent) (local.get $context) (local.get $parent))))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func $configure (export "proxy_on_configure") (param $root i32) (param $size i32) (result i32)
    (local $slot i32) (local $end i32)
    (local.set $end (i32.const ROUNDS))
    (loop $round
      (local.set $end (i32.sub (local.get $end) (i32.const 1)))
      (br_if $round (local.get $end)))
    (local.set $slot (call $slot_of (local.get $root)))
    (if (i32.gt_u (local.get $size) (i32.const 252)) (then (return (i32.const 0))))
    (i32.store (local.get $slot) (local.get $size))
    (if (i32.eqz (local.get $size)) (then (return (i32.const 1))))
    (drop (call $get_buffer (i32.const 7) (i32.const 0) (local.get $size) (i32.const 16) (i32.const 20)))
    (memory.copy (i32.add (local.get $slot) (i32.const 4)) (i32.load (i32.const 16)) (local.get $size))
    (local.set $slot (i32.add (local.get $slot) (i32.const 4)))
    (local.set $end (i32.add (local.get $slot) (local.get $size)))
    (loop $next
      (if (i32.eq (i32.load8_u (local.get $slot)) (i32.const 33))
        (then
          (drop (call $log (i32.const 4) REFUSED))
          (return (i32.const 0))))
      (local.set $slot (i32.add (local.get $slot) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $slot) (local.get $end))))
    (i32.const 1))

  ;; Whether a header of a map is there; its value is then at (load 16), its length (load 20).
  (func $has_header (param $map i32) (param $name i32) (param $length i32) (result i32)
    (i32.store (i32.const 20) (i32.const 0))
    (drop (call $get_header (local.get $map) (local.get $name) (local.get $length)
      (i32.const 16) (i32.const 20)))
    (i32.ne (i32.load (i32.const 20)) (i32.const 0)))
  ;; Whether what was read last is this text.
  (func $is (param $text i32) (param $length i32) (result i32)
    (local $at i32)
    (if (i32.ne (i32.load (i32.const 20)) (local.get $length)) (then (return (i32.const 0))))
    (loop $next
      (if (i32.ne (i32.load8_u (i32.add (local.get $text) (local.get $at)))
                  (i32.load8_u (i32.add (i32.load (i32.const 16)) (local.get $at))))
        (then (return (i32.const 0))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $length))))
    (i32.const 1))
"#;

/// What a guest says of a configuration that it refuses.
pub const REFUSAL: &str = "no configuration with an exclamation mark";

/// Where texts begin, and end.
const TEXTS: std::ops::Range<usize> = 1024..8192;

/// A guest in the making.
#[derive(Debug, Clone)]
pub struct Guest {
    texts: String,
    functions: String,
    imports: String,
    abi: String,
    rounds: u32,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            texts: String::new(),
            functions: String::new(),
            imports: String::new(),
            abi: "(export \"proxy_abi_version_0_2_1\")".to_owned(),
            rounds: 1,
        }
    }
}

impl Guest {
    /// Puts a text into memory; the answer is its address and its length, as two operands.
    pub fn text(&mut self, text: &str) -> String {
        let begin = TEXTS.start + self.texts.len();
        self.texts.push_str(text);
        format!("(i32.const {begin}) (i32.const {})", text.len())
    }

    /// Adds a function.
    pub fn function(&mut self, text: &str) -> &mut Self {
        self.functions.push_str(text);
        self
    }

    /// Adds an import.
    pub fn import(&mut self, text: &str) -> &mut Self {
        self.imports.push_str(text);
        self
    }

    /// Says that it speaks another version of the ABI; none: it says nothing.
    pub fn abi(&mut self, version: Option<&str>) -> &mut Self {
        self.abi = version
            .map(|version| format!("(export \"proxy_abi_version_{version}\")"))
            .unwrap_or_default();
        self
    }

    /// Its module.
    ///
    /// # Errors
    /// A function is not in the text form.
    pub fn module(&self) -> anyhow::Result<Vec<u8>> {
        let mut whole = self.clone();
        let refused = whole.text(REFUSAL);
        let mut text = PRELUDE
            .replace("IMPORTS", &whole.imports)
            .replace("(func ABI)", &format!("(func {})", whole.abi))
            .replace("ROUNDS", &whole.rounds.to_string())
            .replace("REFUSED", &refused);
        ensure!(
            TEXTS.start + whole.texts.len() <= TEXTS.end,
            "the guest has too many texts"
        );
        text.push_str(&whole.functions);
        write!(text, "(data (i32.const {}) \"", TEXTS.start)?;
        for byte in whole.texts.bytes() {
            write!(text, "\\{byte:02x}")?;
        }
        text.push_str("\"))");
        wat::parse_str(&text).with_context(|| text.clone())
    }

    /// Has the guest take its time for each configuration: so many rounds of an empty loop, of which a processor
    /// does about a thousand million in a second.
    pub fn slow(mut self, rounds: u32) -> Self {
        self.rounds = rounds.max(1);
        self
    }

    /// A guest that says in the response what its configuration is (`x-config`), and which code this is
    /// (`x-revision`), and in the request that it was there (`x-guest`). `x-mood: trap` in the request ends
    /// in one.
    pub fn telling(revision: &str) -> Self {
        let mut guest = Self::default();
        let config = guest.text("x-config");
        let name = guest.text("x-revision");
        let revision = guest.text(revision);
        let own = guest.text("x-guest");
        let here = guest.text("was here");
        let mood = guest.text("x-mood");
        let trap = guest.text("trap");
        guest.function(&format!(
            "
  (func $consider_mood
    (if (call $has_header (i32.const 0) {mood})
      (then (if (call $is {trap}) (then (unreachable))))))
  (func $on_request_headers (export \"proxy_on_request_headers\")
      (param $context i32) (param i32 i32) (result i32)
    (call $consider_mood)
    (drop (call $set_header (i32.const 0) {own} {here}))
    (i32.const 0))
  (func $on_response_headers (export \"proxy_on_response_headers\")
      (param $context i32) (param i32 i32) (result i32)
    (local $config i32)
    (local.set $config (call $config (local.get $context)))
    (drop (call $set_header (i32.const 2) {config}
      (i32.add (local.get $config) (i32.const 4)) (i32.load (local.get $config))))
    (drop (call $set_header (i32.const 2) {name} {revision}))
    (i32.const 0))
"
        ));
        guest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_modules() {
        let guest = Guest::telling("1");
        assert!(guest.module().unwrap().starts_with(b"\0asm\x01\0\0\0"));
        assert!(guest.clone().function("(func nonsense)").module().is_err());
    }
}
