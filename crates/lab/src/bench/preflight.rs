//! Before anything is counted: does each mechanism do the same work?
//!
//! What was asked of a mechanism is done once more here, on a plain map, and what an echo service saw
//! behind Envoy has to be that. Three forms of each script are looked at: the one that is measured,
//! one that tells what it read, and one that leaves the headers there that it set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use outrider_envoy_process::{Envoy, Level, Options};

use super::bootstrap::{Answers, Listener, bootstrap};
use super::filters::{Sources, filters};
use super::load::{BROWSER, BROWSER_PATH};
use super::mechanism::Family;
use super::scripts::{TELL, Told};
use super::variant::Selection;
use super::workload::{BODY_BYTES, Shape, VALUE, Work, Workload};
use crate::client::{Request, Response, Target};
use crate::echo::Echo;
use crate::free_address::own_addresses;

/// Envoy's Wasm filter compiles Coraza for some twenty seconds, and on a busy machine for longer.
const READY: Duration = Duration::from_mins(5);
/// Long enough to be told from what the scripts set.
const OTHER_VALUE: &str = "another value";
const OTHER_BODY: usize = 300;

/// What can be seen of the work from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    /// The headers `x-h-…` that reached the upstream.
    headers: BTreeMap<String, String>,
    /// What requests told, in any order.
    told: Vec<String>,
    /// What responses told.
    told_of_responses: Vec<String>,
}

/// A form of a script.
#[derive(Debug, Clone, Copy)]
struct Form {
    about: &'static str,
    told: Told,
    removes: bool,
}

const FORMS: [Form; 3] = [
    Form {
        about: "as measured",
        told: Told::Differences,
        removes: true,
    },
    Form {
        about: "telling",
        told: Told::Always,
        removes: true,
    },
    Form {
        about: "telling, without its removals",
        told: Told::Always,
        removes: false,
    },
];

impl Form {
    fn of(self, work: Work) -> Work {
        Work {
            removals: if self.removes { work.removals } else { 0 },
            ..work
        }
    }
}

/// What a client sends here.
#[derive(Debug, Clone, Copy)]
struct Sent {
    about: &'static str,
    headers: usize,
    value: &'static str,
    body: usize,
}

fn sent(shape: Shape) -> [Sent; 2] {
    let body = |bytes| if shape == Shape::Body { bytes } else { 0 };
    [
        Sent {
            about: "the measured request",
            headers: if shape == Shape::TenHeaders { 10 } else { 0 },
            value: VALUE,
            body: body(BODY_BYTES),
        },
        Sent {
            about: "another request",
            headers: 20,
            value: OTHER_VALUE,
            body: body(OTHER_BODY),
        },
    ]
}

/// Compares every mechanism with what is expected; says how many comparisons there were.
pub(crate) async fn check(
    envoy: &Path,
    modules: &Path,
    sources: &Sources,
    family: Family,
    selection: &Selection,
) -> anyhow::Result<usize> {
    let echo = Echo::start("preflight").await?;
    let folder = tempfile::Builder::new()
        .prefix("outrider-bench-")
        .tempdir()?;
    let mut cases = Vec::new();
    let mut listeners = Vec::new();
    for workload in family.workloads() {
        for mechanism in family.mechanisms().iter().copied() {
            if !selection.has(workload, mechanism) {
                continue;
            }
            let forms = if workload.is_firewall {
                &FORMS[..1]
            } else {
                &FORMS[..]
            };
            for form in forms {
                let work = form.of(workload.work);
                let filters = filters(mechanism, workload, work, form.told, sources)?;
                cases.push((workload, mechanism, *form));
                listeners.push(filters);
            }
        }
    }
    let addresses = own_addresses(cases.len())?;
    let listeners = addresses
        .iter()
        .zip(listeners)
        .map(|(address, filters)| Listener::new(*address, Answers::Upstream, filters))
        .collect();
    let file = folder.path().join("bootstrap.json");
    let document = bootstrap(listeners, Some(echo.address()), true);
    fs::write(&file, document.to_string())?;
    let mut options = Options::new(envoy, file);
    options.concurrency = Some(1);
    options.module_folder = Some(modules.to_owned());
    options.log_level = Level::Warning;
    let mut envoy = Envoy::start(options)?;
    envoy.wait_ready(READY)?;
    let mut problems = String::new();
    let mut compared = 0;
    for ((workload, mechanism, form), address) in cases.into_iter().zip(addresses) {
        if workload.is_firewall {
            let answers = answers_of_a_firewall(&Target::http1(address)).await?;
            compared += answers.len();
            if answers != FIREWALL {
                let _ = write!(
                    problems,
                    "\n{} as {}:\n  expected {FIREWALL:?}\n  answered {answers:?}",
                    workload.name,
                    mechanism.title(),
                );
            }
            continue;
        }
        for sent in sent(workload.shape) {
            let response = send(&Target::http1(address), sent).await?;
            let seen = seen(&response).with_context(|| {
                format!("{} as {}, {}", workload.name, mechanism.title(), form.about)
            })?;
            let expected = expected(workload, form, sent);
            compared += 1;
            if seen != expected {
                let _ = write!(
                    problems,
                    "\n{} as {}, {}, given {}:\n  expected {expected:?}\n  seen     {seen:?}",
                    workload.name,
                    mechanism.title(),
                    form.about,
                    sent.about,
                );
            }
        }
    }
    let said: Vec<_> = envoy.last_lines().iter().map(ToString::to_string).collect();
    envoy.stop(Duration::from_secs(5));
    anyhow::ensure!(
        problems.is_empty(),
        "the mechanisms do not do the same work, so counting would compare nothing:{problems}\n{}",
        said.join("\n")
    );
    Ok(compared)
}

