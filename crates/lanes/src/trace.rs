//! Trace ids in the headers by which tracing libraries pass them on.
//!
//! Sources of the formats: [W3C Trace Context](https://www.w3.org/TR/trace-context/) (`traceparent`),
//! [B3](https://github.com/openzipkin/b3-propagation) (`b3`, `x-b3-traceid`),
//! [Jaeger](https://www.jaegertracing.io/docs/1.76/sdk-migration/#propagation-format) (`uber-trace-id`), and Datadog's
//! `x-datadog-trace-id`, a decimal number. `x-request-id`, and any other header, is an id as it stands.
//!
//! The trap: a service may read one format and write another, so an id counts as a number where the format has one: 64 bits
//! in one header and the same 64 bits, filled up with zeros to 128, in another are the same trace.

/// Longest id in a header without a format, in bytes.
const LONGEST_TEXT: usize = 256;

/// The first 32 bits of ids whose requests are followed along the chain (`outrider lanes trace`): `outr` in ASCII.
pub const PROBE: u32 = 0x6f75_7472;

/// Header that carries the id of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carrier {
    /// `traceparent`.
    TraceParent,
    /// `b3`, in one header.
    B3,
    /// `x-b3-traceid`, of B3 in several headers.
    B3TraceId,
    /// `uber-trace-id`.
    Jaeger,
    /// `x-datadog-trace-id`.
    Datadog,
    /// Any other header, in lower case, whose whole value is the id.
    Header(String),
}

/// Id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceId<'a> {
    /// Of a format that has numbers of 64 or 128 bits; never 0.
    Number(u128),
    /// Bytes as they stand in the header.
    Text(&'a [u8]),
}

impl TraceId<'_> {
    /// The id, if it is one of a request that is followed.
    pub fn probe(self) -> Option<u128> {
        match self {
            Self::Number(number) if number >> 96 == u128::from(PROBE) => Some(number),
            _ => None,
        }
    }
}

impl Carrier {
    /// The carrier with this header, in any case.
    pub fn of_header(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "traceparent" => Self::TraceParent,
            "b3" => Self::B3,
            "x-b3-traceid" => Self::B3TraceId,
            "uber-trace-id" => Self::Jaeger,
            "x-datadog-trace-id" => Self::Datadog,
            other => Self::Header(other.to_owned()),
        }
    }

    /// Name of the header, in lower case.
    pub fn header(&self) -> &str {
        match self {
            Self::TraceParent => "traceparent",
            Self::B3 => "b3",
            Self::B3TraceId => "x-b3-traceid",
            Self::Jaeger => "uber-trace-id",
            Self::Datadog => "x-datadog-trace-id",
            Self::Header(name) => name,
        }
    }

    /// Returns the trace's id in a value of the header, or `None` if the value has none.
    pub fn trace_id<'a>(&self, value: &'a [u8]) -> Option<TraceId<'a>> {
        let value = value.trim_ascii();
        let number = match self {
            Self::TraceParent => traceparent(value)?,
            Self::B3 => hexadecimal(value.split(|byte| *byte == b'-').next()?)
                .filter(|_| value.contains(&b'-'))?,
            Self::B3TraceId => hexadecimal(value)?,
            Self::Jaeger => jaeger(value)?,
            Self::Datadog => datadog(value)?,
            Self::Header(_) => {
                let is_id = !value.is_empty() && value.len() <= LONGEST_TEXT;
                return is_id.then_some(TraceId::Text(value));
            }
        };
        (number > 0).then_some(TraceId::Number(number))
    }
}

/// `version-traceid-parentid-flags`, in lower case; later versions may have more behind it.
fn traceparent(value: &[u8]) -> Option<u128> {
    let (known, more) = value.split_first_chunk::<55>()?;
    if [known[2], known[35], known[52]] != [b'-'; 3] || known.starts_with(b"ff") {
        return None;
    }
    if !more.is_empty() && (known.starts_with(b"00") || more.first() != Some(&b'-')) {
        return None;
    }
    let [a, b] = [known[0], known[1]];
    let [c, d] = [known[53], known[54]];
    eight_digits([b'0', b'0', b'0', b'0', a, b, c, d], Case::Lower)?;
    let part = |from, to| number(known.get(from..to)?, Case::Lower);
    part(36, 52).filter(|parent| *parent > 0)?;
    part(3, 35)
}

/// 64 or 128 bits in hexadecimal digits.
fn hexadecimal(value: &[u8]) -> Option<u128> {
    if value.len() != 16 && value.len() != 32 {
        return None;
    }
    digits(value)
}

/// `traceid:spanid:parentid:flags`, where zeros at the beginning may be missing and the colons may be escaped.
fn jaeger(value: &[u8]) -> Option<u128> {
    let end = value.iter().position(|byte| b":%".contains(byte))?;
    let (id, rest) = value.split_at_checked(end)?;
    let escaped = rest
        .get(..3)
        .is_some_and(|colon| colon.eq_ignore_ascii_case(b"%3a"));
    if rest.first() == Some(&b'%') && !escaped {
        return None;
    }
    digits(id).filter(|_| id.len() <= 32)
}

/// 64 bits in decimal digits.
fn datadog(value: &[u8]) -> Option<u128> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let id: u64 = str::from_utf8(value).ok()?.parse().ok()?;
    Some(u128::from(id))
}

/// A number of one to 32 hexadecimal digits, in any case.
fn digits(value: &[u8]) -> Option<u128> {
    number(value, Case::Any)
}

/// Which letters are digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Lower,
    Any,
}

