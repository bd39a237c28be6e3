//! Runs cases, and says what came out differently.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use outrider_plugin_api::CalloutFailure;
use serde::Serialize;
use serde_json::Value;

use crate::case::{
    Callout, CalloutAnswer, Case, CaseKind, Expect, ExpectedCallout, ExpectedMessage,
    ExpectedRequest, ExpectedValues, Failure, Step, Values,
};
use crate::drive::{Arrival, Message, Outcome, Sent, play};
use crate::headers::Headers;
use crate::host::{self, MadeCallout, ScriptedAnswer, ScriptedHost};
use crate::json_body::{JsonDifference, json_difference};
use crate::metrics::MetricTable;
use crate::plugin::LoadedPlugin;

/// What came of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    /// The file that holds the case.
    pub file: String,
    /// The line on which it begins, from 1.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// What came out differently; empty: nothing.
    pub differences: Vec<Difference>,
    /// What the plugin logged, in order: the first time that something came out differently, or else the first time.
    pub logs: Vec<CaseLog>,
}

/// A line of a plugin's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseLog {
    /// `trace` to `critical`.
    pub level: &'static str,
    /// The line.
    pub message: String,
}

impl CaseResult {
    /// Whether all was as the case says.
    pub fn is_right(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.name)?;
        for difference in &self.differences {
            write!(f, "\n  {difference}")?;
        }
        Ok(())
    }
}

/// One thing that came out differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What, for example ``response header `x-user` ``.
    pub what: String,
    /// What the case says.
    pub expected: String,
    /// What came.
    pub got: String,
}

/// What a difference is in where a plugin failed.
const FAILURE: &str = "the plugin's failure";
/// The expected value in the difference of a case that expects no failure.
const NO_FAILURE: &str = "none";

impl Difference {
    /// Whether the plugin failed and should not have. Other differences of the case may follow from that.
    pub fn is_failure(&self) -> bool {
        self.what.contains(FAILURE) && self.expected == NO_FAILURE
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n    expected: {}\n    got:      {}",
            self.what, self.expected, self.got
        )
    }
}

/// Runs cases on as many threads as the machine has to give. The results have the cases' order.
pub fn run_cases(plugin: &LoadedPlugin, cases: &[Case]) -> Vec<CaseResult> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else {
                return results;
            };
            results.push((index, run_case(plugin, case)));
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut results = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(cases.len()))
            .map(|_| scope.spawn(work))
            .collect();
        let mut results = work();
        for other in others {
            match other.join() {
                Ok(more) => results.extend(more),
                Err(panic) => resume_unwind(panic),
            }
        }
        results
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs a case once for each way in which its messages can arrive, with a freshly loaded plugin each
/// time. A difference that only one way shows names that way.
pub fn run_case(plugin: &LoadedPlugin, case: &Case) -> CaseResult {
    let mut differences: Vec<Difference> = Vec::new();
    let mut logs = Vec::new();
    for arrival in arrivals(case) {
        let (found, logged) = run_once(plugin, case, *arrival);
        let is_first = *arrival == Arrival::ALL[0];
        let is_sound = differences.is_empty();
        if is_first || (is_sound && !found.is_empty()) {
            logs = logged;
        }
        differences.extend(found.into_iter().filter_map(|mut difference| {
            if !is_first {
                // What every way shows is said once.
                if !is_sound {
                    return None;
                }
                difference.what = format!("{} ({arrival})", difference.what);
            }
            Some(difference)
        }));
    }
    CaseResult {
        file: case.file.clone(),
        line: case.line,
        name: case.name.clone(),
        differences,
        logs,
    }
}

/// The ways that differ for this case: headers alone arrive in one way only.
fn arrivals(case: &Case) -> &'static [Arrival] {
    let has_bodies = match &case.kind {
        CaseKind::Refused(_) => false,
        CaseKind::Steps(steps) => steps.iter().any(|step| {
            let Step {
                request, upstream, ..
            } = step;
            request.body.is_some()
                || upstream.body.is_some()
                || !request.chunks.is_empty()
                || !upstream.chunks.is_empty()
        }),
    };
    if has_bodies {
        &Arrival::ALL
    } else {
        Arrival::ALL.split_at(1).0
    }
}

