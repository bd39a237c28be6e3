//! A Proxy-Wasm guest that does what a script says and reports each step as a log line: for the tests that
//! compare Outrider with Envoy's own Wasm filter, and for those that hold each host function.
//!
//! The script is the plugin's configuration; what is to happen before that is known (`vm_start`, the creation
//! of the root context) is read from the VM's configuration. See `script.rs` for the language and `host.rs`
//! for what can be called.
//!
//! The trap: everything that is reported goes through the host that is being tested. A line begins with the
//! name of its VM, which the guest makes up, because one proxy runs several VMs of the same plugin.

mod fault;
mod host;
mod script;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fault::Allocator;
use host::Function;
use script::{Section, Step, Value, When};

/// What a callback returns, or what a step kept.
#[derive(Clone)]
enum Kept {
    Number(i64),
    Bytes(Vec<u8>),
}

struct Context {
    root: u32,
    /// How it is called in reports: numbers of contexts are the host's own.
    name: &'static str,
    /// How often each callback was called.
    calls: BTreeMap<&'static str, u32>,
}

struct Probe {
    vm: String,
    /// By root context.
    scripts: BTreeMap<u32, Vec<Section>>,
    contexts: BTreeMap<u32, Context>,
    kept: BTreeMap<String, Kept>,
    /// The newest stream.
    stream: u32,
}

static mut PROBE: Option<Probe> = None;
static mut ALLOCATOR: Allocator = Allocator::Works;

/// A guest has one thread, and no callback is called within another; the allocator does not come here.
fn probe() -> &'static mut Probe {
    // SAFETY: see above: there is no second reference while this one lives.
    let probe = unsafe { &mut *core::ptr::addr_of_mut!(PROBE) };
    probe.get_or_insert_with(Probe::new)
}

fn escaped(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in bytes {
        match byte {
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(*byte));
            }
            0x20..=0x7e => text.push(char::from(*byte)),
            b'\n' => text.push_str("\\n"),
            0 => text.push_str("\\0"),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push('"');
    text
}

/// Bytes for a report; of many only how many, and a sum of them.
fn shown(bytes: &[u8]) -> String {
    if bytes.len() <= 160 {
        return escaped(bytes);
    }
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} bytes, {sum:016x}", bytes.len())
}

/// A serialized map for a report.
fn shown_map(bytes: &[u8]) -> String {
    let number = |at: usize| {
        bytes
            .get(at..at + 4)
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize)
    };
    let read = || {
        let count = number(0)?;
        let mut at = 4 + count.checked_mul(8)?;
        let mut lines = Vec::new();
        for index in 0..count {
            let (name, value) = (number(4 + index * 8)?, number(8 + index * 8)?);
            let name = (bytes.get(at..at + name)?, at += name + 1).0;
            let value = (bytes.get(at..at + value)?, at += value + 1).0;
            lines.push(format!("{}: {}", escaped(name), escaped(value)));
        }
        (at == bytes.len()).then(|| format!("[{}]", lines.join(", ")))
    };
    if bytes.is_empty() {
        return "[]".to_owned();
    }
    read().unwrap_or_else(|| format!("no map: {}", shown(bytes)))
}

/// What an output pointer holds before the call, to see whether the host wrote it.
const UNTOUCHED: u32 = 0xdddd_dddd;

/// The memory of one group of parameters.
enum Slot {
    None,
    In(
        #[expect(dead_code, reason = "kept alive for the call")] Vec<u8>,
        #[expect(dead_code, reason = "the same")] Box<[u32; 2]>,
    ),
    Out(char, Box<[u32; 2]>),
    Buffer(Vec<u8>, Box<[u32; 2]>),
}

fn address<T>(of: &T) -> u64 {
    core::ptr::from_ref(of) as usize as u64
}

