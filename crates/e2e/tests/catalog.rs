//! Every case of every plugin in the catalog, replayed on the real Envoy over HTTP/1.1 and HTTP/2. The
//! same files run without Envoy in `plugin-testkit`; what they say has to be true of both.
//!
//! One gateway serves all cases of one body limit: each case has a plugin entry of its own that has the
//! case's configuration at the gateway, is off in the project, and is on in the case's own route (found
//! by a header) with the case's route configuration. Requests go one at a time, so that the scripted
//! upstreams know what belongs to what.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use outrider_e2e::{
    Answer, AnswerBody, AnswerFailure, Fields, Gateway, GatewayOptions, Received, Scripted,
    Verdict, root, values,
};
use outrider_lab::Protocol;
use outrider_lab::client::{Request, Response, Target};
use outrider_plugin_testkit::{
    Callout, Case, CaseKind, Difference, Expect, ExpectedMessage, ExpectedRequest, ExpectedValues,
    Failure, Step, Values, load_cases,
};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(5);

/// A case with its plugin.
#[derive(Debug, Clone)]
struct Entry {
    plugin: String,
    /// Its plugin entry's name, and the value of the header that leads to its route.
    id: String,
    case: Case,
}

impl Entry {
    fn name(&self) -> String {
        let file = self.case.file.strip_prefix(&root().display().to_string());
        let file = file
            .unwrap_or(&self.case.file)
            .trim_start_matches('/')
            .to_owned();
        format!("{file}:{}: {}", self.case.line, self.case.name)
    }

    fn steps(&self) -> &[Step] {
        match &self.case.kind {
            CaseKind::Steps(steps) => steps,
            CaseKind::Refused(_) => &[],
        }
    }
}

/// Every case of every plugin.
fn entries() -> Vec<Entry> {
    let folder = root().join("plugins/lua");
    let mut plugins: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    plugins.sort();
    let mut entries = Vec::new();
    for plugin in plugins {
        let cases = load_cases(&folder.join(&plugin).join("cases"))
            .unwrap_or_else(|problems| panic!("{problems:#?}"));
        for (number, case) in cases.into_iter().enumerate() {
            entries.push(Entry {
                id: format!("{plugin}-{number}"),
                plugin: plugin.clone(),
                case,
            });
        }
    }
    assert!(
        entries.len() >= 100,
        "only {} cases; are they all there?",
        entries.len()
    );
    entries
}

/// Collects what came out differently.
#[derive(Default)]
struct Check {
    place: String,
    differences: Vec<Difference>,
}

impl Check {
    fn differs(&mut self, what: &str, expected: impl Into<String>, got: impl Into<String>) {
        self.differences.push(Difference {
            what: format!("{}: {what}", self.place),
            expected: expected.into(),
            got: got.into(),
        });
    }

    fn equal(&mut self, what: &str, expected: &str, got: &str) {
        if expected != got {
            self.differs(what, format!("{expected:?}"), format!("{got:?}"));
        }
    }

    fn fields(&mut self, what: &str, expected: &BTreeMap<String, ExpectedValues>, got: &Fields) {
        for (name, expected) in expected {
            if name.starts_with(':') {
                continue;
            }
            let got = values(got, name);
            if !expected.are(&got) {
                self.differs(
                    &format!("{what} `{name}`"),
                    expected.to_string(),
                    format!("{got:?}"),
                );
            }
        }
    }

    fn message(&mut self, what: &str, expected: &ExpectedMessage, got: &Received) {
        for (name, expected, got) in [
            ("method", &expected.method, &got.method),
            ("path", &expected.path, &got.path),
            ("host", &expected.host, &got.host),
        ] {
            if let Some(expected) = expected {
                self.equal(&format!("{what} {name}"), expected, got);
            }
        }
        self.fields(&format!("{what} header"), &expected.headers, &got.headers);
        self.fields(
            &format!("{what} trailer"),
            &expected.trailers,
            &got.trailers,
        );
        let text = String::from_utf8_lossy(&got.body);
        if let Some(expected) = &expected.body {
            self.equal(&format!("{what} body"), expected, &text);
        }
        if let Some(part) = &expected.body_contains
            && !text.contains(part)
        {
            self.differs(
                &format!("{what} body"),
                format!("something with {part:?}"),
                text,
            );
        }
    }

