//! One Envoy with two listeners for each script (and version of the ABI), and what a request to one of
//! them led to.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outrider_e2e::sides::{Side, last_lines, listener_name, manager, marker, read_log};
use outrider_e2e::{Direct, Scripted, call_lines, direct_config, request_lines, response_lines};
use outrider_lab::Protocol;
use outrider_lab::client::Target;
use outrider_lab::echo::Echo;
use outrider_lab::tls::{Identity, Trust};
use regex::Regex;
use serde_json::{Value, json};

use crate::building;
use crate::script::{Script, Setting};

/// A script with a version of the ABI.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) script: Script,
    pub(crate) abi: &'static str,
}

impl Case {
    pub(crate) fn name(&self) -> String {
        format!("{} ({})", self.script.name, self.abi)
    }

    /// The plugin's name, which log lines of both sides tell; its VM's is `vm-` and this.
    fn plugin(&self) -> String {
        format!("{}-{}", self.script.name, self.abi)
    }
}

/// Which sides an Envoy has listeners for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sides {
    Both,
    OnlyEnvoy,
}

/// The namespace of metadata that scripts look at.
const METADATA: &str = "probe";

/// How long what has to come may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Both {
    envoy: Direct,
    client: Identity,
    markers: usize,
}

/// Envoy's own Wasm filter with the probe.
fn envoys_filter(case: &Case, module: &Path) -> Value {
    let text = |value: &str| json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": value });
    let environment: serde_json::Map<String, Value> = case
        .script
        .environment
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    json!({
        "name": "envoy.filters.http.wasm",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": case.plugin(),
                "root_id": "the-root",
                "allow_on_headers_stop_iteration": case.script.has(Setting::AllowStopIteration),
                "configuration": text(&case.script.text),
                "vm_config": {
                    "vm_id": format!("vm-{}", case.plugin()),
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": { "local": { "filename": module } },
                    "configuration": text(&case.script.text),
                    "environment_variables": { "key_values": environment },
                },
            },
        },
    })
}

/// Outrider with the probe.
fn our_filter(case: &Case, module: &Path) -> Value {
    let digest = outrider_plugin_store::module_digest(&fs::read(module).unwrap());
    let environment: serde_json::Map<String, Value> = case
        .script
        .environment
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    json!({
        "name": "outrider",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": { "name": "outrider", "do_not_close": true },
            "filter_name": case.plugin(),
            "filter_config": {
                "@type": "type.googleapis.com/google.protobuf.Struct",
                "value": { "format": 1, "plugins": [{
                    "name": case.plugin(), "runtime": "wasm", "entry": "probe.wasm", "enabled": true,
                    "allow": "all",
                    "source": { "module": module }, "digest": digest, "config": case.script.text,
                    // What a debug build on a busy machine needs; what the budget does is shown elsewhere.
                    "budgets": { "time_ms": 2000, "memory_mib": 64, "share": 100 },
                    "wasm": {
                        "vm_id": format!("vm-{}", case.plugin()), "root_id": "the-root",
                        "vm_configuration": case.script.text, "environment": environment,
                        "allow_on_headers_stop_iteration": case.script.has(Setting::AllowStopIteration),
                    },
                }] },
            },
        },
    })
}

/// The cluster by which the module is called on workers without a stream, as every rendered bootstrap has it.
fn workers() -> Value {
    json!({
        "name": "_outrider_workers",
        "lb_policy": "CLUSTER_PROVIDED",
        "cluster_type": {
            "name": "envoy.clusters.dynamic_modules",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.dynamic_modules.v3.ClusterConfig",
                "cluster_name": "outrider",
                "dynamic_module_config": { "name": "outrider", "do_not_close": true },
            },
        },
    })
}

/// An HTTP filter that sets dynamic metadata.
fn set_metadata() -> Value {
    json!({
        "name": "set-metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [{
                "metadata_namespace": "foreign",
                "value": { "text": "a text", "list": ["one", "two"], "tree": { "inner": "deep" } },
            }],
        },
    })
}

fn tls(server: &Identity, client: &Identity) -> Value {
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true,
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificates": [{
                    "certificate_chain": { "inline_string": server.certificate },
                    "private_key": { "inline_string": server.private_key },
                }],
                "validation_context": { "trusted_ca": { "inline_string": client.certificate } },
            },
        },
    })
}

