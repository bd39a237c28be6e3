//! What a run saw, as data and as a page, and the bounds of memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

/// Resident memory after each round is at most so much above that before the first.
pub(super) const MEMORY_LEFT: u64 = 160 * 1024 * 1024;
/// With so many rounds their memory is compared with each other, too:
const ROUNDS_COMPARED: usize = 6;
/// the mean of the last third lies at most so far above that of the second third, or else memory without any stream
/// does. What fills once (VM pools, caches, names of metrics) is full by then, and what streams of earlier rounds hold,
/// which may wait for minutes, goes with them; what leaks goes on.
const MEMORY_GROWN: u64 = 24 * 1024 * 1024;

/// Memory after the random plugins and the wild clients of a round had gone.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Round {
    /// End of the round, since the run began.
    pub(super) second: u64,
    /// Highest resident memory of Envoy in the round, in bytes.
    pub(super) most: u64,
    /// Lowest resident memory of Envoy in the pause after it.
    pub(super) settled: u64,
    /// Bytes that Envoy's allocator had given out, at that moment.
    pub(super) allocated: u64,
    /// Changes of the configuration until then.
    pub(super) changes: u64,
    /// Answers compared until then.
    pub(super) compared: u64,
    /// Turns of wild clients until then.
    pub(super) turns: u64,
}

/// Memory at the end, when no stream was left.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Idle {
    /// Lowest resident memory of Envoy, in bytes.
    pub(super) settled: u64,
    /// Bytes that Envoy's allocator had given out.
    pub(super) allocated: u64,
}

/// See the module.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) outrider: &'static str,
    pub(super) is_debug: bool,
    pub(super) cores: usize,
    pub(super) seed: u64,
    /// Time of all rounds, pauses between them included.
    pub(super) seconds: u64,
    pub(super) problems: Vec<String>,
    pub(super) compared: u64,
    pub(super) callouts: u64,
    pub(super) trailers: u64,
    pub(super) ended: u64,
    pub(super) turns: u64,
    /// Changes of the configuration, by kind.
    pub(super) changes: BTreeMap<&'static str, u64>,
    /// Resident memory of Envoy before the first round.
    pub(super) baseline: u64,
    pub(super) rounds: Vec<Round>,
    /// `None`: the run ended before.
    pub(super) idle: Option<Idle>,
    /// Times at which the machine stood still, their seconds, and what was not judged because of them.
    pub(super) pauses: usize,
    pub(super) paused_seconds: f64,
    pub(super) unjudged: usize,
    /// Envoy's counters at the end.
    pub(super) counters: BTreeMap<String, u64>,
}

impl Report {
    pub(super) fn new(seed: u64, seconds: u64) -> Self {
        Self {
            outrider: env!("CARGO_PKG_VERSION"),
            is_debug: cfg!(debug_assertions),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            seed,
            seconds,
            problems: Vec::new(),
            compared: 0,
            callouts: 0,
            trailers: 0,
            ended: 0,
            turns: 0,
            changes: BTreeMap::new(),
            baseline: 0,
            rounds: Vec::new(),
            idle: None,
            pauses: 0,
            paused_seconds: 0.0,
            unjudged: 0,
            counters: BTreeMap::new(),
        }
    }

    pub(super) fn change_count(&self) -> u64 {
        self.changes.values().sum()
    }

