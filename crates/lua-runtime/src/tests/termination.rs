//! No way of running out of time or memory leaves a VM in which the next loop does not end: random programs
//! nest the constructs of the language and of the SDK around something that never ends.
//!
//! `OUTRIDER_TERMINATION_PROGRAMS` is the number of programs, `OUTRIDER_TERMINATION_SEED` the first one's seed.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Decision, HeaderMap, Slot};

use super::fake::{FakeStream, Probe, probe_with, source};

/// A small generator of pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn one_of<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// What never ends, or takes longer than any budget.
const ENDLESS: &[&str] = &[
    "while true do end",
    "repeat until false",
    "for i = 1, 1e15 do local x = i * 2 end",
    "local n = 0 while true do n = n + 1 if n > 1e6 then n = 0 end end",
    "local function f() return f() end f()",
    "local function f(n) if n == 0 then return 0 end return 1 + f(n - 1) end while true do f(50) end",
    "local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end",
    "local t = {} while true do t = { t } end",
    "local s = 'x' while true do s = s .. s end",
    "load('return {' .. ('1,'):rep(1000000) .. '}')",
    "while true do load('return {' .. ('1,'):rep(100000) .. '}') end",
    "load('x = ' .. ('f('):rep(150) .. ('1,'):rep(1000000))",
    "load(('goto x ::x' .. 'y:: '):rep(200000))",
    "while true do pcall(error, setmetatable({}, { __tostring = function() while true do end end })) end",
    "string.find(('a'):rep(5000), '.-.-.-.-b')",
    "while true do pcall(string.rep, 'x', -1) end",
    "while true do pcall(envoy.json.decode, '[1, 2, 3') end",
    "while true do envoy.base64.encode('abc') end",
    "while true do pcall(envoy.req.get_header) end",
    "while true do coroutine.wrap(function() coroutine.yield() end)() end",
    "for _ in string.gmatch(('a'):rep(5000), 'a-a-a-a-b') do end",
    "while true do pcall(table.insert, { 1 }, -2147483648, 1) end",
    "pcall(envoy.json_schema.compile, { pattern = ('a'):rep(1000) }) while true do end",
];

/// What runs the statements between the two parts.
const AROUND: &[(&str, &str)] = &[
    ("pcall(function() ", " end)"),
    ("pcall(pcall, pcall, function() ", " end)"),
    ("while true do pcall(function() ", " end) end"),
    (
        "xpcall(function() ",
        " end, function() while true do end end)",
    ),
    ("xpcall(function() error('x') end, function() ", " end)"),
    ("coroutine.wrap(function() ", " end)()"),
    ("coroutine.resume(coroutine.create(function() ", " end))"),
    (
        "kept = coroutine.create(function() ",
        " end) coroutine.resume(kept)",
    ),
    (
        "kept = coroutine.wrap(function() coroutine.yield() ",
        " end) kept() pcall(kept)",
    ),
    (
        "table.sort({ 3, 2, 1 }, function(a, b) ",
        " return a < b end)",
    ),
    ("string.gsub('abc', '.', function() ", " end)"),
    (
        "string.gsub('abc', '.', setmetatable({}, { __index = function() ",
        " end }))",
    ),
    ("load(function() ", " end)"),
    ("assert(load(function() ", " return nil end))()"),
    ("load([=[", "]=])()"),
    (
        "local x = setmetatable({}, { __index = function() ",
        " end }).x",
    ),
    (
        "setmetatable({}, { __newindex = function() ",
        " end }).x = 1",
    ),
    ("setmetatable({}, { __call = function() ", " end })()"),
    (
        "local x = setmetatable({}, { __add = function() ",
        " end }) + 1",
    ),
    (
        "local x = setmetatable({}, { __concat = function() ",
        " end }) .. 'x'",
    ),
    (
        "local m = { __lt = function() ",
        " end } local x = setmetatable({}, m) < setmetatable({}, m)",
    ),
    (
        "local m = { __eq = function() ",
        " end } local x = setmetatable({}, m) == setmetatable({}, m)",
    ),
    (
        "tostring(setmetatable({}, { __tostring = function() ",
        " return 'x' end }))",
    ),
    (
        "string.format('%s', setmetatable({}, { __tostring = function() ",
        " return 'x' end }))",
    ),
    (
        "error(setmetatable({}, { __tostring = function() ",
        " return 'x' end }))",
    ),
    (
        "print(setmetatable({}, { __tostring = function() ",
        " return 'x' end }))",
    ),
    (
        "kept = setmetatable({}, { __gc = function() ",
        " end }) kept = nil",
    ),
    ("for _ in function() ", " end do end"),
    ("for i = 1, 3 do ", " end"),
    ("if true then ", " end"),
    ("(function(...) ", " end)(...)"),
    ("local t = {} for i = 1, 200 do t[i] = {} end ", ""),
    ("for i = 1, 200 do local x = i * 2 end ", ""),
];

