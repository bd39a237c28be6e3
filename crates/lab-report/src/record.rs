//! `run.json`: every slice and histogram of a run, and the whole environment.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use outrider_load::{new_histogram, read_histogram};
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const SCHEMA: u32 = 1;

/// Rounds below which a difference proves nothing.
pub const MIN_ROUNDS: usize = 5;

/// A run of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Version of the format: [`SCHEMA`].
    pub schema: u32,
    /// Name of the scenario.
    pub scenario: String,
    /// Its title.
    pub title: String,
    /// What it shows, in a paragraph.
    pub about: String,
    /// Begin of the run, RFC 3339.
    pub started: String,
    /// Length of the run in seconds.
    pub seconds: f64,
    /// The command that ran it, without paths of the machine.
    pub command: Vec<String>,
    /// Machine and versions.
    pub environment: Environment,
    /// How it was measured.
    pub settings: Settings,
    /// What was measured.
    pub variants: Vec<Variant>,
    /// Variants that are compared with each other, besides each with its baseline.
    pub pairs: Vec<Pair>,
    /// What the scenario names and this run has not, with the reason.
    pub absent: Vec<Absent>,
    /// Groups in which each variant has what the one before it has, and one thing more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cumulative: Vec<String>,
    /// Values that were measured beside slices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measures: Vec<Measure>,
    /// Times of the stages of a request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Every slice, in the order in which they ran.
    pub slices: Vec<Slice>,
}

/// Machine and versions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Model of the processor.
    pub processor: String,
    /// Processors that the run could use.
    pub cores: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel.
    pub kernel: String,
    /// Operating system.
    pub system: String,
    /// Version of Envoy, with its build.
    pub envoy: String,
    /// Version of Outrider, and the digest of its module.
    pub outrider: String,
    /// Whether Envoy and the generator had a processor each.
    pub is_pinned: bool,
    /// Further facts by name.
    pub facts: BTreeMap<String, String>,
}

/// How a run was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Connections of the generator to each variant.
    pub connections: usize,
    /// Seconds of a slice at full load, of which the CPU time per request is taken.
    pub cpu_slice: f64,
    /// Seconds of a slice at a fixed rate, of which the latency is taken.
    pub latency_slice: f64,
    /// Requests a second of those slices.
    pub latency_rate: f64,
    /// Seconds of a slice at one of several rates.
    #[serde(default)]
    pub rate_slice: f64,
    /// The several rates, in requests a second, rising.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<f64>,
    /// Rounds that were begun.
    pub rounds: usize,
    /// Seed of the order and of the bootstrap.
    pub seed: u64,
}

/// Part that a variant has in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The others are compared with it.
    Baseline,
    /// The baseline once more: how much it differs by is the noise.
    Twin,
    /// Compared with the baseline.
    Measured,
}

/// Configuration that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// Group of variants that do the same, for example `basic-auth`.
    pub group: String,
    /// What the group does, in words.
    pub about: String,
    /// Name within the group, for example `Outrider Lua`.
    pub name: String,
    /// Its part in the group.
    pub role: Role,
    /// SHA-256 of its configuration, hexadecimal.
    pub configuration: String,
    /// What is particular to it, in words; often empty.
    pub note: String,
}

/// Two variants of a group that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Index of the variant in question.
    pub variant: usize,
    /// Index of the one that it is compared with.
    pub with: usize,
}

/// Something that the scenario names and the run does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Group.
    pub group: String,
    /// Name within the group.
    pub name: String,
    /// Why it is not there.
    pub reason: String,
}

/// Values of one kind that were measured beside slices, such as memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Group.
    pub group: String,
    /// Name within the group: of a variant, or of a part of it.
    pub name: String,
    /// What was measured, for example `Envoy's memory`.
    pub what: String,
    /// Unit of the values, for example `MiB`.
    pub unit: String,
    /// Each value, in the order in which they were measured.
    pub values: Vec<f64>,
}

