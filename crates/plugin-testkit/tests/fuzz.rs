//! Hostile requests and responses against every Lua plugin that ships: whatever a client or an upstream
//! sends, no plugin may fail (by an error, its time or its memory), leave a stream without a response, or
//! send a body where HTTP has none.
//!
//! Configurations are generated from each plugin's `config.schema.json`, and taken from its cases. Requests
//! are made of the words of the configuration, so that they get past the first comparison. The same seed
//! generates the same requests: `FUZZ_SEED=7 FUZZ_CONFIGS=5000 cargo test -p outrider-plugin-testkit --test
//! fuzz` runs more of them. A failure prints the configuration and the smallest request that still fails.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{Attribute, CalloutFailure, Chain};
use outrider_plugin_testkit::{
    Arrival, CaseKind, Headers, LoadedPlugin, Message, MetricTable, Outcome, ScriptedAnswer,
    ScriptedHost, ScriptedResponse, load_cases, play,
};
use regex::Regex;
use serde_json::{Map, Value, json};

/// Generated configurations of each plugin.
const CONFIGS: u64 = 16;
/// Requests for each configuration, one after the other to the same VM.
const REQUESTS: u64 = 30;
/// Attempts to generate a configuration that the plugin accepts.
const ATTEMPTS: usize = 8;
/// The most that the headers of one message have, in bytes, as Envoy limits them.
const HEADER_BYTES: usize = 60 * 1024;
/// Attempts to make a failing request smaller.
const SHRINKS: usize = 300;

/// Pseudo-random numbers: `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

/// Words for configurations: each property takes those that its schema allows.
const WORDS: &[&str] = &[
    "a",
    "A-b",
    "x-tag",
    "X-User",
    "x-api-key",
    "authorization",
    "cookie",
    "origin",
    "user-agent",
    "x-forwarded-for",
    "session",
    "Bearer",
    "key",
    "secret",
    "alice",
    "GET",
    "POST",
    "*",
    "null",
    "https://shop.example.com",
    "https://*.example.com",
    "http://localhost:*",
    "https://*.*.*.test",
    "https://[a-z0-9-]{1,600}\\.example\\.com",
    "^/v[a-z]{900,990}!",
    "[a-z]+@[a-z.]+\\.[a-z]{2,63}",
    "(a+)+$",
    "(?i)secret",
    "\\b\\d{12}(\\d{4})\\b",
    "****$1",
    "$0$0$0",
    "%1",
    "%%",
    "<b>",
    "/",
    "/api/",
    "text/html",
    "application/json",
    "application/*+json",
    "text/*",
    "*/*",
    "10.0.0.0/8",
    "127.0.0.1",
    "2001:db8::/32",
    "::/0",
    "192.168.0.0/16",
    "aGVsbG8=",
    "5xx",
    "500-504",
    "v1",
    "v2",
    "${req.header.x-tag}",
    "${req.query.a}${req.query.a}${req.query.a}",
    "${req.path} $$ ${req.host}",
    "${client.address}",
    "${resp.header.x-tag}",
    "a\nb",
    "\u{e4}\u{20ac}",
    "the \"shop\"",
    "second",
];

