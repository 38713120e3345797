//! [`StepCosts`]: how long a step takes by what is in it, and what a workload would take at that.

use super::batching::Lengths;
use std::collections::VecDeque;

/// A place on a curve.
pub(super) type Point = (f64, f64);

/// Measured times of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCosts {
    /// Steps that decode, by rows from few to many, the first with one row.
    pub decode: Vec<Decode>,
    /// Rows of a prompt and the seconds of a step with nothing else, from few to many.
    pub prefill: Vec<(usize, f64)>,
}

/// Steps of so many sequences, one row each, at two lengths of context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Sequences.
    pub n_rows: usize,
    /// Tokens of a sequence, and seconds of a step.
    pub at: [(f64, f64); 2],
}

impl Decode {
    /// Seconds at another length, in a straight line.
    pub fn seconds(&self, context: f64) -> f64 {
        line(self.at[0], self.at[1], context)
    }
}

impl StepCosts {
    /// Seconds of a step with `n_decode` rows of sequences of `context` tokens on average, and
    /// `n_prompt` rows of prompts. What they share, reading the weights, counts once: rows of prompts
    /// add what they add to as many rows of prompts.
    pub fn seconds(&self, n_decode: usize, context: f64, n_prompt: usize) -> f64 {
        let decode = || {
            let points: Vec<Point> = self
                .decode
                .iter()
                .map(|decode| (decode.n_rows as f64, decode.seconds(context)))
                .collect();
            curve(&points, n_decode as f64)
        };
        let one = self.decode.first().map(|decode| (1.0, decode.seconds(decode.at[0].0)));
        let prefill = self.prefill.iter().map(|&(n, seconds)| (n as f64, seconds));
        let prefill: Vec<Point> = one.into_iter().chain(prefill).collect();
        let rows = |n: usize| curve(&prefill, n as f64);
        match (n_decode, n_prompt) {
            (0, 0) => 0.0,
            (_, 0) => decode(),
            (0, _) => rows(n_prompt),
            _ => decode() + rows(n_decode + n_prompt) - rows(n_decode),
        }
    }

    /// The mean of two measurements of the same steps.
    pub fn mean(&self, other: &StepCosts) -> StepCosts {
        let mean = |a: f64, b: f64| (a + b) / 2.0;
        let pair = |a: Point, b: Point| (mean(a.0, b.0), mean(a.1, b.1));
        let decode = self.decode.iter().zip(&other.decode).map(|(a, b)| Decode {
            n_rows: a.n_rows,
            at: [pair(a.at[0], b.at[0]), pair(a.at[1], b.at[1])],
        });
        let prefill = self.prefill.iter().zip(&other.prefill);
        StepCosts {
            decode: decode.collect(),
            prefill: prefill.map(|(a, b)| (a.0, mean(a.1, b.1))).collect(),
        }
    }

    /// Seconds that continuous batching takes for a workload that is all there: every step has at
    /// most `slots` sequences and `budget` rows, in the order of arrival, and costs what such a step
    /// was measured to cost.
    pub fn predict(&self, workload: &[Lengths], slots: usize, budget: usize) -> f64 {
        let mut waiting: VecDeque<&Lengths> = workload.iter().collect();
        let mut running: Vec<Sequence> = Vec::new();
        let mut seconds = 0.0;
        while !waiting.is_empty() || !running.is_empty() {
            let decodes = || running.iter().filter(|sequence| sequence.prompt_left == 0);
            let n_decode = decodes().count();
            let context = decodes().map(|sequence| sequence.len).sum::<usize>() as f64;
            let mut room = budget.max(slots) - n_decode;
            let mut n_prompt = 0;
            for sequence in &mut running {
                let n = sequence.advance(room);
                (room, n_prompt) = (room - n, n_prompt + n);
            }
            while running.len() < slots
                && room > 0
                && let Some(lengths) = waiting.pop_front()
            {
                let (prompt_left, output_left) = (lengths.prompt, lengths.output);
                let mut sequence = Sequence { prompt_left, output_left, len: 0 };
                let n = sequence.advance(room);
                (room, n_prompt) = (room - n, n_prompt + n);
                running.push(sequence);
            }
            seconds += self.seconds(n_decode, context / n_decode.max(1) as f64, n_prompt);
            running.retain(|sequence| sequence.output_left > 0);
        }
        seconds
    }
}

