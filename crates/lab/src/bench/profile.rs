//! What callgrind writes: how many instructions each function took by itself, and with all that it
//! called.
//!
//! Only what the benchmark asks for is kept: own costs by object and function, and the calls that
//! cross from one object into another. The trap of the format: a name is written once, with a number,
//! and by its number from then on; and the line after `calls=` is the callee's cost, not the
//! function's own.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::mechanism::Family;

/// Whose code an instruction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Envoy, with what is linked into it: its own LuaJIT.
    Envoy,
    /// Its allocator, which allocates for everybody in its process.
    Allocator,
    /// The Rust code of a module.
    Module,
    /// The Wasmtime in Outrider's module, which enters guests and is left by them.
    Wasmtime,
    /// The LuaJIT in Outrider's module: interpreter, library, garbage collector.
    LuaJit,
    /// Machine code that was made of a plugin.
    Compiled,
    /// The C library and the dynamic linker.
    System,
}

impl Part {
    /// All of them, in the order of the page.
    pub const ALL: [Self; 7] = [
        Self::Envoy,
        Self::Allocator,
        Self::Module,
        Self::Wasmtime,
        Self::LuaJit,
        Self::Compiled,
        Self::System,
    ];

    /// In words.
    pub fn title(self, family: Family) -> &'static str {
        match self {
            Self::Envoy if family == Family::Wasm => "Envoy, its V8's own code included",
            Self::Envoy => "Envoy, its own LuaJIT included",
            Self::Allocator => "Envoy's allocator, whoever asked it",
            Self::Module => "the module's Rust",
            Self::Wasmtime => "the module's Wasmtime",
            Self::LuaJit => "the module's LuaJIT: interpreter, library, collector",
            Self::Compiled if family == Family::Wasm => "the guest, compiled to machine code",
            Self::Compiled => "Lua compiled to machine code",
            Self::System => "C library and dynamic linker",
        }
    }

    fn of(object: &str, function: &str, envoy: &[Range<u64>]) -> Self {
        match object.rsplit('/').next().unwrap_or_default() {
            // Valgrind knows the functions of `.text` only; the allocator has a section of its own.
            "???" if is_within(function, envoy) => Self::Allocator,
            "???" => Self::Compiled,
            "envoy" => Self::Envoy,
            "liboutrider.so" if function.contains("wasmtime") => Self::Wasmtime,
            "liboutrider.so" if is_c(function) => Self::LuaJit,
            "liboutrider.so" | "liboutrider_bench_native.so" => Self::Module,
            _ => Self::System,
        }
    }

    fn is_of_a_module(self) -> bool {
        matches!(
            self,
            Self::Module | Self::Wasmtime | Self::LuaJit | Self::Compiled
        )
    }
}

/// Whether a function that has an address for a name is in one of these ranges.
fn is_within(function: &str, ranges: &[Range<u64>]) -> bool {
    function
        .strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits.trim_end_matches('\''), 16).ok())
        .is_some_and(|address| ranges.iter().any(|range| range.contains(&address)))
}

/// Whether a function of the module is C, which all of LuaJIT is and nothing else. Names of Rust have
/// paths, but for those that Envoy looks up and those of its allocator; a bare address is a jump to
/// another library.
fn is_c(function: &str) -> bool {
    let rust = function.contains("::")
        || function.contains('<')
        || function.starts_with("0x")
        || ["envoy_dynamic_module_", "__rust", "__rdl", "_R", "rust_"]
            .iter()
            .any(|prefix| function.starts_with(prefix));
    !rust
}

/// What calls of the allocator are told as: it exports some functions and calls others.
const ALLOCATOR: &str = "the allocator";

/// Calls from one place to another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) count: u64,
    /// What they took, with all that was called from there.
    pub(crate) instructions: u64,
}

/// One run's costs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// The run's total, as callgrind says it.
    pub(crate) total: u64,
    /// Own cost of each function.
    pub(crate) own: BTreeMap<(Part, String), u64>,
    /// Calls of modules into Envoy, by Envoy's function.
    pub(crate) into_envoy: BTreeMap<String, Calls>,
}

