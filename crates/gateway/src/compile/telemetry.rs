//! `telemetry`: sinks, and the access logs in force at the gateway, on projects and on routes.

use std::collections::BTreeMap;

use outrider_plugin_formats::{
    AccessLog, AccessLogFilter, AccessLogFormat, FileSink, OtlpSink, RouteTelemetry, Sink,
    Telemetry,
};
use outrider_telemetry::format::operators;
use outrider_telemetry::{FormatProblem, parse_text};
use outrider_yaml::{Entries, Field, Located, Location, Node, Shape, Value as Tree, suggest};

use super::routes::exactly_one;
use super::{Context, Origin, known_names};
use crate::model::Text;
use crate::model::telemetry::{self as model, ScopeTelemetry};

/// Access logs in force, by name.
pub(super) type AccessLogs = BTreeMap<String, AccessLog>;

/// What a scope says of access logs.
type Said = Field<Entries<Field<Shape<Text, model::AccessLog>>>>;

/// Reads the gateway's telemetry.
pub(super) fn of_gateway(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<model::Telemetry>,
) -> Option<Telemetry> {
    let telemetry = field.value()?;
    let milliseconds = |field: &Field<crate::model::Duration>| {
        let value = field.value()?.0;
        Some(u32::try_from(value).unwrap_or(u32::MAX))
    };
    let mut sinks = BTreeMap::new();
    for (name, sink) in telemetry.sinks.value().into_iter().flat_map(|all| &all.0) {
        let read = match sink.get() {
            Some(sink) => self::sink(context, origin, name, sink),
            // What is wrong has been told: the name counts all the same.
            None => Some(Sink::Stdout),
        };
        let place = name.location;
        if let Some(read) = read
            && sinks.insert(name.value.clone(), read).is_some()
        {
            context.problem(
                origin,
                place,
                format!("two sinks have the name `{}`", name.value),
                "give one of them another name",
            );
        }
    }
    let mut document = Telemetry {
        ring: telemetry.ring.value().map(|size| size.0),
        scheduling: telemetry.scheduling.value().copied().unwrap_or_default(),
        starvation_ms: milliseconds(&telemetry.starvation),
        flush_ms: milliseconds(&telemetry.flush),
        sinks,
        access_logs: Vec::new(),
    };
    let logs = narrow(
        context,
        origin,
        &telemetry.access_logs,
        &AccessLogs::new(),
        Some(&document),
    );
    document.access_logs = logs.into_values().collect();
    Some(document)
}

/// Reads what a project or a route says, over the access logs of the wider scope. `None`: it says nothing.
pub(super) fn of_scope(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<ScopeTelemetry>,
    wider: &AccessLogs,
    gateway: Option<&Telemetry>,
) -> Option<AccessLogs> {
    let said = field.value()?;
    if said.access_logs.is_missing() {
        return None;
    }
    Some(narrow(context, origin, &said.access_logs, wider, gateway))
}

/// The gateway's access logs, by name.
pub(super) fn access_logs(gateway: Option<&Telemetry>) -> AccessLogs {
    let logs = gateway.map_or(&[][..], |gateway| &gateway.access_logs);
    logs.iter()
        .map(|log| (log.name.clone(), log.clone()))
        .collect()
}

/// What a document says of the access logs in force.
pub(super) fn document(logs: &AccessLogs) -> RouteTelemetry {
    RouteTelemetry {
        access_logs: logs.values().cloned().collect(),
    }
}

fn narrow(
    context: &mut Context<'_>,
    origin: &Origin,
    said: &Said,
    wider: &AccessLogs,
    gateway: Option<&Telemetry>,
) -> AccessLogs {
    let mut logs = wider.clone();
    let mut seen: BTreeMap<&str, Location> = BTreeMap::new();
    for (name, log) in said.value().into_iter().flat_map(|all| &all.0) {
        if let Some(first) = seen.insert(&name.value, name.location) {
            context.problem(
                origin,
                name.location,
                format!(
                    "two access logs have the name `{}`, the other is on line {}",
                    name.value, first.line
                ),
                "give one of them another name",
            );
        }
        let Some(log) = log.get() else {
            continue;
        };
        match &log.value {
            Shape::Text(word) if word.0 == "off" => {
                if logs.remove(&name.value).is_none() {
                    context.problem(
                        origin,
                        log.location,
                        format!(
                            "there is nothing to turn off: no wider scope has the access log `{}`",
                            name.value
                        ),
                        known_names(
                            &name.value,
                            wider.keys().map(String::as_str),
                            "gateway.telemetry.access_logs",
                        ),
                    );
                }
            }
            Shape::Text(word) => context.problem(
                origin,
                log.location,
                format!("expected `off` or a mapping, found `{}`", word.0),
                "write `off`, or `{sink: a-sink}`",
            ),
            Shape::Mapping(form) => {
                let read = access_log(context, origin, name, form, wider, gateway);
                if let Some(read) = read {
                    logs.insert(name.value.clone(), read);
                }
            }
        }
    }
    logs
}

