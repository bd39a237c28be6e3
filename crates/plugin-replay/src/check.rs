//! What a case expects, against what came.

use std::collections::BTreeMap;

use outrider_lab::client::Response;
use outrider_plugin_testkit::{Difference, ExpectedMessage, ExpectedValues, json_difference};

use crate::scripted::{Fields, Received, values};

/// Collects what came out differently in one case.
#[derive(Debug, Default)]
pub(crate) struct Check {
    /// Stands before what differs: the step, where there are several.
    pub(crate) place: String,
    pub(crate) differences: Vec<Difference>,
}

impl Check {
    pub(crate) fn differs(
        &mut self,
        what: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) {
        self.differences.push(Difference {
            what: format!("{}{what}", self.place),
            expected: expected.into(),
            got: got.into(),
        });
    }

    pub(crate) fn equal(&mut self, what: &str, expected: &str, got: &str) {
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

    pub(crate) fn message(&mut self, what: &str, expected: &ExpectedMessage, got: &Received) {
        for (name, expected, got) in [
            (":method", &expected.method, &got.method),
            (":path", &expected.path, &got.path),
            (":authority", &expected.host, &got.host),
        ] {
            if let Some(expected) = expected {
                self.equal(&format!("{what} `{name}`"), expected, got);
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
        if let Some(expected) = &expected.body_json
            && let Some(difference) = json_difference(expected, &got.body)
        {
            self.differs(
                &format!("{what} body{}", difference.pointer),
                difference.expected,
                difference.got,
            );
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

    /// The response, which is compared as a request is.
    pub(crate) fn response(&mut self, expected: &ExpectedMessage, got: &Response) {
        if let Some(status) = expected.status
            && status != got.status
        {
            let told = format!("{}: {}", got.status, got.text());
            self.differs("response `:status`", status.to_string(), told);
        }
        let fields = |headers: &outrider_lab::Headers| -> Fields {
            headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        };
        let received = Received {
            method: String::new(),
            path: String::new(),
            host: String::new(),
            headers: fields(&got.headers),
            body: got.body.clone(),
            trailers: fields(&got.trailers),
        };
        self.message("response", expected, &received);
    }
}
