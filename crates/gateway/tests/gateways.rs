//! Whole gateways: the plan, and what Envoy gets of it, in both forms.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/folder.rs"]
mod support;

use std::fmt::Write as _;

use outrider_gateway::envoy::{self, Layout, Secrets};
use outrider_gateway::{Plan, Request, compile, explain};
use outrider_plugin_formats::RouteConfig;
use serde_json::Value;

fn gateway(name: &str) -> Plan {
    let compiled = compile(name, &support::Folder::new("gateways"));
    let problems: Vec<String> = compiled.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems, Vec::<String>::new(), "{name}");
    compiled.plan.unwrap()
}

fn layout() -> Layout {
    Layout {
        directory: "/run/outrider".to_owned(),
        admin: "127.0.0.1:9901".parse().unwrap(),
        node: "outrider".to_owned(),
        secrets: Secrets::Named,
    }
}

fn yaml(value: &impl serde::Serialize) -> String {
    envoy::to_yaml(&serde_json::to_value(value).unwrap())
}

#[test]
fn goldens() {
    insta::glob!("gateways/*.yaml", |path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let plan = gateway(name);
        insta::assert_snapshot!("plan", yaml(&plan));
        let files = envoy::files(&plan, &layout());
        insta::assert_snapshot!("bootstrap", yaml(&files.bootstrap));
        for (file, content) in files.watched() {
            insta::assert_snapshot!(file, yaml(content));
        }
        if !files.secrets.is_empty() {
            insta::assert_snapshot!("secrets", yaml(&files.secrets));
        }
        insta::assert_snapshot!("static", yaml(&envoy::static_bootstrap(&plan, &layout())));
    });
}

#[test]
fn what_is_watched() {
    let compiled = compile("full.yaml", &support::Folder::new("gateways"));
    assert_eq!(
        compiled.files,
        [
            "full.yaml",
            "more",
            "more/blog.yaml",
            "plugins/limits",
            "plugins/stamp",
        ]
    );
}

/// A module is watched without the folder that it was built in, which may hold thousands of files.
#[test]
fn of_a_wasm_plugin_its_own_files_are_watched() {
    let compiled = compile("wasm.yaml", &support::Folder::new("gateways"));
    assert_eq!(
        compiled.files,
        [
            "plugins/guard/config.schema.json",
            "plugins/guard/plugin.wasm",
            "plugins/guard/plugin.yaml",
            "plugins/stamp",
            "wasm.yaml",
        ]
    );
}

#[test]
fn each_configuration_is_tried_once() {
    let folder = support::Folder::new("gateways");
    compile("scopes.yaml", &folder);
    let mut tried = folder.tried.into_inner();
    let all = tried.len();
    tried.sort();
    tried.dedup();
    assert_eq!(tried.len(), all);
    let names: Vec<&str> = tried.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        ["auth", "auth", "auth", "limits", "limits", "stamp"],
        "{tried:#?}"
    );
}

/// Only routes, projects, plugins and upstreams change: the listeners' file has to stay as it is.
#[test]
fn listeners_stay() {
    let render = |name| envoy::files(&gateway(name), &layout());
    let (before, after) = (render("minimal.yaml"), render("scopes.yaml"));
    assert_eq!(before.lds.to_string(), after.lds.to_string());
    assert_eq!(before.bootstrap.to_string(), after.bootstrap.to_string());
    assert_ne!(before.cds.to_string(), render("full.yaml").cds.to_string());
    assert_ne!(before.rds, after.rds);
    assert_ne!(before.ecds, after.ecds);
}

/// What the module makes of its documents has to be what the explanation says.
#[test]
fn documents_say_what_explanations_say() {
    for file in ["scopes.yaml", "wasm.yaml"] {
        let plan = gateway(file);
        for project in &plan.projects {
            for route in &project.routes {
                let outrider_gateway::plan::PathMatch::Prefix(path) = &route.matches.path else {
                    panic!("this test wants prefixes");
                };
                let explanation = explain(
                    &plan,
                    &Request {
                        host: project.hosts[0].replace('*', "any"),
                        path: path.clone(),
                        method: "GET".to_owned(),
                        headers: Vec::new(),
                        ..Request::get("", "")
                    },
                );
                assert_eq!(explanation.route.as_ref(), Some(&route.name));
                let explained: Vec<(String, Value)> = explanation
                    .chain
                    .iter()
                    .map(|link| (link.plugin.clone(), link.config.clone()))
                    .collect();
                // Envoy hands over the most specific document.
                let document = route.filter.as_ref().or(project.filter.as_ref());
                assert_eq!(
                    explained,
                    in_the_module(&plan, document),
                    "{} {}",
                    project.name,
                    route.name
                );
            }
        }
    }
}

