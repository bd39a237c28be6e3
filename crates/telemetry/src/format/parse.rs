//! Parsing of texts with Envoy's command operators.
//!
//! Envoy has some 150 operators, and hands an access logger of a module the values of fewer. An operator that is not here
//! is refused with its name: a format that is taken renders as Envoy renders it.

use std::fmt;

use super::time::TimeFormat;
use crate::event::{Address, HeaderMap, Number, Text};
use crate::record::Field;

/// The text of an access log that names no format: when, what, how it ended and why, sizes, times, who, where to.
pub const DEFAULT_TEXT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION%ms \
\"%REQ(:AUTHORITY)%\" \"%REQ(USER-AGENT)%\" %REQ(X-REQUEST-ID)% %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% \
%UPSTREAM_CLUSTER% %UPSTREAM_HOST%\n";

/// The 19 fields of an access log in JSON that names none.
const DEFAULT_JSON: [(&str, &str); 19] = [
    ("authority", "%REQ(:AUTHORITY)%"),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("duration", "%DURATION%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("route_name", "%ROUTE_NAME%"),
    ("start_time", "%START_TIME%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    (
        "upstream_service_time",
        "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
    ),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
];

/// The object of an access log in JSON that names no fields.
pub fn default_json() -> serde_json::Value {
    let fields = DEFAULT_JSON.iter();
    fields
        .map(|(key, value)| ((*key).to_owned(), serde_json::Value::from(*value)))
        .collect()
}

/// What is wrong with a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormatProblem {
    /// The fault, in the words of the format.
    pub message: String,
    /// The fix.
    pub mend: String,
}

impl fmt::Display for FormatProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message, self.mend)
    }
}

/// How the value of an operator follows from fields of the record, by their places.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Source {
    /// The text at the first place, else that at the second.
    Text(usize, Option<usize>),
    /// A text in which white space becomes `_`.
    Words(usize),
    Number(usize),
    /// A number that is 0 where it is absent.
    NumberOrZero(usize),
    /// A time of the stream, in whole milliseconds.
    Milliseconds(usize),
    /// From the first time to the second, in whole milliseconds.
    Between(usize, usize),
    Address(usize),
    AddressWithoutPort(usize),
    Port(usize),
    StartTime(usize, TimeFormat),
    Flags {
        place: usize,
        long: bool,
    },
    Metadata(usize),
    Constant(Box<str>),
}

/// An operator of a format.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value {
    pub(crate) source: Source,
    /// Bytes after which its text is cut.
    pub(crate) limit: Option<usize>,
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Literal(Box<str>),
    Value(Value),
}

/// A parsed text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Template(pub(crate) Vec<Piece>);

/// Checks a text with command operators.
///
/// # Errors
/// If an operator is unknown, has wrong parameters, or is not closed.
pub fn parse_text(text: &str) -> Result<(), FormatProblem> {
    Template::parse(text, &mut Vec::new()).map(|_| ())
}

impl Template {
    /// Parses a text; fields that it needs are added to `fields`.
    pub(crate) fn parse(text: &str, fields: &mut Vec<Field>) -> Result<Self, FormatProblem> {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            literal.push_str(before);
            if let Some(after) = after.strip_prefix('%') {
                literal.push('%');
                rest = after;
                continue;
            }
            let operator = Operator::split(after).ok_or_else(|| not_closed(after))?;
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal).into()));
            }
            let source = operator.source(fields)?;
            pieces.push(Piece::Value(Value {
                source,
                limit: operator.limit,
            }));
            rest = operator.rest;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Literal(literal.into()));
        }
        Ok(Self(pieces))
    }
}

fn not_closed(after: &str) -> FormatProblem {
    let begin: String = after.chars().take(20).collect();
    FormatProblem {
        message: format!("the operator `%{begin}` is not closed"),
        mend: "write operators as `%NAME%` or `%NAME(…)%`, and a percent sign as `%%`".to_owned(),
    }
}

/// An operator as it is written, and the text behind it.
struct Operator<'t> {
    name: &'t str,
    parameters: Option<&'t str>,
    limit: Option<usize>,
    rest: &'t str,
}

impl<'t> Operator<'t> {
    /// Splits what follows a percent sign; `None` if the operator is not closed.
    fn split(text: &'t str) -> Option<Self> {
        let is_name =
            |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
        let end = text.find(|letter| !is_name(letter))?;
        let (name, behind) = text.split_at_checked(end)?;
        let Some(inner) = behind.strip_prefix('(') else {
            let (limit, rest) = after_limit(behind)?;
            return Some(Self {
                name,
                parameters: None,
                limit,
                rest,
            });
        };
        // Parameters may hold percent signs and brackets: they end at the first `)` that closes the operator.
        inner.match_indices(')').find_map(|(place, _)| {
            let (limit, rest) = after_limit(inner.get(place + 1..)?)?;
            let parameters = inner.get(..place)?;
            Some(Self {
                name,
                parameters: Some(parameters),
                limit,
                rest,
            })
        })
    }

