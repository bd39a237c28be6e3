//! `outrider lanes`: what the proxies of a chain did with lanes, from their admin interfaces.

mod status;
mod trace;

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use outrider_envoy_process::Admin;
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::exit::{self, Exit};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider lanes status --admin 127.0.0.1:9901 --admin 127.0.0.1:9902
  outrider lanes trace http://127.0.0.1:8080/cart -H 'user: fr' --admin 127.0.0.1:9901,127.0.0.1:9902

Every proxy of the chain is asked at its admin interface (`gateway.admin`), the gateway's included.";

/// Show what the proxies of a chain did with lanes
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP), disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(status::Arguments),
    Trace(trace::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::Status(arguments) => status::run(arguments),
        Command::Trace(arguments) => trace::run(arguments),
    }
}

/// The page `/outrider/lanes` of one proxy.
#[derive(Debug, Deserialize)]
struct Page {
    places: Vec<Place>,
    hops: Vec<Hop>,
}

/// What one proxy did at one place, since it began.
#[derive(Debug, Clone, Deserialize)]
struct Place {
    group: String,
    role: String,
    service: Option<String>,
    version: Option<String>,
    lanes: BTreeMap<String, Count>,
    lost: u64,
}

/// Requests of one lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
struct Count {
    requests: u64,
    fallbacks: u64,
}

/// What one proxy did with a traced request.
#[derive(Debug, Clone, Deserialize)]
struct Hop {
    /// Microseconds since 1970.
    at: u64,
    group: String,
    role: String,
    service: Option<String>,
    version: Option<String>,
    host: String,
    lane: String,
    outcome: String,
    fallback: bool,
}

/// The pages of all proxies that answer; others are told of, and are an error if none answers.
fn pages(admins: &[SocketAddr], query: &str) -> anyhow::Result<Vec<(SocketAddr, Page)>> {
    let mut pages = Vec::new();
    for admin in admins {
        match page(*admin, query) {
            Ok(page) => pages.push((*admin, page)),
            Err(error) => output::warning(format_args!("{admin} is left out: {error:#}")),
        }
    }
    anyhow::ensure!(
        !pages.is_empty(),
        "no proxy answers; name their admin interfaces: `--admin 127.0.0.1:9901`"
    );
    Ok(pages)
}

fn page(admin: SocketAddr, query: &str) -> anyhow::Result<Page> {
    let answer = Admin::new(admin).get(&format!("/outrider/lanes{query}"))?;
    anyhow::ensure!(
        answer.status == 200,
        "it has no page /outrider/lanes (status {}): its Envoy runs without Outrider's bootstrap extension",
        answer.status
    );
    serde_json::from_str(&answer.body).context("its page /outrider/lanes is of another version")
}