    /// Adds a problem for each bound of memory that was missed.
    pub(super) fn judge_memory(&mut self) {
        let settled: Vec<u64> = self.rounds.iter().map(|round| round.settled).collect();
        let idle = self.idle.as_ref().map(|idle| idle.settled);
        self.problems
            .extend(memory_problems(self.baseline, &settled, idle));
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The page.
    pub(super) fn page(&self) -> String {
        let held = if self.problems.is_empty() {
            "No crash, no hang, no wrong byte, and memory came back."
        } else {
            "**It did not hold:**"
        };
        let build = if self.is_debug { ", a debug build" } else { "" };
        let mut page = format!(
            "# Chaos: random plugins, clients, upstreams and changes\n\nMade by `make chaos`; the raw data is \
             [chaos.json](chaos.json).\n\nOutrider {}{build}, seed {}, {} s, two workers on a machine of {} cores \
             that clients and upstreams share. {held}\n\n",
            self.outrider, self.seed, self.seconds, self.cores
        );
        for problem in &self.problems {
            let _ = writeln!(page, "- {problem}");
        }
        let _ = write!(
            page,
            "
## What ran

| | |
|---|--:|
| answers of calm hosts compared byte for byte | {} |
| answers of callouts in parts compared | {} |
| trailers compared | {} |
| requests to upstreams that break HTTP, each ended in time | {} |
| turns of wild clients | {} |
| changes of the configuration | {} |
",
            self.compared,
            self.callouts,
            self.trailers,
            self.ended,
            self.turns,
            self.change_count(),
        );
        for (name, count) in &self.changes {
            let _ = writeln!(page, "| … {name} | {count} |");
        }
        if self.pauses > 0 {
            let _ = writeln!(
                page,
                "\nThe machine stood still {} times, {:.0} s altogether; {} answers of these moments were not judged.",
                self.pauses, self.paused_seconds, self.unjudged
            );
        }
        let _ = write!(
            page,
            "
## Memory

Resident memory of Envoy in MiB. After each round the wild clients and the random plugins go, and memory is taken
before the next round begins; calm and faulty clients go on all the time. Before the first round: {}. Bounds: at most
{} more than that after each round; with {ROUNDS_COMPARED} rounds or more, the mean of the last third at most {} above
that of the second third, unless it has come back to that when no stream is left: streams of earlier rounds may wait for
minutes, and hold the plugins that they began with.

| round ends, s | highest | after it | allocated | changes so far | answers compared so far | wild turns so far |
|--:|--:|--:|--:|--:|--:|--:|
",
            mib(self.baseline),
            mib(MEMORY_LEFT),
            mib(MEMORY_GROWN),
        );
        for round in &self.rounds {
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} | {} | {} | {} |",
                round.second,
                mib(round.most),
                mib(round.settled),
                mib(round.allocated),
                round.changes,
                round.compared,
                round.turns
            );
        }
        if let Some(idle) = &self.idle {
            let _ = writeln!(
                page,
                "\nAt the end, without any stream: {}, allocated {}.",
                mib(idle.settled),
                mib(idle.allocated)
            );
        }
        page.push_str("\n## Envoy's counters\n\n| counter | |\n|---|--:|\n");
        for (name, count) in &self.counters {
            let _ = writeln!(page, "| `{name}` | {count} |");
        }
        page
    }
}

/// Returns a line for each bound that is missed by the memory after each round, and at the end without any stream.
fn memory_problems(baseline: u64, settled: &[u64], idle: Option<u64>) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(most) = settled.iter().max()
        && *most > baseline + MEMORY_LEFT
    {
        problems.push(format!(
            "memory stays: {} MiB without random plugins, {} before them; {} more are allowed",
            mib(*most),
            mib(baseline),
            mib(MEMORY_LEFT)
        ));
    }
    if settled.len() >= ROUNDS_COMPARED {
        let third = settled.len() / 3;
        let mean =
            |rounds: &mut dyn Iterator<Item = &u64>| rounds.take(third).sum::<u64>() / third as u64;
        let middle = mean(&mut settled.iter().skip(third));
        let last = mean(&mut settled.iter().rev());
        let last = idle.map_or(last, |idle| idle.min(last));
        if last > middle + MEMORY_GROWN {
            problems.push(format!(
                "memory grows: {} MiB after the last {third} rounds, and at the end without any stream, {} after those \
                 in the middle; {} more are allowed",
                mib(last),
                mib(middle),
                mib(MEMORY_GROWN)
            ));
        }
    }
    problems
}

pub(super) fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn problems(settled: &[u64], idle: Option<u64>) -> Vec<String> {
        let settled: Vec<u64> = settled.iter().map(|mib| mib * MIB).collect();
        memory_problems(100 * MIB, &settled, idle.map(|mib| mib * MIB))
    }

    #[test]
    fn memory_that_fills_once_and_comes_back_is_allowed() {
        assert!(problems(&[250], None).is_empty());
        assert!(problems(&[140, 170, 180, 182, 179, 184, 183, 181, 180], None).is_empty());
        assert!(problems(&[140, 190, 230, 250, 150], None).is_empty());
    }

    #[test]
    fn memory_that_stays_or_grows_is_a_problem() {
        let stays = problems(&[140, 261], None);
        assert!(stays[0].starts_with("memory stays: 261 MiB"), "{stays:?}");
        let growing = [110, 120, 130, 140, 150, 160, 170, 180, 190];
        assert!(problems(&growing, Some(160)).is_empty());
        assert_eq!(problems(&growing, Some(179)).len(), 1);
        let grows = problems(&growing, None);
        assert_eq!(grows.len(), 1, "{grows:?}");
        assert!(grows[0].starts_with("memory grows: 180 MiB"), "{grows:?}");
    }
}