/// Stage of a request on its way, as time points of proxies tell it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Group: what the request passed.
    pub group: String,
    /// Name, for example `client sidecar: filters, request`.
    pub name: String,
    /// Histogram of nanoseconds, HdrHistogram V2 in base64.
    pub time: String,
}

/// Kind of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SliceKind {
    /// Closed loop at full load: CPU time per request, requests a second.
    Cpu,
    /// Open loop at a fixed rate: latency.
    Latency,
    /// Open loop at one of several rates: how latency, CPU time and memory grow with the rate.
    Rate,
}

/// Gate that a slice failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Other processes used too much CPU time.
    ForeignCpu,
    /// Envoy's worker waited for a processor for too long.
    RunQueue,
    /// The kernel reported pressure on the processors beyond what the run itself makes.
    Pressure,
    /// The hypervisor took processor time.
    Steal,
    /// The generator was the limit.
    GeneratorBound,
    /// Responses were missing or had an unexpected status.
    Errors,
    /// There were too few requests to say anything.
    TooFewRequests,
}

impl Gate {
    /// All gates.
    pub const ALL: [Self; 7] = [
        Self::ForeignCpu,
        Self::RunQueue,
        Self::Pressure,
        Self::Steal,
        Self::GeneratorBound,
        Self::Errors,
        Self::TooFewRequests,
    ];

    /// A name for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::ForeignCpu => "foreign CPU",
            Self::RunQueue => "run-queue delay",
            Self::Pressure => "CPU pressure",
            Self::Steal => "steal",
            Self::GeneratorBound => "generator-bound",
            Self::Errors => "errors",
            Self::TooFewRequests => "too few requests",
        }
    }
}

/// One variant under load for a moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Index of the variant.
    pub variant: usize,
    /// Kind.
    pub kind: SliceKind,
    /// Round, from 0.
    pub round: usize,
    /// Begin, in seconds since the run's begin.
    pub at: f64,
    /// Length in seconds, to the last response.
    pub seconds: f64,
    /// Requests a second that were meant to be sent; 0 at full load.
    #[serde(default)]
    pub offered: f64,
    /// Requests that succeeded.
    pub requests: u64,
    /// Requests that failed, by kind.
    pub errors: BTreeMap<String, u64>,
    /// CPU time of Envoy and of what belongs to the variant, such as an external processor, in nanoseconds.
    pub cpu_ns: u64,
    /// Nanoseconds for which Envoy's workers waited for a processor.
    pub run_queue_ns: u64,
    /// CPU time of the generator in nanoseconds.
    pub generator_ns: u64,
    /// Share of its time for which the generator was busy.
    pub generator_share: f64,
    /// CPU time of all other processes in nanoseconds.
    pub foreign_ns: u64,
    /// Nanoseconds for which some task of the system waited for a processor (PSI); `None` without PSI.
    pub pressure_ns: Option<u64>,
    /// CPU time that the hypervisor took, in nanoseconds.
    pub steal_ns: u64,
    /// Resident memory of Envoy at the end, in KiB.
    pub memory_kib: u64,
    /// Processes that took part, by name, where there are several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub processes: BTreeMap<String, ProcessUse>,
    /// Latencies, of a slice at a rate.
    pub latency: Option<LatencyResult>,
    /// Gates that it failed. Empty: it counts.
    pub failed: Vec<Gate>,
}

/// Resources that one process used in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory at the end, in KiB; 0 of what is a thread of the lab.
    pub memory_kib: u64,
}

/// Latencies of a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyResult {
    /// From the intended send time: histogram of nanoseconds, HdrHistogram V2 in base64.
    pub latency: String,
    /// From the actual send.
    pub service: String,
    /// 99th percentile of the generator's lateness in nanoseconds.
    pub schedule_error_p99_ns: u64,
}