/// Schemas for requests, where a configuration has a JSON Schema.
fn request_schemas() -> Vec<Value> {
    vec![
        json!({"type": "object"}),
        json!({"properties": {"a": {"type": "integer", "minimum": 0}, "x-tag": {"type": "number"}}}),
        json!({"properties": {"a": {"type": "array", "items": {"type": "number"}, "uniqueItems": true}}}),
        json!({"properties": {"a": {"type": "boolean"}, "x-tag": {"pattern": "^[a-z]+$"}}, "required": ["a"]}),
        json!({"additionalProperties": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "array"}]}}),
        json!({"$defs": {"t": {"items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}),
        json!({"enum": [{"a": 1}, []]}),
    ]
}

/// Generates configurations from a schema.
struct Generator<'a> {
    root: &'a Value,
    /// Texts in the configurations of the plugin's cases, by the key under which they stand.
    own: BTreeMap<String, Vec<String>>,
    /// The key whose value is generated.
    key: String,
    patterns: BTreeMap<String, Regex>,
}

impl Generator<'_> {
    fn resolve<'b>(&'b self, schema: &'b Value) -> &'b Value {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(place) => self.root.pointer(place.trim_start_matches('#')).unwrap(),
            None => schema,
        }
    }

    fn value(&mut self, schema: &Value, random: &mut Random) -> Value {
        let schema = self.resolve(schema).clone();
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            return random.pick(values).clone();
        }
        let kind = match schema.get("type") {
            Some(Value::Array(kinds)) => random.pick(kinds).as_str().unwrap().to_owned(),
            Some(kind) => kind.as_str().unwrap().to_owned(),
            None => {
                let ways = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
                return self.value(&random.pick(ways.unwrap()).clone(), random);
            }
        };
        match kind.as_str() {
            "object" => self.object(&schema, random),
            "array" => {
                let least = schema["minItems"].as_u64().unwrap_or(0);
                let count = usize::try_from(least).unwrap() + random.below(3);
                (0..count)
                    .map(|_| self.value(&schema["items"], random))
                    .collect()
            }
            "string" => Value::String(self.text(&schema, random)),
            "boolean" => Value::Bool(random.one_in(2)),
            "integer" | "number" => {
                let least = schema["minimum"].as_f64().unwrap_or(0.0);
                let most = schema["maximum"].as_f64().unwrap_or(1e9);
                let number = match random.below(4) {
                    0 => least,
                    1 => most,
                    #[expect(clippy::cast_precision_loss, reason = "a small number")]
                    _ => (least + random.below(40) as f64).min(most),
                };
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "within the schema's bounds"
                )]
                if kind == "integer" {
                    json!(number as i64)
                } else {
                    json!(number)
                }
            }
            kind => panic!("no generator for {kind}"),
        }
    }

    fn object(&mut self, schema: &Value, random: &mut Random) -> Value {
        let mut members = Map::new();
        let Some(properties) = schema["properties"].as_object() else {
            let Some(values) = schema.get("additionalProperties") else {
                return random.pick(&request_schemas()).clone();
            };
            let least = usize::try_from(schema["minProperties"].as_u64().unwrap_or(0)).unwrap();
            for _ in 0..least + random.below(3) {
                let names = schema.get("propertyNames").unwrap_or(&Value::Null);
                let names = self.resolve(names).clone();
                let name = self.text(&names, random);
                let value = self.value(&values.clone(), random);
                members.insert(name, value);
            }
            return Value::Object(members);
        };
        let mut wanted: Vec<String> = names_of(&schema["required"]);
        let mut unwanted: Vec<String> = Vec::new();
        let mut groups = vec![&schema["oneOf"], &schema["anyOf"]];
        let all = schema["allOf"].as_array().into_iter().flatten();
        groups.extend(all.map(|group| &group["oneOf"]));
        for group in groups {
            let Some(ways) = group.as_array() else {
                continue;
            };
            let chosen = names_of(&random.pick(ways)["required"]);
            for way in ways {
                let others = names_of(&way["required"]).into_iter();
                unwanted.extend(others.filter(|name| !chosen.contains(name)));
            }
            wanted.extend(chosen);
        }
        let few = schema["maxProperties"].as_u64() == Some(1);
        let only = random
            .pick(&properties.keys().cloned().collect::<Vec<_>>())
            .clone();
        for (name, property) in properties {
            let is_chosen = if few {
                *name == only
            } else {
                wanted.contains(name) || (!unwanted.contains(name) && random.one_in(3))
            };
            if is_chosen {
                self.key.clone_from(name);
                members.insert(name.clone(), self.value(property, random));
            }
        }
        Value::Object(members)
    }

    fn text(&mut self, schema: &Value, random: &mut Random) -> String {
        let fits = |pattern: Option<&Regex>, word: &str| {
            pattern.is_none_or(|pattern| pattern.is_match(word))
                && word.chars().count()
                    >= usize::try_from(schema["minLength"].as_u64().unwrap_or(0)).unwrap()
        };
        let pattern = schema["pattern"].as_str().map(|pattern| {
            &*self
                .patterns
                .entry(pattern.to_owned())
                .or_insert_with(|| Regex::new(pattern).unwrap())
        });
        let own = self.own.get(&self.key).into_iter().flatten();
        let own = own.map(String::as_str);
        let words: Vec<&str> = own.filter(|word| fits(pattern, word)).collect();
        if !words.is_empty() && !random.one_in(8) {
            return (*random.pick(&words)).to_owned();
        }
        let words: Vec<_> = WORDS.iter().filter(|word| fits(pattern, word)).collect();
        (**random.pick(&words)).to_owned()
    }
}

