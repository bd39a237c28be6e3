//! The headers that frame a message or belong to its connection, and the rules for changing them.
//!
//! Plugins of different people share connections to upstreams and clients. A message whose headers say
//! another length than its body has, or that name the connection's own options, would let one plugin write
//! into another request's bytes. So the proxy alone frames messages: [`crate::ChainRun`] keeps
//! `content-length` right or drops it, and no plugin changes the headers of the connection, in requests,
//! responses, replies or callouts. Both runtimes come through these rules, with or without a stream.
//!
//! The trap: `:method` frames, too. A response to `HEAD` has no body whatever it says, so a request that
//! becomes one, or stops being one, breaks its connection's framing.

use smallvec::SmallVec;

use crate::callout::CalloutFailure;
use crate::memory::MemoryExceeded;
use crate::phase::HeaderMap;
use crate::plugin::Reply;

/// Why a header cannot be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The map is not there in this phase.
    #[error("the headers are not there in this phase")]
    Absent,
    /// No message may carry such a name or value.
    #[error("a header's name must be a token of HTTP, and its value hold no line break and no NUL")]
    Unsendable,
    /// The header belongs to the connection.
    #[error(
        "`{0}` belongs to the connection or the proxy, and not to the message: plugins cannot add, change or remove it"
    )]
    Connection(&'static str),
    /// The header steers the proxy's router, and the plugin's permissions do not have it.
    #[error(
        "`{0}` steers Envoy's router, and the plugin may not set it; set the plugin's \
         `allow.router_headers: true` in outrider.yaml"
    )]
    Router(&'static str),
    /// A trailer that only headers may hold.
    #[error("`{0}` cannot be a trailer")]
    Trailer(&'static str),
    /// The value is no length, or a second one.
    #[error(
        "`content-length` must be one number of bytes; leave it out, and the proxy frames the body"
    )]
    Length,
    /// A pseudo header cannot have this value: its name, and the rule.
    #[error("`{0}` {1}")]
    Pseudo(&'static str, &'static str),
    /// The plugins' changes make the headers too large.
    #[error(
        "the headers would grow by more than {most} bytes through plugins on this stream",
        most = crate::MOST_HEADER_BYTES
    )]
    TooLarge,
    /// The plugin's memory account is full.
    #[error(transparent)]
    Memory(#[from] MemoryExceeded),
}

