//! `softcap`: bounds logits smoothly (Gemma 2).

use crate::cpu::Cpu;
use crate::mat::Mat;
use crate::math;
use crate::profile::Op;
use crate::simd::{Kernel, LANES, Simd};
use crate::split::Split;

/// Values of an item.
const ITEM_LEN: usize = 64 * LANES;

impl Cpu {
    /// `x = cap tanh(x / cap)`, in place.
    pub fn softcap(&self, cap: f32, x: &mut Mat) {
        let _timer = self.profile.time(|| (Op::Softcap, 0, 0));
        let values = Split::new(x.as_mut_slice());
        let len = values.len();
        self.team.for_each(len.div_ceil(ITEM_LEN), |item| {
            // SAFETY: each item has its own values.
            let x = unsafe { values.part(item * ITEM_LEN..len.min((item + 1) * ITEM_LEN)) };
            self.compute(Softcap { cap, x });
        });
    }
}

struct Softcap<'a> {
    cap: f32,
    x: &'a mut [f32],
}

impl Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(LANES) {
            let turned = math::tanh(s, s.mul(s.load_start(x), s.splat(1.0 / self.cap)));
            s.store_start(s.mul(turned, s.splat(self.cap)), x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn every_value_is_capped() {
        for isa in Isa::available() {
            let mut x = Mat::zeros(3, 1100);
            let values: Vec<f32> = (0..3300).map(|i| (i as f32 - 1650.0) / 10.0).collect();
            x.as_mut_slice().copy_from_slice(&values);
            Cpu::new(isa, 2).softcap(30.0, &mut x);
            for (&capped, value) in x.as_slice().iter().zip(values) {
                let expected = 30.0 * (f64::from(value) / 30.0).tanh();
                assert!((f64::from(capped) - expected).abs() < 1e-5, "{value}: {capped}");
            }
        }
    }
}
