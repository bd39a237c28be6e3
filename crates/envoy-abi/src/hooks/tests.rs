//! Hooks of one stream over a stub table of Envoy's functions.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrider_plugin_api::{Decision, HttpStreamRequest, Pause, Phase, Stream};

use super::*;
use crate::raw::FilterPtr;
use crate::stub::{Asked, TestConfig, TestPlugin, asked, envoy, pointer, times, wait_asked};
use crate::wake_queue::{self, GAP, TURN};

mod access_log;
mod lent_bytes;

/// A stream that has a filter, as Envoy keeps it.
struct TestStream {
    filter: FilterPtr,
    module: *const c_void,
    _config: Box<Arc<dyn FilterConfig>>,
    /// What was asked for beside the commits of schedulers.
    asked: Vec<Asked>,
}

impl TestStream {
    fn new(plugin: &Arc<TestPlugin>) -> Self {
        Self::with(TestConfig::of(plugin))
    }

    fn with(config: Arc<dyn FilterConfig>) -> Self {
        envoy();
        let config = Box::new(config);
        let filter = pointer();
        // SAFETY: the configuration outlives the filter.
        let module = unsafe {
            let config = (&raw const *config).cast();
            envoy_dynamic_module_on_http_filter_new(config, filter)
        };
        assert!(!module.is_null());
        Self {
            filter,
            module,
            _config: config,
            asked: Vec::new(),
        }
    }

    fn request_headers(&self) -> u32 {
        // SAFETY: the filter is alive.
        unsafe {
            envoy_dynamic_module_on_http_filter_request_headers(self.filter, self.module, true)
        }
    }

    fn request_body(&self) -> u32 {
        // SAFETY: the filter is alive.
        unsafe { envoy_dynamic_module_on_http_filter_request_body(self.filter, self.module, true) }
    }

    fn response_headers(&self) -> u32 {
        // SAFETY: the filter is alive.
        unsafe {
            envoy_dynamic_module_on_http_filter_response_headers(self.filter, self.module, true)
        }
    }

    fn complete(&self) {
        // SAFETY: the filter is alive.
        unsafe { envoy_dynamic_module_on_http_filter_stream_complete(self.filter, self.module) }
    }

    fn http_stream_reset(&self, id: u64) {
        // SAFETY: the filter is alive.
        unsafe {
            envoy_dynamic_module_on_http_filter_http_stream_reset(self.filter, self.module, id, 0);
        }
    }

    fn http_stream_data(&self, id: u64, length: usize) {
        let bytes = vec![b'x'; length];
        let piece = EnvoyBuffer {
            pointer: bytes.as_ptr(),
            length,
        };
        // SAFETY: the filter is alive, and the piece outlives the call.
        unsafe {
            envoy_dynamic_module_on_http_filter_http_stream_data(
                self.filter,
                self.module,
                id,
                &raw const piece,
                1,
                false,
            );
        }
    }

    fn callout_failed(&self, id: u64) {
        // SAFETY: the filter is alive.
        unsafe {
            envoy_dynamic_module_on_http_filter_http_callout_done(
                self.filter,
                self.module,
                id,
                1,
                ptr::null(),
                0,
                ptr::null(),
                0,
            );
        }
    }

    /// Takes in what was asked for, and answers which scheduler events are on their way.
    fn commits(&mut self) -> Vec<u64> {
        self.sort(asked(self.filter))
    }

    fn sort(&mut self, all: Vec<Asked>) -> Vec<u64> {
        let mut events = Vec::new();
        for one in all {
            match one {
                Asked::Commit(event) => events.push(event),
                other => self.asked.push(other),
            }
        }
        events
    }

    /// Lets scheduler events come until none is left.
    fn run_scheduled(&mut self) {
        loop {
            let events = self.commits();
            if events.is_empty() {
                return;
            }
            self.come(&events);
        }
    }

