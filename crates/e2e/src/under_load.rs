//! What tests share that change a gateway while connections send requests without pause.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use outrider_lab::client::{Request, Response, Target};
use outrider_lab::steady::{Steady, SteadyPlan};

use crate::{Gateway, resident_memory};

/// How long each step may take.
const PATIENCE: Duration = Duration::from_mins(2);

/// Connections that send requests to these paths in turn, for as long as they are let.
pub fn load(target: Target, connections: usize, paths: &'static [&'static str]) -> SteadyPlan {
    SteadyPlan::new(target, connections, Request::get("/"))
        .requests(move |turn| {
            let number = turn.connection as u64 + turn.request;
            let index = usize::try_from(number).unwrap_or(0) % paths.len().max(1);
            let path = paths.get(index).copied().unwrap_or("/");
            Request::get(path)
                .header("x-echo-path", "/bytes/500")
                .timeout(PATIENCE)
        })
        // On two cores without pause, 64 connections would leave nothing for the updates.
        .pause(Duration::from_millis(2))
}

/// Waits until each load has had so many more answers.
///
/// # Errors
/// They do not come.
pub async fn advance(loads: &[Steady], requests: u64) -> anyhow::Result<()> {
    for load in loads {
        ensure!(
            load.advance(requests, PATIENCE).await,
            "the load stands still: {}",
            load.so_far()
        );
    }
    Ok(())
}

/// Ends loads, and answers how many requests they sent.
///
/// # Errors
/// A request failed, or a connection was closed; the error says what the gateway's plugins failed of.
pub async fn stop(
    loads: impl IntoIterator<Item = Steady>,
    gateway: &Gateway,
) -> anyhow::Result<u64> {
    let mut total = 0;
    for load in loads {
        let summary = load.stop().await;
        let failed = gateway.not_zero(r"\.errors\.\w+")?;
        let lines = gateway.output.lines();
        let said: Vec<&String> = lines
            .iter()
            .filter(|line| line.contains("failed in"))
            .collect();
        ensure!(summary.is_clean(), "{summary}\n{failed:#?}\n{said:#?}");
        total += summary.requests;
    }
    Ok(total)
}

/// Waits until a request gets an answer of which this is true.
///
/// # Errors
/// None comes; the error says what was waited for, and what the gateway says.
pub async fn wait_for_answer(
    gateway: &Gateway,
    what: &str,
    is_it: impl Fn(&Response) -> bool,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !is_it(&gateway.send(Request::get("/status/200")).await?) {
        if Instant::now() >= deadline {
            bail!("{what} is not live: {}", gateway.output.text());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// What a gateway's Envoy uses.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Bytes that it has allocated.
    pub allocated: u64,
    /// Bytes that are resident.
    pub resident: u64,
}

impl Memory {
    /// What it uses now.
    ///
    /// # Errors
    /// The admin interface, or the system, does not say.
    pub fn of(gateway: &Gateway) -> anyhow::Result<Self> {
        Ok(Self {
            allocated: gateway.memory()?,
            resident: resident_memory(gateway.envoy_process()?)?,
        })
    }

    /// Whether it is less than 15 % more than it was.
    pub fn is_back_to(&self, early: &Self) -> bool {
        let within = |late: u64, early: u64| late < early + early * 15 / 100;
        within(self.allocated, early.allocated) && within(self.resident, early.resident)
    }
}