fn names_of(list: &Value) -> Vec<String> {
    let names = list.as_array().into_iter().flatten();
    names
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

/// The texts of a configuration by the key under which they stand.
fn texts_by_key(key: &str, config: &Value, texts: &mut BTreeMap<String, Vec<String>>) {
    match config {
        Value::String(text) => texts.entry(key.to_owned()).or_default().push(text.clone()),
        Value::Array(values) => values
            .iter()
            .for_each(|value| texts_by_key(key, value, texts)),
        Value::Object(members) => {
            for (name, value) in members {
                texts_by_key(name, value, texts);
            }
        }
        _ => {}
    }
}

/// All texts and names of a configuration.
fn words_of(config: &Value, words: &mut Vec<String>) {
    match config {
        Value::String(text) => words.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| words_of(value, words)),
        Value::Object(members) => {
            for (name, value) in members {
                words.push(name.clone());
                words_of(value, words);
            }
        }
        _ => {}
    }
}

/// Numbers, and texts that some parsers take for one.
const NUMBERS: &[&[u8]] = &[
    b"1e999",
    b"-1e999",
    b"1.",
    b"-0",
    b"0x10",
    b"nan",
    b"inf",
    b"1e",
    b"9007199254740993",
    b"007",
    b"1e5",
    b"-1",
    b"99999999999999999999",
];

/// Values that parsers stumble over.
const ODD: &[&[u8]] = &[
    b"",
    b" ",
    b"true",
    b"null",
    b"[]",
    b"{}",
    b"\"",
    b"%",
    b"%zz",
    b"%00",
    b"%0d%0a",
    b"+",
    b"=",
    b"==",
    b";;",
    b"&&",
    b"?",
    b"#",
    b"//",
    b"/..%2f",
    b"a=b",
    b"=a=b",
    b"a b=c",
    b"\xff\xfe",
    b"\xc3",
    b"\xe2\x80",
    b"\xf0\x9f\x98\x80",
    b"\x7f",
    b"\x01\x1b",
    b"Basic",
    b"Basic ====",
    b"Basic OnB3",
    b"Bearer ",
    b"Bearer  x  ",
    b"1.2.3.4",
    b"1.2.3.4:80",
    b"[::1]:80",
    b"::ffff:1.2.3.4",
    b"999.1.1.1",
    b"01.2.3.4",
    b"::%eth0",
    b"https://",
    b"https://a.b.c.test",
    b"null, null",
    b"gzip",
    b"identity",
    b"br, gzip",
    b"text/html; charset=x",
    b"application/json",
    b"application/problem+json",
    b"multipart/byteranges; boundary=x",
    b"bytes 0-1/2",
];

/// Bytes that are repeated to the length of a whole header.
const RUNS: &[u8] = b" \ta0=;,%&-.:/\"\\([{<+@_\xff";

const HEADER_NAMES: &[&str] = &[
    "cookie",
    "authorization",
    "origin",
    "access-control-request-method",
    "access-control-request-headers",
    "access-control-request-private-network",
    "user-agent",
    "content-type",
    "content-encoding",
    "x-forwarded-for",
    "accept-encoding",
    "x-api-key",
    "x-token",
    "x-tag",
    "x-user",
    "x-request-id",
    "x-traffic-tag",
    "x-consumer",
    "x-version",
    "range",
    "via",
];

const RESPONSE_NAMES: &[&str] = &[
    "content-type",
    "content-encoding",
    "content-range",
    "etag",
    "vary",
    "set-cookie",
    "x-tag",
    "access-control-allow-origin",
    "cache-control",
    "x-user",
    "location",
];

