//! Scenarios of `outrider lab run`: files that say what is measured, and how long.
//!
//! The trap: a scenario names work that mechanisms do alike. What one cannot do is listed as absent, with the reason,
//! so that a report never leaves a gap without a word.

mod configurations;
mod gateways;
pub(crate) mod mechanisms;
mod routes;
mod sidecars;
mod stages;
mod updates;
mod upstream;

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use outrider_yaml::Document;
use serde::Deserialize;

use crate::experiment::rig::Rig;
use crate::experiment::{Prepared, Workshop};

/// A scenario.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Kind, which is also the name of the one that ships.
    pub scenario: Kind,
    /// Title of the report.
    pub title: String,
    /// What it shows, in a paragraph.
    pub about: String,
    /// Minutes of measuring, at most.
    pub minutes: f64,
    /// Connections of the generator to each variant.
    pub connections: usize,
    /// Milliseconds of a slice at full load.
    pub cpu_slice_ms: u64,
    /// Slices at a fixed rate.
    #[serde(default = "LatencySettings::none")]
    pub latency: LatencySettings,
    /// Groups of variants that do the same, of `mechanisms`.
    #[serde(default)]
    pub groups: Vec<GroupSettings>,
    /// What `sidecars` are compared.
    #[serde(default)]
    pub sidecars: Option<SidecarSettings>,
    /// What numbers of `routes` are compared.
    #[serde(default)]
    pub routes: Option<RouteSettings>,
    /// What `updates` are made under load.
    #[serde(default)]
    pub updates: Option<UpdateSettings>,
    /// At what rate the `stages` of requests are timed.
    #[serde(default)]
    pub stages: Option<StageSettings>,
    /// Gateway files of `configurations`.
    #[serde(default)]
    pub configurations: Option<ConfigurationSettings>,
}

/// Kinds of scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// What plugins cost, by the mechanism that runs them.
    Mechanisms,
    /// What sidecars cost, with and without telemetry, at rising rates.
    Sidecars,
    /// What many routes with plugin configuration cost.
    Routes,
    /// What changes cost the requests that run meanwhile.
    Updates,
    /// Where a request's time goes inside and between proxies.
    Stages,
    /// Which of two files of gateways costs more.
    Configurations,
}

/// Chains of sidecars.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SidecarSettings {
    /// Number of rates, spread evenly up to `up_to`.
    pub rates: usize,
    /// The highest rate, as a share of the rate that sidecars without telemetry serve at full load.
    pub up_to: f64,
    /// Milliseconds of a slice at a rate.
    pub slice_ms: u64,
    /// Kinds of telemetry; each is a variant.
    pub telemetry: Vec<Telemetry>,
}

/// Telemetry of sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Telemetry {
    /// None.
    None,
    /// Envoy's own OpenTelemetry access log and tracer, which work on the worker.
    Inline,
    /// Telemetry of Outrider, which works beside the workers.
    Asynchronous,
}

/// Gateways with many routes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// Numbers of routes, each a group.
    pub counts: Vec<usize>,
    /// Changes of one route's configuration that are timed for each.
    pub changes: usize,
}

/// Changes under load.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateSettings {
    /// Changes a second.
    pub per_second: f64,
    /// Routes of the gateway, each with a plugin's configuration.
    pub routes: usize,
}

/// Requests whose stages are timed.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageSettings {
    /// Requests a second.
    pub rate: f64,
    /// Seconds.
    pub seconds: f64,
}

/// Files of two gateways.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigurationSettings {
    /// The file that the other one is compared with.
    pub before: std::path::PathBuf,
    /// The other one.
    pub after: std::path::PathBuf,
    /// Path that is asked for.
    pub path: String,
    /// `host` header; that of the address by default.
    #[serde(default)]
    pub host: Option<String>,
    /// Further headers, each `name: value`.
    #[serde(default)]
    pub headers: Vec<String>,
}

/// Slices at a fixed rate, of which latencies are taken.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencySettings {
    /// Requests a second.
    pub rate: f64,
    /// Milliseconds.
    pub slice_ms: u64,
    /// In every how many rounds there is one for each variant; 0: in none.
    pub every: usize,
}

impl LatencySettings {
    fn none() -> Self {
        Self {
            rate: 1.0,
            slice_ms: 1000,
            every: 0,
        }
    }
}

/// Variants that do the same.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// Name.
    pub name: String,
    /// What the variants do, in words.
    pub about: String,
    /// Name of the work; none of a `chain`.
    #[serde(default)]
    pub work: String,
    /// How many plugins or filters do it, one after another.
    #[serde(default = "one")]
    pub copies: usize,
    /// Names of the mechanisms that do it.
    #[serde(default)]
    pub mechanisms: Vec<String>,
    /// Plugins that ship, one after another: each variant has one more than the one before it.
    #[serde(default)]
    pub chain: Vec<LinkSettings>,
    /// Mechanisms that cannot do it.
    #[serde(default)]
    pub absent: Vec<AbsentSettings>,
}

