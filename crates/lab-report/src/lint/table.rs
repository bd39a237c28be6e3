//! Tables of results in Markdown, as articles print them: one run in each row.

use super::text::time;
use super::{Tool, ToolRun};

/// Meaning of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Column {
    Name,
    Min,
    Mean,
    Max,
    Percentile(f64),
    Rate,
    Connections,
    Other,
}

/// Reads every table that has a latency column. Latencies without a unit are milliseconds, unless the heading names one.
pub(super) fn read(text: &str) -> Vec<ToolRun> {
    let mut runs = Vec::new();
    let mut columns: Option<Vec<(Column, f64)>> = None;
    for line in text.lines() {
        let line = line.trim();
        if !line.starts_with('|') {
            columns = None;
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match &columns {
            None => columns = Some(cells.iter().enumerate().map(heading).collect()),
            Some(_)
                if cells
                    .iter()
                    .all(|cell| cell.trim_matches([':', '-']).is_empty()) => {}
            Some(columns) => runs.extend(row(columns, &cells)),
        }
    }
    runs
}

fn heading((index, cell): (usize, &&str)) -> (Column, f64) {
    let text = cell.to_ascii_lowercase();
    let unit = if text.contains("µs") || text.contains("us)") {
        1e-6
    } else if text.contains("(s)") || text.contains("sec") && !text.contains("/sec") {
        1.0
    } else {
        1e-3
    };
    let word = text.split([' ', '(', '[']).next().unwrap_or_default();
    let column = match word {
        "min" | "fastest" => Column::Min,
        "avg" | "average" | "mean" => Column::Mean,
        "max" | "slowest" => Column::Max,
        "qps" | "rps" | "req/s" | "requests/s" | "requests/sec" => Column::Rate,
        "connections" | "conns" | "concurrency" => Column::Connections,
        _ => match word.trim_start_matches('p').trim_end_matches('%').parse() {
            Ok(percentile) if word.starts_with('p') || word.ends_with('%') => {
                Column::Percentile(percentile)
            }
            _ if index == 0 => Column::Name,
            _ => Column::Other,
        },
    };
    (column, unit)
}

fn row(columns: &[(Column, f64)], cells: &[&str]) -> Option<ToolRun> {
    let mut run = ToolRun::new(Tool::Table, String::new());
    for ((column, unit), cell) in columns.iter().zip(cells) {
        let number = cell.replace(',', "").parse::<f64>().ok();
        let latency = || time(cell).or(number.map(|number| number * unit));
        match column {
            Column::Name => (*cell).clone_into(&mut run.name),
            Column::Min => run.min = latency(),
            Column::Mean => run.mean = latency(),
            Column::Max => run.max = latency(),
            Column::Percentile(percentile) => run
                .percentiles
                .extend(latency().map(|value| (*percentile, value))),
            Column::Rate => run.rate = number,
            Column::Connections => run.connections = number,
            Column::Other => {}
        }
    }
    (run.mean.is_some() || !run.percentiles.is_empty()).then_some(run)
}
