//! A weight matrix in the order in which the kernel reads it: blocks of [`Step::BLOCK`] steps of the common dimension, in each
//! block panels of `NR` columns, in each panel one row of `NR` numbers (or pairs) a step. What is wanting is zero.

use rayon::{
    iter::{IndexedParallelIterator as _, ParallelIterator as _},
    slice::ParallelSliceMut as _,
};

use super::step::Step;

/// `[out, width]`, packed.
pub struct Packed<T, const NR: usize> {
    /// Numbers a row of input has.
    pub width: usize,
    /// Numbers a row of output has.
    pub out: usize,
    steps: Vec<[T; NR]>,
    /// What a column of a block is to be multiplied with, `[blocks, panels]`; empty where that is 1.
    scales: Vec<[f32; NR]>,
}

impl<T: Step, const NR: usize> Packed<T, NR> {
    /// Packs `weights`, row-major `[out, width]`, on the threads of the pool that this runs in.
    pub fn new(weights: &[f32], width: usize) -> Self {
        let out = weights.len() / width;
        debug_assert_eq!(weights.len(), out * width, "whole rows");
        let panels = out.div_ceil(NR);
        let all = width.div_ceil(T::NUMBERS);
        let mut steps = vec![[T::default(); NR]; all * panels];
        let mut scales = vec![[0.0; NR]; if T::IS_SCALED { all.div_ceil(T::BLOCK) * panels } else { 0 }];
        for (block, (first, steps)) in
            (0..width).step_by(T::BLOCK * T::NUMBERS).zip(steps.chunks_mut(T::BLOCK * panels)).enumerate()
        {
            let numbers = first..(first + T::BLOCK * T::NUMBERS).min(width);
            let factors = |panel: usize, scales: &mut [[f32; NR]]| {
                let rows = weights[panel * NR * width..].chunks_exact(width).take(NR);
                let mut factors = [1.0; NR];
                for (j, row) in rows.enumerate() {
                    let (scale, factor) = T::scale(&row[numbers.clone()]);
                    factors[j] = factor;
                    if let Some(scales) = scales.first_mut() {
                        scales[j] = scale;
                    }
                }
                factors
            };
            let fill = |panel: usize, steps: &mut [[T; NR]], factors: &[f32; NR]| {
                let rows = weights[panel * NR * width..].chunks_exact(width).take(NR);
                rows.enumerate().for_each(|(j, row)| T::spread(&row[numbers.clone()], factors[j], j, steps));
            };
            let panel_steps = steps.len() / panels;
            let steps = steps.par_chunks_exact_mut(panel_steps).enumerate();
            if T::IS_SCALED {
                let scales = scales[block * panels..][..panels].par_chunks_exact_mut(1);
                steps
                    .zip(scales)
                    .for_each(|((panel, steps), scales)| fill(panel, steps, &factors(panel, scales)));
            } else {
                steps.for_each(|(panel, steps)| fill(panel, steps, &factors(panel, &mut [])));
            }
        }
        Self { width, out, steps, scales }
    }

    /// Panels of a block.
    pub const fn panels(&self) -> usize {
        self.out.div_ceil(NR)
    }

    /// The panel of this number in this block.
    #[inline(always)]
    pub fn panel(&self, block: usize, panel: usize) -> &[[T; NR]] {
        let first = block * T::BLOCK;
        let steps = T::BLOCK.min(self.width.div_ceil(T::NUMBERS) - first);
        &self.steps[first * self.panels() + panel * steps..][..steps]
    }

    /// What the sums of its columns are to be multiplied with.
    #[inline(always)]
    pub fn scales(&self, block: usize, panel: usize) -> &[f32; NR] {
        self.scales.get(block * self.panels() + panel).unwrap_or(&[1.0; NR])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::cpu::kernel::Pair;

    /// Columns and numbers of each; under Miri few.
    const SHAPES: &[(usize, usize)] = if cfg!(miri) {
        &[(1, 1), (17, 20), (3, 515)]
    } else {
        &[(1, 1), (16, 256), (17, 257), (50, 600), (33, 1_100)]
    };

    #[test]
    fn every_weight_is_where_the_kernel_looks_for_it() {
        for &(out, width) in SHAPES {
            let weights: Vec<f32> = (0..out * width).map(|n| n as f32).collect();
            let packed = Packed::<f32, 16>::new(&weights, width);
            for block in 0..width.div_ceil(<f32 as Step>::BLOCK) {
                for panel in 0..packed.panels() {
                    assert_eq!(packed.scales(block, panel), &[1.0; 16]);
                    for (k, step) in packed.panel(block, panel).iter().enumerate() {
                        for (j, value) in step.iter().enumerate() {
                            let (column, at) = (panel * 16 + j, block * <f32 as Step>::BLOCK + k);
                            let wanted = if column < out { weights[column * width + at] } else { 0.0 };
                            assert_eq!(*value, wanted, "{out} x {width}: {column}, {at}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn integers_are_the_weights_again_when_scaled() {
        for &(out, width) in SHAPES {
            let weights: Vec<f32> = (0..out * width).map(|n| ((n * 37 % 101) as f32 - 50.0) * 0.01).collect();
            let packed = Packed::<Pair, 16>::new(&weights, width);
            for (column, row) in weights.chunks_exact(width).enumerate() {
                for (at, wanted) in row.iter().enumerate() {
                    let block = at / 2 / <Pair as Step>::BLOCK;
                    let step =
                        packed.panel(block, column / 16)[at / 2 - block * <Pair as Step>::BLOCK][column % 16];
                    let scale = packed.scales(block, column / 16)[column % 16];
                    let value = f32::from(step[at % 2]) * scale;
                    assert!((value - wanted).abs() <= 0.51 / 2_047.0 / 2.0 + 1e-7, "{value} for {wanted}");
                }
            }
        }
    }
}
