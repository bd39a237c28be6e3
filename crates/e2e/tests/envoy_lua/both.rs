//! One Envoy with two listeners for each script, and what a request to one of them led to.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use outrider_e2e::sides::{
    READ, Side, last_lines, listener_name, lua_filter, manager, marker, read_log,
};
use outrider_e2e::{
    Direct, FilterPlugin, Scripted, call_lines, direct_config, request_lines, response_lines,
};
use outrider_lab::Protocol;
use outrider_lab::client::Target;
use outrider_lab::echo::Echo;
use outrider_lab::tls::{Identity, Trust};
use serde_json::{Value, json};

use crate::script::{Script, Setting};

/// What one request led to, with what differs by nature left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    response: Vec<String>,
    upstream: Vec<String>,
    calls: Vec<String>,
    log: Vec<String>,
}

pub(crate) struct Both {
    envoy: Direct,
    identities: Identities,
    /// The number of the listener of [`marker`].
    markers: usize,
}

/// The configuration that scripts find: in Envoy a route's `filter_context`.
fn context() -> Value {
    json!({ "key": "xxxxxx", "nested": { "list": ["a", "b"] }, "limit": 5 })
}

/// The name of Envoy's filter, under which it looks for metadata.
const METADATA: &str = "envoy.filters.http.lua";

/// What a script may log at level error.
const LOGGED_ERROR: &str = "err";

/// The name by which a script's log lines are known.
fn plugin_name(index: usize) -> String {
    format!("script-{index}")
}

fn bootstrap(scripts: &[Script], echo: &Echo, calls: &Scripted, identities: &Identities) -> Value {
    let mut chains: Vec<Vec<Vec<FilterPlugin>>> = scripts
        .iter()
        .enumerate()
        .flat_map(|(index, script)| {
            let plugin = FilterPlugin {
                name: plugin_name(index),
                code: script.code.clone(),
                module: None,
                body: "whole",
                priority: 0,
                config: context(),
            };
            [vec![], vec![vec![plugin]]]
        })
        .collect();
    chains.push(vec![]);
    let mut bootstrap = direct_config(&chains, echo.address());
    let insert = |manager: &mut Value, filter: Value| {
        let filters = manager["http_filters"].as_array_mut().unwrap();
        filters.insert(0, filter);
    };
    insert(
        manager(&mut bootstrap, scripts.len() * 2).unwrap(),
        marker(),
    );
    for (index, script) in scripts.iter().enumerate() {
        let theirs = manager(&mut bootstrap, index * 2).unwrap();
        insert(theirs, lua_filter(&script.code));
        let ours = manager(&mut bootstrap, index * 2 + 1).unwrap();
        if !script.has(Setting::Closed) {
            ours["http_filters"][0]["typed_config"]["filter_config"]["value"]["plugins"][0]["failure_policy"] =
                json!("open");
        }
        for listener in [index * 2, index * 2 + 1] {
            let manager = manager(&mut bootstrap, listener).unwrap();
            if script.has(Setting::Forwarded) {
                manager["use_remote_address"] = json!(true);
                manager["xff_num_trusted_hops"] = json!(1);
            }
            for route in manager["route_config"]["virtual_hosts"][0]["routes"]
                .as_array_mut()
                .unwrap()
            {
                route["metadata"] = json!({ "filter_metadata": { METADATA: {
                    "text": "a text", "number": 4.5, "truth": true, "list": ["x", "y"],
                    "nested": { "inner": "deep" },
                } } });
                if listener == index * 2 {
                    route["typed_per_filter_config"] = json!({ METADATA: {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.LuaPerRoute",
                        "filter_context": context(),
                    } });
                }
            }
            manager["route_config"]["virtual_hosts"][0]["metadata"] =
                json!({ "filter_metadata": { METADATA: { "text": "of the host" } } });
            if script.has(Setting::VirtualCluster) {
                manager["route_config"]["virtual_hosts"][0]["virtual_clusters"] = json!([{
                    "name": "bytes",
                    "headers": [{ "name": ":path", "string_match": { "prefix": "/" } }],
                }]);
            }
            if script.has(Setting::SetMetadata) {
                insert(manager, set_metadata());
            }
            if script.has(Setting::Claims) {
                insert(manager, copy_of_claims());
                insert(manager, claims());
            }
            let chain =
                &mut bootstrap["static_resources"]["listeners"][listener]["filter_chains"][0];
            if script.has(Setting::Tls) {
                chain["transport_socket"] = tls(&identities.server, None);
            }
            if script.has(Setting::MutualTls) {
                chain["transport_socket"] = tls(&identities.server, Some(&identities.client));
            }
            if script.has(Setting::ConnectionMetadata) {
                let filters = chain["filters"].as_array_mut().unwrap();
                filters.insert(0, connection_metadata());
            }
        }
    }
    let clusters = bootstrap["static_resources"]["clusters"]
        .as_array_mut()
        .unwrap();
    let mut lua_cluster = clusters.first().unwrap().clone();
    lua_cluster["name"] = json!("lua_cluster");
    lua_cluster["load_assignment"] = json!({ "cluster_name": "lua_cluster", "endpoints": [{ "lb_endpoints": [{ "endpoint": {
        "address": { "socket_address": {
            "address": calls.address().ip().to_string(), "port_value": calls.address().port(),
        } },
    } }] }] });
    let nobody = json!({
        "name": "nobody", "type": "STATIC", "load_assignment": { "cluster_name": "nobody", "endpoints": [] },
    });
    clusters.extend([lua_cluster, nobody]);
    bootstrap
}