/// The rule for a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Plugins may change it.
    Plain,
    /// It belongs to the connection, or steers the proxy itself.
    Connection(&'static str),
    /// `content-length`
    Length,
    Method,
    Path,
    /// `:authority`, which Envoy also calls `host`.
    Authority,
    Scheme,
    Status,
    /// It steers the proxy's router: retries, time limits, hedging. For plugins with a permission.
    Router(&'static str),
    /// A pseudo header that no message of a plugin has.
    UnknownPseudo,
}

impl Rule {
    /// The rule for a header's name.
    #[inline]
    pub(crate) fn of(name: &[u8]) -> Self {
        // Most headers that plugins write begin so, and no known one but those of the router does.
        if name.first().is_some_and(|first| first | 0x20 == b'x') {
            return router_header(name);
        }
        Self::by_length(name)
    }

    fn by_length(name: &[u8]) -> Self {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            2 if is("te") => Self::Connection("te"),
            4 if is("host") => Self::Authority,
            5 if is(":path") => Self::Path,
            7 if is("trailer") => Self::Connection("trailer"),
            7 if is("upgrade") => Self::Connection("upgrade"),
            7 if is(":method") => Self::Method,
            7 if is(":scheme") => Self::Scheme,
            7 if is(":status") => Self::Status,
            9 if is(":protocol") => Self::Connection(":protocol"),
            10 if is("connection") => Self::Connection("connection"),
            10 if is("keep-alive") => Self::Connection("keep-alive"),
            10 if is(":authority") => Self::Authority,
            14 if is("content-length") => Self::Length,
            16 if is("proxy-connection") => Self::Connection("proxy-connection"),
            17 if is("transfer-encoding") => Self::Connection("transfer-encoding"),
            _ if name.first() == Some(&b':') => Self::UnknownPseudo,
            _ => Self::Plain,
        }
    }

    /// The rule for a header of one of a stream's maps: only requests have a `host` that is `:authority`, and only
    /// their headers steer the router.
    #[inline]
    pub(crate) fn in_map(map: HeaderMap, name: &[u8]) -> Self {
        match Self::of(name) {
            Self::Authority if map != HeaderMap::RequestHeaders && name.len() == 4 => Self::Plain,
            Self::Router(_) if map != HeaderMap::RequestHeaders => Self::Plain,
            rule => rule,
        }
    }

    /// Whether a header is one of a map: requests and responses have pseudo headers of their own, and trailers
    /// frame nothing.
    pub(crate) fn check_map(self, map: HeaderMap) -> Result<(), HeaderError> {
        let fits = match self {
            Self::Plain => true,
            Self::Connection(_) | Self::Length => {
                matches!(map, HeaderMap::RequestHeaders | HeaderMap::ResponseHeaders)
            }
            Self::Method | Self::Path | Self::Authority | Self::Scheme | Self::Router(_) => {
                map == HeaderMap::RequestHeaders
            }
            Self::Status => map == HeaderMap::ResponseHeaders,
            Self::UnknownPseudo => false,
        };
        match (fits, map) {
            (true, _) => Ok(()),
            (false, HeaderMap::RequestTrailers | HeaderMap::ResponseTrailers) => {
                Err(HeaderError::Trailer(self.name()))
            }
            (false, _) => Err(HeaderError::Pseudo(self.name(), "is none of this message")),
        }
    }

    /// The header's name, for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "header",
            Self::Connection(name) | Self::Router(name) => name,
            Self::Length => "content-length",
            Self::Method => ":method",
            Self::Path => ":path",
            Self::Authority => ":authority",
            Self::Scheme => ":scheme",
            Self::Status => ":status",
            Self::UnknownPseudo => "pseudo header",
        }
    }

    /// Checks the value of a pseudo header of a request or response.
    pub(crate) fn check(self, value: &[u8]) -> Result<(), HeaderError> {
        let fault = match self {
            Self::Plain | Self::Connection(_) | Self::Router(_) => return Ok(()),
            Self::Length => {
                return length(value).map(|_| ()).ok_or(HeaderError::Length);
            }
            Self::Method if is_token(value) => return Ok(()),
            Self::Method => "must be a token of HTTP",
            Self::Path if value == b"*" || (value.starts_with(b"/") && is_visible(value)) => {
                return Ok(());
            }
            Self::Path => "must begin with `/` and hold no spaces and no control characters",
            Self::Authority
                if is_visible(value) && !value.iter().any(|byte| b"/?#\\@,".contains(byte)) =>
            {
                return Ok(());
            }
            Self::Authority => {
                "must be a host, and a port if need be, without spaces and control characters"
            }
            Self::Scheme if is_scheme(value) => return Ok(()),
            Self::Scheme => "must be a scheme such as `http` or `https`",
            Self::Status if status(value).is_some() => return Ok(()),
            Self::Status => "must be a number from 200 to 599",
            Self::UnknownPseudo => "is none that a plugin may write",
        };
        Err(HeaderError::Pseudo(self.name(), fault))
    }
}

/// Beginning of the names of headers by which Envoy and its users talk.
const PROXY_PREFIX: &[u8; 8] = b"x-envoy-";

/// Headers that begin with `x-envoy-` and that Envoy only reports with: it does nothing else where a request has them on
/// its way to an upstream. Scripts that pass a client's headers on have some of them.
pub const REPORTING_HEADERS: [&str; 13] = [
    "x-envoy-attempt-count",
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
    "x-envoy-external-address",
    "x-envoy-internal",
    "x-envoy-ip-tags",
    "x-envoy-is-timeout-retry",
    "x-envoy-original-host",
    "x-envoy-original-method",
    "x-envoy-original-path",
    "x-envoy-original-url",
    "x-envoy-peer-metadata",
    "x-envoy-peer-metadata-id",
];

