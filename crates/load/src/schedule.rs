//! Intended send times, computed before and independent of the answers.
//!
//! A schedule is a list of phases, each with a rate that is constant or changes linearly. With `A(t)` for the integral
//! of the rate, uniform arrival number `n` is where `A(t) = n`; Poisson arrivals are where `A(t)` passes the sums of
//! exponential variables of mean 1 (the time change of a Poisson process).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Distances between send times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Equal distances.
    #[default]
    Uniform,
    /// Exponentially distributed distances, as independent clients make them.
    Poisson,
}

/// Part of a schedule, with a rate that is constant or changes linearly.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Requests a second at its begin.
    pub from: f64,
    /// Requests a second at its end.
    pub to: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// Whether its requests are recorded; those of a warm-up are not.
    pub is_measured: bool,
}

impl Phase {
    /// A phase at one rate, recorded.
    pub fn constant(rate: f64, duration: Duration) -> Self {
        Self {
            from: rate,
            to: rate,
            seconds: duration.as_secs_f64(),
            is_measured: true,
        }
    }

    /// Number of arrivals up to `seconds` after its begin.
    fn arrivals_until(self, seconds: f64) -> f64 {
        let slope = (self.to - self.from) / self.seconds;
        self.from * seconds + slope * seconds * seconds / 2.0
    }

    /// Time after its begin by which `arrivals` have come: the inverse of [`Phase::arrivals_until`].
    fn time_of(self, arrivals: f64) -> f64 {
        let slope = (self.to - self.from) / self.seconds;
        // The form of the quadratic's root that stays exact where the slope is small or zero.
        let discriminant = (self.from * self.from + 2.0 * slope * arrivals).max(0.0);
        let divisor = self.from + discriminant.sqrt();
        if divisor > 0.0 {
            2.0 * arrivals / divisor
        } else {
            0.0
        }
    }
}

/// Send times of an open loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Distances between send times.
    pub arrivals: Arrivals,
    /// Phases, one after another.
    pub phases: Vec<Phase>,
    /// Seed of Poisson arrivals: the same seed gives the same times.
    pub seed: u64,
}

impl Schedule {
    /// Uniform arrivals at one rate.
    pub fn uniform(rate: f64, duration: Duration) -> Self {
        Self {
            arrivals: Arrivals::Uniform,
            phases: vec![Phase::constant(rate, duration)],
            seed: 1,
        }
    }

    /// Length of all phases.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.phases.iter().map(|phase| phase.seconds).sum())
    }

    /// Part `part` of `parts` of the schedule, for one thread of several. Uniform arrivals are dealt in turns, so that
    /// all parts together are the whole schedule again.
    pub fn times(&self, part: usize, parts: usize) -> Times<'_> {
        let parts = parts.max(1);
        Times {
            schedule: self,
            phase: 0,
            begin: 0.0,
            // Uniform arrival 0 is at time 0.
            next: match self.arrivals {
                Arrivals::Uniform => part as f64,
                Arrivals::Poisson => 0.0,
            },
            step: parts as f64,
            random: fastrand::Rng::with_seed(
                self.seed
                    .wrapping_mul(0x9e37_79b9)
                    .wrapping_add(part as u64),
            ),
            started: false,
        }
    }
}

/// How requests are paced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pacing {
    /// Closed loop for this long: the next request of a connection follows its answer.
    Closed {
        /// Seconds that are not recorded.
        warm_up: f64,
        /// Seconds that are.
        seconds: f64,
    },
    /// Open loop.
    Open(Schedule),
}

impl Pacing {
    /// Closed loop for this long, without a warm-up.
    pub fn closed(duration: Duration) -> Self {
        Self::Closed {
            warm_up: 0.0,
            seconds: duration.as_secs_f64(),
        }
    }

    /// Length, warm-up included.
    pub fn duration(&self) -> Duration {
        match self {
            Self::Closed { warm_up, seconds } => Duration::from_secs_f64(warm_up + seconds),
            Self::Open(schedule) => schedule.duration(),
        }
    }

    /// Number of phases: 1 for a closed loop.
    pub fn phases(&self) -> usize {
        match self {
            Self::Closed { .. } => 1,
            Self::Open(schedule) => schedule.phases.len(),
        }
    }
}

/// Intended send time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    /// Nanoseconds after the run's begin.
    pub(crate) nanoseconds: u64,
    /// Index of its phase.
    pub(crate) phase: usize,
}

/// Iterator over the send times of one thread, in order.
#[derive(Debug)]
pub struct Times<'schedule> {
    schedule: &'schedule Schedule,
    phase: usize,
    /// Begin of the phase, in seconds.
    begin: f64,
    /// Arrivals since the phase's begin at which the next one is.
    next: f64,
    step: f64,
    random: fastrand::Rng,
    started: bool,
}