    fn wrong(&self, what: &str, mend: &str) -> FormatProblem {
        FormatProblem {
            message: format!("the operator `%{}%` {what}", self.name),
            mend: mend.to_owned(),
        }
    }

    fn no_parameters(&self) -> Result<(), FormatProblem> {
        if self.parameters.is_some() || self.limit.is_some() {
            let mend = format!("write `%{}%`", self.name);
            return Err(self.wrong("takes no parameters and no length", &mend));
        }
        Ok(())
    }

    fn parameters(&self) -> Result<&'t str, FormatProblem> {
        let parameters = self.parameters.filter(|parameters| !parameters.is_empty());
        parameters.ok_or_else(|| {
            self.wrong(
                "needs parameters",
                "write `%NAME(…)%`, such as `%REQ(USER-AGENT)%`",
            )
        })
    }

    fn header(&self, map: HeaderMap, fields: &mut Vec<Field>) -> Result<Source, FormatProblem> {
        let parameters = self.parameters()?;
        let mut names = parameters.split('?');
        let mut next = || {
            let name = names.next()?;
            (!name.is_empty()).then(|| {
                let name = name.to_ascii_lowercase().into_bytes();
                place(fields, Field::Header(map, name.into()))
            })
        };
        let (first, second) = (next(), next());
        match (first, names.next()) {
            (Some(first), None) => Ok(Source::Text(first, second)),
            _ => Err(self.wrong(
                "takes the name of a header, and of another for requests that lack it",
                "write `%REQ(X-NAME)%` or `%REQ(X-NAME?X-OTHER)%`",
            )),
        }
    }

    fn source(&self, fields: &mut Vec<Field>) -> Result<Source, FormatProblem> {
        match self.name {
            "REQ" | "REQUEST_HEADER" => return self.header(HeaderMap::Request, fields),
            "RESP" | "RESPONSE_HEADER" => return self.header(HeaderMap::Response, fields),
            "TRAILER" | "RESPONSE_TRAILER" => return self.header(HeaderMap::Trailer, fields),
            "START_TIME" => {
                let format = TimeFormat::parse(self.parameters.unwrap_or_default())?;
                let start = place(fields, Field::Number(Number::Start));
                return Ok(Source::StartTime(start, format));
            }
            "DYNAMIC_METADATA" => {
                let parameters = self.parameters()?;
                let Some((namespace, path)) = parameters.split_once(':') else {
                    return Err(self.wrong(
                        "takes a namespace and the path of a value",
                        "write `%DYNAMIC_METADATA(namespace:key)%`",
                    ));
                };
                // The parts of a path are joined by `:` in a format, and by `.` in Envoy's ABI.
                let path = path.replace(':', ".").into_bytes();
                let field = Field::Metadata(namespace.as_bytes().into(), path.into());
                return Ok(Source::Metadata(place(fields, field)));
            }
            "RESPONSE_CODE_DETAILS" => {
                let details = place(fields, Field::Text(Text::ResponseCodeDetails));
                return match self.parameters {
                    None | Some("") => Ok(Source::Words(details)),
                    Some("ALLOW_WHITESPACES") => Ok(Source::Text(details, None)),
                    Some(_) => Err(self.wrong(
                        "takes no parameter but `ALLOW_WHITESPACES`",
                        "write `%RESPONSE_CODE_DETAILS%`",
                    )),
                };
            }
            _ => {}
        }
        let Some(known) = plain(self.name) else {
            return Err(self.wrong(
                "is not available in `telemetry`",
                "docs/telemetry.md lists the operators; `gateway.access_log` has all of Envoy's",
            ));
        };
        self.no_parameters()?;
        Ok(match known {
            Plain::Text(text) => Source::Text(place(fields, Field::Text(text)), None),
            Plain::Words(text) => Source::Words(place(fields, Field::Text(text))),
            Plain::Number(number) => Source::Number(place(fields, Field::Number(number))),
            Plain::NumberOrZero(number) => {
                Source::NumberOrZero(place(fields, Field::Number(number)))
            }
            Plain::Milliseconds(number) => {
                Source::Milliseconds(place(fields, Field::Number(number)))
            }
            Plain::Between(from, to) => Source::Between(
                place(fields, Field::Number(from)),
                place(fields, Field::Number(to)),
            ),
            Plain::Address(address) => Source::Address(place(fields, Field::Address(address))),
            Plain::AddressWithoutPort(address) => {
                Source::AddressWithoutPort(place(fields, Field::Address(address)))
            }
            Plain::Port(address) => Source::Port(place(fields, Field::Address(address))),
            Plain::Flags(long) => Source::Flags {
                place: place(fields, Field::Number(Number::ResponseFlags)),
                long,
            },
            Plain::LogType => Source::Constant("DownstreamEnd".into()),
        })
    }
}