/// The gateway's certificate, and a client's.
#[derive(Debug)]
struct Identities {
    server: Identity,
    client: Identity,
}

pub(crate) fn tls(server: &Identity, client: Option<&Identity>) -> Value {
    let mut context = json!({
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificates": [{
            "certificate_chain": { "inline_string": server.certificate },
            "private_key": { "inline_string": server.private_key },
        }],
    });
    if let Some(client) = client {
        context["validation_context"] =
            json!({ "trusted_ca": { "inline_string": client.certificate } });
    }
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": client.is_some(),
            "common_tls_context": context,
        },
    })
}

/// An HTTP filter that sets dynamic metadata, plain and typed.
fn set_metadata() -> Value {
    json!({
        "name": "set-metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [
                {
                    "metadata_namespace": "foreign",
                    "value": { "text": "a text", "list": [1, 2], "tree": { "inner": "deep" } },
                },
                {
                    "metadata_namespace": "foreign-typed",
                    "typed_value": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
                        "metadata": [{ "metadata_namespace": "some" }],
                    },
                },
            ],
        },
    })
}

/// The namespace of `jwt_authn`.
const CLAIMS: &str = "envoy.filters.http.jwt_authn";

/// An HTTP filter that sets the metadata that `jwt_authn` sets.
fn claims() -> Value {
    json!({
        "name": "claims",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{
                "metadata_namespace": CLAIMS,
                "value": { "jwt_payload": {
                    "sub": "alice", "aud": ["one", "two"], "exp": 2_000_000_000, "nothing": null,
                    "realm_access": { "roles": ["admin", "user"] },
                } },
            }],
        },
    })
}

