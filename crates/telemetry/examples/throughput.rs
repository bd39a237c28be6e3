//! Throughput of the exporter: records of 19 fields as JSON to a file, with the exporter on one core.
//!
//! `cargo run --release -p outrider-telemetry --example throughput [records] [file]`
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

use std::time::{Duration, Instant};

use outrider_plugin_formats::{AccessLog, AccessLogFormat, FileSink, Scheduling, Sink};
use outrider_telemetry::format::default_json;
use outrider_telemetry::registry::register;
use outrider_telemetry::stats::{self, Counter};
use outrider_telemetry::worker::StreamLogs;
use outrider_telemetry::{Address, HeaderMap, LogEvent, MetadataValue, Number, Text, exporter};

struct Event;

impl LogEvent for Event {
    fn header(&mut self, map: HeaderMap, name: &[u8]) -> Option<&[u8]> {
        Some(match (map, name) {
            (HeaderMap::Request, b":authority") => b"shop.example.com",
            (HeaderMap::Request, b":method") => b"GET",
            (HeaderMap::Request, b":path") => b"/cart/items/17?currency=EUR&session=8d1f",
            (HeaderMap::Request, b"user-agent") => {
                b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
            }
            (HeaderMap::Request, b"x-request-id") => b"7c9e6679-7425-40de-944b-e07fc1f90ae7",
            (HeaderMap::Request, b"x-forwarded-for") => b"203.0.113.7",
            (HeaderMap::Response, b"x-envoy-upstream-service-time") => b"11",
            _ => return None,
        })
    }
    fn text(&mut self, text: Text) -> Option<&[u8]> {
        Some(match text {
            Text::Protocol => b"HTTP/1.1",
            Text::ResponseCodeDetails => b"via_upstream",
            Text::RouteName => b"cart",
            Text::UpstreamCluster => b"shop",
            Text::UpstreamHost => b"10.0.0.7:8080",
            _ => return None,
        })
    }
    fn address(&mut self, _address: Address) -> Option<(&[u8], u32)> {
        Some((b"203.0.113.7", 41_234))
    }
    fn number(&mut self, number: Number) -> Option<i64> {
        Some(match number {
            Number::Start => 1_709_210_096_007_000_000,
            Number::Complete => 12_999_999,
            Number::ResponseCode => 200,
            Number::BytesSent => 512,
            _ => 0,
        })
    }
    fn metadata(&mut self, _namespace: &[u8], _path: &[u8]) -> Option<MetadataValue<'_>> {
        None
    }
}

/// CPU time of the exporter's threads, in seconds.
fn exporter_time() -> std::io::Result<f64> {
    let mut nanoseconds = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let name = std::fs::read_to_string(path.join("comm"))?;
        if ["outrider-logs", "outrider-rescue"].contains(&name.trim()) {
            let text = std::fs::read_to_string(path.join("schedstat"))?;
            let first = text.split_whitespace().next().unwrap_or("0");
            nanoseconds += first.parse::<f64>().unwrap_or(0.0);
        }
    }
    Ok(nanoseconds / 1e9)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments
        .next()
        .map_or(Ok(2_000_000), |text| text.parse())?;
    let path = arguments
        .next()
        .unwrap_or_else(|| "target/throughput.log".to_owned());
    // A file that is there already would be appended to.
    let _none = std::fs::remove_file(&path);
    exporter::start(Scheduling::Normal, Duration::from_secs(1))?;
    let log = AccessLog {
        name: "throughput".to_owned(),
        sink: "file".to_owned(),
        format: AccessLogFormat::Json(default_json()),
        only: None,
        sample: None,
        value_limit: None,
    };
    let sink = Sink::File(FileSink {
        path: path.clone(),
        rotate_at: None,
        keep: None,
    });
    let handle = register(&log, &sink).map_err(|problem| problem.to_string())?;
    let logs = StreamLogs::new(16 << 20, vec![handle]);
    let begin = Instant::now();
    let mut saved: u64 = 0;
    let mut saving = Duration::ZERO;
    while saved < records {
        let batch = Instant::now();
        for _ in 0..1000 {
            logs.save(&mut Event);
        }
        saving += batch.elapsed();
        saved += 1000;
        // No more than the ring holds.
        while saved > stats::value(Counter::Written) + 20_000 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let flushed = exporter::flush(Duration::from_mins(1));
    let wall = begin.elapsed().as_secs_f64();
    let time = exporter_time()?;
    let written = stats::value(Counter::Written);
    let bytes = std::fs::metadata(&path)?.len();
    println!(
        "{written} records of {} bytes written (flushed: {flushed}, dropped: {})",
        bytes / written.max(1),
        stats::value(Counter::RingFull) + stats::value(Counter::QueueFull),
    );
    println!("{:.0} records/s of wall clock", written as f64 / wall);
    println!(
        "{:.0} records/s of the exporter's CPU time",
        written as f64 / time
    );
    println!(
        "{:.0} ns to save a record",
        saving.as_nanos() as f64 / saved as f64
    );
    Ok(())
}
