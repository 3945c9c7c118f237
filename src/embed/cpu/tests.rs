//! What every kernel computes, held against the definitions in f64, and integers against exact ones to the bit.

use super::{
    attention::Heads,
    finish::Then,
    isa::{Isa, Norm},
    kernel::Portable,
    packed::Packed,
    product::{Linear, Side, Weights},
};
use crate::embed::math;

/// A check of one kernel.
trait Check {
    fn on<I: Isa<MR, NR>, const MR: usize, const NR: usize>(&self, name: &str, isa: I);
}

/// On each kernel that this processor has, on AVX-512 with its integer instruction and without.
fn on_each_kernel(check: &impl Check) {
    check.on("portable", Portable);
    #[cfg(target_arch = "x86_64")]
    {
        use super::{
            amx::Amx,
            avx::{Avx2, Avx512},
        };

        if let Some(isa) = Avx2::detect() {
            check.on("avx2", isa);
        }
        if let Some(isa) = Avx512::detect() {
            check.on("avx512", isa);
            check.on("avx512 without VNNI", isa.without_vnni());
        }
        if let Some(isa) = Amx::detect() {
            check.on("amx", isa);
        }
    }
}

/// Rows, numbers in a row, columns: around the tiles of all kernels, blocks of 512 numbers, and more rows than go past the
/// weights together. Under Miri a few.
fn shapes() -> Vec<(usize, usize, usize)> {
    if cfg!(miri) {
        return vec![(1, 1, 1), (5, 3, 17), (2, 513, 1)];
    }
    let mut shapes = Vec::new();
    for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 23, 31, 32, 33, 49, 65] {
        for (width, out) in [(1, 1), (2, 3), (3, 15), (16, 16), (17, 31), (63, 32), (65, 33), (130, 100)] {
            shapes.push((n, width, out));
        }
    }
    shapes.extend([(3, 511, 7), (4, 512, 16), (5, 513, 48), (14, 1_025, 130), (2, 2_050, 65)]);
    // Large, then small again: what is left in the room of a thread must not matter.
    shapes.extend([(97, 20, 40), (193, 30, 17), (400, 600, 33), (33, 40, 70), (1, 2, 1)]);
    shapes
}

/// −1 to 1, of other sizes in each row, as activations are.
fn numbers(random: &mut fastrand::Rng, rows: usize, width: usize) -> Vec<f32> {
    let mut all = Vec::with_capacity(rows * width);
    for _ in 0..rows {
        let size = [1.0, 1.0, 0.02, 30.0][random.usize(..4)];
        all.extend((0..width).map(|_| size * (2.0 * random.f32() - 1.0)));
    }
    all
}

struct Product {
    rows: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    other: Vec<f32>,
    width: usize,
    out: usize,
}

impl Product {
    fn new((n, width, out): (usize, usize, usize), random: &mut fastrand::Rng) -> Self {
        Self {
            rows: numbers(random, n, width),
            weights: numbers(random, out, width),
            bias: numbers(random, 1, out),
            other: numbers(random, n, out),
            width,
            out,
        }
    }

    fn linear<const NR: usize>(&self, is_i16: bool) -> Linear<NR> {
        let weights = if is_i16 {
            Weights::I16(Packed::new(&self.weights, self.width))
        } else {
            Weights::F32(Packed::new(&self.weights, self.width))
        };
        Linear { weights, bias: self.bias.clone() }
    }

    /// Each output by the definition, from `dot`, before what follows it.
    fn each(&self, dot: impl Fn(&[f32], &[f32]) -> f64) -> Vec<f64> {
        let row =
            |row| self.weights.chunks_exact(self.width).map(|column| dot(row, column)).collect::<Vec<_>>();
        self.rows.chunks_exact(self.width).flat_map(row).collect()
    }
}

struct Floats;

