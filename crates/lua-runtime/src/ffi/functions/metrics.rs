//! Metrics in the proxy's statistics.

use outrider_plugin_api::{MetricId, MetricKind};

use super::super::call::CallState;
use super::frame::{bytes, text, with, with_stream};

fn metric_kind(number: i32) -> Option<MetricKind> {
    match number {
        0 => Some(MetricKind::Counter),
        1 => Some(MetricKind::Gauge),
        2 => Some(MetricKind::Histogram),
        _ => None,
    }
}

/// The id of a metric that the SDK calls `number`; it counts from 1.
fn metric_id(number: i32) -> MetricId {
    MetricId(u32::try_from(number.saturating_sub(1)).unwrap_or(0))
}

/// The metric's number, from 1; 0: the proxy has no room, or has it as another kind; -1: metrics are
/// defined while a plugin loads.
pub(super) unsafe extern "C" fn metric_define(
    call: *mut CallState,
    kind: i32,
    name: *const u8,
    length: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and a string.
    unsafe {
        with(call, |state| {
            let Some(kind) = metric_kind(kind) else {
                return 0;
            };
            let name = text(bytes(name, length));
            let number = |id: MetricId| i32::try_from(id.0).map_or(0, |id| id.saturating_add(1));
            if let Some(id) = state.shared.find_metric(kind, &name) {
                return number(id);
            }
            match state.metrics {
                // SAFETY: it is there only while its borrow lasts.
                Some(mut metrics) => state
                    .shared
                    .define_metric(metrics.as_mut(), kind, &name)
                    .map_or(0, number),
                None => -1,
            }
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn metric_add(call: *mut CallState, id: i32, amount: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.add_metric(metric_id(id), amount as i64);
            1
        })
    }
}

/// 1.
pub(super) unsafe extern "C" fn metric_record(call: *mut CallState, id: i32, value: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.record_metric(metric_id(id), value as u64);
            1
        })
    }
}

/// 1: here it is; 0: it has none.
pub(super) unsafe extern "C" fn metric_get(call: *mut CallState, id: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| match stream.metric(metric_id(id)) {
            Some(value) => {
                state.head.number = value as f64;
                1
            }
            None => 0,
        })
    }
}
