//! What a request asks the echo service to do: a function of its path and its `x-echo-*` headers.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::Headers;

/// Bodies are made in pieces of this size.
pub(super) const PIECE: usize = 16 * 1024;

/// The most that `/bytes`, `/cut` and `/slow-body` give, so that a typing error fills no memory.
const MOST_BYTES: usize = 1 << 30;

/// The longest delay.
const LONGEST: Duration = Duration::from_mins(10);

/// The bytes that `/bytes/N` answers with: byte `i` is `i` modulo 251.
pub fn pattern(length: usize) -> Bytes {
    (0..length).map(|index| (index % 251) as u8).collect()
}

/// What to answer, when, and with which status.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) answer: Answer,
    pub(super) delay: Duration,
    pub(super) status: StatusCode,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The description of the request, with these headers added.
    Describe(HeaderMap),
    /// That many bytes of the pattern.
    Bytes { length: usize, framing: Framing },
    /// The request's own body and trailers.
    Echo(Timing),
    /// A body with these trailers.
    Trailers(HeaderMap),
    /// Pieces with a pause before each but the first.
    SlowBody {
        pieces: usize,
        interval: Duration,
        size: usize,
    },
    /// The connection is closed after that many bytes of body, or without any answer.
    Cut(Option<usize>),
    /// The stream is reset.
    ResetStream,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// As they arrive.
    Streamed,
    /// Once the request is complete.
    Whole,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    ContentLength,
    Chunked,
}

impl Plan {
    /// `path` with its query. An error says what could not be understood.
    pub(super) fn of(path: &str, headers: &HeaderMap) -> Result<Self, String> {
        let mut delay = match header(headers, "x-echo-delay-ms")? {
            Some(text) => milliseconds("x-echo-delay-ms", text)?,
            None => Duration::ZERO,
        };
        let mut status = match header(headers, "x-echo-status")? {
            Some(text) => parse_status(text)?,
            None => StatusCode::OK,
        };
        let path = header(headers, "x-echo-path")?.unwrap_or(path);
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let query: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let mut parts = path.trim_start_matches('/').splitn(2, '/');
        let has = |name| query.iter().any(|(candidate, _)| candidate == name);
        let answer = match (parts.next().unwrap_or_default(), parts.next()) {
            ("status", Some(text)) => {
                status = parse_status(text)?;
                Answer::Describe(HeaderMap::new())
            }
            ("delay", Some(text)) => {
                delay = milliseconds("/delay", text)?;
                Answer::Describe(HeaderMap::new())
            }
            ("bytes", Some(text)) => Answer::Bytes {
                length: size("/bytes", text)?,
                framing: if has("chunked") {
                    Framing::Chunked
                } else {
                    Framing::ContentLength
                },
            },
            ("cut", Some(text)) => Answer::Cut(Some(size("/cut", text)?)),
            ("echo", None) => Answer::Echo(if has("whole") {
                Timing::Whole
            } else {
                Timing::Streamed
            }),
            ("reset", None) => Answer::Cut(None),
            ("reset-stream", None) => Answer::ResetStream,
            ("headers", None) => Answer::Describe(fields(&query)?),
            ("trailers", None) if query.is_empty() => Answer::Trailers(HeaderMap::from_iter([(
                HeaderName::from_static("x-echo-trailer"),
                HeaderValue::from_static("done"),
            )])),
            ("trailers", None) => Answer::Trailers(fields(&query)?),
            ("slow-body", None) => slow_body(&query)?,
            _ => Answer::Describe(HeaderMap::new()),
        };
        Ok(Self {
            answer,
            delay,
            status,
        })
    }
}

fn fields(query: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = Headers::default();
    for (name, value) in query {
        headers.push(name, value);
    }
    headers.to_map()
}

fn slow_body(query: &[(String, String)]) -> Result<Answer, String> {
    let (mut pieces, mut interval, mut piece) = (10, Duration::from_millis(100), 1024);
    for (name, value) in query {
        match name.as_str() {
            "chunks" => pieces = size("chunks", value)?,
            "interval_ms" => interval = milliseconds("interval_ms", value)?,
            "size" => piece = size("size", value)?,
            other => {
                return Err(format!(
                    "/slow-body knows chunks, interval_ms and size, not {other:?}"
                ));
            }
        }
    }
    Ok(Answer::SlowBody {
        pieces,
        interval,
        size: piece,
    })
}

fn header<'headers>(
    headers: &'headers HeaderMap,
    name: &str,
) -> Result<Option<&'headers str>, String> {
    headers
        .get(name)
        .map(|value| value.to_str())
        .transpose()
        .map_err(|_| format!("{name} is not text"))
}

fn number<T: FromStr>(what: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{what} takes a number, not {text:?}"))
}

fn milliseconds(what: &str, text: &str) -> Result<Duration, String> {
    let asked = Duration::from_millis(number(what, text)?);
    if asked <= LONGEST {
        Ok(asked)
    } else {
        Err(format!("{what} takes at most {} ms", LONGEST.as_millis()))
    }
}

fn size(what: &str, text: &str) -> Result<usize, String> {
    let asked = number(what, text)?;
    if asked <= MOST_BYTES {
        Ok(asked)
    } else {
        Err(format!("{what} takes at most {MOST_BYTES}"))
    }
}

fn parse_status(text: &str) -> Result<StatusCode, String> {
    // 1xx would not end the exchange.
    number::<u16>("a status", text)
        .ok()
        .filter(|code| (200..1000).contains(code))
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or_else(|| format!("a status is a number from 200 to 999, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(path: &str) -> Result<Plan, String> {
        Plan::of(path, &HeaderMap::new())
    }

    #[test]
    fn paths_say_what_to_answer() {
        assert_eq!(
            plan("/any/where?x=1").unwrap().answer,
            Answer::Describe(HeaderMap::new())
        );
        assert_eq!(plan("/status/418").unwrap().status, 418);
        assert_eq!(plan("/delay/20").unwrap().delay, Duration::from_millis(20));
        assert_eq!(
            plan("/bytes/9?chunked").unwrap().answer,
            Answer::Bytes {
                length: 9,
                framing: Framing::Chunked
            }
        );
        assert_eq!(plan("/reset").unwrap().answer, Answer::Cut(None));
        assert_eq!(plan("/cut/7").unwrap().answer, Answer::Cut(Some(7)));
        assert_eq!(
            plan("/slow-body?chunks=2&interval_ms=5&size=3")
                .unwrap()
                .answer,
            Answer::SlowBody {
                pieces: 2,
                interval: Duration::from_millis(5),
                size: 3
            }
        );
    }

    #[test]
    fn headers_overrule_the_path() {
        let mut headers = HeaderMap::new();
        headers.insert("x-echo-path", "/bytes/3".parse().unwrap());
        headers.insert("x-echo-status", "404".parse().unwrap());
        headers.insert("x-echo-delay-ms", "7".parse().unwrap());
        let plan = Plan::of("/status/500", &headers).unwrap();
        assert_eq!(
            plan.answer,
            Answer::Bytes {
                length: 3,
                framing: Framing::ContentLength
            }
        );
        assert_eq!(plan.status, 404);
        assert_eq!(plan.delay, Duration::from_millis(7));
    }

    #[test]
    fn nonsense_is_refused() {
        for path in [
            "/status/12",
            "/status/x",
            "/delay/soon",
            "/bytes/-1",
            "/slow-body?chunk=1",
            "/headers?a%20b=c",
        ] {
            assert!(plan(path).is_err(), "{path}");
        }
        assert!(plan("/bytes/99999999999").unwrap_err().contains("at most"));
    }
}
