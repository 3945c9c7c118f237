//! A weight matrix in the order in which the kernel reads it: blocks of [`BLOCK`] of the common dimension, in each block
//! panels of `NR` columns, in each panel one row of `NR` numbers a step. Columns that are wanting are zero.

/// Steps of the common dimension in a block: a panel of a block stays in the first cache while every row of tokens goes
/// past it.
pub const BLOCK: usize = 256;

/// `[out, in]`, packed.
pub struct Packed<const NR: usize> {
    /// Numbers a row of input has.
    pub width: usize,
    /// Numbers a row of output has.
    pub out: usize,
    numbers: Vec<[f32; NR]>,
}

impl<const NR: usize> Packed<NR> {
    /// Packs `weights`, row-major `[out, width]`.
    pub fn new(weights: &[f32], width: usize) -> Self {
        let out = weights.len() / width;
        let mut numbers = Vec::with_capacity(width * out.div_ceil(NR));
        for first in (0..width).step_by(BLOCK) {
            for column in (0..out).step_by(NR) {
                let rows = weights[column * width..].chunks_exact(width).take(NR.min(out - column));
                let start = numbers.len();
                numbers.resize(start + BLOCK.min(width - first), [0.0; NR]);
                for (j, row) in rows.enumerate() {
                    for (step, value) in numbers[start..].iter_mut().zip(&row[first..]) {
                        step[j] = *value;
                    }
                }
            }
        }
        Self { width, out, numbers }
    }

    /// Panels of a block.
    pub const fn panels(&self) -> usize {
        self.out.div_ceil(NR)
    }

    /// The panel of this number in the block that starts at `first`.
    pub fn panel(&self, first: usize, panel: usize) -> &[[f32; NR]] {
        let steps = BLOCK.min(self.width - first);
        &self.numbers[first * self.panels() + panel * steps..][..steps]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_is_where_the_kernel_looks_for_it() {
        for (out, width) in [(1, 1), (16, 256), (17, 257), (50, 600)] {
            let weights: Vec<f32> = (0..out * width).map(|n| n as f32).collect();
            let packed = Packed::<16>::new(&weights, width);
            for first in (0..width).step_by(BLOCK) {
                for panel in 0..packed.panels() {
                    for (k, step) in packed.panel(first, panel).iter().enumerate() {
                        for (j, value) in step.iter().enumerate() {
                            let column = panel * 16 + j;
                            let wanted = if column < out { weights[column * width + first + k] } else { 0.0 };
                            assert_eq!(*value, wanted, "{out} x {width}: {column}, {}", first + k);
                        }
                    }
                }
            }
        }
    }
}
