//! The scenario "routes": what 1, 100 or 10,000 routes with a plugin's configuration cost in memory, in time until a change
//! is served, and for each request.
//!
//! For each number of routes there are three gateways: without plugin configuration, the same again, and with it. So the
//! noise floor holds what differs between two processes that do the same.

use anyhow::Context as _;
use outrider_lab_report::{Measure, Role, Variant};
use outrider_load::{Session, SessionOptions, Target};
use sha2::{Digest as _, Sha256};

use super::Scenario;
use super::gateways::{Gateway, Routes};
use crate::bench::settle::settle;
use crate::echo::hexadecimal;
use crate::experiment::counters::resident_memory;
use crate::experiment::rig::{Rig, Subject};
use crate::experiment::{Pace, Prepared, Workshop};

const ABOUT: &str = "Requests for 32 of the routes, spread over all of them, which Envoy answers itself; with the plugin \
     `headers`, each route's configuration sets a response header to a value of its own.";

/// Starts the gateways, and times changes.
///
/// # Errors
///
/// A gateway does not start, or a change is not served.
pub(crate) fn prepare(
    scenario: &Scenario,
    workshop: &Workshop,
    mut rig: Rig,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<Prepared> {
    let settings = scenario.routes.as_ref().context("`routes` is missing")?;
    let folder = tempfile::Builder::new().prefix("outrider-lab-").tempdir()?;
    let mut measures = Vec::new();
    for count in &settings.counts {
        let group = if *count == 1 {
            "1 route".to_owned()
        } else {
            format!("{count} routes")
        };
        for (name, role, routes) in [
            ("no plugin", Role::Baseline, Routes::Plain),
            ("no plugin, again", Role::Twin, Routes::Plain),
            (
                "a plugin's configuration on each",
                Role::Measured,
                Routes::Configured,
            ),
        ] {
            say(&format!("{group}: starting a gateway, {name}"));
            let gateway = Gateway::start(
                &workshop.outrider,
                &workshop.arguments(),
                &folder
                    .path()
                    .join(format!("{count}-{}", rig.subjects.len())),
                *count,
                routes,
            )?;
            let envoy = gateway.up.envoy()?;
            settle(envoy)?;
            let mut measure = |what: &str, unit: &str, values: Vec<f64>| {
                measures.push(Measure {
                    group: group.clone(),
                    name: name.to_owned(),
                    what: what.to_owned(),
                    unit: unit.to_owned(),
                    values,
                });
            };
            measure(
                "Envoy's memory",
                "MiB",
                vec![resident_memory(envoy)? as f64 / 1024.0],
            );
            measure(
                "memory of the command",
                "MiB",
                vec![resident_memory(gateway.up.process())? as f64 / 1024.0],
            );
            measure(
                "time from the start of the command to the first answer",
                "ms",
                vec![gateway.start.as_secs_f64() * 1e3],
            );
            if routes == Routes::Configured {
                say(&format!("{group}: timing {} changes", settings.changes));
                measure(
                    "time from the save of the file until a changed configuration is served",
                    "ms",
                    gateway.time_changes(settings.changes)?,
                );
            }
            let process = rig.watch_envoy(&format!("Envoy, {group}, {name}"), envoy)?;
            let target = Target::parse(&format!("http://{}/", gateway.address))?;
            let options = SessionOptions {
                connections: scenario.connections,
                ..SessionOptions::default()
            };
            rig.subjects.push(Subject {
                variant: Variant {
                    group: group.clone(),
                    about: ABOUT.to_owned(),
                    name: name.to_owned(),
                    role,
                    configuration: hexadecimal(Sha256::new_with_prefix(gateway.file.text(0, 0))),
                    note: String::new(),
                },
                session: Session::open(&target, &options)?,
                requests: gateway.requests(),
                processes: vec![process],
                meanwhile: None,
            });
            rig.keep.push(Box::new(gateway));
        }
    }
    rig.keep.push(Box::new(folder));
    Ok(Prepared {
        measures,
        ..Prepared::new(rig, Pace::of(scenario))
    })
}
