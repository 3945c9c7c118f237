//! Attention of one text over itself, head by head and a few queries at a time: memory grows with the text's length,
//! not with its square.

use super::{
    kernel::Tiles,
    product::{Tile, side_by_side},
};
use crate::embed::math;

/// What attention works in; grows and is used again.
pub struct Room<K: Tiles<f32, MR, NR>, const MR: usize, const NR: usize> {
    keys: Vec<[f32; NR]>,
    values: Vec<[f32; NR]>,
    key_columns: Vec<K::Columns>,
    value_columns: Vec<K::Columns>,
    side: Vec<[K::Row; MR]>,
    scores: Vec<f32>,
}

impl<K: Tiles<f32, MR, NR>, const MR: usize, const NR: usize> Default for Room<K, MR, NR> {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            values: Vec::new(),
            key_columns: Vec::new(),
            value_columns: Vec::new(),
            side: Vec::new(),
            scores: Vec::new(),
        }
    }
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
pub unsafe fn attention<K: Tiles<f32, MR, NR>, const MR: usize, const NR: usize>(
    kernel: K,
    heads: Heads,
    qkv: &[f32],
    first: usize,
    out: &mut [f32],
    room: &mut Room<K, MR, NR>,
) {
    let width = heads.count * heads.width;
    let n = qkv.len() / (3 * width);
    debug_assert!(qkv.len() == n * 3 * width && out.len().is_multiple_of(width), "whole rows");
    debug_assert!(first + out.len() / width <= n, "{first} and {} of {n} tokens", out.len() / width);
    let wide = n.next_multiple_of(NR);
    let Room { keys, values, key_columns, value_columns, side, scores } = room;
    let (head_steps, text_steps) = (heads.width.div_ceil(K::NUMBERS), n.div_ceil(K::NUMBERS));
    side.resize(head_steps.max(text_steps), [K::Row::default(); MR]);
    scores.resize(MR * wide, 0.0);
    let (mut tile, mut scales) = (Tile([[0.0; NR]; MR]), [0.0; MR]);
    for head in 0..heads.count {
        let at = |part: usize| part * width + head * heads.width;
        keys_of(qkv, 3 * width, at(1), heads.width, keys);
        values_of(qkv, 3 * width, at(2), heads.width, values);
        kernel.prepare(keys, heads.width, key_columns);
        kernel.prepare(values, n, value_columns);
        let (keys, values) = (K::prepared(keys, key_columns), K::prepared(values, value_columns));
        let queries = qkv[first * 3 * width..].chunks(MR * 3 * width);
        for (queries, out) in queries.zip(out.chunks_mut(MR * width)) {
            let rows = out.len() / width;
            let numbers = at(0)..at(0) + heads.width;
            let queries = &queries[..rows * 3 * width];
            side_by_side(kernel, queries, 3 * width, numbers, &mut side[..head_steps], &mut scales);
            let scores = &mut scores[..rows * wide];
            for (panel, keys) in keys.chunks_exact(head_steps).enumerate() {
                // SAFETY: the caller vouches for the instructions; both have the steps of a head.
                unsafe { kernel.tile(rows, &side[..head_steps], keys, &mut tile.0) };
                for (row, sums) in scores.chunks_exact_mut(wide).zip(&tile.0) {
                    row[panel * NR..][..NR].copy_from_slice(sums);
                }
            }
            scores.chunks_exact_mut(wide).for_each(|row| math::softmax(&mut row[..n]));
            side_by_side(kernel, scores, wide, 0..n, &mut side[..text_steps], &mut scales);
            for (panel, values) in values.chunks_exact(text_steps).enumerate() {
                // SAFETY: as above, with the steps of the text.
                unsafe { kernel.tile(rows, &side[..text_steps], values, &mut tile.0) };
                let columns = at(0) + panel * NR..at(0) + (panel * NR + NR).min(heads.width);
                for (row, sums) in out.chunks_exact_mut(width).zip(&tile.0) {
                    row[columns.clone()].copy_from_slice(&sums[..columns.len()]);
                }
            }
        }
    }
}

/// Keys as a packed matrix: panels of `NR` tokens, a step a number of the head.
#[inline(always)]
fn keys_of<const NR: usize>(qkv: &[f32], wide: usize, at: usize, head: usize, to: &mut Vec<[f32; NR]>) {
    let n = qkv.len() / wide;
    to.clear();
    to.resize(n.div_ceil(NR) * head, [0.0; NR]);
    for (token, row) in qkv.chunks_exact(wide).enumerate() {
        let panel = &mut to[token / NR * head..][..head];
        panel.iter_mut().zip(&row[at..at + head]).for_each(|(step, value)| step[token % NR] = *value);
    }
}

/// Values as a packed matrix: panels of `NR` numbers of the head, a step a token.
#[inline(always)]
fn values_of<const NR: usize>(qkv: &[f32], wide: usize, at: usize, head: usize, to: &mut Vec<[f32; NR]>) {
    let n = qkv.len() / wide;
    to.clear();
    to.resize(head.div_ceil(NR) * n, [0.0; NR]);
    for (token, row) in qkv.chunks_exact(wide).enumerate() {
        for (panel, values) in row[at..at + head].chunks(NR).enumerate() {
            to[panel * n + token][..values.len()].copy_from_slice(values);
        }
    }
}
