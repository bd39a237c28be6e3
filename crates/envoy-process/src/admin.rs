//! Envoy's admin interface, over the loopback, with a time limit on everything.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::error::Error;

const TIME_LIMIT: Duration = Duration::from_secs(5);
/// A configuration dump of 10,000 routes with plugin configuration is some tens of MiB.
const LARGEST_ANSWER: u64 = 512 * 1024 * 1024;

/// Counters and gauges by name.
pub type Counters = BTreeMap<String, u64>;

/// What the admin interface answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// The body, as text.
    pub body: String,
}

/// A client of one Envoy's admin interface.
#[derive(Debug, Clone)]
pub struct Admin {
    agent: ureq::Agent,
    address: SocketAddr,
}

impl Admin {
    /// A client of the admin interface at `address`; nothing is sent yet.
    pub fn new(address: SocketAddr) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(TIME_LIMIT))
            .http_status_as_error(false)
            // The user's proxy is for the internet.
            .proxy(None)
            .build()
            .new_agent();
        Self { agent, address }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `GET path`, with the query in it.
    ///
    /// # Errors
    /// No answer within five seconds. A status other than 200 is an answer.
    pub fn get(&self, path: &str) -> Result<Answer, Error> {
        Self::answer(path, self.agent.get(self.url(path)).call())
    }

    /// `POST path` without a body.
    ///
    /// # Errors
    /// As [`Admin::get`].
    pub fn post(&self, path: &str) -> Result<Answer, Error> {
        Self::answer(path, self.agent.post(self.url(path)).send_empty())
    }

    /// `POST path` with a body.
    ///
    /// # Errors
    /// As [`Admin::get`].
    pub fn send(&self, path: &str, body: &str) -> Result<Answer, Error> {
        Self::answer(path, self.agent.post(self.url(path)).send(body))
    }

    /// Counters and gauges whose names match the regular expression `filter`; histograms and texts
    /// are left out.
    ///
    /// # Errors
    /// As [`Admin::get`].
    pub fn stats(&self, filter: &str) -> Result<Counters, Error> {
        let path = format!("/stats?filter={}", encode(filter));
        Ok(parse_stats(&self.get(&path)?.body))
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn answer(
        path: &str,
        result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Answer, Error> {
        let failed = |error: ureq::Error| Error::Admin {
            path: path.to_owned(),
            reason: error.to_string(),
            busy: matches!(error, ureq::Error::Timeout(_)),
        };
        let mut response = result.map_err(failed)?;
        let status = response.status().as_u16();
        let body = response
            .body_mut()
            .with_config()
            .limit(LARGEST_ANSWER)
            .read_to_vec()
            .map_err(failed)?;
        Ok(Answer {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }
}

fn parse_stats(text: &str) -> Counters {
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counters_and_leaves_the_rest() {
        let text = "a.version_text: \"x\"\na.update_success: 2\nlistener.[::1]_80.cx: 1\nb: P0(1,2)\na.d: No recorded values\n";
        let counters = parse_stats(text);
        assert_eq!(counters.len(), 2);
        assert_eq!(counters["a.update_success"], 2);
        assert_eq!(counters["listener.[::1]_80.cx"], 1);
    }

    #[test]
    fn encodes_expressions() {
        assert_eq!(encode("^a|b\\.c$"), "%5Ea%7Cb%5C.c%24");
    }

    #[test]
    fn a_dead_admin_interface_is_an_error() {
        let free = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let error = Admin::new(free).get("/ready").unwrap_err().to_string();
        assert!(
            error.starts_with("Envoy's admin interface did not answer /ready: "),
            "{error}"
        );
    }
}