impl Check for Floats {
    fn on<I: Isa<MR, NR>, const MR: usize, const NR: usize>(&self, name: &str, isa: I) {
        let (mut random, mut side) = (fastrand::Rng::with_seed(1), Side::default());
        for shape in shapes() {
            let case = Product::new(shape, &mut random);
            let exact = case.each(|x, y| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum());
            // What rounding each term of a sum can come to.
            let sizes = case.each(|x, y| x.iter().zip(y).map(|(x, y)| f64::from(x * y).abs()).sum());
            let linear = case.linear::<NR>(false);
            for then in [Then::Keep, Then::Gelu, Then::Add(&case.other)] {
                let mut out = vec![f32::NAN; exact.len()];
                isa.product(&case.rows, &linear, 0..linear.panels(), then, &mut out, &mut side);
                for (at, value) in out.iter().enumerate() {
                    let sum = exact[at] + f64::from(case.bias[at % case.out]);
                    let wanted = match then {
                        Then::Keep => sum,
                        Then::Gelu => f64::from(math::gelu(sum as f32)),
                        Then::Add(other) => sum + f64::from(other[at]),
                    };
                    let most = 1e-7 * (case.width as f64 * sizes[at] + 4.0 * (sum.abs() + wanted.abs()))
                        + 1e-6 * sum.abs();
                    let off = (f64::from(*value) - wanted).abs();
                    assert!(
                        off <= most,
                        "{name}, {shape:?}, at {at}: {value} for {wanted}, off by {off:e} of {most:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn f32_products_are_the_sums_at_every_shape() {
    on_each_kernel(&Floats);
}

/// Blocks of 512 numbers as integers with their scale, by the definition.
fn integers(numbers: &[f32]) -> Vec<(f32, Vec<i64>)> {
    let block = |numbers: &[f32]| {
        let top = numbers.iter().fold(1e-30_f32, |top, number| top.max(number.abs()));
        let factor = 2_047.0 / top;
        (top / 2_047.0, numbers.iter().map(|number| (number * factor).round_ties_even() as i64).collect())
    };
    numbers.chunks(512).map(block).collect()
}

struct Integers;

impl Check for Integers {
    fn on<I: Isa<MR, NR>, const MR: usize, const NR: usize>(&self, name: &str, isa: I) {
        let (mut random, mut side) = (fastrand::Rng::with_seed(2), Side::default());
        for shape in shapes() {
            let mut case = Product::new(shape, &mut random);
            if random.bool() {
                // The largest sums there are.
                case.rows.iter_mut().chain(&mut case.weights).for_each(|number| *number = number.signum());
            }
            let exact = case.each(|x, y| {
                let blocks = integers(x).into_iter().zip(integers(y));
                let sum = blocks.fold(None, |before: Option<f32>, ((scale, x), (column_scale, y))| {
                    let sum: i64 = x.iter().zip(&y).map(|(x, y)| x * y).sum();
                    let value = i32::try_from(sum).unwrap() as f32 * (scale * column_scale);
                    Some(before.map_or(value, |before| value + before))
                });
                f64::from(sum.unwrap())
            });
            let linear = case.linear::<NR>(true);
            for then in [Then::Keep, Then::Gelu, Then::Add(&case.other)] {
                let mut out = vec![f32::NAN; exact.len()];
                isa.product(&case.rows, &linear, 0..linear.panels(), then, &mut out, &mut side);
                for (at, value) in out.iter().enumerate() {
                    let sum = exact[at] as f32 + case.bias[at % case.out];
                    let wanted = match then {
                        Then::Keep => sum,
                        Then::Gelu => math::gelu(sum),
                        Then::Add(other) => sum + other[at],
                    };
                    assert_eq!(
                        value.to_bits(),
                        wanted.to_bits(),
                        "{name}, {shape:?}, at {at}: {value} for {wanted}"
                    );
                }
            }
        }
    }
}

#[test]
fn i16_products_are_exact_at_every_shape() {
    on_each_kernel(&Integers);
}

struct Parts;

impl Check for Parts {
    fn on<I: Isa<MR, NR>, const MR: usize, const NR: usize>(&self, name: &str, isa: I) {
        let (mut random, mut side) = (fastrand::Rng::with_seed(3), Side::default());
        for shape @ (n, width, out) in shapes() {
            let case = Product::new(shape, &mut random);
            for is_i16 in [false, true] {
                let linear = case.linear::<NR>(is_i16);
                let mut whole = vec![f32::NAN; n * out];
                isa.product(&case.rows, &linear, 0..linear.panels(), Then::Keep, &mut whole, &mut side);
                // Some of the columns, as threads share them.
                let (first, end) = (linear.panels() / 2, linear.panels());
                let columns = first * NR..out;
                let mut part = vec![f32::NAN; n * columns.len()];
                isa.product(&case.rows, &linear, first..end, Then::Keep, &mut part, &mut side);
                // And one row alone.
                let row = random.usize(..n);
                let mut alone = vec![f32::NAN; out];
                isa.product(
                    &case.rows[row * width..][..width],
                    &linear,
                    0..end,
                    Then::Keep,
                    &mut alone,
                    &mut side,
                );
                assert_eq!(alone, whole[row * out..][..out], "{name}, {shape:?}, {is_i16}: row {row}");
                for (whole, part) in whole.chunks_exact(out).zip(part.chunks_exact(columns.len())) {
                    assert_eq!(part, &whole[columns.clone()], "{name}, {shape:?}, {is_i16}");
                }
                // What is not finite stays in its row, and shows in all of it.
                let mut rows = case.rows.clone();
                rows[row * width + random.usize(..width)] =
                    [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.usize(..3)];
                let mut out_of_it = vec![0.0; n * out];
                isa.product(&rows, &linear, 0..end, Then::Keep, &mut out_of_it, &mut side);
                for (at, (bad, good)) in out_of_it.chunks_exact(out).zip(whole.chunks_exact(out)).enumerate()
                {
                    assert!(
                        if at == row { bad.iter().all(|x| !x.is_finite()) } else { bad == good },
                        "{name}, {shape:?}, {is_i16}"
                    );
                }
            }
        }
    }
}

#[test]
fn a01_a10_a_row_alone_a_part_of_the_columns_and_a_bad_neighbour_change_no_bit() {
    on_each_kernel(&Parts);
}

struct Attended;

impl Attended {
    /// By the definition, in f64.
    fn exact(heads: Heads, qkv: &[f32]) -> Vec<f64> {
        let width = heads.count * heads.width;
        let rows: Vec<&[f32]> = qkv.chunks_exact(3 * width).collect();
        let mut out = vec![0.0; rows.len() * width];
        for (i, query) in rows.iter().enumerate() {
            for head in 0..heads.count {
                let part = |row: &[f32], part: usize| {
                    row[part * width + head * heads.width..][..heads.width].to_vec()
                };
                let dot = |row: &&[f32]| {
                    part(query, 0).iter().zip(part(row, 1)).map(|(x, y)| f64::from(*x) * f64::from(y)).sum()
                };
                let scores: Vec<f64> = rows.iter().map(dot).collect();
                let top = scores.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - top).exp()).sum();
                for (row, score) in rows.iter().zip(scores) {
                    let share = (score - top).exp() / sum;
                    let to = &mut out[i * width + head * heads.width..][..heads.width];
                    to.iter_mut().zip(part(row, 2)).for_each(|(to, value)| *to += share * f64::from(value));
                }
            }
        }
        out
    }
}

impl Check for Attended {
    fn on<I: Isa<MR, NR>, const MR: usize, const NR: usize>(&self, name: &str, isa: I) {
        let (mut random, mut room) = (fastrand::Rng::with_seed(4), I::Room::default());
        let lengths: &[usize] =
            if cfg!(miri) { &[1, 17] } else { &[1, 2, 3, 5, 13, 16, 31, 33, 64, 65, 100, 12, 1] };
        for &n in lengths {
            for (count, wide) in [(1, 1), (2, 3), (3, 16), (2, 33), (1, 64)] {
                let (heads, width) = (Heads { count, width: wide }, count * wide);
                let qkv: Vec<f32> = (0..n * 3 * width).map(|_| 2.0 * random.f32() - 1.0).collect();
                let exact = Self::exact(heads, &qkv);
                // All of it, and the part of it that a second thread has.
                for first in [0, n / 2] {
                    let mut out = vec![f32::NAN; (n - first) * width];
                    isa.attention(heads, &qkv, first, &mut out, &mut room);
                    for (at, (value, wanted)) in out.iter().zip(&exact[first * width..]).enumerate() {
                        let off = (f64::from(*value) - wanted).abs();
                        assert!(
                            off <= 3e-6,
                            "{name}, {n} tokens, {heads:?}, from {first}, at {at}: off by {off:e}"
                        );
                    }
                }
            }
        }
        // A05: a long row of equal shares is still 1 in sum, so that equal values come out as they are. (All terms of a sum
        // are rounded one way here, 8,190 times, which comes to 3·10⁻⁵; a narrow sum would be off by 1.)
        let (n, width) = (if cfg!(miri) { 40 } else { 8_190 }, 3);
        let mut out = vec![f32::NAN; MR * width];
        isa.attention(
            Heads { count: 1, width },
            &[0.7; 3].repeat(n * width),
            n - MR.min(n),
            &mut out,
            &mut room,
        );
        assert!(out.iter().all(|value| (value - 0.7).abs() < 1e-4), "{name}: {out:?}");
    }
}

#[test]
fn a05_attention_is_the_definition_at_every_length() {
    on_each_kernel(&Attended);
}

struct Norms;

impl Check for Norms {
    fn on<I: Isa<MR, NR>, const MR: usize, const NR: usize>(&self, name: &str, isa: I) {
        let mut random = fastrand::Rng::with_seed(5);
        for width in [1, 7, 8, 9, 72, 130] {
            let norm = Norm {
                scale: numbers(&mut random, 1, width),
                shift: numbers(&mut random, 1, width),
                eps: 1e-5,
            };
            let rows = numbers(&mut random, 3, width);
            let mut out = rows.clone();
            isa.norm(&mut out, &norm);
            for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact(width)) {
                let row: Vec<f64> = row.iter().copied().map(f64::from).collect();
                let mean = row.iter().sum::<f64>() / width as f64;
                let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / width as f64;
                for (at, value) in out.iter().enumerate() {
                    let scaled = (row[at] - mean) / (variance + 1e-5).sqrt() * f64::from(norm.scale[at]);
                    let off = (f64::from(*value) - scaled - f64::from(norm.shift[at])).abs();
                    assert!(
                        off <= 1e-5 * f64::from(norm.scale[at].abs() + norm.shift[at].abs()),
                        "{name}, {width}: {off:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn each_row_is_normalised_as_defined() {
    on_each_kernel(&Norms);
}
