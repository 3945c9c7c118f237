//! The inner product of the whole encoder: a tile of up to `MR` rows by `NR` columns over a stretch of the common
//! dimension, held in registers. One form a set of instructions; all of them give the same numbers to the last few bits,
//! and the same integers to the bit.
#![expect(unsafe_code, reason = "instructions that not every processor has, and loads of whole vectors")]

use std::ops::Range;

use super::{
    finish::{self, Place},
    step::Step,
};

/// Two neighbours of the common dimension, as the integer instructions take them.
pub type Pair = [i16; 2];

/// A set of instructions, which computes tiles in both forms of numbers.
pub trait Kernel<const MR: usize, const NR: usize>: Tiles<f32, MR, NR> + Tiles<Pair, MR, NR> {
    /// Its name, as `model.kernel` spells it.
    const NAME: &'static str;

    /// Before the first tile of a thread's work.
    ///
    /// # Safety
    /// The processor has the instructions of this kernel; [`Kernel::end`] follows.
    #[inline(always)]
    unsafe fn start(self) {}

    /// After the last.
    ///
    /// # Safety
    /// [`Kernel::start`] went before.
    #[inline(always)]
    unsafe fn end(self) {}
}

/// Computes tiles of one form of numbers.
pub trait Tiles<T: Step, const MR: usize, const NR: usize>: Copy + Send + Sync + 'static {
    /// The numbers of one row in a step.
    type Row: Copy + Default + Send;

    /// The numbers of `NR` columns in a step.
    type Columns: Copy + Default + Send;

    /// Numbers of a row in a step of this kernel.
    const NUMBERS: usize;

    /// Rows that go past the weights together: a block of them stays in the second cache. A multiple of `MR`.
    const TOGETHER: usize;

    /// Blocks of the common dimension whose sums are added before they are put away.
    const BLOCKS: usize;

    /// Puts the numbers of a row, times `factor`, beside those of other rows: into place `at` of each step.
    fn spread(numbers: &[f32], factor: f32, at: usize, steps: &mut [[Self::Row; MR]]);

    /// Puts panels of `each` packed steps into `room` as this kernel takes them, all of one length, if that is not as they
    /// are.
    #[inline(always)]
    fn prepare(self, _packed: &[[T; NR]], _each: usize, _room: &mut Vec<Self::Columns>) {}

    /// What has been prepared.
    fn prepared<'a>(packed: &'a [[T; NR]], room: &'a [Self::Columns]) -> &'a [Self::Columns];

    /// `tile[i][j] = Σ a[k][i] · b[k][j]` for the first `rows` rows; what is in the others does not matter. The caller sees
    /// to it that no sum overflows.
    ///
    /// # Safety
    /// The processor has the instructions of this kernel, which has been started. `a` and `b` are as long as each other.
    unsafe fn tile(
        self,
        rows: usize,
        a: &[[Self::Row; MR]],
        b: &[Self::Columns],
        tile: &mut [[T::Sum; NR]; MR],
    );

    /// What is in the tile's place, of earlier blocks.
    #[inline(always)]
    fn before(self, out: &[f32], wide: usize, columns: &Range<usize>, values: &mut [[f32; NR]; MR]) {
        finish::before(out, wide, columns, values);
    }

    /// Sums of a tile as the numbers they stand for, to what is there of earlier blocks.
    #[inline(always)]
    fn scaled(
        self,
        sums: &[[T::Sum; NR]; MR],
        row_scales: &[f32; MR],
        column_scales: &[f32; NR],
        is_first: bool,
        values: &mut [[f32; NR]; MR],
    ) {
        finish::scaled::<T, NR>(sums, row_scales, column_scales, is_first, values);
    }

    /// A tile's numbers into their place.
    #[inline(always)]
    fn finish(self, place: Place<'_, NR>, values: &mut [[f32; NR]; MR]) {
        finish::finish(place, values);
    }

    /// Asks for numbers that are needed soon.
    #[inline(always)]
    fn soon(self, _: &[f32]) {}

    /// Asks for weights that are needed after some tiles.
    #[inline(always)]
    fn later(self, _: &[[T; NR]]) {}
}

/// What kernels have in common that take rows and columns as they are packed.
macro_rules! as_packed {
    ($t:ty, $mr:literal, $nr:literal, $together:literal) => {
        type Row = $t;
        type Columns = [$t; $nr];
        const NUMBERS: usize = <$t as Step>::NUMBERS;
        const TOGETHER: usize = $together;
        const BLOCKS: usize = 1;

        #[inline(always)]
        fn spread(numbers: &[f32], factor: f32, at: usize, steps: &mut [[$t; $mr]]) {
            <$t as Step>::spread(numbers, factor, at, steps);
        }

        #[inline(always)]
        fn prepared<'a>(packed: &'a [[$t; $nr]], _: &'a [[$t; $nr]]) -> &'a [[$t; $nr]] {
            packed
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use as_packed;

/// Plain Rust, for any processor.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Kernel<4, 16> for Portable {
    const NAME: &'static str = "portable";
}

impl Tiles<f32, 4, 16> for Portable {
    as_packed!(f32, 4, 16, 96);

    #[inline]
    unsafe fn tile(self, _: usize, a: &[[f32; 4]], b: &[[f32; 16]], tile: &mut [[f32; 16]; 4]) {
        debug_assert_eq!(a.len(), b.len());
        let mut sums = [[0.0_f32; 16]; 4];
        for (a, b) in a.iter().zip(b) {
            for (row, &x) in sums.iter_mut().zip(a) {
                row.iter_mut().zip(b).for_each(|(sum, &y)| *sum += x * y);
            }
        }
        *tile = sums;
    }
}

impl Tiles<Pair, 4, 16> for Portable {
    as_packed!(Pair, 4, 16, 192);

    #[inline]
    unsafe fn tile(self, _: usize, a: &[[Pair; 4]], b: &[[Pair; 16]], tile: &mut [[i32; 16]; 4]) {
        debug_assert_eq!(a.len(), b.len());
        let mut sums = [[0_i32; 16]; 4];
        for (a, b) in a.iter().zip(b) {
            for (row, x) in sums.iter_mut().zip(a) {
                for (sum, y) in row.iter_mut().zip(b) {
                    *sum += i32::from(x[0]) * i32::from(y[0]) + i32::from(x[1]) * i32::from(y[1]);
                }
            }
        }
        *tile = sums;
    }
}