fn bootstrap(
    cases: &[Case],
    sides: Sides,
    echo: &Echo,
    calls: &Scripted,
    server: &Identity,
    client: &Identity,
) -> Value {
    let modules: Vec<(&str, PathBuf)> = building::ABIS
        .into_iter()
        .filter(|abi| cases.iter().any(|case| case.abi == *abi))
        .map(|abi| (abi, building::probe(abi)))
        .collect();
    let chains = vec![vec![]; cases.len() * 2 + 1];
    let mut bootstrap = direct_config(&chains, echo.address());
    let insert = |manager: &mut Value, filter: Value| {
        let filters = manager["http_filters"].as_array_mut().unwrap();
        filters.insert(0, filter);
    };
    insert(manager(&mut bootstrap, cases.len() * 2).unwrap(), marker());
    for (index, case) in cases.iter().enumerate() {
        let module = modules
            .iter()
            .find_map(|(abi, module)| (*abi == case.abi).then_some(module))
            .unwrap();
        for side in [Side::Envoy, Side::Outrider] {
            let listener = side.listener(index);
            let manager = manager(&mut bootstrap, listener).unwrap();
            let breaks = case.script.has(Setting::BreaksEnvoy) && sides == Sides::Both;
            match side {
                Side::Envoy if !breaks => insert(manager, envoys_filter(case, module)),
                Side::Outrider if sides == Sides::Both => {
                    insert(manager, our_filter(case, module));
                }
                Side::Envoy | Side::Outrider => {}
            }
            if case.script.has(Setting::Metadata) {
                insert(manager, set_metadata());
                let metadata = json!({ "filter_metadata": { METADATA: {
                    "text": "a text", "number": 4.5, "truth": true, "list": ["x", "y"],
                    "nested": { "inner": "deep" },
                } } });
                let host = &mut manager["route_config"]["virtual_hosts"][0];
                host["metadata"] = metadata.clone();
                for route in host["routes"].as_array_mut().unwrap() {
                    route["metadata"] = metadata.clone();
                }
            }
            if case.script.has(Setting::MutualTls) {
                let chain =
                    &mut bootstrap["static_resources"]["listeners"][listener]["filter_chains"][0];
                chain["transport_socket"] = tls(server, client);
            }
        }
    }
    let clusters = bootstrap["static_resources"]["clusters"]
        .as_array_mut()
        .unwrap();
    let (http1, http2) = (
        clusters.first().unwrap().clone(),
        clusters.last().unwrap().clone(),
    );
    let endpoint = |mut cluster: Value, name: &str, port: u16| {
        cluster["name"] = json!(name);
        cluster["load_assignment"] = json!({ "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": {
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
        } }] }] });
        cluster["metadata"] =
            json!({ "filter_metadata": { METADATA: { "text": "of the cluster" } } });
        cluster
    };
    let port = calls.address().port();
    let refused = outrider_e2e::free_address().unwrap().port();
    let nobody = json!({
        "name": "nobody", "type": "STATIC", "load_assignment": { "cluster_name": "nobody", "endpoints": [] },
    });
    if sides == Sides::Both {
        clusters.push(workers());
    }
    clusters.extend([
        endpoint(http1.clone(), "calls", port),
        endpoint(http1, "refused", refused),
        endpoint(http2, "grpc", port),
        nobody,
    ]);
    bootstrap
}

impl Both {
    pub(crate) fn start(
        cases: &[Case],
        sides: Sides,
        echo: &Echo,
        calls: &Scripted,
    ) -> anyhow::Result<Self> {
        let server = Identity::generate(&["gateway.example"]).unwrap();
        let client = Identity::generate(&["client.example"]).unwrap();
        let bootstrap = bootstrap(cases, sides, echo, calls, &server, &client);
        let all_levels = cases.iter().any(|case| case.script.has(Setting::AllLevels));
        let levels: &[&str] = if all_levels {
            &["--component-log-level", "wasm:trace,dynamic_modules:trace"]
        } else {
            &[]
        };
        Ok(Self {
            envoy: Direct::start_with(&bootstrap, 1, levels)?,
            client,
            markers: cases.len() * 2,
        })
    }

    pub(crate) fn check_running(&mut self) -> anyhow::Result<()> {
        self.envoy.check_running()
    }

    pub(crate) fn stop(self) {
        self.envoy.stop().unwrap();
    }

    pub(crate) fn target(
        &self,
        index: usize,
        case: &Case,
        side: Side,
        protocol: Protocol,
    ) -> Target {
        let address = (self.envoy)
            .listener(&listener_name(side.listener(index)))
            .unwrap();
        let target = Target::plain(protocol, address);
        if case.script.has(Setting::MutualTls) {
            return target
                .with_tls("gateway.example", Trust::Anything)
                .with_identity(&self.client);
        }
        target
    }

