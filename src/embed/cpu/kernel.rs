//! The inner product of the whole encoder: a tile of up to `MR` rows by `NR` columns over a stretch of the common
//! dimension, held in registers. One form a set of instructions; all of them give the same numbers to the last few bits,
//! and the same integers to the bit.
#![expect(unsafe_code, reason = "instructions that not every processor has, and loads of whole vectors")]

use super::{
    finish::{self as plain, Place},
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

    /// Sums of a tile as the numbers they stand for, to what is there of earlier blocks.
    fn scaled(
        self,
        sums: &[[T::Sum; NR]; MR],
        row_scales: &[f32; MR],
        column_scales: &[f32; NR],
        is_first: bool,
        values: &mut [[f32; NR]; MR],
    );

    /// A tile's numbers into their place.
    fn finish(self, place: Place<'_, NR>, values: &mut [[f32; NR]; MR]);

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

/// The sums of a tile as numbers, and into their place, by the functions of this module.
macro_rules! finish_by {
    ($module:ident, f32, $mr:literal, $nr:literal) => {
        #[inline(always)]
        fn scaled(
            self,
            sums: &[[f32; $nr]; $mr],
            _: &[f32; $mr],
            _: &[f32; $nr],
            is_first: bool,
            values: &mut [[f32; $nr]; $mr],
        ) {
            // SAFETY: `self` exists only where the processor has what is needed.
            unsafe { $module::added(sums, is_first, values) };
        }
        finish_by!($module, $mr, $nr);
    };
    ($module:ident, Pair, $mr:literal, $nr:literal) => {
        #[inline(always)]
        fn scaled(
            self,
            sums: &[[i32; $nr]; $mr],
            row_scales: &[f32; $mr],
            column_scales: &[f32; $nr],
            is_first: bool,
            values: &mut [[f32; $nr]; $mr],
        ) {
            // SAFETY: as above.
            unsafe { $module::scaled(sums, row_scales, column_scales, is_first, values) };
        }
        finish_by!($module, $mr, $nr);
    };
    ($module:ident, $mr:literal, $nr:literal) => {
        #[inline(always)]
        fn finish(self, place: Place<'_, $nr>, values: &mut [[f32; $nr]; $mr]) {
            // SAFETY: as above.
            unsafe { $module::finish(place, values) };
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use finish_by;

/// Plain Rust, for any processor.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Kernel<4, 16> for Portable {
    const NAME: &'static str = "portable";
}

impl Tiles<f32, 4, 16> for Portable {
    as_packed!(f32, 4, 16, 96);
    finish_by!(plain, f32, 4, 16);

    #[inline]
    unsafe fn tile(self, _: usize, a: &[[f32; 4]], b: &[[f32; 16]], tile: &mut [[f32; 16]; 4]) {
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
    finish_by!(plain, Pair, 4, 16);

    #[inline]
    unsafe fn tile(self, _: usize, a: &[[Pair; 4]], b: &[[Pair; 16]], tile: &mut [[i32; 16]; 4]) {
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

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512, ask_for, ask_later};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, __m512i, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm256_add_epi32, _mm256_fmadd_ps,
        _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32, _mm256_set1_ps,
        _mm256_setzero_ps, _mm256_setzero_si256, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_add_epi32,
        _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps,
        _mm512_storeu_si512,
    };

    use super::{super::wide, Kernel, Pair, Place, Step, Tiles, plain};

    /// AVX2 and FMA: 6 × 16 in twelve registers of eight.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    /// AVX-512: 12 × 32 in twenty-four registers of sixteen.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512 {
        /// Whether it multiplies and adds pairs in one instruction.
        vnni: bool,
    }

    impl Avx2 {
        /// Where the processor has it.
        pub fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
        }
    }

    impl Avx512 {
        /// Where the processor has it.
        pub fn detect() -> Option<Self> {
            let has = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl");
            let vnni = is_x86_feature_detected!("avx512vnni");
            (has && Avx2::detect().is_some()).then_some(Self { vnni })
        }
    }

    /// How many steps ahead of use the columns are asked for.
    const AHEAD: usize = 16;

    /// Asks for the cache line at `address`; a hint that reads nothing.
    #[inline(always)]
    fn ask<T>(address: *const T) {
        // SAFETY: every x86-64 has it, and it is allowed to name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }

    /// Asks for all the lines of `numbers`.
    #[inline(always)]
    pub fn ask_for(numbers: &[f32]) {
        numbers.chunks(16).for_each(|line| ask(line.as_ptr()));
    }

    /// Asks the second cache for all the lines of `numbers`.
    #[inline(always)]
    pub fn ask_later<T>(numbers: &[T]) {
        for line in numbers.chunks(64 / size_of::<T>()) {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
        }
    }

    /// A pair as the integer that is broadcast.
    #[inline(always)]
    fn bits(pair: Pair) -> i32 {
        i32::from_ne_bytes([
            pair[0].to_ne_bytes()[0],
            pair[0].to_ne_bytes()[1],
            pair[1].to_ne_bytes()[0],
            pair[1].to_ne_bytes()[1],
        ])
    }

    #[target_feature(enable = "avx2,fma")]
    fn tile256<const R: usize>(a: &[[f32; 6]], b: &[[f32; 16]], tile: &mut [[f32; 16]; 6]) {
        let mut sums = [[_mm256_setzero_ps(); 2]; R];
        for (a, b) in a.iter().zip(b) {
            ask(b.as_ptr().wrapping_add(16 * AHEAD));
            // SAFETY: sixteen numbers.
            let columns = unsafe { [_mm256_loadu_ps(b.as_ptr()), _mm256_loadu_ps(b.as_ptr().add(8))] };
            for (row, &x) in sums.iter_mut().zip(a) {
                let x = _mm256_set1_ps(x);
                row[0] = _mm256_fmadd_ps(x, columns[0], row[0]);
                row[1] = _mm256_fmadd_ps(x, columns[1], row[1]);
            }
        }
        for (to, row) in tile.iter_mut().zip(sums) {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), row[0]);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), row[1]);
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn tile256_i16<const R: usize>(a: &[[Pair; 6]], b: &[[Pair; 16]], tile: &mut [[i32; 16]; 6]) {
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        for (a, b) in a.iter().zip(b) {
            ask(b.as_ptr().wrapping_add(16 * AHEAD));
            let b: *const __m256i = b.as_ptr().cast();
            // SAFETY: sixteen pairs.
            let columns = unsafe { [_mm256_loadu_si256(b), _mm256_loadu_si256(b.add(1))] };
            for (row, &x) in sums.iter_mut().zip(a) {
                let x = _mm256_set1_epi32(bits(x));
                row[0] = _mm256_add_epi32(row[0], _mm256_madd_epi16(x, columns[0]));
                row[1] = _mm256_add_epi32(row[1], _mm256_madd_epi16(x, columns[1]));
            }
        }
        for (to, row) in tile.iter_mut().zip(sums) {
            let to: *mut __m256i = to.as_mut_ptr().cast();
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_si256(to, row[0]);
                _mm256_storeu_si256(to.add(1), row[1]);
            }
        }
    }

    impl Kernel<6, 16> for Avx2 {
        const NAME: &'static str = "avx2";
    }

    impl Tiles<f32, 6, 16> for Avx2 {
        as_packed!(f32, 6, 16, 96);
        finish_by!(plain, f32, 6, 16);

        #[inline(always)]
        fn soon(self, numbers: &[f32]) {
            ask_for(numbers);
        }

        #[inline(always)]
        unsafe fn tile(self, rows: usize, a: &[[f32; 6]], b: &[[f32; 16]], tile: &mut [[f32; 16]; 6]) {
            // SAFETY: the caller vouches for the instructions.
            unsafe {
                match rows {
                    1..=2 => tile256::<2>(a, b, tile),
                    3..=4 => tile256::<4>(a, b, tile),
                    _ => tile256::<6>(a, b, tile),
                }
            }
        }
    }

    impl Tiles<Pair, 6, 16> for Avx2 {
        as_packed!(Pair, 6, 16, 192);
        finish_by!(plain, Pair, 6, 16);

        #[inline(always)]
        fn soon(self, numbers: &[f32]) {
            ask_for(numbers);
        }

        #[inline(always)]
        unsafe fn tile(self, rows: usize, a: &[[Pair; 6]], b: &[[Pair; 16]], tile: &mut [[i32; 16]; 6]) {
            // SAFETY: as above.
            unsafe {
                match rows {
                    1..=2 => tile256_i16::<2>(a, b, tile),
                    3..=4 => tile256_i16::<4>(a, b, tile),
                    _ => tile256_i16::<6>(a, b, tile),
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
    fn tile512<const R: usize>(a: &[[f32; 12]], b: &[[f32; 32]], tile: &mut [[f32; 32]; 12]) {
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        for (a, b) in a.iter().zip(b) {
            let ahead = b.as_ptr().wrapping_add(32 * AHEAD);
            ask(ahead);
            ask(ahead.wrapping_add(16));
            // SAFETY: thirty-two numbers.
            let columns = unsafe { [_mm512_loadu_ps(b.as_ptr()), _mm512_loadu_ps(b.as_ptr().add(16))] };
            for (row, &x) in sums.iter_mut().zip(a) {
                let x = _mm512_set1_ps(x);
                row[0] = _mm512_fmadd_ps(x, columns[0], row[0]);
                row[1] = _mm512_fmadd_ps(x, columns[1], row[1]);
            }
        }
        for (to, row) in tile.iter_mut().zip(sums) {
            // SAFETY: as above.
            unsafe {
                _mm512_storeu_ps(to.as_mut_ptr(), row[0]);
                _mm512_storeu_ps(to.as_mut_ptr().add(16), row[1]);
            }
        }
    }

    /// The integer tile with `$add`, the sum of a register and the products of two others.
    macro_rules! tile512_i16 {
        ($name:ident, $features:literal, $add:expr) => {
            #[target_feature(enable = $features)]
            fn $name<const R: usize>(a: &[[Pair; 12]], b: &[[Pair; 32]], tile: &mut [[i32; 32]; 12]) {
                let mut sums = [[_mm512_setzero_si512(); 2]; R];
                for (a, b) in a.iter().zip(b) {
                    let ahead = b.as_ptr().wrapping_add(32 * AHEAD);
                    ask(ahead);
                    ask(ahead.wrapping_add(16));
                    let b: *const __m512i = b.as_ptr().cast();
                    // SAFETY: thirty-two pairs.
                    let columns = unsafe { [_mm512_loadu_si512(b), _mm512_loadu_si512(b.add(1))] };
                    for (row, &x) in sums.iter_mut().zip(a) {
                        let x = _mm512_set1_epi32(bits(x));
                        row[0] = $add(row[0], x, columns[0]);
                        row[1] = $add(row[1], x, columns[1]);
                    }
                }
                for (to, row) in tile.iter_mut().zip(sums) {
                    let to: *mut __m512i = to.as_mut_ptr().cast();
                    // SAFETY: as above.
                    unsafe {
                        _mm512_storeu_si512(to, row[0]);
                        _mm512_storeu_si512(to.add(1), row[1]);
                    }
                }
            }
        };
    }
    tile512_i16!(tile512_vnni, "avx512f,avx512dq,avx512bw,avx512vl,avx512vnni", _mm512_dpwssd_epi32);
    tile512_i16!(tile512_madd, "avx512f,avx512dq,avx512bw,avx512vl", |sum, x, y| _mm512_add_epi32(
        sum,
        _mm512_madd_epi16(x, y)
    ));

    impl Kernel<12, 32> for Avx512 {
        const NAME: &'static str = "avx512";
    }

    impl Tiles<f32, 12, 32> for Avx512 {
        as_packed!(f32, 12, 32, 264);
        finish_by!(wide, f32, 12, 32);

        #[inline(always)]
        fn soon(self, numbers: &[f32]) {
            ask_for(numbers);
        }

        #[inline(always)]
        unsafe fn tile(self, rows: usize, a: &[[f32; 12]], b: &[[f32; 32]], tile: &mut [[f32; 32]; 12]) {
            // SAFETY: the caller vouches for the instructions.
            unsafe {
                match rows {
                    1..=2 => tile512::<2>(a, b, tile),
                    3..=4 => tile512::<4>(a, b, tile),
                    5..=8 => tile512::<8>(a, b, tile),
                    _ => tile512::<12>(a, b, tile),
                }
            }
        }
    }

    impl Tiles<Pair, 12, 32> for Avx512 {
        as_packed!(Pair, 12, 32, 528);
        finish_by!(wide, Pair, 12, 32);

        #[inline(always)]
        fn soon(self, numbers: &[f32]) {
            ask_for(numbers);
        }

        #[inline(always)]
        unsafe fn tile(self, rows: usize, a: &[[Pair; 12]], b: &[[Pair; 32]], tile: &mut [[i32; 32]; 12]) {
            // SAFETY: as above; `vnni` is what was found.
            unsafe {
                match (self.vnni, rows) {
                    (true, 1..=4) => tile512_vnni::<4>(a, b, tile),
                    (true, 5..=8) => tile512_vnni::<8>(a, b, tile),
                    (true, _) => tile512_vnni::<12>(a, b, tile),
                    (false, 1..=4) => tile512_madd::<4>(a, b, tile),
                    (false, 5..=8) => tile512_madd::<8>(a, b, tile),
                    (false, _) => tile512_madd::<12>(a, b, tile),
                }
            }
        }
    }
}