/// The filter of docs/envoy-lua.md that copies what is nested, as the page has it.
fn copy_of_claims() -> Value {
    let page = outrider_e2e::root().join("crates/e2e/tests/envoy_lua/preface.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("<!-- filter -->\n```json\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    serde_json::from_str(block).unwrap()
}

/// A network filter that sets metadata of the connection.
fn connection_metadata() -> Value {
    json!({
        "name": "envoy.filters.network.rbac",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
            "stat_prefix": "connection",
            "shadow_rules": { "action": "ALLOW", "policies": { "all": {
                "permissions": [{ "any": true }], "principals": [{ "any": true }],
            } } },
        },
    })
}

impl Both {
    pub(crate) fn start(scripts: &[Script], echo: &Echo, calls: &Scripted) -> Self {
        let identities = Identities {
            server: Identity::generate(&["gateway.example", "other.example"]).unwrap(),
            client: Identity::generate(&["client.example"]).unwrap(),
        };
        let envoy = Direct::start(&bootstrap(scripts, echo, calls, &identities), 1).unwrap();
        Self {
            envoy,
            identities,
            markers: scripts.len() * 2,
        }
    }

    pub(crate) fn check_running(&mut self) {
        self.envoy.check_running().unwrap();
    }

    pub(crate) fn stop(self) {
        self.envoy.stop().unwrap();
    }

    pub(crate) async fn outcome(
        &self,
        index: usize,
        script: &Script,
        side: Side,
        number: usize,
        echo: &Echo,
        calls: &Scripted,
    ) -> Outcome {
        let Some(sent) = script.requests.get(number) else {
            panic!("{} has no request {number}", script.name);
        };
        let is_first = number == 0;
        echo.forget_requests();
        let (before, mark) = (echo.request_count(), self.envoy.log.mark());
        let address = (self.envoy)
            .listener(&listener_name(side.listener(index)))
            .unwrap();
        let mut target = match sent.protocol {
            Protocol::Http1 => Target::http1(address),
            Protocol::Http2 => Target::http2(address),
        };
        if script.has(Setting::Tls) || script.has(Setting::MutualTls) {
            target = target.with_tls("gateway.example", Trust::Anything);
        }
        if script.has(Setting::MutualTls) {
            target = target.with_identity(&self.identities.client);
        }
        let response = if script.has(Setting::Raw) {
            status_line(address)
        } else {
            response_lines(&target.send(sent.request.clone()).await)
        };
        // What reached an upstream is recorded when it is over there, a moment later.
        let reached = usize::try_from(echo.request_count() - before).unwrap();
        let upstream = echo
            .wait_for_requests(reached, Duration::from_secs(10))
            .await
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while calls.received().len() < script.calls {
            assert!(Instant::now() < deadline, "{}: no call came", script.name);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        read_log(&self.envoy, self.markers).await.unwrap();
        Outcome {
            response,
            upstream: upstream.iter().flat_map(request_lines).collect(),
            calls: in_order(
                calls
                    .received()
                    .iter()
                    .map(|call| call_lines(call).join(", ")),
            ),
            log: self.said(index, side, mark, is_first),
        }
    }

    /// The last lines of Envoy's log, for messages.
    pub(crate) fn last_lines(&self) -> String {
        last_lines(&self.envoy, 12)
    }

    /// What the script has logged since.
    fn said(&self, index: usize, side: Side, mark: usize, is_first: bool) -> Vec<String> {
        let ours = format!("plugin {}: ", plugin_name(index));
        let lines = self.envoy.log.lines();
        let since = lines.iter().skip(mark);
        since
            .filter_map(|line| {
                let level = line.split(' ').next().unwrap_or_default();
                let text = match side {
                    Side::Envoy => line.split_once("script log: ")?.1,
                    Side::Outrider => line.split_once(&ours)?.1,
                };
                if text.starts_with(READ) {
                    return None;
                }
                // How a failure is told is each one's own, and Outrider does not tell the next ones. And
                // Outrider itself says what is not supported.
                let is_failure = level == "Error"
                    && match side {
                        Side::Envoy => text != LOGGED_ERROR,
                        Side::Outrider => text.starts_with("failed in "),
                    };
                if is_failure {
                    return is_first.then(|| "it failed".to_owned());
                }
                let is_notice =
                    level == "Warning" && text.ends_with("Envoy does not show it to modules");
                // Outrider escapes control characters; Envoy's filter writes them as they are.
                let text = match side {
                    Side::Envoy => escaped(text),
                    Side::Outrider => text.to_owned(),
                };
                (!is_notice).then(|| format!("{level} {text}"))
            })
            .collect()
    }
}

/// A line of Envoy's filter as Outrider's log writes it.
fn escaped(line: &str) -> String {
    line.chars()
        .map(|character| match character {
            '\n' => "\\n".to_owned(),
            '\t' => character.to_string(),
            control if control.is_control() => format!("\\x{:02x}", u32::from(control)),
            other => other.to_string(),
        })
        .collect()
}

/// Calls that are not waited for come in any order.
fn in_order(calls: impl Iterator<Item = String>) -> Vec<String> {
    let mut calls: Vec<String> = calls.collect();
    calls.sort();
    calls
}

/// The first line of the answer to a request of HTTP/1.1, which has the reason phrase.
fn status_line(address: SocketAddr) -> Vec<String> {
    let mut connection = TcpStream::connect(address).unwrap();
    connection
        .write_all(b"GET /bytes/5 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    vec![answer.lines().next().unwrap_or_default().to_owned()]
}