fn run_once(
    plugin: &LoadedPlugin,
    case: &Case,
    arrival: Arrival,
) -> (Vec<Difference>, Vec<CaseLog>) {
    let mut logs = Vec::new();
    let mut check = Check::default();
    let mut metrics = MetricTable::new();
    let chain = plugin.chain(&case.config, case.route_config.as_ref(), &mut metrics);
    match (&case.kind, chain) {
        (CaseKind::Refused(message), Err(error)) => {
            check.contains("the configuration's refusal", message, &error.to_string());
        }
        (CaseKind::Refused(message), Ok(_)) => check.differs(
            "the configuration",
            format!("refused, with {message:?}"),
            "accepted",
        ),
        (CaseKind::Steps(_), Err(error)) => {
            check.differs("the configuration", "accepted", format!("refused: {error}"));
        }
        (CaseKind::Steps(steps), Ok(chain)) => {
            let mut elapsed = Duration::ZERO;
            for (index, step) in steps.iter().enumerate() {
                check.place = if steps.len() > 1 {
                    format!("step {}: ", index + 1)
                } else {
                    String::new()
                };
                elapsed += Duration::from_millis(step.after_ms);
                let mut host = ScriptedHost::starting_at(elapsed);
                if let Some(limit) = case.body_limit {
                    host.body_limit = limit;
                }
                step.facts.apply(&mut host);
                host.answers = step.callouts.iter().map(scripted).collect();
                let outcome = play(
                    chain.clone(),
                    &request(step),
                    &upstream(step),
                    arrival,
                    host,
                );
                check.step(step, &outcome);
                logs.extend(outcome.host.log.take().into_iter().map(|line| CaseLog {
                    level: line.level.name(),
                    message: line.message,
                }));
                elapsed = outcome.host.elapsed;
            }
        }
    }
    (check.differences, logs)
}

fn add_all(headers: &mut Headers, values: &BTreeMap<String, Values>) {
    for (name, values) in values {
        for value in values.as_slice() {
            headers.add(name.as_bytes(), value.as_bytes());
        }
    }
}

fn message(
    mut headers: Headers,
    said: &BTreeMap<String, Values>,
    body: Option<&String>,
    chunks: &[String],
    trailers: &BTreeMap<String, Values>,
) -> Message {
    add_all(&mut headers, said);
    if let Some(body) = body
        && headers.get(b"content-length").is_none()
    {
        headers.set(b"content-length", body.len().to_string().as_bytes());
    }
    let chunks = body
        .into_iter()
        .chain(chunks)
        .filter(|chunk| !chunk.is_empty())
        .map(|chunk| chunk.as_bytes().to_vec())
        .collect();
    let trailers = (!trailers.is_empty()).then(|| {
        let mut map = Headers::new();
        add_all(&mut map, trailers);
        map
    });
    Message {
        headers,
        chunks,
        trailers,
    }
}

fn request(step: &Step) -> Message {
    let request = &step.request;
    let headers = Headers::new()
        .with(":authority", &request.host)
        .with(":path", &request.path)
        .with(":method", request.method())
        .with(":scheme", "http");
    message(
        headers,
        &request.headers,
        request.body.as_ref(),
        &request.chunks,
        &request.trailers,
    )
}

fn upstream(step: &Step) -> Message {
    let upstream = &step.upstream;
    message(
        Headers::new().with(":status", upstream.status.to_string()),
        &upstream.headers,
        upstream.body.as_ref(),
        &upstream.chunks,
        &upstream.trailers,
    )
}

fn scripted(callout: &Callout) -> ScriptedAnswer {
    let CalloutAnswer {
        status,
        headers,
        body,
        chunks,
        chunk_every_ms,
        trailers,
        after_ms,
        failure,
    } = &callout.answer;
    let answer = match failure {
        None => {
            let mut map = Headers::new().with(":status", status.to_string());
            add_all(&mut map, headers);
            let mut pieces: Vec<Vec<u8>> = chunks
                .iter()
                .map(|chunk| chunk.as_bytes().to_vec())
                .collect();
            if !body.is_empty() {
                pieces.push(body.as_bytes().to_vec());
            }
            let mut last = Headers::new();
            add_all(&mut last, trailers);
            Ok(host::CalloutAnswer {
                headers: map,
                body: pieces,
                trailers: (!trailers.is_empty()).then_some(last),
                every: Duration::from_millis(*chunk_every_ms),
                breaks: None,
            })
        }
        Some(Failure::Timeout) => Err(CalloutFailure::Timeout),
        Some(Failure::Reset | Failure::Refused) => Err(CalloutFailure::Reset),
        Some(Failure::NoUpstream) => Err(CalloutFailure::ClusterNotFound),
    };
    ScriptedAnswer {
        after: Duration::from_millis(*after_ms),
        answer,
    }
}

