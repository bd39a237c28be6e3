//! `gateway.access_log`: where requests are written down, and in which form.
//!
//! Envoy finds an unknown operator only when the listener is made, and tells no place: the operators of a format are
//! compared with those that it knows.

use outrider_yaml::{Field, Location, Node, Shape, Value as Tree, suggest};

use super::{Context, Origin};
use crate::model::{self, Text};
use crate::plan::{AccessLog, LogFormat};

/// One request's line: when, what, how it ended and why, sizes, times, who, where to.
const DEFAULT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION%ms \
\"%REQ(:AUTHORITY)%\" \"%REQ(USER-AGENT)%\" %REQ(X-REQUEST-ID)% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% \
%UPSTREAM_CLUSTER% %UPSTREAM_HOST%\n";

/// Envoy's command operators of 1.40 that take neither parameters nor a length.
const PLAIN: &[&str] = &[
    "ACCESS_LOG_TYPE",
    "BYTES_RECEIVED",
    "BYTES_RETRANSMITTED",
    "BYTES_SENT",
    "CONNECTION_ID",
    "CONNECTION_TERMINATION_DETAILS",
    "CUSTOM_FLAGS",
    "DOWNSTREAM_CX_RTT",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "DOWNSTREAM_DETECTED_CLOSE_TYPE",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID",
    "DOWNSTREAM_DIRECT_LOCAL_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS",
    "DOWNSTREAM_DIRECT_REMOTE_PORT",
    "DOWNSTREAM_HANDSHAKE_DURATION",
    "DOWNSTREAM_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_HEADER_BYTES_SENT",
    "DOWNSTREAM_LOCAL_ADDRESS",
    "DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID",
    "DOWNSTREAM_LOCAL_CLOSE_REASON",
    "DOWNSTREAM_LOCAL_DNS_SAN",
    "DOWNSTREAM_LOCAL_EMAIL_SAN",
    "DOWNSTREAM_LOCAL_IP_SAN",
    "DOWNSTREAM_LOCAL_OTHERNAME_SAN",
    "DOWNSTREAM_LOCAL_PORT",
    "DOWNSTREAM_LOCAL_SUBJECT",
    "DOWNSTREAM_LOCAL_URI_SAN",
    "DOWNSTREAM_PEER_CERT",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256",
    "DOWNSTREAM_PEER_CHAIN_SERIALS",
    "DOWNSTREAM_PEER_DNS_SAN",
    "DOWNSTREAM_PEER_EMAIL_SAN",
    "DOWNSTREAM_PEER_FINGERPRINT_1",
    "DOWNSTREAM_PEER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_IP_SAN",
    "DOWNSTREAM_PEER_ISSUER",
    "DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_ISSUER_SERIAL",
    "DOWNSTREAM_PEER_OTHERNAME_SAN",
    "DOWNSTREAM_PEER_SERIAL",
    "DOWNSTREAM_PEER_SUBJECT",
    "DOWNSTREAM_PEER_URI_SAN",
    "DOWNSTREAM_REMOTE_ADDRESS",
    "DOWNSTREAM_REMOTE_PORT",
    "DOWNSTREAM_TLS_CIPHER",
    "DOWNSTREAM_TLS_GROUP",
    "DOWNSTREAM_TLS_SESSION_ID",
    "DOWNSTREAM_TLS_VERSION",
    "DOWNSTREAM_TRANSPORT_FAILURE_REASON",
    "DOWNSTREAM_WIRE_BYTES_RECEIVED",
    "DOWNSTREAM_WIRE_BYTES_SENT",
    "DURATION",
    "FILTER_CHAIN_NAME",
    "GRPC_STATUS_NUMBER",
    "HOSTNAME",
    "LOCAL_REPLY_BODY",
    "PACKETS_RETRANSMITTED",
    "PROTOCOL",
    "REQUEST_DURATION",
    "REQUEST_HEADERS_BYTES",
    "REQUEST_TX_DURATION",
    "RESPONSE_CODE",
    "RESPONSE_DURATION",
    "RESPONSE_FLAGS",
    "RESPONSE_FLAGS_LONG",
    "RESPONSE_HEADERS_BYTES",
    "RESPONSE_TRAILERS_BYTES",
    "RESPONSE_TX_DURATION",
    "ROUNDTRIP_DURATION",
    "ROUTE_NAME",
    "ROUTE_RESOLUTION_COUNT",
    "ROUTE_RESOLUTION_TIME_US",
    "SPAN_ID",
    "STREAM_ID",
    "TLS_JA3_FINGERPRINT",
    "TLS_JA4_FINGERPRINT",
    "TRACE_ID",
    "UNIQUE_ID",
    "UPSTREAM_CLUSTER",
    "UPSTREAM_CLUSTER_RAW",
    "UPSTREAM_CONNECTION_ID",
    "UPSTREAM_CONNECTION_IDS_ATTEMPTED",
    "UPSTREAM_CONNECTION_POOL_READY_DURATION",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "UPSTREAM_DETECTED_CLOSE_TYPE",
    "UPSTREAM_HEADER_BYTES_RECEIVED",
    "UPSTREAM_HEADER_BYTES_SENT",
    "UPSTREAM_HOST",
    "UPSTREAM_HOSTS_ATTEMPTED",
    "UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT",
    "UPSTREAM_HOST_NAME",
    "UPSTREAM_HOST_NAMES_ATTEMPTED",
    "UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT",
    "UPSTREAM_HOST_NAME_WITHOUT_PORT",
    "UPSTREAM_LOCAL_ADDRESS",
    "UPSTREAM_LOCAL_CLOSE_REASON",
    "UPSTREAM_LOCAL_DNS_SAN",
    "UPSTREAM_LOCAL_IP_SAN",
    "UPSTREAM_LOCAL_PORT",
    "UPSTREAM_LOCAL_URI_SAN",
    "UPSTREAM_PEER_CERT",
    "UPSTREAM_PEER_DNS_SAN",
    "UPSTREAM_PEER_IP_SAN",
    "UPSTREAM_PEER_ISSUER",
    "UPSTREAM_PEER_SUBJECT",
    "UPSTREAM_PEER_URI_SAN",
    "UPSTREAM_PROTOCOL",
    "UPSTREAM_REMOTE_ADDRESS",
    "UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID",
    "UPSTREAM_REMOTE_PORT",
    "UPSTREAM_REQUEST_ATTEMPT_COUNT",
    "UPSTREAM_SERVER_NAME",
    "UPSTREAM_TLS_CIPHER",
    "UPSTREAM_TLS_GROUP",
    "UPSTREAM_TLS_SESSION_ID",
    "UPSTREAM_TLS_VERSION",
    "UPSTREAM_TRANSPORT_FAILURE_REASON",
    "UPSTREAM_WIRE_BYTES_RECEIVED",
    "UPSTREAM_WIRE_BYTES_SENT",
    "VIRTUAL_CLUSTER_NAME",
];

