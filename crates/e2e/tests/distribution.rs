//! Plugins that are no files of the gateway, served by the real Envoy: built in, and from a registry that goes away.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

#[path = "../../plugin-registry/tests/support/registry.rs"]
#[expect(dead_code, reason = "the registry's own tests use more of it")]
mod registry;
#[path = "../../plugin-registry/tests/support/server.rs"]
#[expect(dead_code, reason = "the registry's own tests use more of it")]
mod server;

use std::fs;
use std::path::Path;
use std::time::Duration;

use outrider_e2e::{Gateway, GatewayOptions, outrider};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

use registry::Registry;

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  use:
    - {plugin: headers, config: {response: {set: {x-builtin: 'yes'}}}}
    - plugin: season
plugins:
  headers: {source: 'builtin:headers'}
  season: {source: 'IMAGE', pull: Always}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {name: rest, match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
";

/// Pushes the plugin `season` of a version, as its author would.
fn push(folder: &Path, image: &str, season: &str) {
    let plugin = folder.join("season");
    fs::create_dir_all(&plugin).unwrap();
    let code = format!(
        "local handler = {{ version = 'v2' }}\nfunction handler:on_response_header()\n  \
         envoy.resp.set_header('x-season', '{season}')\nend\nreturn handler\n"
    );
    fs::write(plugin.join("plugin.yaml"), "name: season\nruntime: lua\n").unwrap();
    fs::write(plugin.join("main.lua"), code).unwrap();
    let run = outrider(folder, &["plugin", "push", "season", image], &[]).unwrap();
    assert_eq!(run.code, 0, "{run}");
}

async fn headers(gateway: &Gateway) -> (Option<String>, Option<String>) {
    let response = gateway.send(Request::get("/status/200")).await.unwrap();
    let header = |name: &str| response.headers.get(name).map(ToOwned::to_owned);
    (header("x-builtin"), header("x-season"))
}

fn both(builtin: &str, season: &str) -> (Option<String>, Option<String>) {
    (Some(builtin.to_owned()), Some(season.to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_good_plugin_goes_on_serving_when_its_registry_is_down() {
    let echo = Echo::start("echo").await.unwrap();
    let registry = Registry::start();
    let author = tempfile::tempdir().unwrap();
    let image = format!("oci://{}/season:1.0", registry.host());
    push(author.path(), &image, "winter");
    let yaml = GATEWAY
        .replace("IMAGE", &image)
        .replace("ECHO", &echo.address().to_string());
    let mut gateway = Gateway::start_with(&yaml, &[], GatewayOptions::default()).unwrap();
    assert_eq!(headers(&gateway).await, both("yes", "winter"));

    // The tag moves, and the file is read again.
    push(author.path(), &image, "spring");
    gateway
        .update(&yaml.replace("name: rest", "name: all"))
        .unwrap();
    assert_eq!(headers(&gateway).await, both("yes", "spring"));

    // The registry is gone: a change is applied, with the plugin as it was.
    drop(registry);
    let mark = gateway.output.mark();
    gateway
        .save(&yaml.replace("x-builtin: 'yes'", "x-builtin: again"))
        .unwrap();
    gateway
        .output
        .wait_after(mark, "applied in", Duration::from_secs(40))
        .unwrap();
    assert_eq!(headers(&gateway).await, both("again", "spring"));
    let said = gateway
        .output
        .wait_after(mark, "stays at sha256:", Duration::from_secs(1));
    assert!(said.is_ok(), "the warning is missing: {said:?}");

    // A start without a network.
    gateway.restart(&["--offline"]).unwrap();
    assert_eq!(headers(&gateway).await, both("again", "spring"));
    gateway.stop().unwrap();
}
