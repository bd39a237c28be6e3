//! The scenario "updates": what ten changes a second do to the requests that run meanwhile.
//!
//! Outrider's gateway is changed as a user changes it: its file is saved. Envoy's own Lua filter has its script in the
//! listener, so a change of it replaces the listener; that is measured beside it.
//!
//! The trap: changes are made only while their variant is loaded, and a pause follows, so that the others are quiet.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use outrider_envoy_process::Options;
use outrider_lab_report::{Role, Variant};
use outrider_load::{RequestTemplate, Session, SessionOptions, Target};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::Scenario;
use super::gateways::{Gateway, GatewayFile, Routes};
use crate::bench::bootstrap::{Answers, Listener, bootstrap};
use crate::bench::filters::envoy_lua;
use crate::echo::hexadecimal;
use crate::experiment::rig::{Meanwhile, Rig, Subject, Watched};
use crate::experiment::{Pace, Prepared, Workshop};
use crate::free_address::own_address;
use crate::up::save;

const OUTRIDER: &str = "Outrider";
const ENVOY: &str = "Envoy's Lua filter";

/// Starts the gateway, and the Envoy beside it.
///
/// # Errors
///
/// One of them does not start.
pub(crate) fn prepare(
    scenario: &Scenario,
    workshop: &Workshop,
    mut rig: Rig,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<Prepared> {
    let settings = scenario.updates.as_ref().context("`updates` is missing")?;
    let every = Duration::from_secs_f64(1.0 / settings.per_second);
    let folder = tempfile::Builder::new().prefix("outrider-lab-").tempdir()?;
    say("starting a gateway");
    let gateway = Gateway::start(
        &workshop.outrider,
        &workshop.arguments(),
        &folder.path().join("gateway"),
        settings.routes,
        Routes::Configured,
    )?;
    let process = rig.watch_envoy("Envoy, Outrider", gateway.up.envoy()?)?;
    // Its CPU time is no foreign one; it is not the request's either.
    rig.watched
        .push(Watched::process("outrider", gateway.up.process()));
    let about = format!(
        "{} routes with a plugin's configuration each, changed {} times a second by saving the gateway's file.",
        settings.routes, settings.per_second
    );
    let changes = |change: fn(&GatewayFile, u64) -> anyhow::Result<()>| {
        let file = gateway.file.clone();
        Some(Meanwhile::new(every, move |number| change(&file, number)))
    };
    let subjects = [
        ("quiet", Role::Baseline, None),
        ("quiet, again", Role::Twin, None),
        (
            "a plugin's configuration is changed",
            Role::Measured,
            changes(|file, number| file.save(number, 0)),
        ),
        (
            "a route is added and removed",
            Role::Measured,
            changes(|file, number| file.save(0, number as usize % 2)),
        ),
    ];
    let open = |address| -> anyhow::Result<Session> {
        let options = SessionOptions {
            connections: scenario.connections,
            ..SessionOptions::default()
        };
        let target = Target::parse(&format!("http://{address}/"))?;
        Ok(Session::open(&target, &options)?)
    };
    for (name, role, meanwhile) in subjects {
        rig.subjects.push(Subject {
            variant: Variant {
                group: OUTRIDER.to_owned(),
                about: about.clone(),
                name: name.to_owned(),
                role,
                configuration: hexadecimal(Sha256::new_with_prefix(gateway.file.text(0, 0))),
                note: String::new(),
            },
            session: open(gateway.address)?,
            requests: gateway.requests(),
            processes: vec![process],
            meanwhile,
        });
    }
    rig.keep.push(Box::new(gateway));
    say("starting an Envoy with its own Lua filter");
    let beside = ListenerFile::new(folder.path().join("envoy"))?;
    let process = beside.start(workshop, &mut rig)?;
    let about = format!(
        "One route with a script, which is part of the listener and changed {} times a second: Envoy replaces the listener, \
         and drains the connections of the one before.",
        settings.per_second
    );
    let file = beside.clone();
    for (name, role, meanwhile) in [
        ("quiet", Role::Baseline, None),
        ("quiet, again", Role::Twin, None),
        (
            "the script is changed",
            Role::Measured,
            Some(Meanwhile::new(every, move |number| file.save(number))),
        ),
    ] {
        rig.subjects.push(Subject {
            variant: Variant {
                group: ENVOY.to_owned(),
                about: about.clone(),
                name: name.to_owned(),
                role,
                configuration: hexadecimal(Sha256::new_with_prefix(beside.text(0))),
                note: String::new(),
            },
            session: open(beside.address)?,
            requests: vec![RequestTemplate::get("/").header("host", "lab.test")],
            processes: vec![process],
            meanwhile,
        });
    }
    rig.keep.push(Box::new(folder));
    Ok(Prepared::new(rig, Pace::of(scenario)))
}

/// File of LDS with one listener, whose Lua filter answers with a number.
#[derive(Debug, Clone)]
struct ListenerFile {
    folder: PathBuf,
    address: std::net::SocketAddr,
}

impl ListenerFile {
    fn new(folder: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            address: own_address()?,
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.join("lds.json")
    }

    fn text(&self, number: u64) -> String {
        let script = format!(
            "function envoy_on_response(handle)\n  handle:headers():replace(\"x-value\", \"{number}\")\nend\n"
        );
        let mut listener =
            Listener::new(self.address, Answers::Envoy, vec![envoy_lua(1, &script)]).render(0);
        if let Some(listener) = listener.as_object_mut() {
            listener.insert(
                "@type".to_owned(),
                json!("type.googleapis.com/envoy.config.listener.v3.Listener"),
            );
        }
        json!({ "version_info": number.to_string(), "resources": [listener] }).to_string()
    }

    fn save(&self, number: u64) -> anyhow::Result<()> {
        save(&self.path(), self.text(number))
    }

    fn start(&self, workshop: &Workshop, rig: &mut Rig) -> anyhow::Result<usize> {
        self.save(0)?;
        let mut document = bootstrap(Vec::new(), None, true);
        if let Some(document) = document.as_object_mut() {
            document.insert(
                "dynamic_resources".to_owned(),
                json!({ "lds_config": { "path_config_source": { "path": self.path() } } }),
            );
        }
        let file = self.folder.join("bootstrap.json");
        fs::write(&file, document.to_string())?;
        rig.start_envoy("Envoy, Lua filter", Options::new(&workshop.envoy, file))
    }
}