/// A number of one to 32 hexadecimal digits. Every inbound request of a sidecar comes here, so it takes eight of them at once.
#[inline]
fn number(value: &[u8], case: Case) -> Option<u128> {
    if value.is_empty() || value.len() > 32 {
        return None;
    }
    let (rest, eights) = value.as_rchunks::<8>();
    let mut number: u128 = 0;
    if !rest.is_empty() {
        let mut first = [b'0'; 8];
        for (to, from) in first.iter_mut().rev().zip(rest.iter().rev()) {
            *to = *from;
        }
        number = eight_digits(first, case)?.into();
    }
    for eight in eights {
        number = number << 32 | u128::from(eight_digits(*eight, case)?);
    }
    Some(number)
}

/// The value of eight hexadecimal digits, each of which is a byte of one number.
#[inline]
fn eight_digits(digits: [u8; 8], case: Case) -> Option<u32> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let text = u64::from_be_bytes(digits);
    // Of ASCII digits and letters, letters alone have this bit.
    let letters = text >> 6 & ONES;
    let text = match case {
        Case::Lower => text,
        Case::Any => text | letters << 5,
    };
    let values = (text & (ONES * 0x0f)) + letters * 9;
    // Written back as digits, they have to be what they were read from.
    let is_above_nine = (values + ONES * 6) >> 4 & ONES;
    let written = values + ONES * u64::from(b'0') + is_above_nine * u64::from(b'a' - b'0' - 10);
    if values & (ONES * 0xf0) != 0 || written != text {
        return None;
    }
    let pairs = (values | values >> 4) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    u32::try_from((fours | fours >> 16) & u64::from(u32::MAX)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
    const SHORT: u128 = 0xa3ce_929d_0e0e_4736;

    fn id<'a>(header: &str, value: &'a str) -> Option<TraceId<'a>> {
        Carrier::of_header(header).trace_id(value.as_bytes())
    }

    #[test]
    fn each_format_gives_its_id() {
        for (header, value, expected) in [
            (
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                ID,
            ),
            (
                "Traceparent",
                " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00 ",
                ID,
            ),
            (
                "traceparent",
                "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                ID,
            ),
            (
                "b3",
                "4bf92f3577b34da6a3ce929d0e0e4736-e457b5a2e4d86bd1-1-05e3ac9a4f6e3b90",
                ID,
            ),
            ("b3", "a3ce929d0e0e4736-e457b5a2e4d86bd1", SHORT),
            ("x-b3-traceid", "0000000000000000a3ce929d0e0e4736", SHORT),
            ("X-B3-TraceId", "A3CE929D0E0E4736", SHORT),
            (
                "uber-trace-id",
                "4bf92f3577b34da6a3ce929d0e0e4736:e457b5a2e4d86bd1:0:1",
                ID,
            ),
            (
                "uber-trace-id",
                "a3ce929d0e0e4736%3Ae457b5a2e4d86bd1%3A0%3A1",
                SHORT,
            ),
            ("uber-trace-id", "7:e457b5a2e4d86bd1:0:1", 7),
            ("x-datadog-trace-id", "11803532876627986230", SHORT),
        ] {
            let found = id(header, value);
            assert_eq!(found, Some(TraceId::Number(expected)), "{header}: {value}");
        }
        assert_eq!(id("x-request-id", " 7f-a "), Some(TraceId::Text(b"7f-a")));
        assert_eq!(id("My-Trace", "7f"), Some(TraceId::Text(b"7f")));
        assert_eq!(Carrier::of_header("My-Trace").header(), "my-trace");
    }

    #[test]
    fn each_byte_is_a_digit_or_none() {
        for byte in 0..=u8::MAX {
            for place in 0..8 {
                let mut text = *b"0f9a1c07";
                text[place] = byte;
                let lower = byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
                for (case, is_valid) in
                    [(Case::Lower, lower), (Case::Any, byte.is_ascii_hexdigit())]
                {
                    let expected = is_valid
                        .then(|| u32::from_str_radix(str::from_utf8(&text).unwrap(), 16).unwrap());
                    assert_eq!(eight_digits(text, case), expected, "{text:?} {case:?}");
                }
            }
        }
        for length in 1..=32 {
            let text = "123456789abcdef0fedcba9876543210".get(..length).unwrap();
            let expected = u128::from_str_radix(text, 16).ok();
            assert_eq!(number(text.as_bytes(), Case::Lower), expected);
        }
        assert_eq!(number(b"", Case::Any), None);
        assert_eq!(number(&[b'1'; 33], Case::Any), None);
    }

    #[test]
    fn malformed_values_give_none() {
        let long = "a".repeat(LONGEST_TEXT + 1);
        for (header, value) in [
            ("traceparent", ""),
            (
                "traceparent",
                "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            ),
            (
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            ),
            (
                "traceparent",
                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            ),
            (
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            ),
            (
                "traceparent",
                "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            ),
            (
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            ),
            (
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
            ),
            (
                "traceparent",
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            ),
            // Only a decision on sampling.
            ("b3", "0"),
            ("b3", "a3ce929d0e0e4736"),
            ("b3", "a3ce929d0e0e473-e457b5a2e4d86bd1"),
            ("x-b3-traceid", "0000000000000000"),
            ("uber-trace-id", "a3ce929d0e0e4736"),
            ("uber-trace-id", ":1:0:1"),
            ("uber-trace-id", "0:1:0:1"),
            ("uber-trace-id", "a3%2F1"),
            ("x-datadog-trace-id", "18446744073709551616"),
            ("x-datadog-trace-id", "-7"),
            ("x-datadog-trace-id", "7f"),
            ("x-request-id", "  "),
            ("x-request-id", long.as_str()),
        ] {
            assert_eq!(id(header, value), None, "{header}: {value}");
        }
    }
}
