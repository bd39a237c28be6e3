//! Cases: what a plugin is asked to show, as data. The same files run here without Envoy, and again
//! on the real one.

use std::collections::BTreeMap;
use std::fmt;

use outrider_plugin_formats::Problem;
use outrider_yaml::{Document, Location};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::facts::{ExpectedFacts, Facts};

/// One case of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The file that holds it.
    pub file: String,
    /// The line on which it begins, from 1.
    pub line: usize,
    /// What it shows, in words.
    pub name: String,
    /// The gateway's configuration of the plugin.
    pub config: Value,
    /// What the route changes of it: a JSON Merge Patch.
    pub route_config: Option<Value>,
    /// How many bytes of a body may be held back, at least [`Case::LEAST_BODY_LIMIT`]; absent: the
    /// gateway's default.
    pub body_limit: Option<usize>,
    /// What happens with it.
    pub kind: CaseKind,
}

impl Case {
    /// Whether it says facts that only a scripted host can make true, so that it runs without Envoy only.
    pub fn is_scripted(&self) -> bool {
        match &self.kind {
            CaseKind::Refused(_) => false,
            CaseKind::Steps(steps) => steps.iter().any(|step| {
                step.facts != Facts::default() || step.expect.facts != ExpectedFacts::default()
            }),
        }
    }

    /// The least `body_limit` that `outrider.yaml` takes.
    pub const LEAST_BODY_LIMIT: usize = 1024;
}

/// What a case is about.
#[derive(Debug, Clone, PartialEq)]
pub enum CaseKind {
    /// The configuration is refused, with a message that contains this.
    Refused(String),
    /// Requests, one after the other, to the same plugin.
    Steps(Vec<Step>),
}

/// One request with all that belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// How long after the step before it begins, in milliseconds.
    pub after_ms: u64,
    /// What else is true of the stream.
    pub facts: Facts,
    /// What the client sends.
    pub request: Request,
    /// What the upstream answers.
    pub upstream: Upstream,
    /// What the plugin asks other services, in this order.
    pub callouts: Vec<Callout>,
    /// What has to come of it.
    pub expect: Expect,
}

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// Default: `GET`, or `POST` with a body.
    pub method: Option<String>,
    /// Path with query.
    pub path: String,
    /// Host.
    pub host: String,
    /// Headers.
    pub headers: BTreeMap<String, Values>,
    /// The body, in one piece and with a `content-length`.
    pub body: Option<String>,
    /// The body in chunks, without a `content-length`; excludes `body`.
    pub chunks: Vec<String>,
    /// Trailers; they need `chunks`.
    pub trailers: BTreeMap<String, Values>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            method: None,
            path: "/".to_owned(),
            host: "shop.example.com".to_owned(),
            headers: BTreeMap::new(),
            body: None,
            chunks: Vec::new(),
            trailers: BTreeMap::new(),
        }
    }
}

impl Request {
    /// The method, said or implied.
    pub fn method(&self) -> &str {
        match &self.method {
            Some(method) => method,
            None if self.body.is_some() || !self.chunks.is_empty() => "POST",
            None => "GET",
        }
    }
}

/// What the upstream answers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Upstream {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: BTreeMap<String, Values>,
    /// The body, in one piece and with a `content-length`.
    pub body: Option<String>,
    /// The body in chunks, without a `content-length`; excludes `body`.
    pub chunks: Vec<String>,
    /// Trailers; they need `chunks`.
    pub trailers: BTreeMap<String, Values>,
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            status: 200,
            headers: BTreeMap::new(),
            body: None,
            chunks: Vec::new(),
            trailers: BTreeMap::new(),
        }
    }
}

/// A header's value or values.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
pub enum Values {
    /// One.
    Text(String),
    /// Several headers of one name.
    List(Vec<String>),
}

impl Values {
    /// All of them, in order.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::Text(value) => std::slice::from_ref(value),
            Self::List(values) => values,
        }
    }
}

/// A question of the plugin to a service, and what it gets.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Callout {
    /// What it asks.
    pub expect: ExpectedCallout,
    /// What it gets.
    #[serde(default)]
    pub answer: CalloutAnswer,
}

/// What a callout has to be.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedCallout {
    /// The upstream's name.
    pub upstream: String,
    /// Method.
    #[serde(default)]
    pub method: Option<String>,
    /// Path with query.
    #[serde(default)]
    pub path: Option<String>,
    /// Headers; null: must not be there.
    #[serde(default)]
    pub headers: BTreeMap<String, ExpectedValues>,
    /// Body; of a streaming callout all of it.
    #[serde(default)]
    pub body: Option<String>,
    /// The same as JSON: numbers by their values, members in any order.
    #[serde(default)]
    pub body_json: Option<serde_json::Value>,
    /// Trailers of a streaming callout; null: must not be there.
    #[serde(default)]
    pub trailers: BTreeMap<String, ExpectedValues>,
}