/// Collects differences.
#[derive(Debug, Default)]
struct Check {
    place: String,
    differences: Vec<Difference>,
}

impl Check {
    fn differs(&mut self, what: &str, expected: impl Into<String>, got: impl Into<String>) {
        self.differences.push(Difference {
            what: format!("{}{what}", self.place),
            expected: expected.into(),
            got: got.into(),
        });
    }

    fn equal(&mut self, what: &str, expected: &str, got: &str) {
        if expected != got {
            self.differs(what, format!("{expected:?}"), format!("{got:?}"));
        }
    }

    fn contains(&mut self, what: &str, expected: &str, got: &str) {
        if !got.contains(expected) {
            self.differs(
                what,
                format!("something with {expected:?}"),
                format!("{got:?}"),
            );
        }
    }

    fn json(&mut self, what: &str, expected: Option<&Value>, body: &[u8]) {
        let difference = expected.and_then(|expected| json_difference(expected, body));
        if let Some(JsonDifference {
            pointer,
            expected,
            got,
        }) = difference
        {
            self.differs(&format!("{what}{pointer}"), expected, got);
        }
    }

    fn step(&mut self, step: &Step, outcome: &Outcome) {
        let Expect {
            upstream_request,
            response,
            delay_ms,
            log,
            no_log,
            details,
            fault,
            facts,
        } = &step.expect;
        // First, because it is the cause of much that follows.
        self.fault(fault.as_deref(), outcome);
        for problem in &outcome.problems {
            self.differs("the stream", "an end", problem.as_str());
        }
        if outcome.reset {
            self.differs(
                "the stream",
                "an end",
                "a reset: the plugin replied when the response was on its way",
            );
        }
        match (upstream_request, &outcome.upstream_request) {
            (Some(ExpectedRequest::Text(_)), Some(got)) => {
                self.differs("the upstream's request", "none", one_line(got));
            }
            (Some(ExpectedRequest::Mapping(_)), None) => {
                let got = match &outcome.response {
                    Some(response) => format!("none; the client got {}", one_line(response)),
                    None => "none".to_owned(),
                };
                self.differs("the upstream's request", "one", got);
            }
            (Some(ExpectedRequest::Mapping(expected)), Some(got)) => {
                self.message("upstream's request", expected, got);
            }
            _ => {}
        }
        match (response, &outcome.response) {
            (Some(expected), Some(got)) => self.message("response", expected, got),
            (Some(_), None) => self.differs("the response", "one", "none"),
            (None, _) => {}
        }
        if let Some(delay) = delay_ms {
            let took = u64::try_from(outcome.duration().as_millis()).unwrap_or(u64::MAX);
            if took < *delay {
                self.differs(
                    "the time that it takes",
                    format!("at least {delay} ms"),
                    format!("{took} ms"),
                );
            }
        }
        if let Some(expected) = details {
            self.equal("the response-code detail", expected, &outcome.details);
        }
        self.log(log, no_log, outcome);
        for (what, expected, got) in facts.differences(&outcome.host) {
            self.differs(&what, expected, got);
        }
        self.callouts(&step.callouts, &outcome.host.callouts);
    }

    fn log(&mut self, expected: &[String], never: &[String], outcome: &Outcome) {
        let lines = outcome.host.log.borrow();
        for text in never {
            if let Some(line) = lines.iter().find(|line| line.message.contains(text)) {
                self.differs(
                    "the log",
                    format!("no line with {text:?}"),
                    format!("{:?}", line.message),
                );
            }
        }
        for text in expected {
            if !lines.iter().any(|line| line.message.contains(text)) {
                let got: Vec<_> = lines.iter().map(|line| line.message.as_str()).collect();
                self.differs(
                    "the log",
                    format!("a line with {text:?}"),
                    format!("{got:?}"),
                );
            }
        }
    }

    fn fault(&mut self, expected: Option<&str>, outcome: &Outcome) {
        let faults: Vec<String> = outcome
            .host
            .faults
            .iter()
            .map(|fault| {
                format!(
                    "{} in {}: {}",
                    fault.cause.word(),
                    fault.phase,
                    fault.message
                )
            })
            .collect();
        let got = if faults.is_empty() {
            NO_FAILURE.to_owned()
        } else {
            faults.join("; ")
        };
        match expected {
            Some(text) if !faults.iter().any(|fault| fault.contains(text)) => {
                self.differs(FAILURE, format!("one with {text:?}"), got);
            }
            None if !faults.is_empty() => self.differs(FAILURE, NO_FAILURE, got),
            _ => {}
        }
    }