/// Headers with [`PROXY_PREFIX`] that steer Envoy's router, or another of its filters, by name.
const ROUTER_HEADERS: [&str; 18] = [
    "x-envoy-decorator-operation",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-fault-abort-grpc-request",
    "x-envoy-fault-abort-request",
    "x-envoy-fault-abort-request-percentage",
    "x-envoy-fault-delay-request",
    "x-envoy-fault-delay-request-percentage",
    "x-envoy-force-trace",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-max-retries",
    "x-envoy-original-dst-host",
    "x-envoy-retriable-header-names",
    "x-envoy-retriable-status-codes",
    "x-envoy-retry-grpc-on",
    "x-envoy-retry-on",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-rq-timeout-alt-response",
    "x-envoy-upstream-rq-timeout-ms",
];

/// For each value of this header Envoy's router makes statistics that are never freed.
const ALT_STAT_NAME: &str = "x-envoy-upstream-alt-stat-name";

/// The rule for a header that begins with `x`. Each that begins with `x-envoy-` and is not known to only report steers
/// the router, so that those of Envoys to come are among them.
#[inline]
fn router_header(name: &[u8]) -> Rule {
    let Some(prefix) = name.first_chunk() else {
        return Rule::Plain;
    };
    // All eight bytes at once: most names end here. What is another prefix after all is told apart by `steering`.
    let prefix = u64::from_le_bytes(*prefix);
    if prefix | LOWERCASE == u64::from_le_bytes(*PROXY_PREFIX) {
        steering(name)
    } else {
        Rule::Plain
    }
}

/// The bit of lower-case letters in each of eight bytes.
const LOWERCASE: u64 = 0x2020_2020_2020_2020;

#[cold]
fn steering(name: &[u8]) -> Rule {
    let is = |known: &&&str| name.eq_ignore_ascii_case(known.as_bytes());
    let has_prefix =
        (name.first_chunk::<8>()).is_some_and(|prefix| prefix.eq_ignore_ascii_case(PROXY_PREFIX));
    if !has_prefix || REPORTING_HEADERS.iter().any(|known| is(&known)) {
        return Rule::Plain;
    }
    if is(&&ALT_STAT_NAME) {
        return Rule::Connection(ALT_STAT_NAME);
    }
    let known = ROUTER_HEADERS.iter().find(is);
    Rule::Router(known.map_or("x-envoy-…", |known| *known))
}

/// The number of a `content-length`, or `None` if the value is no decimal number.
pub(crate) fn length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.len() < 19 && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}

/// The number of a status that a final response may have, or `None`.
pub(crate) fn status(value: &[u8]) -> Option<u16> {
    let number = length(value).filter(|_| value.len() == 3)?;
    u16::try_from(number)
        .ok()
        .filter(|number| is_final(*number))
}

/// Whether a status is one of a final response.
pub(crate) fn is_final(status: u16) -> bool {
    (200..=599).contains(&status)
}

/// Whether responses of a status have no body (RFC 9110, sections 15.3.5, 15.3.6 and 15.4.5).
pub(crate) fn has_no_body(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 205 | 304)
}

/// Whether requests of a method decide about the framing of the response, or of the connection.
pub(crate) fn frames(method: &[u8]) -> bool {
    method.eq_ignore_ascii_case(b"HEAD") || method.eq_ignore_ascii_case(b"CONNECT")
}