/// The chain as the module computes it, from documents alone.
fn in_the_module(plan: &Plan, document: Option<&RouteConfig>) -> Vec<(String, Value)> {
    let mut chain = Vec::new();
    for entry in &plan.filter.plugins {
        let change = document.and_then(|document| {
            document
                .plugins
                .iter()
                .find(|change| change.name == entry.name)
        });
        let enabled = change
            .and_then(|change| change.enabled)
            .unwrap_or(entry.enabled);
        let base = entry
            .config
            .clone()
            .unwrap_or_else(|| serde_json::json!({}));
        let config = match change.and_then(|change| change.config.as_ref()) {
            Some(patch) => outrider_gateway::merge(&base, patch),
            None => base,
        };
        if enabled {
            let key = (
                entry.group,
                std::cmp::Reverse(entry.priority),
                entry.name.clone(),
            );
            chain.push((key, config));
        }
    }
    chain.sort_by(|(one, _), (other, _)| one.cmp(other));
    chain
        .into_iter()
        .map(|((_, _, name), config)| (name, config))
        .collect()
}

#[test]
fn explanations() {
    let requests = [
        (
            "scopes.yaml",
            "shop.example.com:80",
            "/patched/x?y=1",
            "GET",
            vec![],
        ),
        ("scopes.yaml", "any", "/open", "GET", vec![]),
        ("scopes.yaml", "PLAIN.example.com", "/", "GET", vec![]),
        ("scopes.yaml", "any", "/nowhere", "GET", vec![]),
        ("wasm.yaml", "any", "/text", "GET", vec![]),
        ("wasm.yaml", "any", "/mapping", "GET", vec![]),
        (
            "full.yaml",
            "a.shop.example.com",
            "/cart?debug&page=3",
            "POST",
            vec![
                ("x-version", "v1"),
                ("Cookie", "tier=\"gold\"; session=1"),
                ("x_under", "1"),
            ],
        ),
        ("full.yaml", "shop.example.com", "/cart", "POST", vec![]),
        ("full.yaml", "shop.net", "//api/../hello", "GET", vec![]),
        ("full.yaml", "other", "/a%2Fb", "GET", vec![]),
        (
            "lanes.yaml",
            "shop.example.com",
            "/cart?lang=fr",
            "GET",
            vec![("user", "fr"), ("x-outrider-lane", "v3")],
        ),
        (
            "lanes.yaml",
            "shop.example.com",
            "/cart",
            "GET",
            vec![("user", "fr"), ("x-outrider-lane", "v3")],
        ),
        ("lanes.yaml", "cart", "/", "GET", vec![]),
        ("lanes.yaml", "stock", "/", "GET", vec![]),
        (
            "lanes.yaml",
            "stock",
            "/",
            "GET",
            vec![("x-outrider-lane", "v3")],
        ),
        ("lanes.yaml", "news", "/", "GET", vec![]),
        ("lanes.yaml", "press.example.com", "/", "GET", vec![]),
    ];
    let mut text = String::new();
    for (file, host, path, method, headers) in requests {
        let explanation = explain(
            &gateway(file),
            &Request {
                host: host.to_owned(),
                path: path.to_owned(),
                method: method.to_owned(),
                headers: headers
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
                ..Request::get("", "")
            },
        );
        writeln!(text, "{explanation}").unwrap();
    }
    insta::assert_snapshot!(text);
    let json = serde_json::to_string_pretty(&explain(
        &gateway("scopes.yaml"),
        &Request {
            host: "any".to_owned(),
            path: "/patched".to_owned(),
            method: "GET".to_owned(),
            headers: Vec::new(),
            ..Request::get("", "")
        },
    ))
    .unwrap();
    insta::assert_snapshot!("explanation_as_json", json);
}