const METHODS: &[&str] = &[
    "GET", "GET", "POST", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE",
    "odd",
];

const STATUSES: &[u16] = &[
    200, 200, 200, 201, 204, 205, 206, 218, 301, 304, 400, 401, 404, 416, 500, 503, 599, 600, 999,
];

fn length(random: &mut Random) -> usize {
    let most = *random.pick(&[8, 8, 64, 600, 9000, HEADER_BYTES]);
    if random.one_in(2) {
        most
    } else {
        random.below(most)
    }
}

fn run(random: &mut Random) -> Vec<u8> {
    let byte = *random.pick(RUNS);
    vec![byte; length(random)]
}

/// A value of a header, a cookie or a parameter; without the bytes that no header can have.
fn hostile(words: &[String], random: &mut Random) -> Vec<u8> {
    let mut bytes = match random.below(10) {
        0..=1 => random.pick(words).clone().into_bytes(),
        2 => random.pick(ODD).to_vec(),
        3 => random.pick(NUMBERS).to_vec(),
        4 => run(random),
        5 => (0..random.below(40)).map(|_| random.byte()).collect(),
        6 => {
            let part = hostile(words, random);
            let separator = *random.pick(&["; ", ", ", "=", "&", " ", ".", ":", "/"]);
            let count = length(random) / (part.len() + separator.len());
            [part.as_slice(), separator.as_bytes()]
                .concat()
                .repeat(count)
        }
        7..=8 => {
            let middle = run(random);
            let (first, last) = (random.pick(words), random.pick(words));
            let separator = *random.pick(&["", " ", "=", ";"]);
            [
                first.as_bytes(),
                separator.as_bytes(),
                &middle,
                separator.as_bytes(),
                last.as_bytes(),
            ]
            .concat()
        }
        _ => {
            let cookies = (0..random.below(5)).map(|_| {
                let (name, value) = (random.pick(words).clone(), random.pick(words));
                format!("{name}={value}")
            });
            cookies.collect::<Vec<_>>().join("; ").into_bytes()
        }
    };
    bytes.retain(|byte| !matches!(byte, 0 | b'\r' | b'\n'));
    bytes.truncate(HEADER_BYTES);
    bytes
}

/// A name that a header map holds, or nothing.
fn is_token(name: &str) -> bool {
    let is_other = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.bytes().all(is_other)
}

fn add_headers(headers: &mut Headers, names: &[&str], words: &[String], random: &mut Random) {
    let mut room = HEADER_BYTES;
    for _ in 0..random.below(7) {
        let word = random.pick(words);
        let name = if random.one_in(2) && is_token(word) {
            word.clone()
        } else {
            (**random.pick(names)).to_owned()
        };
        // The codec's own, which it has checked before a filter sees them.
        let is_codecs = ["content-length", "transfer-encoding", "connection", "host"]
            .contains(&name.to_ascii_lowercase().as_str());
        let value = hostile(words, random);
        if is_codecs || value.len() + name.len() > room {
            continue;
        }
        room -= value.len() + name.len();
        headers.add(name.as_bytes(), &value);
    }
}

fn path(words: &[String], random: &mut Random) -> Vec<u8> {
    let mut path = b"/".to_vec();
    if random.one_in(3) {
        path.extend(hostile(words, random));
    }
    if random.one_in(2) {
        path.push(b'?');
        for _ in 0..random.below(5) {
            path.extend_from_slice(random.pick(words).as_bytes());
            path.push(b'=');
            path.extend(hostile(words, random));
            path.push(b'&');
        }
    }
    // Codecs refuse these.
    path.retain(|byte| *byte > b' ' && *byte != 0x7f);
    path.truncate(HEADER_BYTES);
    path
}