fn is_visible(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

fn is_scheme(value: &[u8]) -> bool {
    value.first().is_some_and(u8::is_ascii_alphabetic)
        && value
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

#[inline]
fn is_token(value: &[u8]) -> bool {
    // Names are short, and nearly all are tokens: all bytes are looked at, without a branch for each.
    !value.is_empty() && (value.iter()).fold(true, |all, byte| all & is_token_byte(*byte))
}

/// Longest name of a header, in bytes. Longer ones are in no message, and are not searched for.
pub(crate) const LONGEST_NAME: usize = 64 * 1024;

/// Checks whether a message may carry a header: its name is a token of HTTP (RFC 9110, section 5.6.2) or that
/// of a pseudo header, and its value holds no NUL and no line break, which would begin another header.
///
/// # Errors
/// [`HeaderError::Unsendable`]; [`HeaderError::TooLarge`], for headers that are larger than all that plugins may add,
/// whose bytes are not looked at.
#[inline]
pub fn check_sendable(name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
    if name.len() + value.len() > crate::MOST_HEADER_BYTES {
        return Err(HeaderError::TooLarge);
    }
    if !is_sendable(name, value) {
        return Err(HeaderError::Unsendable);
    }
    Ok(())
}

#[inline(never)]
fn is_sendable(name: &[u8], value: &[u8]) -> bool {
    is_token(name.strip_prefix(b":").unwrap_or(name)) && !holds_break(value)
}

/// Whether a value holds a byte that no value may; eight bytes at a time, the last of which overlap where
/// they do not come out even.
#[inline]
fn holds_break(value: &[u8]) -> bool {
    let zero_in = |word: u64| word.wrapping_sub(LOWS) & !word & HIGHS;
    let breaks = |word: u64| {
        // Values mostly have no byte as low as any of these, which is quickly seen.
        let lowest = LOWS * u64::from(b'\r' + 1);
        if word.wrapping_sub(lowest) & !word & HIGHS == 0 {
            return false;
        }
        let returns = LOWS * u64::from(b'\r');
        let newlines = LOWS * u64::from(b'\n');
        zero_in(word) | zero_in(word ^ returns) | zero_in(word ^ newlines) != 0
    };
    if let Some(last) = value.last_chunk::<8>() {
        let (words, _) = value.as_chunks::<8>();
        words.iter().any(|word| breaks(u64::from_le_bytes(*word)))
            || breaks(u64::from_le_bytes(*last))
    } else if let (Some(first), Some(last)) = (value.first_chunk(), value.last_chunk()) {
        let [first, last] = [first, last].map(|half| u64::from(u32::from_le_bytes(*half)));
        breaks(first | last << 32)
    } else {
        value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
    }
}

const LOWS: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Whether each byte may stand in a token; a table, for it is asked for every header that is set.
static IN_TOKEN: [bool; 256] = in_token();

#[expect(
    clippy::indexing_slicing,
    reason = "runs while this is compiled, where a wrong index is an error"
)]
const fn in_token() -> [bool; 256] {
    const OTHERS: &[u8] = b"!#$%&'*+-.^_`|~";
    let mut table = [false; 256];
    let mut index = 0;
    while index < table.len() {
        table[index] = (index as u8).is_ascii_alphanumeric();
        index += 1;
    }
    index = 0;
    while index < OTHERS.len() {
        table[OTHERS[index] as usize] = true;
        index += 1;
    }
    table
}

#[inline]
#[expect(
    clippy::indexing_slicing,
    reason = "the table has a place for every byte"
)]
fn is_token_byte(byte: u8) -> bool {
    IN_TOKEN[usize::from(byte)]
}

/// The headers of a callout as they are sent.
pub type SentHeaders<'a> = SmallVec<[(&'a [u8], &'a [u8]); 16]>;

/// The headers that a callout or an HTTP stream is sent with: those of the plugin, without the
/// connection's own, of which only `te: trailers` stays, and without a `content-length` that is not the
/// body's. `length` is the body's, or `None` if it follows in parts.
///
/// # Errors
/// [`CalloutFailure::MissingHeaders`], or [`CalloutFailure::BadHeader`] for one that no request may have.
pub fn request_headers<'a>(
    headers: &[(&'a [u8], &'a [u8])],
    body_length: Option<usize>,
) -> Result<SentHeaders<'a>, CalloutFailure> {
    let mut sent = SentHeaders::new();
    let (mut method, mut path, mut authority, mut scheme) = (false, false, false, false);
    for &(name, value) in headers {
        let rule = Rule::of(name);
        check_sendable(name, value).map_err(CalloutFailure::BadHeader)?;
        let seen = match rule {
            // Permissions are checked before.
            Rule::Plain | Rule::Router(_) => None,
            Rule::Connection("te") if value.eq_ignore_ascii_case(b"trailers") => None,
            Rule::Connection(_) => continue,
            Rule::Length => {
                if body_length.is_none() || length(value) != body_length.map(|length| length as u64)
                {
                    continue;
                }
                None
            }
            Rule::Method => Some(&mut method),
            Rule::Path => Some(&mut path),
            Rule::Authority => Some(&mut authority),
            Rule::Scheme => Some(&mut scheme),
            Rule::Status | Rule::UnknownPseudo => {
                let fault = HeaderError::Pseudo(rule.name(), "is none of a request");
                return Err(CalloutFailure::BadHeader(fault));
            }
        };
        rule.check(value).map_err(CalloutFailure::BadHeader)?;
        if rule == Rule::Method && value.eq_ignore_ascii_case(b"CONNECT") {
            let fault = HeaderError::Pseudo(":method", "cannot be `CONNECT` in a callout");
            return Err(CalloutFailure::BadHeader(fault));
        }
        if seen.is_some_and(|seen| std::mem::replace(seen, true)) {
            let fault = HeaderError::Pseudo(rule.name(), "is there twice");
            return Err(CalloutFailure::BadHeader(fault));
        }
        sent.push((name, value));
    }
    if method && path && authority {
        Ok(sent)
    } else {
        Err(CalloutFailure::MissingHeaders)
    }
}

