//! The routes of the soak: each with a plugin that does one thing, well or badly, what is sent there, and
//! what has to come back.

use crate::client::{Request, Response};
use crate::steady::Turn;

/// What a plugin is told to do wrong on a stream, by the request header `x-fault`.
pub(super) const FAULT: &str = "x-fault";

/// The answer that streams get from a plugin that fails closed.
pub(super) const POLICY_STATUS: u16 = 503;

/// How a route's answers are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    /// Every answer is 200 and has been through the plugin.
    Good,
    /// The streams that ask for a fault get the policy's answer, and no other does.
    Closed,
    /// The streams that ask for a fault go on without the plugin, and no other does.
    Open,
    /// Any stream may get the policy's answer; all others are good. The statistics say how many.
    Counted,
}

/// One route and the load on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    /// Its name, and its plugin's.
    pub(super) name: &'static str,
    /// What it shows, for the summary.
    pub(super) what: &'static str,
    /// The plugin's code.
    pub(super) code: &'static str,
    /// More of the plugin's entry in `outrider.yaml`, each item beginning with a comma.
    pub(super) settings: &'static str,
    /// The fault that some streams ask for, and which: every so many.
    pub(super) fault: Option<(&'static str, u64)>,
    pub(super) expect: Expect,
    /// Bytes of the request's body.
    pub(super) body: usize,
    pub(super) connections: usize,
    /// The causes of failure that its statistics may show.
    pub(super) causes: &'static [&'static str],
}

/// Plugins of which one stream in so many asks for an endless loop take 20 ms of a worker for it.
const SELDOM: u64 = 200;

pub(super) const ROUTES: &[Route] = &[
    Route {
        name: "healthy",
        what: "a plugin that reads and sets headers",
        code: "return {
    version = 'v2',
    on_request_header = function() envoy.req.set_header('x-seen', envoy.req.get_header(':path')) end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: "",
        fault: None,
        expect: Expect::Good,
        body: 0,
        connections: 6,
        causes: &[],
    },
    Route {
        name: "large",
        what: "bodies of 256 KiB, read whole, rewritten",
        code: "return {
    version = 'v2',
    on_request_body = function()
        local body = envoy.req.get_body()
        if #body ~= 262144 then error('the body has ' .. #body .. ' bytes') end
        envoy.req.set_body(body:sub(1, 1024):upper())
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
    on_response_body = function() envoy.resp.set_body('rewritten') end,
}",
        settings: "",
        fault: None,
        expect: Expect::Good,
        body: 262_144,
        connections: 2,
        causes: &[],
    },
    Route {
        name: "callout",
        what: "a callout to an upstream where nobody listens",
        code: "return {
    version = 'v2',
    on_request_header = function()
        local headers, why = envoy.httpCall('dead', {
            [':method'] = 'GET', [':path'] = '/', [':authority'] = 'dead',
        }, nil, 200)
        if headers and headers[':status'] == '200' then error('somebody answered') end
        envoy.stream.shared.asked = true
    end,
    on_response_header = function()
        if envoy.stream.shared.asked then envoy.resp.set_header('x-passed', 'yes') end
    end,
}",
        settings: "",
        fault: None,
        expect: Expect::Good,
        body: 0,
        connections: 3,
        causes: &[],
    },
    Route {
        name: "errors",
        what: "an error on every 10th stream, failing closed",
        code: "return {
    version = 'v2',
    on_request_header = function()
        if envoy.req.get_header('x-fault') then error('as asked') end
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: "",
        fault: Some(("error", 10)),
        expect: Expect::Closed,
        body: 0,
        connections: 3,
        causes: &["error"],
    },
    Route {
        name: "errors-open",
        what: "an error on every 10th stream, failing open",
        code: "return {
    version = 'v2',
    on_request_header = function()
        if envoy.req.get_header('x-fault') then error('as asked') end
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: ", failure_policy: open",
        fault: Some(("error", 10)),
        expect: Expect::Open,
        body: 0,
        connections: 3,
        causes: &["error"],
    },
    Route {
        name: "loops",
        what: "an endless loop on every 200th stream, inside `pcall`",
        code: "return {
    version = 'v2',
    on_request_header = function()
        if envoy.req.get_header('x-fault') then
            while true do pcall(function() while true do end end) end
        end
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: "",
        fault: Some(("loop", SELDOM)),
        expect: Expect::Closed,
        body: 0,
        connections: 2,
        causes: &["time"],
    },
    Route {
        name: "patterns",
        what: "a pattern that does not end on every 200th stream",
        code: "local long = string.rep('a', 5000)
return {
    version = 'v2',
    on_request_header = function()
        if envoy.req.get_header('x-fault') then long:find('.-.-.-.-b') end
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: "",
        fault: Some(("pattern", SELDOM)),
        expect: Expect::Closed,
        body: 0,
        connections: 2,
        causes: &["time"],
    },
    Route {
        name: "hog",
        what: "a string of a gigabyte on every 50th stream",
        code: "return {
    version = 'v2',
    on_request_header = function()
        if envoy.req.get_header('x-fault') then string.rep('x', 1e9) end
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: "",
        fault: Some(("memory", 50)),
        expect: Expect::Closed,
        body: 0,
        connections: 2,
        causes: &["memory"],
    },
    Route {
        name: "leak",
        what: "a table that grows with each stream, in 4 MiB, while others wait in the same VM",
        code: "local kept = {}
return {
    version = 'v2',
    on_request_header = function()
        kept[#kept + 1] = string.rep('x', 20000) .. #kept
        envoy.sleep(2)
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: ", budgets: {memory_mib: 4}",
        fault: None,
        expect: Expect::Counted,
        body: 0,
        connections: 4,
        causes: &["memory", "unavailable", "circuit"],
    },
    Route {
        name: "flapping",
        what: "loops on all streams for some seconds, again and again: its circuit opens and closes",
        code: "return {
    version = 'v2',
    on_request_header = function()
        if math.floor(envoy.nowms() / 1000) % 12 < 4 then while true do end end
    end,
    on_response_header = function() envoy.resp.set_header('x-passed', 'yes') end,
}",
        settings: "",
        fault: None,
        expect: Expect::Counted,
        body: 0,
        connections: 2,
        causes: &["time", "circuit"],
    },
];

impl Route {
    /// Whether this stream asks for the route's fault.
    fn is_faulty(&self, turn: Turn) -> bool {
        self.fault
            .is_some_and(|(_, every)| turn.request % every == every - 1)
    }

    pub(super) fn request(&self, turn: Turn) -> Request {
        let path = format!("/{}/{}", self.name, turn.request);
        let request = if self.body == 0 {
            Request::get(&path)
        } else {
            Request::post(&path, vec![b'a'; self.body])
        };
        match self.fault {
            Some((fault, _)) if self.is_faulty(turn) => request.header(FAULT, fault),
            _ => request,
        }
    }

    /// Judges an answer; an error says what is wrong with it.
    pub(super) fn check(&self, turn: Turn, response: &Response) -> Result<Answer, String> {
        let has_passed = response.headers.get("x-passed").is_some();
        let answer = match response.status {
            200 if has_passed => Answer::Good,
            200 => Answer::Without,
            POLICY_STATUS if !has_passed && response.body.is_empty() => Answer::Policy,
            status => return Err(format!("status {status}: {}", response.text())),
        };
        let is_right = match (self.expect, answer) {
            (Expect::Closed, Answer::Policy) | (Expect::Open, Answer::Without) => {
                self.is_faulty(turn)
            }
            (Expect::Closed | Expect::Open, Answer::Good) => !self.is_faulty(turn),
            (Expect::Good, _) => answer == Answer::Good,
            (Expect::Counted, _) => answer != Answer::Without,
            _ => false,
        };
        if is_right && self.name == "large" && response.body.as_ref() != b"rewritten" {
            return Err(format!("the body is not the plugin's: {}", response.text()));
        }
        if is_right {
            Ok(answer)
        } else {
            Err(format!(
                "{answer:?}, where the stream asked {}",
                if self.is_faulty(turn) {
                    "for a fault"
                } else {
                    "for none"
                }
            ))
        }
    }
}

/// What a stream got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The upstream's answer, through the plugin.
    Good,
    /// The upstream's answer, without the plugin.
    Without,
    /// The failure policy's.
    Policy,
}