impl Profile {
    /// Reads a file of callgrind; `envoy` is where Envoy's file was mapped.
    pub(crate) fn parse(text: &str, envoy: &[Range<u64>]) -> anyhow::Result<Self> {
        let mut profile = Self::default();
        let mut objects = Names::default();
        let mut functions = Names::default();
        let mut total = None;
        let mut object = String::new();
        let mut function = String::new();
        let mut callee_object: Option<String> = None;
        let mut callee = String::new();
        let mut called: Option<u64> = None;
        for (number, line) in text.lines().enumerate() {
            let at = || format!("line {} of callgrind's file: {line:?}", number + 1);
            if let Some((key, value)) = line.split_once('=') {
                match key {
                    "ob" => object = objects.resolve(value).with_context(at)?,
                    "fn" => function = functions.resolve(value).with_context(at)?,
                    "cob" => callee_object = Some(objects.resolve(value).with_context(at)?),
                    "cfn" => callee = functions.resolve(value).with_context(at)?,
                    "calls" => {
                        let count = value.split_whitespace().next();
                        let count = count.and_then(|count| count.parse().ok());
                        called = Some(count.with_context(at)?);
                    }
                    // Files of source code.
                    _ => {}
                }
                continue;
            }
            if let Some(value) = line
                .strip_prefix("summary:")
                .or_else(|| line.strip_prefix("totals:"))
            {
                total = Some(value.trim().parse().with_context(at)?);
                continue;
            }
            if !line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
                continue;
            }
            // A position, which nobody asks for, and the cost.
            let cost: u64 = match line.split_whitespace().nth(1) {
                Some(cost) => cost.parse().with_context(at)?,
                None => 0,
            };
            if let Some(count) = called.take() {
                let to = callee_object.take().unwrap_or_else(|| object.clone());
                let name = match Part::of(&to, &callee, envoy) {
                    Part::Envoy => callee.clone(),
                    Part::Allocator => ALLOCATOR.to_owned(),
                    _ => continue,
                };
                // What Envoy's own Lua filter compiled calls Envoy, too, and is no module. What
                // Outrider's compiled code calls is the module, which then calls Envoy.
                let caller = Part::of(&object, &function, envoy);
                if matches!(caller, Part::Module | Part::Wasmtime | Part::LuaJit) {
                    let calls = profile.into_envoy.entry(name).or_default();
                    calls.count += count;
                    calls.instructions += cost;
                }
            } else {
                *profile
                    .own
                    .entry((Part::of(&object, &function, envoy), function.clone()))
                    .or_default() += cost;
            }
        }
        profile.total = total.context("callgrind's file has no total; was Envoy killed?")?;
        let sum: u64 = profile.own.values().sum();
        anyhow::ensure!(
            sum == profile.total,
            "callgrind's file is not understood: its functions took {sum} instructions, and all {}",
            profile.total
        );
        Ok(profile)
    }
}

/// Names that are written once.
#[derive(Debug, Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    /// `(7) name` introduces a name, `(7)` repeats it, and what has no number is itself.
    fn resolve(&mut self, text: &str) -> anyhow::Result<String> {
        let Some((number, name)) = text.strip_prefix('(').and_then(|text| text.split_once(')'))
        else {
            return Ok(text.to_owned());
        };
        let name = name.trim_start();
        if name.is_empty() {
            return self
                .0
                .get(number)
                .cloned()
                .with_context(|| format!("nothing has the number {number}"));
        }
        self.0.insert(number.to_owned(), name.to_owned());
        Ok(name.to_owned())
    }
}

/// What `more - fewer` requests took, for each request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PerRequest {
    /// All instructions.
    pub instructions: f64,
    /// By whose code they are; adds up to all.
    pub parts: BTreeMap<Part, f64>,
    /// Envoy's functions that a module called, the dearest first.
    pub into_envoy: Vec<EnvoyFunction>,
    /// The functions of the module and its LuaJIT, the dearest first.
    pub functions: Vec<OwnCost>,
}

/// A function of Envoy, called by a module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EnvoyFunction {
    /// Its name; an address where Envoy does not export it.
    pub name: String,
    /// How often, for each request.
    pub calls: f64,
    /// With all that it called, for each request.
    pub instructions: f64,
}

/// What a function took by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwnCost {
    /// Whose it is.
    pub part: Part,
    /// Its name.
    pub name: String,
    /// For each request.
    pub instructions: f64,
}

/// How many functions are told of.
const TOLD: usize = 20;
/// Less than this, for a request, is start-up that differed.
const LEAST: f64 = 5.0;

impl PerRequest {
    /// The difference of two runs, divided by how many more requests the second one had.
    pub(crate) fn between(fewer: &Profile, more: &Profile, requests: u64) -> Self {
        let each = |less: u64, more: u64| round((more as f64 - less as f64) / requests as f64);
        let mut parts: BTreeMap<Part, f64> = BTreeMap::new();
        let mut functions = Vec::new();
        for part in Part::ALL {
            let own = |profile: &Profile| -> u64 {
                let of_part = profile.own.iter().filter(|((whose, _), _)| *whose == part);
                of_part.map(|(_, cost)| cost).sum()
            };
            parts.insert(part, each(own(fewer), own(more)));
        }
        for ((part, name), cost) in &more.own {
            let before = fewer.own.get(&(*part, name.clone())).copied();
            let instructions = each(before.unwrap_or(0), *cost);
            if part.is_of_a_module() && instructions >= LEAST {
                functions.push(OwnCost {
                    part: *part,
                    name: shortened(name),
                    instructions,
                });
            }
        }
        functions.sort_by(|a, b| b.instructions.total_cmp(&a.instructions));
        functions.truncate(TOLD);
        let mut into_envoy: Vec<_> = more
            .into_envoy
            .iter()
            .map(|(name, calls)| {
                let before = fewer.into_envoy.get(name).copied().unwrap_or_default();
                EnvoyFunction {
                    name: shortened(name),
                    calls: each(before.count, calls.count),
                    instructions: each(before.instructions, calls.instructions),
                }
            })
            .filter(|function| function.instructions >= LEAST)
            .collect();
        into_envoy.sort_by(|a, b| b.instructions.total_cmp(&a.instructions));
        into_envoy.truncate(TOLD);
        Self {
            instructions: each(fewer.total, more.total),
            parts,
            into_envoy,
            functions,
        }
    }
}

