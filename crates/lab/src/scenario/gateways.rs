//! Gateways of scenarios: each an `outrider up` of its own, with many routes that each have a plugin's configuration.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_load::RequestTemplate;

use crate::client::{Connection, Request, Target};
use crate::free_address::own_address;
use crate::up::{Up, save};

/// Time that a gateway may take until it answers: thousands of routes take Envoy a while.
const READY: Duration = Duration::from_mins(3);
/// Time that a change may take until it is served.
const CHANGE: Duration = Duration::from_mins(2);
/// Host of all routes.
pub(crate) const HOST: &str = "lab.test";
/// Response header that a route's configuration sets.
const VALUE: &str = "x-value";

/// What the routes of a gateway have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Routes {
    /// Nothing.
    Plain,
    /// A plugin's configuration each.
    Configured,
}

/// A running gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) up: Up,
    /// Time from the start of the command until the first answer.
    pub(crate) start: Duration,
    pub(crate) file: GatewayFile,
}

/// The file of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct GatewayFile {
    path: PathBuf,
    address: SocketAddr,
    admin: SocketAddr,
    count: usize,
    routes: Routes,
}

impl GatewayFile {
    /// The text with this value in the configuration of the first route, and `more` routes beyond the count.
    pub(crate) fn text(&self, value: u64, more: usize) -> String {
        let mut text = format!(
            "gateway:\n  workers: 1\n  admin: '{}'\n  listeners: [{{address: '{}'}}]\n",
            self.admin, self.address
        );
        if self.routes == Routes::Configured {
            text.push_str(
                "  use: [{plugin: headers}]\nplugins:\n  headers: {source: 'builtin:headers', budgets: {memory_mib: 256}}\n",
            );
        }
        let _ = write!(
            text,
            "projects:\n  - name: lab\n    hosts: [{HOST}]\n    routes:\n"
        );
        for number in 0..self.count + more {
            let _ = write!(
                text,
                "      - match: {{path: {}}}\n        respond: {{status: 200, body: ok}}\n",
                path(number)
            );
            if self.routes == Routes::Configured {
                let value = if number == 0 { value } else { number as u64 };
                let _ = writeln!(
                    text,
                    "        use: [{{plugin: headers, config: {{response: {{set: {{{VALUE}: '{value}'}}}}}}}}]"
                );
            }
        }
        text
    }

    /// Saves the file with this value and these further routes, as editors do.
    ///
    /// # Errors
    ///
    /// The disk is full.
    pub(crate) fn save(&self, value: u64, more: usize) -> anyhow::Result<()> {
        save(&self.path, self.text(value, more))
    }
}

/// Path of a route.
fn path(number: usize) -> String {
    format!("/route-{number}")
}

impl Gateway {
    /// Starts a gateway in a folder of its own, with one worker, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub(crate) fn start(
        outrider: &Path,
        arguments: &[String],
        folder: &Path,
        count: usize,
        routes: Routes,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = GatewayFile {
            path: folder.join("gateway.yaml"),
            address: own_address()?,
            admin: own_address()?,
            count,
            routes,
        };
        file.save(0, 0)?;
        let begin = Instant::now();
        let log = folder.join("log.txt");
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut up = Up::start_with(outrider, &file.path, &log, &arguments)?;
        runtime()?.block_on(up.wait_ready(file.address, HOST, &path(0), READY))?;
        Ok(Self {
            address: file.address,
            up,
            start: begin.elapsed(),
            file,
        })
    }

    /// Requests of some routes, spread over all of them.
    pub(crate) fn requests(&self) -> Vec<RequestTemplate> {
        const SPREAD: usize = 32;
        let count = self.file.count;
        (0..SPREAD.min(count))
            .map(|index| path(index * count / SPREAD.min(count)))
            .map(|path| RequestTemplate::get(&path).header("host", HOST))
            .collect()
    }

    /// Changes the first route's configuration so many times, and returns the milliseconds from each save until the new
    /// value was served. Beside requests on one connection nothing runs.
    ///
    /// # Errors
    ///
    /// A change is not served.
    pub(crate) fn time_changes(&self, count: usize) -> anyhow::Result<Vec<f64>> {
        let runtime = runtime()?;
        let mut times = Vec::new();
        for value in 1..=count as u64 {
            let value = value + 1_000_000;
            let text = self.file.text(value, 0);
            save(&self.file.path, text)?;
            let begin = Instant::now();
            runtime.block_on(self.wait_served(value))?;
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        Ok(times)
    }

    async fn wait_served(&self, value: u64) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut connection = Connection::open(&Target::http1(self.address)).await?;
        let expected = value.to_string();
        loop {
            let response = connection
                .send(Request::get(&path(0)).host(HOST))
                .await
                .context("the gateway does not answer while its file is changed")?;
            if response.headers.get(VALUE) == Some(expected.as_str()) {
                return Ok(());
            }
            anyhow::ensure!(
                begin.elapsed() < CHANGE,
                "a change was not served within {CHANGE:?}\n{}",
                self.up.last_lines()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