/// Calls a host function with these arguments; what came back, and how it is shown.
fn perform(
    function: &Function,
    arguments: &[Kept],
    only_sizes: bool,
) -> Result<(i32, String, Option<Kept>), String> {
    let mut parameters: Vec<u64> = Vec::new();
    let mut slots: Vec<Slot> = Vec::new();
    let mut position = 0;
    for kind in function.kinds.chars() {
        match kind {
            'n' | 'l' => {
                parameters.push(number_at(arguments, position)?);
                position += 1;
                slots.push(Slot::None);
            }
            's' | 'v' => {
                let bytes = bytes_at(arguments, position)?;
                position += 1;
                let vector = Box::new([bytes.as_ptr() as usize as u32, bytes.len() as u32]);
                if kind == 's' {
                    parameters.extend([u64::from(vector[0]), u64::from(vector[1])]);
                } else {
                    parameters.extend([address(&*vector), 1]);
                }
                slots.push(Slot::In(bytes, vector));
            }
            'o' | 'm' => {
                let out = Box::new([UNTOUCHED, UNTOUCHED]);
                parameters.extend([address(&out[0]), address(&out[1])]);
                slots.push(Slot::Out(kind, out));
            }
            'u' | 'w' => {
                let out = Box::new([UNTOUCHED, UNTOUCHED]);
                parameters.push(address(&out[0]));
                slots.push(Slot::Out(kind, out));
            }
            'b' | 'r' => {
                let size = number_at(arguments, position)? as usize;
                position += 1;
                let buffer = vec![0_u8; size];
                let vector = Box::new([buffer.as_ptr() as usize as u32, size as u32]);
                if kind == 'b' {
                    parameters.extend([u64::from(vector[0]), u64::from(vector[1])]);
                } else {
                    parameters.extend([address(&*vector), 1]);
                }
                slots.push(Slot::Buffer(buffer, vector));
            }
            'p' | 'q' => {
                let buffer = vec![0xdd_u8; 64];
                parameters.push(buffer.as_ptr() as usize as u64);
                let vector = Box::new([0, 0]);
                slots.push(if kind == 'p' {
                    Slot::Buffer(buffer, vector)
                } else {
                    Slot::In(buffer, vector)
                });
            }
            _ => return Err(format!("no such kind of parameter: {kind}")),
        }
    }
    if position != arguments.len() {
        return Err(format!("{} wants {position} arguments", function.name));
    }
    let status = (function.call)(&parameters);
    let mut text = status.to_string();
    let mut first = None;
    for slot in slots {
        let (told, kept) = match slot {
            Slot::None | Slot::In(..) => continue,
            // The host wrote there behind the compiler's back.
            Slot::Out(kind, out) => {
                let out = core::hint::black_box(out);
                // SAFETY: the reference is to memory of our own; volatile because the host has written it.
                let [low, high] = unsafe { core::ptr::from_ref(&*out).read_volatile() };
                if low == UNTOUCHED && (high == UNTOUCHED || kind == 'u') {
                    continue;
                }
                match kind {
                    'u' => (low.to_string(), Kept::Number(i64::from(low))),
                    'w' => {
                        let number = u64::from(low) | u64::from(high) << 32;
                        (number.to_string(), Kept::Number(number as i64))
                    }
                    _ => {
                        let bytes = taken(low, high);
                        let told = if kind == 'm' {
                            shown_map(&bytes)
                        } else {
                            shown(&bytes)
                        };
                        (
                            if only_sizes {
                                format!("{} bytes", bytes.len())
                            } else {
                                told
                            },
                            Kept::Bytes(bytes),
                        )
                    }
                }
            }
            Slot::Buffer(buffer, vector) => {
                drop(core::hint::black_box(vector));
                let buffer = core::hint::black_box(buffer);
                let written = buffer
                    .iter()
                    .rposition(|byte| *byte != 0xdd)
                    .map_or(0, |last| last + 1);
                let told = if only_sizes {
                    format!("{} bytes", buffer.len())
                } else {
                    escaped(&buffer[..written])
                };
                (told, Kept::Bytes(buffer))
            }
        };
        let told = if only_sizes && told.parse::<u64>().is_ok() {
            "a number".to_owned()
        } else {
            told
        };
        let _ = write!(text, " {told}");
        first.get_or_insert(kept);
    }
    Ok((status, text, first))
}

/// Takes over a block that the host had the allocator make.
fn taken(address: u32, size: u32) -> Vec<u8> {
    if address == 0 || size == 0 {
        return Vec::new();
    }
    let fits = (address as usize)
        .checked_add(size as usize)
        .is_some_and(|end| end <= core::arch::wasm32::memory_size::<0>() << 16);
    if !fits {
        return b"outside of the memory".to_vec();
    }
    // SAFETY: the host asked the allocator for exactly this block, and hands it over with this call.
    unsafe { Vec::from_raw_parts(address as usize as *mut u8, size as usize, size as usize) }
}

