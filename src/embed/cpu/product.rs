//! Rows of tokens times a packed weight matrix, with what follows the product done while the numbers are at hand.

use std::ops::Range;

use super::{
    kernel::{Kernel, Pair},
    packed::Packed,
    step::Step,
};
use crate::embed::math;

/// A matrix multiplication with bias.
pub struct Linear<const NR: usize> {
    /// The weights.
    pub weights: Weights<NR>,
    /// Added to every row.
    pub bias: Vec<f32>,
}

/// Weights in the form of the arithmetic.
pub enum Weights<const NR: usize> {
    /// `model.compute = "f32"`.
    F32(Packed<f32, NR>),
    /// `model.compute = "i16"`.
    I16(Packed<Pair, NR>),
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

/// Tokens side by side as a kernel reads them, `MR` at a time. Grows and is used again.
pub struct Side<const MR: usize> {
    numbers: Vec<[f32; MR]>,
    pairs: Vec<[Pair; MR]>,
    scales: Vec<[f32; MR]>,
}

impl<const NR: usize> Linear<NR> {
    /// Numbers a row of input has.
    pub const fn width(&self) -> usize {
        match &self.weights {
            Weights::F32(packed) => packed.width,
            Weights::I16(packed) => packed.width,
        }
    }

    /// Numbers a row of output has.
    pub const fn out(&self) -> usize {
        self.bias.len()
    }

