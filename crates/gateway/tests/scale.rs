//! Ten thousand routes, each with a configuration of a plugin: they cost what they say, nothing else.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use outrider_gateway::envoy::{self, Layout, Secrets};
use outrider_gateway::{Loader, PluginPackage, Problem, compile};
use outrider_plugin_formats::{BodyModes, Group, Manifest, Places, PluginCode, Runtime};
use serde_json::{Value, json};

const ROUTES: usize = 10_000;
/// Debug builds on a busy machine take a fraction of this; squared work on all routes takes far more.
const LONGEST: Duration = Duration::from_mins(1);

struct Memory(String);

impl Loader for Memory {
    fn read(&self, _path: &str) -> Result<String, String> {
        Ok(self.0.clone())
    }

    fn matching(&self, _pattern: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
        Ok(PluginPackage {
            manifest: Manifest {
                name: source.to_owned(),
                runtime: Runtime::Lua,
                version: None,
                description: None,
                entry: Some("main.lua".to_owned()),
                group: Group::default(),
                priority: 0,
                body: BodyModes::default(),
                failure_policy: None,
                budgets: None,
                circuit: None,
                build: None,
                wasm: None,
            },
            places: Places::default(),
            digest: format!("sha256:{:064}", 0),
            code: PluginCode::Files(BTreeMap::from([(
                "main.lua".to_owned(),
                "-- nothing".to_owned(),
            )])),
            schema: Some(json!({
                "type": "object",
                "properties": {"limit": {"type": "integer"}, "key": {"type": "string"}},
            })),
            folder: source.to_owned(),
        })
    }

    fn is_folder(&self, _path: &str) -> bool {
        true
    }

    fn absolute(&self, path: &str) -> String {
        format!("/{path}")
    }
}

fn large() -> String {
    let mut text = "\
gateway:
  listeners: [{address: '127.0.0.1:10000'}]
  use: [{plugin: limit, config: {key: address, limit: 0}}]
plugins:
  limit: {source: limit}
  other: {source: other}
upstreams:
  echo: {endpoints: ['127.0.0.1:8080']}
projects:
  - name: large
    hosts: ['*']
    use: [{plugin: other, config: {key: a}}]
    routes:
"
    .to_owned();
    for route in 0..ROUTES {
        writeln!(
            text,
            "      - match: {{path: /r{route}}}\n        to: echo\n        use: [{{plugin: limit, config: {{limit: {route}}}}}]"
        )
        .unwrap();
    }
    for route in 0..ROUTES {
        writeln!(
            text,
            "      - {{match: {{path: /plain{route}}}, to: echo, use: [other]}}"
        )
        .unwrap();
    }
    text
}

#[test]
fn ten_thousand_routes() {
    let loader = Memory(large());
    let begin = Instant::now();
    let compiled = compile("large.yaml", &loader);
    let problems: Vec<String> = compiled.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, Vec::<String>::new());
    let plan = compiled.plan.unwrap();
    let took_compile = begin.elapsed();
    let layout = Layout {
        directory: "/run/outrider".to_owned(),
        admin: "127.0.0.1:0".parse().unwrap(),
        node: "outrider".to_owned(),
        secrets: Secrets::Copied,
    };
    let files = envoy::files(&plan, &layout);
    let took = begin.elapsed();
    eprintln!("compiled in {took_compile:?}, with rendering {took:?}");
    assert!(took < LONGEST, "{took:?}");

    let host = &files.rds["resources"][0]["virtual_hosts"][0];
    let document = |holder: &Value| {
        holder["typed_per_filter_config"]["outrider"]["filter_config"]["value"].clone()
    };
    assert_eq!(
        document(host),
        json!({
            "format": 1,
            "scope": "project large",
            "plugins": [{"name": "other", "enabled": true, "config": {"key": "a"}}],
        })
    );
    let (slashes, routes) = host["routes"].as_array().unwrap().split_first().unwrap();
    assert_eq!(slashes["name"], "only-slashes");
    assert_eq!(routes.len(), 2 * ROUTES);
    for (index, route) in routes.iter().enumerate() {
        if index < ROUTES {
            assert_eq!(
                document(route),
                json!({
                    "format": 1,
                    "scope": format!("project large, route route-{index}"),
                    "plugins": [
                        {"name": "limit", "config": {"limit": index}},
                        {"name": "other", "enabled": true, "config": {"key": "a"}},
                    ],
                })
            );
        } else {
            assert_eq!(
                route,
                &json!({
                    "name": format!("route-{index}"),
                    "match": {"path": format!("/plain{}", index - ROUTES)},
                    "route": {"cluster": "echo"},
                })
            );
        }
    }
    for small in [&files.lds, &files.ecds, &files.cds, &files.bootstrap] {
        assert!(small.to_string().len() < 10_000);
    }
}
