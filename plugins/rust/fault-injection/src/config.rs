//! The configuration, checked and prepared.
//!
//! `config.schema.json` says the same to those who have a schema's reader; this holds where nobody has
//! looked at the schema.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

/// What goes wrong.
pub(crate) struct Config {
    pub(crate) delay: Option<Delay>,
    pub(crate) abort: Option<Abort>,
}

/// A request waits.
pub(crate) struct Delay {
    pub(crate) time: Duration,
    /// Share of the requests, from 0 to 100.
    pub(crate) percentage: f64,
}

/// A request is answered instead of the upstream.
pub(crate) struct Abort {
    pub(crate) status: u32,
    /// Share of the requests, from 0 to 100.
    pub(crate) percentage: f64,
    pub(crate) body: String,
    pub(crate) headers: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    delay: Option<WrittenDelay>,
    abort: Option<WrittenAbort>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDelay {
    milliseconds: u64,
    #[serde(default = "always")]
    percentage: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAbort {
    status: u32,
    #[serde(default = "always")]
    percentage: f64,
    #[serde(default)]
    body: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

fn always() -> f64 {
    100.0
}

impl Config {
    /// Reads the configuration; the error is for whoever wrote it.
    pub(crate) fn read(bytes: Option<&[u8]>) -> Result<Self, String> {
        let written: Written = support::configuration(bytes)?;
        if written.delay.is_none() && written.abort.is_none() {
            return Err("nothing to inject: `delay` or `abort` must be there".to_owned());
        }
        Ok(Self {
            delay: written.delay.map(delay_of).transpose()?,
            abort: written.abort.map(abort_of).transpose()?,
        })
    }
}

fn delay_of(written: WrittenDelay) -> Result<Delay, String> {
    if !(1..=3_600_000).contains(&written.milliseconds) {
        return Err(format!(
            "`delay.milliseconds` is {}; it can be 1 to 3600000",
            written.milliseconds
        ));
    }
    check_percentage("delay", written.percentage)?;
    Ok(Delay {
        time: Duration::from_millis(written.milliseconds),
        percentage: written.percentage,
    })
}

fn abort_of(written: WrittenAbort) -> Result<Abort, String> {
    if !(200..=599).contains(&written.status) {
        return Err(format!(
            "`abort.status` is {}; it can be 200 to 599",
            written.status
        ));
    }
    check_percentage("abort", written.percentage)?;
    let mut headers = BTreeMap::from([("content-type".to_owned(), "text/plain".to_owned())]);
    for (name, value) in written.headers {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+.^_`|~-".contains(&byte);
        if name.is_empty() || !name.bytes().all(allowed) {
            return Err(format!("abort.headers: {name:?} cannot be a header's name"));
        }
        if value.contains(|c: char| c.is_ascii_control() && c != '\t') {
            return Err(format!(
                "abort.headers.{name}: {value:?} cannot be a header's value"
            ));
        }
        headers.insert(name.to_ascii_lowercase(), value);
    }
    Ok(Abort {
        status: written.status,
        percentage: written.percentage,
        body: written.body,
        headers: headers.into_iter().collect(),
    })
}

fn check_percentage(fault: &str, percentage: f64) -> Result<(), String> {
    if (0.0..=100.0).contains(&percentage) {
        Ok(())
    } else {
        Err(format!(
            "`{fault}.percentage` is {percentage}; it can be 0 to 100"
        ))
    }
}