    /// Panels of a block of the weights.
    pub const fn panels(&self) -> usize {
        self.out().div_ceil(NR)
    }
}

impl<const MR: usize> Default for Side<MR> {
    fn default() -> Self {
        Self { numbers: Vec::new(), pairs: Vec::new(), scales: Vec::new() }
    }
}

/// Packs up to `MR` rows of `wide` numbers at `numbers`; rows that are wanting are zero.
#[inline(always)]
pub fn side_by_side<T: Step, const MR: usize>(
    rows: &[f32],
    wide: usize,
    numbers: Range<usize>,
    to: &mut [[T; MR]],
    scales: &mut [f32; MR],
) {
    let count = (rows.len() / wide).min(MR);
    if count < MR {
        to.fill([T::default(); MR]);
    }
    for (i, row) in rows.chunks_exact(wide).take(count).enumerate() {
        let row = &row[numbers.clone()];
        let (scale, factor) = T::scale(row);
        scales[i] = scale;
        T::spread(row, factor, i, to);
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
    if cfg!(debug_assertions) {
        shapes_fit(rows, linear, &panels, then, out);
    }
    let Side { numbers, pairs, scales } = side;
    // SAFETY: the caller's.
    unsafe {
        match &linear.weights {
            Weights::F32(weights) => {
                packed(kernel, rows, (weights, &linear.bias), panels, then, out, (numbers, scales));
            }
            Weights::I16(weights) => {
                packed(kernel, rows, (weights, &linear.bias), panels, then, out, (pairs, scales));
            }
        }
    }
}

/// A shape that does not fit would leave rows or columns uncomputed without a word.
fn shapes_fit<const NR: usize>(
    rows: &[f32],
    linear: &Linear<NR>,
    panels: &Range<usize>,
    then: Then<'_>,
    out: &[f32],
) {
    let (n, wide) = (rows.len() / linear.width(), (panels.end * NR).min(linear.out()) - panels.start * NR);
    assert_eq!(rows.len(), n * linear.width(), "whole rows");
    assert!(panels.end <= linear.panels(), "{panels:?} of {}", linear.panels());
    assert_eq!(out.len(), n * wide, "{n} rows of {wide} columns");
    assert!(!matches!(then, Then::Add(other) if other.len() < out.len()), "rows to add");
}

#[expect(unsafe_code, reason = "calls the kernel")]
#[inline(always)]
unsafe fn packed<K: Kernel<MR, NR>, T: Step, const MR: usize, const NR: usize>(
    kernel: K,
    rows: &[f32],
    (weights, bias): (&Packed<T, NR>, &[f32]),
    panels: Range<usize>,
    then: Then<'_>,
    out: &mut [f32],
    (side, scales): (&mut Vec<[T; MR]>, &mut Vec<[f32; MR]>),
) {
    let (width, left) = (weights.width, panels.start * NR);
    let wide = (panels.end * NR).min(weights.out) - left;
    let together = K::SIDE / T::BLOCK / MR * MR;
    let strips = together.min(rows.len() / width).div_ceil(MR);
    side.resize(strips * T::BLOCK, [T::default(); MR]);
    scales.resize(strips, [0.0; MR]);
    let mut sums = [[T::Sum::default(); NR]; MR];
    for (part, (rows, out)) in rows.chunks(together * width).zip(out.chunks_mut(together * wide)).enumerate()
    {
        let then = match then {
            Then::Add(other) => Then::Add(&other[part * together * wide..]),
            then => then,
        };
        for (block, first) in (0..width).step_by(T::BLOCK * T::NUMBERS).enumerate() {
            let numbers = first..(first + T::BLOCK * T::NUMBERS).min(width);
            let ends = (first == 0, numbers.end == width);
            let steps = numbers.len().div_ceil(T::NUMBERS);
            let strips = rows.chunks(MR * width).zip(side.chunks_exact_mut(steps)).zip(scales.iter_mut());
            for ((rows, side), scales) in strips {
                side_by_side(rows, width, numbers.clone(), side, scales);
            }
            for panel in panels.clone() {
                let (b, column_scales) = (weights.panel(block, panel), weights.scales(block, panel));
                let column = panel * NR - left;
                let columns = column..(column + NR).min(wide);
                let bias = taken::<NR>(&bias[left..][columns.clone()]);
                let strips =
                    out.chunks_mut(MR * wide).zip(side.chunks_exact(steps)).zip(&*scales).enumerate();
                for (strip, ((out, a), row_scales)) in strips {
                    out.chunks_exact(wide).for_each(|row| kernel.soon(&row[columns.clone()]));
                    // SAFETY: the caller vouches for the instructions; both have `steps` steps.
                    unsafe { T::tile(kernel, out.len() / wide, a, b, &mut sums) };
                    let rows = out.chunks_exact_mut(wide).zip(&sums).zip(row_scales).enumerate();
                    for (i, ((row, sums), row_scale)) in rows {
                        let mut values = [0.0; NR];
                        for ((value, sum), column_scale) in values.iter_mut().zip(sums).zip(column_scales) {
                            *value = T::value(*sum, row_scale * column_scale);
                        }
                        let other = match then {
                            Then::Add(other) => &other[(strip * MR + i) * wide..][columns.clone()],
                            Then::Keep | Then::Gelu => &[],
                        };
                        finish(&mut row[columns.clone()], values, ends, &bias, then, other);
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
    mut sums: [f32; NR],
    (is_first, is_last): (bool, bool),
    bias: &[f32; NR],
    then: Then<'_>,
    other: &[f32],
) {
    if !is_first {
        add(&mut sums, &taken(row));
    }
    if is_last {
        add(&mut sums, bias);
        match then {
            Then::Keep => {}
            Then::Gelu => sums.iter_mut().for_each(|sum| *sum = math::gelu(*sum)),
            Then::Add(_) => add(&mut sums, &taken(other)),
        }
    }
    match row.first_chunk_mut::<NR>() {
        Some(row) => *row = sums,
        None => row.copy_from_slice(&sums[..row.len()]),
    }
}

#[inline(always)]
fn add<const NR: usize>(sums: &mut [f32; NR], other: &[f32; NR]) {
    sums.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
}

/// The numbers of a tile's row, in one piece where there are enough: so that the compiler knows how many there are.
#[inline(always)]
fn taken<const NR: usize>(row: &[f32]) -> [f32; NR] {
    row.first_chunk::<NR>().copied().unwrap_or_else(|| {
        let mut taken = [0.0; NR];
        taken[..row.len()].copy_from_slice(row);
        taken
    })
}
