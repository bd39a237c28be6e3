//! The scenario "sidecars" (article 002): client, sidecar, sidecar, echo, against no sidecar, at rising rates.
//!
//! Two Envoys, with a listener each for every telemetry. They share a processor, as two pods on a busy machine do; the
//! generator and the echo have the other. So waiting for each other is a part of what is measured.
//!
//! The trap: the rates are shares of what sidecars without telemetry serve on this machine now. They are found before the
//! first slice, and are in the result.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use outrider_envoy_process::Options;
use outrider_lab_report::{Absent, Role, Variant};
use outrider_load::{Load, Pacing, RequestTemplate, Session, SessionOptions, Target};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::upstream::{add_clusters, cluster, pipe_cluster, start_upstream};
use super::{Scenario, Telemetry};
use crate::bench::bootstrap::{Answers, Listener, bootstrap};
use crate::echo::hexadecimal;
use crate::experiment::rig::{Rig, Subject};
use crate::experiment::{Pace, Prepared, Workshop};
use crate::free_address::own_addresses;
use crate::telemetry_sink::start_telemetry_sink;

const GROUP: &str = "sidecars";
const ABOUT: &str =
    "A request passes a client's sidecar and a server's sidecar on its way to an echo service.";
/// Cluster of the collector.
const SINK: &str = "telemetry";
/// Length of each of the slices in which the highest rate is looked for.
const CAPACITY: Duration = Duration::from_secs(1);
/// Number of them.
const CAPACITY_SLICES: usize = 3;

/// Pair of sidecars that is loaded.
struct Pair {
    name: &'static str,
    role: Role,
    telemetry: Telemetry,
}

