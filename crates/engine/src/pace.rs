//! [`Pace`]: how long a step takes, learnt from the steps so far.
//!
//! ```text
//! seconds of a step = c[0] rows + c[1] tokens that the rows see + c[2] rows with logits + c[3]
//! ```
//!
//! The coefficients are the non-negative ones with the least squared *relative* error, old steps
//! counting less and less: a short step counts as much as a long one, and a step that the machine
//! was late with hardly counts. Steps with rows of prompts and those without are remembered apart, so
//! that neither kind is forgotten while only the other comes, and the two together tell what a row
//! costs from what a step costs. Before the first step all are 0, and a step seems to cost nothing.
//!
//! Beside it, what it takes to read a block from a store: the mean of the last ones.

/// How much a step counts when the next one is learnt: some fifty steps are remembered.
const KEEP: f64 = 0.98;

/// How much the reading of a block counts when the next one is learnt.
const KEEP_READ: f64 = 0.95;

/// Passes over the coefficients after each step. They start from the last solution, so a few do.
const PASSES: usize = 16;

/// What the time of a step depends on, summed over its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Rows.
    pub rows: f64,
    /// Tokens that the rows see, each row those up to its own.
    pub seen: f64,
    /// Rows with logits.
    pub outputs: f64,
}

impl Load {
    /// The next token of a sequence of `len` tokens.
    pub fn of_next(len: usize) -> Load {
        Load { rows: 1.0, seen: len as f64, outputs: 1.0 }
    }

    /// Adds `n` rows from `position` on.
    pub fn add_rows(&mut self, position: usize, n: usize) {
        let n = n as f64;
        self.rows += n;
        self.seen += n * (position as f64 + (n + 1.0) / 2.0);
    }

    fn features(&self) -> [f64; 4] {
        [self.rows, self.seen, self.outputs, 1.0]
    }
}

impl std::ops::AddAssign for Load {
    fn add_assign(&mut self, other: Load) {
        self.rows += other.rows;
        self.seen += other.seen;
        self.outputs += other.outputs;
    }
}

/// Sums over steps of `x xᵀ / t²` and of `x / t`, for features `x` and time `t`.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    products: [[f64; 4]; 4],
    targets: [f64; 4],
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    coefficients: [f64; 4],
    /// Steps without rows of prompts, and with them.
    memories: [Memory; 2],
    /// Seconds to read a block; 0 as long as none was.
    read: f64,
}

impl Pace {
    /// Learns that a step of this load took so many seconds.
    pub fn learn(&mut self, load: Load, seconds: f64) {
        if seconds <= 0.0 {
            return;
        }
        let x = load.features().map(|x| x / seconds);
        let memory = &mut self.memories[usize::from(load.rows > load.outputs)];
        for i in 0..4 {
            for j in 0..4 {
                memory.products[i][j] = memory.products[i][j] * KEEP + x[i] * x[j];
            }
            memory.targets[i] = memory.targets[i] * KEEP + x[i];
        }
        let [a, b] = &self.memories;
        let product = |i: usize, j: usize| a.products[i][j] + b.products[i][j];
        // Coordinate descent. What the steps do not tell apart goes to the first that explains it:
        // a row is believed to cost too much rather than too little.
        for _ in 0..PASSES {
            for i in 0..4 {
                let others = (0..4).filter(|&j| j != i);
                let explained: f64 = others.map(|j| product(i, j) * self.coefficients[j]).sum();
                if product(i, i) > 0.0 {
                    let best = (a.targets[i] + b.targets[i] - explained) / product(i, i);
                    self.coefficients[i] = best.max(0.0);
                }
            }
        }
    }

    /// Seconds of a step.
    pub fn seconds(&self, load: Load) -> f64 {
        self.coefficients.iter().zip(load.features()).map(|(c, x)| c * x).sum()
    }

    /// Seconds that a load adds to a step.
    pub fn more_seconds(&self, load: Load) -> f64 {
        self.seconds(load) - self.coefficients[3]
    }

    /// How many rows from `position` on can be computed in so many seconds more.
    pub fn rows_in(&self, seconds: f64, position: usize) -> usize {
        // n rows take b n + a n², since the row after them sees a token more.
        let [row, seen, ..] = self.coefficients;
        let a = seen / 2.0;
        let b = row + seen * (position as f64 + 0.5);
        let seconds = seconds.max(0.0);
        // The root in the form that is right for a = 0, too. Nothing known: as many as one likes.
        let n = 2.0 * seconds / (b + (b * b + 4.0 * a * seconds).sqrt());
        if n.is_nan() { usize::MAX } else { n as usize }
    }

    /// Learns that reading so many blocks took so many seconds.
    pub fn learn_reads(&mut self, n_blocks: usize, seconds: f64) {
        if n_blocks == 0 {
            return;
        }
        let keep = if self.read == 0.0 { 0.0 } else { KEEP_READ.powf(n_blocks as f64) };
        self.read = self.read * keep + seconds / n_blocks as f64 * (1.0 - keep);
    }

    /// Seconds to read so many blocks.
    pub fn read_seconds(&self, n_blocks: usize) -> f64 {
        self.read * n_blocks as f64
    }

