//! Values that are written as one word: what they have to look like, and what they mean.
//!
//! A complaint has the form `what is wrong; how to mend it`, which `outrider-yaml` takes apart.

mod re2;

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use outrider_plugin_formats::StatusRange;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Visitor};

/// A type that is read from text by a function, with the words for what is expected and its JSON
/// Schema.
macro_rules! text_types {
    ($($(#[$comment:meta])* $name:ident($content:ty) = $parse:path, $expected:literal, $schema:tt;)*) => {
        $(
            $(#[$comment])*
            #[derive(Debug, Clone)]
            pub(crate) struct $name(pub(crate) $content);

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let visitor = TextVisitor {
                        expected: $expected,
                        parse: |text| $parse(text),
                    };
                    deserializer.deserialize_str(visitor).map(Self)
                }
            }

            impl JsonSchema for $name {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!($schema)
                }
            }
        )*
    };
}

struct TextVisitor<T> {
    expected: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }
}

text_types! {
    /// Text that is not empty.
    Text(String) = not_empty, "a string", {"type": "string", "minLength": 1};
    /// A name of one's own for a listener, a project, a route.
    Name(String) = name, "a string", {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]*$"};
    /// A plugin's name.
    PluginName(String) = plugin_name, "a plugin's name", {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"};
    /// A path of a URL, or its beginning.
    Path(String) = path, "a path, like `/cart`", {"type": "string", "pattern": "^/"};
    /// A regular expression that RE2 and the `regex` crate both take.
    Regex(String) = regex, "a string", {"type": "string", "format": "regex"};
    /// A method, in capitals.
    Method(String) = method, "a method, like `GET`", {"type": "string", "pattern": "^[A-Z][A-Z-]*$"};
    /// The name of a protocol to upgrade to, in lower case.
    Upgrade(String) = upgrade, "the name of a protocol, like `websocket`", {"type": "string", "examples": ["websocket"]};
    /// A header's name in lower case.
    HeaderName(String) = header_name, "a header's name", {"type": "string", "pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"};
    /// A host, or a pattern of hosts, in lower case.
    HostPattern(String) = host_pattern, "a host, like `shop.example.com`", {"type": "string", "minLength": 1};
    /// IP address and port.
    IpAddress(SocketAddr) = ip_address, "an IP address with a port, like `127.0.0.1:8080`", {"type": "string", "examples": ["127.0.0.1:8080", "[::1]:8080"]};
    /// Host and port.
    Address(HostAndPort) = host_and_port, "a host with a port, like `127.0.0.1:8080`", {"type": "string", "examples": ["127.0.0.1:8080", "host.name:80"]};
    /// A range of IP addresses.
    AddressRange(IpNet) = address_range, "a range of IP addresses, like `10.0.0.0/8`", {"type": "string", "examples": ["10.0.0.0/8", "192.0.2.7", "fd00::/8"]};
    /// A span of time in milliseconds.
    Duration(u64) = duration, "a duration with its unit, like `5s`", {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"};
    /// A label of a name in DNS, as Kubernetes names services and namespaces (RFC 1123).
    DnsLabel(String) = dns_label, "a name in lower case", {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63};
    /// Labels of DNS, joined by dots.
    DnsName(String) = dns_name, "a name in lower case", {"type": "string", "pattern": "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", "maxLength": 253};
    /// The value of a label in Kubernetes.
    LabelValue(String) = label_value, "the value of a label", {"type": "string", "pattern": "^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$", "maxLength": 63};
    /// A part of all, in millionths.
    Percent(u32) = percent, "a part in per cent, like `10%`", {"type": "string", "pattern": "^[0-9]+([.][0-9]{1,4})?%$"};
    /// A range of status codes.
    Status(StatusRange) = status, "a status, like `404`, `5xx` or `400-499`", {"type": "string", "pattern": "^([1-5]xx|[1-5][0-9]{2}(-[1-5][0-9]{2})?)$"};
    /// A size in bytes.
    Size(u32) = size, "a size with its unit, like `1MiB`", {"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$"};
}

/// A host and a port to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostAndPort {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number<const LEAST: u32, const MOST: u32>(pub(crate) u32);

struct NumberVisitor<const LEAST: u32, const MOST: u32>;

impl<const LEAST: u32, const MOST: u32> Visitor<'_> for NumberVisitor<LEAST, MOST> {
    type Value = Number<LEAST, MOST>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {LEAST} to {MOST}")
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Self::Value, E> {
        u32::try_from(value)
            .ok()
            .filter(|value| (LEAST..=MOST).contains(value))
            .map(Number)
            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Unsigned(value), &self))
    }
}

