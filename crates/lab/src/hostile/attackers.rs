//! The hostile plugins, and how their clients drive them.

use crate::client::Request;
use crate::programs::wasm::{Guest, text};

/// Code of a plugin.
#[derive(Debug, Clone)]
pub(super) enum Code {
    Lua(&'static str),
    Wasm(Guest),
}

/// How clients drive a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drive {
    /// One HTTP/1.1 request after the other.
    InTurn,
    /// A body of so many HTTP/2 DATA frames of one byte, all at once.
    Frames(usize),
    /// So many requests at once, on as few HTTP/2 connections as the gateway allows.
    AtOnce(usize),
    /// The same, and the connections close while all requests wait for the upstream.
    Reset(usize),
}

impl Drive {
    /// Whether a client sends more at once than one request.
    pub(super) fn is_flood(self) -> bool {
        self != Self::InTurn
    }

    pub(super) fn has_body(self) -> bool {
        matches!(self, Self::Frames(_))
    }

    /// Path that the echo service behind the route is asked for.
    pub(super) fn echo_path(self) -> &'static str {
        match self {
            Self::Reset(_) => "/delay/2000",
            _ => "/bytes/10",
        }
    }
}

/// One hostile plugin.
#[derive(Debug, Clone)]
pub(super) struct Attacker {
    /// Its name in `outrider.yaml`; its route is `/NAME/`.
    pub(super) name: &'static str,
    /// What it does, for the page.
    pub(super) about: &'static str,
    pub(super) code: Code,
    /// More of its entry in `outrider.yaml`, each item beginning with a comma.
    pub(super) settings: &'static str,
    /// How its clients send.
    pub(super) drive: Drive,
    /// Its clients; 0 for a plugin that needs no requests.
    pub(super) clients: usize,
    /// Pause of a client after each answer, in milliseconds; of a client that floods, from the beginning of a flood to that
    /// of the next.
    pub(super) pause_ms: u64,
    /// Bytes of a request's body.
    pub(super) body: usize,
    /// Memory budget of a VM, in MiB.
    pub(super) memory_mib: u64,
}

impl Attacker {
    /// Returns the request that its clients send.
    pub(super) fn request(&self) -> Request {
        let path = format!("/{}/x", self.name);
        let request = if self.body == 0 {
            Request::get(&path)
        } else {
            Request::post(&path, vec![b'['; self.body])
        };
        request.host(super::ATTACKED_HOST)
    }

    /// Returns the name of its file.
    pub(super) fn file(&self) -> String {
        match self.code {
            Code::Lua(_) => format!("{}.lua", self.name),
            Code::Wasm(_) => format!("{}.wasm", self.name),
        }
    }
}

/// A plugin in Lua that has `burn(ms)`.
macro_rules! burning {
    ($code:literal) => {
        concat!(
            "
local now = envoy.time.monotonic
local function burn(ms) local till = now() + ms while now() < till do end end
",
            $code
        )
    };
}

const BURNER: &str = burning!(
    "return {
    version = 'v2',
    on_request_header = function() while true do burn(12) envoy.sleep(1) end end,
}"
);

const SLOW_START: &str = burning!(
    "local kept = {}
burn(800)
return {
    version = 'v2',
    on_configure = function() burn(800) end,
    on_request_header = function() while true do kept[#kept + 1] = ('x'):rep(20000) .. #kept end end,
}"
);

fn lua(name: &'static str, about: &'static str, code: &'static str) -> Attacker {
    Attacker {
        name,
        about,
        code: Code::Lua(code),
        settings: "",
        drive: Drive::InTurn,
        clients: 4,
        pause_ms: 1,
        body: 0,
        memory_mib: 16,
    }
}

fn guest(name: &'static str, about: &'static str, guest: Guest) -> Attacker {
    Attacker {
        name,
        about,
        code: Code::Wasm(guest),
        settings: "",
        drive: Drive::InTurn,
        clients: 4,
        pause_ms: 1,
        body: 0,
        memory_mib: 64,
    }
}

/// A guest that does something with each request's headers.
fn at_request(instructions: &str) -> Guest {
    Guest {
        functions: format!(
            "(func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32)
    (local $at i32)
    {instructions}
    (i32.const 0))"
        ),
        ..Guest::default()
    }
}

