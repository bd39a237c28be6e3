//! Memory of Envoy: what a plugin's VM takes, what a worker takes, and what a thousand routes with
//! configuration of their own take, as differences between Envoys that differ in nothing else.
//!
//! Anonymous memory is read: heap, stacks and machine code that was made. Pages of files (Envoy itself,
//! the module) are left out: they are shared, so what counts of them depends on what else runs.
//! Envoy's Lua filter has no configuration, so a route's configuration is a script of the route's own;
//! Outrider's is data for the plugin that is there.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use outrider_envoy_process::{Envoy, Level, Options};
use serde_json::{Value, json};

use super::bootstrap::{Answers, Listener, bootstrap};
use super::filters::{Code, Rendered, Sources, envoy_lua, envoy_wasm, route_path, route_value};
use super::load::{Connection, get};
use super::mechanism::{Family, Guest, Mechanism};
use super::report::{Held, Measured, Memory};
use super::settle::settle;
use crate::free_address::own_address;

const ROUTES: usize = 1000;
const WORKERS: [u32; 2] = [1, 2];
/// Enough that each worker has some, however the kernel hands them out.
const CONNECTIONS: usize = 24;
const READY: Duration = Duration::from_mins(5);
/// How many plugins the runs with many of them have beyond one; those of Wasm are larger.
fn more_plugins(family: Family) -> usize {
    match family {
        Family::Lua => 50,
        Family::Wasm => 10,
    }
}

/// What is held, in the runs of a family, by whom. A native module's memory is its author's.
fn runs(family: Family) -> Vec<(Option<Mechanism>, Held)> {
    let with = |mechanisms: &[Mechanism], held: &[Held]| -> Vec<_> {
        let held = |mechanism| held.iter().map(move |held| (Some(mechanism), *held));
        mechanisms.iter().copied().flat_map(held).collect()
    };
    match family {
        Family::Lua => [
            vec![(None, Held::One), (None, Held::Routes)],
            with(
                &[Mechanism::OutriderLua, Mechanism::EnvoyLua],
                &[Held::One, Held::Many, Held::Routes],
            ),
        ]
        .concat(),
        Family::Wasm => {
            let guests: Vec<_> = Guest::ALL
                .into_iter()
                .flat_map(|guest| [guest.outrider(), guest.envoy()])
                .collect();
            [
                vec![(None, Held::One)],
                with(&guests, &[Held::One, Held::Many]),
                with(
                    &[Mechanism::OutriderGo, Mechanism::EnvoyGo],
                    &[Held::Firewall],
                ),
            ]
            .concat()
        }
    }
}

