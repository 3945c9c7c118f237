//! Rows of tokens times a packed weight matrix, with what follows the product done while the numbers are at hand.

use std::ops::Range;

use super::{
    kernel::Kernel,
    packed::{BLOCK, Packed},
};
use crate::embed::math;

/// Rows that go past the weights together: their packed form stays in the second cache.
pub const ROWS: usize = 192;

/// A matrix multiplication with bias.
pub struct Linear<const NR: usize> {
    /// The weights.
    pub weights: Packed<NR>,
    /// Added to every row.
    pub bias: Vec<f32>,
}

/// What is done to the product besides adding the bias.
#[derive(Clone, Copy)]
pub enum Then<'a> {
    /// Nothing.
    Keep,
    /// The activation.
    Gelu,
    /// Adds these rows, one after another like those of the product.
    Add(&'a [f32]),
}

/// Rows of `MR` numbers, `MR` tokens side by side: what a kernel reads. Grows and is used again.
pub type Side<const MR: usize> = Vec<[f32; MR]>;

/// Packs up to `MR` rows of `wide` numbers at `first..first + steps`; rows that are wanting are zero.
#[inline(always)]
pub fn side_by_side<const MR: usize>(
    rows: &[f32],
    wide: usize,
    first: usize,
    steps: usize,
    to: &mut [[f32; MR]],
) {
    let count = (rows.len() / wide).min(MR);
    if count < MR {
        to[..steps].fill([0.0; MR]);
    }
    for (i, row) in rows.chunks_exact(wide).take(count).enumerate() {
        for (step, value) in to.iter_mut().zip(&row[first..first + steps]) {
            step[i] = *value;
        }
    }
}

/// `out = rows · weightsᵀ + bias`, and what `then` says, for these panels of the weights. `rows` is `[n, width]`, `out` is
/// `[n, columns of the panels]`.
///
/// # Safety
/// See [`Kernel::tile`].
#[expect(unsafe_code, reason = "calls the kernel")]
#[inline(always)]
pub unsafe fn product<const MR: usize, const NR: usize>(
    kernel: impl Kernel<MR, NR>,
    rows: &[f32],
    linear: &Linear<NR>,
    panels: Range<usize>,
    then: Then<'_>,
    out: &mut [f32],
    side: &mut Side<MR>,
) {
    let (weights, bias) = (&linear.weights, &linear.bias);
    let (width, left) = (weights.width, panels.start * NR);
    let wide = (panels.end * NR).min(weights.out) - left;
    side.resize(ROWS.div_ceil(MR) * BLOCK.min(width), [0.0; MR]);
    let blocks = rows.chunks(ROWS * width).zip(out.chunks_mut(ROWS * wide)).enumerate();
    for (block, (rows, out)) in blocks {
        let then = match then {
            Then::Add(other) => Then::Add(&other[block * ROWS * wide..]),
            then => then,
        };
        for first in (0..width).step_by(BLOCK) {
            let steps = BLOCK.min(width - first);
            let ends = (first == 0, first + steps == width);
            for (rows, to) in rows.chunks(MR * width).zip(side.chunks_exact_mut(steps)) {
                side_by_side(rows, width, first, steps, to);
            }
            for panel in panels.clone() {
                let (b, column) = (weights.panel(first, panel), panel * NR - left);
                let columns = column..(column + NR).min(wide);
                let bias = &bias[left..][columns.clone()];
                for (at, a) in side.chunks_exact(steps).take((rows.len() / width).div_ceil(MR)).enumerate() {
                    out.chunks_exact(wide)
                        .skip(at * MR)
                        .take(MR)
                        .for_each(|row| kernel.soon(&row[columns.clone()]));
                    let mut tile = [[0.0; NR]; MR];
                    // SAFETY: the caller vouches for the instructions; both have `steps` steps.
                    unsafe { kernel.tile(a, b, &mut tile) };
                    let out = out.chunks_exact_mut(wide).skip(at * MR).zip(&mut tile);
                    for (i, (row, sums)) in out.enumerate() {
                        let other = match then {
                            Then::Add(other) => &other[(at * MR + i) * wide..][columns.clone()],
                            Then::Keep | Then::Gelu => &[],
                        };
                        finish(&mut row[columns.clone()], sums, ends, bias, then, other);
                    }
                }
            }
        }
    }
}

/// One row of a tile into the output.
#[inline(always)]
fn finish<const NR: usize>(
    row: &mut [f32],
    sums: &mut [f32; NR],
    (is_first, is_last): (bool, bool),
    bias: &[f32],
    then: Then<'_>,
    other: &[f32],
) {
    if !is_first {
        sums.iter_mut().zip(&*row).for_each(|(sum, value)| *sum += value);
    }
    if is_last {
        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
        match then {
            Then::Keep => {}
            Then::Gelu => sums.iter_mut().for_each(|sum| *sum = math::gelu(*sum)),
            Then::Add(_) => sums.iter_mut().zip(other).for_each(|(sum, other)| *sum += other),
        }
    }
    row.copy_from_slice(&sums[..row.len()]);
}
