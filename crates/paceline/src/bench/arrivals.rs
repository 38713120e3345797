//! When requests arrive.

use super::random::Random;
use std::time::Duration;

/// The times of `n` arrivals that know nothing of one another, `rate` a second on average: a Poisson
/// process, as many independent users make it. The first one comes after a gap as well.
///
/// # Panics
/// If `rate` is not a number above 0 that leaves times a [`Duration`] can hold.
pub fn poisson(n: usize, rate: f64, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut now = 0.0;
    let arrival = |_| {
        now += random.exponential() / rate;
        Duration::from_secs_f64(now)
    };
    (0..n).map(arrival).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gaps of an exponential distribution: mean 1 / rate, as large a deviation, memoryless.
    #[test]
    fn gaps_are_exponential() {
        let (n, rate) = (20_000, 50.0);
        let times = poisson(n, rate, 11);
        assert!(times.is_sorted());
        let seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        let mut gaps: Vec<f64> = seconds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.push(seconds[0]);
        let mean = gaps.iter().sum::<f64>() / n as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n as f64;
        assert!((mean * rate - 1.0).abs() < 0.03, "{mean}");
        assert!((variance.sqrt() * rate - 1.0).abs() < 0.05, "{variance}");
        // Of those longer than one mean, as many are longer than two as are longer than one of all.
        let longer = |than: f64| gaps.iter().filter(|&&gap| gap * rate > than).count() as f64;
        let e = (-1f64).exp();
        assert!((longer(1.0) / n as f64 - e).abs() < 0.02);
        assert!((longer(2.0) / longer(1.0) - e).abs() < 0.03);
    }

    #[test]
    fn a_seed_gives_the_same_arrivals_at_any_rate() {
        let slow = poisson(5, 1.0, 4);
        assert_eq!(slow, poisson(5, 1.0, 4));
        assert_ne!(slow, poisson(5, 1.0, 5));
        let fast = poisson(5, 4.0, 4);
        for (slow, fast) in slow.iter().zip(fast) {
            assert!((slow.as_secs_f64() - 4.0 * fast.as_secs_f64()).abs() < 1e-6);
        }
    }
}