impl<'de, const LEAST: u32, const MOST: u32> Deserialize<'de> for Number<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u32(NumberVisitor)
    }
}

impl<const LEAST: u32, const MOST: u32> JsonSchema for Number<LEAST, MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Number_{LEAST}_{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": LEAST, "maximum": MOST})
    }
}

fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("this text is empty; write something".to_owned());
    }
    no_control(text)?;
    Ok(text.to_owned())
}

fn no_control(text: &str) -> Result<(), String> {
    // Tabs are what a person may well want in an access log's format.
    match text
        .chars()
        .find(|letter| letter.is_control() && !matches!(letter, '\t' | '\n'))
    {
        Some(letter) => Err(format!(
            "the control character U+{:04X} may not be here; remove it",
            u32::from(letter)
        )),
        None => Ok(()),
    }
}

/// Checks the name of anything but a plugin.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let right = text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'));
    if right {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "`{text}` is no name; use letters, digits, `-`, `_` and `.`, beginning with a letter or digit"
        ))
    }
}

/// Checks an upstream's name, which may be one of Istio's: `outbound|80||reviews.shop.svc.cluster.local`.
pub(crate) fn upstream_name(text: &str) -> Result<String, String> {
    name(&text.replace('|', "-")).map(|_| text.to_owned()).map_err(|_| {
        format!(
            "`{text}` is no name of an upstream; use letters, digits, `-`, `_`, `.` and `|`, beginning with a letter or \
             digit"
        )
    })
}

/// Checks a label of DNS (RFC 1123).
pub(crate) fn dns_label(text: &str) -> Result<String, String> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let right = (1..=63).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if right {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "`{text}` is no name in Kubernetes; use at most 63 lower-case letters, digits and hyphens, beginning and ending \
             with a letter or digit"
        ))
    }
}

fn dns_name(text: &str) -> Result<String, String> {
    if text.len() > 253 {
        return Err("this name is longer than 253 bytes; shorten it".to_owned());
    }
    for label in text.split('.') {
        dns_label(label)?;
    }
    Ok(text.to_owned())
}

fn label_value(text: &str) -> Result<String, String> {
    let is_end = |letter: Option<char>| letter.is_none_or(|letter| letter.is_ascii_alphanumeric());
    let right = text.len() <= 63
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && text
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'));
    if right {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "`{text}` is no value of a label; use at most 63 letters, digits, `-`, `_` and `.`, beginning and ending with a \
             letter or digit"
        ))
    }
}

/// Checks a plugin's name.
pub(crate) fn plugin_name(text: &str) -> Result<String, String> {
    let right = !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-');
    if right {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "`{text}` is no name of a plugin; use lower-case letters, digits and hyphens"
        ))
    }
}

fn path(text: &str) -> Result<String, String> {
    if !text.starts_with('/') {
        return Err(format!(
            "the path `{text}` does not begin with `/`; write `/{text}`"
        ));
    }
    no_control(text)?;
    if let Some(letter) = text
        .chars()
        .find(|letter| letter.is_whitespace() || *letter == '#')
    {
        return Err(format!(
            "the path `{text}` holds `{letter}`, which no request's path has; write it in its percent-encoded form"
        ));
    }
    Ok(text.to_owned())
}