    /// How many blocks can be read in so many seconds.
    pub fn reads_in(&self, seconds: f64) -> usize {
        let n = seconds.max(0.0) / self.read;
        if n.is_nan() { usize::MAX } else { n as usize }
    }

    /// Whether reading blocks is expected to be faster than computing their rows, as it is while the
    /// one or the other is not known. Who has been slow is forgiven bit by bit, or it would never be
    /// tried again.
    pub fn reading_pays(&mut self, n_blocks: usize, rows: Load) -> bool {
        let (reading, computing) = (self.read_seconds(n_blocks), self.more_seconds(rows));
        let pays = reading < computing || computing == 0.0;
        if !pays {
            self.read *= KEEP_READ;
        }
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: milliseconds of a step.
    fn time(load: Load) -> f64 {
        1.7 + 0.4 * load.rows + 0.0002 * load.seen + 0.2 * load.outputs
    }

    fn prompt(position: usize, n: usize) -> Load {
        let mut load = Load { outputs: 1.0, ..Load::default() };
        load.add_rows(position, n);
        load
    }

    fn decodes(n: usize, len: usize) -> Load {
        let mut load = Load::default();
        (0..n).for_each(|_| load += Load::of_next(len));
        load
    }

    #[test]
    fn the_cost_of_a_step_is_learnt() {
        let mut pace = Pace::default();
        assert_eq!(pace.seconds(prompt(0, 100)), 0.0);
        assert_eq!(pace.rows_in(0.0, 100), usize::MAX);
        for i in 0..40 {
            pace.learn(prompt(i * 10, 50 + i * 10), time(prompt(i * 10, 50 + i * 10)) * 1e-3);
            let load = decodes(1 + i % 8, 100 + i * 7);
            // Now and then the machine has something else to do.
            let late = if i % 10 == 9 { 50.0 } else { 1.0 };
            pace.learn(load, time(load) * late * 1e-3);
        }
        for load in [prompt(0, 512), prompt(3000, 200), decodes(1, 10), decodes(20, 2000)] {
            let (guess, truth) = (pace.seconds(load) * 1e3, time(load));
            assert!((guess / truth - 1.0).abs() < 0.1, "{guess} for {truth}");
        }
        let n = pace.rows_in(0.02, 2000);
        let more = |n| time(prompt(2000, n)) - time(prompt(2000, 0));
        assert!(more(n) < 22.0 && more(n + 1) > 18.0, "{n} rows take {}", more(n));
    }

    #[test]
    fn with_little_seen_a_row_costs_too_much_rather_than_too_little() {
        let mut pace = Pace::default();
        pace.learn(prompt(0, 100), time(prompt(0, 100)));
        assert!(pace.more_seconds(prompt(0, 10)) > 4.0);
        // The same step for ever tells nothing new, and what was known stays.
        let load = decodes(8, 100);
        for _ in 0..5000 {
            pace.learn(load, time(load));
        }
        assert!((pace.seconds(load) / time(load) - 1.0).abs() < 0.01);
        assert!(pace.more_seconds(prompt(0, 100)) > 20.0);
    }

    #[test]
    fn what_a_step_without_prompts_takes_is_known_while_all_have_some() {
        let mut pace = Pace::default();
        for i in 0..60 {
            pace.learn(decodes(8, 50 + i), time(decodes(8, 50 + i)));
        }
        // The machine is late as it likes, and the context grows.
        for i in 0..400 {
            let mut load = decodes(8, 110 + i);
            load.add_rows(i * 10, 10);
            pace.learn(load, time(load) * [1.0, 1.6, 1.0, 1.2, 2.5][i % 5]);
        }
        let load = decodes(8, 500);
        assert!((pace.seconds(load) / time(load) - 1.0).abs() < 0.2, "{}", pace.seconds(load));
    }

    #[test]
    fn blocks_are_read_where_that_is_faster_and_a_slow_store_gets_another_try() {
        let mut pace = Pace::default();
        assert!(pace.reading_pays(10, prompt(0, 160)), "nothing is known");
        assert_eq!(pace.reads_in(0.01), usize::MAX);
        pace.learn_reads(10, 0.1);
        assert_eq!((pace.read_seconds(3), pace.reads_in(0.05)), (0.03, 5));
        assert!(pace.reading_pays(10, prompt(0, 160)), "only the one is known");
        pace.learn(prompt(0, 100), 0.05);
        let n_tries = (0..1000).position(|_| pace.reading_pays(10, prompt(0, 160)));
        assert!((1..30).contains(&n_tries.unwrap()), "{n_tries:?}");
        pace.learn_reads(100, 0.01);
        assert!(pace.read_seconds(100) < 0.02 && pace.reading_pays(10, prompt(0, 160)));
    }

    #[test]
    fn a_machine_that_gets_slower_is_followed() {
        let mut pace = Pace::default();
        for factor in [1.0, 3.0] {
            for i in 0..800 {
                let load = if i % 2 == 0 { prompt(0, 30 + i) } else { decodes(1 + i % 5, i) };
                pace.learn(load, time(load) * factor);
            }
            let load = decodes(4, 300);
            assert!((pace.seconds(load) / time(load) / factor - 1.0).abs() < 0.1);
        }
    }
}
