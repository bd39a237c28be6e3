//! VMs that maker threads make and configure, and CPU shares.

use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Decision, Phase, Slot, Wake};

use super::fake::{FakeMetrics, FakeStream, Probe, call, config, probe_with, source};

const PATIENCE: Duration = Duration::from_secs(30);

fn off_worker(main: &str) -> Probe {
    let mut source = source(&[("main.lua", main)]);
    source.off_worker = true;
    source.time_budget = Duration::from_millis(200);
    let probe = probe_with(source, "{}");
    wait_until(|| probe.configured.wait_for_share(0, Duration::ZERO).is_none());
    probe
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn with_header(name: &str) -> FakeStream {
    let mut stream = FakeStream::new();
    let request = outrider_plugin_api::HeaderMap::RequestHeaders;
    let headers = stream.maps.get_mut(&request).unwrap();
    headers.push((name.as_bytes().to_vec(), b"1".to_vec()));
    stream
}

const HOG: &str = r#"
    return { on_request_header = function()
        if envoy.req.get_header("x-bad") then string.rep("x", 1e9) end
    end }
"#;

#[test]
fn worker_takes_the_spare_vm_at_once_and_another_is_made() {
    let probe = off_worker(HOG);
    for round in 1..4 {
        wait_until(|| probe.plugin.status().spares.len() == 1);
        let fault = probe.request(&mut with_header("x-bad")).unwrap_err();
        assert_eq!(fault.cause, Cause::Memory);
        let next = probe.request(&mut FakeStream::new());
        assert_eq!(next, Ok(Decision::Continue));
        assert_eq!(probe.plugin.status().workers[0].replacements, round);
    }
}

#[test]
fn streams_of_a_vm_that_is_being_made_wait_and_fail_as_unavailable() {
    let probe = off_worker(HOG);
    wait_until(|| probe.plugin.status().spares.len() == 1);
    let mut was_unavailable = false;
    let began = Instant::now();
    while !was_unavailable {
        let fault = probe.request(&mut with_header("x-bad")).unwrap_err();
        match fault.cause {
            Cause::Memory => {}
            Cause::Unavailable => was_unavailable = true,
            _ => panic!("{fault}"),
        }
        assert!(began.elapsed() < PATIENCE);
    }
    // The worker did not make one itself: a maker thread does, and the next stream goes on.
    wait_until(|| probe.request(&mut FakeStream::new()).is_ok());
    assert_eq!(probe.configured.wait_for_share(0, Duration::ZERO), None);
}

const SLOW: &str = r#"
    local n = 0
    return {
        on_configure = function(_, config)
            for _ = 1, config.rounds or 0 do n = n + #(("x"):rep(1000)) end
        end,
        on_log = function() envoy.logInfo(envoy.json.encode(envoy.config())) end,
    }
"#;

#[test]
fn on_configure_runs_before_streams_and_off_the_worker() {
    let probe = off_worker(SLOW);
    let log = |configured: &dyn outrider_plugin_api::ConfiguredPlugin| {
        let mut stream = FakeStream::new();
        let decision = configured.call(&mut Slot::default(), call(Phase::Log), &mut stream);
        decision.map(|_| stream.logged())
    };
    // The worker's VM is in use from now on.
    assert_eq!(log(&*probe.configured).unwrap(), ["{}"]);
    let mut metrics = FakeMetrics::default();
    let mut told_to_wait = 0;
    for round in 0..5 {
        let text = format!(r#"{{"rounds":{}}}"#, 300_000 + round);
        let slow = probe
            .plugin
            .configure(&config(&text), &mut metrics)
            .unwrap();
        told_to_wait += usize::from(slow.wait_for_share(0, Duration::ZERO).is_some());
        if let Err(fault) = log(&*slow) {
            assert_eq!(fault.cause, Cause::Unavailable);
        }
        wait_until(|| log(&*slow).is_ok_and(|logged| logged == [text.as_str()]));
        assert_eq!(slow.wait_for_share(0, Duration::ZERO), None);
        wait_until(|| log(&*probe.configured).is_ok());
    }
    assert!(
        told_to_wait > 0,
        "some streams come before the configuration"
    );
}

#[test]
fn on_configure_that_fails_for_a_workers_vm_makes_the_plugin_unavailable() {
    const ONCE: &str = r#"
        return {
            on_request_header = function() end,
            on_configure = function()
                if envoy.shared.incr("starts") > 1 then error("once is enough") end
            end,
        }
    "#;
    let probe = probe_with(source(&[("main.lua", ONCE)]), "{}");
    let fault = probe.request(&mut FakeStream::new()).unwrap_err();
    assert_eq!(fault.cause, Cause::Unavailable, "{fault}");
    assert!(fault.message.contains("on_configure failed"), "{fault}");
    assert!(
        fault.message.contains("main.lua:5: once is enough"),
        "{fault}"
    );
}

#[test]
fn on_configure_that_a_handler_sets_later_never_runs() {
    let probe = off_worker(
        r"
        local handler = {}
        function handler.on_request_header()
            handler.on_configure = function() while true do end end
        end
        return handler
        ",
    );
    assert_eq!(
        probe.request(&mut FakeStream::new()),
        Ok(Decision::Continue)
    );
    let mut metrics = FakeMetrics::default();
    for _ in 0..2 {
        let began = Instant::now();
        let other = probe.plugin.configure(&config("{}"), &mut metrics).unwrap();
        let decision = other.call(
            &mut Slot::default(),
            call(Phase::RequestHeaders),
            &mut FakeStream::new(),
        );
        assert_eq!(decision, Ok(Decision::Continue));
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn spare_vm_has_all_configurations() {
    let probe = off_worker(
        r#"
        local seen = {}
        return {
            on_configure = function(_, config) seen[config] = "seen " .. (config.n or 0) end,
            on_request_header = function()
                if envoy.req.get_header("x-bad") then string.rep("x", 1e9) end
                envoy.logInfo(seen[envoy.config()])
            end,
        }
        "#,
    );
    let mut metrics = FakeMetrics::default();
    let others: Vec<_> = (1..20)
        .map(|n| {
            let config = config(&format!(r#"{{"n":{n}}}"#));
            probe.plugin.configure(&config, &mut metrics).unwrap()
        })
        .collect();
    for round in 0..3 {
        wait_until(|| probe.plugin.status().spares.len() == 1);
        if let Err(fault) = probe.request(&mut with_header("x-bad")) {
            assert!(matches!(fault.cause, Cause::Memory | Cause::Unavailable));
        }
        for (n, other) in others.iter().enumerate() {
            let mut stream = FakeStream::new();
            wait_until(|| {
                let mut slot = Slot::default();
                other
                    .call(&mut slot, call(Phase::RequestHeaders), &mut stream)
                    .is_ok()
            });
            assert_eq!(stream.logged(), [format!("seen {}", n + 1)], "{round}");
        }
    }
}

fn shared(name: &str, main: &str) -> Probe {
    let mut source = source(&[("main.lua", main)]);
    source.plugin = name.to_owned();
    source.share = 20;
    source.time_budget = Duration::from_secs(10);
    probe_with(source, "{}")
}

#[test]
fn stream_that_sleeps_and_burns_is_charged_and_has_to_wait() {
    let probe = shared(
        "probe-burns",
        r#"
        return { on_request_header = function()
            while true do
                for _ = 1, 300 do ("x"):rep(100):find("y", 1, true) end
                envoy.sleep(1)
            end
        end }
        "#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    let mut timer = 0;
    let began = Instant::now();
    while probe.configured.wait_for_share(0, Duration::ZERO).is_none() {
        timer += 1;
        probe
            .wake(Wake::Timer(timer), &mut slot, &mut stream)
            .unwrap();
        assert!(began.elapsed() < PATIENCE, "{timer} wake-ups");
    }
    assert!(timer > 4, "the first are the request's");
    assert!(probe.plugin.status().share_waits > 0);
    assert_eq!(
        probe.configured.wait_for_share(1, Duration::ZERO),
        None,
        "the other worker"
    );
    wait_until(|| probe.configured.wait_for_share(0, Duration::ZERO).is_none());
    probe.configured.end(slot, 0);
}

#[test]
fn ordinary_plugin_at_full_load_waits_for_moments_at_most() {
    let probe = shared(
        "probe-ordinary",
        r#"
        return { on_request_header = function()
            envoy.req.set_header("x-seen", envoy.req.get_header("x-one") .. "!")
            envoy.sleep(1)
            envoy.req.set_header("x-slept", "1")
        end }
        "#,
    );
    // A worker that does nothing but this is over the limit of calls of any length at times, and over no other.
    let wait = || {
        while let Some(wait) = probe.configured.wait_for_share(0, Duration::ZERO) {
            assert!(wait < Duration::from_millis(20), "{wait:?}");
            std::thread::sleep(wait);
        }
    };
    for _ in 0..5_000 {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        wait();
        probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
        wait();
        let decision = probe.wake(Wake::Timer(1), &mut slot, &mut stream);
        assert_eq!(decision, Ok(Decision::Continue));
        probe.configured.end(slot, 0);
    }
    assert!(probe.plugin.status().share_waits < 500);
}
