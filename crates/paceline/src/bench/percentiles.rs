//! [`Percentiles`]: what a list of times comes down to.

use std::time::Duration;

/// The middle and the tail of a distribution, in the unit of its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// Half are at most this.
    pub p50: f64,
    /// Nine in ten are at most this.
    pub p90: f64,
    /// 99 in a hundred are at most this.
    pub p99: f64,
    /// The average.
    pub mean: f64,
}

impl Percentiles {
    /// Those of some values; `None` if there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Percentiles> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() {
            return None;
        }
        values.sort_by(f64::total_cmp);
        Some(Percentiles {
            p50: quantile(&values, 0.5),
            p90: quantile(&values, 0.9),
            p99: quantile(&values, 0.99),
            mean: values.iter().sum::<f64>() / values.len() as f64,
        })
    }

    /// Those of some times, in milliseconds.
    pub fn of_times(times: impl IntoIterator<Item = Duration>) -> Option<Percentiles> {
        Percentiles::of(times.into_iter().map(|time| time.as_secs_f64() * 1e3))
    }
}

/// The value below which a fraction `q` of the sorted values lies, between two of them in a straight
/// line (numpy's default, type 7 of Hyndman and Fan).
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_numpy() {
        // numpy.percentile([4, 1, 3, 2], [50, 90, 99]) and its mean.
        let four = Percentiles::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((four.p50, four.mean), (2.5, 2.5));
        assert!((four.p90 - 3.7).abs() < 1e-9 && (four.p99 - 3.97).abs() < 1e-9, "{four:?}");
        let hundred = Percentiles::of((0..=100).rev().map(f64::from)).unwrap();
        assert_eq!((hundred.p50, hundred.p90, hundred.p99), (50.0, 90.0, 99.0));
    }

    #[test]
    fn one_value_is_all_and_none_is_none() {
        let one = Percentiles::of_times([Duration::from_micros(1500)]).unwrap();
        assert_eq!(one, Percentiles { p50: 1.5, p90: 1.5, p99: 1.5, mean: 1.5 });
        assert_eq!(Percentiles::of([]), None);
    }
}
