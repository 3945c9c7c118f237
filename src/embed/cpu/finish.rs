//! What follows the sums of a tile: scales, bias, activation, residual, and into the output.

use std::ops::Range;

use super::step::Step;
use crate::embed::math;

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

/// Where a tile's numbers go, and what is done to them on the way.
pub struct Place<'a, const NR: usize> {
    /// Rows of `wide` numbers.
    pub out: &'a mut [f32],
    /// Numbers in each.
    pub wide: usize,
    /// Which of them are the tile's.
    pub columns: Range<usize>,
    /// Added to every row.
    pub bias: &'a [f32; NR],
    /// Done after that, with rows like those of `out`.
    pub then: Then<'a>,
}

/// What is in the tile's place, of earlier blocks.
#[inline(always)]
pub fn before<const NR: usize>(out: &[f32], wide: usize, columns: &Range<usize>, values: &mut [[f32; NR]]) {
    for (row, values) in out.chunks_exact(wide).zip(values) {
        *values = taken(&row[columns.clone()]);
    }
}

/// Sums of a tile as the numbers they stand for, to what is there of earlier blocks.
#[inline(always)]
pub fn scaled<T: Step, const NR: usize>(
    sums: &[[T::Sum; NR]],
    row_scales: &[f32],
    column_scales: &[f32; NR],
    is_first: bool,
    values: &mut [[f32; NR]],
) {
    for ((sums, row_scale), values) in sums.iter().zip(row_scales).zip(values) {
        let mut now = [0.0; NR];
        for ((now, sum), column_scale) in now.iter_mut().zip(sums).zip(column_scales) {
            *now = T::value(*sum, row_scale * column_scale);
        }
        if !is_first {
            add(&mut now, values);
        }
        *values = now;
    }
}

/// A tile's numbers into their place.
#[inline(always)]
pub fn finish<const NR: usize>(place: Place<'_, NR>, values: &[[f32; NR]]) {
    let Place { out, wide, columns, bias, then } = place;
    for (i, (row, values)) in out.chunks_exact_mut(wide).zip(values).enumerate() {
        let row = &mut row[columns.clone()];
        let mut sums = *values;
        add(&mut sums, bias);
        match then {
            Then::Keep => {}
            Then::Gelu => sums.iter_mut().for_each(|sum| *sum = math::gelu(*sum)),
            Then::Add(other) => add(&mut sums, &taken(&other[i * wide..][columns.clone()])),
        }
        match row.first_chunk_mut::<NR>() {
            Some(row) => *row = sums,
            None => row.copy_from_slice(&sums[..row.len()]),
        }
    }
}

#[inline(always)]
fn add<const NR: usize>(sums: &mut [f32; NR], other: &[f32; NR]) {
    sums.iter_mut().zip(other).for_each(|(sum, value)| *sum += value);
}

/// The numbers of a tile's row, in one piece where there are enough: so that the compiler knows how many there are.
#[inline(always)]
pub fn taken<const NR: usize>(row: &[f32]) -> [f32; NR] {
    row.first_chunk::<NR>().copied().unwrap_or_else(|| {
        let mut taken = [0.0; NR];
        taken[..row.len()].copy_from_slice(row);
        taken
    })
}
