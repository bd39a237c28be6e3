//! The module's pages on Envoy's admin port: what lives, what it uses, what failed. As text for people,
//! and as JSON with `?format=json`.
//!
//! Envoy sends both as `text/plain` and forbids browsers to guess, so there is no HTML.
//!
//! Made on Envoy's main thread, from what is there anyhow: nothing is asked of a worker, and no lock
//! that a worker may want is held for longer than it takes to copy a few numbers. No configuration of
//! a plugin is shown, because it may hold secrets.

mod file;
mod state;
mod text;

use outrider_envoy_abi::{AdminAnswer, AdminPage, AdminPages, AdminRequest};
use serde_json::{Value, json};

use self::state::State;
use crate::Outrider;
use crate::hops;
use crate::lanes;

const ALL: &str = "/outrider";
const GENERATIONS: &str = "/outrider/generations";
const PLUGINS: &str = "/outrider/plugins";

const FILE: &str = "/outrider/file";
const LANES: &str = "/outrider/lanes";
const TELEMETRY: &str = "/outrider/telemetry";

/// 1: the gateway's file was refused, and what worked goes on.
const REFUSED: &str = "outrider.file_refused";

const PAGES: &[AdminPage] = &[
    AdminPage {
        path: ALL,
        help: "Outrider: generations and plugins (?format=json)",
    },
    AdminPage {
        path: GENERATIONS,
        help: "Outrider: the plugin configurations that live (?format=json)",
    },
    AdminPage {
        path: PLUGINS,
        help: "Outrider: plugins with versions, VMs, failures, circuits (?format=json)",
    },
    AdminPage {
        path: FILE,
        help: "Outrider: whether the gateway's file is served, or was refused, when and why (?format=json)",
    },
    AdminPage {
        path: LANES,
        help: "Outrider: requests by lane, and hops of traced requests (?trace=ID); as JSON",
    },
    AdminPage {
        path: TELEMETRY,
        help: "Outrider: records that were written and dropped, and the sinks of telemetry; as JSON",
    },
];

impl AdminPages for Outrider {
    fn pages(&self) -> &'static [AdminPage] {
        PAGES
    }

    fn gauge(&self) -> &'static str {
        REFUSED
    }

    fn answer(&self, request: AdminRequest<'_>) -> AdminAnswer {
        if request.path == FILE && request.method == "POST" {
            return match file::tell(request.body) {
                Ok(is_refused) => AdminAnswer {
                    status: 200,
                    body: "OK\n".to_owned(),
                    gauge: Some(u64::from(is_refused)),
                },
                Err(message) => AdminAnswer {
                    status: 400,
                    body: message,
                    gauge: None,
                },
            };
        }
        if !matches!(request.method, "GET" | "HEAD") {
            return AdminAnswer {
                status: 405,
                body: "this page is only read: use GET\n".to_owned(),
                gauge: None,
            };
        }
        let path = request.path;
        if path == LANES {
            return AdminAnswer {
                status: 200,
                body: lanes(request.query),
                gauge: None,
            };
        }
        if path == TELEMETRY {
            return AdminAnswer {
                status: 200,
                body: crate::telemetry::page(),
                gauge: None,
            };
        }
        let form = match form(request.query) {
            Ok(form) => form,
            Err(message) => {
                return AdminAnswer {
                    status: 400,
                    body: message,
                    gauge: None,
                };
            }
        };
        let state = State::of(&self.registry);
        AdminAnswer {
            status: 200,
            body: match form {
                Form::Text => text(path, &state),
                Form::Json => format!("{:#}\n", json(path, &state)),
            },
            gauge: None,
        }
    }
}

/// Requests by lane at each place, and the hops that are kept, of the trace that the query names or of all.
fn lanes(query: &str) -> String {
    let trace = query
        .split('&')
        .filter_map(|part| part.strip_prefix("trace="))
        .next_back();
    let page = json!({"places": hops::places(&lanes::MEMORY.names), "hops": hops::hops(trace)});
    format!("{page:#}\n")
}

/// What a page is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

fn form(query: &str) -> Result<Form, String> {
    let asked = query
        .split('&')
        .filter_map(|part| part.strip_prefix("format="))
        .next_back();
    match asked {
        None | Some("text") => Ok(Form::Text),
        Some("json") => Ok(Form::Json),
        Some(other) => Err(format!(
            "there is no format {}: the formats are text and json\n",
            text::plain(other)
        )),
    }
}

fn text(path: &str, state: &State) -> String {
    match path {
        GENERATIONS => text::generations(state),
        PLUGINS => text::plugins(state),
        FILE => text::file(state.file.as_ref()),
        _ => text::all(state),
    }
}

fn json(path: &str, state: &State) -> Value {
    match path {
        GENERATIONS => json!({ "generations": state.generations }),
        PLUGINS => json!({ "plugins": state.plugins }),
        FILE => json!({ "file": state.file }),
        _ => json!(state),
    }
}

#[cfg(test)]
mod tests;