    fn report(self) {
        assert!(
            self.differences.is_empty(),
            "{} differences:\n{}",
            self.differences.len(),
            self.differences
                .iter()
                .fold(String::new(), |mut text, difference| {
                    writeln!(text, "{difference}").unwrap();
                    text
                })
        );
    }
}

fn fields(said: &BTreeMap<String, Values>) -> Fields {
    said.iter()
        .flat_map(|(name, values)| {
            values
                .as_slice()
                .iter()
                .map(|value| (name.clone(), value.clone()))
        })
        .collect()
}

/// What the upstream of a step answers.
fn answer(step: &Step) -> Answer {
    let upstream = &step.upstream;
    let body = match &upstream.body {
        Some(body) => AnswerBody::Whole(body.clone().into()),
        None if upstream.chunks.is_empty() => Answer::default().body,
        None => AnswerBody::Pieces(
            upstream
                .chunks
                .iter()
                .map(|chunk| chunk.clone().into())
                .collect(),
            fields(&upstream.trailers),
        ),
    };
    Answer {
        status: upstream.status,
        headers: fields(&upstream.headers),
        body,
        ..Answer::default()
    }
}

/// What a callout of a step gets.
fn callout_answer(callout: &Callout) -> Answer {
    let said = &callout.answer;
    Answer {
        status: said.status,
        headers: fields(&said.headers),
        body: if said.chunks.is_empty() {
            AnswerBody::Whole(said.body.clone().into())
        } else {
            let chunks = said.chunks.iter().cloned().map(Into::into).collect();
            AnswerBody::Pieces(chunks, fields(&said.trailers))
        },
        after: Duration::from_millis(said.after_ms),
        every: Duration::from_millis(said.chunk_every_ms),
        failure: match said.failure {
            Some(Failure::Timeout) => Some(AnswerFailure::Never),
            Some(Failure::Reset) => Some(AnswerFailure::Close),
            Some(Failure::Refused | Failure::NoUpstream) | None => None,
        },
    }
}

fn fails_by(step: &Step, failure: Failure) -> bool {
    step.callouts
        .iter()
        .any(|callout| callout.answer.failure == Some(failure))
}

fn request(entry: &Entry, number: usize, step: &Step) -> Request {
    let said = &step.request;
    let mut request = Request::new(said.method(), &said.path)
        .host(&said.host)
        .header("x-case", &entry.id)
        .header("x-step", &number.to_string())
        .timeout(Duration::from_secs(20));
    for (name, value) in fields(&said.headers) {
        request = request.header(&name, &value);
    }
    if let Some(body) = &said.body {
        request = request.body(body.clone());
    } else if !said.chunks.is_empty() {
        request = request.pieces(said.chunks.iter().cloned());
    }
    for (name, value) in fields(&said.trailers) {
        request = request.trailer(&name, &value);
    }
    let wants_trailers = step
        .expect
        .response
        .as_ref()
        .is_some_and(|response| !response.trailers.is_empty());
    if wants_trailers {
        request.accept_trailers()
    } else {
        request
    }
}

