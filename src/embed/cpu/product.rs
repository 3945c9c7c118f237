//! Rows of tokens times a packed weight matrix, with what follows the product done while the numbers are at hand.

use std::ops::Range;

use super::{
    finish::{Place, Then, taken},
    kernel::{Kernel, Pair, Tiles},
    packed::Packed,
    step::Step,
};

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

/// What a product works in. Grows and is used again.
pub struct Side<K: Kernel<MR, NR>, const MR: usize, const NR: usize> {
    numbers: Beside<K, f32, MR, NR>,
    pairs: Beside<K, Pair, MR, NR>,
}

/// Tokens side by side as a kernel reads them, `MR` at a time, and the columns that they meet.
struct Beside<K: Tiles<T, MR, NR>, T: Step, const MR: usize, const NR: usize> {
    rows: Vec<[K::Row; MR]>,
    scales: Vec<[f32; MR]>,
    columns: Vec<Vec<K::Columns>>,
}

/// Sums of a tile, where lines of the cache begin.
#[repr(align(64))]
pub struct Tile<S, const MR: usize, const NR: usize>(pub [[S; NR]; MR]);

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

impl<K: Kernel<MR, NR>, const MR: usize, const NR: usize> Default for Side<K, MR, NR> {
    fn default() -> Self {
        Self { numbers: Beside::new(), pairs: Beside::new() }
    }
}

impl<K: Tiles<T, MR, NR>, T: Step, const MR: usize, const NR: usize> Beside<K, T, MR, NR> {
    const fn new() -> Self {
        Self { rows: Vec::new(), scales: Vec::new(), columns: Vec::new() }
    }
}

/// Packs up to `MR` rows of `wide` numbers at `numbers`; rows that are wanting are zero.
#[inline(always)]
pub fn side_by_side<K: Tiles<T, MR, NR>, T: Step, const MR: usize, const NR: usize>(
    _: K,
    rows: &[f32],
    wide: usize,
    numbers: Range<usize>,
    to: &mut [[K::Row; MR]],
    scales: &mut [f32; MR],
) {
    let count = (rows.len() / wide).min(MR);
    if count < MR {
        to.fill([K::Row::default(); MR]);
    }
    for (i, row) in rows.chunks_exact(wide).take(count).enumerate() {
        let row = &row[numbers.clone()];
        let (scale, factor) = T::scale(row);
        scales[i] = scale;
        K::spread(row, factor, i, to);
    }
}

