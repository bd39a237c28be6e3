//! Cases on a gateway: the file that serves them, and playing them one after the other, so that the
//! scripted upstreams know what belongs to what.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use outrider_lab::Protocol;
use outrider_lab::client::{Request, Target};
use outrider_plugin_testkit::{
    Callout, Case, CaseKind, Difference, Expect, ExpectedMessage, ExpectedRequest, Failure, Step,
    Values,
};
use serde_json::Value;

use crate::check::Check;
use crate::gateway::Gateway;
use crate::output::Output;
use crate::refused;
use crate::scripted::{Answer, AnswerBody, AnswerFailure, Fields, Scripted};

/// How long a line of the log may take to come.
const SOON: Duration = Duration::from_secs(5);
/// How long the whole of a case may have to wait; more is for a clock that is put forward.
const LONGEST_WAIT: u64 = 5_000;

/// What a replay runs.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// Envoy; none: the one that `outrider up` finds.
    pub envoy: Option<PathBuf>,
    /// The module; none: the one that `outrider up` finds.
    pub module: Option<PathBuf>,
}

/// A plugin with its cases.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The plugin's folder.
    pub folder: PathBuf,
    /// Its name.
    pub plugin: String,
    /// The `budgets` that it gets in the gateway's file: those that its manifest asks for. `null` for the default.
    pub budgets: Value,
    /// What it has to do.
    pub cases: Vec<Case>,
    /// Places of cases whose configuration is accepted or refused other than they say: one that is not
    /// accepted would keep the gateway of all cases from starting.
    pub unfit: BTreeSet<usize>,
}

/// What came of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran, and this came out differently.
    Replayed(Vec<Difference>),
    /// It did not run, because of this.
    NotReplayed(String),
}

/// A case on its way.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) subject: &'a Subject,
    /// Its place in the results.
    pub(crate) place: (usize, usize),
    /// Its plugin entry's name, and the value of the header that leads to its route.
    pub(crate) id: String,
    pub(crate) case: &'a Case,
}

impl Entry<'_> {
    fn steps(&self) -> &[Step] {
        match &self.case.kind {
            CaseKind::Steps(steps) => steps,
            CaseKind::Refused(_) => &[],
        }
    }
}

/// Results by place.
pub(crate) type Found = BTreeMap<(usize, usize), Check>;

/// Replays the cases of `subjects`, client and upstream speaking `protocol`. The outcomes have the order of
/// the subjects and of their cases.
///
/// # Errors
/// A gateway does not come up, or something around it is missing; the error tells what was said.
pub fn replay(
    subjects: &[Subject],
    protocol: Protocol,
    tools: &Tools,
) -> anyhow::Result<Vec<Vec<Outcome>>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut left_out = BTreeMap::new();
    let mut by_limit: BTreeMap<Option<usize>, Vec<Entry<'_>>> = BTreeMap::new();
    let mut refusals = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        for (number, case) in subject.cases.iter().enumerate() {
            let entry = Entry {
                subject,
                place: (index, number),
                id: format!("case-{index}-{number}"),
                case,
            };
            if subject.unfit.contains(&number) {
                let why = "its configuration is not as the case says, so it is not tried on Envoy";
                left_out.insert(entry.place, why.to_owned());
            } else if case.is_scripted() {
                let why = "it scripts facts that only a scripted stream can have";
                left_out.insert(entry.place, why.to_owned());
            } else if let Some(why) = needs_a_fake_clock(case) {
                left_out.insert(entry.place, why);
            } else if matches!(case.kind, CaseKind::Refused(_)) {
                refusals.push(entry);
            } else {
                by_limit.entry(case.body_limit).or_default().push(entry);
            }
        }
    }
    let mut found = Found::new();
    runtime.block_on(async {
        for (limit, entries) in &by_limit {
            play_all(entries, *limit, protocol, tools, &mut found).await?;
        }
        anyhow::Ok(())
    })?;
    let steps: Vec<&Entry<'_>> = by_limit.values().flatten().collect();
    for (place, why) in refused::try_all(&refusals, &steps, tools, &mut found)? {
        left_out.insert(place, why);
    }
    let mut outcome = |place| match left_out.remove(&place) {
        Some(why) => Outcome::NotReplayed(why),
        None => Outcome::Replayed(
            found
                .remove(&place)
                .map(|check| check.differences)
                .unwrap_or_default(),
        ),
    };
    Ok(subjects
        .iter()
        .enumerate()
        .map(|(index, subject)| {
            (0..subject.cases.len())
                .map(|number| outcome((index, number)))
                .collect()
        })
        .collect())
}