fn body(words: &[String], random: &mut Random) -> Vec<u8> {
    let count = length(random);
    match random.below(10) {
        0 => b"[".repeat(count),
        1 => b"{\"a\":".repeat(count / 5),
        2 => [b"[", b"0,".repeat(count / 2).as_slice(), b"0]"].concat(),
        3 => [b"{\"a\": 1", b"9".repeat(count).as_slice(), b"}"].concat(),
        4 => br#"{"a": 1e999, "a": true, "b": "\ud800", "x-tag": -0.0}"#.to_vec(),
        5 => random.pick(words).repeat(count / 8 + 1).into_bytes(),
        6 => (0..count).map(|_| random.byte()).collect(),
        7 => json!({"a": random.pick(words), "x-tag": [1, "1", null]})
            .to_string()
            .into_bytes(),
        8 => vec![*random.pick(RUNS); count],
        _ => hostile(words, random),
    }
}

fn with_body(mut headers: Headers, body: Vec<u8>, random: &mut Random) -> Message {
    let chunks = match random.below(3) {
        0 => {
            headers.set(b"content-length", body.len().to_string().as_bytes());
            vec![body]
        }
        1 => vec![body],
        _ => {
            let (first, second) = body.split_at(random.below(body.len() + 1));
            vec![first.to_vec(), second.to_vec()]
        }
    };
    Message {
        headers,
        chunks: chunks
            .into_iter()
            .filter(|chunk| !chunk.is_empty())
            .collect(),
        trailers: None,
    }
}

/// Part of an exchange.
type Part<T> = fn(&mut Exchange) -> &mut T;

/// One request with all that a plugin meets.
#[derive(Clone)]
struct Exchange {
    request: Message,
    answer: Message,
    callouts: Vec<ScriptedAnswer>,
    client: String,
    body_limit: usize,
    arrival: Arrival,
}

impl Exchange {
    fn generate(words: &[String], random: &mut Random) -> Self {
        let method = *random.pick(METHODS);
        let mut headers = Headers::new()
            .with(
                ":authority",
                random.pick(&["shop.example.com", "a:80", "[::1]"]),
            )
            .with(":method", method)
            .with(":scheme", "http");
        if method != "CONNECT" {
            headers.add(b":path", &path(words, random));
        }
        add_headers(&mut headers, HEADER_NAMES, words, random);
        let has_body = !["GET", "HEAD", "CONNECT"].contains(&method) && !random.one_in(3);
        let request = if has_body {
            let body = body(words, random);
            with_body(headers, body, random)
        } else {
            Message {
                headers,
                ..Message::default()
            }
        };
        let callouts = (0..2).map(|_| Self::callout(words, random)).collect();
        Self {
            request,
            answer: Self::answer(words, random),
            callouts,
            client: (*random.pick(&[
                "127.0.0.1:50000",
                "10.1.2.3:1",
                "[2001:db8::1]:443",
                "",
                "pipe",
            ]))
            .to_owned(),
            body_limit: *random.pick(&[1024, 64 * 1024, 1024 * 1024]),
            arrival: *random.pick(&Arrival::ALL),
        }
    }

    fn answer(words: &[String], random: &mut Random) -> Message {
        let status = *random.pick(STATUSES);
        let mut headers = Headers::new().with(":status", status.to_string());
        add_headers(&mut headers, RESPONSE_NAMES, words, random);
        if [204, 205, 304].contains(&status) || random.one_in(4) {
            return Message {
                headers,
                ..Message::default()
            };
        }
        let body = body(words, random);
        with_body(headers, body, random)
    }

    fn callout(words: &[String], random: &mut Random) -> ScriptedAnswer {
        let answer = if random.one_in(5) {
            Err(*random.pick(&[
                CalloutFailure::Timeout,
                CalloutFailure::Reset,
                CalloutFailure::ClusterNotFound,
            ]))
        } else {
            let message = Self::answer(words, random);
            Ok(ScriptedResponse {
                headers: message.headers,
                body: message.chunks,
                ..ScriptedResponse::default()
            })
        };
        ScriptedAnswer {
            after: Duration::from_millis(u64::try_from(random.below(1000)).unwrap()),
            answer,
        }
    }

    fn play(&self, chain: &Arc<Chain>) -> Outcome {
        let mut host = ScriptedHost::starting_at(Duration::ZERO);
        host.body_limit = self.body_limit;
        if !self.client.is_empty() {
            host.set_attribute(Attribute::SourceAddress, self.client.as_str());
        }
        host.answers = self.callouts.iter().cloned().collect();
        play(
            Arc::clone(chain),
            &self.request,
            &self.answer,
            self.arrival,
            host,
        )
    }

