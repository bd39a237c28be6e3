//! `outrider lanes status`: requests by service and lane.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{Count, Place, pages};
use crate::exit::Exit;
use crate::output;

/// Show requests by service and lane: how many, how many the baseline served, and where lanes are lost
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Admin interface of a proxy; again for each, or several separated by commas
    #[arg(long, value_name = "ADDRESS", required = true, value_delimiter = ',')]
    admin: Vec<SocketAddr>,
    /// Print JSON: {"groups": [{"group", "services": [{"service", "lanes": {LANE: {"requests", "fallbacks"}}, "lost"}]}]}
    #[arg(long)]
    json: bool,
}

/// Name of the row of gateways.
const EDGE: &str = "(edge)";

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Row {
    service: String,
    lanes: BTreeMap<String, Count>,
    lost: u64,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Group {
    group: String,
    services: Vec<Row>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let pages = pages(&arguments.admin, "?trace=none")?;
    let places: Vec<(SocketAddr, Place)> = pages
        .into_iter()
        .flat_map(|(admin, page)| page.places.into_iter().map(move |place| (admin, place)))
        .collect();
    let groups = matrix(&places);
    if arguments.json {
        output::json(&json!({ "groups": groups }));
    } else if groups.is_empty() {
        output::line("no proxy handles lanes");
    } else {
        for group in &groups {
            output::line(text(group));
        }
    }
    Ok(Exit::Good)
}

/// Requests as services got them; where nothing counts those (strict mode), as they were sent.
fn matrix(places: &[(SocketAddr, Place)]) -> Vec<Group> {
    let mut groups: BTreeMap<&str, BTreeMap<String, Row>> = BTreeMap::new();
    for (admin, place) in places {
        let rows = groups.entry(&place.group).or_default();
        let name = match (&place.service, place.role.as_str()) {
            (_, "edge") => EDGE.to_owned(),
            (Some(service), _) => service.clone(),
            (None, _) => admin.to_string(),
        };
        let row = rows.entry(name.clone()).or_insert_with(|| Row {
            service: name,
            ..Row::default()
        });
        row.lost += place.lost;
        if !matches!(place.role.as_str(), "edge" | "inbound") {
            continue;
        }
        for (lane, count) in &place.lanes {
            let sum = row.lanes.entry(lane.clone()).or_default();
            sum.requests += count.requests;
            let is_other = place
                .version
                .as_ref()
                .is_some_and(|version| version != lane);
            if is_other {
                sum.fallbacks += count.requests;
            }
        }
    }
    groups
        .into_iter()
        .map(|(group, rows)| Group {
            group: group.to_owned(),
            services: rows.into_values().collect(),
        })
        .collect()
}

fn text(group: &Group) -> String {
    let lanes: BTreeSet<&String> = group
        .services
        .iter()
        .flat_map(|row| row.lanes.keys())
        .collect();
    let mut table = vec![
        [format!("lanes {}", group.group)]
            .into_iter()
            .chain(lanes.iter().map(|lane| (*lane).clone()))
            .chain(["lost".to_owned()])
            .collect::<Vec<String>>(),
    ];
    for row in &group.services {
        let mut cells = vec![row.service.clone()];
        for lane in &lanes {
            let count = row.lanes.get(*lane).copied().unwrap_or_default();
            cells.push(if count.fallbacks > 0 {
                format!(
                    "{} ({} by another version)",
                    count.requests, count.fallbacks
                )
            } else {
                count.requests.to_string()
            });
        }
        cells.push(row.lost.to_string());
        table.push(cells);
    }
    let width = |column: usize| {
        let cells = table.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut lines: Vec<String> = table
        .iter()
        .map(|row| {
            let cells = row
                .iter()
                .enumerate()
                .map(|(column, cell)| format!("{cell:<width$}", width = width(column)));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect();
    for row in group.services.iter().filter(|row| row.lost > 0) {
        lines.push(format!(
            "{}: {} that it sent are of no known trace, and went to the baseline. The service has to pass on the id of the \
             trace (`correlate`), or its version needs a sidecar with `own`.",
            row.service,
            output::counted(usize::try_from(row.lost).unwrap_or(usize::MAX), "request")
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(
        role: &str,
        at: Option<(&str, &str)>,
        lanes: &[(&str, u64)],
        lost: u64,
    ) -> (SocketAddr, Place) {
        let place = Place {
            group: "hello".to_owned(),
            role: role.to_owned(),
            service: at.map(|(service, _)| service.to_owned()),
            version: at.map(|(_, version)| version.to_owned()),
            lanes: lanes
                .iter()
                .map(|(lane, requests)| {
                    let count = Count {
                        requests: *requests,
                        fallbacks: 0,
                    };
                    ((*lane).to_owned(), count)
                })
                .collect(),
            lost,
        };
        (SocketAddr::from(([127, 0, 0, 1], 9901)), place)
    }

    #[test]
    fn matrix_of_a_chain() {
        let groups = matrix(&[
            place("edge", None, &[("en", 7), ("fr", 3)], 0),
            place("inbound", Some(("hello1", "en")), &[("en", 7)], 0),
            place("inbound", Some(("hello1", "fr")), &[("fr", 3)], 0),
            place(
                "outbound",
                Some(("hello1", "fr")),
                &[("fr", 1), ("en", 2)],
                2,
            ),
            place(
                "inbound",
                Some(("hello2", "en")),
                &[("en", 9), ("fr", 1)],
                0,
            ),
        ]);
        let shown: Vec<String> = groups.iter().map(text).collect();
        insta::assert_snapshot!(shown.join("\n"));
    }
}
