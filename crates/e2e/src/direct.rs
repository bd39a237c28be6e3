//! An Envoy with a static configuration of the test's own: for what `outrider` would not write, such
//! as Outrider listed twice in one chain.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use outrider_envoy_process::{Envoy, Options};
use outrider_lab::client::Target;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{assert_no_rejections, stat};
use crate::{Output, envoy, module};

/// One plugin of a filter's configuration.
#[derive(Debug, Clone)]
pub struct FilterPlugin {
    /// Its name.
    pub name: String,
    /// Its Lua code; of a Wasm plugin, what messages show of it.
    pub code: String,
    /// The file of its module; none: it is a Lua plugin.
    pub module: Option<PathBuf>,
    /// `whole` or `stream`.
    pub body: &'static str,
    /// The order within the chain, high first.
    pub priority: i32,
    /// Its configuration.
    pub config: Value,
}

/// The source of a plugin of one file, with the digest that goes with it.
pub fn inline_lua(code: &str) -> (Value, String) {
    let files = BTreeMap::from([("main.lua".to_owned(), code.to_owned())]);
    let digest = outrider_plugin_store::digest(&files);
    (json!({ "inline": files }), digest)
}

/// The source of a Wasm plugin, with the digest that goes with it. Without the file, the digest is none's.
pub fn module_file(file: &Path) -> (Value, String) {
    let module = std::fs::read(file).unwrap_or_default();
    let digest = outrider_plugin_store::module_digest(&module);
    (json!({ "module": file }), digest)
}

/// A filter configuration (`outrider_plugin_formats::FilterConfig`) of these plugins, all enabled.
fn filter_config(plugins: &[FilterPlugin]) -> Value {
    let plugins: Vec<Value> = plugins
        .iter()
        .map(|plugin| {
            let (runtime, (source, digest)) = match &plugin.module {
                Some(file) => ("wasm", module_file(file)),
                None => ("lua", inline_lua(&plugin.code)),
            };
            let entry = if runtime == "lua" {
                "main.lua"
            } else {
                "plugin.wasm"
            };
            json!({
                "name": plugin.name, "runtime": runtime, "entry": entry, "enabled": true,
                "allow": "all", "source": source, "digest": digest, "body": plugin.body,
                "priority": plugin.priority, "config": plugin.config,
                // The semantics of plugins are tested here, in builds whose calls take long: not their shares.
                "budgets": { "time_ms": 2000, "memory_mib": 256, "share": 100 },
            })
        })
        .collect();
    json!({ "format": 1, "plugins": plugins })
}

fn filter(name: &str, plugins: &[FilterPlugin]) -> Value {
    json!({
        "name": name,
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": { "name": "outrider", "do_not_close": true },
            "filter_name": name,
            "filter_config": {
                "@type": "type.googleapis.com/google.protobuf.Struct",
                "value": filter_config(plugins),
            },
        },
    })
}

/// A listener for each chain of Outrider filters (each filter a list of plugins), all in front of one
/// upstream. The listeners are named `listener-0`, `listener-1`, ….
pub fn direct_config(chains: &[Vec<Vec<FilterPlugin>>], upstream: SocketAddr) -> Value {
    let cluster = |name: &str, protocol: Value| {
        json!({
            "name": name, "type": "STATIC", "connect_timeout": "2s",
            "per_connection_buffer_limit_bytes": 16 * 1024 * 1024,
            "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": {
                "address": { "socket_address": {
                    "address": upstream.ip().to_string(), "port_value": upstream.port(),
                } },
            } }] }] },
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": protocol,
                },
            },
        })
    };
    let listeners: Vec<Value> = chains
        .iter()
        .enumerate()
        .map(|(index, filters)| {
            let mut http_filters: Vec<Value> = filters
                .iter()
                .enumerate()
                .map(|(place, plugins)| filter(&format!("outrider-{index}-{place}"), plugins))
                .collect();
            http_filters.push(json!({
                "name": "envoy.filters.http.router",
                "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
            }));
            json!({
                "name": format!("listener-{index}"),
                "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } },
                "per_connection_buffer_limit_bytes": 16 * 1024 * 1024,
                "filter_chains": [{ "filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                        "stat_prefix": format!("listener-{index}"),
                        "codec_type": "AUTO",
                        "http_protocol_options": { "enable_trailers": true },
                        "generate_request_id": false,
                        "http_filters": http_filters,
                        "route_config": { "name": "r", "virtual_hosts": [{
                            "name": "v", "domains": ["*"],
                            "routes": [
                                { "name": "over-2", "match": { "prefix": "/", "headers": [{ "name": "x-upstream-protocol", "string_match": { "exact": "2" } }] }, "route": { "cluster": "upstream-2", "timeout": "60s" } },
                                { "name": "over-1", "match": { "prefix": "/" }, "route": { "cluster": "upstream", "timeout": "60s" } },
                            ],
                        }] },
                    },
                }] }],
            })
        })
        .collect();
    json!({
        "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } } },
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                cluster("upstream", json!({ "http_protocol_options": { "enable_trailers": true } })),
                cluster("upstream-2", json!({ "http2_protocol_options": {} })),
            ],
        },
    })
}

