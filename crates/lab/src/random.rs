//! A seeded source of pseudo-random numbers (SplitMix64): the same seed gives the same sequence on every
//! machine, so that a run that failed can be repeated.
//!
//! Not for secrets.

/// The generator.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator whose sequence is determined by `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `limit - 1`; 0 where `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number().checked_rem(limit).unwrap_or(0)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Returns true in `percent` of 100 calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the words; an empty text where the list is empty.
    pub fn word<'words>(&mut self, words: &[&'words str]) -> &'words str {
        let index = usize::try_from(self.below(words.len() as u64)).unwrap_or(0);
        words.get(index).copied().unwrap_or_default()
    }

    /// Returns a generator of its own, whose sequence does not depend on how often this one is used
    /// afterwards.
    pub fn fork(&mut self) -> Self {
        Self::new(self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_a_function_of_the_seed() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.between(3, 9)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|number| (3..=9).contains(number)));
        assert_eq!(Random::new(1).below(0), 0);
        assert_eq!(Random::new(1).word(&[]), "");
    }
}