fn regex(text: &str) -> Result<String, String> {
    match regex::Regex::new(text) {
        Ok(_) => match re2::refusal(text) {
            None => Ok(text.to_owned()),
            Some(why) => Err(format!(
                "`{text}` is no regular expression of RE2, which Envoy uses: {why}"
            )),
        },
        Err(regex::Error::Syntax(why)) => {
            // The last line says what, the others draw it.
            let why = why
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ");
            Err(format!(
                "`{text}` is no regular expression: {why}; Envoy uses RE2, which has no look-around and no back-references"
            ))
        }
        Err(why) => Err(format!("`{text}` is no usable regular expression: {why}")),
    }
}

fn upgrade(text: &str) -> Result<String, String> {
    let name = text.to_ascii_lowercase();
    if ["connect", "connect-ip", "connect-udp", "h2c"].contains(&&*name) || name.starts_with("tls")
    {
        return Err(format!(
            "Outrider does not upgrade connections to `{text}`; write `websocket`, or another protocol of HTTP/1.1's \
             `upgrade` header"
        ));
    }
    let is_token = |letter: char| letter.is_ascii_alphanumeric() || "-._/".contains(letter);
    if name.is_empty() || !name.chars().all(is_token) {
        return Err(format!(
            "`{text}` is not the name of a protocol; write it as in the `upgrade` header, like `websocket`"
        ));
    }
    Ok(name)
}

fn method(text: &str) -> Result<String, String> {
    let right = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|letter| letter.is_ascii_uppercase() || letter == '-')
    };
    if right(text) {
        return Ok(text.to_owned());
    }
    let upper = text.to_ascii_uppercase();
    Err(if right(&upper) {
        format!("the method `{text}` is not in capitals; write `{upper}`")
    } else {
        format!("`{text}` is no method; write one like `GET`")
    })
}

/// Checks a header's name; the result is in lower case.
pub(crate) fn header_name(text: &str) -> Result<String, String> {
    let right = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
    if right {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!(
            "`{text}` is no name of a header; use letters, digits and `-`"
        ))
    }
}

fn host_pattern(text: &str) -> Result<String, String> {
    let host = text.to_ascii_lowercase();
    let inner = host
        .strip_prefix('*')
        .or_else(|| host.strip_suffix('*'))
        .unwrap_or(&host);
    if inner.contains('*') {
        return Err(format!(
            "the host `{text}` has a `*` that is not at one of its ends; write `*` once, first or last"
        ));
    }
    if host.contains("://") {
        return Err(format!(
            "`{text}` is a URL; write the host alone, without scheme and path"
        ));
    }
    if host.starts_with('[') {
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        return match address.map(str::parse::<std::net::Ipv6Addr>) {
            Some(Ok(_)) => Ok(host),
            _ => Err(format!(
                "`{text}` is no host; write an IPv6 address as `[::1]`"
            )),
        };
    }
    if let Some((name, port)) = host.rsplit_once(':')
        && port.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Err(format!(
            "the host `{text}` has a port, and ports count for nothing here; write `{name}`"
        ));
    }
    let right = !host.is_empty()
        && inner
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if right {
        Ok(host)
    } else {
        Err(format!(
            "`{text}` is no host; write a name like `shop.example.com`, `*.example.com` or `*`"
        ))
    }
}

fn ip_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        let example = SocketAddr::new(address, 8080);
        return Err(format!(
            "the address `{text}` has no port; write it like `{example}`"
        ));
    }
    if let Some(("localhost", port)) = text.rsplit_once(':') {
        return Err(format!(
            "the address `{text}` has a name where an IP address has to be; write `127.0.0.1:{port}`"
        ));
    }
    Err(format!(
        "`{text}` is no IP address with a port; write it like `127.0.0.1:8080` or `[::1]:8080`"
    ))
}

