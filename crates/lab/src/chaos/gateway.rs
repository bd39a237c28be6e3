//! The configuration of a chaos run, and its random changes.
//!
//! Calm hosts have plugins whose effect on the bytes is known ([`calm`]); they never change. Wild hosts have random plugins. Faulty hosts have the calm plugins before upstreams
//! that break the protocol.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::SeededFault;
use super::calm;
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
    "parts.test",
    "pausing.test",
    "rewrite.test",
    "chain.test",
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
    "extra.test",
];

/// More of the entries of plugins that make callouts.
const CALLS_SETTINGS: &str = ", allow: {upstreams: [echo, echo-h2, faulty, faulty-h2]}";

/// How many random plugins there are of each runtime.
const WILD: u64 = 3;

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
    pub(super) fault: Option<SeededFault>,
    pub(super) state: State,
}

/// What changes from one `outrider.yaml` to the next.
#[derive(Debug, Clone, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is something that comes and goes by itself"
)]
pub(super) struct State {
    version: u64,
    has_second_listener: bool,
    /// An upstream and a project that come and go.
    has_extra: bool,
    /// The endpoint of `other` is that of `echo`.
    other_moved: bool,
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
        for (name, code) in calm::LUA {
            save(&self.folder.join(format!("{name}.lua")), code)?;
        }
        save(&self.folder.join("whole.lua"), calm::whole(self.fault))?;
        let streaming = self.folder.join("streaming");
        std::fs::create_dir_all(&streaming)?;
        save(&streaming.join("main.lua"), calm::STREAMING)?;
        save(
            &streaming.join("plugin.yaml"),
            "name: streaming\nversion: 1.0.0\nruntime: lua\nbody: stream\n",
        )?;
        save(&self.folder.join("guest.wasm"), calm::reading().module()?)?;
        save(&self.folder.join("pausing.wasm"), calm::pausing().module()?)?;
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
        let what = match random.below(14) {
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
            11 => {
                self.state.has_extra = !self.state.has_extra;
                "an upstream and a project more or less"
            }
            12 => {
                self.state.other_moved = !self.state.other_moved;
                "another endpoint"
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
            has_extra,
            other_moved,
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
        let all = "whole, streaming, guest, pausing, parts, calls";
        let mut projects = vec![
            ("plain", "echo", String::new()),
            ("whole", "echo", "whole".to_owned()),
            ("stream", "echo", "streaming".to_owned()),
            ("calls", "echo", "calls".to_owned()),
            ("parts", "echo", "parts".to_owned()),
            ("pausing", "echo", "pausing".to_owned()),
            ("rewrite", "echo-h2", "rewrite".to_owned()),
            ("chain", "echo-h2", all.to_owned()),
            ("guest", "echo", "guest, whole".to_owned()),
            ("plain-h2", "echo-h2", String::new()),
            ("whole-h2", "echo-h2", "whole, streaming".to_owned()),
            ("faulty", "faulty", all.to_owned()),
            ("faulty-h2", "faulty-h2", all.to_owned()),
            ("wild-lua", "echo", uses(true, false)),
            ("wild-wasm", "echo", uses(false, true)),
            ("wild-both", "echo-h2", uses(true, true)),
            ("wild-faulty", "faulty-h2", uses(true, true)),
        ];
        if *has_extra {
            projects.push(("extra", "extra", "whole".to_owned()));
        }
        let mut text = format!(
            "gateway:
  listeners: [{{name: main, address: '{1}'}}{second}]
  admin: '{2}'
  workers: 2
  plugin_logs: plugin-logs{stamp}
plugins:
  whole: {{source: whole.lua}}
  streaming: {{source: streaming}}
  calls: {{source: calls.lua{0}}}
  parts: {{source: parts.lua{0}}}
  rewrite: {{source: rewrite.lua}}
  guest: {{source: guest.wasm}}
  pausing: {{source: pausing.wasm{0}}}
  stamp: {{source: stamp.lua}}
{plugins}projects:
",
            CALLS_SETTINGS, self.listen, self.admin,
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
            self.echo,
            self.echo,
            if *other_moved { self.echo } else { self.other },
            self.faulty,
            self.faulty_h2
        );
        if *has_extra {
            let _ = writeln!(text, "  extra: {{endpoints: ['{}']}}", self.other);
        }
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