/// One digit behind the point is more than can be repeated.
fn round(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

/// A name without what a reader does not need: hashes, and all but the last parts of long paths.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 100;
    let name = name.strip_suffix('\'').unwrap_or(name);
    let name = match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 => path,
        _ => name,
    };
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVOY: [Range<u64>; 2] = [0x1000..0x1800, 0x1800..0x2000];

    const RUN: &str = "\
# callgrind format
positions: line
events: Ir
summary: 1195

ob=(1) /opt/envoy
fl=(1) ???
fn=(1) 0x10
0 700
cob=(2) /lib/liboutrider.so
cfn=(2) envoy_dynamic_module_on_http_filter_request_headers
calls=3 0
0 450

ob=(2)
fn=(2)
10 100
+1 50
cfn=(3) lj_vm_call
calls=3 0
* 60

fn=(3)
0 60
cob=(1)
cfn=(4) envoy_dynamic_module_callback_http_set_header
calls=6 0
0 240
cob=(3) /usr/lib/libc.so.6
cfn=(5) memcpy
calls=1 0
0 25
cob=(4) ???
cfn=(6) 0x0000000000001040
calls=2 0
0 13

ob=(4)
fn=(6)
0 13

fn=(7) 0x0000000000abcdef
0 7

ob=(1)
fn=(4)
0 240

ob=(3)
fn=(5)
0 25
";

    #[test]
    fn costs_are_told_apart() {
        let profile = Profile::parse(RUN, &ENVOY).unwrap();
        assert_eq!(profile.total, 1195);
        let own: Vec<_> = profile
            .own
            .iter()
            .map(|((part, name), cost)| (*part, name.as_str(), *cost))
            .collect();
        assert_eq!(
            own,
            [
                (Part::Envoy, "0x10", 700),
                (
                    Part::Envoy,
                    "envoy_dynamic_module_callback_http_set_header",
                    240
                ),
                (Part::Allocator, "0x0000000000001040", 13),
                (
                    Part::Module,
                    "envoy_dynamic_module_on_http_filter_request_headers",
                    150
                ),
                (Part::LuaJit, "lj_vm_call", 60),
                (Part::Compiled, "0x0000000000abcdef", 7),
                (Part::System, "memcpy", 25),
            ]
        );
        let calls = profile.into_envoy["envoy_dynamic_module_callback_http_set_header"];
        assert_eq!((calls.count, calls.instructions), (6, 240));
        let calls = profile.into_envoy[ALLOCATOR];
        assert_eq!((calls.count, calls.instructions), (2, 13));
        assert_eq!(profile.into_envoy.len(), 2);
    }

    #[test]
    fn a_file_that_does_not_add_up_is_refused() {
        let error = |text: &str| Profile::parse(text, &ENVOY).unwrap_err().to_string();
        assert!(error(&RUN.replace("summary: 1195", "")).contains("no total"));
        assert!(error(&RUN.replace("1195", "1196")).contains("is not understood"));
        assert!(error(&RUN.replace("fn=(3)\n0 60", "fn=(9)\n0 60")).starts_with("line 2"));
    }

    #[test]
    fn a_difference_is_told_for_each_request() {
        let fewer = Profile::parse(RUN, &ENVOY).unwrap();
        let mut more = fewer.clone();
        more.total += 4000;
        let key = (Part::LuaJit, "lj_vm_call".to_owned());
        *more.own.get_mut(&key).unwrap() += 1000;
        let key = "envoy_dynamic_module_callback_http_set_header";
        *more.own.get_mut(&(Part::Envoy, key.to_owned())).unwrap() += 3000;
        let calls = more.into_envoy.get_mut(key).unwrap();
        calls.count += 20;
        calls.instructions += 3000;
        let each = PerRequest::between(&fewer, &more, 10);
        assert!((each.instructions - 400.0).abs() < 0.01);
        assert!((each.parts[&Part::LuaJit] - 100.0).abs() < 0.01);
        assert!((each.parts[&Part::Envoy] - 300.0).abs() < 0.01);
        assert_eq!(each.functions.len(), 1);
        assert_eq!(each.functions[0].name, "lj_vm_call");
        assert_eq!(each.into_envoy.len(), 1, "what did not grow is not told");
        assert!((each.into_envoy[0].calls - 2.0).abs() < 0.01);
    }

    #[test]
    fn names_are_shortened() {
        assert_eq!(shortened("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(shortened("a::h2"), "a::h2");
        assert_eq!(shortened(&"ä".repeat(101)).chars().count(), 101);
    }
}
