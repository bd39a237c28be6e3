//! A gateway in operation: it stops, comes back, follows its file and keeps what worked, whatever happens around it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions, outrider, signal};
use outrider_lab::client::{ClientError, Connection, Request, Target};
use outrider_lab::echo::Echo;

const SOON: Duration = Duration::from_secs(15);

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  use:
    - {plugin: stamp, config: {version: one}}
plugins:
  stamp: {source: stamp.lua}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
";

const STAMP: &str = "
local handler = { version = 'v2' }
function handler:on_response_header()
  envoy.resp.set_header('x-version', envoy.config().version)
end
return handler
";

/// Logs a long line for each request.
const CHATTY: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  envoy.logWarn(('w'):rep(4000))
end
return handler
";

fn yaml(echo: &Echo) -> String {
    GATEWAY.replace("ECHO", &echo.address().to_string())
}

fn start(echo: &Echo) -> Gateway {
    let files = [("stamp.lua", STAMP), ("chatty.lua", CHATTY)];
    Gateway::start_with(&yaml(echo), &files, GatewayOptions::default()).unwrap()
}

async fn version(gateway: &Gateway) -> Option<String> {
    let response = gateway.send(Request::get("/status/200")).await.ok()?;
    response.headers.get("x-version").map(ToOwned::to_owned)
}