/// A running Envoy with a static configuration.
#[derive(Debug)]
pub struct Direct {
    envoy: Envoy,
    /// Its log.
    pub log: Output,
    _folder: TempDir,
}

impl Direct {
    /// Starts an Envoy with this bootstrap and waits until it serves.
    ///
    /// # Errors
    /// It does not; the error tells why.
    pub fn start(bootstrap: &Value, workers: u32) -> anyhow::Result<Self> {
        Self::start_with(bootstrap, workers, &[])
    }

    /// As [`Direct::start`], with further arguments of Envoy's.
    ///
    /// # Errors
    /// It does not serve; the error tells why.
    pub fn start_with(bootstrap: &Value, workers: u32, arguments: &[&str]) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let file = folder.path().join("envoy.json");
        std::fs::write(&file, serde_json::to_string_pretty(bootstrap)?)?;
        let log = Output::default();
        let sink = log.clone();
        let mut options = Options::new(envoy()?, file);
        options.concurrency = Some(workers);
        options.extra_arguments = arguments.iter().map(Into::into).collect();
        options.module_folder = module()?.parent().map(ToOwned::to_owned);
        options.log_sink = Some(Box::new(move |line| {
            sink.push(format!("{:?} {}", line.level, line.message));
        }));
        let mut envoy = Envoy::start(options)?;
        envoy
            .wait_ready(Duration::from_mins(1))
            .with_context(|| format!("Envoy's log:\n{}", log.text()))?;
        Ok(Self {
            envoy,
            log,
            _folder: folder,
        })
    }

    /// Where a listener listens.
    ///
    /// # Errors
    /// There is no listener of that name.
    pub fn listener(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let answer = self.envoy.admin_get("/listeners")?;
        let line = answer
            .body
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}::")));
        Ok(line
            .with_context(|| format!("no listener {name} in {}", answer.body))?
            .parse()?)
    }

    /// A listener for a client of HTTP/1.1.
    ///
    /// # Errors
    /// There is no listener of that name.
    pub fn http1(&self, name: &str) -> anyhow::Result<Target> {
        Ok(Target::http1(self.listener(name)?))
    }

    /// A listener for a client of HTTP/2.
    ///
    /// # Errors
    /// There is no listener of that name.
    pub fn http2(&self, name: &str) -> anyhow::Result<Target> {
        Ok(Target::http2(self.listener(name)?))
    }

    /// The value of a counter or gauge; 0 when Envoy has none of that name.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub fn stat(&self, name: &str) -> anyhow::Result<u64> {
        stat(self.envoy.admin()?, name)
    }

    /// Fails if Envoy has ended.
    ///
    /// # Errors
    /// It has; the error tells its last lines.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        Ok(self.envoy.check_running()?)
    }

    /// Envoy's process.
    pub fn process_id(&self) -> u32 {
        self.envoy.process_id()
    }

    /// Sends SIGTERM, and waits for Envoy to end by itself. Fails if it does not, or not well.
    ///
    /// # Errors
    /// See above; the error tells its last lines.
    pub fn terminate(mut self) -> anyhow::Result<Output> {
        let sent = Command::new("kill")
            .args(["-TERM", &self.process_id().to_string()])
            .status()?;
        ensure!(sent.success(), "no process to end");
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.envoy.exit_status() {
                ensure!(
                    status.success(),
                    "Envoy ended with {status}:\n{}",
                    self.log.text()
                );
                self.log.assert_no_bugs()?;
                return Ok(self.log);
            }
            ensure!(
                Instant::now() < deadline,
                "Envoy does not end:\n{}",
                self.log.text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends Envoy. Fails if it has ended before, or refused configuration.
    ///
    /// # Errors
    /// See above.
    pub fn stop(mut self) -> anyhow::Result<Output> {
        self.envoy.check_running()?;
        assert_no_rejections(self.envoy.admin()?)?;
        self.envoy.stop(Duration::from_secs(10));
        self.log.assert_no_bugs()?;
        Ok(self.log)
    }
}
