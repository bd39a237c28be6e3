//! JSON output of fortio (`-json`) and oha (`--output-format json`).

use serde_json::Value;

use super::{Tool, ToolRun};

/// Reads one result, or several one after another or in an array. Nothing if the text is no JSON of theirs.
pub(super) fn read(text: &str) -> Vec<ToolRun> {
    let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect();
    let Ok(values) = values else {
        return Vec::new();
    };
    let flat = values.into_iter().flat_map(|value| match value {
        Value::Array(values) => values,
        value => vec![value],
    });
    let runs = flat.zip(1..).filter_map(|(value, number)| {
        let name = format!("run {number}");
        fortio(&value, &name).or_else(|| oha(&value, &name))
    });
    runs.collect()
}

fn number(value: &Value, pointer: &str) -> Option<f64> {
    value.pointer(pointer)?.as_f64()
}

fn fortio(value: &Value, name: &str) -> Option<ToolRun> {
    let histogram = value.get("DurationHistogram")?;
    let mut run = ToolRun::new(Tool::Fortio, name.to_owned());
    run.asked_rate = value
        .get("RequestedQPS")
        .and_then(Value::as_str)
        .and_then(|text| text.parse().ok())
        .filter(|rate: &f64| *rate > 0.0);
    run.rate = number(value, "/ActualQPS");
    run.seconds = number(value, "/ActualDuration").map(|nanoseconds| nanoseconds / 1e9);
    run.connections = number(value, "/NumThreads");
    run.requests = number(histogram, "/Count");
    run.min = number(histogram, "/Min");
    run.mean = number(histogram, "/Avg");
    run.max = number(histogram, "/Max");
    run.is_corrected = Some(false);
    for percentile in histogram
        .get("Percentiles")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let pair = number(percentile, "/Percentile").zip(number(percentile, "/Value"));
        run.percentiles.extend(pair);
    }
    // The first bucket begins at the shortest value, and ends at the resolution or a multiple of it.
    run.resolution =
        number(value, "/RunnerResults/Resolution").or_else(|| number(histogram, "/Data/0/End"));
    for (status, count) in value
        .get("RetCodes")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let count = count.as_f64().unwrap_or_default();
        if !status.starts_with('2') {
            run.unsuccessful += count;
        }
        run.statuses.insert(status.clone(), count);
    }
    Some(run)
}

fn oha(value: &Value, name: &str) -> Option<ToolRun> {
    let summary = value.get("summary")?;
    let mut run = ToolRun::new(Tool::Oha, name.to_owned());
    run.rate = number(summary, "/requestsPerSec");
    run.seconds = number(summary, "/total");
    run.min = number(summary, "/fastest");
    run.mean = number(summary, "/average");
    run.max = number(summary, "/slowest");
    for (key, latency) in value
        .get("latencyPercentiles")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let percentile = key.trim_start_matches('p').parse().ok();
        run.percentiles.extend(percentile.zip(latency.as_f64()));
    }
    for (status, count) in value
        .get("statusCodeDistribution")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let count = count.as_f64().unwrap_or_default();
        if !status.starts_with('2') {
            run.unsuccessful += count;
        }
        run.statuses.insert(status.clone(), count);
    }
    for (kind, count) in value
        .get("errorDistribution")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let count = count.as_f64().unwrap_or_default();
        if kind.contains("timeout") || kind.contains("deadline") {
            run.timeouts += count;
        } else {
            run.failed += count;
        }
    }
    run.requests = Some(run.statuses.values().sum());
    Some(run)
}