/// Those that may have parameters.
const OPTIONAL: &[&str] = &[
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_PEER_CERT_V_END",
    "DOWNSTREAM_PEER_CERT_V_START",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "EMIT_TIME",
    "EMIT_TIME_LOCAL",
    "GRPC_STATUS",
    "PATH",
    "QUERY_PARAMS",
    "REQUESTED_SERVER_NAME",
    "RESPONSE_CODE_DETAILS",
    "START_TIME",
    "START_TIME_LOCAL",
    "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "UPSTREAM_PEER_CERT_V_END",
    "UPSTREAM_PEER_CERT_V_START",
    "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
];

/// Those that need parameters.
const WITH_PARAMETERS: &[&str] = &[
    "CEL",
    "CLUSTER_METADATA",
    "COALESCE",
    "COMMON_DURATION",
    "DYNAMIC_METADATA",
    "ENVIRONMENT",
    "FILTER_STATE",
    "METADATA",
    "QUERY_PARAM",
    "REQ",
    "REQUEST_HEADER",
    "RESP",
    "RESPONSE_HEADER",
    "RESPONSE_TRAILER",
    "TRAILER",
    "UPSTREAM_FILTER_STATE",
    "UPSTREAM_METADATA",
];

/// All operators of Envoy that may stand alone.
pub fn operators() -> impl Iterator<Item = &'static str> {
    PLAIN.iter().chain(OPTIONAL).copied()
}

/// Where requests are written down; `None`: nowhere.
pub(super) fn read(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Shape<Text, model::AccessLog>>,
) -> Option<AccessLog> {
    let (target, format) = match field.value()? {
        Shape::Text(word) if word.0 == "off" => return None,
        Shape::Text(word) => (&word.0, LogFormat::Text(DEFAULT_FORMAT.to_owned())),
        Shape::Mapping(log) => {
            let owner = field.location().unwrap_or_default();
            let path = context.required(origin, owner, "the access log", "path", &log.path);
            let format = format(context, origin, log);
            (&path?.value.0, format)
        }
    };
    Some(AccessLog {
        path: (target != "stdout").then(|| context.loader.absolute(&origin.join(target))),
        format,
    })
}

