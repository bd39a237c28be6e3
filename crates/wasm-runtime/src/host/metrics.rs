//! Metrics that guests define.
//!
//! Envoy takes new metrics only while a configuration loads. One that a guest defines there is Envoy's, by
//! the name `wasmcustom.<name>` as in Envoy's host. One that it defines later is shown at once as well, with that name
//! as a label of one metric for each kind ([`LateMetrics`](outrider_plugin_api::LateMetrics)).

use std::sync::atomic::Ordering;

use outrider_plugin_api::MetricKind;

use crate::abi::Status;
use crate::guest_memory::{Answer, Guest, bytes, split, write_u32, write_u64};
use crate::state::MetricChange;

/// Bytes of a metric's name.
const MOST_NAME: usize = 256;

pub(crate) fn define(
    guest: &mut Guest<'_>,
    kind: i32,
    name: i32,
    length: i32,
    place: i32,
) -> Answer {
    let kind = match kind {
        0 => MetricKind::Counter,
        1 => MetricKind::Gauge,
        2 => MetricKind::Histogram,
        _ => return Ok(Status::BadArgument),
    };
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(name) = bytes(memory, name, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    if name.len() > MOST_NAME {
        return Ok(Status::BadArgument);
    }
    let name = String::from_utf8_lossy(name);
    let metrics = state.lent.metrics_mut();
    let late = state.shared.late_metrics.as_deref();
    let metric = state.shared.metrics().define(kind, &name, metrics, late);
    Ok(match metric.and_then(|metric| state.metrics.add(metric)) {
        Some(number) => write_u32(memory, place, number),
        None => Status::InternalFailure,
    })
}

/// Changes a metric: by an amount, or to a value.
fn change(guest: &mut Guest<'_>, number: i32, amount: i64, sets: bool) -> Answer {
    let state = guest.data_mut();
    let Some(metric) = state.metrics.get(number as u32) else {
        // As in Envoy: the number's last two bits, which say of which kind it is, are looked at first.
        return Ok(match number & 3 {
            2 | 3 if !sets => Status::BadArgument,
            _ => Status::NotFound,
        });
    };
    let change = match (metric.kind, sets) {
        (MetricKind::Counter, false) if amount <= 0 => return Ok(Status::BadArgument),
        (MetricKind::Histogram, false) => return Ok(Status::BadArgument),
        // As in Envoy: to record a value of a counter is to add it.
        (MetricKind::Counter, _) | (MetricKind::Gauge, false) => {
            metric.own.fetch_add(amount as u64, Ordering::Relaxed);
            metric.id().map(|id| MetricChange::Add(id, amount))
        }
        (MetricKind::Gauge, true) => {
            metric.own.store(amount as u64, Ordering::Relaxed);
            metric
                .id()
                .map(|id| MetricChange::Record(id, amount as u64))
        }
        (MetricKind::Histogram, true) => metric
            .id()
            .map(|id| MetricChange::Record(id, amount as u64)),
    };
    if let Some(change) = change {
        state.change_metric(change);
    }
    Ok(Status::Ok)
}

pub(crate) fn increment(guest: &mut Guest<'_>, number: i32, amount: i64) -> Answer {
    change(guest, number, amount, false)
}

pub(crate) fn record(guest: &mut Guest<'_>, number: i32, value: i64) -> Answer {
    change(guest, number, value, true)
}

pub(crate) fn get(guest: &mut Guest<'_>, number: i32, place: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let value = match state.metrics.get(number as u32) {
        None if matches!(number & 3, 2 | 3) => return Ok(Status::BadArgument),
        None => return Ok(Status::NotFound),
        Some(metric) if metric.kind == MetricKind::Histogram => return Ok(Status::BadArgument),
        Some(metric) => metric.own.load(Ordering::Relaxed),
    };
    Ok(write_u64(memory, place, value))
}