fn access_log(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    form: &model::AccessLog,
    wider: &AccessLogs,
    gateway: Option<&Telemetry>,
) -> Option<AccessLog> {
    let before = wider.get(&name.value);
    let what = format!("the access log `{}`", name.value);
    let sink = match before {
        Some(before) if form.sink.is_missing() => Some(before.sink.clone()),
        _ => {
            let sink = context.required(origin, name.location, &what, "sink", &form.sink)?;
            let known = || {
                let sinks = gateway.into_iter().flat_map(|gateway| gateway.sinks.keys());
                sinks.map(String::as_str)
            };
            if !known().any(|known| known == sink.value.0) {
                let names: Vec<&str> = known().collect();
                let mend = known_names(
                    &sink.value.0,
                    names.iter().copied(),
                    "gateway.telemetry.sinks",
                );
                let message = format!("there is no sink `{}`", sink.value.0);
                context.problem(origin, sink.location, message, mend);
            }
            Some(sink.value.0.clone())
        }
    }?;
    let given = format(context, origin, form);
    let format = given
        .or_else(|| before.map(|before| before.format.clone()))
        .unwrap_or_default();
    let only = match form.only.get() {
        None => before.and_then(|before| before.only.clone()),
        Some(only) => Some(self::only(context, origin, only)),
    };
    let or_before =
        |own: Option<u32>, get: fn(&AccessLog) -> Option<u32>| own.or(before.and_then(get));
    Some(AccessLog {
        name: name.value.clone(),
        sink,
        format,
        only,
        sample: or_before(form.sample.value().map(|part| part.0), |log| log.sample),
        value_limit: or_before(form.value_limit.value().map(|size| size.0), |log| {
            log.value_limit
        }),
    })
}

fn only(
    context: &mut Context<'_>,
    origin: &Origin,
    only: &Located<model::Only>,
) -> AccessLogFilter {
    let ranges = only.value.status.value().into_iter().flatten();
    let filter = AccessLogFilter {
        errors: only.value.errors.value().copied().unwrap_or(false),
        slower_than_ms: only
            .value
            .slower_than
            .value()
            .map(|span| u32::try_from(span.0).unwrap_or(u32::MAX)),
        status: ranges
            .filter_map(Field::value)
            .map(model::StatusForm::range)
            .collect(),
    };
    let is_wrong = [
        matches!(only.value.errors, Field::Wrong(_)),
        matches!(only.value.slower_than, Field::Wrong(_)),
        matches!(only.value.status, Field::Wrong(_)),
    ];
    let wrong_status = only.value.status.value().into_iter().flatten();
    let has_wrong = is_wrong.contains(&true)
        || wrong_status
            .into_iter()
            .any(|status| matches!(status, Field::Wrong(_)));
    if filter == AccessLogFilter::default() && !has_wrong {
        context.problem(
            origin,
            only.location,
            "`only` has no condition, so that no request is recorded",
            "write `errors: true`, `slower_than: 1s` or `status: [5xx]`, or remove `only`",
        );
    }
    filter
}

fn format(
    context: &mut Context<'_>,
    origin: &Origin,
    form: &model::AccessLog,
) -> Option<AccessLogFormat> {
    if let (Some(_), Some(location)) = (form.text.location(), form.json.location()) {
        context.problem(
            origin,
            location,
            "the access log has two formats",
            "remove `text` or `json`",
        );
    }
    if let Some(node) = form.json.value() {
        let what = match node.as_mapping() {
            None => Some(format!("expected a mapping, found {}", node.describe())),
            Some(keys) => keys
                .entries()
                .is_empty()
                .then(|| "the format has no keys".to_owned()),
        };
        if let Some(what) = what {
            context.problem(
                origin,
                node.location,
                what,
                "write keys with texts: `{path: \"%REQ(:PATH)%\", status: \"%RESPONSE_CODE%\"}`",
            );
        }
        check_node(context, origin, node);
        return Some(AccessLogFormat::Json(node.to_json()));
    }
    let line = form.text.get()?;
    check_text(context, origin, line.location, &line.value.0);
    let end = if line.value.0.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    Some(AccessLogFormat::Text(format!("{}{end}", line.value.0)))
}

fn check_node(context: &mut Context<'_>, origin: &Origin, node: &Node) {
    match &node.value {
        Tree::String(text) => check_text(context, origin, node.location, text),
        Tree::Sequence(items) => {
            for item in items {
                check_node(context, origin, item);
            }
        }
        Tree::Mapping(keys) => {
            for entry in keys.entries() {
                check_node(context, origin, &entry.value);
            }
        }
        Tree::Null | Tree::Bool(_) | Tree::Integer(_) | Tree::Float(_) => {}
    }
}