fn format(context: &mut Context<'_>, origin: &Origin, log: &model::AccessLog) -> LogFormat {
    if let (Some(_), Some(location)) = (log.format.location(), log.json_format.location()) {
        context.problem(
            origin,
            location,
            "the access log has two formats",
            "remove `format` or `json_format`",
        );
    }
    if let Some(node) = log.json_format.value() {
        if node
            .as_mapping()
            .is_none_or(|keys| keys.entries().is_empty())
        {
            context.problem(
                origin,
                node.location,
                format!("expected a mapping of keys, found {}", node.describe()),
                "write keys with texts: `{path: \"%REQ(:PATH)%\", status: \"%RESPONSE_CODE%\"}`",
            );
        }
        check_node(context, origin, node);
        let serde_json::Value::Object(object) = node.to_json() else {
            return LogFormat::Json(serde_json::Map::new());
        };
        return LogFormat::Json(object);
    }
    let Some(line) = log.format.get() else {
        return LogFormat::Text(DEFAULT_FORMAT.to_owned());
    };
    check_operators(context, origin, line.location, &line.value.0);
    let end = if line.value.0.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    LogFormat::Text(format!("{}{end}", line.value.0))
}

fn check_node(context: &mut Context<'_>, origin: &Origin, node: &Node) {
    match &node.value {
        Tree::String(text) => check_operators(context, origin, node.location, text),
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

/// Tells what Envoy would refuse in a format.
fn check_operators(context: &mut Context<'_>, origin: &Origin, location: Location, text: &str) {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            continue;
        }
        let is_name =
            |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
        let end = after.find(|letter| !is_name(letter)).unwrap_or(after.len());
        let (name, behind) = after.split_at_checked(end).unwrap_or((after, ""));
        let Some(closed) = end_of_operator(behind) else {
            let begin: String = after.chars().take(20).collect();
            context.problem(
                origin,
                location,
                format!("the operator `%{begin}` is not closed"),
                "write operators as `%NAME%` or `%NAME(…)%`, and a percent sign as `%%`",
            );
            return;
        };
        let problem = if PLAIN.contains(&name) {
            (!behind.starts_with('%')).then(|| {
                let message = format!("the operator `%{name}%` takes no parameters and no length");
                (message, format!("write `%{name}%`"))
            })
        } else if OPTIONAL.contains(&name) {
            None
        } else if WITH_PARAMETERS.contains(&name) {
            (!behind.starts_with('(') || behind.starts_with("()")).then(|| {
                let message = format!("the operator `%{name}%` needs parameters");
                let mend = format!("write `%{name}(…)%`, such as `%REQ(USER-AGENT)%`");
                (message, mend)
            })
        } else {
            let near = suggest(name, operators().chain(WITH_PARAMETERS.iter().copied()));
            let mend = near.map_or_else(
                || "its page \"Access Logging\" has the list".to_owned(),
                |near| format!("did you mean `%{near}%`?"),
            );
            Some((format!("Envoy has no operator `%{name}%`"), mend))
        };
        if let Some((message, mend)) = problem {
            context.problem(origin, location, message, mend);
        }
        rest = closed;
    }
}

/// Returns the text after an operator, given the text after the operator's name; `None` if the operator is not closed.
/// Parameters may hold percent signs (START_TIME) and brackets (CEL): they end at the first `)` that closes the operator.
fn end_of_operator(behind: &str) -> Option<&str> {
    let Some(parameters) = behind.strip_prefix('(') else {
        return after_length(behind);
    };
    let ends = parameters.match_indices(')');
    let mut rests = ends.filter_map(|(place, _)| parameters.get(place + 1..));
    rests.find_map(after_length)
}

/// Returns the text after the closing `%`, or after a length and that: `:20%`.
fn after_length(text: &str) -> Option<&str> {
    let text = match text.strip_prefix(':') {
        Some(length) => {
            let rest = length.trim_start_matches(|digit: char| digit.is_ascii_digit());
            (rest.len() < length.len()).then_some(rest)?
        }
        None => text,
    };
    text.strip_prefix('%')
}
