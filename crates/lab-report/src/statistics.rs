//! Estimates: the median of paired differences, and its bootstrap interval.

use serde::Serialize;
use statrs::statistics::{Data, OrderStatistics as _};

/// Resamples of the bootstrap.
const RESAMPLES: usize = 10_000;

/// Median of differences, with an interval that holds the true value with a confidence of 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Effect {
    /// Median.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of differences.
    pub count: usize,
}

impl Effect {
    /// Whether the interval holds zero.
    pub fn holds_zero(&self) -> bool {
        self.low <= 0.0 && self.high >= 0.0
    }

    /// The end of the interval that is farther from zero.
    pub fn reach(&self) -> f64 {
        self.low.abs().max(self.high.abs())
    }
}

/// Returns the median of the differences and its percentile bootstrap interval (95 %, 10,000 resamples). The same seed
/// gives the same interval. `None` without differences.
pub fn paired_effect(differences: &[f64], seed: u64) -> Option<Effect> {
    if differences.is_empty() || differences.iter().any(|difference| !difference.is_finite()) {
        return None;
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut resample = vec![0.0; differences.len()];
    for _ in 0..RESAMPLES {
        for value in &mut resample {
            *value = random.choice(differences).copied().unwrap_or_default();
        }
        medians.push(median(&mut resample));
    }
    let mut medians = Data::new(medians);
    Some(Effect {
        median: median(&mut differences.to_vec()),
        low: medians.quantile(0.025),
        high: medians.quantile(0.975),
        count: differences.len(),
    })
}

/// Median; 0 of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    Data::new(values).median()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_holds_the_true_difference_in_nineteen_of_twenty_experiments() {
        let mut random = fastrand::Rng::with_seed(3);
        // Sums of twelve uniform variables are close to normal ones.
        let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let mut held = 0;
        for seed in 0..200 {
            let differences: Vec<f64> = (0..20).map(|_| 1.0 + normal()).collect();
            let effect = paired_effect(&differences, seed).unwrap();
            held += usize::from(effect.low <= 1.0 && effect.high >= 1.0);
        }
        assert!((180..=199).contains(&held), "{held} of 200");
    }

    #[test]
    fn outliers_move_the_median_little_and_a_constant_has_no_width() {
        let effect = paired_effect(&[1.0, 1.1, 0.9, 1.0, 50.0, 1.0, 0.95], 1).unwrap();
        assert!((effect.median - 1.0).abs() < 1e-9);
        let effect = paired_effect(&[2.0; 9], 1).unwrap();
        assert_eq!(
            (effect.median, effect.low, effect.high, effect.count),
            (2.0, 2.0, 2.0, 9)
        );
        assert!(paired_effect(&[], 1).is_none());
        assert!(paired_effect(&[f64::NAN], 1).is_none());
    }
}
