//! `gateway`: listeners and what holds for all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use outrider_plugin_formats::{PluginTime, Telemetry};
use outrider_yaml::{Field, Located};

use super::files::{Place, Source};
use super::{Context, Origin, access_log, scopes, telemetry, tls};
use crate::model::{self, Protocol, text};
use crate::plan::{AccessLog, ClientLimits, ClientTimeouts, Listener, Protocols, Use};

const DEFAULT_BODY_LIMIT: u32 = 1024 * 1024;
/// Requests at a time on one HTTP/2 connection, as Envoy recommends for an edge.
const DEFAULT_STREAMS: u32 = 100;

/// The gateway's own part of the plan.
pub(super) struct Built {
    pub(super) listeners: Vec<Listener>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) access_log: Option<AccessLog>,
    pub(super) telemetry: Option<Telemetry>,
    pub(super) plugin_logs: Option<String>,
    pub(super) plugin_time: PluginTime,
    pub(super) body_limit: u32,
    pub(super) trusted_hops: u32,
    pub(super) trusted_proxies: Vec<IpNet>,
    pub(super) timeouts: ClientTimeouts,
    pub(super) limits: ClientLimits,
    pub(super) workers: Option<u32>,
    pub(super) uses: Vec<Use>,
}

impl Default for Built {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            admin: None,
            access_log: None,
            telemetry: None,
            plugin_logs: None,
            plugin_time: PluginTime::default(),
            body_limit: DEFAULT_BODY_LIMIT,
            trusted_hops: 0,
            trusted_proxies: Vec::new(),
            timeouts: timeouts(None),
            limits: limits(None),
            workers: None,
            uses: Vec::new(),
        }
    }
}

pub(super) fn build(context: &mut Context<'_>, sources: &[Source]) -> Built {
    let Some((origin, gateway)) = sources
        .iter()
        .filter(|source| source.place != Place::Included)
        .find_map(|source| Some((&source.origin, source.file.gateway.get()?)))
    else {
        return Built::default();
    };
    let uses = scopes::read_uses(context, origin, &gateway.value.uses);
    let gateway_value = &gateway.value;
    let listeners = listeners(context, origin, gateway);
    let (trusted_hops, trusted_proxies) = trusted(context, origin, gateway_value);
    // A trusted proxy says by which scheme its client came.
    if trusted_hops > 0 {
        context.schemes.extend(["http", "https"]);
    }
    let admin = gateway_value.admin.get().map(|admin| {
        for listener in &listeners {
            if listener.address == admin.value.0 && admin.value.0.port() != 0 {
                context.problem(
                    origin,
                    admin.location,
                    format!(
                        "the admin interface has the address of the listener `{}`",
                        listener.name
                    ),
                    "choose another port for one of them",
                );
            }
        }
        admin.value.0
    });
    Built {
        admin,
        access_log: access_log::read(context, origin, &gateway_value.access_log),
        telemetry: telemetry::of_gateway(context, origin, &gateway_value.telemetry),
        plugin_logs: gateway_value
            .plugin_logs
            .value()
            .map(|folder| context.loader.absolute(&origin.join(&folder.0))),
        plugin_time: gateway_value
            .plugin_time
            .value()
            .copied()
            .unwrap_or_default(),
        body_limit: gateway_value
            .body_limit
            .value()
            .map_or(DEFAULT_BODY_LIMIT, |size| size.0),
        trusted_hops,
        trusted_proxies,
        timeouts: timeouts(gateway_value.timeouts.value()),
        limits: limits(gateway_value.limits.value()),
        workers: gateway_value.workers.value().map(|workers| workers.0),
        listeners,
        uses,
    }
}

/// How many proxies in front are trusted, and where they connect from.
fn trusted(
    context: &mut Context<'_>,
    origin: &Origin,
    gateway: &model::Gateway,
) -> (u32, Vec<IpNet>) {
    let hops = gateway.trusted_hops.value().map(|hops| hops.0);
    let Some(ranges) = gateway.trusted_proxies.get() else {
        return (hops.unwrap_or(0), Vec::new());
    };
    if hops == Some(0) {
        context.problem(
            origin,
            ranges.location,
            "`trusted_proxies` says who is trusted, and `trusted_hops: 0` that nobody is",
            "remove one of them",
        );
    }
    if ranges.value.is_empty() {
        context.problem(
            origin,
            ranges.location,
            "this list of proxies is empty",
            "name their addresses, or remove the key and `trusted_hops`: then the client is who connects",
        );
    }
    let ranges = ranges.value.iter().filter_map(Field::value);
    // Envoy refuses a range that is there twice.
    let ranges: BTreeSet<IpNet> = ranges.map(|range| range.0).collect();
    (hops.unwrap_or(1), ranges.into_iter().collect())
}