fn check_text(context: &mut Context<'_>, origin: &Origin, location: Location, text: &str) {
    if let Err(FormatProblem { message, mend }) = parse_text(text) {
        // A name that is nearly one of those that there are.
        let name = message
            .split_once('%')
            .and_then(|(_, rest)| rest.split_once('%'));
        let near = name
            .filter(|_| message.contains("is not available"))
            .and_then(|(name, _)| suggest(name, operators()));
        let mend = near.map_or(mend, |near| format!("did you mean `%{near}%`?"));
        context.problem(origin, location, message, mend);
    }
}

fn sink(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    sink: &Located<Shape<Text, model::Sink>>,
) -> Option<Sink> {
    let form = match &sink.value {
        Shape::Text(word) if word.0 == "stdout" => return Some(Sink::Stdout),
        Shape::Text(word) => {
            context.problem(
                origin,
                sink.location,
                format!("expected `stdout` or a mapping, found `{}`", word.0),
                "write `stdout`, `{file: requests.log}` or `{otlp: \"http://127.0.0.1:4318/v1/logs\"}`",
            );
            return Some(Sink::Stdout);
        }
        Shape::Mapping(form) => form,
    };
    let what = format!("the sink `{}`", name.value);
    let fields = [
        ("file", form.file.location()),
        ("otlp", form.otlp.location()),
    ];
    if !exactly_one(context, origin, sink.location, &what, &fields) {
        return Some(Sink::Stdout);
    }
    let of_files = [
        ("rotate_at", form.rotate_at.location()),
        ("keep", form.keep.location()),
    ];
    let of_receivers = [
        ("protocol", form.protocol.location()),
        ("headers", form.headers.location()),
        ("gzip", form.gzip.location()),
        ("ca", form.ca.location()),
        ("timeout", form.timeout.location()),
        ("queue", form.queue.location()),
        ("resource", form.resource.location()),
    ];
    let (foreign, own): (&[_], _) = if form.file.is_missing() {
        (&of_files, "otlp")
    } else {
        (&of_receivers, "file")
    };
    for (key, location) in foreign {
        if let Some(location) = location {
            context.problem(
                origin,
                *location,
                format!("a sink with `{own}` has no `{key}`"),
                format!("remove `{key}`"),
            );
        }
    }
    if let Some(path) = form.file.value() {
        return Some(Sink::File(FileSink {
            path: context.loader.absolute(&origin.join(&path.0)),
            rotate_at: form.rotate_at.value().map(|size| size.0.into()),
            keep: form.keep.value().map(|keep| keep.0),
        }));
    }
    let endpoint = form.otlp.get()?;
    check_endpoint(context, origin, endpoint);
    for (name, _) in form.headers.value().into_iter().flat_map(|all| &all.0) {
        if !model::is_header_name(&name.value) {
            context.problem(
                origin,
                name.location,
                format!("`{}` is no name of a header", name.value),
                "use letters, digits and hyphens",
            );
        }
    }
    let texts = |field: &Field<Entries<Field<Text>>>| {
        let entries = field.value().into_iter().flat_map(|all| &all.0);
        entries
            .filter_map(|(name, text)| Some((name.value.clone(), text.value()?.0.clone())))
            .collect()
    };
    Some(Sink::Otlp(OtlpSink {
        endpoint: endpoint.value.0.clone(),
        protocol: form.protocol.value().copied().unwrap_or_default(),
        headers: texts(&form.headers),
        gzip: form.gzip.value().copied().unwrap_or(false),
        ca: form
            .ca
            .value()
            .map(|path| context.loader.absolute(&origin.join(&path.0))),
        timeout_ms: form
            .timeout
            .value()
            .map(|span| u32::try_from(span.0).unwrap_or(u32::MAX)),
        queue: form.queue.value().map(|size| size.0),
        resource: texts(&form.resource),
    }))
}

fn check_endpoint(context: &mut Context<'_>, origin: &Origin, endpoint: &Located<Text>) {
    let text = &endpoint.value.0;
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let authority = rest.map(|rest| {
        rest.split_once('/')
            .map_or(rest, |(authority, _)| authority)
    });
    let is_good = authority.is_some_and(|authority| {
        let is_host = |host: &str| !host.is_empty() && !host.contains([' ', '@', '?', '#']);
        match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0)
            }
            _ => is_host(authority),
        }
    });
    if !is_good {
        context.problem(
            origin,
            endpoint.location,
            format!("`{text}` is no address of a receiver"),
            "write `http://` or `https://`, a host, and a port: `http://127.0.0.1:4318/v1/logs`",
        );
    }
}
