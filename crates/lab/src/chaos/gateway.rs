//! The configuration of a chaos run, and its random changes.
//!
//! Calm hosts have plugins that only read, on every kind of body, with callouts and timers; they never change but for
//! a number in their configuration. Wild hosts have random plugins. Faulty hosts have the calm plugins before upstreams
//! that break the protocol.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::programs::{lua, wasm};
use crate::random::Random;
use crate::up::save;

/// Hosts whose answers are compared byte for byte.
pub(super) const CALM_HOSTS: &[&str] = &[
    "plain.test",
    "whole.test",
    "stream.test",
    "calls.test",
    "guest.test",
    "plain-h2.test",
    "whole-h2.test",
];
/// Hosts whose upstreams break the protocol, behind plugins that do no harm.
pub(super) const FAULTY_HOSTS: &[&str] = &["faulty.test", "faulty-h2.test"];
/// Hosts with random plugins.
pub(super) const WILD_HOSTS: &[&str] = &[
    "wild-lua.test",
    "wild-wasm.test",
    "wild-both.test",
    "wild-faulty.test",
];

/// How many random plugins there are of each runtime.
const WILD: u64 = 3;

/// Plugins of the calm and of the faulty hosts.
const CALM_PLUGINS: &[(&str, &str)] = &[
    (
        "whole",
        "
return {
    version = 'v2',
    on_request_body = function() envoy.stream.shared.size = #(envoy.req.get_body() or '') envoy.sleep(1) end,
    on_response_body = function() envoy.stream.shared.size = #(envoy.resp.get_body() or '') end,
    on_log = function() local _ = envoy.stream.shared.size end,
}",
    ),
    (
        "calls",
        "
local function call(cluster)
    return envoy.callout.start{ cluster = cluster, path = '/status/200', timeout_ms = 300 }
end
return {
    version = 'v2',
    on_request_header = function()
        -- One that is waited for, one that fails and is tried again, one that is left alone.
        local _, _ = call('echo'):wait()
        local headers = call('faulty-h2'):wait()
        if not headers then call('faulty-h2') end
        envoy.stream.shared.open = envoy.callout.stream{ cluster = 'faulty-h2', path = '/part', timeout_ms = 500 }
        envoy.timer.after(2, function() envoy.req.get_header(':path') end)
    end,
    on_response_header = function()
        call('faulty'):wait()
        envoy.callout.send{ cluster = 'faulty-h2', path = '/sent' }
    end,
}",
    ),
];

/// A Lua plugin that reads chunks as they come.
const STREAMING: &str = "
return {
    version = 'v2',
    on_request_body = function() local _ = envoy.req.get_body_size() end,
    on_response_body = function() local _ = envoy.resp.get_body_size() envoy.sleep(0) end,
}";

/// Addresses and files of the gateway, and what it has now.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) folder: PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) second: SocketAddr,
    pub(super) admin: SocketAddr,
    pub(super) echo: SocketAddr,
    pub(super) other: SocketAddr,
    pub(super) faulty: SocketAddr,
    pub(super) faulty_h2: SocketAddr,
    pub(super) state: State,
}

/// What changes from one `outrider.yaml` to the next.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    version: u64,
    has_second_listener: bool,
    /// Which random plugins are there: those of Lua, those of Wasm.
    wild_lua: Vec<u64>,
    wild_wasm: Vec<u64>,
    is_broken: bool,
    runs_stamp: bool,
    memory_mib: u64,
}

impl Gateway {
    fn file(&self) -> PathBuf {
        self.folder.join("outrider.yaml")
    }

    /// Writes the calm plugins and a configuration without random ones.
    pub(super) fn write_calm(&mut self) -> anyhow::Result<()> {
        for (name, code) in CALM_PLUGINS {
            save(&self.folder.join(format!("{name}.lua")), code)?;
        }
        let streaming = self.folder.join("streaming");
        std::fs::create_dir_all(&streaming)?;
        save(&streaming.join("main.lua"), STREAMING)?;
        save(
            &streaming.join("plugin.yaml"),
            "name: streaming\nversion: 1.0.0\nruntime: lua\nbody: stream\n",
        )?;
        save(&self.folder.join("guest.wasm"), wasm::sound().module()?)?;
        save(
            &self.folder.join("stamp.lua"),
            "return { version = 'v2', on_request_header = function() local _ = envoy.config().version end }",
        )?;
        self.state = State {
            version: self.state.version + 1,
            memory_mib: 16,
            ..State::default()
        };
        self.write()
    }

