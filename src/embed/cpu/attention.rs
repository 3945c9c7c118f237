//! Attention of one text over itself, head by head and some queries at a time: memory grows with the text's length, not with
//! its square.
//!
//! Everything is computed lying down: a column is a query and a row a key. So the scores of a few queries are, as they come out
//! of the kernel, the columns of the next product, and softmax runs over columns side by side.

use super::{
    kernel::Tiles,
    product::{Tile, side_by_side},
};
use crate::embed::math;

/// A kernel that takes rows and columns as they are packed.
pub trait Plain<const MR: usize, const NR: usize>:
    Tiles<f32, MR, NR, Row = f32, Columns = [f32; NR]>
{
}

impl<K: Tiles<f32, MR, NR, Row = f32, Columns = [f32; NR]>, const MR: usize, const NR: usize> Plain<MR, NR>
    for K
{
}

/// What attention works in; grows and is used again.
#[derive(Default)]
pub struct Room<const MR: usize, const NR: usize> {
    /// Strips of keys, a step a number of the head.
    keys: Vec<[f32; MR]>,
    /// Strips of numbers of the head, a step a token.
    values: Vec<[f32; MR]>,
    /// A step a number of the head.
    queries: Vec<[f32; NR]>,
    /// Scores, then what they are the powers of, a step a token.
    shares: Vec<[f32; NR]>,
}

/// The heads of a model.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// How many.
    pub count: usize,
    /// Numbers in each.
    pub width: usize,
}

/// `qkv` is `[n, 3 · width]` of one text, the query's part scaled; `out` is `[m, width]` of its tokens from `first` on.
///
/// # Safety
/// See [`Tiles::tile`].
#[expect(unsafe_code, reason = "calls the kernel")]
#[inline(always)]
pub unsafe fn attention<K: Plain<MR, NR>, const MR: usize, const NR: usize>(
    kernel: K,
    heads: Heads,
    qkv: &[f32],
    first: usize,
    out: &mut [f32],
    room: &mut Room<MR, NR>,
) {
    let width = heads.count * heads.width;
    let wide = 3 * width;
    let n = qkv.len() / wide;
    debug_assert!(first + out.len() / width <= n && qkv.len() == n * wide && out.len().is_multiple_of(width));
    let Room { keys, values, queries, shares } = room;
    keys.resize(n.div_ceil(MR) * heads.width, [0.0; MR]);
    values.resize(heads.width.div_ceil(MR) * n, [0.0; MR]);
    queries.resize(heads.width, [0.0; NR]);
    shares.resize(n, [0.0; NR]);
    let mut tile = Tile([[0.0; NR]; MR]);
    for head in 0..heads.count {
        let at = |part: usize| part * width + head * heads.width;
        for (rows, keys) in qkv.chunks(MR * wide).zip(keys.chunks_exact_mut(heads.width)) {
            side_by_side(kernel, rows, wide, at(1)..at(1) + heads.width, keys, &mut [0.0; MR]);
        }
        for (strip, values) in values.chunks_exact_mut(n).enumerate() {
            let numbers = at(2) + strip * MR..at(2) + (strip * MR + MR).min(heads.width);
            for (row, values) in qkv.chunks_exact(wide).zip(values) {
                values[..numbers.len()].copy_from_slice(&row[numbers.clone()]);
            }
        }
        for (rows, out) in qkv[first * wide..].chunks(NR * wide).zip(out.chunks_mut(NR * width)) {
            let count = out.len() / width;
            for (i, row) in rows.chunks_exact(wide).take(count).enumerate() {
                queries.iter_mut().zip(&row[at(0)..]).for_each(|(step, number)| step[i] = *number);
            }
            let mut tops = [f32::NEG_INFINITY; NR];
            for (keys, scores) in keys.chunks_exact(heads.width).zip(shares.chunks_mut(MR)) {
                // SAFETY: the caller vouches for the instructions; both have a step a number of the head.
                unsafe { kernel.tile(scores.len(), keys, queries, &mut tile.0) };
                scores.iter_mut().zip(&tile.0).for_each(|(scores, sums)| *scores = *sums);
                scores.iter().for_each(|scores| math::tops(&mut tops, scores));
            }
            let mut sums = [0.0; NR];
            shares.iter_mut().for_each(|scores| math::powers(scores, &tops, &mut sums));
            for (strip, values) in values.chunks_exact(n).enumerate() {
                let numbers = (heads.width - strip * MR).min(MR);
                // SAFETY: as above, with a step a token.
                unsafe { kernel.tile(numbers, values, shares, &mut tile.0) };
                let left = at(0) + strip * MR;
                for (i, row) in out.chunks_exact_mut(width).enumerate() {
                    for (number, sum) in row[left..left + numbers].iter_mut().zip(&tile.0) {
                        *number = sum[i] / sums[i];
                    }
                }
            }
        }
    }
}
