//! Charts of block characters for the terminal.

/// Characters that fill a cell from below, by eighths.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A column for each value, `height` lines tall where it is `most`; a value above 0 shows.
pub fn columns(values: &[f64], most: f64, height: usize) -> Vec<String> {
    let eighths = move |value: f64| match value > 0.0 && most > 0.0 {
        true => ((value / most * (8 * height) as f64).round() as usize).max(1),
        false => 0,
    };
    let line = |above: usize| {
        values.iter().map(move |&value| EIGHTHS[eighths(value).saturating_sub(8 * above).min(8)])
    };
    (0..height).rev().map(|above| line(above).collect()).collect()
}

/// How the values are spread, on one line of `width` characters.
pub fn spread(values: &[f64], bins: Bins, width: usize) -> String {
    let mut counts = vec![0.0; width];
    values.iter().for_each(|&value| counts[bins.place(value, width)] += 1.0);
    let most = counts.iter().copied().fold(0.0, f64::max);
    columns(&counts, most, 1).concat()
}

/// Ranges of equal ratio from `low` to `high`.
#[derive(Clone, Copy)]
pub struct Bins {
    pub low: f64,
    pub high: f64,
}

impl Bins {
    /// Those that hold all values.
    pub fn of(values: &[f64]) -> Bins {
        let low = values.iter().copied().fold(f64::MAX, f64::min).max(1e-3);
        let high = values.iter().copied().fold(low, f64::max);
        Bins { low: low.min(high), high }
    }

    fn place(self, value: f64, n: usize) -> usize {
        let all = (self.high / self.low).ln();
        match all > 0.0 {
            true => (((value / self.low).ln() / all * n as f64).max(0.0) as usize).min(n - 1),
            false => 0,
        }
    }
}

/// What `amounts` at their times come to in each of `n` equal parts of `total`, a second.
pub fn rates(amounts: impl Iterator<Item = (f64, f64)>, total: f64, n: usize) -> Vec<f64> {
    let mut rates = vec![0.0; n];
    let part = total / n as f64;
    for (time, amount) in amounts {
        rates[((time / part) as usize).min(n - 1)] += amount / part;
    }
    rates
}

/// How many of the intervals go on in each of `n` equal parts of `total`, on average.
pub fn overlaps(intervals: impl Iterator<Item = (f64, f64)>, total: f64, n: usize) -> Vec<f64> {
    let mut counts = vec![0.0; n];
    let part = total / n as f64;
    for (from, to) in intervals {
        let parts = (from / part) as usize..=((to / part) as usize).min(n - 1);
        for i in parts {
            let (start, end) = (i as f64 * part, (i + 1) as f64 * part);
            counts[i] += (to.min(end) - from.max(start)).max(0.0) / part;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fill_by_eighths() {
        assert_eq!(columns(&[0.0, 0.01, 4.0, 8.0], 8.0, 1), [" ▁▄█"]);
        assert_eq!(columns(&[1.0, 12.0, 16.0], 16.0, 2), [" ▄█", "▁██"]);
        assert_eq!(columns(&[0.0, 0.0], 0.0, 1), ["  "]);
    }

    #[test]
    fn values_are_spread_by_their_ratios() {
        let values = [1.0, 1.5, 10.0, 99.0, 100.0, 100.0];
        assert_eq!(spread(&values, Bins::of(&values), 2), "▄█");
        assert_eq!(spread(&[3.0, 3.0], Bins::of(&[3.0]), 3), "█  ");
    }

    #[test]
    fn time_is_cut_into_parts() {
        assert_eq!(rates([(0.0, 2.0), (1.9, 1.0), (4.0, 3.0)].into_iter(), 4.0, 2), [1.5, 1.5]);
        assert_eq!(overlaps([(0.0, 4.0), (1.0, 3.0)].into_iter(), 4.0, 2), [1.5, 1.5]);
        assert_eq!(overlaps([(1.0, 1.5)].into_iter(), 4.0, 4), [0.0, 0.5, 0.0, 0.0]);
    }
}