/// Why a case cannot wait for what it expects.
fn needs_a_fake_clock(case: &Case) -> Option<String> {
    let CaseKind::Steps(steps) = &case.kind else {
        return None;
    };
    let waits: u64 = steps
        .iter()
        .map(|step| {
            let answers = step.callouts.iter().map(|callout| {
                let chunks = u64::try_from(callout.answer.chunks.len()).unwrap_or(u64::MAX);
                let pauses = callout.answer.chunk_every_ms.saturating_mul(chunks);
                callout.answer.after_ms.saturating_add(pauses)
            });
            let within = answers.sum::<u64>().max(step.expect.delay_ms.unwrap_or(0));
            step.after_ms.saturating_add(within)
        })
        .fold(0, u64::saturating_add);
    (waits > LONGEST_WAIT).then(|| {
        format!("it takes {waits} ms, which only a clock that is put forward can wait for")
    })
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
        every: Duration::from_millis(said.chunk_every_ms),
        after: Duration::from_millis(said.after_ms),
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

fn request(entry: &Entry<'_>, number: usize, step: &Step) -> Request {
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

/// A gateway's file in which each entry has its plugin. `routes` writes the routes' part.
pub(crate) fn yaml(
    entries: &[&Entry<'_>],
    limit: Option<usize>,
    (listen, admin): (SocketAddr, SocketAddr),
    upstreams: &[(String, SocketAddr)],
    protocol: Protocol,
) -> String {
    let limit = limit.map_or_else(|| "1MiB".to_owned(), |limit| format!("{limit}B"));
    let protocol = if protocol == Protocol::Http1 {
        "http1"
    } else {
        "http2"
    };
    let mut text = format!(
        "gateway:\n  listeners: [{{name: main, address: '{listen}'}}]\n  admin: '{admin}'\n  \
         body_limit: {limit}\n  workers: 1\n  access_log: {{path: access.log, format: \
         '%REQ(X-CASE)% %REQ(X-STEP)% %RESPONSE_CODE_DETAILS%'}}\n  use:\n"
    );
    // Writing to a text does not fail.
    for entry in entries {
        let config = &entry.case.config;
        let _ = writeln!(text, "    - {{plugin: {}, config: {config}}}", entry.id);
    }
    text.push_str("plugins:\n");
    for entry in entries {
        let folder = entry.subject.folder.display().to_string();
        let budgets = match &entry.subject.budgets {
            Value::Null => String::new(),
            budgets => format!(", budgets: {budgets}"),
        };
        let _ = writeln!(
            text,
            "  {}: {{source: '{}', allow: all{budgets}}}",
            entry.id,
            folder.replace('\'', "''")
        );
    }
    text.push_str("projects:\n  - name: cases\n    hosts: ['*']\n    use:\n");
    for entry in entries {
        let _ = writeln!(text, "      - {{plugin: {}, enabled: false}}", entry.id);
    }
    text.push_str("    routes:\n");
    for entry in entries {
        let patch = entry.case.route_config.as_ref();
        let patch = patch.map_or_else(String::new, |patch| format!(", config: {patch}"));
        let _ = writeln!(
            text,
            "      - {{match: {{prefix: /, headers: [{{name: x-case, exact: {id}}}]}}, to: upstream, \
             use: [{{plugin: {id}{patch}}}]}}",
            id = entry.id
        );
    }
    text.push_str("upstreams:\n");
    for (name, address) in upstreams {
        let speaks = if name == "upstream" {
            protocol
        } else {
            "http1"
        };
        let _ = writeln!(
            text,
            "  {name}: {{endpoints: ['{address}'], protocol: {speaks}}}"
        );
    }
    text
}

/// The upstreams that the cases call out to, a service each.
async fn callout_services(entries: &[Entry<'_>]) -> anyhow::Result<BTreeMap<String, Scripted>> {
    let names: BTreeSet<&str> = entries
        .iter()
        .flat_map(Entry::steps)
        .flat_map(|step| &step.callouts)
        .filter(|callout| callout.answer.failure != Some(Failure::NoUpstream))
        .map(|callout| callout.expect.upstream.as_str())
        .collect();
    let mut services = BTreeMap::new();
    for name in names {
        services.insert(name.to_owned(), Scripted::start().await?);
    }
    Ok(services)
}

/// Plays the cases of one body limit.
async fn play_all(
    entries: &[Entry<'_>],
    limit: Option<usize>,
    protocol: Protocol,
    tools: &Tools,
    found: &mut Found,
) -> anyhow::Result<()> {
    let upstream = Scripted::start().await?;
    let mut services = callout_services(entries).await?;
    let mut upstreams = vec![("upstream".to_owned(), upstream.address())];
    upstreams.extend(
        services
            .iter()
            .map(|(name, service)| (name.clone(), service.address())),
    );
    let all: Vec<&Entry<'_>> = entries.iter().collect();
    let gateway = Gateway::start(tools, |listen, admin| {
        yaml(&all, limit, (listen, admin), &upstreams, protocol)
    })?;
    let target = Target::plain(protocol, gateway.address);
    for entry in entries {
        let mut check = Check::default();
        let mut stage = Stage {
            gateway: &gateway,
            target: &target,
            upstream: &upstream,
            services: &mut services,
        };
        for (number, step) in entry.steps().iter().enumerate() {
            check.place = place(entry, number);
            tokio::time::sleep(Duration::from_millis(step.after_ms)).await;
            stage.play(&mut check, entry, number, step).await?;
        }
        found.insert(entry.place, check);
    }
    // A fault that no case expects would show in these counters.
    let failed = gateway.not_zero(r"outrider\.plugin\..*\.errors\.\w+")?;
    let (access_log, output) = gateway.stop()?;
    for entry in entries {
        if let Some(check) = found.get_mut(&entry.place) {
            afterwards(check, entry, &failed, &access_log, &output);
        }
    }
    Ok(())
}

/// What stands before a difference of a step, as without Envoy.
fn place(entry: &Entry<'_>, number: usize) -> String {
    if entry.steps().len() > 1 {
        format!("step {}: ", number + 1)
    } else {
        String::new()
    }
}

/// What is known of a case only when the gateway has ended.
fn afterwards(
    check: &mut Check,
    entry: &Entry<'_>,
    failed: &[String],
    access_log: &str,
    output: &Output,
) {
    if !entry.steps().iter().any(|step| step.expect.fault.is_some()) {
        for line in failed {
            if line.contains(&format!(".{}.", entry.id)) {
                check.place.clear();
                check.differs("the plugin's failures", "none", line);
            }
        }
    }
    for (number, step) in entry.steps().iter().enumerate() {
        check.place = place(entry, number);
        if let Some(expected) = &step.expect.details {
            let begin = format!("{} {number} ", entry.id);
            let got = access_log
                .lines()
                .find_map(|line| line.strip_prefix(&begin))
                .unwrap_or("no line");
            // Without a name of the plugin's own, the detail has the entry's.
            let got = got.replace(
                &format!("outrider.{}", entry.id),
                &format!("outrider.{}", entry.subject.plugin),
            );
            check.equal("the response-code detail", expected, &got);
        }
        for text in &step.expect.no_log {
            if let Some(line) = output.lines().iter().find(|line| line.contains(text)) {
                check.differs("the log", format!("no line with {text:?}"), line.clone());
            }
        }
    }
}

/// What a step is played on.
struct Stage<'a> {
    gateway: &'a Gateway,
    target: &'a Target,
    upstream: &'a Scripted,
    services: &'a mut BTreeMap<String, Scripted>,
}

impl Stage<'_> {
    async fn play(
        &mut self,
        check: &mut Check,
        entry: &Entry<'_>,
        number: usize,
        step: &Step,
    ) -> anyhow::Result<()> {
        self.upstream.script([answer(step)]);
        for (name, service) in self.services.iter_mut() {
            let answers = step
                .callouts
                .iter()
                .filter(|callout| callout.expect.upstream == *name);
            service.script(answers.map(callout_answer));
            if fails_by(step, Failure::Refused) {
                service.refuse().await;
            } else {
                service.accept().await?;
            }
        }
        let mark = self.gateway.output.mark();
        let began = Instant::now();
        let response = match self.target.send(request(entry, number, step)).await {
            Ok(response) => response,
            Err(error) => {
                check.differs("the response", "one", error.to_string());
                return Ok(());
            }
        };
        let took = began.elapsed();
        let Expect {
            upstream_request,
            response: expected,
            delay_ms,
            log,
            fault,
            // A case with these is not replayed.
            facts: _,
            // These are looked at when the gateway has ended.
            no_log: _,
            details: _,
        } = &step.expect;
        let reached = self.upstream.received();
        match (upstream_request, reached.as_slice()) {
            (None, _) | (Some(ExpectedRequest::Text(_)), []) => {}
            (Some(ExpectedRequest::Text(_)), [got, ..]) => {
                check.differs("the upstream's request", "none", format!("{got:?}"));
            }
            (Some(ExpectedRequest::Mapping(expected)), [got]) => {
                check.message("upstream's request", expected, got);
            }
            (Some(ExpectedRequest::Mapping(_)), other) => {
                let got = format!(
                    "{}; the client got {}: {}",
                    other.len(),
                    response.status,
                    response.text()
                );
                check.differs("the upstream's requests", "1", got);
            }
        }
        if let Some(expected) = expected {
            check.response(expected, &response);
        }
        if let Some(delay) = delay_ms
            && took < Duration::from_millis(*delay)
        {
            check.differs(
                "the time that it takes",
                format!("at least {delay} ms"),
                format!("{} ms", took.as_millis()),
            );
        }
        for text in log {
            if let Err(error) = self.gateway.output.wait_after(mark, text, SOON) {
                check.differs(
                    "the log",
                    format!("a line with {text:?}"),
                    error.to_string(),
                );
            }
        }
        if let Some(text) = fault {
            self.fault(check, entry, number, text, mark);
        }
        self.callouts(check, step);
        Ok(())
    }

    /// The plugin's failure, as its line in the log tells it.
    fn fault(
        &self,
        check: &mut Check,
        entry: &Entry<'_>,
        number: usize,
        expected: &str,
        mark: usize,
    ) {
        // One plugin's failures are told once in ten seconds; its counters tell of the others.
        let told_before = entry
            .steps()
            .iter()
            .take(number)
            .any(|step| step.expect.fault.is_some());
        if told_before {
            return;
        }
        let begin = format!("plugin {}: failed in ", entry.id);
        match self.gateway.output.wait_after(mark, &begin, SOON) {
            Ok(line) => {
                let told = as_without_envoy(&line, &begin, entry);
                if !told.contains(expected) {
                    check.differs(
                        "the plugin's failure",
                        format!("one with {expected:?}"),
                        told,
                    );
                }
            }
            Err(error) => check.differs(
                "the plugin's failure",
                format!("one with {expected:?}"),
                error.to_string(),
            ),
        }
    }

    fn callouts(&self, check: &mut Check, step: &Step) {
        for (name, service) in self.services.iter() {
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
                    body_json: said.body_json.clone(),
                    ..ExpectedMessage::default()
                };
                check.message(&what, &message, made);
            }
        }
    }
}

/// A failure's line, `plugin NAME: failed in PHASE (CAUSE): MESSAGE; …`, as the run without Envoy has it:
/// `CAUSE in PHASE: MESSAGE`, with the plugin's own name.
fn as_without_envoy(line: &str, begin: &str, entry: &Entry<'_>) -> String {
    let told = line.split_once(begin).map_or(line, |(_, told)| told);
    let told = told.replace(
        &format!("{}/", entry.id),
        &format!("{}/", entry.subject.plugin),
    );
    let parts = told
        .split_once(" (")
        .and_then(|(phase, rest)| Some((phase, rest.split_once("): ")?)));
    match parts {
        Some((phase, (cause, message))) => format!("{cause} in {phase}: {message}"),
        None => told,
    }
}