/// A guest that ticks each millisecond.
fn at_tick(instructions: &str) -> Guest {
    Guest {
        configure: "(drop (call $set_tick_period_milliseconds (i32.const 1)))".to_owned(),
        functions: format!("(func (export \"proxy_on_tick\") (param i32) {instructions})"),
        ..Guest::default()
    }
}

/// Returns all attackers.
pub(super) fn all() -> Vec<Attacker> {
    let late = Guest {
        vm_start: format!(
            "(if (i32.eqz (call $get_shared_data {} (i32.const 8192) (i32.const 8208) (i32.const 8224)))
      (then (call $endless)))",
            text("key")
        ),
        ..at_request(&format!(
            "(drop (call $set_shared_data {} {} (i32.const 0))) (unreachable)",
            text("key"),
            text("yes")
        ))
    };
    let queues = at_request(&format!(
        "(if (i32.lt_u (memory.size) (i32.const 64)) (then (drop (memory.grow (i32.const 48)))))
    ;; A name of its own for each queue.
    (i32.store (i32.const 8192) (global.get $count))
    (global.set $count (i32.add (global.get $count) (i32.const 1)))
    (drop (call $register_shared_queue (i32.const 8192) (i32.const 4) (i32.const 8208)))
    (loop $next
      (drop (call $enqueue_shared_queue (i32.load (i32.const 8208)) (i32.const 65536) (i32.const 1048576)))
      (drop (call $enqueue_shared_queue (i32.load (i32.const 8208)) {}))
      (drop (call $set_shared_data (i32.const 8192) (i32.const 4) (i32.const 65536) (i32.const 1048576) (i32.const 0)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (i32.const 20))))",
        text("")
    ));
    let flood = at_request(
        "(loop $next
      (drop (call $log (i32.const 3) (i32.const 1024) (i32.const 60000)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (i32.const 100))))",
    );
    let grow = at_request(
        "(drop (memory.grow (i32.const 400)))
    (loop $next
      (i32.store (local.get $at) (i32.const 1))
      (local.set $at (i32.add (local.get $at) (i32.const 4096)))
      (br_if $next (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536)))))
    (drop (memory.grow (i32.const 700))) (unreachable)",
    );
    vec![
        lua(
            "loop",
            "an endless loop on each stream, its circuit off",
            "return { version = 'v2', on_request_header = function() while true do end end }",
        ),
        lua(
            "pcall-loop",
            "endless loops behind `pcall`, in all handlers, `on_log` too",
            "
local function forever() while true do pcall(function() while true do end end) end end
return { version = 'v2', on_request_header = forever, on_response_header = forever, on_log = forever }",
        ),
        lua(
            "load-loop",
            "a chunk that takes longer to compile than the budget, then an endless loop",
            "
local long = 'return {' .. ('1,'):rep(1000000) .. '}'
return {
    version = 'v2',
    on_request_header = function() pcall(load, long) load(long) while true do end end,
}",
        ),
        Attacker {
            clients: 12,
            ..lua("burner", "12 streams that burn 12 ms and sleep for 1 ms", BURNER)
        },
        Attacker {
            clients: 32,
            ..lua(
                "sleeper",
                "32 streams that sleep for 0 ms, each with 30 timers that do so",
                "
local function storm() while true do envoy.sleep(0) end end
return {
    version = 'v2',
    on_request_header = function()
        for _ = 1, 15 do envoy.timer.after(0, storm) envoy.timer.every(10, function() end) end
        storm()
    end,
}",
            )
        },
        lua(
            "hog",
            "more memory than its budget, on each stream",
            "
return {
    version = 'v2',
    on_request_header = function()
        local kept = {}
        while true do kept[#kept + 1] = ('x'):rep(50000) .. #kept end
    end,
}",
        ),
        Attacker {
            clients: 2,
            ..lua(
                "slow-start",
                "a VM that takes almost a second to make, and uses up its memory on each stream",
                SLOW_START,
            )
        },
        lua(
            "flood",
            "lines of 4 KB to both logs, as fast as it can",
            "
local line = ('flood\\nerror: forged '):rep(200)
return {
    version = 'v2',
    on_request_header = function()
        local till = envoy.time.monotonic() + 10
        while envoy.time.monotonic() < till do envoy.logWarn(line) envoy.filelog(line) end
    end,
}",
        ),
        Attacker {
            settings: ", allow: {upstreams: [sink, dead]}",
            ..lua(
                "caller",
                "64 callouts for each stream, to an upstream and to nothing",
                "
return {
    version = 'v2',
    on_request_header = function()
        for _ = 1, 30 do
            envoy.callout.start{ cluster = 'sink', path = '/delay/20', timeout_ms = 500 }
            envoy.callout.start{ cluster = 'dead', path = '/' }
        end
        envoy.sleep(30)
    end,
}",
            )
        },
        Attacker {
            settings: ", allow: {upstreams: [sink]}",
            clients: 8,
            ..lua(
                "callouts",
                "64 callouts for each request, and waits for none",
                "
return {
    version = 'v2',
    on_request_header = function()
        for _ = 1, 64 do
            envoy.callout.start{ cluster = 'sink', path = '/bytes/10' }
        end
    end,
}",
            )
        },
        Attacker {
            body: 400_000,
            ..lua(
                "host-calls",
                "JSON, regular expressions, digests and sorting over 400 KB",
                "
return {
    version = 'v2',
    on_request_body = function()
        local body = envoy.req.get_body() or ''
        local many = '[' .. ('1,'):rep(150000) .. '1]'
        while true do
            envoy.json.decode(many)
            envoy.json.decode(body)
            envoy.re.find(body, '(a|[b-z]+)+$')
            envoy.crypto.sha512(body)
            envoy.base64.encode(body)
        end
    end,
}",
            )
        },
        lua(
            "errors",
            "an error in each handler",
            "
local function fail() error(setmetatable({}, { __tostring = function() error('again') end })) end
return { version = 'v2', on_request_header = fail, on_response_header = fail, on_log = fail }",
        ),
        Attacker {
            drive: Drive::Frames(3000),
            clients: 1,
            pause_ms: 2000,
            ..lua(
                "frames",
                "0.4 ms for each of 3,000 frames that come at once",
                "
function envoy_on_request(handle)
    for _ in handle:bodyChunks() do
        local till = os.clock() + 0.0004
        while os.clock() < till do end
    end
end",
            )
        },
        Attacker {
            drive: Drive::AtOnce(1500),
            clients: 1,
            pause_ms: 1000,
            ..lua(
                "at-once",
                "0.4 ms for each of 1,500 requests that come at once",
                burning!("return { version = 'v2', on_request_header = function() burn(0.4) end }"),
            )
        },
        Attacker {
            drive: Drive::Reset(300),
            clients: 1,
            pause_ms: 500,
            ..lua(
                "reset",
                "0.4 ms in `on_log` for each of 300 streams that end at once",
                burning!("return { version = 'v2', on_log = function() burn(0.4) end }"),
            )
        },
        Attacker {
            clients: 0,
            ..guest(
                "tick",
                "ticks each millisecond, of 8 million turns of a loop",
                at_tick("(call $turns (i32.const 8000000))"),
            )
        },
        Attacker {
            clients: 0,
            ..guest(
                "tick-over",
                "ticks each millisecond, without end",
                at_tick("(call $endless)"),
            )
        },
        guest(
            "wasm-loop",
            "an endless loop on each stream",
            at_request("(call $endless)"),
        ),
        guest(
            "wasm-straight",
            "2^36 calls without a loop on each stream",
            at_request("(call $straight)"),
        ),
        guest("trap", "a trap on each stream", at_request("(unreachable)")),
        guest("late", "a trap, after which each start loops", late),
        guest(
            "grow",
            "memory up to its budget and beyond, touched, then a trap",
            grow,
        ),
        guest(
            "queues",
            "a new queue with 20 MB, and shared data, on each stream",
            queues,
        ),
        guest("wasm-flood", "100 log lines of 60 KB on each stream", flood),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn attackers_have_names_of_their_own_and_valid_guests() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|attacker| attacker.name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() >= 8);
        for attacker in all {
            if let Code::Wasm(guest) = attacker.code {
                guest.module().unwrap();
            }
        }
    }
}
