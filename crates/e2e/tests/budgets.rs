//! Budgets on the real Envoy: string functions, configurations and log handlers that do not end, a plugin
//! that fails again and again, lines that a log file loses.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;

const SOON: Duration = Duration::from_secs(20);

const GATEWAY: &str = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  access_log: {path: access.log, format: '%REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS%'}
  plugin_logs: logs
plugins:
  moody: {source: moody.lua, budgets: {share: 100}, failure_policy: {status: 429}, circuit: off}
  failing: {source: failing.lua, failure_policy: {status: 503, causes: {circuit: open}},
    circuit: {failures: 5, pause_ms: 100, longest_pause_ms: 200}}
  journal: {source: journal.lua}
projects:
  - name: all
    hosts: ['*']
    routes:
      - {match: {prefix: /moody}, respond: {status: 200, body: ok}, use: [moody]}
      - {match: {prefix: /failing}, respond: {status: 200, body: ok}, use: [failing]}
      - {match: {prefix: /journal}, respond: {status: 200, body: ok}, use: [journal]}
      - {match: {prefix: /}, respond: {status: 200, body: ok}}
";

const MOODY: &str = "
envoy.logWarn('the plugin loads')
local long = string.rep('a', 5000)
local act = {
  find = function() long:find('.-.-.-.-b') end,
  gsub = function() while true do pcall(string.gsub, long, 'a*a*a*a*b', '') end end,
  coroutine = function() coroutine.wrap(function() long:match('(.-)(.-)(.-)%1%2%3b') end)() end,
  sort = function() local t = {} for i = 1, 1e5 do t[i] = -i % 7919 end while true do table.sort(t) end end,
  load = function() load(function() return 'x = 1 ' end) end,
  recursion = function() local function deep() string.gsub('x', 'x', deep) end deep() end,
  gigabyte = function() string.rep('x', 1e9) end,
}
local function run()
  local mood = envoy.req.get_header('x-mood')
  if mood then act[mood]() end
end
return {
  version = 'v2',
  on_configure = function() envoy.logWarn('the plugin is configured') end,
  on_request_header = function() if not envoy.req.get_header('x-late') then run() end end,
  on_log = function() if envoy.req.get_header('x-late') then run() end end,
}
";

const FAILING: &str = "
return { version = 'v2', on_request_header = function()
  if envoy.req.get_header('x-bad') then while true do end end
end, on_response_header = function() envoy.resp.set_header('x-plugin', 'here') end }
";

const JOURNAL: &str = "
return { version = 'v2', on_request_header = function() envoy.filelog('line') end }
";

fn start() -> Gateway {
    let files = [
        ("moody.lua", MOODY),
        ("failing.lua", FAILING),
        ("journal.lua", JOURNAL),
    ];
    Gateway::start_with(GATEWAY, &files, GatewayOptions::default()).unwrap()
}

async fn status(gateway: &Gateway, request: Request) -> u16 {
    gateway.send(request).await.unwrap().status
}

/// Waits until the plugin serves requests again.
async fn served_again(gateway: &Gateway) {
    let deadline = Instant::now() + SOON;
    while status(gateway, Request::get("/moody")).await != 200 {
        assert!(Instant::now() < deadline, "{}", gateway.output.text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_end_is_ended_and_counted_by_cause() {
    let gateway = start();
    let mut times = 0;
    for mood in ["find", "gsub", "coroutine", "sort", "load"] {
        for _ in 0..2 {
            let began = Instant::now();
            let bad = Request::get("/moody").header("x-mood", mood);
            assert_eq!(status(&gateway, bad).await, 429, "{mood}");
            assert!(began.elapsed() < SOON, "{mood}");
            times += 1;
            assert_eq!(status(&gateway, Request::get("/moody")).await, 200);
        }
        let late = Request::get("/moody")
            .header("x-mood", mood)
            .header("x-late", "1");
        assert_eq!(status(&gateway, late).await, 200, "{mood}");
        times += 1;
    }
    for mood in ["recursion", "gigabyte"] {
        let bad = Request::get("/moody").header("x-mood", mood);
        assert_eq!(status(&gateway, bad).await, 429, "{mood}");
        // The VM is replaced off the workers: until then streams get the failure policy.
        served_again(&gateway).await;
    }
    // What `load` is given without end fills the memory, where the time is not over first.
    let prefix = "dynamicmodulescustom.outrider.plugin.moody";
    let time_alone = times - 3;
    gateway
        .wait_stat(&format!("{prefix}.errors.time"), |count| {
            count >= time_alone
        })
        .unwrap();
    let count = |cause: &str| gateway.stat(&format!("{prefix}.errors.{cause}")).unwrap();
    assert_eq!(
        count("time") + count("memory"),
        times + 1,
        "and the gigabyte"
    );
    assert!(count("memory") >= 1);
    assert_eq!(count("error"), 1, "the recursion");
    let output = gateway.stop().unwrap();
    let said = format!("{output:?}");
    for line in ["the plugin loads", "the plugin is configured"] {
        assert_eq!(said.matches(line).count(), 1, "{line} in {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_fails_again_and_again_is_left_alone_and_tried_again() {
    let gateway = start();
    let prefix = "dynamicmodulescustom.outrider.plugin.failing";
    let stat = |what: &str| gateway.stat(&format!("{prefix}.{what}")).unwrap();
    let bad = || Request::get("/failing").header("x-bad", "1");
    for _ in 0..5 {
        assert_eq!(status(&gateway, bad()).await, 503);
    }
    assert_eq!((stat("circuit_open"), stat("circuit_opened")), (1, 1));
    // Open for this cause: streams go on without it. The pause may be over by now; then it fails again.
    let mut refused = 0;
    let deadline = Instant::now() + SOON;
    while refused == 0 {
        assert!(
            Instant::now() < deadline,
            "no stream went on without the plugin"
        );
        let response = gateway.send(bad()).await.unwrap();
        assert!(response.headers.get("x-plugin").is_none());
        refused += u64::from(response.status == 200);
    }
    let mut good = 0;
    while good < 4 {
        assert!(Instant::now() < deadline, "the circuit does not close");
        let response = gateway.send(Request::get("/failing")).await.unwrap();
        assert_eq!(response.status, 200);
        match response.headers.get("x-plugin") {
            Some(_) => good += 1,
            None => refused += 1,
        }
    }
    assert_eq!((stat("circuit_open"), stat("errors.circuit")), (0, refused));
    assert!(stat("circuit_opened") >= 1);
    let said = format!("{:?}", gateway.stop().unwrap());
    for line in [
        "its circuit (project all",
        "is half open",
        "is closed again",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_a_full_disk_costs_are_counted() {
    let gateway = start();
    let folder = gateway.folder().join("logs");
    std::fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.join("journal.log")).unwrap();
    let dropped = "dynamicmodulescustom.outrider.plugin.journal.filelog_dropped";
    let deadline = Instant::now() + SOON;
    while gateway.stat(dropped).unwrap() == 0 {
        assert!(Instant::now() < deadline, "nothing was counted");
        assert_eq!(status(&gateway, Request::get("/journal")).await, 200);
    }
    let said = format!("{:?}", gateway.stop().unwrap());
    assert!(said.contains("journal.log loses lines"), "{said}");
}