impl Times<'_> {
    pub(crate) fn next_due(&mut self) -> Option<Due> {
        if self.schedule.arrivals == Arrivals::Poisson && !self.started {
            self.started = true;
            self.advance();
        }
        loop {
            let phase = *self.schedule.phases.get(self.phase)?;
            let total = if phase.seconds > 0.0 {
                phase.arrivals_until(phase.seconds)
            } else {
                0.0
            };
            // Sums of fractions end a hair before the whole number that they stand for.
            if self.next < total - 1e-9 {
                let seconds = self.begin + phase.time_of(self.next);
                let due = Due {
                    nanoseconds: (seconds * 1e9).round() as u64,
                    phase: self.phase,
                };
                self.advance();
                return Some(due);
            }
            self.next -= total;
            self.begin += phase.seconds;
            self.phase += 1;
        }
    }

    fn advance(&mut self) {
        self.next += match self.schedule.arrivals {
            Arrivals::Uniform => self.step,
            // 1 - u lies in (0, 1], so the logarithm is finite.
            Arrivals::Poisson => -(1.0 - self.random.f64()).ln() * self.step,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(schedule: &Schedule, parts: usize) -> Vec<Due> {
        let mut all = Vec::new();
        for part in 0..parts {
            let mut times = schedule.times(part, parts);
            while let Some(due) = times.next_due() {
                all.push(due);
            }
        }
        all.sort_by_key(|due| due.nanoseconds);
        all
    }

    #[test]
    fn uniform_rate_gives_equal_distances_in_any_number_of_parts() {
        let schedule = Schedule::uniform(1000.0, Duration::from_secs(2));
        for parts in [1, 3] {
            let times = all(&schedule, parts);
            assert_eq!(times.len(), 2000);
            for (number, due) in times.iter().enumerate() {
                assert_eq!(due.nanoseconds, number as u64 * 1_000_000);
            }
        }
    }

    #[test]
    fn ramp_reaches_its_rates_and_its_sum() {
        let schedule = Schedule {
            arrivals: Arrivals::Uniform,
            phases: vec![Phase {
                from: 0.0,
                to: 1000.0,
                seconds: 2.0,
                is_measured: true,
            }],
            seed: 1,
        };
        let times = all(&schedule, 1);
        assert_eq!(times.len(), 1000);
        let until = |seconds: f64| {
            times
                .iter()
                .filter(|due| (due.nanoseconds as f64) < seconds * 1e9)
                .count()
        };
        assert!((240..=260).contains(&until(1.0)), "{}", until(1.0));
        let last = times[999].nanoseconds - times[998].nanoseconds;
        assert!((995_000..=1_005_000).contains(&last), "{last}");
    }

    #[test]
    fn steps_follow_each_other_with_their_phase() {
        let schedule = Schedule {
            arrivals: Arrivals::Uniform,
            phases: vec![
                Phase::constant(100.0, Duration::from_secs(1)),
                Phase::constant(400.0, Duration::from_secs(1)),
            ],
            seed: 1,
        };
        let times = all(&schedule, 2);
        let of = |phase| times.iter().filter(|due| due.phase == phase).count();
        assert_eq!((of(0), of(1)), (100, 400));
        assert!(
            times
                .iter()
                .all(|due| (due.nanoseconds >= 1_000_000_000) == (due.phase == 1))
        );
    }

    #[test]
    fn poisson_has_the_rate_and_exponential_distances_and_repeats_with_its_seed() {
        let schedule = Schedule {
            arrivals: Arrivals::Poisson,
            ..Schedule::uniform(1000.0, Duration::from_secs(50))
        };
        let times = all(&schedule, 1);
        let count = times.len() as f64;
        // Five standard deviations of a Poisson count.
        assert!(
            (count - 50_000.0).abs() < 5.0 * 50_000_f64.sqrt(),
            "{count}"
        );
        let gaps: Vec<f64> = times
            .windows(2)
            .map(|pair| (pair[1].nanoseconds - pair[0].nanoseconds) as f64)
            .collect();
        let longer = gaps.iter().filter(|gap| **gap > 1e6).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1_f64).exp()).abs() < 0.02, "{longer}");
        assert_eq!(times, all(&schedule, 1));
    }

    #[test]
    fn phase_without_length_or_rate_has_no_arrivals() {
        let schedule = Schedule {
            phases: vec![
                Phase::constant(1000.0, Duration::ZERO),
                Phase::constant(0.0, Duration::from_secs(1)),
                Phase::constant(10.0, Duration::from_secs(1)),
            ],
            ..Schedule::uniform(1.0, Duration::ZERO)
        };
        let times = all(&schedule, 1);
        assert_eq!(times.len(), 10);
        assert_eq!(times[0].nanoseconds, 1_000_000_000);
    }
}