/// The trailers that an HTTP stream is sent with: those of the plugin that may be trailers.
pub fn request_trailers<'a>(trailers: &[(&'a [u8], &'a [u8])]) -> SentHeaders<'a> {
    trailers
        .iter()
        .filter(|(name, value)| Rule::of(name) == Rule::Plain && is_sendable(name, value))
        .copied()
        .collect()
}

/// Makes a plugin's reply one that the proxy can frame: without headers of the connection, without a length
/// of its own, and without a body where its status has none.
pub(crate) fn clean_reply(reply: &mut Reply) {
    reply
        .headers
        .retain(|(name, value)| may_reply_with(name) && is_sendable(name, value));
    if has_no_body(reply.status) {
        reply.body.clear();
    }
}

fn may_reply_with(name: &[u8]) -> bool {
    matches!(Rule::of(name), Rule::Plain | Rule::Router(_)) || name.eq_ignore_ascii_case(b"host")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: [(&[u8], &[u8]); 3] = [
        (b":method", b"POST"),
        (b":path", b"/"),
        (b":authority", b"a.test"),
    ];

    fn with<'a>(extra: &[(&'a [u8], &'a [u8])]) -> Vec<(&'a [u8], &'a [u8])> {
        REQUEST.iter().chain(extra).copied().collect()
    }

    fn sent(extra: &[(&str, &str)], length: Option<usize>) -> Vec<String> {
        let extra: Vec<_> = extra
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect();
        request_headers(&with(&extra), length)
            .unwrap()
            .iter()
            .skip(REQUEST.len())
            .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.escape_ascii()))
            .collect()
    }

    #[test]
    fn names_with_a_rule_have_it_in_any_case() {
        let names = [
            "te",
            "host",
            ":path",
            "trailer",
            "upgrade",
            ":method",
            ":scheme",
            ":status",
            ":protocol",
            "connection",
            "keep-alive",
            ":authority",
            "content-length",
            "proxy-connection",
            "transfer-encoding",
            "x-envoy-upstream-alt-stat-name",
            ":other",
        ];
        for name in names {
            let rule = Rule::of(name.as_bytes());
            assert_ne!(rule, Rule::Plain, "{name}");
            assert_eq!(Rule::of(name.to_uppercase().as_bytes()), rule, "{name}");
        }
        for name in ["", "x-own", "t", "tee", "cookie", "user-agent", "priority"] {
            assert_eq!(Rule::of(name.as_bytes()), Rule::Plain, "{name}");
        }
    }

    #[test]
    fn request_headers_of_the_proxy_steer_its_router_unless_they_report() {
        for name in ROUTER_HEADERS {
            let upper = name.to_uppercase();
            let rule = Rule::in_map(HeaderMap::RequestHeaders, upper.as_bytes());
            assert_eq!(rule, Rule::Router(name));
            let rule = Rule::in_map(HeaderMap::ResponseHeaders, name.as_bytes());
            assert_eq!(rule, Rule::Plain, "{name}");
        }
        let unknown = Rule::of(b"x-envoy-of-2030");
        assert!(matches!(unknown, Rule::Router(_)));
        for name in REPORTING_HEADERS {
            assert_eq!(Rule::of(name.as_bytes()), Rule::Plain, "{name}");
        }
        assert_eq!(Rule::of(b"x-envoys"), Rule::Plain);
    }

    #[test]
    fn callout_headers_of_the_connection_are_dropped() {
        let headers = [
            ("transfer-encoding", "chunked"),
            ("Connection", "upgrade"),
            ("upgrade", "websocket"),
            ("TE", "gzip"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("x-envoy-upstream-alt-stat-name", "own"),
            ("x-own", "1"),
        ];
        assert_eq!(sent(&headers, Some(0)), ["te: trailers", "x-own: 1"]);
    }

    #[test]
    fn callout_length_that_is_not_the_bodys_is_dropped() {
        assert_eq!(
            sent(&[("content-length", "5")], Some(5)),
            ["content-length: 5"]
        );
        for (value, length) in [
            ("5", Some(4)),
            ("+5", Some(5)),
            ("5, 5", Some(5)),
            ("5", None),
        ] {
            assert_eq!(
                sent(&[("content-length", value)], length),
                [""; 0],
                "{value}"
            );
        }
    }

    #[test]
    fn callout_with_a_request_line_in_a_pseudo_header_is_refused() {
        for (name, value) in [
            (":method", "GET /x HTTP/1.1"),
            (":method", "CONNECT"),
            (":path", "/a b"),
            (":path", "a"),
            (":path", "/a\tb"),
            (":authority", "a b"),
            (":authority", "a/b"),
            (":scheme", "http://x"),
            (":status", "200"),
            (":other", "x"),
            ("x y", "1"),
            ("x", "a\r\nb: c"),
        ] {
            let mut headers = with(&[(name.as_bytes(), value.as_bytes())]);
            headers
                .retain(|(known, given)| *known != name.as_bytes() || *given == value.as_bytes());
            let failure = request_headers(&headers, Some(0)).unwrap_err();
            assert!(
                matches!(failure, CalloutFailure::BadHeader(_)),
                "{name} {value}: {failure}"
            );
        }
        let twice = with(&[(b"host", b"b.test")]);
        assert!(request_headers(&twice, Some(0)).is_err());
        assert_eq!(
            request_headers(&REQUEST[1..], Some(0)),
            Err(CalloutFailure::MissingHeaders)
        );
    }

    #[test]
    fn replies_have_no_framing_headers_and_no_body_where_their_status_has_none() {
        for (status, body) in [(200, &b"text"[..]), (204, b""), (205, b""), (304, b"")] {
            let mut reply = Reply {
                status,
                headers: [
                    ("content-length", "3"),
                    ("transfer-encoding", "chunked"),
                    ("connection", "close"),
                    (":status", "100"),
                    ("x", "a\nb"),
                    ("x-own", "1"),
                ]
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .into(),
                body: b"text".to_vec(),
                ..Reply::default()
            };
            clean_reply(&mut reply);
            assert_eq!(reply.headers, [(b"x-own".to_vec(), b"1".to_vec())]);
            assert_eq!(reply.body, body);
        }
    }

    #[test]
    fn statuses_are_those_of_final_responses() {
        for (text, number) in [
            ("200", Some(200)),
            ("599", Some(599)),
            ("101", None),
            ("600", None),
        ] {
            assert_eq!(status(text.as_bytes()), number);
        }
        for text in ["", "2", "0200", "+20", " 20", "2e2"] {
            assert_eq!(status(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn breaks_are_found_wherever_they_are() {
        for length in 0..=20 {
            assert!(!holds_break(&vec![b'x'; length]));
            assert!(!holds_break(&vec![0xff; length]));
            for place in 0..length {
                for byte in [0, b'\r', b'\n'] {
                    let mut value = vec![b'x'; length];
                    if let Some(found) = value.get_mut(place) {
                        *found = byte;
                    }
                    assert!(holds_break(&value), "{byte} at {place} of {length}");
                }
            }
        }
    }
}
