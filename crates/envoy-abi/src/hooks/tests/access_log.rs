//! Which access logs a stream is recorded by: that of its own chain, and only once.

use std::time::Duration;

use outrider_plugin_api::Chain;
use outrider_plugin_formats::{AccessLog, AccessLogFormat, FileSink, Scheduling, Sink};
use outrider_telemetry::exporter;
use outrider_telemetry::registry::register;
use outrider_telemetry::worker::StreamLogs;

use super::*;
use crate::module::{MetricTable, RouteConfig};
use crate::raw::DOWNSTREAM_END;
use crate::stub::NoMetrics;

/// A filter configuration whose chain has no plugin, and the access logs that a test attaches.
struct Logged(Arc<Chain>);

impl FilterConfig for Logged {
    fn chain(&self, _: Option<&RouteConfig>) -> Arc<Chain> {
        Arc::clone(&self.0)
    }
    fn may_have_routes(&self) -> bool {
        false
    }
    fn metrics(&self) -> &dyn MetricTable {
        &NoMetrics
    }
    fn body_limit(&self) -> Option<u32> {
        None
    }
}

fn stream_of(logs: Option<Arc<StreamLogs>>) -> TestStream {
    let attachment = logs.map(|logs| -> outrider_plugin_api::Attachment { logs });
    let chain = Chain::new(Vec::new()).with_attachment(attachment);
    TestStream::with(Arc::new(Logged(Arc::new(chain))))
}

fn log(kind: u32) {
    // SAFETY: the stand-in's functions look at no logger.
    unsafe {
        crate::access_log::envoy_dynamic_module_on_access_logger_log(pointer(), ptr::null(), kind);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no files")]
fn stream_is_recorded_once_by_its_own_chain() {
    exporter::start(Scheduling::Normal, Duration::from_secs(1)).unwrap();
    let path = std::env::temp_dir().join(format!("outrider-log-{}", std::process::id()));
    let _none = std::fs::remove_file(&path);
    let logs = |text: &str| {
        let log = AccessLog {
            name: text.to_owned(),
            sink: "file".to_owned(),
            format: AccessLogFormat::Text(format!("{text} %RESPONSE_CODE% %RESPONSE_FLAGS%\n")),
            only: None,
            sample: None,
            value_limit: None,
        };
        let sink = Sink::File(FileSink {
            path: path.to_str().unwrap().to_owned(),
            rotate_at: None,
            keep: None,
        });
        Arc::new(StreamLogs::new(4096, vec![register(&log, &sink).unwrap()]))
    };
    let (first, second) = (
        stream_of(Some(logs("first"))),
        stream_of(Some(logs("second"))),
    );
    let unlogged = stream_of(None);
    for stream in [&first, &second, &unlogged] {
        stream.request_headers();
    }
    second.complete();
    // Neither a stream that goes on nor a tunnel's beginning is recorded.
    log(4);
    log(DOWNSTREAM_END);
    // It is noted no longer: this one is a stream without a filter, and there is no gateway here.
    log(DOWNSTREAM_END);
    first.complete();
    log(DOWNSTREAM_END);
    unlogged.complete();
    log(DOWNSTREAM_END);
    assert!(exporter::flush(Duration::from_secs(20)));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(text, "second 0 -\nfirst 0 -\n");
}
