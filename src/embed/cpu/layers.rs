//! The layers of BERT and XLM-R over packed tokens: no padding, so no mask. On one thread it computes straight on; on
//! several (one long text, or a short one alone) every step is shared among them.

use std::sync::{Mutex, PoisonError};

use rayon::{
    iter::{IndexedParallelIterator as _, IntoParallelRefMutIterator as _, ParallelIterator as _},
    slice::{ParallelSlice as _, ParallelSliceMut as _},
};

use super::{
    attention::Heads,
    buffers::{self, Buffers},
    finish::Then,
    isa::{Isa, Norm},
    product::{Linear, Side},
};

/// One layer.
pub struct Layer<const NR: usize> {
    /// Query, key and value in one; the query's part carries the scale `1/√d`.
    pub qkv: Linear<NR>,
    /// After attention.
    pub attended: Linear<NR>,
    /// And its normalisation.
    pub attended_norm: Norm,
    /// Into the feed-forward part.
    pub up: Linear<NR>,
    /// Out of it.
    pub down: Linear<NR>,
    /// And its normalisation.
    pub norm: Norm,
}

/// Rows of a thread that go through the feed-forward part together: the inner part is several times as wide.
const TOGETHER: usize = 512;

/// The same of all threads of the pool that this runs in.
fn together() -> usize {
    TOGETHER * rayon::current_num_threads()
}

/// What a thread works in.
struct Bench<I: Isa<MR, NR>, const MR: usize, const NR: usize> {
    side: Side<I, MR, NR>,
    room: I::Room,
}

/// The layers with their instructions.
pub struct Layers<I: Isa<MR, NR>, const MR: usize, const NR: usize> {
    isa: I,
    heads: Heads,
    layers: Vec<Layer<NR>>,
    benches: Mutex<Vec<Bench<I, MR, NR>>>,
}

impl<I: Isa<MR, NR>, const MR: usize, const NR: usize> Layers<I, MR, NR> {
    /// Layers of a model of `heads`.
    pub fn new(isa: I, heads: Heads, layers: Vec<Layer<NR>>) -> Self {
        Self { isa, heads, layers, benches: Mutex::default() }
    }

    /// Normalises rows.
    pub fn norm(&self, rows: &mut [f32], norm: &Norm) {
        self.isa.norm(rows, norm);
    }

    /// What a pass of so many tokens works in.
    pub fn room(&self, tokens: usize) -> buffers::Room {
        let width = self.heads.count * self.heads.width;
        let inner = self.layers.iter().map(|layer| layer.up.out()).max().unwrap_or(0);
        let rows = tokens.saturating_mul(width);
        buffers::Room {
            rows,
            qkv: rows.saturating_mul(3),
            mixed: rows,
            inner: tokens.min(together()).saturating_mul(inner),
        }
    }

    /// All layers over `buffers.rows`, which hold texts of these lengths one after another; the others have the room of as
    /// many tokens.
    pub fn run(&self, lengths: &[usize], buffers: &mut Buffers) {
        let width = self.heads.count * self.heads.width;
        let Buffers { rows, qkv, mixed, inner } = buffers;
        let n = rows.len() / width;
        for layer in &self.layers {
            self.product(rows, &layer.qkv, Then::Keep, &mut qkv[..n * 3 * width]);
            self.attention(lengths, qkv, &mut mixed[..n * width]);
            let attended = &mut qkv[..n * width];
            self.product(&mixed[..n * width], &layer.attended, Then::Add(rows), attended);
            self.isa.norm(attended, &layer.attended_norm);
            let together = together() * width;
            for (rows, attended) in rows.chunks_mut(together).zip(attended.chunks(together)) {
                let inner = &mut inner[..rows.len() / width * layer.up.out()];
                self.product(attended, &layer.up, Then::Gelu, inner);
                self.product(inner, &layer.down, Then::Add(attended), rows);
                self.isa.norm(rows, &layer.norm);
            }
        }
    }

    fn with_bench<T>(&self, work: impl FnOnce(&mut Bench<I, MR, NR>) -> T) -> T {
        let free = || self.benches.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = free().pop();
        let mut bench = kept.unwrap_or_else(|| Bench { side: Side::default(), room: I::Room::default() });
        let result = work(&mut bench);
        free().push(bench);
        result
    }

    /// Rows or columns shared among the threads of the pool that this runs in.
    fn product(&self, rows: &[f32], linear: &Linear<NR>, then: Then<'_>, out: &mut [f32]) {
        let (width, wide, panels) = (linear.width(), linear.out(), linear.panels());
        let (n, threads) = (rows.len() / width, rayon::current_num_threads());
        let part = |rows: &[f32], then: Then<'_>, out: &mut [f32]| {
            self.with_bench(|bench| self.isa.product(rows, linear, 0..panels, then, out, &mut bench.side));
        };
        if threads == 1 {
            part(rows, then, out);
        } else if n >= 2 * MR * threads {
            let share = n.div_ceil(threads).next_multiple_of(MR);
            let parts = rows.par_chunks(share * width).zip(out.par_chunks_mut(share * wide)).enumerate();
            parts.for_each(|(at, (rows, out))| {
                let then = match then {
                    Then::Add(other) => Then::Add(&other[at * share * wide..]),
                    then => then,
                };
                part(rows, then, out);
            });
        } else {
            self.by_columns(rows, linear, then, out);
        }
    }

    /// Too few rows to share: each thread has some of the columns, in a matrix of its own.
    fn by_columns(&self, rows: &[f32], linear: &Linear<NR>, then: Then<'_>, out: &mut [f32]) {
        let (width, wide, panels) = (linear.width(), linear.out(), linear.panels());
        let n = rows.len() / width;
        let share = panels.div_ceil(rayon::current_num_threads());
        let mut parts: Vec<(usize, Vec<f32>)> =
            (0..panels).step_by(share).map(|first| (first, Vec::new())).collect();
        let inside = if matches!(then, Then::Gelu) { Then::Gelu } else { Then::Keep };
        parts.par_iter_mut().for_each(|(first, part)| {
            let end = (*first + share).min(panels);
            part.resize(n * ((end * NR).min(wide) - *first * NR), 0.0);
            self.with_bench(|bench| {
                self.isa.product(rows, linear, *first..end, inside, part, &mut bench.side);
            });
        });
        for (first, part) in parts {
            let columns = part.len() / n;
            for (row, part) in out.chunks_exact_mut(wide).zip(part.chunks_exact(columns)) {
                row[first * NR..][..columns].copy_from_slice(part);
            }
        }
        if let Then::Add(other) = then {
            out.iter_mut().zip(other).for_each(|(value, other)| *value += other);
        }
    }

    fn attention(&self, lengths: &[usize], qkv: &[f32], out: &mut [f32]) {
        let width = self.heads.count * self.heads.width;
        let threads = rayon::current_num_threads();
        let (mut qkv, mut out) = (qkv, out);
        for &n in lengths {
            let (text, rest) = qkv.split_at(n * 3 * width);
            let (mixed, others) = out.split_at_mut(n * width);
            let part = |first: usize, mixed: &mut [f32]| {
                self.with_bench(|bench| self.isa.attention(self.heads, text, first, mixed, &mut bench.room));
            };
            if threads == 1 || n < 2 * MR * threads {
                part(0, mixed);
            } else {
                let share = n.div_ceil(threads).next_multiple_of(MR);
                let parts = mixed.par_chunks_mut(share * width).enumerate();
                parts.for_each(|(at, mixed)| part(at * share, mixed));
            }
            (qkv, out) = (rest, others);
        }
    }
}