/// What a callout gets: a response, or a failure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CalloutAnswer {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: BTreeMap<String, Values>,
    /// Body.
    pub body: String,
    /// The body in chunks, as a streaming callout reads them; excludes `body`.
    pub chunks: Vec<String>,
    /// The time between two chunks, in milliseconds.
    pub chunk_every_ms: u64,
    /// Trailers; they need `chunks`.
    pub trailers: BTreeMap<String, Values>,
    /// How long it takes until the answer begins, in milliseconds.
    pub after_ms: u64,
    /// Instead of a response.
    pub failure: Option<Failure>,
}

impl Default for CalloutAnswer {
    fn default() -> Self {
        Self {
            status: 200,
            headers: BTreeMap::new(),
            body: String::new(),
            chunks: Vec::new(),
            chunk_every_ms: 0,
            trailers: BTreeMap::new(),
            after_ms: 0,
            failure: None,
        }
    }
}

/// How a callout fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The service takes the request and never answers.
    Timeout,
    /// The service closes the connection without an answer.
    Reset,
    /// Nobody listens where the service should be.
    Refused,
    /// The gateway has no upstream of that name.
    NoUpstream,
}

/// What has to come of a request. At least one of these is said.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// What the upstream gets; the word `none`: it is never asked.
    pub upstream_request: Option<ExpectedRequest>,
    /// What the client gets.
    pub response: Option<ExpectedMessage>,
    /// The least time that it takes, in milliseconds.
    pub delay_ms: Option<u64>,
    /// What lines of the plugin's log contain.
    pub log: Vec<String>,
    /// What no line of the log contains; something that only this case could write.
    pub no_log: Vec<String>,
    /// The response-code detail.
    pub details: Option<String>,
    /// What the message of the plugin's failure contains. Without this, a failure of the plugin
    /// fails the case.
    pub fault: Option<String>,
    /// What it leaves on the stream beyond its messages.
    pub facts: ExpectedFacts,
}

impl Expect {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What an upstream has to get.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
pub enum ExpectedRequest {
    /// The word `none`.
    Text(Nothing),
    /// A request.
    Mapping(Box<ExpectedMessage>),
}

/// The word `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nothing {
    /// `none`
    None,
}

/// What a message has to be; what is not said does not matter.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExpectedMessage {
    /// Status code of a response.
    pub status: Option<u16>,
    /// Method of a request.
    pub method: Option<String>,
    /// Path of a request, with query.
    pub path: Option<String>,
    /// Host of a request.
    pub host: Option<String>,
    /// Headers; null: must not be there.
    pub headers: BTreeMap<String, ExpectedValues>,
    /// The whole body.
    pub body: Option<String>,
    /// The whole body as JSON: numbers by their values, members in any order.
    pub body_json: Option<serde_json::Value>,
    /// Part of the body.
    pub body_contains: Option<String>,
    /// Trailers; null: must not be there.
    pub trailers: BTreeMap<String, ExpectedValues>,
}

/// The values that a header has to have, in order.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
pub enum ExpectedValues {
    /// It must not be there.
    Nothing(()),
    /// One.
    Text(String),
    /// These.
    List(Vec<String>),
    /// One that a pattern matches.
    Mapping(ExpectedPattern),
}

/// What a value has to look like that depends on chance.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedPattern {
    /// A regular expression that is found in it.
    pub matches: Pattern,
}

/// A regular expression.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(Regex);

impl TryFrom<String> for Pattern {
    type Error = regex::Error;

    fn try_from(text: String) -> Result<Self, regex::Error> {
        Regex::new(&text).map(Self)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl ExpectedValues {
    /// Whether these are the values, in order; none: it must not be there.
    pub fn are(&self, got: &[impl AsRef<str>]) -> bool {
        let all = |expected: &[String]| {
            expected.len() == got.len()
                && expected
                    .iter()
                    .zip(got)
                    .all(|(expected, got)| expected == got.as_ref())
        };
        match self {
            Self::Nothing(()) => got.is_empty(),
            Self::Text(value) => all(std::slice::from_ref(value)),
            Self::List(values) => all(values),
            Self::Mapping(pattern) => match got {
                [value] => pattern.matches.0.is_match(value.as_ref()),
                _ => false,
            },
        }
    }
}

impl fmt::Display for ExpectedValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing(()) => f.write_str("nothing"),
            Self::Text(value) => write!(f, "{value:?}"),
            Self::List(values) => write!(f, "{values:?}"),
            Self::Mapping(pattern) => write!(f, "one that matches {}", pattern.matches.0.as_str()),
        }
    }
}

/// A case as it is written. A case with one step says it without `steps`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseForm {
    name: outrider_yaml::Located<String>,
    #[serde(default = "empty_config")]
    config: Value,
    #[serde(default)]
    route_config: Option<Value>,
    #[serde(default)]
    body_limit: Option<usize>,
    #[serde(default)]
    refused: Option<String>,
    #[serde(default)]
    steps: Vec<StepForm>,
    #[serde(default)]
    facts: Option<Facts>,
    #[serde(default)]
    request: Option<Request>,
    #[serde(default)]
    upstream: Option<Upstream>,
    #[serde(default)]
    callouts: Vec<Callout>,
    #[serde(default)]
    expect: Option<Expect>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepForm {
    #[serde(default)]
    after_ms: u64,
    #[serde(default)]
    facts: Facts,
    #[serde(default)]
    request: Request,
    #[serde(default)]
    upstream: Upstream,
    #[serde(default)]
    callouts: Vec<Callout>,
    expect: Expect,
}