/// Waits until requests are answered by this version.
async fn wait_version(gateway: &Gateway, wanted: &str) {
    let began = Instant::now();
    while version(gateway).await.as_deref() != Some(wanted) {
        assert!(
            began.elapsed() < SOON,
            "{wanted} is not served: {}",
            gateway.output.text()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Sends POST requests without pause until the gateway refuses connections. Counts those that are answered, and returns
/// what was said of those that were sent and not answered.
async fn post_until_refused(target: Target, answered: Arc<AtomicUsize>) -> Vec<String> {
    let mut lost = Vec::new();
    loop {
        // Refused before anything was sent: nothing is lost.
        let Ok(mut connection) = Connection::open(&target).await else {
            return lost;
        };
        loop {
            let request = Request::post("/delay/5", "what must not be sent twice");
            match connection.send(request).await {
                Ok(response) if response.status == 200 => {
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                Ok(response) => lost.push(format!("status {}", response.status)),
                // Closed in that moment.
                Err(ClientError::NotSent(_)) => break,
                Err(error) => {
                    lost.push(error.to_string());
                    break;
                }
            }
            if connection.closed_within(Duration::ZERO).await {
                break;
            }
        }
        if lost.len() > 100 {
            return lost;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_that_was_sent_is_lost_by_a_stop() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    let targets = [vec![gateway.http1(); 8], vec![gateway.http2(); 2]].concat();
    let answered: Vec<_> = targets
        .iter()
        .map(|_| Arc::new(AtomicUsize::new(0)))
        .collect();
    let clients: Vec<_> = (targets.into_iter().zip(&answered))
        .map(|(target, answered)| tokio::spawn(post_until_refused(target, Arc::clone(answered))))
        .collect();
    let began = Instant::now();
    while !answered.iter().all(|of| of.load(Ordering::SeqCst) > 10) {
        assert!(began.elapsed() < SOON, "{}", gateway.output.text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let stopping = tokio::task::spawn_blocking(move || gateway.stop());
    for client in clients {
        let lost = client.await.unwrap();
        assert!(lost.is_empty(), "{lost:?} after {answered:?} answers");
    }
    let output = stopping.await.unwrap().unwrap();
    assert!(!output.text().contains("cut off"), "{}", output.text());
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_that_ends_is_started_again() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    for _ in 0..2 {
        let envoy = gateway.envoy_process().unwrap();
        let mark = gateway.output.mark();
        signal(envoy, "KILL").unwrap();
        let told = gateway
            .output
            .wait_after(mark, "Envoy ended by itself", SOON)
            .unwrap();
        assert!(told.contains("signal: 9"), "{told}");
        gateway
            .output
            .wait_after(mark, "serving again", SOON)
            .unwrap();
        assert_ne!(gateway.envoy_process().unwrap(), envoy);
        wait_version(&gateway, "one").await;
    }
    // It goes on to follow the file.
    gateway
        .update(&yaml(&echo).replace("version: one", "version: two"))
        .unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("two"));
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_with_a_refused_file_serves_what_was_good_last() {
    let echo = Echo::start("echo").await.unwrap();
    let mut gateway = start(&echo);
    gateway.save("gateway: {listeners: [}").unwrap();
    gateway.output.wait("not applied", SOON).unwrap();
    gateway.restart(&[]).unwrap();
    let text = gateway.output.text();
    assert!(
        text.contains("the last configuration that was good is served"),
        "{text}"
    );
    assert!(text.contains("outrider.yaml:1:"), "{text}");
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    gateway
        .update(&yaml(&echo).replace("version: one", "version: two"))
        .unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("two"));
    gateway.save("gateway: {listeners: [}").unwrap();
    let error = gateway.restart(&["--strict"]).unwrap_err().to_string();
    assert!(error.contains("exit status: 1"), "{error}");
    echo.stop().await;
}

/// Something lies where the command writes a file, as on a disk that is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_that_cannot_be_written_is_made_when_it_can() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    let obstacle = gateway
        .state_file("ecds.json")
        .unwrap()
        .with_extension("new");
    fs::create_dir(&obstacle).unwrap();
    gateway
        .save(&yaml(&echo).replace("version: one", "version: two"))
        .unwrap();
    gateway.output.wait("it is tried again", SOON).unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    fs::remove_dir(&obstacle).unwrap();
    wait_version(&gateway, "two").await;
    // The revert of a change that broke off is handed over, though the file is then as what was served before.
    fs::create_dir(&obstacle).unwrap();
    gateway
        .save(&yaml(&echo).replace("version: one", "version: three"))
        .unwrap();
    let mark = gateway.output.mark();
    gateway
        .output
        .wait_after(mark, "it is tried again", SOON)
        .unwrap();
    fs::remove_dir(&obstacle).unwrap();
    gateway
        .save(&yaml(&echo).replace("version: one", "version: two"))
        .unwrap();
    wait_version(&gateway, "two").await;
    gateway.stop().unwrap();
    echo.stop().await;
}

/// As Kubernetes replaces a ConfigMap, and removes what it held before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folder_that_a_link_replaces_is_followed() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    let folder = gateway.folder().to_owned();
    let text = fs::read_to_string(gateway.file()).unwrap();
    for (number, name) in ["one", "two", "three"].into_iter().enumerate() {
        let data = folder.join(format!("..{number}"));
        fs::create_dir(&data).unwrap();
        let text = text.replace("version: one", &format!("version: {name}"));
        fs::write(data.join("outrider.yaml"), text).unwrap();
        symlink(&data, folder.join("..tmp")).unwrap();
        fs::rename(folder.join("..tmp"), folder.join("..data")).unwrap();
        if number == 0 {
            symlink("..data/outrider.yaml", folder.join("link")).unwrap();
            fs::rename(folder.join("link"), gateway.file()).unwrap();
        } else {
            fs::remove_dir_all(folder.join(format!("..{}", number - 1))).unwrap();
        }
        wait_version(&gateway, name).await;
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_that_another_envoy_serves_is_refused() {
    let echo = Echo::start("echo").await.unwrap();
    let (gateway, other) = (start(&echo), start(&echo));
    let both = yaml(&echo).replace(
        "listeners: [",
        &format!(
            "listeners: [{{name: taken, address: '{}'}}, ",
            other.address
        ),
    );
    gateway.save(&both).unwrap();
    let told = gateway
        .output
        .wait("is in use by another process", SOON)
        .unwrap();
    assert!(told.contains("outrider.yaml:3:"), "{told}");
    let listeners = gateway
        .stat("listener_manager.total_listeners_active")
        .unwrap();
    assert_eq!(listeners, 1);
    // The file is as it was: only when it is read again, it is tried again.
    let taken = other.address;
    other.stop().unwrap();
    let mark = gateway.output.mark();
    gateway.signal("HUP").unwrap();
    gateway.output.wait_after(mark, "applied in", SOON).unwrap();
    Target::http1(taken)
        .send(Request::get("/status/200"))
        .await
        .unwrap();
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usual_signals_do_not_end_the_gateway() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    for name in ["HUP", "USR1"] {
        gateway.signal(name).unwrap();
    }
    gateway
        .output
        .wait("log files are open again", SOON)
        .unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_log_that_was_renamed_is_opened_anew_on_sigusr1() {
    let echo = Echo::start("echo").await.unwrap();
    let text = yaml(&echo).replace(
        "  workers: 1",
        "  workers: 1\n  access_log: {path: access.log, format: '%REQ(:PATH)%'}",
    );
    let gateway =
        Gateway::start_with(&text, &[("stamp.lua", STAMP)], GatewayOptions::default()).unwrap();
    let (log, rotated) = (
        gateway.folder().join("access.log"),
        gateway.folder().join("access.log.1"),
    );
    fs::rename(&log, &rotated).unwrap();
    gateway.signal("USR1").unwrap();
    gateway
        .output
        .wait("log files are open again", SOON)
        .unwrap();
    gateway
        .send(Request::get("/status/200?after"))
        .await
        .unwrap();
    let began = Instant::now();
    while !fs::read_to_string(&log).is_ok_and(|log| log.contains("?after")) {
        assert!(began.elapsed() < SOON, "{}", gateway.output.text());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!fs::read_to_string(&rotated).unwrap().contains("?after"));
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_manager_is_told_of_start_life_and_stop() {
    let echo = Echo::start("echo").await.unwrap();
    let options = GatewayOptions {
        notified: true,
        ..GatewayOptions::default()
    };
    let files = [("stamp.lua", STAMP)];
    let gateway = Gateway::start_with(&yaml(&echo), &files, options).unwrap();
    let told = gateway.notifications.clone();
    told.wait("READY=1", SOON).unwrap();
    told.wait("STATUS=serving", SOON).unwrap();
    for _ in 0..3 {
        told.wait_after(told.mark(), "WATCHDOG=1", SOON).unwrap();
    }
    gateway.interrupt().unwrap();
    told.wait("STOPPING=1", SOON).unwrap();
    gateway.wait_end().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_manager_is_told_which_process_has_taken_over() {
    let echo = Echo::start("echo").await.unwrap();
    let options = GatewayOptions {
        notified: true,
        ..GatewayOptions::default()
    };
    let files = [("stamp.lua", STAMP)];
    let gateway = Gateway::start_with(&yaml(&echo), &files, options).unwrap();
    let told = gateway.notifications.clone();
    told.wait("READY=1", SOON).unwrap();
    gateway.signal("USR2").unwrap();
    let line = told.wait("MAINPID=", SOON).unwrap();
    let (_, process) = line.rsplit_once("MAINPID=").unwrap();
    let digits: String = process.chars().take_while(char::is_ascii_digit).collect();
    let process: u32 = digits.parse().unwrap();
    // The first process ends, and the other gives signs of life.
    gateway.output.wait("has drained and ended", SOON).unwrap();
    let told_by = format!("taken over by process {process}");
    gateway.output.wait(&told_by, SOON).unwrap();
    told.wait_after(told.mark(), "WATCHDOG=1", SOON).unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    signal(process, "TERM").unwrap();
    told.wait("STOPPING=1", SOON).unwrap();
    gateway.wait_end().unwrap();
    echo.stop().await;
}

/// Clients that send POST requests without pause, connect again when they are told to close, and may never be refused.
struct Steady {
    stop: Arc<AtomicBool>,
    answered: Vec<Arc<AtomicUsize>>,
    clients: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Steady {
    fn start(gateway: &Gateway) -> Self {
        let targets = [vec![gateway.http1(); 8], vec![gateway.http2(); 2]].concat();
        let stop = Arc::new(AtomicBool::new(false));
        let answered: Vec<_> = targets.iter().map(|_| Arc::default()).collect();
        let clients = targets
            .into_iter()
            .zip(&answered)
            .map(|(target, answered)| {
                tokio::spawn(post(target, Arc::clone(&stop), Arc::clone(answered)))
            });
        let clients = clients.collect();
        Self {
            stop,
            answered,
            clients,
        }
    }

    /// Waits until each client has got ten answers more.
    async fn go_on(&self) {
        let counts = || -> Vec<usize> {
            let of = self.answered.iter();
            of.map(|count| count.load(Ordering::SeqCst)).collect()
        };
        let before = counts();
        let began = Instant::now();
        while (counts().iter().zip(&before)).any(|(now, before)| *now < before + 10) {
            assert!(began.elapsed() < SOON, "{before:?}, then {:?}", counts());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            let lost = client.await.unwrap();
            assert!(lost.is_empty(), "{lost:?}");
        }
    }
}

async fn post(target: Target, stop: Arc<AtomicBool>, answered: Arc<AtomicUsize>) -> Vec<String> {
    let mut lost = Vec::new();
    while !stop.load(Ordering::SeqCst) && lost.len() < 100 {
        let mut connection = match Connection::open(&target).await {
            Ok(connection) => connection,
            Err(error) => {
                lost.push(format!("no connection: {error}"));
                continue;
            }
        };
        while !stop.load(Ordering::SeqCst) {
            let request = Request::post("/delay/5", "what must not be sent twice");
            match connection.send(request).await {
                Ok(response) if response.status == 200 => {
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                Ok(response) => lost.push(format!("status {}", response.status)),
                // Closed in that moment.
                Err(ClientError::NotSent(_)) => break,
                Err(error) => {
                    lost.push(error.to_string());
                    break;
                }
            }
            if connection.closed_within(Duration::ZERO).await {
                break;
            }
        }
    }
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_command_takes_over_while_traffic_flows() {
    let echo = Echo::start("echo").await.unwrap();
    let text = yaml(&echo).replace("workers: 1", "workers: 2");
    let files = [("stamp.lua", STAMP)];
    let mut gateway = Gateway::start_with(&text, &files, GatewayOptions::default()).unwrap();
    let load = Steady::start(&gateway);
    load.go_on().await;
    // Fewer workers would leave a socket, and what waits in it, to nobody.
    let text = text.replace("workers: 2", "workers: 1");
    gateway.save(&text).unwrap();
    for _ in 0..2 {
        let before = gateway.envoy_process().unwrap();
        let said = gateway.take_over(&["--drain", "2"]).unwrap();
        assert!(
            said.text().contains("taken over by process"),
            "{}",
            said.text()
        );
        said.assert_no_bugs().unwrap();
        assert_ne!(gateway.envoy_process().unwrap(), before);
        gateway.output.wait("has drained and ended", SOON).unwrap();
        assert_eq!(gateway.stat("server.concurrency").unwrap(), 2);
        load.go_on().await;
    }
    // It follows its file.
    let two = text.replace("version: one", "version: two");
    gateway.update(&two).unwrap();
    wait_version(&gateway, "two").await;
    load.go_on().await;
    load.end().await;
    gateway.stop().unwrap();
    echo.stop().await;
}

/// The process that was started first stays, as whoever started it waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigusr2_starts_a_command_that_takes_over() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    let load = Steady::start(&gateway);
    load.go_on().await;
    gateway.signal("USR2").unwrap();
    gateway
        .output
        .wait("the gateway before has drained and ended", SOON)
        .unwrap();
    load.go_on().await;
    load.end().await;
    // Signals are passed on.
    let mark = gateway.output.mark();
    gateway.signal("HUP").unwrap();
    gateway.signal("USR1").unwrap();
    gateway
        .output
        .wait_after(mark, "log files are open again", SOON)
        .unwrap();
    let two = yaml(&echo).replace("version: one", "version: two");
    gateway.update(&two).unwrap();
    wait_version(&gateway, "two").await;
    gateway.stop().unwrap();
    echo.stop().await;
}

/// Both commands, and both Envoys, end well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_that_comes_while_the_old_envoy_drains_reaches_the_new_command() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    gateway.signal("USR2").unwrap();
    gateway.output.wait("taken over by process", SOON).unwrap();
    gateway.interrupt().unwrap();
    gateway.output.wait("draining", SOON).unwrap();
    gateway.wait_end().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_cannot_take_over_changes_nothing() {
    let echo = Echo::start("echo").await.unwrap();
    let mut gateway = start(&echo);
    let load = Steady::start(&gateway);
    load.go_on().await;
    let file = gateway.file();
    let arguments = |module: &str| {
        let arguments = [
            "up",
            file.to_str().unwrap(),
            "--take-over",
            "--module",
            module,
        ];
        outrider(gateway.folder(), &arguments, &[("OUTRIDER_MODULE", "")]).unwrap()
    };
    // A module that Envoy cannot load.
    fs::write(gateway.folder().join("broken.so"), "no module").unwrap();
    let run = arguments("broken.so");
    assert_ne!(run.code, 0, "{run}");
    assert!(run.stderr.contains("broken.so"), "{run}");
    gateway
        .output
        .wait("the other command gave up", SOON)
        .unwrap();
    // A file with problems.
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("to: echo", "to: nobody")).unwrap();
    let run = arguments(outrider_e2e::module().unwrap().to_str().unwrap());
    assert_eq!(run.code, 1, "{run}");
    assert!(run.stderr.contains("nobody"), "{run}");
    let mark = gateway.output.mark();
    gateway.signal("USR2").unwrap();
    gateway
        .output
        .wait_after(mark, "the command that was to take over ended", SOON)
        .unwrap();
    load.go_on().await;
    load.end().await;
    // Changes are applied again.
    fs::write(&file, good.replace("version: one", "version: two")).unwrap();
    wait_version(&gateway, "two").await;
    // Envoy's sockets are where they were: it is started again, and another command takes over.
    let envoy = gateway.envoy_process().unwrap();
    signal(envoy, "KILL").unwrap();
    gateway.output.wait("serving again", SOON).unwrap();
    wait_version(&gateway, "two").await;
    gateway.take_over(&["--drain", "1"]).unwrap();
    wait_version(&gateway, "two").await;
    gateway.stop().unwrap();
    echo.stop().await;
}

/// The other command dies when its Envoy may have taken the sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_is_started_anew_when_a_take_over_fails_late() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    let before = gateway.envoy_process().unwrap();
    let mut control = gateway.control().unwrap();
    let mut answers = BufReader::new(control.try_clone().unwrap()).lines();
    let mut say = |line: &str| {
        writeln!(control, "{line}").unwrap();
        answers.next().unwrap().unwrap()
    };
    let offer = say(r#"{"take_over": {"format": 1}}"#);
    assert!(offer.contains("\"offer\""), "{offer}");
    assert_eq!(say("\"starting\""), "\"go\"");
    // What is saved meanwhile waits.
    let two = yaml(&echo).replace("version: one", "version: two");
    gateway.save(&two).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    drop((control, answers));
    gateway.output.wait("Envoy is started anew", SOON).unwrap();
    wait_version(&gateway, "two").await;
    assert_ne!(gateway.envoy_process().unwrap(), before);
    // Whoever speaks another format, or nonsense, changes nothing.
    for line in [r#"{"take_over": {"format": 2}}"#, "nonsense"] {
        let mut control = gateway.control().unwrap();
        writeln!(control, "{line}").unwrap();
        let answer = BufReader::new(control).lines().next();
        let refused =
            answer.is_some_and(|answer| answer.is_ok_and(|text| text.contains("refused")));
        assert_eq!(refused, line != "nonsense");
    }
    assert_eq!(version(&gateway).await.as_deref(), Some("two"));
    gateway.stop().unwrap();
    echo.stop().await;
}

/// More than pipes hold: a plugin's warning of 4 KB for each request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_that_reads_nothing_costs_lines_and_no_requests() {
    let echo = Echo::start("echo").await.unwrap();
    let text = yaml(&echo)
        .replace("  use:", "  use:\n    - chatty")
        .replace(
            "projects:",
            "  chatty: {source: chatty.lua, log_rate: 100MiB}\nprojects:",
        );
    let files = [("stamp.lua", STAMP), ("chatty.lua", CHATTY)];
    let options = GatewayOptions {
        unread: true,
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start_with(&text, &files, options).unwrap();
    let mut connection = Connection::open(&gateway.http1()).await.unwrap();
    for number in 0..500 {
        let request = Request::get("/status/200").timeout(SOON);
        let response = connection.send(request).await;
        assert_eq!(response.unwrap().status, 200, "request {number}");
    }
    // It follows its file, and stops.
    gateway
        .save(&text.replace("version: one", "version: two"))
        .unwrap();
    wait_version(&gateway, "two").await;
    gateway.stop().unwrap();
    echo.stop().await;
}

/// Whatever clients send, each line is one object of JSON, with its keys and no others; and Envoy knows every operator that
/// `check` does.
#[test]
fn access_log_in_json_stays_json() {
    let operators: Vec<String> = outrider_gateway::access_log_operators()
        .map(|name| format!("      \"{name}\": '%{name}%'"))
        .collect();
    let operators = operators.join("\n");
    let yaml = format!(
        "
gateway:
  listeners: [{{address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 1
  access_log:
    path: access.log
    json_format:
      path: '%REQ(:PATH)%'
      agent: {{name: '%REQ(USER-AGENT)%', again: 'it says \"%REQ(USER-AGENT)%\"'}}
      status: '%RESPONSE_CODE%'
      fixed: 100%%
      nested: \"%CEL(request.headers['user-agent'].contains('x'))% %REQ(x-a?user-agent):3%\"
      either: '%COALESCE({{\"operators\": [\"PROTOCOL\"]}})%'
{operators}
projects:
  - name: all
    hosts: ['*']
    routes: [{{match: {{prefix: /}}, respond: {{status: 204}}}}]
"
    );
    let gateway = Gateway::start(&yaml).unwrap();
    let agents: [&[u8]; 5] = [
        b"a\"b",
        b"\", \"status\": 200, \"x\": \"",
        b"back\\slash\ttab",
        b"bytes \x80\xff\xfe\xc3\x28",
        "umlaut ä, \u{2028}".as_bytes(),
    ];
    for agent in agents {
        let mut connection = TcpStream::connect(gateway.address).unwrap();
        let mut request =
            b"GET /\"x HTTP/1.1\r\nhost: a\r\nconnection: close\r\nuser-agent: ".to_vec();
        request.extend_from_slice(agent);
        request.extend_from_slice(b"\r\n\r\n");
        connection.write_all(&request).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }
    let log = gateway.folder().join("access.log");
    let began = Instant::now();
    let bytes = loop {
        let bytes = std::fs::read(&log).unwrap_or_default();
        if bytes.split(|byte| *byte == b'\n').count() == agents.len() + 1 {
            break bytes;
        }
        assert!(
            began.elapsed() < SOON,
            "{}",
            String::from_utf8_lossy(&bytes)
        );
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = String::from_utf8(bytes).unwrap();
    for (line, agent) in text.lines().zip(agents) {
        let line: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
        assert_eq!(line["status"], 204, "{line}");
        assert_eq!(line["path"], "/%22x", "{line}");
        assert_eq!(line["fixed"], "100%", "{line}");
        assert_eq!(line["either"], "HTTP/1.1", "{line}");
        assert_eq!(line.get("x"), None, "{line}");
        let name = line["agent"]["name"].as_str().unwrap();
        if let Ok(agent) = str::from_utf8(agent) {
            assert_eq!(name, agent);
            assert_eq!(line["agent"]["again"], format!("it says \"{agent}\""));
        } else {
            assert!(name.starts_with("bytes "), "{name}");
        }
    }
    gateway.stop().unwrap();
}

/// What alerts need: a gauge, and a page with time and reason; also of an Envoy that was started anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_file_is_a_gauge_and_a_line_of_the_admin_page() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    let gauge = || {
        let stats = gateway.admin.stats("outrider.file_refused$").unwrap();
        stats.values().copied().next()
    };
    let wait = |value: u64| {
        let began = Instant::now();
        while gauge() != Some(value) {
            assert!(began.elapsed() < SOON, "{:?}, not {value}", gauge());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let page = |path: &str| gateway.admin.get(path).unwrap().body;
    wait(0);
    let is_served = format!("{} is served", gateway.file().display());
    let began = Instant::now();
    while !page("/outrider/file").contains(&is_served) {
        assert!(began.elapsed() < SOON, "{}", page("/outrider/file"));
        std::thread::sleep(Duration::from_millis(50));
    }
    gateway.save("gateway: {nonsense: 1}").unwrap();
    wait(1);
    for path in ["/outrider", "/outrider/file"] {
        let text = page(path);
        assert!(text.contains("was REFUSED at 20"), "{text}");
        assert!(text.contains("nonsense"), "{text}");
    }
    let document: serde_json::Value =
        serde_json::from_str(&page("/outrider/file?format=json")).unwrap();
    let reason = document["file"]["refused"]["reason"].as_str().unwrap();
    assert!(reason.contains("outrider.yaml:1:11"), "{reason}");

    let mark = gateway.output.mark();
    signal(gateway.envoy_process().unwrap(), "KILL").unwrap();
    gateway
        .output
        .wait_after(mark, "serving again", SOON)
        .unwrap();
    wait(1);
    gateway.save(&yaml(&echo)).unwrap();
    wait(0);
    assert!(page("/outrider/file").contains(&is_served));
    // Whoever sends something else changes nothing.
    for body in ["", "{}", "{\"path\": \"x\", \"refused\": 1}"] {
        let answer = gateway.admin.send("/outrider/file", body).unwrap();
        assert_eq!(answer.status, 400, "{}", answer.body);
    }
    assert_eq!(gauge(), Some(0));
    assert_eq!(gateway.admin.post("/outrider").unwrap().status, 405);
    gateway.stop().unwrap();
    echo.stop().await;
}

/// A folder of includes that is deployed anew, by removing it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folder_of_includes_that_is_gone_for_a_moment_takes_nothing_away() {
    let echo = Echo::start("echo").await.unwrap();
    let whole = yaml(&echo);
    let begin = whole.find("projects:").unwrap();
    let end = whole.find("upstreams:").unwrap();
    let projects = whole.get(begin..end).unwrap();
    let first = format!("include: ['more/*.yaml']\n{}", whole.replace(projects, ""));
    let files = [("stamp.lua", STAMP), ("more/projects.yaml", projects)];
    let gateway = Gateway::start_with(&first, &files, GatewayOptions::default()).unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    let mark = gateway.output.mark();
    fs::remove_dir_all(gateway.folder().join("more")).unwrap();
    gateway
        .output
        .wait_after(mark, "there is no folder `", SOON)
        .unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    let mark = gateway.output.mark();
    fs::create_dir(gateway.folder().join("more")).unwrap();
    gateway.save_file("more/projects.yaml", projects).unwrap();
    gateway
        .output
        .wait_after(mark, "again as what is served", SOON)
        .unwrap();
    assert_eq!(version(&gateway).await.as_deref(), Some("one"));
    gateway.stop().unwrap();
    echo.stop().await;
}

/// What only a start takes up is in what a start falls back to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn last_good_configuration_has_what_the_next_start_takes_up() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo);
    // It is written once Envoy has answered.
    let wait = async |workers: u64| {
        let began = Instant::now();
        let kept = || gateway.state("last-good.json").ok()?["workers"].as_u64();
        while kept() != Some(workers) {
            assert!(began.elapsed() < SOON, "{}", gateway.output.text());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    wait(1).await;
    gateway
        .save(&yaml(&echo).replace("  workers: 1", "  workers: 2"))
        .unwrap();
    wait(2).await;
    gateway.stop().unwrap();
    echo.stop().await;
}
