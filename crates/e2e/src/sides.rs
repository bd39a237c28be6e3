//! What the comparisons of Envoy's own filters with Outrider share: one Envoy with two listeners for each script,
//! one more that tells when the log is read, and what an upstream says to callouts.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use outrider_lab::client::{Request, Target};
use serde_json::{Value, json};

use crate::{Answer, AnswerBody, AnswerFailure, Direct};

/// Who runs a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Envoy's own filter.
    Envoy,
    /// Outrider.
    Outrider,
}

impl Side {
    /// The number of its listener for a script, by the script's number.
    pub fn listener(self, script: usize) -> usize {
        script * 2 + usize::from(self == Self::Outrider)
    }
}

/// The name of a listener.
pub fn listener_name(number: usize) -> String {
    format!("listener-{number}")
}

/// The configuration of a listener's connection manager, to be changed.
///
/// # Errors
/// The bootstrap has no such listener.
pub fn manager(bootstrap: &mut Value, listener: usize) -> anyhow::Result<&mut Value> {
    let place =
        format!("/static_resources/listeners/{listener}/filter_chains/0/filters/0/typed_config");
    bootstrap
        .pointer_mut(&place)
        .with_context(|| format!("no listener {listener}"))
}

/// Envoy's own Lua filter.
pub fn lua_filter(code: &str) -> Value {
    json!({
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": { "inline_string": code },
        },
    })
}

/// How the lines begin that [`marker`] writes.
pub const READ: &str = "read up to";

/// A filter that answers each request, and writes its path to the log.
pub fn marker() -> Value {
    lua_filter(&format!(
        r#"
    function envoy_on_request(handle)
        handle:logErr("{READ} " .. handle:headers():get(":path"))
        handle:respond({{ [":status"] = "200" }})
    end
"#
    ))
}

/// Waits until Envoy's log is read up to here: one worker writes it in order.
///
/// # Errors
/// `listener` is not that of a [`marker`], or Envoy does not answer in time.
pub async fn read_log(envoy: &Direct, listener: usize) -> anyhow::Result<()> {
    let mark = envoy.log.mark();
    let path = format!("/{mark}");
    let address = envoy.listener(&listener_name(listener))?;
    Target::http1(address).send(Request::get(&path)).await?;
    let line = format!("{READ} {path}");
    envoy.log.wait_after(mark, &line, Duration::from_secs(10))?;
    Ok(())
}

/// The last lines of Envoy's log, for messages.
pub fn last_lines(envoy: &Direct, most: usize) -> String {
    let lines = envoy.log.lines();
    let from = lines.len().saturating_sub(most);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// What the upstream of callouts does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallAnswer {
    /// It answers with some headers and twelve bytes.
    Usual,
    /// It has no body.
    Empty,
    /// Nothing comes.
    Never,
    /// It comes after a while.
    Late,
    /// The connection is closed.
    Close,
    /// A message of gRPC, with the status 0.
    Grpc,
    /// None, with the status 7.
    GrpcFailure,
}

impl CallAnswer {
    /// The answer that a script names; none: there is no such.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "empty" => Self::Empty,
            "never" => Self::Never,
            "late" => Self::Late,
            "close" => Self::Close,
            "grpc" => Self::Grpc,
            "grpc-failure" => Self::GrpcFailure,
            _ => return None,
        })
    }

    /// What it says to each of the next calls, with so many headers `key`.
    pub fn answers(self, keys: usize) -> Vec<Answer> {
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let keys = (0..keys).map(|key| field("key", &format!("value_{key}")));
        let mut answer = Answer {
            headers: [field("foo", "bar")].into_iter().chain(keys).collect(),
            body: AnswerBody::Whole("twelve bytes".into()),
            ..Answer::default()
        };
        match self {
            Self::Usual => {}
            Self::Empty => answer.body = AnswerBody::Whole(Bytes::new()),
            Self::Never => answer.failure = Some(AnswerFailure::Never),
            Self::Late => answer.after = Duration::from_millis(200),
            Self::Close => answer.failure = Some(AnswerFailure::Close),
            Self::Grpc | Self::GrpcFailure => {
                let (status, message) = if self == Self::Grpc {
                    ("0", vec![Bytes::from_static(b"\0\0\0\0\x06answer")])
                } else {
                    ("7", vec![])
                };
                let trailers = vec![
                    field("grpc-status", status),
                    field("grpc-message", "as scripted"),
                    field("x-trailing", "1"),
                ];
                answer.headers = vec![
                    field("content-type", "application/grpc"),
                    field("x-initial", "1"),
                ];
                answer.body = AnswerBody::Pieces(message, trailers);
            }
        }
        vec![answer; 8]
    }
}