/// Returns a length, if there is one, and what follows the closing `%`.
fn after_limit(text: &str) -> Option<(Option<usize>, &str)> {
    if let Some(rest) = text.strip_prefix('%') {
        return Some((None, rest));
    }
    let (length, rest) = text.strip_prefix(':')?.split_once('%')?;
    Some((Some(length.parse().ok()?), rest))
}

/// The place of a field in a record, which it is added to unless it is there.
fn place(fields: &mut Vec<Field>, field: Field) -> usize {
    let found = fields.iter().position(|other| *other == field);
    found.unwrap_or_else(|| {
        fields.push(field);
        fields.len() - 1
    })
}

/// What an operator without parameters stands for.
#[derive(Clone, Copy)]
enum Plain {
    Text(Text),
    /// A text in which white space becomes `_`.
    Words(Text),
    Number(Number),
    NumberOrZero(Number),
    Milliseconds(Number),
    Between(Number, Number),
    Address(Address),
    AddressWithoutPort(Address),
    Port(Address),
    Flags(bool),
    LogType,
}

/// The operators without parameters, by name.
const OPERATORS: &[(&str, Plain)] = &[
    ("ACCESS_LOG_TYPE", Plain::LogType),
    ("BYTES_RECEIVED", Plain::Number(Number::BytesReceived)),
    ("BYTES_SENT", Plain::Number(Number::BytesSent)),
    ("CONNECTION_ID", Plain::Number(Number::ConnectionId)),
    (
        "CONNECTION_TERMINATION_DETAILS",
        Plain::Text(Text::ConnectionTerminationDetails),
    ),
    (
        "DOWNSTREAM_DIRECT_LOCAL_ADDRESS",
        Plain::Address(Address::DownstreamDirectLocal),
    ),
    (
        "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT",
        Plain::AddressWithoutPort(Address::DownstreamDirectLocal),
    ),
    (
        "DOWNSTREAM_DIRECT_LOCAL_PORT",
        Plain::Port(Address::DownstreamDirectLocal),
    ),
    (
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS",
        Plain::Address(Address::DownstreamDirectRemote),
    ),
    (
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
        Plain::AddressWithoutPort(Address::DownstreamDirectRemote),
    ),
    (
        "DOWNSTREAM_DIRECT_REMOTE_PORT",
        Plain::Port(Address::DownstreamDirectRemote),
    ),
    (
        "DOWNSTREAM_LOCAL_ADDRESS",
        Plain::Address(Address::DownstreamLocal),
    ),
    (
        "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
        Plain::AddressWithoutPort(Address::DownstreamLocal),
    ),
    (
        "DOWNSTREAM_LOCAL_PORT",
        Plain::Port(Address::DownstreamLocal),
    ),
    (
        "DOWNSTREAM_PEER_SUBJECT",
        Plain::Text(Text::DownstreamPeerSubject),
    ),
    (
        "DOWNSTREAM_REMOTE_ADDRESS",
        Plain::Address(Address::DownstreamRemote),
    ),
    (
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
        Plain::AddressWithoutPort(Address::DownstreamRemote),
    ),
    (
        "DOWNSTREAM_REMOTE_PORT",
        Plain::Port(Address::DownstreamRemote),
    ),
    (
        "DOWNSTREAM_TLS_VERSION",
        Plain::Text(Text::DownstreamTlsVersion),
    ),
    (
        "DOWNSTREAM_TRANSPORT_FAILURE_REASON",
        Plain::Words(Text::DownstreamTransportFailure),
    ),
    ("DURATION", Plain::Milliseconds(Number::Complete)),
    ("PROTOCOL", Plain::Text(Text::Protocol)),
    (
        "REQUESTED_SERVER_NAME",
        Plain::Text(Text::RequestedServerName),
    ),
    (
        "REQUEST_HEADERS_BYTES",
        Plain::NumberOrZero(Number::RequestHeadersBytes),
    ),
    (
        "REQUEST_TX_DURATION",
        Plain::Milliseconds(Number::LastUpstreamSent),
    ),
    ("RESPONSE_CODE", Plain::NumberOrZero(Number::ResponseCode)),
    (
        "RESPONSE_DURATION",
        Plain::Milliseconds(Number::FirstUpstreamReceived),
    ),
    ("RESPONSE_FLAGS", Plain::Flags(false)),
    ("RESPONSE_FLAGS_LONG", Plain::Flags(true)),
    (
        "RESPONSE_HEADERS_BYTES",
        Plain::NumberOrZero(Number::ResponseHeadersBytes),
    ),
    (
        "RESPONSE_TRAILERS_BYTES",
        Plain::NumberOrZero(Number::ResponseTrailersBytes),
    ),
    (
        "RESPONSE_TX_DURATION",
        Plain::Between(Number::FirstUpstreamReceived, Number::LastDownstreamSent),
    ),
    ("ROUTE_NAME", Plain::Text(Text::RouteName)),
    ("SPAN_ID", Plain::Text(Text::SpanId)),
    ("TRACE_ID", Plain::Text(Text::TraceId)),
    ("UPSTREAM_CLUSTER", Plain::Text(Text::UpstreamCluster)),
    (
        "UPSTREAM_CONNECTION_ID",
        Plain::NumberOrZero(Number::UpstreamConnectionId),
    ),
    ("UPSTREAM_HOST", Plain::Text(Text::UpstreamHost)),
    (
        "UPSTREAM_LOCAL_ADDRESS",
        Plain::Text(Text::UpstreamLocalAddress),
    ),
    ("UPSTREAM_PROTOCOL", Plain::Text(Text::UpstreamProtocol)),
    (
        "UPSTREAM_REQUEST_ATTEMPT_COUNT",
        Plain::NumberOrZero(Number::UpstreamAttempts),
    ),
    (
        "UPSTREAM_TLS_VERSION",
        Plain::Text(Text::UpstreamTlsVersion),
    ),
    (
        "UPSTREAM_TRANSPORT_FAILURE_REASON",
        Plain::Words(Text::UpstreamTransportFailure),
    ),
    (
        "UPSTREAM_WIRE_BYTES_RECEIVED",
        Plain::NumberOrZero(Number::UpstreamWireBytesReceived),
    ),
    (
        "UPSTREAM_WIRE_BYTES_SENT",
        Plain::NumberOrZero(Number::UpstreamWireBytesSent),
    ),
    ("VIRTUAL_CLUSTER_NAME", Plain::Text(Text::VirtualCluster)),
];

