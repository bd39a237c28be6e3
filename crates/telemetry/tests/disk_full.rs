//! A disk that is full. In a process of its own: what waits for this disk is never flushed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use outrider_plugin_formats::{FileSink, Sink};
use outrider_telemetry::stats::{self, Counter};

use support::{Event, scope, text_log, wait_until};

#[test]
fn full_disk_drops_beyond_the_queue_and_recovers() {
    // Every write to it fails with "no space left on device".
    let full = "/dev/full";
    let file = |path: &str| {
        Sink::File(FileSink {
            path: path.to_owned(),
            rotate_at: None,
            keep: None,
        })
    };
    let log = text_log("full", &format!("%REQ(X-NUMBER)% {}\n", "x".repeat(4000)));
    let logs = scope(&log, &file(full));
    let before = stats::value(Counter::QueueFull);
    let mut number = 0;
    wait_until("a full queue", || {
        for _ in 0..200 {
            number += 1;
            logs.save(&mut Event::default().with_header("x-number", number.to_string().as_bytes()));
        }
        stats::value(Counter::QueueFull) > before
    });
    let status = || {
        stats::sinks()
            .into_iter()
            .find(|sink| sink.place == "/dev/full")
    };
    wait_until("the failure to be told", || {
        status().is_some_and(|sink| {
            sink.failure
                .is_some_and(|text| text.contains("No space left"))
        })
    });
    assert!(status().unwrap().waiting < 9 << 20);
    drop(logs);
    // It is given up after a while, and what it had is counted.
    wait_until("the sink to be given up", || status().is_none());
    assert!(stats::value(Counter::Abandoned) > 0);
}