/// Plugin of a chain.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSettings {
    /// Name of a Lua plugin that ships.
    pub plugin: String,
    /// Its configuration.
    #[serde(default)]
    pub config: serde_json::Map<String, serde_json::Value>,
}

/// Mechanism that cannot do a group's work.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbsentSettings {
    /// Name.
    pub name: String,
    /// Why not.
    pub reason: String,
}

fn one() -> usize {
    1
}

/// Scenarios that ship, by name.
const SHIPPED: [(&str, &str); 5] = [
    ("mechanisms", include_str!("../scenarios/mechanisms.yaml")),
    ("sidecars", include_str!("../scenarios/sidecars.yaml")),
    ("routes", include_str!("../scenarios/routes.yaml")),
    ("updates", include_str!("../scenarios/updates.yaml")),
    ("stages", include_str!("../scenarios/stages.yaml")),
];

impl Scenario {
    /// Names of the scenarios that ship.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// The text of a scenario that ships. `None` if none has this name.
    pub fn text(name: &str) -> Option<&'static str> {
        SHIPPED
            .iter()
            .find(|(one, _)| *one == name)
            .map(|(_, text)| *text)
    }

    /// Reads a scenario: one that ships by its name, another by its file.
    ///
    /// # Errors
    ///
    /// There is no such scenario, or its file has errors; each is named with its line.
    pub fn load(name: &str) -> anyhow::Result<Self> {
        if let Some(text) = Self::text(name) {
            return Self::parse(name, text);
        }
        let names: Vec<&str> = Self::names().collect();
        let names = names.join(", ");
        anyhow::ensure!(
            Path::new(name).is_file(),
            "`{name}` is neither a scenario ({names}) nor a file"
        );
        let text = fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
        Self::parse(name, &text)
    }

    /// Scenario that compares two files of gateways.
    pub fn of_configurations(configurations: ConfigurationSettings, rate: f64) -> Self {
        Self {
            scenario: Kind::Configurations,
            title: "Which configuration costs more?".to_owned(),
            about: "Each configuration runs in an Envoy of its own with one worker, the first one twice. The same requests go \
                    to the first listener of each."
                .to_owned(),
            minutes: 2.0,
            connections: 8,
            cpu_slice_ms: 500,
            latency: LatencySettings {
                rate,
                slice_ms: 700,
                every: 3,
            },
            groups: Vec::new(),
            sidecars: None,
            routes: None,
            updates: None,
            stages: None,
            configurations: Some(configurations),
        }
    }

    /// Starts what the scenario measures.
    ///
    /// # Errors
    ///
    /// Something is missing, or does not start.
    pub(crate) fn prepare(
        &self,
        workshop: &Workshop,
        rig: Rig,
        say: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Prepared> {
        match self.scenario {
            Kind::Mechanisms => mechanisms::prepare(self, workshop, rig, say),
            Kind::Sidecars => sidecars::prepare(self, workshop, rig, say),
            Kind::Routes => routes::prepare(self, workshop, rig, say),
            Kind::Updates => updates::prepare(self, workshop, rig, say),
            Kind::Stages => stages::prepare(self, workshop, rig, say),
            Kind::Configurations => configurations::prepare(self, workshop, rig, say),
        }
    }

    fn parse(file: &str, text: &str) -> anyhow::Result<Self> {
        let read = Document::parse(file, text).and_then(|document| document.read::<Self>());
        let scenario = read.map_err(|problems| {
            let lines: Vec<String> = problems
                .iter()
                .map(|problem| {
                    let mend = problem.mend.as_deref().map(|mend| format!("\n    {mend}"));
                    format!(
                        "{}:{}:{}: {}{}",
                        problem.file,
                        problem.line,
                        problem.column,
                        problem.message,
                        mend.unwrap_or_default()
                    )
                })
                .collect();
            anyhow::anyhow!(lines.join("\n"))
        })?;
        scenario.check().with_context(|| file.to_owned())?;
        Ok(scenario)
    }

    /// Checks that every number is within its bounds, and that what is measured is there.
    ///
    /// # Errors
    ///
    /// The first that is not, with the bounds.
    pub fn check(&self) -> anyhow::Result<()> {
        let LatencySettings { rate, slice_ms, .. } = self.latency;
        anyhow::ensure!(
            self.minutes > 0.0 && self.minutes <= 24.0 * 60.0,
            "`minutes` must be above 0 and at most a day; got {}",
            self.minutes
        );
        anyhow::ensure!(
            (1..=1000).contains(&self.connections),
            "`connections` must be between 1 and 1000; got {}",
            self.connections
        );
        anyhow::ensure!(
            (50..=60_000).contains(&self.cpu_slice_ms) && (50..=60_000).contains(&slice_ms),
            "`cpu_slice_ms` and `latency.slice_ms` must be between 50 and 60000"
        );
        anyhow::ensure!(
            rate > 0.0 && rate <= 1e6,
            "`latency.rate` must be above 0 and at most 1000000; got {rate}"
        );
        let sections = [
            (Kind::Mechanisms, "groups", !self.groups.is_empty()),
            (Kind::Sidecars, "sidecars", self.sidecars.is_some()),
            (Kind::Routes, "routes", self.routes.is_some()),
            (Kind::Updates, "updates", self.updates.is_some()),
            (Kind::Stages, "stages", self.stages.is_some()),
            (
                Kind::Configurations,
                "configurations",
                self.configurations.is_some(),
            ),
        ];
        for (kind, name, is_there) in sections {
            if kind == self.scenario {
                anyhow::ensure!(is_there, "`{name}` is missing: it says what is measured");
            } else {
                anyhow::ensure!(!is_there, "`{name}` belongs to another kind of scenario");
            }
        }
        if let Some(sidecars) = &self.sidecars {
            anyhow::ensure!(
                (1..=50).contains(&sidecars.rates),
                "`sidecars.rates` must be between 1 and 50; got {}",
                sidecars.rates
            );
            anyhow::ensure!(
                sidecars.up_to > 0.0 && sidecars.up_to <= 3.0,
                "`sidecars.up_to` must be above 0 and at most 3; got {}",
                sidecars.up_to
            );
            anyhow::ensure!(
                (50..=60_000).contains(&sidecars.slice_ms),
                "`sidecars.slice_ms` must be between 50 and 60000; got {}",
                sidecars.slice_ms
            );
            anyhow::ensure!(
                sidecars.telemetry.contains(&Telemetry::None),
                "`sidecars.telemetry` must hold `none`: it is what the others are compared with"
            );
        }
        if let Some(routes) = &self.routes {
            anyhow::ensure!(
                !routes.counts.is_empty()
                    && routes
                        .counts
                        .iter()
                        .all(|count| (1..=100_000).contains(count)),
                "`routes.counts` must hold numbers between 1 and 100000"
            );
            anyhow::ensure!(
                (1..=1000).contains(&routes.changes),
                "`routes.changes` must be between 1 and 1000; got {}",
                routes.changes
            );
        }
        if let Some(StageSettings { rate, seconds }) = self.stages {
            anyhow::ensure!(
                rate > 0.0 && seconds > 0.0 && (1.0..=1e6).contains(&(rate * seconds)),
                "`stages.rate` times `stages.seconds` must be between 1 and 1000000 requests; got {}",
                rate * seconds
            );
        }
        if let Some(updates) = &self.updates {
            anyhow::ensure!(
                updates.per_second > 0.0 && updates.per_second <= 100.0,
                "`updates.per_second` must be above 0 and at most 100; got {}",
                updates.per_second
            );
            anyhow::ensure!(
                (1..=10_000).contains(&updates.routes),
                "`updates.routes` must be between 1 and 10000; got {}",
                updates.routes
            );
        }
        for group in &self.groups {
            anyhow::ensure!(
                (1..=100).contains(&group.copies),
                "group `{}`: `copies` must be between 1 and 100; got {}",
                group.name,
                group.copies
            );
            anyhow::ensure!(
                group.work.is_empty() != group.chain.is_empty(),
                "group `{}` must have either `work` or `chain`",
                group.name
            );
            anyhow::ensure!(
                group.chain.is_empty() || group.mechanisms.is_empty(),
                "group `{}`: a `chain` has no `mechanisms`: it is one of Outrider's Lua plugins",
                group.name
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_that_ship_are_read() {
        for name in Scenario::names() {
            let scenario = Scenario::load(name).unwrap();
            assert!(scenario.minutes < 15.0, "{name}");
        }
    }

    #[test]
    fn misspelt_key_is_named_with_its_line_and_the_right_one() {
        let text = Scenario::text("mechanisms")
            .unwrap()
            .replace("connections: 8", "conections: 8");
        let error = Scenario::parse("mine.yaml", &text).unwrap_err().to_string();
        assert!(
            error.contains("mine.yaml:12:1: unknown key `conections`")
                && error.contains("connections"),
            "{error}"
        );
        let text = Scenario::text("mechanisms")
            .unwrap()
            .replace("minutes: 11", "minutes: -1");
        let error = format!("{:#}", Scenario::parse("mine.yaml", &text).unwrap_err());
        assert!(error.starts_with("mine.yaml: `minutes` must be"), "{error}");
        let text = Scenario::text("sidecars").unwrap();
        for (wrong, said) in [
            (
                text.replace("rates: 10", "rates: 0"),
                "`sidecars.rates` must be",
            ),
            (
                text.replace("none, ", ""),
                "`sidecars.telemetry` must hold `none`",
            ),
            (
                text.replace("scenario: sidecars", "scenario: routes"),
                "`sidecars` belongs to another kind of scenario",
            ),
        ] {
            let error = format!("{:#}", Scenario::parse("mine.yaml", &wrong).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
        let error = Scenario::load("no-such").unwrap_err().to_string();
        assert_eq!(
            error,
            "`no-such` is neither a scenario (mechanisms, sidecars, routes, updates, stages) nor a file"
        );
    }
}
