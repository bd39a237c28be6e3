//! Text output of wrk, hey, fortio and oha.

use super::{Tool, ToolRun};

/// Reads every run of a text, one after another.
pub(super) fn read(text: &str) -> Vec<ToolRun> {
    let mut runs: Vec<ToolRun> = Vec::new();
    for line in text.lines() {
        if let Some(tool) = begin(line) {
            let name = format!("run {}", runs.len() + 1);
            runs.push(ToolRun::new(tool, name));
        }
        if let Some(run) = runs.last_mut() {
            match run.tool {
                Tool::Wrk => wrk(run, line),
                Tool::Hey | Tool::Oha => hey(run, line),
                Tool::Fortio => fortio(run, line),
                Tool::Table => {}
            }
        }
    }
    // A heading alone, for example in prose, is no run.
    runs.retain(|run| run.rate.is_some() || run.mean.is_some());
    runs
}

fn begin(line: &str) -> Option<Tool> {
    let line = line.trim();
    if line.starts_with("Running ") && line.contains("test @") {
        Some(Tool::Wrk)
    } else if line.starts_with("Fortio ") && line.contains("running at") {
        Some(Tool::Fortio)
    } else if line == "Summary:" {
        // Both print it; a success rate follows in oha's.
        Some(Tool::Hey)
    } else {
        None
    }
}

/// Reads a time such as `1.23ms`, `63.00us`, `2 s`, `0.0123 secs` as seconds.
pub(super) fn time(text: &str) -> Option<f64> {
    let text = text.trim();
    let split = text.find(|letter: char| !(letter.is_ascii_digit() || ".e-+".contains(letter)))?;
    let (number, unit) = text.split_at_checked(split)?;
    let factor = match unit.trim() {
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" | "sec" | "secs" | "seconds" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// Reads a count such as `17.9k`.
fn count(text: &str) -> Option<f64> {
    let text = text.trim().trim_end_matches([',', ';', ')', '%']);
    let (number, factor) = match text.chars().last()? {
        'k' => (text.strip_suffix('k')?, 1e3),
        'M' => (text.strip_suffix('M')?, 1e6),
        _ => (text, 1.0),
    };
    Some(number.parse::<f64>().ok()? * factor)
}

/// The word behind `key` in a line.
fn after<'line>(line: &'line str, key: &str) -> Option<&'line str> {
    line.split_once(key)?.1.split_whitespace().next()
}

fn percentile(line: &str, sign: &str) -> Option<(f64, f64)> {
    let (percentile, latency) = line.trim().split_once(sign)?;
    let latency = latency.trim().trim_start_matches("in ").trim();
    Some((percentile.trim().parse().ok()?, time(latency)?))
}

fn wrk(run: &mut ToolRun, line: &str) {
    let line = line.trim();
    let mut words = line.split_whitespace();
    if line.starts_with("Running ") {
        run.asked_seconds = after(line, "Running ").and_then(time);
    } else if line.contains("threads and") {
        run.connections = after(line, "threads and ").and_then(count);
    } else if line.starts_with("Latency") && !line.contains("Distribution") {
        words.next();
        let values: Vec<Option<f64>> = words.map(time).collect();
        run.mean = values.first().copied().flatten();
        run.max = values.get(2).copied().flatten();
    } else if line.contains(" requests in ") {
        run.requests = words.next().and_then(count);
        run.seconds =
            after(line, " requests in ").and_then(|text| time(text.trim_end_matches(',')));
    } else if line.starts_with("Requests/sec:") {
        run.rate = after(line, "Requests/sec:").and_then(count);
    } else if line.starts_with("Socket errors:") {
        let number = |key: &str| after(line, key).and_then(count).unwrap_or_default();
        run.failed = number("connect ") + number("read ") + number("write ");
        run.timeouts = number("timeout ");
    } else if line.starts_with("Non-2xx") {
        run.unsuccessful = after(line, "responses:")
            .and_then(count)
            .unwrap_or_default();
    } else if let Some(percentile) = percentile(line, "%") {
        run.percentiles.push(percentile);
    }
}

/// hey and oha, whose outputs are alike.
fn hey(run: &mut ToolRun, line: &str) {
    let line = line.trim();
    let value = |key: &str| line.strip_prefix(key).map(str::trim);
    let seconds = |text: &str| time(text).or_else(|| text.split_whitespace().next()?.parse().ok());
    if let Some(text) = value("Total:") {
        run.seconds = run.seconds.or_else(|| seconds(text));
    } else if value("Success rate:").is_some() {
        run.tool = Tool::Oha;
        let share = value("Success rate:").and_then(count).unwrap_or(100.0);
        run.unsuccessful = 100.0 - share;
    } else if let Some(text) = value("Slowest:") {
        run.max = seconds(text);
    } else if let Some(text) = value("Fastest:") {
        run.min = seconds(text);
    } else if let Some(text) = value("Average:") {
        run.mean = run.mean.or_else(|| seconds(text));
    } else if let Some(text) = value("Requests/sec:") {
        run.rate = count(text);
    } else if line.starts_with('[') && line.contains("responses") {
        let status = line
            .trim_start_matches('[')
            .split(']')
            .next()
            .unwrap_or_default();
        let number = after(line, "]").and_then(count).unwrap_or_default();
        if !status.starts_with('2') {
            run.unsuccessful += number;
        }
        run.statuses.insert(status.to_owned(), number);
    } else if line.starts_with('[') && line.contains("] ") && !line.contains('|') {
        run.failed += line
            .trim_start_matches('[')
            .split(']')
            .next()
            .and_then(count)
            .unwrap_or_default();
    } else if line.contains("% in ") || line.contains("%% in ") {
        run.percentiles
            .extend(percentile(&line.replace("%%", "%"), "%"));
    }
}

fn fortio(run: &mut ToolRun, line: &str) {
    let line = line.trim();
    if line.starts_with("Fortio ") {
        run.asked_rate = after(line, "running at ")
            .and_then(count)
            .filter(|rate| *rate > 0.0);
        // -r, the resolution, is not printed; 1 ms is its default.
        run.resolution = Some(0.001);
        run.is_corrected = Some(false);
    } else if line.starts_with("Starting at") {
        run.connections = after(line, "with ").and_then(count);
    } else if line.starts_with("Ended after") {
        run.seconds = after(line, "Ended after ").and_then(time);
        run.rate = after(line, "qps=").and_then(count);
    } else if line.starts_with("Aggregated Function Time") {
        let number = |key: &str| after(line, key).and_then(|text| text.parse().ok());
        run.mean = number("avg ");
        run.min = number("min ");
        run.max = number("max ");
        run.requests = number("count ");
    } else if line.starts_with("# target ") {
        let percentile = after(line, "target ").and_then(count);
        let latency = line
            .split_whitespace()
            .last()
            .and_then(|text| text.parse().ok());
        run.percentiles.extend(percentile.zip(latency));
    } else if line.starts_with("Code ") {
        let status = after(line, "Code ").unwrap_or_default();
        let number = after(line, ": ").and_then(count).unwrap_or_default();
        if !status.starts_with('2') {
            run.unsuccessful += number;
        }
        run.statuses.insert(status.to_owned(), number);
    } else if line.starts_with("All done") {
        run.rate = run.rate.or_else(|| {
            line.split(',')
                .next_back()
                .and_then(|text| after(text, " "))
                .and_then(count)
        });
    }
}