fn host_and_port(text: &str) -> Result<HostAndPort, String> {
    let wrong = |why: &str| {
        format!(
            "the address `{text}` {why}; write it like `127.0.0.1:8080`, `[::1]:8080` or `host.name:8080`"
        )
    };
    if text.contains("://") {
        return Err(wrong("is a URL"));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(wrong("has no port"));
    };
    let port = port
        .parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| wrong("has no port from 1 to 65535"))?;
    let host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(inner) if inner.parse::<std::net::Ipv6Addr>().is_ok() => inner,
        Some(_) => return Err(wrong("has no IPv6 address in its brackets")),
        None => host,
    };
    let is_address = host.parse::<IpAddr>().is_ok();
    let is_name = !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    // `1.2.3` and `300.1.1.1` are meant as addresses and would be looked up as names.
    let looks_like_address = host
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    if is_address || (is_name && !looks_like_address) {
        Ok(HostAndPort {
            host: host.to_owned(),
            port,
        })
    } else {
        Err(wrong("has no IP address and no host name"))
    }
}

/// A single address is the range of that one.
fn address_range(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    // The address has to be one for the standard library, too: `010.0.0.0` is ten to some, and eight to others.
    let address = text.split('/').next().unwrap_or_default();
    let range = address.parse::<IpAddr>().ok();
    let Some(range) = range.and_then(|_| text.parse::<IpNet>().ok()) else {
        return Err(format!(
            "`{text}` is no range of IP addresses; write an address, or its beginning and how many bits of it count: \
             `10.0.0.0/8`"
        ));
    };
    if range.trunc() != range {
        return Err(format!(
            "the address of `{text}` has more bits than count; write `{}`",
            range.trunc()
        ));
    }
    Ok(range)
}