    /// Makes a random change.
    pub(super) fn change(&mut self, random: &mut Random) -> anyhow::Result<&'static str> {
        self.state.version += 1;
        self.state.is_broken = false;
        let what = match random.below(12) {
            0..3 => {
                let number = random.below(WILD);
                let code = lua::program(random);
                save(&self.folder.join(format!("wild-lua-{number}.lua")), code)?;
                add(&mut self.state.wild_lua, number);
                "another Lua program"
            }
            3..6 => {
                let number = random.below(WILD);
                let module = wasm::program(random)?;
                save(
                    &self.folder.join(format!("wild-wasm-{number}.wasm")),
                    module,
                )?;
                add(&mut self.state.wild_wasm, number);
                "another Wasm module"
            }
            6 => {
                let number = random.below(WILD);
                if random.chance(50) {
                    self.state.wild_lua.retain(|other| *other != number);
                } else {
                    self.state.wild_wasm.retain(|other| *other != number);
                }
                "a plugin less"
            }
            7 | 8 => {
                self.state.has_second_listener = !self.state.has_second_listener;
                "a listener more or less"
            }
            9 => {
                self.state.is_broken = true;
                "a file that is not valid"
            }
            10 => {
                self.state.runs_stamp = !self.state.runs_stamp;
                "a plugin of the gateway on or off"
            }
            _ => {
                self.state.memory_mib = random.between(4, 32);
                "other budgets"
            }
        };
        self.write()?;
        Ok(what)
    }

    fn write(&self) -> anyhow::Result<()> {
        let State {
            version,
            has_second_listener,
            wild_lua,
            wild_wasm,
            is_broken,
            runs_stamp,
            memory_mib,
        } = &self.state;
        let second = if *has_second_listener {
            format!(", {{name: second, address: '{}'}}", self.second)
        } else {
            String::new()
        };
        let stamp = if *runs_stamp {
            format!("\n  use: [{{plugin: stamp, config: {{version: {version}}}}}]")
        } else {
            String::new()
        };
        let mut plugins = String::new();
        for number in wild_lua {
            let _ = writeln!(
                plugins,
                "  wild-lua-{number}: {{source: wild-lua-{number}.lua, allow: all, budgets: {{memory_mib: {memory_mib}}}}}"
            );
        }
        for number in wild_wasm {
            let _ = writeln!(
                plugins,
                "  wild-wasm-{number}: {{source: wild-wasm-{number}.wasm, allow: all}}"
            );
        }
        let uses = |lua: bool, wasm: bool| {
            let lua = wild_lua.iter().filter(|_| lua);
            let wasm = wild_wasm.iter().filter(|_| wasm);
            let lua = lua.map(|number| {
                format!("{{plugin: wild-lua-{number}, config: {{version: {version}}}}}")
            });
            let wasm =
                wasm.map(|number| format!("{{plugin: wild-wasm-{number}, config: \"{version}\"}}"));
            lua.chain(wasm).collect::<Vec<_>>().join(", ")
        };
        let calm = "whole, streaming, guest, calls";
        let projects = [
            ("plain", "echo", String::new()),
            ("whole", "echo", "whole".to_owned()),
            ("stream", "echo", "streaming".to_owned()),
            ("calls", "echo", "calls".to_owned()),
            ("guest", "echo", "guest, whole".to_owned()),
            ("plain-h2", "echo-h2", String::new()),
            ("whole-h2", "echo-h2", "whole, streaming".to_owned()),
            ("faulty", "faulty", calm.to_owned()),
            ("faulty-h2", "faulty-h2", calm.to_owned()),
            ("wild-lua", "echo", uses(true, false)),
            ("wild-wasm", "echo", uses(false, true)),
            ("wild-both", "echo-h2", uses(true, true)),
            ("wild-faulty", "faulty-h2", uses(true, true)),
        ];
        let mut text = format!(
            "gateway:
  listeners: [{{name: main, address: '{}'}}{second}]
  admin: '{}'
  workers: 2
  plugin_logs: plugin-logs{stamp}
plugins:
  whole: {{source: whole.lua}}
  streaming: {{source: streaming}}
  calls: {{source: calls.lua{}}}
  guest: {{source: guest.wasm}}
  stamp: {{source: stamp.lua}}
{plugins}projects:
",
            self.listen,
            self.admin,
            super::CALLS_SETTINGS,
        );
        for (name, upstream, uses) in projects {
            let _ = writeln!(
                text,
                "  - {{name: {name}, hosts: [{name}.test], use: [{uses}], routes: [{{match: {{prefix: /}}, to: \
                 {upstream}, timeout: 3s}}]}}"
            );
        }
        let _ = write!(
            text,
            "upstreams:
  echo: {{endpoints: ['{}']}}
  echo-h2: {{endpoints: ['{}'], protocol: http2}}
  other: {{endpoints: ['{}']}}
  faulty: {{endpoints: ['{}']}}
  faulty-h2: {{endpoints: ['{}'], protocol: http2}}
",
            self.echo, self.echo, self.other, self.faulty, self.faulty_h2
        );
        if *is_broken {
            text.push_str("nonsense: [\n");
        }
        save(&self.file(), text)
    }
}

fn add(numbers: &mut Vec<u64>, number: u64) {
    if !numbers.contains(&number) {
        numbers.push(number);
    }
}