    fn callouts(&mut self, expected: &[Callout], got: &[MadeCallout]) {
        for (index, callout) in expected.iter().enumerate() {
            let number = index + 1;
            match got.get(index) {
                Some(made) => self.callout(number, &callout.expect, made),
                None => self.differs(
                    &format!("callout {number}"),
                    format!("one to {}", callout.expect.upstream),
                    "none",
                ),
            }
        }
        for made in got.iter().skip(expected.len()) {
            self.differs(
                "callouts",
                format!("{} of them", expected.len()),
                format!(
                    "one more, to {}: {} {}",
                    made.upstream,
                    made.headers.text(":method"),
                    made.headers.text(":path")
                ),
            );
        }
    }

    fn callout(&mut self, number: usize, expected: &ExpectedCallout, made: &MadeCallout) {
        let what = format!("callout {number}");
        let ExpectedCallout {
            upstream,
            method,
            path,
            headers,
            body,
            body_json,
            trailers,
        } = expected;
        self.equal(&format!("{what}: upstream"), upstream, &made.upstream);
        for (name, expected) in [(":method", method), (":path", path)] {
            if let Some(expected) = expected {
                self.equal(
                    &format!("{what}: `{name}`"),
                    expected,
                    &made.headers.text(name),
                );
            }
        }
        self.headers(&format!("{what}: header"), headers, Some(&made.headers));
        self.headers(
            &format!("{what}: trailer"),
            trailers,
            made.trailers.as_ref(),
        );
        self.json(&format!("{what}: body"), body_json.as_ref(), &made.body);
        if let Some(body) = body {
            self.equal(
                &format!("{what}: body"),
                body,
                &String::from_utf8_lossy(&made.body),
            );
        }
    }

    fn headers(
        &mut self,
        what: &str,
        expected: &BTreeMap<String, ExpectedValues>,
        got: Option<&Headers>,
    ) {
        for (name, expected) in expected {
            let got: Vec<String> = got
                .into_iter()
                .flat_map(|headers| headers.values(name.as_bytes()))
                .map(|value| String::from_utf8_lossy(value).into_owned())
                .collect();
            if !expected.are(&got) {
                self.differs(
                    &format!("{what} `{name}`"),
                    expected.to_string(),
                    list_of(&got),
                );
            }
        }
    }

    fn message(&mut self, what: &str, expected: &ExpectedMessage, got: &Sent) {
        let ExpectedMessage {
            status,
            method,
            path,
            host,
            headers,
            body,
            body_json,
            body_contains,
            trailers,
        } = expected;
        let status = status.map(|status| status.to_string());
        for (name, expected) in [
            (":status", &status),
            (":method", method),
            (":path", path),
            (":authority", host),
        ] {
            if let Some(expected) = expected {
                self.equal(
                    &format!("{what} `{name}`"),
                    expected,
                    &got.headers.text(name),
                );
            }
        }
        self.headers(&format!("{what} header"), headers, Some(&got.headers));
        self.headers(&format!("{what} trailer"), trailers, got.trailers.as_ref());
        let text = String::from_utf8_lossy(&got.body);
        if let Some(expected) = body {
            self.equal(&format!("{what} body"), expected, &text);
        }
        self.json(&format!("{what} body"), body_json.as_ref(), &got.body);
        if let Some(expected) = body_contains {
            self.contains(&format!("{what} body"), expected, &text);
        }
        if let Some(length) = got.headers.get(b"content-length")
            && got.complete
            && !got.body.is_empty()
            && length != got.body.len().to_string().as_bytes()
        {
            self.differs(
                &format!("{what} `content-length`"),
                got.body.len().to_string(),
                String::from_utf8_lossy(length).into_owned(),
            );
        }
    }
}

fn list_of(values: &[String]) -> String {
    match values {
        [] => "nothing".to_owned(),
        [value] => format!("{value:?}"),
        values => format!("{values:?}"),
    }
}

fn one_line(message: &Sent) -> String {
    let first = [":status", ":method", ":path"]
        .iter()
        .map(|name| message.headers.text(name))
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    format!("{first} {:?}", String::from_utf8_lossy(&message.body))
}
