//! Hooks of one stream over a stub table of Envoy's functions.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrider_plugin_api::{Decision, HttpStreamRequest, Pause, Stream};

use super::*;
use crate::raw::FilterPtr;
use crate::stub::{Asked, TestConfig, TestPlugin, asked, envoy, pointer, wait_asked};

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
        envoy();
        let config = Box::new(TestConfig::of(plugin));
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
        if call.phase == outrider_plugin_api::Phase::RequestHeaders {
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
        if call.phase == outrider_plugin_api::Phase::RequestHeaders {
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
    stream.run_scheduled();
    let heard = plugin.heard();
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
fn http_stream_with_more_than_is_kept_fails_and_is_reset() {
    let plugin = opener();
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let id = stream.started();
    for _ in 0..100 {
        stream.http_stream_data(id, 1 << 20);
    }
    assert!(plugin.heard().is_empty());
    stream.run_scheduled();
    assert!(
        stream.asked.contains(&Asked::ResetHttpStream(id)),
        "{:?}",
        stream.asked
    );
    let heard = plugin.heard();
    assert!(heard.len() < 10);
    assert!(heard.last().unwrap().contains("Failed(TooLarge)"));
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
    assert_eq!(plugin.ended.load(std::sync::atomic::Ordering::Relaxed), 1);
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
        if call.phase == outrider_plugin_api::Phase::RequestHeaders {
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