    /// Lets scheduler events come until the plugin has heard so many events. A thread that does not run for a while
    /// finds a turn over, and needs another.
    fn hear(&mut self, plugin: &TestPlugin, count: usize) -> Vec<String> {
        let mut heard = plugin.heard();
        while heard.len() < count {
            let commits = self.wait_commit();
            self.come(&commits);
            heard.extend(plugin.heard());
        }
        heard
    }

    /// Waits until a scheduler event is on its way.
    fn wait_commit(&mut self) -> Vec<u64> {
        loop {
            let all = wait_asked(self.filter);
            let events = self.sort(all);
            if !events.is_empty() {
                return events;
            }
        }
    }

    fn come(&self, events: &[u64]) {
        for event in events {
            // SAFETY: the filter is alive.
            unsafe {
                envoy_dynamic_module_on_http_filter_scheduled(self.filter, self.module, *event);
            }
        }
    }

    fn started(&mut self) -> u64 {
        let commits = self.commits();
        assert!(commits.is_empty(), "{commits:?}");
        match self.asked.pop() {
            Some(Asked::StartHttpStream(id)) => id,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for TestStream {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { envoy_dynamic_module_on_http_filter_destroy(self.module) }
    }
}

fn start_http_stream(stream: &mut dyn Stream) -> HttpStreamId {
    let request = HttpStreamRequest {
        cluster: b"upstream",
        headers: &[
            (b":method", b"GET"),
            (b":path", b"/"),
            (b":authority", b"upstream"),
        ],
        body: b"",
        end_of_stream: false,
        timeout: None,
    };
    stream.start_http_stream(&request).unwrap()
}

/// A plugin that opens an HTTP stream with the request, and waits for it.
fn opener() -> Arc<TestPlugin> {
    Arc::new(TestPlugin::new(|call, stream| {
        if call.phase == Phase::RequestHeaders {
            start_http_stream(stream);
            return Ok(Decision::Pause(Pause::Event));
        }
        Ok(Decision::Continue)
    }))
}

#[test]
fn failed_http_stream_is_delivered_by_the_scheduler() {
    let plugin = opener();
    let mut stream = TestStream::new(&plugin);
    assert_eq!(stream.request_headers(), headers_status::STOP_ITERATION);
    let id = stream.started();
    stream.http_stream_reset(id);
    assert!(plugin.heard().is_empty(), "it ran inside of Envoy's hook");
    let commits = stream.commits();
    assert_eq!(commits.len(), 1);
    assert!(stream.asked.is_empty(), "{:?}", stream.asked);
    stream.come(&commits);
    let heard = plugin.heard();
    assert_eq!(heard.len(), 1);
    assert!(heard[0].contains("Failed(Reset)"), "{heard:?}");
    stream.run_scheduled();
    assert_eq!(stream.asked, [Asked::ContinueDecoding]);
}

#[test]
fn http_stream_parts_are_delivered_in_order_and_by_one_event() {
    let plugin = Arc::new(TestPlugin::new(|call, stream| {
        if call.phase == Phase::RequestHeaders {
            start_http_stream(stream);
        }
        Ok(Decision::Continue)
    }));
    let mut stream = TestStream::new(&plugin);
    assert_eq!(stream.request_headers(), headers_status::CONTINUE);
    let id = stream.started();
    stream.http_stream_data(id, 1);
    stream.http_stream_data(id, 2);
    stream.http_stream_reset(id);
    assert!(plugin.heard().is_empty());
    let commits = stream.commits();
    assert_eq!(commits.len(), 1);
    stream.come(&commits);
    let heard = stream.hear(&plugin, 3);
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert!(
        heard[0].contains("Data") && heard[1].contains("Data"),
        "{heard:?}"
    );
    assert!(heard[2].contains("Failed(Reset)"), "{heard:?}");
}

#[test]
fn http_stream_started_by_an_event_fails_in_a_later_event() {
    let mut plugin = TestPlugin::new(|_, stream| {
        start_http_stream(stream);
        Ok(Decision::Pause(Pause::Event))
    });
    plugin.event = Box::new(|_, stream| {
        start_http_stream(stream);
    });
    let plugin = Arc::new(plugin);
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let first = stream.started();
    stream.http_stream_reset(first);
    let commits = stream.commits();
    stream.come(&commits);
    assert_eq!(plugin.heard().len(), 1);
    let commits = stream.commits();
    let Some(Asked::StartHttpStream(second)) = stream
        .asked
        .iter()
        .find(|asked| matches!(asked, Asked::StartHttpStream(_)))
        .cloned()
    else {
        panic!("{:?}", stream.asked);
    };
    stream.come(&commits);
    stream.http_stream_reset(second);
    assert!(plugin.heard().is_empty());
    stream.run_scheduled();
    assert_eq!(plugin.heard().len(), 1);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "formats megabytes of events, which Miri interprets for minutes"
)]
fn http_stream_with_more_than_is_kept_fails_and_is_reset() {
    let plugin = opener();
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let id = stream.started();
    for _ in 0..100 {
        stream.http_stream_data(id, 1 << 20);
    }
    assert!(plugin.heard().is_empty());
    let mut heard = Vec::new();
    let is_last = |heard: &[String]| {
        let last = heard.last();
        last.is_some_and(|last| last.contains("Failed(TooLarge)"))
    };
    while !is_last(&heard) {
        // More than one turn.
        let commits = stream.wait_commit();
        stream.come(&commits);
        heard.extend(plugin.heard());
        assert!(heard.len() < 10, "{}", heard.len());
    }
    stream.commits();
    assert!(
        stream.asked.contains(&Asked::ResetHttpStream(id)),
        "{:?}",
        stream.asked
    );
}

#[test]
fn events_of_a_stream_that_is_gone_reach_no_plugin() {
    let plugin = opener();
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let id = stream.started();
    stream.http_stream_reset(id);
    drop(stream);
    assert!(plugin.heard().is_empty());
    assert_eq!(plugin.ended.load(Ordering::Relaxed), 1);
}

#[test]
fn unknown_callout_is_passed_over() {
    let plugin = opener();
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    stream.callout_failed(99_999);
    stream.run_scheduled();
    assert!(plugin.heard().is_empty());
}

#[test]
fn timer_resumes_the_call_that_waits_for_it() {
    let number = Arc::new(Mutex::new(0));
    let noted = Arc::clone(&number);
    let plugin = Arc::new(TestPlugin::new(move |call, stream| {
        if call.phase == Phase::RequestHeaders {
            *noted.lock().unwrap() = stream.start_timer(Duration::from_millis(5)).unwrap();
            return Ok(Decision::Pause(Pause::Event));
        }
        Ok(Decision::Continue)
    }));
    let mut stream = TestStream::new(&plugin);
    assert_eq!(stream.request_headers(), headers_status::STOP_ITERATION);
    let commits = stream.wait_commit();
    stream.come(&commits);
    stream.run_scheduled();
    let number = *number.lock().unwrap();
    assert_eq!(plugin.heard(), [format!("Timer({number})")]);
    assert_eq!(stream.asked, [Asked::ContinueDecoding]);
}

/// A plugin that starts a timer with the request, and again whenever it is due; each time it runs for `burns`.
fn ticker(burns: Duration) -> Arc<TestPlugin> {
    let mut plugin = TestPlugin::new(|call, stream| {
        if call.phase == Phase::RequestHeaders {
            stream.start_timer(Duration::from_millis(1)).unwrap();
        }
        Ok(Decision::Continue)
    });
    plugin.event = Box::new(move |_, stream| {
        stream.start_timer(Duration::from_millis(1)).unwrap();
        let until = Instant::now() + burns;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    });
    Arc::new(plugin)
}

#[test]
fn wake_ups_that_run_long_leave_gaps_in_which_nothing_is_posted() {
    let plugin = ticker(TURN * 3);
    let mut streams: Vec<TestStream> = (0..12).map(|_| TestStream::new(&plugin)).collect();
    for stream in &mut streams {
        stream.request_headers();
    }
    let mut heard = 0;
    // When the last one began; it took three turns, and the gap belongs to the event loop.
    let mut began: Option<Instant> = None;
    let least = TURN * 3 + GAP;
    let deadline = Instant::now() + Duration::from_secs(20);
    while heard < 30 {
        assert!(Instant::now() < deadline);
        // As Envoy's event loop: what is posted runs, until nothing is.
        let mut posted: Vec<(usize, Instant)> = Vec::new();
        for (index, stream) in streams.iter().enumerate() {
            posted.extend(times(stream.filter).into_iter().map(|at| (index, at)));
        }
        assert!(posted.len() <= 1, "{} events at a time", posted.len());
        for (index, at) in posted {
            if let Some(began) = began {
                let after = at.saturating_duration_since(began);
                assert!(after >= least, "posted after {after:?}");
            }
            let begins = Instant::now();
            streams[index].come(&[0]);
            // A thread that does not run for a while finds the turn over, and wakes nothing.
            let woken = plugin.heard().len();
            began = (woken > 0).then_some(begins);
            heard += woken;
        }
        std::thread::yield_now();
    }
}

#[test]
fn short_wake_ups_follow_each_other_at_once() {
    let plugin = opener();
    let mut streams: Vec<TestStream> = (0..3).map(|_| TestStream::new(&plugin)).collect();
    let ids: Vec<u64> = streams
        .iter_mut()
        .map(|stream| {
            stream.request_headers();
            stream.started()
        })
        .collect();
    for (stream, id) in streams.iter().zip(ids) {
        stream.http_stream_reset(id);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut heard = 0;
    while heard < 3 {
        assert!(Instant::now() < deadline);
        for stream in &mut streams {
            stream.run_scheduled();
        }
        heard += plugin.heard().len();
    }
}

#[test]
fn filter_that_goes_with_its_event_on_the_way_leaves_the_turn_to_others() {
    let plugin = opener();
    let mut first = TestStream::new(&plugin);
    let mut second = TestStream::new(&plugin);
    first.request_headers();
    second.request_headers();
    let (one, two) = (first.started(), second.started());
    first.http_stream_reset(one);
    second.http_stream_reset(two);
    assert_eq!(first.commits().len(), 1);
    assert!(second.commits().is_empty());
    drop(first);
    let commits = second.wait_commit();
    second.come(&commits);
    assert_eq!(plugin.heard().len(), 1);
}

#[test]
fn calls_beside_streams_wait_for_the_gap_and_come_first_then() {
    let plugin = ticker(TURN * 3);
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let commits = stream.wait_commit();
    stream.come(&commits);
    // The turn is over, for calls beside streams, too.
    assert!(wake_queue::begin_beside().is_none());
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut wake_up = loop {
        std::thread::sleep(Duration::from_millis(2));
        assert!(Instant::now() < deadline);
        if let Some(wake_up) = wake_queue::begin_beside() {
            break wake_up;
        }
    };
    std::thread::sleep(TURN * 2);
    assert!(wake_up.is_over());
    wake_up.has_more = true;
    drop(wake_up);
    assert!(wake_queue::begin_beside().is_none());
}

fn panics_in(phase: Phase) -> Arc<TestPlugin> {
    Arc::new(TestPlugin::new(move |call, stream| {
        assert!(call.phase != phase, "as the test wants");
        if call.phase == Phase::RequestHeaders {
            start_http_stream(stream);
        }
        Ok(Decision::Continue)
    }))
}

#[test]
fn panic_with_request_headers_ends_the_stream_with_500() {
    let plugin = panics_in(Phase::RequestHeaders);
    let mut stream = TestStream::new(&plugin);
    assert_eq!(stream.request_headers(), headers_status::STOP_ITERATION);
    stream.commits();
    assert_eq!(stream.asked, [Asked::SendResponse(500)]);
    stream.asked.clear();
    // Nothing of the request goes on any more, and the reply passes without the plugin.
    assert_eq!(stream.request_body(), body_status::STOP_NO_BUFFER);
    assert_eq!(stream.response_headers(), headers_status::CONTINUE);
    stream.complete();
    stream.commits();
    assert!(stream.asked.is_empty(), "{:?}", stream.asked);
}

#[test]
fn panic_with_response_headers_replaces_the_response() {
    let plugin = panics_in(Phase::ResponseHeaders);
    let mut stream = TestStream::new(&plugin);
    assert_eq!(stream.request_headers(), headers_status::CONTINUE);
    assert_eq!(stream.response_headers(), headers_status::STOP_ITERATION);
    stream.commits();
    assert_eq!(stream.asked.last(), Some(&Asked::SendResponse(500)));
}

#[test]
fn panic_in_an_event_after_response_headers_resets_the_stream() {
    let mut plugin = TestPlugin::new(|call, stream| {
        if call.phase == Phase::RequestHeaders {
            start_http_stream(stream);
        }
        Ok(Decision::Continue)
    });
    plugin.event = Box::new(|_, _| panic!("as the test wants"));
    let plugin = Arc::new(plugin);
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let id = stream.started();
    assert_eq!(stream.response_headers(), headers_status::CONTINUE);
    stream.http_stream_reset(id);
    let commits = stream.commits();
    stream.come(&commits);
    stream.run_scheduled();
    assert_eq!(stream.asked, [Asked::ResetStream]);
    assert_eq!(stream.response_headers(), headers_status::STOP_ITERATION);
    // Another stream of the worker is woken as before.
    let other = opener();
    let mut next = TestStream::new(&other);
    next.request_headers();
    let id = next.started();
    next.http_stream_reset(id);
    let commits = next.wait_commit();
    next.come(&commits);
    assert_eq!(other.heard().len(), 1);
}

#[test]
fn panic_gives_back_what_the_plugin_holds() {
    let plugin = panics_in(Phase::ResponseHeaders);
    let stream = TestStream::new(&plugin);
    stream.request_headers();
    stream.response_headers();
    drop(stream);
    assert_eq!(plugin.ended.load(Ordering::Relaxed), 1);
}

#[test]
fn hook_in_the_middle_of_a_step_breaks_the_stream_off() {
    let place: Arc<[AtomicPtr<c_void>; 2]> = Arc::default();
    let there = Arc::clone(&place);
    let plugin = Arc::new(TestPlugin::new(move |_, _| {
        let [filter, module] = there.each_ref().map(|part| part.load(Ordering::Relaxed));
        if !module.is_null() {
            // SAFETY: the filter is alive: this is one of its hooks.
            let answer = unsafe {
                envoy_dynamic_module_on_http_filter_response_headers(filter, module, false)
            };
            assert_eq!(answer, headers_status::STOP_ITERATION);
        }
        Ok(Decision::Continue)
    }));
    let mut stream = TestStream::new(&plugin);
    place[0].store(stream.filter, Ordering::Relaxed);
    place[1].store(stream.module.cast_mut(), Ordering::Relaxed);
    assert_eq!(stream.request_headers(), headers_status::STOP_ITERATION);
    stream.commits();
    assert_eq!(stream.asked, [Asked::SendResponse(500)]);
}

#[test]
fn events_wait_until_the_plugin_has_a_share_again() {
    let plugin = opener();
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let id = stream.started();
    *plugin.share.lock().unwrap() = Some(Duration::from_millis(5));
    stream.http_stream_reset(id);
    let commits = stream.commits();
    stream.come(&commits);
    assert!(plugin.heard().is_empty());
    let commits = stream.wait_commit();
    stream.come(&commits);
    assert!(plugin.heard().is_empty());
    *plugin.share.lock().unwrap() = None;
    let commits = stream.wait_commit();
    stream.come(&commits);
    assert_eq!(plugin.heard().len(), 1);
}