    /// What a request led to, as lines: the response, what reached the upstreams, what the probe said.
    pub(crate) async fn outcome(
        &self,
        index: usize,
        case: &Case,
        side: Side,
        number: usize,
        echo: &Echo,
        calls: &Scripted,
    ) -> Vec<String> {
        let script = &case.script;
        let sent = &script.requests[number];
        echo.forget_requests();
        let (before, mark) = (echo.request_count(), self.envoy.log.mark());
        let target = self.target(index, case, side, sent.protocol);
        let request = sent.request.clone().timeout(Duration::from_secs(5));
        let response = target.send(request).await;
        let mut lines = response_lines(&response);
        // What reached an upstream is recorded when it is over there, a moment later.
        let reached = usize::try_from(echo.request_count() - before).unwrap();
        let upstream = echo.wait_for_requests(reached, PATIENCE).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        while calls.received().len() < script.calls && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.wait_for_the_end(case, side, mark).await;
        if !script.has(Setting::UpstreamUnseen) {
            let upstream = upstream.iter();
            lines.extend(
                upstream.map(|request| format!("upstream: {}", request_lines(request).join(", "))),
            );
        }
        let mut called: Vec<String> = calls
            .received()
            .iter()
            .map(|call| {
                let mut call = call.clone();
                // See `differences::EVERYWHERE`.
                call.headers.retain(|(name, _)| name != "x-forwarded-for");
                format!("call: {}", call_lines(&call).join(", "))
            })
            .collect();
        // Calls that go on at once come in any order.
        called.sort();
        lines.extend(called);
        let mut said = self.said(case, side, mark, number == 0);
        if script.has(Setting::Unordered) {
            said.sort();
        }
        lines.extend(said);
        lines.iter().map(|line| without_what_varies(line)).collect()
    }

    /// Waits until each stream that has begun is deleted, and what the script names was said.
    async fn wait_for_the_end(&self, case: &Case, side: Side, mark: usize) {
        let script = &case.script;
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.read_log().await;
            let said = self.said(case, side, mark, false);
            let count = |part: &str| said.iter().filter(|line| line.contains(part)).count();
            let all_gone = count("stream create()") == count("stream delete()");
            let named = script
                .wait
                .as_ref()
                .is_none_or(|(times, part)| count(part) >= *times);
            if script.has(Setting::Failing) || (all_gone && named) || Instant::now() > deadline {
                // What was read last may be in the middle of a callback.
                self.read_log().await;
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the log is read up to here.
    async fn read_log(&self) {
        let read = read_log(&self.envoy, self.markers).await;
        read.unwrap_or_else(|error| {
            panic!("{error:#}; Envoy's log:\n{}", last_lines(&self.envoy, 60))
        });
    }

    /// What the probe has said: since the mark, and, with the first request, what the same VM said before.
    fn said(&self, case: &Case, side: Side, mark: usize, is_first: bool) -> Vec<String> {
        let own = match side {
            Side::Envoy => format!(" vm-{}: ", case.plugin()),
            Side::Outrider => format!("plugin {}: ", case.plugin()),
        };
        let lines = self.envoy.log.lines();
        let text = |line: &String| {
            let (level, _) = line.split_once(' ')?;
            if side == Side::Envoy && !line.contains("wasm log") {
                return None;
            }
            let (_, text) = line.split_once(&own)?;
            (side == Side::Envoy || !is_report_of_a_failure(text))
                .then(|| format!("{level} {text}"))
        };
        let (before, since) = lines.split_at(mark.min(lines.len()));
        if !case.script.has(Setting::Failing) {
            for line in since.iter().filter(|line| line.contains(&own)) {
                if line.contains(": failed in ") {
                    #[expect(
                        clippy::print_stderr,
                        reason = "shown with a difference that it explains"
                    )]
                    {
                        eprintln!("{line}");
                    }
                }
            }
        }
        let since: Vec<String> = since.iter().filter_map(text).collect();
        let vm = since
            .iter()
            .find_map(|line| vm_of(line).map(ToOwned::to_owned));
        let mut all = Vec::new();
        if let (true, Some(vm)) = (is_first, &vm) {
            all.extend(
                before
                    .iter()
                    .filter_map(text)
                    .filter(|line| vm_of(line) == Some(vm))
                    .take_while(|line| !line.contains("stream create()")),
            );
        }
        // What another VM says (the one that replaces a failed one) is not this request's.
        all.extend(
            since
                .into_iter()
                .filter(|line| vm_of(line).is_none_or(|of| vm.as_deref() == Some(of))),
        );
        all.iter()
            .map(|line| match vm_of(line) {
                Some(vm) => line.replacen(&format!("probe {vm} "), "", 1),
                None => line.clone(),
            })
            .collect()
    }
}

/// How a failure is told is each one's own.
fn is_report_of_a_failure(text: &str) -> bool {
    text.starts_with("failed in ")
}

/// The name that the VM of a line has made up for itself.
fn vm_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(" probe ")?;
    let (vm, _) = rest.split_once(' ')?;
    let is_name = vm.len() == 8 && vm.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then_some(vm)
}

/// Addresses with ports, dates and times, which differ from one exchange to the next.
fn without_what_varies(line: &str) -> String {
    let addresses = Regex::new(r"127\.0\.0\.1:\d+").unwrap();
    let line = addresses.replace_all(line, "ADDRESS");
    let values = Regex::new(r#""(date|x-envoy-upstream-service-time)": "[^"]*""#).unwrap();
    let line = values.replace_all(&line, "\"$1\": \"…\"");
    // The time in it has a digit or two.
    let size = Regex::new(r#"("response\\0headers" = 0 \d+)\d bytes"#).unwrap();
    let line = size.replace_all(&line, "${1}… bytes");
    // A line stays one.
    line.replace('\n', "\\n")
}
