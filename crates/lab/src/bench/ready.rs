//! How long Envoy takes to start with a large Wasm plugin whose compiled code is kept: Coraza, 30 MB, without its
//! rule set (`SecRuleEngine On`), whose compiling is the guest's own work and the same in every host.
//!
//! From the start of the process until the first answer, in turns with an Envoy that has no filter: the difference
//! is what loading takes. The trap: it is time, so what else runs on the machine is in it; the smallest of several
//! rounds is the least disturbed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use outrider_envoy_process::{Envoy, Level, Options};
use serde_json::Value;

use super::bootstrap::{Answers, Listener, bootstrap};
use super::filters::{Code, Rendered, Sources, envoy_wasm};
use super::load::{Connection, get};
use super::mechanism::Mechanism;
use super::report::{Ready, Start};
use crate::free_address::own_address;

/// Rounds of Envoy's own filter, which compiles each time.
const FEW: usize = 2;
const ROUNDS: usize = 10;
const CONFIGURATION: &str = r#"{"directives": "SecRuleEngine On"}"#;

/// Starts Envoys in turns.
pub(crate) fn measure(
    envoy: &Path,
    modules: &Path,
    sources: &Sources,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Ready> {
    let code = Code::Wasm {
        module: sources.coraza()?,
        configuration: CONFIGURATION.to_owned(),
    };
    let ours = vec![Rendered::plugins(sources, std::slice::from_ref(&code))?.filter];
    let theirs: Vec<_> = envoy_wasm(1, &code).into_iter().collect();
    // Compiled now, if it was not.
    start(envoy, modules, &ours)?;
    let mut starts = [
        (None, Vec::new()),
        (Some(Mechanism::OutriderGo), ours),
        (Some(Mechanism::EnvoyGo), theirs),
    ]
    .map(|(mechanism, filters)| {
        let milliseconds = Vec::new();
        (
            filters,
            Start {
                mechanism,
                milliseconds,
            },
        )
    });
    for round in 0..ROUNDS {
        for (filters, measured) in &mut starts {
            if measured.mechanism == Some(Mechanism::EnvoyGo) && round >= FEW {
                continue;
            }
            let took = start(envoy, modules, filters)?.as_secs_f64() * 1000.0;
            measured.milliseconds.push((took * 10.0).round() / 10.0);
        }
        write!(out, ".")?;
        out.flush()?;
    }
    writeln!(out)?;
    Ok(Ready {
        module_bytes: fs::metadata(sources.coraza()?)?.len(),
        starts: starts.map(|(_, start)| start).into(),
    })
}

/// From the start of a process until it has answered.
fn start(envoy: &Path, modules: &Path, filters: &[Value]) -> anyhow::Result<Duration> {
    let folder = tempfile::Builder::new()
        .prefix("outrider-bench-")
        .tempdir()?;
    let address = own_address()?;
    let listener = Listener::new(address, Answers::Envoy, filters.to_vec());
    let file = folder.path().join("bootstrap.json");
    fs::write(&file, bootstrap(vec![listener], None, false).to_string())?;
    let mut options = Options::new(envoy, file);
    options.concurrency = Some(1);
    options.module_folder = Some(modules.to_owned());
    options.log_level = Level::Error;
    let begin = Instant::now();
    let mut envoy = Envoy::start(options)?;
    let mut connection = Connection::open_when_there(address, || Ok(envoy.check_running()?))?;
    connection.exchange(&get("/", ""))?;
    let took = begin.elapsed();
    envoy.stop(Duration::from_secs(30));
    Ok(took)
}