fn number_at(arguments: &[Kept], position: usize) -> Result<u64, String> {
    match arguments.get(position) {
        Some(Kept::Number(number)) => Ok(*number as u64),
        Some(Kept::Bytes(_)) => Err(format!("argument {} has to be a number", position + 1)),
        None => Err(format!("argument {} is missing", position + 1)),
    }
}

fn bytes_at(arguments: &[Kept], position: usize) -> Result<Vec<u8>, String> {
    match arguments.get(position) {
        Some(Kept::Bytes(bytes)) => Ok(bytes.clone()),
        Some(Kept::Number(_)) => Err(format!("argument {} has to be text", position + 1)),
        None => Err(format!("argument {} is missing", position + 1)),
    }
}

/// Buffers of `proxy_get_buffer_bytes`.
const VM_CONFIGURATION: i64 = 6;
const PLUGIN_CONFIGURATION: i64 = 7;

impl Probe {
    fn new() -> Self {
        let random =
            host::find("random_get").map(|function| perform(function, &[Kept::Number(4)], false));
        let vm = match random {
            Some(Ok((0, _, Some(Kept::Bytes(bytes))))) => {
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            }
            _ => "unnamed".to_owned(),
        };
        std::panic::set_hook(Box::new(|_| probe().say("  the guest panics")));
        Self {
            vm,
            scripts: BTreeMap::new(),
            contexts: BTreeMap::new(),
            kept: BTreeMap::new(),
            stream: 0,
        }
    }

    fn say(&self, line: &str) {
        let message = format!("probe {} {line}", self.vm);
        if let Some(log) = host::find("log") {
            let _ = perform(
                log,
                &[Kept::Number(2), Kept::Bytes(message.into_bytes())],
                false,
            );
        }
    }

    fn read_script(&mut self, root: u32, buffer: i64) {
        let configuration = if cfg!(feature = "abi_0_1_0") {
            host::find("get_configuration").map(|function| perform(function, &[], false))
        } else {
            let arguments = [
                Kept::Number(buffer),
                Kept::Number(0),
                Kept::Number(i64::from(u32::MAX)),
            ];
            host::find("get_buffer_bytes").map(|function| perform(function, &arguments, false))
        };
        let Some(Ok((0, _, kept))) = configuration else {
            return;
        };
        let Some(Kept::Bytes(bytes)) = kept else {
            return;
        };
        match script::parse(&String::from_utf8_lossy(&bytes)) {
            Ok(sections) => {
                self.scripts.insert(root, sections);
            }
            Err(problem) => self.say(&format!("script: {problem}")),
        }
    }

    /// One callback: tells of it, does what the script says, and says what to return.
    fn called(
        &mut self,
        callback: &'static str,
        context: u32,
        arguments: &[u32],
        default: i64,
        end: Option<bool>,
    ) -> i64 {
        let (name, root, time) = match self.contexts.get_mut(&context) {
            Some(known) => {
                let time = known.calls.entry(callback).or_insert(0);
                *time += 1;
                (known.name, known.root, *time)
            }
            None => ("unknown", context, 1),
        };
        let told: Vec<String> = arguments.iter().map(u32::to_string).collect();
        self.say(&format!("{name} {callback}({})", told.join(", ")));
        self.kept
            .insert("root".to_owned(), Kept::Number(i64::from(root)));
        self.kept
            .insert("stream".to_owned(), Kept::Number(i64::from(self.stream)));
        self.kept
            .insert("context".to_owned(), Kept::Number(i64::from(context)));
        for (index, argument) in arguments.iter().enumerate() {
            self.kept
                .insert((index + 1).to_string(), Kept::Number(i64::from(*argument)));
        }
        let sections = self.scripts.remove(&root).unwrap_or_default();
        let mut answer = default;
        for section in sections
            .iter()
            .filter(|section| section.callback == callback)
        {
            let applies = match section.when {
                When::Always => true,
                When::End => end == Some(true),
                When::More => end == Some(false),
                When::Time(wanted) => wanted == time,
            };
            if applies {
                for step in &section.steps {
                    match self.step(step) {
                        Ok(Some(returned)) => answer = returned,
                        Ok(None) => {}
                        Err(problem) => self.say(&format!("  {}: {problem}", step.text)),
                    }
                }
            }
        }
        self.scripts.entry(root).or_insert(sections);
        if answer != default {
            self.say(&format!("  returns {answer}"));
        }
        answer
    }