    /// What is wrong with the outcome; empty if nothing is.
    fn problems(&self, chain: &Arc<Chain>) -> Vec<String> {
        let outcome = self.play(chain);
        let mut problems: Vec<String> = outcome
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
        problems.extend(outcome.problems);
        if outcome.reset {
            problems.push("the stream was reset".to_owned());
        }
        let Some(response) = outcome.response else {
            problems.push("the client got no response".to_owned());
            return problems;
        };
        let status = response.headers.text(":status");
        if ["204", "205", "304"].contains(&status.as_str()) && !response.body.is_empty() {
            problems.push(format!("a response with status {status} has a body"));
        }
        let length = response.headers.get(b"content-length");
        if let Some(length) = length
            && !response.body.is_empty()
            && length != response.body.len().to_string().as_bytes()
        {
            problems.push(format!(
                "content-length is {}, and the body has {} bytes",
                String::from_utf8_lossy(length),
                response.body.len()
            ));
        }
        problems
    }

    /// Exchanges that are a little smaller.
    fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        let mut push = |change: &dyn Fn(&mut Self)| {
            let mut other = self.clone();
            change(&mut other);
            smaller.push(other);
        };
        push(&|other| other.request.chunks.clear());
        push(&|other| other.answer.chunks.clear());
        push(&|other| other.callouts.clear());
        let chunks: [Part<Vec<Vec<u8>>>; 2] = [
            |other| &mut other.request.chunks,
            |other| &mut other.answer.chunks,
        ];
        for chunks in chunks {
            push(&|other| {
                let whole = chunks(other).concat();
                let half = whole.get(..whole.len() / 2).unwrap_or_default().to_vec();
                *chunks(other) = vec![half];
            });
        }
        let maps: [Part<Headers>; 2] = [
            |other| &mut other.request.headers,
            |other| &mut other.answer.headers,
        ];
        for map in maps {
            let headers = map(&mut self.clone()).clone();
            for (name, value) in headers.iter() {
                if !name.starts_with(b":") {
                    push(&|other| map(other).remove(name));
                }
                let half = value.get(..value.len() / 2).unwrap_or_default();
                if name != b":status" && name != b":method" && value.len() > 1 {
                    push(&|other| map(other).set(name, half));
                }
            }
        }
        smaller
    }
}

/// A text of bytes in which runs of one byte are counted.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(PartialEq::eq) {
        let byte = run.first().unwrap().escape_ascii().to_string();
        if run.len() > 8 {
            write!(text, "({byte} x {})", run.len()).unwrap();
        } else {
            text.push_str(&byte.repeat(run.len()));
        }
    }
    if text.len() > 2000 {
        text.truncate(2000);
        text.push('…');
    }
    text
}

fn print(message: &Message, text: &mut String) {
    for (name, value) in message.headers.iter() {
        writeln!(text, "    {}: {}", shown(name), shown(value)).unwrap();
    }
    for chunk in &message.chunks {
        writeln!(text, "    | {}", shown(chunk)).unwrap();
    }
}

fn report(
    seed: u64,
    name: &str,
    config: &Value,
    exchange: &Exchange,
    problems: &[String],
) -> String {
    let mut text = format!("{name}, FUZZ_SEED={seed}\n  config: {config}\n  request:\n");
    print(&exchange.request, &mut text);
    text.push_str("  response of the upstream:\n");
    print(&exchange.answer, &mut text);
    for callout in &exchange.callouts {
        let status = callout
            .answer
            .as_ref()
            .map(|answer| answer.headers.text(":status"));
        writeln!(text, "  callout: {status:?}").unwrap();
    }
    writeln!(
        text,
        "  client {:?}, body_limit {}, {}",
        exchange.client, exchange.body_limit, exchange.arrival
    )
    .unwrap();
    for problem in problems {
        writeln!(text, "  {problem}").unwrap();
    }
    text
}

