//! Tiles by AVX2 and by AVX-512.
#![expect(unsafe_code, reason = "instructions that not every processor has, and loads of whole vectors")]

use std::{
    arch::x86_64::{
        __m256i, __m512i, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm256_add_epi32, _mm256_fmadd_ps,
        _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32, _mm256_set1_ps,
        _mm256_setzero_ps, _mm256_setzero_si256, _mm256_storeu_ps, _mm256_storeu_si256, _mm512_add_epi32,
        _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_madd_epi16,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_ps,
        _mm512_storeu_si512,
    },
    ops::Range,
};

use super::{
    finish::Place,
    kernel::{Kernel, Pair, Tiles, as_packed},
    step::Step,
    wide::{self, finish_wide},
};

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

    /// As on a processor that multiplies and adds pairs in two instructions.
    #[cfg(test)]
    pub const fn without_vnni(self) -> Self {
        Self { vnni: false }
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
    debug_assert_eq!(a.len(), b.len());
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
    debug_assert_eq!(a.len(), b.len());
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
    debug_assert_eq!(a.len(), b.len());
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
            debug_assert_eq!(a.len(), b.len());
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
    finish_wide!(f32, 12, 32);

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
    finish_wide!(Pair, 12, 32);

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
