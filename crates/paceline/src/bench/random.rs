//! [`Random`]: numbers that are the same for a seed on every machine and in every version.

use paceline_engine::sample::noise::philox4x32;

/// A stream of random numbers.
pub(crate) struct Random {
    seed: u64,
    /// Numbers drawn so far.
    n: u32,
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random { seed, n: 0 }
    }

    fn bits(&mut self) -> u64 {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let words = philox4x32([self.n, 0, 0, 0], key);
        self.n = self.n.wrapping_add(1);
        u64::from(words[0]) << 32 | u64::from(words[1])
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Uniform below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        // The high half of the product: uneven by no more than n / 2^64.
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Exponentially distributed with mean 1: the time to the next event of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// Puts things into a random order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for i in (1..things.len()).rev() {
            things.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_stream() {
        let draw = |seed| (Random::new(seed).bits(), Random::new(seed).unit());
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(draw(1), draw(1 << 32));
    }

    #[test]
    fn all_values_below_come_up_evenly() {
        let mut random = Random::new(7);
        let mut counts = [0; 5];
        (0..10_000).for_each(|_| counts[random.below(5)] += 1);
        // Each is binomial: 2,000 with a deviation of 40.
        assert!(counts.iter().all(|n| (1800..2200).contains(n)), "{counts:?}");
    }

    #[test]
    fn shuffling_keeps_everything() {
        let mut things: Vec<usize> = (0..100).collect();
        Random::new(3).shuffle(&mut things);
        assert!(!things.is_sorted());
        things.sort_unstable();
        assert!(things.into_iter().eq(0..100));
    }
}
