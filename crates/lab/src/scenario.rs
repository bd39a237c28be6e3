//! Scenarios of `outrider lab run`: files that say what is measured, and how long.
//!
//! The trap: a scenario names work that mechanisms do alike. What one cannot do is listed as absent, with the reason,
//! so that a report never leaves a gap without a word.

pub(crate) mod mechanisms;

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use outrider_yaml::Document;
use serde::Deserialize;

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
    pub latency: LatencySettings,
    /// Groups of variants that do the same.
    pub groups: Vec<GroupSettings>,
}

/// Kinds of scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// What plugins cost, by the mechanism that runs them.
    Mechanisms,
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

/// Variants that do the same.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSettings {
    /// Name.
    pub name: String,
    /// What the variants do, in words.
    pub about: String,
    /// Name of the work.
    pub work: String,
    /// How many plugins or filters do it, one after another.
    #[serde(default = "one")]
    pub copies: usize,
    /// Names of the mechanisms that do it.
    pub mechanisms: Vec<String>,
    /// Mechanisms that cannot do it.
    #[serde(default)]
    pub absent: Vec<AbsentSettings>,
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
const SHIPPED: [(&str, &str); 1] = [("mechanisms", include_str!("../scenarios/mechanisms.yaml"))];

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

    fn check(&self) -> anyhow::Result<()> {
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
        anyhow::ensure!(
            !self.groups.is_empty(),
            "`groups` must name at least one group"
        );
        for group in &self.groups {
            anyhow::ensure!(
                (1..=100).contains(&group.copies),
                "group `{}`: `copies` must be between 1 and 100; got {}",
                group.name,
                group.copies
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
            assert!(!Scenario::load(name).unwrap().groups.is_empty(), "{name}");
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
        let error = Scenario::load("no-such").unwrap_err().to_string();
        assert_eq!(
            error,
            "`no-such` is neither a scenario (mechanisms) nor a file"
        );
    }
}