/// The smallest exchange found that still has problems, on a fresh VM each time.
fn shrunk(mut exchange: Exchange, fresh: &dyn Fn() -> Arc<Chain>) -> Exchange {
    let mut left = SHRINKS;
    'again: loop {
        for other in exchange.smaller() {
            if left == 0 {
                return exchange;
            }
            left -= 1;
            if !other.problems(&fresh()).is_empty() {
                exchange = other;
                continue 'again;
            }
        }
        return exchange;
    }
}

fn number_of(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn plugins() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/lua");
    let mut plugins: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("plugin.yaml").is_file())
        .collect();
    plugins.sort();
    plugins
}

/// The configurations of a plugin's cases that are accepted.
fn configs_of_cases(folder: &Path) -> Vec<Value> {
    load_cases(&folder.join("cases"))
        .unwrap()
        .into_iter()
        .filter(|case| matches!(case.kind, CaseKind::Steps(_)) && case.route_config.is_none())
        .map(|case| case.config)
        .collect()
}

/// Runs one plugin; returns what failed, and how many generated configurations and requests there were.
fn fuzz(folder: &Path, seed: u64, configs: u64) -> (Vec<String>, usize, usize) {
    let package = outrider_plugin_store::open(folder).unwrap();
    let plugin = LoadedPlugin::from_package(&package).unwrap();
    let schema = package.schema.clone().unwrap();
    let from_cases = configs_of_cases(folder);
    let mut generator = Generator {
        root: &schema,
        own: BTreeMap::new(),
        key: String::new(),
        patterns: BTreeMap::new(),
    };
    for config in &from_cases {
        texts_by_key("", config, &mut generator.own);
    }
    let mut random = Random(
        seed ^ plugin
            .name()
            .bytes()
            .fold(0_u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte)),
    );
    let (mut failures, mut accepted, mut requests) = (Vec::new(), 0, 0);
    for round in 0..configs {
        let is_generated = round % 4 != 0;
        let mut config = if is_generated {
            generator.value(&schema, &mut random)
        } else {
            random.pick(&from_cases).clone()
        };
        let load = |config: &Value| plugin.chain(config, None, &mut MetricTable::new());
        // The plugin refuses what the schema cannot say.
        let mut chain = load(&config);
        for _ in 0..ATTEMPTS {
            if chain.is_err() {
                config = generator.value(&schema, &mut random);
                chain = load(&config);
            }
        }
        let Ok(chain) = chain else { continue };
        accepted += usize::from(is_generated);
        let mut words: Vec<String> = HEADER_NAMES.iter().map(|name| (*name).to_owned()).collect();
        words_of(&config, &mut words);
        // The configuration's own words come twice as often as all others together.
        let own: Vec<_> = words.iter().skip(HEADER_NAMES.len()).cloned().collect();
        words.extend(own.iter().cycle().take(2 * HEADER_NAMES.len()).cloned());
        for _ in 0..REQUESTS {
            let exchange = Exchange::generate(&words, &mut random);
            requests += 1;
            let problems = exchange.problems(&chain);
            if problems.is_empty() {
                continue;
            }
            let fresh = || load(&config).unwrap();
            let small = shrunk(exchange, &fresh);
            let again = small.problems(&fresh());
            let shown = if again.is_empty() { &problems } else { &again };
            failures.push(report(seed, plugin.name(), &config, &small, shown));
            break;
        }
        if failures.len() >= 3 {
            break;
        }
    }
    (failures, accepted, requests)
}

#[test]
fn no_request_and_no_response_makes_a_shipped_plugin_fail() {
    let (seed, configs) = (
        number_of("FUZZ_SEED", 1),
        number_of("FUZZ_CONFIGS", CONFIGS),
    );
    let only = std::env::var("FUZZ_PLUGIN").ok();
    let mut failures = Vec::new();
    for folder in plugins() {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let (failed, accepted, requests) = fuzz(&folder, seed, configs);
        eprintln!("{name}: {accepted} generated configurations, {requests} requests");
        // Configurations that the plugin refuses show nothing.
        assert!(
            !failed.is_empty() || u64::try_from(accepted).unwrap() * 2 >= configs,
            "{name} accepted {accepted} generated configurations only"
        );
        failures.extend(failed);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