fn timeouts(written: Option<&model::ClientTimeouts>) -> ClientTimeouts {
    let of = |field: fn(&model::ClientTimeouts) -> &Field<text::Duration>, otherwise: u64| {
        let value = written.and_then(|written| field(written).value());
        value.map_or(otherwise, |time| time.0)
    };
    ClientTimeouts {
        request_headers: of(|written| &written.request_headers, 10_000),
        // That of Envoy's guide to proxies at the edge, as are the headers' and the next two, which are Envoy's own.
        request: of(|written| &written.request, 5 * 60 * 1000),
        stream_idle: of(|written| &written.stream_idle, 5 * 60 * 1000),
        idle: of(|written| &written.idle, 60 * 60 * 1000),
        max_stream_duration: of(|written| &written.max_stream_duration, 0),
        max_connection_duration: of(|written| &written.max_connection_duration, 0),
    }
}

fn limits(written: Option<&model::ClientLimits>) -> ClientLimits {
    ClientLimits {
        connections: written
            .and_then(|limits| limits.connections.value())
            .map(|limit| limit.0),
        concurrent_streams: written
            .and_then(|limits| limits.concurrent_streams.value())
            .map_or(DEFAULT_STREAMS, |limit| limit.0),
        heap_mib: written
            .and_then(|limits| limits.heap_mib.value())
            .map(|limit| limit.0),
    }
}

fn listeners(
    context: &mut Context<'_>,
    origin: &Origin,
    gateway: &Located<model::Gateway>,
) -> Vec<Listener> {
    let Some(list) = context.required(
        origin,
        gateway.location,
        "the gateway",
        "listeners",
        &gateway.value.listeners,
    ) else {
        return Vec::new();
    };
    if list.value.is_empty() {
        context.problem(
            origin,
            list.location,
            "the gateway has no listener",
            "add one: `- address: 127.0.0.1:8080`",
        );
    }
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut addresses: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    let mut listeners = Vec::new();
    for (index, listener) in list.value.iter().enumerate() {
        let Some(listener) = listener.get() else {
            continue;
        };
        let (name, place) = match listener.value.name.get() {
            Some(name) => (name.value.0.clone(), name.location),
            None => (format!("listener-{index}"), listener.location),
        };
        if let Some(line) = names.insert(name.clone(), place.line) {
            context.problem(
                origin,
                place,
                format!("two listeners have the name `{name}`, the other is on line {line}"),
                "give one of them another name",
            );
        }
        let address = context.required(
            origin,
            listener.location,
            "the listener",
            "address",
            &listener.value.address,
        );
        if let Some(address) = address
            && address.value.0.port() != 0
            && let Some(line) = addresses.insert(address.value.0, address.location.line)
        {
            context.problem(
                origin,
                address.location,
                format!(
                    "two listeners have the address {}, the other is on line {line}",
                    address.value.0
                ),
                "choose another port for one of them",
            );
        }
        let tls = listener
            .value
            .tls
            .get()
            .and_then(|tls| tls::of_listener(context, origin, &name, tls));
        let is_tls = !listener.value.tls.is_missing();
        (context.schemes).insert(if is_tls { "https" } else { "http" });
        let protocols = protocols(context, origin, &listener.value.protocols);
        if let Some(address) = address {
            listeners.push(Listener {
                name,
                address: address.value.0,
                tls,
                protocols,
                http10_default_host: listener
                    .value
                    .http10_default_host
                    .value()
                    .map(|host| host.0.clone()),
            });
        }
    }
    listeners
}

fn protocols(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Vec<Field<Protocol>>>,
) -> Protocols {
    let Some(list) = field.get() else {
        return Protocols::Both;
    };
    let has = |wanted: Protocol| {
        list.value
            .iter()
            .filter_map(Field::value)
            .any(|protocol| *protocol == wanted)
    };
    match (has(Protocol::Http1), has(Protocol::Http2)) {
        (true, false) => Protocols::Http1,
        (false, true) => Protocols::Http2,
        (true, true) => Protocols::Both,
        (false, false) => {
            if list.value.is_empty() {
                context.problem(
                    origin,
                    list.location,
                    "the listener serves no protocol",
                    "write `http1`, `http2`, or both; or remove the key",
                );
            }
            Protocols::Both
        }
    }
}