fn plain(name: &str) -> Option<Plain> {
    let place = OPERATORS
        .binary_search_by_key(&name, |(name, _)| name)
        .ok()?;
    OPERATORS.get(place).map(|(_, plain)| *plain)
}

/// Operators that telemetry renders, by name: those without parameters, then those with.
pub fn operators() -> impl Iterator<Item = &'static str> {
    let plain = OPERATORS.iter().map(|(name, _)| *name);
    plain.chain([
        "DYNAMIC_METADATA",
        "REQ",
        "REQUEST_HEADER",
        "RESP",
        "RESPONSE_CODE_DETAILS",
        "RESPONSE_HEADER",
        "RESPONSE_TRAILER",
        "START_TIME",
        "TRAILER",
    ])
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_JSON, DEFAULT_TEXT, OPERATORS, operators, parse_text};

    #[test]
    fn operators_are_sorted_and_known() {
        assert!(OPERATORS.is_sorted_by_key(|(name, _)| *name));
        for name in operators() {
            let text = match name {
                "DYNAMIC_METADATA" => "%DYNAMIC_METADATA(a:b:c)%".to_owned(),
                "REQ" | "RESP" | "TRAILER" | "REQUEST_HEADER" | "RESPONSE_HEADER"
                | "RESPONSE_TRAILER" => format!("%{name}(X-A?X-B):5%"),
                _ => format!("%{name}%"),
            };
            assert_eq!(parse_text(&text), Ok(()), "{text}");
        }
    }

    #[test]
    fn default_formats_are_valid() {
        assert_eq!(parse_text(DEFAULT_TEXT), Ok(()));
        assert!(DEFAULT_JSON.is_sorted_by_key(|(key, _)| *key));
        for (_, text) in DEFAULT_JSON {
            assert_eq!(parse_text(text), Ok(()));
        }
    }

    #[test]
    fn wrong_format_is_refused_with_its_operator() {
        for (text, part) in [
            ("a %NOPE% b", "`%NOPE%` is not available"),
            ("%DURATION", "`%DURATION` is not closed"),
            ("%DURATION(1)%", "`%DURATION%` takes no parameters"),
            ("%DURATION:3%", "`%DURATION%` takes no parameters"),
            ("%REQ%", "`%REQ%` needs parameters"),
            ("%REQ()%", "`%REQ%` needs parameters"),
            ("%REQ(A?B?C)%", "`%REQ%` takes the name"),
            ("%START_TIME(%Q)%", "`%Q`"),
            ("%DYNAMIC_METADATA(a)%", "takes a namespace"),
            ("50 % of it", "is not closed"),
        ] {
            let problem = parse_text(text).unwrap_err();
            assert!(problem.message.contains(part), "{text}: {problem}");
        }
        assert_eq!(
            parse_text("100 %% %START_TIME(%H:%M)% (%REQ(A):3%)"),
            Ok(())
        );
    }
}
