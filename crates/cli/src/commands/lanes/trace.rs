//! `outrider lanes trace`: one request, and what each proxy of the chain did with its lane.
//!
//! The request has a trace id that the module knows (`outr` first), so that every proxy which sees the id keeps a note of
//! it. Services have to pass the id on, as for lanes in permissive mode; where they do not, the trace ends there, which is
//! what it shows.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use super::{Hop, Page, pages};
use crate::exit::Exit;
use crate::output;

/// Send a request through a chain, and show what each proxy did with its lane, as a tree
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What is asked for, at the edge of the chain
    #[arg(value_name = "URL")]
    url: String,
    /// A header of the request; again for each
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Admin interface of a proxy; again for each, or several separated by commas
    #[arg(long, value_name = "ADDRESS", required = true, value_delimiter = ',')]
    admin: Vec<SocketAddr>,
    /// Print JSON: {"status", "trace", "hops": [{"role", "service", "version", "lane", "outcome", "fallback", "lost", "next": [...]}]}
    #[arg(long)]
    json: bool,
}

/// Wait for the answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// Time for calls that services make after their answer.
const LATER: Duration = Duration::from_millis(300);
/// How far the clocks of two machines may be apart, in microseconds.
const CLOCKS: u64 = 50_000;

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or("a header has the form `name: value`")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

/// A hop with those that it caused.
#[derive(Debug)]
struct Node {
    hop: Hop,
    next: Vec<Node>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let before = lost(&pages(&arguments.admin, "?trace=none")?);
    // `outr`, and 96 bits by chance.
    let random = uuid::Uuid::new_v4().simple().to_string();
    let trace = format!("6f757472{}", random.get(8..).unwrap_or_default());
    let began = Instant::now();
    let status = send(arguments, &trace)?;
    let took = began.elapsed();
    sleep(LATER);
    let pages = pages(&arguments.admin, &format!("?trace={trace}"))?;
    let after = lost(&pages);
    let mut hops: Vec<(SocketAddr, Hop)> = pages
        .into_iter()
        .flat_map(|(admin, page)| page.hops.into_iter().map(move |hop| (admin, hop)))
        .collect();
    hops.sort_by_key(|(_, hop)| hop.at);
    let roots = tree(hops);
    let mut lost_at: Vec<(String, u64)> = Vec::new();
    for (place, count) in after {
        let earlier = before.iter().find(|(known, _)| *known == place);
        let grown = count.saturating_sub(earlier.map_or(0, |(_, count)| *count));
        if grown > 0 {
            lost_at.push((place, grown));
        }
    }
    if arguments.json {
        let hops: Vec<Value> = roots.iter().map(as_json).collect();
        let lost: Vec<Value> = lost_at
            .iter()
            .map(|(place, count)| json!({"at": place, "requests": count}))
            .collect();
        output::json(&json!({
            "status": status,
            "trace": trace,
            "hops": hops,
            "lost": lost,
        }));
        return Ok(Exit::Good);
    }
    output::line(format_args!(
        "{}: status {status} in {} ms",
        arguments.url,
        took.as_millis()
    ));
    if roots.is_empty() {
        output::line(
            "no proxy saw the trace: is the gateway among those of --admin, and `traceparent` under `correlate` of the group?",
        );
    }
    for root in &roots {
        show(root, "", true);
    }
    for (place, count) in &lost_at {
        output::line(format_args!(
            "LOST at {place}: meanwhile it sent {} without a known trace id, which went to the baseline. Have the service pass \
             on `traceparent` (or another header of `correlate`), or give the version a sidecar with `own` (strict mode)",
            output::counted(usize::try_from(*count).unwrap_or(usize::MAX), "request")
        ));
    }
    Ok(Exit::Good)
}

fn send(arguments: &Arguments, trace: &str) -> anyhow::Result<u16> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .build()
        .new_agent();
    let span = trace.get(16..).unwrap_or_default();
    let mut request = agent
        .get(&arguments.url)
        .header("traceparent", format!("00-{trace}-{span}-01"))
        .header("b3", format!("{trace}-{span}-1"))
        .header("x-b3-traceid", trace)
        .header("x-b3-spanid", span)
        .header("uber-trace-id", format!("{trace}:{span}:0:1"));
    for (name, value) in &arguments.headers {
        request = request.header(name, value);
    }
    let answer = request
        .call()
        .with_context(|| format!("{} has no answer", arguments.url))?;
    Ok(answer.status().as_u16())
}

/// Requests of no known trace, by the proxy that sent them.
fn lost(pages: &[(SocketAddr, Page)]) -> Vec<(String, u64)> {
    let mut lost = Vec::new();
    for (admin, page) in pages {
        for place in page.places.iter().filter(|place| place.lost > 0) {
            let name = match (&place.service, &place.version) {
                (Some(service), Some(version)) => format!("{service} {version}"),
                _ => admin.to_string(),
            };
            lost.push((name, place.lost));
        }
    }
    lost
}