/// `outrider.yaml` with all routes; each `version` of it differs a little.
pub(super) fn gateway(
    listen: std::net::SocketAddr,
    admin: std::net::SocketAddr,
    echo: std::net::SocketAddr,
    version: u64,
) -> String {
    use std::fmt::Write as _;
    let mut text = format!(
        "gateway:
  listeners: [{{name: main, address: '{listen}'}}]
  admin: '{admin}'
  workers: 2
  use: [{{plugin: stamp, config: {{version: {version}}}}}]
plugins:
  stamp: {{source: stamp.lua}}
"
    );
    for Route { name, settings, .. } in ROUTES {
        let policy = format!(", failure_policy: {{default: closed, status: {POLICY_STATUS}}}");
        let settings = if settings.contains("failure_policy") {
            (*settings).to_owned()
        } else {
            format!("{settings}{policy}")
        };
        let _ = writeln!(
            text,
            "  {name}: {{source: {name}.lua, allow: all{settings}}}"
        );
    }
    text.push_str("projects:\n  - name: soak\n    hosts: ['*']\n    routes:\n");
    for Route { name, expect, .. } in ROUTES {
        let _ = writeln!(
            text,
            "      - {{name: {name}, match: {{prefix: /{name}/}}, to: echo, use: [{{plugin: {name}, config: \
             {{version: {}}}}}]}}",
            // Some routes are configured anew with each version, others stay as they are.
            if *expect == Expect::Good { version } else { 0 }
        );
    }
    let _ = write!(
        text,
        "      - {{name: rest, match: {{prefix: /}}, to: echo}}
upstreams:
  echo: {{endpoints: ['{echo}']}}
  dead: {{endpoints: ['127.0.0.1:1']}}
"
    );
    text
}

/// The plugin that every stream passes; its code changes with each 5th version.
pub(super) fn stamp(version: u64) -> String {
    format!(
        "-- Revision {}.
return {{
    version = 'v2',
    on_response_header = function() envoy.resp.set_header('x-version', tostring(envoy.config().version)) end,
}}
",
        version / 5
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_asked_for_as_often_as_they_say() {
        for route in ROUTES {
            let faulty = (0..1000).filter(|request| {
                route.is_faulty(Turn {
                    connection: 0,
                    request: *request,
                })
            });
            let expected = route.fault.map_or(0, |(_, every)| 1000 / every);
            assert_eq!(faulty.count() as u64, expected, "{}", route.name);
        }
        let passed = "envoy.resp.set_header('x-passed', 'yes')";
        assert!(ROUTES.iter().all(|route| route.code.contains(passed)));
    }
}