/// A response in the form of a request that was received, so that both are compared by one function.
fn as_received(response: &Response) -> Received {
    let fields = |headers: &outrider_lab::Headers| -> Fields {
        headers
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    Received {
        method: String::new(),
        path: String::new(),
        host: String::new(),
        headers: fields(&response.headers),
        body: response.body.clone(),
        trailers: fields(&response.trailers),
    }
}

/// The gateway of all cases that have this body limit.
fn yaml(
    entries: &[&Entry],
    limit: Option<usize>,
    protocol: Protocol,
    upstream: &Scripted,
    callouts: &BTreeMap<String, Scripted>,
) -> String {
    let limit = limit.map_or_else(|| "1MiB".to_owned(), |limit| format!("{limit}B"));
    let protocol = if protocol == Protocol::Http1 {
        "http1"
    } else {
        "http2"
    };
    let mut text = format!(
        "gateway:\n  listeners: [{{name: main, address: '{{listen}}'}}]\n  admin: '{{admin}}'\n  \
         body_limit: {limit}\n  workers: 1\n  access_log: {{path: access.log, format: \
         '%REQ(X-CASE)% %REQ(X-STEP)% %RESPONSE_CODE_DETAILS%'}}\n  use:\n"
    );
    for entry in entries {
        let config = &entry.case.config;
        writeln!(text, "    - {{plugin: {}, config: {config}}}", entry.id).unwrap();
    }
    text.push_str("plugins:\n");
    for entry in entries {
        writeln!(
            text,
            "  {}: {{source: '{{plugins}}/{}'}}",
            entry.id, entry.plugin
        )
        .unwrap();
    }
    text.push_str("projects:\n  - name: cases\n    hosts: ['*']\n    use:\n");
    for entry in entries {
        writeln!(text, "      - {{plugin: {}, enabled: false}}", entry.id).unwrap();
    }
    text.push_str("    routes:\n");
    for entry in entries {
        let patch = entry.case.route_config.as_ref();
        let patch = patch.map_or_else(String::new, |patch| format!(", config: {patch}"));
        writeln!(
            text,
            "      - {{match: {{prefix: /, headers: [{{name: x-case, exact: {id}}}]}}, to: upstream, \
             use: [{{plugin: {id}{patch}}}]}}",
            id = entry.id
        )
        .unwrap();
    }
    writeln!(
        text,
        "upstreams:\n  upstream: {{endpoints: ['{}'], protocol: {protocol}}}",
        upstream.address()
    )
    .unwrap();
    for (name, scripted) in callouts {
        writeln!(text, "  {name}: {{endpoints: ['{}']}}", scripted.address()).unwrap();
    }
    text
}

/// The upstreams that the cases call out to, a service each.
async fn callout_services(entries: &[&Entry]) -> BTreeMap<String, Scripted> {
    let names: BTreeSet<String> = entries
        .iter()
        .flat_map(|entry| entry.steps())
        .flat_map(|step| &step.callouts)
        .filter(|callout| callout.answer.failure != Some(Failure::NoUpstream))
        .map(|callout| callout.expect.upstream.clone())
        .collect();
    let mut services = BTreeMap::new();
    for name in names {
        services.insert(name, Scripted::start().await.unwrap());
    }
    services
}

/// Replays the cases of one body limit over one protocol, from the client to the upstream.
async fn replay(check: &mut Check, entries: &[&Entry], limit: Option<usize>, protocol: Protocol) {
    let upstream = Scripted::start().await.unwrap();
    let mut services = callout_services(entries).await;
    let yaml = yaml(entries, limit, protocol, &upstream, &services);
    let gateway = Gateway::start_with(&yaml, &[], GatewayOptions::default()).unwrap();
    let target = Target::plain(protocol, gateway.address);
    let mut details = BTreeMap::new();
    for entry in entries {
        for (number, step) in entry.steps().iter().enumerate() {
            let mut place = format!("{protocol}, {}", entry.name());
            if entry.steps().len() > 1 {
                write!(place, ", step {}", number + 1).unwrap();
            }
            check.place = place;
            if let Some(expected) = &step.expect.details {
                details.insert(
                    (entry.id.clone(), number),
                    (check.place.clone(), expected.clone()),
                );
            }
            play(
                check,
                &gateway,
                &target,
                &upstream,
                &mut services,
                (*entry, number, step),
            )
            .await;
        }
    }
    // A fault that no case expects would show in these counters.
    let failed = gateway
        .not_zero(r"outrider\.plugin\..*\.errors\.\w+")
        .unwrap();
    let expected: BTreeSet<&str> = entries
        .iter()
        .filter(|entry| entry.steps().iter().any(|step| step.expect.fault.is_some()))
        .map(|entry| entry.id.as_str())
        .collect();
    check.place = protocol.to_string();
    for line in failed {
        if !expected.iter().any(|id| line.contains(&format!(".{id}."))) {
            check.differs("plugins that failed", "none", line);
        }
    }
    let log = gateway.folder().join("access.log");
    // Envoy has written its log out when it has ended; the folder goes with the gateway.
    gateway.interrupt().unwrap();
    gateway
        .output
        .wait("stopped", Duration::from_secs(20))
        .unwrap();
    let lines = fs::read_to_string(log).unwrap();
    gateway.wait_end().unwrap();
    for ((id, number), (place, expected)) in details {
        let begin = format!("{id} {number} ");
        let got = lines
            .lines()
            .find_map(|line| line.strip_prefix(&begin))
            .unwrap_or("no line");
        check.place = place;
        check.equal("the response-code detail", &expected, got);
    }
}

async fn play(
    check: &mut Check,
    gateway: &Gateway,
    target: &Target,
    upstream: &Scripted,
    services: &mut BTreeMap<String, Scripted>,
    (entry, number, step): (&Entry, usize, &Step),
) {
    upstream.script([answer(step)]);
    for (name, service) in services.iter_mut() {
        let answers = step
            .callouts
            .iter()
            .filter(|callout| callout.expect.upstream == *name);
        service.script(answers.map(callout_answer));
        if fails_by(step, Failure::Refused) {
            service.refuse().await;
        } else {
            service.accept().await.unwrap();
        }
    }
    let mark = gateway.output.mark();
    let began = Instant::now();
    let response = match target.send(request(entry, number, step)).await {
        Ok(response) => response,
        Err(error) => return check.differs("the response", "one", error.to_string()),
    };
    let took = began.elapsed();
    let Expect {
        upstream_request,
        response: expected,
        delay_ms,
        log,
        fault,
        details: _,
    } = &step.expect;
    let reached = upstream.received();
    match (upstream_request, reached.as_slice()) {
        (None, _) | (Some(ExpectedRequest::Text(_)), []) => {}
        (Some(ExpectedRequest::Text(_)), [got, ..]) => {
            check.differs("the upstream's request", "none", format!("{got:?}"));
        }
        (Some(ExpectedRequest::Mapping(expected)), [got]) => {
            check.message("upstream's request", expected, got);
        }
        (Some(ExpectedRequest::Mapping(_)), other) => {
            let got = format!("{}; the client got {response:?}", other.len());
            check.differs("the upstream's requests", "1", got);
        }
    }
    if let Some(expected) = expected {
        if let Some(status) = expected.status
            && status != response.status
        {
            let got = format!("{}: {}", response.status, response.text());
            check.differs("the response's status", status.to_string(), got);
        }
        check.message("response", expected, &as_received(&response));
    }
    if let Some(delay) = delay_ms
        && took < Duration::from_millis(*delay)
    {
        check.differs(
            "the time that it takes",
            format!("at least {delay} ms"),
            format!("{took:?}"),
        );
    }
    for text in log.iter().chain(fault) {
        if let Err(error) = gateway.output.wait_after(mark, text, SOON) {
            check.differs(
                "the log",
                format!("a line with {text:?}"),
                error.to_string(),
            );
        }
    }
    callouts(check, step, services);
}

fn callouts(check: &mut Check, step: &Step, services: &BTreeMap<String, Scripted>) {
    for (name, service) in services {
        let made = service.received();
        // Of those that nobody was there for, there is nothing to see.
        let expected: Vec<&Callout> = step
            .callouts
            .iter()
            .filter(|callout| callout.expect.upstream == *name)
            .filter(|callout| callout.answer.failure != Some(Failure::Refused))
            .collect();
        if made.len() != expected.len() {
            check.differs(
                &format!("callouts to {name}"),
                expected.len().to_string(),
                format!("{made:?}"),
            );
            continue;
        }
        for (callout, made) in expected.iter().zip(&made) {
            let said = &callout.expect;
            let what = format!("callout to {name}:");
            for (name, got) in [
                (":authority", &made.host),
                (":method", &made.method),
                (":path", &made.path),
            ] {
                if let Some(expected) = said.headers.get(name)
                    && !expected.are(&[got])
                {
                    check.differs(
                        &format!("{what} `{name}`"),
                        expected.to_string(),
                        got.clone(),
                    );
                }
            }
            let message = ExpectedMessage {
                method: said.method.clone(),
                path: said.path.clone(),
                headers: said.headers.clone(),
                body: said.body.clone(),
                trailers: said.trailers.clone(),
                ..ExpectedMessage::default()
            };
            check.message(&what, &message, made);
        }
    }
}

async fn replay_all(protocol: Protocol) {
    let entries = entries();
    let mut by_limit: BTreeMap<Option<usize>, Vec<&Entry>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !entry.steps().is_empty()) {
        by_limit
            .entry(entry.case.body_limit)
            .or_default()
            .push(entry);
    }
    let mut check = Check::default();
    for (limit, entries) in &by_limit {
        replay(&mut check, entries, *limit, protocol).await;
    }
    check.report();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http1() {
    replay_all(Protocol::Http1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_over_http2() {
    replay_all(Protocol::Http2).await;
}

/// The plugin entry of an ECDS document with this name.
fn plugin<'d>(document: &'d mut Value, name: &str) -> &'d mut Value {
    document["resources"][0]["typed_config"]["filter_config"]["value"]["plugins"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|plugin| plugin["name"] == name)
        .unwrap()
}

#[test]
fn every_refused_configuration_is_refused_by_the_module() {
    let entries = entries();
    let names: BTreeSet<&str> = entries.iter().map(|entry| entry.plugin.as_str()).collect();
    // Used on a route that gives each a configuration of its own, so that the gateway may have any.
    let first: BTreeMap<&str, &Entry> = entries
        .iter()
        .rev()
        .filter(|entry| !entry.steps().is_empty() && entry.case.route_config.is_none())
        .map(|entry| (entry.plugin.as_str(), entry))
        .collect();
    let mut yaml =
        "gateway:\n  listeners: [{name: main, address: '{listen}'}]\n  admin: '{admin}'\n  \
                    workers: 1\nplugins:\n"
            .to_owned();
    for name in &names {
        writeln!(yaml, "  {name}: {{source: '{{plugins}}/{name}'}}").unwrap();
    }
    yaml.push_str(
        "projects:\n  - name: p\n    hosts: ['*']\n    routes:\n      - match: {prefix: /}\n        \
         respond: {status: 200}\n        use:\n",
    );
    for name in &names {
        let config = &first[name].case.config;
        writeln!(yaml, "          - {{plugin: {name}, config: {config}}}").unwrap();
    }
    let gateway = Gateway::start(&yaml).unwrap();
    let good = gateway.state("ecds.json").unwrap();
    let mut check = Check::default();
    let mut refused = 0;
    for entry in &entries {
        let CaseKind::Refused(message) = &entry.case.kind else {
            continue;
        };
        check.place = entry.name();
        let mut config = entry.case.config.clone();
        if let Some(patch) = &entry.case.route_config {
            config = outrider_gateway::merge(&config, patch);
        }
        let mut document = good.clone();
        let plugin = plugin(&mut document, &entry.plugin);
        plugin["enabled"] = true.into();
        plugin["config"] = config;
        let mark = gateway.output.mark();
        match gateway.hand_over("ecds.json", &document).unwrap() {
            Verdict::Taken => check.differs("the configuration", "refused", "taken"),
            Verdict::Refused => {
                if let Err(error) = gateway.output.wait_after(mark, message, SOON) {
                    check.differs(
                        "the reason",
                        format!("a line with {message:?}"),
                        error.to_string(),
                    );
                }
            }
        }
        refused += 1;
    }
    assert!(
        refused >= 10,
        "only {refused} cases are refused; are they all there?"
    );
    assert_eq!(
        gateway.hand_over("ecds.json", &good).unwrap(),
        Verdict::Taken
    );
    gateway.stop_after_refusals().unwrap();
    check.report();
}