/// Hops by what caused them: a service's requests by the request that it got, and that by the one that was sent to it.
fn tree(hops: Vec<(SocketAddr, Hop)>) -> Vec<Node> {
    let mut parents: Vec<Option<usize>> = vec![None; hops.len()];
    let mut is_claimed = vec![false; hops.len()];
    for (index, (admin, hop)) in hops.iter().enumerate() {
        let before = |(other, (_, sent)): &(usize, &(SocketAddr, Hop))| {
            *other != index && sent.group == hop.group && sent.at <= hop.at.saturating_add(CLOCKS)
        };
        let parent = if hop.role == "inbound" {
            let senders = hops
                .iter()
                .enumerate()
                .filter(before)
                .filter(|(other, (_, sent))| {
                    sent.role != "inbound" && !is_claimed.get(*other).copied().unwrap_or(true)
                });
            let is_for = |sent: &Hop| {
                let first = sent.host.split(['.', ':']).next().unwrap_or_default();
                // Behind the edge, hosts are those of clients.
                sent.role == "edge"
                    || hop
                        .service
                        .as_deref()
                        .is_none_or(|service| service == first)
            };
            let found = senders
                .filter(|(_, (_, sent))| is_for(sent))
                .map(|(other, _)| other)
                .next();
            if let Some(claimed) = found.and_then(|found| is_claimed.get_mut(found)) {
                *claimed = true;
            }
            found
        } else if hop.role == "edge" {
            None
        } else {
            // The last request that this proxy let in.
            hops.iter()
                .enumerate()
                .filter(before)
                .filter(|(_, (other, sent))| {
                    let same = match (&hop.service, &sent.service) {
                        (Some(_), Some(_)) => {
                            hop.service == sent.service && hop.version == sent.version
                        }
                        _ => other == admin,
                    };
                    sent.role == "inbound" && same
                })
                .map(|(other, _)| other)
                .next_back()
        };
        if let Some(place) = parents.get_mut(index) {
            *place = parent;
        }
    }
    let mut nodes: Vec<Option<Node>> = hops
        .into_iter()
        .map(|(_, hop)| {
            Some(Node {
                hop,
                next: Vec::new(),
            })
        })
        .collect();
    children(None, &parents, &mut nodes, 0)
}

/// Takes the hops with this parent out of the list, with theirs.
fn children(
    parent: Option<usize>,
    parents: &[Option<usize>],
    nodes: &mut [Option<Node>],
    depth: usize,
) -> Vec<Node> {
    // Clocks that are apart could make a circle: each hop is taken once, so it ends.
    let mut found = Vec::new();
    if depth > parents.len() {
        return found;
    }
    for (index, one) in parents.iter().enumerate() {
        if *one == parent
            && let Some(mut node) = nodes.get_mut(index).and_then(Option::take)
        {
            node.next = children(Some(index), parents, nodes, depth + 1);
            found.push(node);
        }
    }
    found
}

/// What a hop means, in words.
fn words(hop: &Hop) -> String {
    let how = match hop.outcome.as_str() {
        "entered" => "a rule gave it this lane",
        "baseline" => "no rule gives it another lane",
        "remembered" => "the header says so, and it is remembered",
        "no_trace_id" => "NOT REMEMBERED: the request has no trace id",
        "table_full" => "NOT REMEMBERED: the table of traces is full",
        "conflict" => "NOT REMEMBERED: another request with this id has another lane",
        "invalid_name" => "the header's value is no name of a lane, and was removed",
        "passed" => "the service passed the header on",
        "restored" => "remembered, and put back",
        "unmatched" => {
            "LOST: this trace is not remembered here; the service called too late, or its sidecar started anew"
        }
        "ambiguous" => "LOST: requests of two lanes have this trace id",
        "stamped" => "the lane of the version that sends it",
        other => other,
    };
    let lane = &hop.lane;
    let place = match (&hop.service, &hop.version) {
        (Some(service), Some(version)) => format!("{service}, version {version}"),
        _ => hop.host.clone(),
    };
    let mut text = match hop.role.as_str() {
        "edge" => format!("edge ({}): lane {lane}, {how}", hop.host),
        "inbound" => format!("{place}: lane {lane}, {how}"),
        _ => format!("to {}: lane {lane}, {how}", hop.host),
    };
    if hop.fallback {
        text.push_str("; FALLBACK: the lane's version has no usable host, the baseline's serves");
    }
    let is_other =
        hop.role == "inbound" && hop.version.as_ref().is_some_and(|version| version != lane);
    if is_other {
        text.push_str("; FALLBACK: served by this version, as the lane has none here");
    }
    text
}

fn show(node: &Node, indent: &str, is_root: bool) {
    let bullet = if is_root { "" } else { "└─ " };
    output::line(format_args!("{indent}{bullet}{}", words(&node.hop)));
    let inner = if is_root {
        String::new()
    } else {
        format!("{indent}   ")
    };
    for next in &node.next {
        show(next, &inner, false);
    }
}

fn as_json(node: &Node) -> Value {
    let hop = &node.hop;
    let is_lost = matches!(hop.outcome.as_str(), "unmatched" | "ambiguous");
    json!({
        "role": hop.role,
        "service": hop.service,
        "version": hop.version,
        "host": hop.host,
        "lane": hop.lane,
        "outcome": hop.outcome,
        "fallback": hop.fallback || (hop.role == "inbound" && hop.version.as_ref().is_some_and(|version| *version != hop.lane)),
        "lost": is_lost,
        "next": node.next.iter().map(as_json).collect::<Vec<_>>(),
    })
}