/// The answers that a firewall gives to what is measured, and to an attack.
const FIREWALL: [u16; 2] = [200, 403];

async fn answers_of_a_firewall(target: &Target) -> anyhow::Result<[u16; 2]> {
    let mut answers = [0; 2];
    let paths = [BROWSER_PATH, "/search?q=%3Cscript%3Ealert(1)%3C/script%3E"];
    for (path, answer) in paths.into_iter().zip(&mut answers) {
        let mut request = Request::get(path);
        for line in BROWSER.lines() {
            if let Some((name, value)) = line.split_once(": ") {
                request = request.header(name, value);
            }
        }
        *answer = target.send(request).await?.status;
    }
    Ok(answers)
}

async fn send(target: &Target, sent: Sent) -> anyhow::Result<Response> {
    let mut request = if sent.body > 0 {
        Request::post("/", vec![b'b'; sent.body])
    } else {
        Request::get("/")
    };
    for number in 1..=sent.headers {
        request = request.header(&format!("x-h-{number}"), sent.value);
    }
    Ok(target.send(request).await?)
}

fn seen(response: &Response) -> anyhow::Result<Seen> {
    anyhow::ensure!(
        response.status == 200,
        "status {}: {}",
        response.status,
        response.text()
    );
    let description = response.json();
    let headers = description
        .get("headers")
        .and_then(serde_json::Value::as_object)
        .context("the echo service described no request")?;
    let mut seen = Seen::default();
    for (name, values) in headers {
        let values = values.as_array().into_iter().flatten();
        for value in values.filter_map(serde_json::Value::as_str) {
            if name.starts_with("x-h-") {
                seen.headers.insert(name.clone(), value.to_owned());
            } else if name == TELL {
                seen.told
                    .extend(value.split(',').map(|part| part.trim().to_owned()));
            }
        }
    }
    for value in response.headers.all(TELL) {
        let parts = value.split(',').map(|part| part.trim().to_owned());
        seen.told_of_responses.extend(parts);
    }
    seen.told.sort();
    Ok(seen)
}

/// The work, done on a map.
fn expected(workload: &Workload, form: Form, sent: Sent) -> Seen {
    let work = form.of(workload.work);
    let name = |number: usize| format!("x-h-{number}");
    let mut seen = Seen::default();
    for number in 1..=sent.headers {
        seen.headers.insert(name(number), sent.value.to_owned());
    }
    for _ in 0..workload.copies {
        for number in 1..=work.sets {
            seen.headers.insert(name(number), VALUE.to_owned());
        }
        let bytes: usize = (1..=work.reads)
            .filter_map(|number| seen.headers.get(&name(number)))
            .map(String::len)
            .sum();
        for number in 1..=work.removals {
            seen.headers.remove(&name(number));
        }
        let always = form.told == Told::Always;
        if always || bytes != work.header_bytes() {
            seen.told.push(format!("headers {bytes}"));
        }
        let bytes = work.body_reads * sent.body;
        if work.body_reads > 0 && (always || bytes != work.body_bytes()) {
            seen.told.push(format!("body {bytes}"));
        }
        if work.responses && always {
            seen.told_of_responses.push("response".to_owned());
        }
    }
    seen.told.sort();
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expectation_is_the_work() {
        let normal = crate::bench::workload::WORKLOADS
            .iter()
            .find(|one| one.name == "normal")
            .unwrap();
        let [measured, other] = sent(normal.shape);
        assert_eq!(expected(normal, FORMS[0], measured), Seen::default());
        assert_eq!(expected(normal, FORMS[1], other).told, ["headers 50"]);
        assert_eq!(expected(normal, FORMS[2], measured).headers.len(), 20);
        let simple = crate::bench::workload::WORKLOADS
            .iter()
            .find(|one| one.name == "simple")
            .unwrap();
        let [measured, other] = sent(simple.shape);
        assert_eq!(expected(simple, FORMS[0], measured).headers.len(), 10);
        assert_eq!(expected(simple, FORMS[0], other).told, ["headers 130"]);
        let complex = crate::bench::workload::WORKLOADS
            .iter()
            .find(|one| one.name == "complex")
            .unwrap();
        let [_, other] = sent(complex.shape);
        assert_eq!(expected(complex, FORMS[0], other).told, ["body 9000"]);
    }
}