/// A file holds one case, or a list.
#[derive(Debug, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum FileForm {
    Mapping(Box<CaseForm>),
    List(Vec<CaseForm>),
}

fn empty_config() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Reads the cases in the text of `file`, or says all that is wrong with it.
pub fn read_cases(file: &str, text: &str) -> Result<Vec<Case>, Vec<Problem>> {
    let document = Document::parse(file, text)?;
    let forms = match document.read()? {
        FileForm::Mapping(form) => vec![*form],
        FileForm::List(forms) => forms,
    };
    let mut problems = Vec::new();
    if forms.is_empty() {
        problems.push(document.problem(
            Location { line: 1, column: 1 },
            "there is no case in this file",
            "write one, or remove the file".to_owned(),
        ));
    }
    let mut cases = Vec::new();
    for form in forms {
        let location = form.name.location;
        let mut wrong = |message: &str, mend: &str| {
            problems.push(document.problem(location, message, mend.to_owned()));
        };
        if let Some(kind) = kind_of(&form, &mut wrong) {
            cases.push(Case {
                file: file.to_owned(),
                line: location.line,
                name: form.name.value,
                config: form.config,
                route_config: form.route_config,
                body_limit: form.body_limit,
                kind,
            });
        }
    }
    let mut seen = BTreeMap::new();
    for case in &cases {
        if let Some(first) = seen.insert(case.name.clone(), case.line) {
            problems.push(document.problem(
                Location {
                    line: case.line,
                    column: 0,
                },
                format!("the case of line {first} has this name, too"),
                "name each case by what it alone shows".to_owned(),
            ));
        }
    }
    if problems.is_empty() {
        Ok(cases)
    } else {
        Err(problems)
    }
}

fn kind_of(form: &CaseForm, wrong: &mut dyn FnMut(&str, &str)) -> Option<CaseKind> {
    if form
        .body_limit
        .is_some_and(|limit| limit < Case::LEAST_BODY_LIMIT)
    {
        wrong(
            "`body_limit` is below what a gateway takes",
            "write 1024 or more, in bytes",
        );
        return None;
    }
    let single = form.request.is_some()
        || form.facts.is_some()
        || form.upstream.is_some()
        || !form.callouts.is_empty()
        || form.expect.is_some();
    let ways = [form.refused.is_some(), !form.steps.is_empty(), single];
    if ways.iter().filter(|way| **way).count() > 1 {
        wrong(
            "`refused`, `steps` and `request` (with `upstream`, `callouts`, `expect`) exclude each other",
            "keep one of them",
        );
        return None;
    }
    if let Some(message) = &form.refused {
        return Some(CaseKind::Refused(message.clone()));
    }
    let steps: Vec<Step> = if form.steps.is_empty() {
        vec![Step {
            after_ms: 0,
            facts: form.facts.clone().unwrap_or_default(),
            request: form.request.clone().unwrap_or_default(),
            upstream: form.upstream.clone().unwrap_or_default(),
            callouts: form.callouts.clone(),
            expect: form.expect.clone().unwrap_or_default(),
        }]
    } else {
        form.steps
            .iter()
            .map(|step| Step {
                after_ms: step.after_ms,
                facts: step.facts.clone(),
                request: step.request.clone(),
                upstream: step.upstream.clone(),
                callouts: step.callouts.clone(),
                expect: step.expect.clone(),
            })
            .collect()
    };
    let mut right = true;
    for step in &steps {
        let Step {
            request, upstream, ..
        } = step;
        if step.expect.is_empty() {
            wrong(
                "this case expects nothing, so it can never fail",
                "write `expect:` with what the upstream or the client gets",
            );
            right = false;
        }
        for problem in step.facts.problems() {
            wrong(
                &problem,
                "docs/lua-sdk.md lists the attributes with their kinds, and the members of TLS",
            );
            right = false;
        }
        let answers = || step.callouts.iter().map(|callout| &callout.answer);
        if (request.body.is_some() && !request.chunks.is_empty())
            || (upstream.body.is_some() && !upstream.chunks.is_empty())
            || answers().any(|answer| !answer.body.is_empty() && !answer.chunks.is_empty())
        {
            wrong(
                "`body` and `chunks` exclude each other",
                "keep `body` for one piece with a content-length, `chunks` for several without",
            );
            right = false;
        }
        if (!request.trailers.is_empty() && request.chunks.is_empty())
            || (!upstream.trailers.is_empty() && upstream.chunks.is_empty())
            || answers().any(|answer| !answer.trailers.is_empty() && answer.chunks.is_empty())
        {
            wrong(
                "trailers follow a body in chunks only",
                "write the body as `chunks`",
            );
            right = false;
        }
    }
    right.then_some(CaseKind::Steps(steps))
}