/// `out = rows · weightsᵀ + bias`, and what `then` says, for these panels of the weights. `rows` is `[n, width]`, `out` is
/// `[n, columns of the panels]`.
///
/// # Safety
/// See [`Tiles::tile`].
#[expect(unsafe_code, reason = "calls the kernel")]
#[inline(always)]
pub unsafe fn product<K: Kernel<MR, NR>, const MR: usize, const NR: usize>(
    kernel: K,
    rows: &[f32],
    linear: &Linear<NR>,
    panels: Range<usize>,
    then: Then<'_>,
    out: &mut [f32],
    side: &mut Side<K, MR, NR>,
) {
    if cfg!(debug_assertions) {
        shapes_fit(rows, linear, &panels, then, out);
    }
    // SAFETY: the caller's.
    unsafe {
        match &linear.weights {
            Weights::F32(weights) => {
                packed(kernel, rows, (weights, &linear.bias), panels, then, out, &mut side.numbers);
            }
            Weights::I16(weights) => {
                packed(kernel, rows, (weights, &linear.bias), panels, then, out, &mut side.pairs);
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
unsafe fn packed<K: Tiles<T, MR, NR>, T: Step, const MR: usize, const NR: usize>(
    kernel: K,
    rows: &[f32],
    (weights, bias): (&Packed<T, NR>, &[f32]),
    panels: Range<usize>,
    then: Then<'_>,
    out: &mut [f32],
    Beside { rows: side, scales, columns: room }: &mut Beside<K, T, MR, NR>,
) {
    let (width, left) = (weights.width, panels.start * NR);
    let wide = (panels.end * NR).min(weights.out) - left;
    let block_numbers = T::BLOCK * T::NUMBERS;
    let n = rows.len() / width;
    let together = n.div_ceil(n.div_ceil(K::TOGETHER).max(1)).next_multiple_of(MR);
    let strips = together.div_ceil(MR);
    let each = block_numbers.min(width).div_ceil(K::NUMBERS);
    side.resize(K::BLOCKS * strips * each, [K::Row::default(); MR]);
    scales.resize(K::BLOCKS * strips, [0.0; MR]);
    room.resize_with(K::BLOCKS, Vec::new);
    let (mut sums, mut values) = (Tile([[T::Sum::default(); NR]; MR]), Tile([[0.0; NR]; MR]));
    let parts = rows.chunks(together * width).zip(out.chunks_mut(together * wide));
    for (part, (rows, out)) in parts.enumerate() {
        let then = match then {
            Then::Add(other) => Then::Add(&other[part * together * wide..]),
            then => then,
        };
        for first in (0..width).step_by(K::BLOCKS * block_numbers) {
            let last = (first + K::BLOCKS * block_numbers).min(width);
            let blocks =
                || (first..last).step_by(block_numbers).map(|at| at..(at + block_numbers).min(width));
            for ((numbers, side), scales) in
                blocks().zip(side.chunks_exact_mut(strips * each)).zip(scales.chunks_exact_mut(strips))
            {
                let steps = numbers.len().div_ceil(K::NUMBERS);
                let strips = side.chunks_exact_mut(steps).zip(scales);
                for (rows, (side, scales)) in rows.chunks(MR * width).zip(strips) {
                    side_by_side(kernel, rows, width, numbers.clone(), side, scales);
                }
            }
            for panel in panels.clone() {
                let packed = |at: usize| weights.panel(at / block_numbers, panel);
                for (numbers, room) in blocks().zip(&mut *room) {
                    let packed = packed(numbers.start);
                    kernel.prepare(packed, packed.len(), room);
                }
                let column = panel * NR - left;
                let columns = column..(column + NR).min(wide);
                let bias = taken::<NR>(&bias[left..][columns.clone()]);
                let here = out.len().div_ceil(MR * wide);
                for (strip, out) in out.chunks_mut(MR * wide).enumerate() {
                    out.chunks_exact(wide).for_each(|row| kernel.soon(&row[columns.clone()]));
                    if first > 0 {
                        kernel.before(out, wide, &columns, &mut values.0);
                    }
                    for (at, (numbers, room)) in blocks().zip(&*room).enumerate() {
                        if panel + 1 < panels.end {
                            let next = weights.panel(numbers.start / block_numbers, panel + 1);
                            let share = next.len().div_ceil(here);
                            next.chunks(share).skip(strip).take(1).for_each(|next| kernel.later(next));
                        }
                        let steps = numbers.len().div_ceil(K::NUMBERS);
                        let a = &side[at * strips * each..][strip * steps..][..steps];
                        let b = K::prepared(packed(numbers.start), room);
                        // SAFETY: the caller vouches for the instructions; both have `steps` steps.
                        unsafe { kernel.tile(out.len() / wide, a, b, &mut sums.0) };
                        let column_scales = weights.scales(numbers.start / block_numbers, panel);
                        let row_scales = &scales[at * strips + strip];
                        kernel.scaled(&sums.0, row_scales, column_scales, numbers.start == 0, &mut values.0);
                    }
                    let (bias, then) = match then {
                        _ if last < width => (&[0.0; NR], Then::Keep),
                        Then::Add(other) => (&bias, Then::Add(&other[strip * MR * wide..])),
                        then => (&bias, then),
                    };
                    let place = Place { out, wide, columns: columns.clone(), bias, then };
                    kernel.finish(place, &mut values.0);
                }
            }
        }
    }
}