/// Starts the chain.
///
/// # Errors
///
/// Envoy does not start.
pub(crate) fn prepare(
    scenario: &Scenario,
    workshop: &Workshop,
    mut rig: Rig,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<Prepared> {
    let settings = scenario
        .sidecars
        .as_ref()
        .context("`sidecars` is missing")?;
    let mut pairs = vec![
        Pair {
            name: "no telemetry",
            role: Role::Baseline,
            telemetry: Telemetry::None,
        },
        Pair {
            name: "no telemetry, again",
            role: Role::Twin,
            telemetry: Telemetry::None,
        },
    ];
    let mut absent = Vec::new();
    for telemetry in &settings.telemetry {
        match telemetry {
            Telemetry::None => {}
            Telemetry::Inline => pairs.push(Pair {
                name: "telemetry inline",
                role: Role::Measured,
                telemetry: Telemetry::Inline,
            }),
            Telemetry::Asynchronous => absent.push(Absent {
                group: GROUP.to_owned(),
                name: "telemetry asynchronous".to_owned(),
                reason: "Outrider writes access logs off the workers, and has no tracer yet: inline telemetry is both"
                    .to_owned(),
            }),
        }
    }
    say("starting the sidecars");
    let folder = tempfile::Builder::new().prefix("outrider-lab-").tempdir()?;
    let upstream = start_upstream(&mut rig)?;
    let sink = start_telemetry_sink(&folder.path().join("telemetry.sock"))?;
    let servers = own_addresses(pairs.len())?;
    let clients = own_addresses(pairs.len())?;
    let mut digests = Vec::new();
    for (index, pair) in pairs.iter().enumerate() {
        let document = json!([
            manager("client", pair.telemetry),
            manager("server", pair.telemetry)
        ]);
        digests.push((
            index,
            hexadecimal(Sha256::new_with_prefix(document.to_string())),
        ));
    }
    let mut sidecar = |side: &str, listeners: Vec<Listener>, clusters: Vec<Value>| {
        let mut document = bootstrap(listeners, None, true);
        add_clusters(&mut document, clusters)?;
        add_clusters(&mut document, [pipe_cluster(SINK, sink.socket())])?;
        let own = folder.path().join(side);
        fs::create_dir(&own)?;
        let file = own.join("bootstrap.json");
        fs::write(&file, document.to_string())?;
        let mut options = Options::new(&workshop.envoy, file);
        options.module_folder = Some(workshop.modules.clone());
        rig.start_envoy(&format!("{side} sidecar"), options)
    };
    let listener = |address: SocketAddr, side: &str, cluster: String, telemetry| Listener {
        cluster,
        manager: manager(side, telemetry),
        ..Listener::new(address, Answers::Upstream, Vec::new())
    };
    let server = sidecar(
        "server",
        pairs
            .iter()
            .zip(&servers)
            .map(|(pair, address)| listener(*address, "server", "echo".to_owned(), pair.telemetry))
            .collect(),
        vec![cluster("echo", upstream)],
    )?;
    let client = sidecar(
        "client",
        pairs
            .iter()
            .zip(&clients)
            .enumerate()
            .map(|(index, (pair, address))| {
                listener(
                    *address,
                    "client",
                    format!("server-{index}"),
                    pair.telemetry,
                )
            })
            .collect(),
        servers
            .iter()
            .enumerate()
            .map(|(index, address)| cluster(&format!("server-{index}"), *address))
            .collect(),
    )?;
    let collector = rig.watch_own_thread("collector", sink.thread_id())?;
    rig.is_shared = true;
    let open = |address: SocketAddr| -> anyhow::Result<Session> {
        let options = SessionOptions {
            connections: scenario.connections,
            ..SessionOptions::default()
        };
        let target = Target::parse(&format!("http://{address}/"))?;
        Ok(Session::open(&target, &options)?)
    };
    let request = RequestTemplate::get("/")
        .header("host", "echo.test")
        .header("x-echo-size", "1024");
    for ((pair, address), (_, digest)) in pairs.iter().zip(clients).zip(digests) {
        let processes = match pair.telemetry {
            Telemetry::None => vec![client, server],
            Telemetry::Inline | Telemetry::Asynchronous => vec![client, server, collector],
        };
        rig.subjects.push(Subject {
            variant: Variant {
                group: GROUP.to_owned(),
                about: ABOUT.to_owned(),
                name: pair.name.to_owned(),
                role: pair.role,
                configuration: digest,
                note: note(pair.telemetry).to_owned(),
            },
            session: open(address)?,
            requests: vec![request.clone()],
            processes,
            meanwhile: None,
        });
    }
    rig.subjects.push(Subject {
        variant: Variant {
            group: GROUP.to_owned(),
            about: ABOUT.to_owned(),
            name: "no sidecar".to_owned(),
            role: Role::Measured,
            configuration: hexadecimal(Sha256::new()),
            note: "straight to the echo service; its CPU time and the generator's do not count"
                .to_owned(),
        },
        session: open(upstream)?,
        requests: vec![request],
        processes: Vec::new(),
        meanwhile: None,
    });
    rig.keep.push(Box::new(sink));
    rig.keep.push(Box::new(folder));
    say("looking for the highest rate");
    let capacity = capacity(&mut rig)?;
    say(&format!(
        "sidecars without telemetry serve {capacity:.0} requests a second"
    ));
    let rates = (1..=settings.rates)
        .map(|number| {
            let share = settings.up_to * number as f64 / settings.rates as f64;
            (capacity * share / 10.0).round().max(1.0) * 10.0
        })
        .collect();
    Ok(Prepared {
        rig,
        pace: Pace {
            cpu_slice: Duration::from_millis(scenario.cpu_slice_ms),
            latency: scenario.latency,
            rates,
            rate_slice: Duration::from_millis(settings.slice_ms),
        },
        pairs: Vec::new(),
        absent,
        cumulative: Vec::new(),
        measures: Vec::new(),
        stages: Vec::new(),
    })
}

/// Requests a second of the baseline at full load: the best of some slices, since a disturbance only lowers it.
fn capacity(rig: &mut Rig) -> anyhow::Result<f64> {
    rig.place_generator()?;
    rig.warm_up()?;
    let subject = rig.subjects.first_mut().context("no sidecars")?;
    let load = Load {
        pacing: Pacing::closed(CAPACITY),
        requests: subject.requests.clone(),
    };
    let mut best = 0.0_f64;
    for _ in 0..CAPACITY_SLICES {
        let outcome = subject.session.run(&load)?;
        let seconds = outcome.elapsed as f64 / 1e9;
        best = best.max(outcome.total().succeeded as f64 / seconds.max(1e-9));
    }
    Ok(best)
}

fn note(telemetry: Telemetry) -> &'static str {
    match telemetry {
        Telemetry::None => "",
        Telemetry::Inline => {
            "each sidecar: Envoy's OpenTelemetry access log with 19 attributes, and its tracer at 100 %; the collector's CPU \
             time counts"
        }
        Telemetry::Asynchronous => "each sidecar: Outrider's access log and tracer",
    }
}

/// Attributes of the access log, as Istio's default format has them.
const ATTRIBUTES: [(&str, &str); 19] = [
    ("start_time", "%START_TIME%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    (
        "upstream_service_time",
        "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
    ),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("authority", "%REQ(:AUTHORITY)%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("route_name", "%ROUTE_NAME%"),
];

/// Fields of the HTTP connection manager of a sidecar.
fn manager(side: &str, telemetry: Telemetry) -> Map<String, Value> {
    let mut manager = Map::new();
    if telemetry != Telemetry::Inline {
        return manager;
    }
    let service = json!({ "envoy_grpc": { "cluster_name": SINK }, "timeout": "5s" });
    let attributes: Vec<Value> = ATTRIBUTES
        .iter()
        .map(|(key, format)| json!({ "key": key, "value": { "string_value": format } }))
        .collect();
    manager.insert("generate_request_id".to_owned(), json!(true));
    manager.insert(
        "access_log".to_owned(),
        json!([{
            "name": "open-telemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
                "common_config": {
                    "log_name": side, "transport_api_version": "V3", "grpc_service": service,
                },
                "attributes": { "values": attributes },
            },
        }]),
    );
    manager.insert(
        "tracing".to_owned(),
        json!({
            "random_sampling": { "value": 100 },
            "provider": {
                "name": "open-telemetry",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                    "grpc_service": service,
                    "service_name": side,
                },
            },
        }),
    );
    manager
}