/// A sequence of a predicted run.
struct Sequence {
    prompt_left: usize,
    output_left: usize,
    len: usize,
}

impl Sequence {
    /// Computes at most `room` rows of the prompt, and returns how many; once there are none left, a
    /// token comes.
    fn advance(&mut self, room: usize) -> usize {
        let n = self.prompt_left.min(room);
        self.prompt_left -= n;
        self.len += n;
        if self.prompt_left == 0 {
            self.output_left -= 1;
            self.len += 1;
        }
        n
    }
}

/// The straight line through two points, at `x`.
fn line(a: Point, b: Point, x: f64) -> f64 {
    match b.0 - a.0 {
        0.0 => a.1,
        width => a.1 + (b.1 - a.1) * (x - a.0) / width,
    }
}

/// Straight lines from point to point; beyond the ends the nearest one goes on.
fn curve(points: &[Point], x: f64) -> f64 {
    match points {
        [] => 0.0,
        [only] => only.1,
        _ => {
            let i = points[1..points.len() - 1].iter().take_while(|point| point.0 < x).count();
            line(points[i], points[i + 1], x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(prompt: usize, output: usize) -> Lengths {
        Lengths { prompt, output }
    }

    /// A step takes 1 s and 0.1 s a row of any kind, and 0.001 s for each token of context.
    fn costs() -> StepCosts {
        let seconds = |n: usize, context: f64| 1.0 + n as f64 * (0.1 + 0.001 * context);
        let decode = |n: usize| Decode {
            n_rows: n,
            at: [(0.0, seconds(n, 0.0)), (100.0, seconds(n, 100.0))],
        };
        StepCosts {
            decode: [1, 2, 4].map(decode).to_vec(),
            prefill: [10, 100].map(|n| (n, seconds(n, 0.0))).to_vec(),
        }
    }

    #[test]
    fn costs_are_read_between_the_measurements() {
        let costs = costs();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        close(costs.seconds(0, 0.0, 0), 0.0);
        close(costs.seconds(3, 50.0, 0), 1.0 + 3.0 * 0.15);
        close(costs.seconds(0, 0.0, 40), 5.0);
        close(costs.seconds(0, 0.0, 200), 21.0);
        // The weights are read once.
        close(costs.seconds(2, 50.0, 40), 1.0 + 2.0 * 0.15 + 4.0);
    }

    #[test]
    fn a_sequence_alone_takes_its_steps() {
        let mut costs = costs();
        costs.decode.iter_mut().for_each(|decode| decode.at[1] = (100.0, decode.at[0].1));
        // The prompt in three steps of 8, 8 and 4 rows, whose last gives the first token.
        let seconds = costs.predict(&[lengths(20, 4)], 1, 8);
        assert!((seconds - (3.0 + 2.0 + 3.0 * 1.1)).abs() < 1e-9, "{seconds}");
        // Two slots: 5 + 5 rows, then two steps of two; a third enters when both have ended.
        let three = [lengths(5, 3), lengths(5, 3), lengths(5, 1)];
        let seconds = costs.predict(&three, 2, 64);
        assert!((seconds - (2.0 + 2.0 * 1.2 + 1.5)).abs() < 1e-9, "{seconds}");
    }

    #[test]
    fn more_slots_never_take_longer_where_rows_share_a_cost() {
        let workload: Vec<Lengths> = (0..40).map(|i| lengths(1 + i % 7, 1 + i * 5 % 23)).collect();
        let times = [1, 2, 4, 8].map(|slots| costs().predict(&workload, slots, 64));
        assert!(times.is_sorted_by(|a, b| a > b), "{times:?}");
    }
}
