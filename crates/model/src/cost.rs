//! [`Cost`]: what a step must read and multiply at the very least, from the shapes alone.

/// What the passes of a model cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the weights of all layers.
    pub layer_bytes: usize,
    /// Multiply-adds of a row with them.
    pub layer_macs: usize,
    /// Those of the last layer that only an output row needs: all but K, V and what is beside them.
    pub tail_macs: usize,
    /// Bytes of the vocabulary projection.
    pub head_bytes: usize,
    /// Multiply-adds of an output row with it.
    pub head_macs: usize,
    /// For each layer how many tokens a row sees at most, itself included.
    pub windows: Vec<Option<usize>>,
    /// Bytes of K and V of a token in a layer.
    pub kv_bytes: usize,
    /// Multiply-adds of a row with a token that it sees, in a layer.
    pub attention_macs: usize,
}

/// Bytes to read and multiply-adds to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of weights, K and V.
    pub bytes: u64,
    /// Multiply-adds.
    pub macs: u64,
}

/// Consecutive rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// Of the first row.
    pub position: usize,
    /// How many there are.
    pub n: usize,
    /// How many of them, the last ones, get logits.
    pub n_outputs: usize,
}

impl Cost {
    /// A step. Whatever is read is read once; what nobody needs is not computed.
    pub fn step(&self, spans: &[Rows]) -> Work {
        let n_rows: usize = spans.iter().map(|span| span.n).sum();
        let n_outputs: usize = spans.iter().map(|span| span.n_outputs).sum();
        let mut work = Work {
            bytes: self.layer_bytes as u64,
            macs: (self.layer_macs - self.tail_macs) as u64 * n_rows as u64
                + self.tail_macs as u64 * n_outputs as u64,
        };
        if n_outputs > 0 {
            work.bytes += self.head_bytes as u64;
            work.macs += self.head_macs as u64 * n_outputs as u64;
        }
        for (i, window) in self.windows.iter().enumerate() {
            let window = window.unwrap_or(usize::MAX);
            for span in spans {
                // The last layer computes only outputs.
                let n = if i + 1 < self.windows.len() { span.n } else { span.n_outputs };
                let end = span.position + span.n;
                let seen = (end - n + 1..=end).map(|end| end.min(window) as u64);
                work.macs += self.attention_macs as u64 * seen.sum::<u64>();
                let read = if n > 0 { end.min(window.saturating_add(n - 1)) } else { 0 };
                work.bytes += self.kv_bytes as u64 * read as u64;
            }
        }
        work
    }
}

impl Work {
    /// Seconds at `bytes_per_second` and, where it is known, `macs_per_second`, both at once.
    pub fn seconds(self, bytes_per_second: f64, macs_per_second: Option<f64>) -> f64 {
        let compute = macs_per_second.map_or(0.0, |macs| self.macs as f64 / macs);
        compute.max(self.bytes as f64 / bytes_per_second)
    }
}

impl std::ops::AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.bytes += other.bytes;
        self.macs += other.macs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers of 100 bytes and multiply-adds, a head of 10, the last layer with a window of 4.
    fn cost() -> Cost {
        Cost {
            layer_bytes: 200,
            layer_macs: 200,
            tail_macs: 70,
            head_bytes: 10,
            head_macs: 10,
            windows: vec![None, Some(4)],
            kv_bytes: 3,
            attention_macs: 5,
        }
    }

    #[test]
    fn a_decoded_token_reads_everything_once() {
        let work = cost().step(&[Rows { position: 9, n: 1, n_outputs: 1 }]);
        assert_eq!(work, Work { bytes: 210 + 3 * (10 + 4), macs: 210 + 5 * (10 + 4) });
    }

    #[test]
    fn rows_share_the_weights_and_see_what_is_before_them() {
        let work = cost().step(&[Rows { position: 0, n: 6, n_outputs: 6 }]);
        // 1 + .. + 6 tokens, and 1 + 2 + 3 + 4 + 4 + 4 in the window; 6 tokens read in each.
        assert_eq!(work, Work { bytes: 210 + 3 * 12, macs: 6 * 210 + 5 * (21 + 18) });
    }

    #[test]
    fn the_last_layer_computes_what_is_wanted() {
        let prompt = cost().step(&[Rows { position: 0, n: 6, n_outputs: 0 }]);
        assert_eq!(prompt, Work { bytes: 200 + 3 * 6, macs: 6 * 130 + 5 * 21 });
        let last = cost().step(&[Rows { position: 0, n: 6, n_outputs: 1 }]);
        assert_eq!(last, Work { bytes: 210 + 3 * (6 + 4), macs: 6 * 130 + 80 + 5 * (21 + 4) });
    }

    #[test]
    fn the_slower_of_both_limits_counts() {
        let work = Work { bytes: 100, macs: 1000 };
        assert_eq!(work.seconds(10.0, None), 10.0);
        assert_eq!(work.seconds(10.0, Some(10.0)), 100.0);
    }
}