/// A program that never ends by itself.
fn program(random: &mut Random) -> String {
    let mut text = random.one_of(ENDLESS).to_owned();
    for level in 0..random.below(6) {
        let (before, after) = AROUND[random.below(AROUND.len())];
        // A long string cannot hold another of its level.
        let equals = "=".repeat(level + 1);
        let before = before.replace("[=[", &format!("[{equals}["));
        let after = after.replace("]=]", &format!("]{equals}]"));
        text = format!("do {before}{text}{after} end");
        if random.below(8) == 0 {
            text = format!("{text} {}", random.one_of(ENDLESS));
        }
    }
    text
}

/// Loops that have to end after whatever happened in the VM before.
const LOOPS: &[&str] = &[
    "while true do end",
    "pcall(function() while true do end end) while true do end",
    "for i = 1, 1e15 do end",
    "if kept then pcall(coroutine.resume, kept) pcall(kept) end while true do end",
    "coroutine.wrap(function() while true do end end)()",
];

const BUDGET: Duration = Duration::from_millis(5);

fn probe() -> Probe {
    let mut source = source(&[(
        "main.lua",
        "return { on_request_header = function()
            local text = envoy.req.get_header('x-program')
            if text then assert(load(text))() end
        end }",
    )]);
    source.time_budget = BUDGET;
    probe_with(source, "{}")
}

fn run(probe: &Probe, text: &str) -> Result<Decision, outrider_plugin_api::Fault> {
    let mut stream = FakeStream::new();
    let headers = stream.maps.get_mut(&HeaderMap::RequestHeaders).unwrap();
    headers.push((b"x-program".to_vec(), text.as_bytes().to_vec()));
    let decision = probe.call(
        outrider_plugin_api::Phase::RequestHeaders,
        &mut Slot::default(),
        &mut stream,
    );
    if let Err(fault) = &decision
        && fault.cause == Cause::Unavailable
    {
        // The VM is made again meanwhile.
        std::thread::sleep(Duration::from_millis(20));
    }
    decision
}

/// Waits until the plugin has a VM again, and runs a program that ends.
fn is_alive(probe: &Probe) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until {
        if run(probe, "local x = 1") == Ok(Decision::Continue) {
            return true;
        }
    }
    false
}

/// Runs `work` on a thread of its own and returns whether it came to its end in time.
fn ends(work: impl FnOnce() + Send + 'static) -> bool {
    let (done, wait) = channel();
    let thread = std::thread::Builder::new().stack_size(8 * 1024 * 1024);
    let thread = thread.spawn(move || {
        work();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_mins(1)) {
        Ok(()) => true,
        Err(RecvTimeoutError::Timeout) => false,
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.unwrap().join().unwrap_err())
        }
    }
}

fn check(text: String, loops: Vec<&'static str>, rounds: usize, name: &str) {
    let shown = text.clone();
    let ended = ends(move || {
        let probe = probe();
        for _ in 0..rounds {
            let _ = run(&probe, &text);
            for endless in &loops {
                let outcome = run(&probe, endless);
                let ended = matches!(&outcome, Err(fault)
                    if matches!(fault.cause, Cause::Time | Cause::Memory | Cause::Unavailable));
                assert!(ended, "{text}, then {endless}: {outcome:?}");
            }
            assert!(is_alive(&probe), "{text}");
        }
    });
    assert!(ended, "{name} does not end: {shown}");
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(otherwise)
}

#[test]
fn random_programs_leave_vms_in_which_loops_end() {
    let programs = number("OUTRIDER_TERMINATION_PROGRAMS", 200);
    let first = number("OUTRIDER_TERMINATION_SEED", 1);
    for seed in first..first + programs {
        let mut random = Random(seed);
        let text = program(&mut random);
        let loops = vec![random.one_of(LOOPS), random.one_of(LOOPS)];
        check(text, loops, 1, &format!("seed {seed}"));
    }
}

#[test]
fn each_construct_around_each_exhaustion_leaves_a_vm_in_which_loops_end() {
    for (index, (before, after)) in AROUND.iter().enumerate() {
        for exhausting in [ENDLESS[index % ENDLESS.len()], ENDLESS[9]] {
            let text = format!("{before}{exhausting}{after}");
            check(text, vec![LOOPS[0]], 1, "the construct");
        }
    }
}

#[test]
fn compilation_that_takes_too_long_leaves_a_vm_in_which_loops_end() {
    let long = "return load('return {' .. ('1,'):rep(1000000) .. '}')";
    check(long.to_owned(), vec![LOOPS[0]; 3], 2, "a long text");
    let both = "load('return {' .. ('1,'):rep(1000000) .. '}') while true do end";
    check(both.to_owned(), vec![LOOPS[0]], 2, "a long text and a loop");
}