/// A plugin of Outrider that does what a route's configuration says.
fn outrider_code(number: usize) -> String {
    format!(
        "-- Plugin {number}.
local handler = {{ version = \"v2\" }}

function handler:on_request_header()
  envoy.req.set_header(\"x-value\", envoy.config().value or \"none\")
end

return handler
"
    )
}

/// The same as a script of Envoy's filter, which has the value in it.
fn envoy_code(number: usize, value: &str) -> String {
    format!(
        "-- Script {number}.
function envoy_on_request(handle)
  handle:headers():replace(\"x-value\", \"{value}\")
end
"
    )
}

/// Runs one Envoy after another.
pub(crate) fn measure(
    envoy: &Path,
    modules: &Path,
    family: Family,
    sources: &Sources,
    mut told: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Memory> {
    let mut measured = Vec::new();
    for workers in WORKERS {
        for (mechanism, held) in runs(family) {
            let address = own_address()?;
            let listener = listener(address, family, mechanism, held, sources)?;
            let kib = run(envoy, modules, listener, held, workers)?;
            told(&format!(
                "{workers} worker(s), {}, {held:?}: {kib} KiB",
                mechanism.map_or("no filter", Mechanism::title)
            ))?;
            measured.push(Measured {
                mechanism,
                held,
                workers,
                kib,
            });
        }
    }
    Ok(Memory {
        more_plugins: more_plugins(family),
        routes: ROUTES,
        measured,
    })
}

fn listener(
    address: SocketAddr,
    family: Family,
    mechanism: Option<Mechanism>,
    held: Held,
    sources: &Sources,
) -> anyhow::Result<Listener> {
    let plugins = if held == Held::Many {
        1 + more_plugins(family)
    } else {
        1
    };
    let routes = if held == Held::Routes { ROUTES } else { 0 };
    let (filters, configurations): (Vec<Value>, Vec<Value>) = match mechanism {
        None => (Vec::new(), Vec::new()),
        Some(Mechanism::OutriderLua) => {
            let codes: Vec<_> = (1..=plugins)
                .map(|number| Code::Lua(outrider_code(number)))
                .collect();
            let rendered = Rendered::with_routes(sources, &codes, routes)?;
            (vec![rendered.filter], rendered.routes)
        }
        Some(Mechanism::EnvoyLua) => (
            (1..=plugins)
                .map(|number| envoy_lua(number, &envoy_code(number, "none")))
                .collect(),
            (0..routes)
                .map(|number| envoy_route(&envoy_code(number, &route_value(number))))
                .collect(),
        ),
        Some(mechanism) => (wasm(mechanism, held, plugins, sources)?, Vec::new()),
    };
    anyhow::ensure!(
        mechanism.is_none() || family == Family::Wasm || configurations.len() == routes,
        "{} of {routes} routes have configuration",
        configurations.len()
    );
    let mut configurations = configurations.into_iter();
    let mut listener = Listener::new(address, Answers::Envoy, filters);
    listener.routes = (0..routes)
        .map(|number| (route_path(number), configurations.next()))
        .collect();
    Ok(listener)
}

/// The filters that hold a guest's plugins, each of which sets a header.
fn wasm(
    mechanism: Mechanism,
    held: Held,
    plugins: usize,
    sources: &Sources,
) -> anyhow::Result<Vec<Value>> {
    let is_firewall = held == Held::Firewall;
    let guest = Guest::ALL
        .into_iter()
        .find(|guest| [guest.outrider(), guest.envoy()].contains(&mechanism));
    let Some(guest) = guest else {
        return Ok(Vec::new());
    };
    let (module, configuration) = if is_firewall {
        (sources.coraza()?, "")
    } else {
        (sources.module(guest)?, "sets=1 header_bytes=0")
    };
    let code = Code::Wasm {
        module,
        configuration: configuration.to_owned(),
    };
    if mechanism == guest.outrider() {
        return Ok(vec![
            Rendered::plugins(sources, &vec![code; plugins])?.filter,
        ]);
    }
    Ok((1..=plugins)
        .filter_map(|number| envoy_wasm(number, &code))
        .collect())
}

/// A route's own script, for the first Lua filter.
fn envoy_route(script: &str) -> Value {
    json!({ "lua-1": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.LuaPerRoute",
        "source_code": { "inline_string": script },
    } })
}

fn run(
    envoy: &Path,
    modules: &Path,
    listener: Listener,
    held: Held,
    workers: u32,
) -> anyhow::Result<u64> {
    let folder = tempfile::Builder::new()
        .prefix("outrider-bench-")
        .tempdir()?;
    let address = listener.address;
    let file = folder.path().join("bootstrap.json");
    fs::write(&file, bootstrap(vec![listener], None, true).to_string())?;
    let mut options = Options::new(envoy, file);
    options.concurrency = Some(workers);
    options.module_folder = Some(modules.to_owned());
    options.log_level = Level::Error;
    let mut envoy = Envoy::start(options)?;
    envoy.wait_ready(READY)?;
    // Every route on every worker.
    let paths: Vec<_> = match held {
        Held::Routes => (0..ROUTES)
            .map(|number| get(&route_path(number), ""))
            .collect(),
        Held::One | Held::Many | Held::Firewall => vec![get("/", ""); 100],
    };
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::open(address)?;
        for path in &paths {
            connection.exchange(path)?;
        }
    }
    settle(envoy.process_id())?;
    let kib = anonymous_kib(envoy.process_id())?;
    envoy.stop(Duration::from_secs(10));
    Ok(kib)
}

fn anonymous_kib(process: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    anonymous(&text).with_context(|| format!("{path} tells of no anonymous memory"))
}

fn anonymous(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_found() {
        let text =
            "55d0-7ffd ---p 00000000 00:00 0   [rollup]\nRss:    100 kB\nAnonymous:     42 kB\n";
        assert_eq!(anonymous(text), Some(42));
        assert_eq!(anonymous("Rss: 1 kB"), None);
        assert!(anonymous_kib(std::process::id()).unwrap() > 0);
    }
}