    fn value(&self, value: &Value) -> Result<Kept, String> {
        match value {
            Value::Number(number) => Ok(Kept::Number(*number)),
            Value::Bytes(bytes) => Ok(Kept::Bytes(bytes.clone())),
            Value::Variable(name) => self
                .kept
                .get(name)
                .cloned()
                .ok_or_else(|| format!("nothing is kept as {name}")),
            Value::Word(word) => Err(format!("what is {word}?")),
        }
    }

    fn step(&mut self, step: &Step) -> Result<Option<i64>, String> {
        let word = |position: usize| match step.arguments.get(position) {
            Some(Value::Word(word)) => Ok(word.as_str()),
            _ => Err("a word is missing".to_owned()),
        };
        let number =
            |position: usize| match step.arguments.get(position).map(|value| self.value(value)) {
                Some(Ok(Kept::Number(number))) => Ok(number),
                Some(Err(problem)) => Err(problem),
                _ => Err("a number is missing".to_owned()),
            };
        match step.verb.as_str() {
            "return" => return number(0).map(Some),
            "trap" => {
                self.say(&format!("  {}", step.text));
                let amount = if step.arguments.len() > 1 {
                    number(1)?
                } else {
                    0
                };
                let result = fault::fault(word(0)?, amount as u64)?;
                self.say(&format!("  {} = {result}", step.text));
            }
            "allocator" => {
                let next = match word(0)? {
                    "null" => Allocator::Null,
                    "outside" => Allocator::Outside,
                    "traps" => Allocator::Traps,
                    "calls" => Allocator::Calls,
                    other => return Err(format!("no allocator {other}")),
                };
                // SAFETY: one thread, and a plain value.
                unsafe { ALLOCATOR = next }
            }
            "say" => self.say(&format!("  {}", word(0)?)),
            "raw" => {
                let function = host::find(word(0)?).ok_or("no such function")?;
                let parameters: Result<Vec<u64>, String> = (1..step.arguments.len())
                    .map(|position| number(position).map(|number| number as u64))
                    .collect();
                let status = (function.call)(&parameters?);
                self.say(&format!("  {} = {status}", step.text));
            }
            "call" | "size" | "quiet" | "let" => {
                let (name, rest) = if step.verb == "let" {
                    (word(0)?, step.arguments.get(2..).unwrap_or_default())
                } else {
                    ("", step.arguments.as_slice())
                };
                let Some((Value::Word(called), arguments)) = rest.split_first() else {
                    return Err("a function is missing".to_owned());
                };
                let function = host::find(called).ok_or("no such function")?;
                let arguments: Result<Vec<Kept>, String> =
                    arguments.iter().map(|value| self.value(value)).collect();
                let (_, told, kept) = perform(function, &arguments?, step.verb == "size")?;
                // Whatever the allocator was told, it was for this call.
                // SAFETY: one thread, and a plain value.
                unsafe { ALLOCATOR = Allocator::Works }
                if step.verb != "quiet" {
                    self.say(&format!("  {} = {told}", step.text));
                }
                if let (false, Some(kept)) = (name.is_empty(), kept) {
                    self.kept.insert(name.to_owned(), kept);
                }
            }
            verb => return Err(format!("what is {verb}?")),
        }
        Ok(None)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_memory_allocate(size: u32) -> u32 {
    // SAFETY: one thread, and a plain value.
    match unsafe { ALLOCATOR } {
        Allocator::Works => {}
        Allocator::Null => return 0,
        Allocator::Outside => return 0xffff_ff00,
        Allocator::Traps => core::arch::wasm32::unreachable(),
        Allocator::Calls => {
            if let Some(function) = host::find("set_tick_period_milliseconds") {
                (function.call)(&[0]);
            }
        }
    }
    let mut block: Vec<u8> = Vec::with_capacity(size as usize);
    let address = block.as_mut_ptr() as usize as u32;
    core::mem::forget(block);
    address
}

macro_rules! marker {
    ($($feature:literal $name:ident)*) => {$(
        #[cfg(feature = $feature)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {}
    )*};
}

marker! {
    "abi_0_1_0" proxy_abi_version_0_1_0
    "abi_0_2_0" proxy_abi_version_0_2_0
    "abi_0_2_1" proxy_abi_version_0_2_1
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_context_create(context: u32, parent: u32) {
    let probe = probe();
    let is_root = parent == 0;
    let name = if is_root { "root" } else { "stream" };
    let root = if is_root { context } else { parent };
    probe.contexts.insert(
        context,
        Context {
            root,
            name,
            calls: BTreeMap::new(),
        },
    );
    if is_root {
        probe.read_script(root, VM_CONFIGURATION);
    } else {
        probe.stream = context;
    }
    probe.called("create", context, &[], 0, None);
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_vm_start(root: u32, size: u32) -> u32 {
    let probe = probe();
    probe.read_script(root, VM_CONFIGURATION);
    probe.called("vm_start", root, &[size], 1, None) as u32
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_configure(root: u32, size: u32) -> u32 {
    let probe = probe();
    probe.read_script(root, PLUGIN_CONFIGURATION);
    probe.called("configure", root, &[size], 1, None) as u32
}

#[cfg(feature = "abi_0_1_0")]
#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_request_headers(context: u32, count: u32) -> u32 {
    probe().called("request_headers", context, &[count], 0, None) as u32
}

#[cfg(feature = "abi_0_1_0")]
#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_response_headers(context: u32, count: u32) -> u32 {
    probe().called("response_headers", context, &[count], 0, None) as u32
}

/// A callback that is told whether it is the last of its kind.
macro_rules! parts {
    ($($(#[$meta:meta])* $name:ident $callback:literal)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(context: u32, size: u32, end: u32) -> u32 {
            probe().called($callback, context, &[size, end], 0, Some(end != 0)) as u32
        }
    )*};
}

parts! {
    #[cfg(not(feature = "abi_0_1_0"))] proxy_on_request_headers "request_headers"
    #[cfg(not(feature = "abi_0_1_0"))] proxy_on_response_headers "response_headers"
    proxy_on_request_body "request_body"
    proxy_on_response_body "response_body"
}

/// A callback with a number, which returns something.
macro_rules! decisions {
    ($($name:ident $callback:literal ($($argument:ident),*) $default:literal)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(context: u32 $(, $argument: u32)*) -> u32 {
            probe().called($callback, context, &[$($argument),*], $default, None) as u32
        }
    )*};
}

decisions! {
    proxy_validate_configuration "validate" (size) 1
    proxy_on_request_trailers "request_trailers" (count) 0
    proxy_on_response_trailers "response_trailers" (count) 0
    proxy_on_request_metadata "request_metadata" (count) 0
    proxy_on_response_metadata "response_metadata" (count) 0
    proxy_on_done "done" () 1
}

/// A callback that returns nothing.
macro_rules! events {
    ($($name:ident $callback:literal ($($argument:ident),*))*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(context: u32 $(, $argument: u32)*) {
            probe().called($callback, context, &[$($argument),*], 0, None);
        }
    )*};
}

events! {
    proxy_on_tick "tick" ()
    proxy_on_queue_ready "queue_ready" (token)
    proxy_on_http_call_response "http_call_response" (token, headers, body, trailers)
    proxy_on_grpc_receive_initial_metadata "grpc_receive_initial_metadata" (token, count)
    proxy_on_grpc_receive "grpc_receive" (token, size)
    proxy_on_grpc_receive_trailing_metadata "grpc_receive_trailing_metadata" (token, count)
    proxy_on_grpc_close "grpc_close" (token, status)
    proxy_on_foreign_function "foreign_function" (function, size)
    proxy_on_log "log" ()
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_delete(context: u32) {
    let probe = probe();
    probe.called("delete", context, &[], 0, None);
    probe.contexts.remove(&context);
    probe.scripts.remove(&context);
}