/// Error in a `run.json`.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is not the JSON of a run.
    #[error("not a run of the lab: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error(
        "the run has schema {0}, and this version of outrider reads {SCHEMA}; use the version that wrote it"
    )]
    Schema(u32),
    /// It refers to a variant that it does not have.
    #[error("slice {0} refers to a variant that the run does not have")]
    Variant(usize),
}

impl Run {
    /// Reads a `run.json`.
    ///
    /// # Errors
    ///
    /// The text is no run, or one of another version.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let version: Version = serde_json::from_str(text)?;
        if version.schema != SCHEMA {
            return Err(ReadError::Schema(version.schema));
        }
        let run: Self = serde_json::from_str(text)?;
        let count = run.variants.len();
        match run.slices.iter().position(|slice| slice.variant >= count) {
            Some(index) => Err(ReadError::Variant(index)),
            None => Ok(run),
        }
    }

    /// The text of `run.json`.
    ///
    /// # Errors
    ///
    /// A number cannot be written, such as an infinite one.
    pub fn write(&self) -> Result<String, serde_json::Error> {
        // A line for each slice: readable, and half as long as with each field on a line of its own.
        let mut head = self.clone();
        head.slices.clear();
        let head = serde_json::to_string_pretty(&head)?;
        let slices = self
            .slices
            .iter()
            .map(|slice| Ok(format!("    {}", serde_json::to_string(slice)?)))
            .collect::<Result<Vec<_>, serde_json::Error>>()?;
        let empty = "\"slices\": []";
        let filled = format!("\"slices\": [\n{}\n  ]", slices.join(",\n"));
        Ok(format!("{}\n", head.replace(empty, &filled)))
    }

    /// Slices of a variant that passed all gates.
    pub fn kept(&self, variant: usize, kind: SliceKind) -> impl Iterator<Item = &Slice> {
        self.of(variant, kind)
            .filter(|slice| slice.failed.is_empty())
    }

    /// Slices of a variant.
    pub fn of(&self, variant: usize, kind: SliceKind) -> impl Iterator<Item = &Slice> {
        self.slices
            .iter()
            .filter(move |slice| slice.variant == variant && slice.kind == kind)
    }

    /// All kept latencies of a variant together. `None` without any.
    pub fn latency(&self, variant: usize) -> Option<Histogram<u64>> {
        let mut sum = new_histogram();
        for slice in self.kept(variant, SliceKind::Latency) {
            let latency = slice.latency.as_ref()?;
            sum.add(read_histogram(&latency.latency)?).ok()?;
        }
        (!sum.is_empty()).then_some(sum)
    }

    /// All kept latencies of a variant at one of several rates together. `None` without any.
    pub fn latency_at(&self, variant: usize, rate: f64) -> Option<Histogram<u64>> {
        let mut sum = new_histogram();
        for slice in self.at_rate(variant, rate).filter(|slice| slice.is_kept()) {
            let latency = slice.latency.as_ref()?;
            sum.add(read_histogram(&latency.latency)?).ok()?;
        }
        (!sum.is_empty()).then_some(sum)
    }

    /// Slices of a variant at one of several rates.
    pub fn at_rate(&self, variant: usize, rate: f64) -> impl Iterator<Item = &Slice> {
        self.of(variant, SliceKind::Rate)
            .filter(move |slice| (slice.offered - rate).abs() < 1e-6)
    }

    /// Names of the groups, in order.
    pub fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = Vec::new();
        let of_variants = self.variants.iter().map(|variant| &variant.group);
        let of_stages = self.stages.iter().map(|stage| &stage.group);
        for group in of_variants.chain(of_stages) {
            if !groups.contains(&group.as_str()) {
                groups.push(group);
            }
        }
        groups
    }
}

impl Slice {
    /// Whether it counts.
    pub fn is_kept(&self) -> bool {
        self.failed.is_empty()
    }

    /// CPU microseconds for each request.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_ns as f64 / 1e3 / self.requests.max(1) as f64
    }
}
