//! A life of one Envoy. The stand-in tests need no Envoy; those that do look for one where the
//! command would, and fail with its sentence when there is none.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrider_envoy_process::{Drained, Envoy, Error, Level, LogLine, Options, Search};

const PATIENCE: Duration = Duration::from_secs(20);

fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("envoy");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn bootstrap(folder: &Path, listener_port: u16) -> PathBuf {
    let path = folder.join("bootstrap.yaml");
    let text = format!(
        r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: main
    address: {{socket_address: {{address: 127.0.0.1, port_value: {listener_port}}}}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          route_config:
            name: main
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}
          http_filters:
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
"#
    );
    fs::write(&path, text).unwrap();
    path
}

fn real_envoy() -> PathBuf {
    match Search::from_environment(None).find() {
        Ok(found) => found.binary,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_early_end_is_told_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let binary = script(
        folder.path(),
        r"echo '[2026-01-01 00:00:00.000][critical][main] error `cannot bind \'127.0.0.1:1\': Permission denied` initializing config' >&2; exit 1"
            .replace(r"\'", r"'\''")
            .as_str(),
    );
    let mut envoy = Envoy::start(Options::new(binary, folder.path().join("b.yaml"))).unwrap();
    let error = envoy.wait_ready(PATIENCE).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Envoy ended by itself (exit status: 1): Envoy cannot listen on 127.0.0.1:1: this user may not listen there"
    );
    assert!(matches!(error, Error::Ended { last_lines, .. } if last_lines.len() == 1));
}

#[test]
fn one_that_never_listens_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let binary = script(folder.path(), "exec sleep 60");
    let mut envoy = Envoy::start(Options::new(binary, folder.path().join("b.yaml"))).unwrap();
    let error = envoy.wait_ready(Duration::from_millis(50)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Envoy was not ready after 0 s: its admin interface does not listen"
    );
}

#[test]
fn one_that_ignores_the_request_to_end_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let binary = script(folder.path(), "trap '' TERM; while :; do sleep 0.05; done");
    let envoy = Envoy::start(Options::new(binary, folder.path().join("b.yaml"))).unwrap();
    let process = envoy.process_id();
    let start = Instant::now();
    envoy.stop(Duration::from_millis(100));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(!Path::new(&format!("/proc/{process}")).exists());
}

#[test]
fn a_whole_life() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Arc<Mutex<Vec<LogLine>>> = Arc::default();
    let mut options = Options::new(real_envoy(), bootstrap(folder.path(), 0));
    options.concurrency = Some(1);
    let sink = Arc::clone(&lines);
    options.log_sink = Some(Box::new(move |line| {
        sink.lock().unwrap().push(line.clone());
    }));
    let mut envoy = Envoy::start(options).unwrap();
    envoy.wait_ready(PATIENCE).unwrap();
    assert_eq!(envoy.rejections().unwrap(), []);
    assert_eq!(envoy.stats("^server\\.live$").unwrap()["server.live"], 1);

    let listeners = envoy.admin_get("/listeners").unwrap().body;
    let address = listeners.trim().split("::").nth(1).unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    assert_eq!(envoy.drain(PATIENCE, &|| false).unwrap(), Drained::Idle);
    envoy.check_running().unwrap();
    envoy.stop(PATIENCE);
    let lines = lines.lock().unwrap();
    assert!(
        lines
            .iter()
            .any(|line| line.message.contains("ENVOY_SIGTERM"))
    );
    assert!(
        lines
            .iter()
            .all(|line| line.component != "stderr" && line.level < Level::Error)
    );
    assert!(!folder.path().join("admin-address.txt").exists());
}

#[test]
fn a_port_in_use_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut envoy =
        Envoy::start(Options::new(real_envoy(), bootstrap(folder.path(), port))).unwrap();
    let message = envoy.wait_ready(PATIENCE).unwrap_err().to_string();
    assert!(
        message.ends_with(&format!(
            "Envoy cannot listen on 127.0.0.1:{port}: another process listens there"
        )),
        "{message}"
    );
}
