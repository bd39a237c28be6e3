//! The scenario "stages": where a request's time goes inside and between two sidecars.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use outrider_envoy_process::Options;
use outrider_load::{Load, Pacing, RequestTemplate, Schedule, Session, SessionOptions, Target};
use serde_json::{Map, Value, json};

use super::upstream::{add_clusters, cluster, start_upstream};
use super::{LatencySettings, Scenario};
use crate::bench::bootstrap::{Answers, Listener, bootstrap};
use crate::experiment::rig::Rig;
use crate::experiment::{Pace, Prepared, Workshop};
use crate::free_address::own_addresses;
use crate::stages::{FIELDS, Hop, INDEX_HEADER, join};

/// Requests before those that are joined, so that caches are warm.
const WARM_UP: Duration = Duration::from_secs(1);

/// Starts two sidecars, sends requests through them, and joins their access logs.
///
/// # Errors
///
/// Envoy does not start, or no request passed both.
pub(crate) fn prepare(
    scenario: &Scenario,
    workshop: &Workshop,
    mut rig: Rig,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<Prepared> {
    let settings = scenario.stages.as_ref().context("`stages` is missing")?;
    let folder = tempfile::Builder::new().prefix("outrider-lab-").tempdir()?;
    say("starting the sidecars");
    let upstream = start_upstream(&mut rig)?;
    let addresses = own_addresses(2)?;
    let [client, server] = *addresses.as_slice() else {
        anyhow::bail!("two addresses were asked for");
    };
    for (side, address, to) in [("server", server, upstream), ("client", client, server)] {
        let own = folder.path().join(side);
        fs::create_dir(&own)?;
        let listener = Listener {
            cluster: "next".to_owned(),
            manager: access_log(&own.join("access.log")),
            ..Listener::new(address, Answers::Upstream, Vec::new())
        };
        let mut document = bootstrap(vec![listener], None, true);
        add_clusters(&mut document, [cluster("next", to)])?;
        let file = own.join("bootstrap.json");
        fs::write(&file, document.to_string())?;
        rig.start_envoy(
            &format!("{side} sidecar"),
            Options::new(&workshop.envoy, file),
        )?;
    }
    rig.place_generator()?;
    let target = Target::parse(&format!("http://{client}/"))?;
    let options = SessionOptions {
        connections: scenario.connections,
        ..SessionOptions::default()
    };
    let mut session = Session::open(&target, &options)?;
    let plain = RequestTemplate::get("/")
        .header("host", "echo.test")
        .header("x-echo-size", "1024");
    session.run(&Load {
        pacing: Pacing::Open(Schedule::uniform(settings.rate, WARM_UP)),
        requests: vec![plain.clone()],
    })?;
    say(&format!(
        "{} requests a second for {} s",
        settings.rate, settings.seconds
    ));
    let length = Duration::from_secs_f64(settings.seconds);
    // One more than are due, so that none is sent twice.
    let count = (settings.rate * settings.seconds).ceil() as usize + 1;
    let outcome = session.run(&Load {
        pacing: Pacing::Open(Schedule::uniform(settings.rate, length)),
        requests: (0..count)
            .map(|index| plain.clone().header(INDEX_HEADER, &index.to_string()))
            .collect(),
    })?;
    let total = outcome.total();
    anyhow::ensure!(
        total.failed() == 0,
        "{} of {} requests failed: {:?}",
        total.failed(),
        total.sent,
        total.errors
    );
    drop(session);
    // Their logs are whole when they have ended.
    for envoy in rig.envoys.drain(..) {
        envoy.stop(Duration::from_secs(5));
    }
    rig.watched.clear();
    let hops = ["client", "server"]
        .into_iter()
        .map(|side| {
            let file = folder.path().join(side).join("access.log");
            let text = fs::read_to_string(file)?;
            Hop::read(&format!("{side} sidecar"), &text)
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let joined = join(&format!("{} requests a second", settings.rate), &hops)?;
    say(&format!(
        "{} requests joined, {} incomplete",
        joined.requests, joined.incomplete
    ));
    Ok(Prepared {
        rig,
        pace: Pace {
            cpu_slice: Duration::ZERO,
            latency: LatencySettings::none(),
            rates: Vec::new(),
            rate_slice: Duration::ZERO,
        },
        pairs: Vec::new(),
        absent: Vec::new(),
        cumulative: Vec::new(),
        measures: Vec::new(),
        stages: joined.stages,
    })
}

fn access_log(path: &Path) -> Map<String, Value> {
    let format: Map<String, Value> = FIELDS
        .iter()
        .map(|(name, operator)| ((*name).to_owned(), json!(operator)))
        .collect();
    let mut manager = Map::new();
    manager.insert(
        "access_log".to_owned(),
        json!([{
            "name": "file",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                "path": path,
                "log_format": { "json_format": format },
            },
        }]),
    );
    manager
}
