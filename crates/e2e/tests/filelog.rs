//! `envoy.filelog`: a plugin's own file, written off the worker.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;

const GATEWAY: &str = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
  plugin_logs: logs
  use: [journal]
plugins:
  journal: {source: journal.lua}
projects:
  - name: all
    hosts: ['*']
    routes:
      - match: {prefix: /}
        respond: {status: 200, body: ok}
";

const JOURNAL: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  envoy.filelog('request ' .. envoy.req.get_header(':path'))
end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_writes_a_file_of_its_own() {
    let files = [("journal.lua", JOURNAL)];
    let gateway = Gateway::start_with(GATEWAY, &files, GatewayOptions::default()).unwrap();
    for number in 0..20 {
        let response = gateway
            .send(Request::get(&format!("/{number}")))
            .await
            .unwrap();
        assert_eq!(response.status, 200);
    }
    let file = gateway.folder().join("logs/journal.log");
    let deadline = Instant::now() + Duration::from_secs(10);
    let text = loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.lines().count() >= 20 {
            break text;
        }
        assert!(Instant::now() < deadline, "the file holds only:\n{text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    for number in 0..20 {
        assert!(
            text.lines()
                .any(|line| line.ends_with(&format!("request /{number}"))),
            "{text}"
        );
    }
    gateway.stop().unwrap();
}