fn duration(text: &str) -> Result<u64, String> {
    const MOST: u64 = 365 * 24 * 3600 * 1000;
    let wrong = || {
        format!(
            "`{text}` is no duration; write a whole number and a unit: `250ms`, `5s`, `1m`, `1h`"
        )
    };
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text.strip_prefix(digits) {
        Some("ms") => 1,
        Some("s") => 1000,
        Some("m") => 60_000,
        Some("h") => 3_600_000,
        _ => return Err(wrong()),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(factor)
        .filter(|milliseconds| *milliseconds <= MOST)
        .ok_or_else(|| format!("the duration `{text}` is more than a year; write a shorter one"))
}

fn percent(text: &str) -> Result<u32, String> {
    let wrong =
        || format!("`{text}` is no part in per cent; write `10%`, or `0.1%` for one of a thousand");
    let number = text.strip_suffix('%').ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let has_point = number.contains('.');
    if whole.is_empty()
        || !is_digits(whole)
        || !is_digits(fraction)
        || fraction.len() > 4
        || (has_point && fraction.is_empty())
    {
        return Err(wrong());
    }
    let whole: u32 = whole.parse().map_err(|_| wrong())?;
    let fraction: u32 = format!("{fraction:0<4}").parse().map_err(|_| wrong())?;
    whole
        .checked_mul(10_000)
        .and_then(|parts| parts.checked_add(fraction))
        .filter(|parts| *parts <= 1_000_000)
        .ok_or_else(|| format!("`{text}` is more than all; write at most `100%`"))
}

fn status(text: &str) -> Result<StatusRange, String> {
    let wrong = || format!("`{text}` is no status; write `404`, `5xx` or `400-499`");
    let one = |text: &str| {
        let number: u16 = text.parse().ok()?;
        ((100..=599).contains(&number) && text.len() == 3).then_some(number)
    };
    let range = match (text.strip_suffix("xx"), text.split_once('-')) {
        (Some(class), _) => one(&format!("{class}00")).map(|from| (from, from + 99)),
        (None, Some((from, to))) => one(from).zip(one(to)),
        (None, None) => one(text).map(|status| (status, status)),
    };
    let (from, to) = range.ok_or_else(wrong)?;
    if from > to {
        return Err(format!(
            "`{text}` has no status in it; write the smaller one first"
        ));
    }
    Ok(StatusRange { from, to })
}

fn size(text: &str) -> Result<u32, String> {
    let wrong = || format!("`{text}` is no size; write a whole number and a unit: `64KiB`, `1MiB`");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor: u64 = match text.strip_prefix(digits) {
        Some("B") => 1,
        Some("KiB") => 1024,
        Some("MiB") => 1024 * 1024,
        Some("GiB") => 1024 * 1024 * 1024,
        _ => return Err(wrong()),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(factor)
        .and_then(|bytes| u32::try_from(bytes).ok())
        .filter(|bytes| (1024..=1 << 30).contains(bytes))
        .ok_or_else(|| format!("the size `{text}` is not from 1KiB to 1GiB; write one that is"))
}

#[cfg(test)]
mod tests {
    use super::{
        address_range, duration, header_name, host_and_port, host_pattern, ip_address, method,
        name, path, plugin_name, regex, size,
    };

    #[test]
    fn what_is_right() {
        for pattern in [
            r"/a/(\d+|[[:alpha:]_-]{1,1000})/?$",
            r"(?i)a\x{e9}\pL\p{Greek}[^a-z\s]*?",
            r"\bx\B",
        ] {
            assert_eq!(regex(pattern), Ok(pattern.to_owned()));
        }
        assert_eq!(
            address_range("10.0.0.0/8"),
            Ok("10.0.0.0/8".parse().unwrap())
        );
        assert_eq!(address_range("::1"), Ok("::1/128".parse().unwrap()));
        for wrong in [
            "",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0",
            "host",
            "010.0.0.0/8",
        ] {
            assert!(address_range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(duration("250ms"), Ok(250));
        assert_eq!(duration("0s"), Ok(0));
        assert_eq!(duration("2m"), Ok(120_000));
        assert_eq!(size("64KiB"), Ok(65536));
        assert_eq!(
            host_pattern("*.Shop.example"),
            Ok("*.shop.example".to_owned())
        );
        assert_eq!(host_pattern("shop.*"), Ok("shop.*".to_owned()));
        assert_eq!(host_pattern("[::1]"), Ok("[::1]".to_owned()));
        assert_eq!(header_name("X-A"), Ok("x-a".to_owned()));
        assert_eq!(
            host_and_port("[::1]:80").map(|address| address.host),
            Ok("::1".to_owned())
        );
        assert!(ip_address("[::1]:80").is_ok());
        assert!(host_and_port("service_a.local:80").is_ok());
    }

    #[test]
    fn what_is_wrong() {
        let mut complaints: Vec<String> = Vec::new();
        complaints.extend(
            ["5", "s", "1.5s", "-1s", "5 s", "5d", "99999999h"]
                .map(|text| duration(text).unwrap_err()),
        );
        complaints.extend(["64", "1MB", "10B", "9GiB", "MiB"].map(|text| size(text).unwrap_err()));
        complaints.extend(
            ["", "a.*.b", "**", "http://a", "a:80", "[x]", "a b"]
                .map(|text| host_pattern(text).unwrap_err()),
        );
        complaints.extend(
            ["127.0.0.1", "localhost:80", "x:1", "::1"].map(|text| ip_address(text).unwrap_err()),
        );
        complaints.extend(
            [
                "http://a:80",
                "a",
                "a:0",
                "a:99999",
                "300.1.1.1:80",
                "[z]:80",
                "::1:80",
                "a b:80",
            ]
            .iter()
            .filter_map(|text| host_and_port(text).err()),
        );
        complaints.extend(["cart", "/a b", "/a#b"].map(|text| path(text).unwrap_err()));
        complaints.extend(
            [
                "(",
                "(?=a)",
                "a{1000}{1000}{1000}",
                "a{1001}",
                "(a{40}){40}",
                "(?x)a",
                "[a&&b]",
                "[a[b]]",
                r"\u{e9}",
                r"\b{start}a",
                r"\p{scx=Greek}",
            ]
            .map(|text| regex(text).unwrap_err()),
        );
        complaints.extend(["get", "G T"].map(|text| method(text).unwrap_err()));
        complaints.extend(["", "-a", "a b"].map(|text| name(text).unwrap_err()));
        complaints.extend(["A", "a_b", "a-"].map(|text| plugin_name(text).unwrap_err()));
        complaints.extend(["", "a:b"].map(|text| header_name(text).unwrap_err()));
        insta::assert_snapshot!(complaints.join("\n"));
    }
}
