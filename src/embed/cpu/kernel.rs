//! The inner product of the whole encoder: a tile of `MR` rows by `NR` columns over a stretch of the common dimension,
//! held in registers. One form a set of instructions; all of them give the same numbers to the last few bits.
#![expect(unsafe_code, reason = "instructions that not every processor has, and loads of whole vectors")]

/// Computes tiles. `a` holds `MR` numbers a step, `b` holds `NR`.
pub trait Kernel<const MR: usize, const NR: usize>: Copy {
    /// `tile[i][j] = Σ a[k][i] · b[k][j]`.
    ///
    /// # Safety
    /// The processor has the instructions of this kernel, and the caller is compiled for them. `a` and `b` are as long
    /// as each other.
    unsafe fn tile(self, a: &[[f32; MR]], b: &[[f32; NR]], tile: &mut [[f32; NR]; MR]);

    /// Asks for numbers that are needed soon.
    fn soon(self, _: &[f32]) {}
}

/// Plain Rust, for any processor.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl Kernel<4, 16> for Portable {
    #[inline(always)]
    unsafe fn tile(self, a: &[[f32; 4]], b: &[[f32; 16]], tile: &mut [[f32; 16]; 4]) {
        let mut sums = [[0.0_f32; 16]; 4];
        for (a, b) in a.iter().zip(b) {
            for (row, &x) in sums.iter_mut().zip(a) {
                row.iter_mut().zip(b).for_each(|(sum, &y)| *sum += x * y);
            }
        }
        *tile = sums;
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_storeu_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    };

    use super::Kernel;

    /// AVX2 and FMA: 6 × 16 in twelve registers of eight.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    /// AVX-512F: 12 × 32 in twenty-four registers of sixteen.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512(());

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
            (has && Avx2::detect().is_some()).then_some(Self(()))
        }
    }

    /// How many steps ahead of use the columns are asked for.
    const AHEAD: usize = 16;

    impl Kernel<6, 16> for Avx2 {
        #[inline(always)]
        fn soon(self, numbers: &[f32]) {
            for line in numbers.chunks(16) {
                // SAFETY: a hint; it reads nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
            }
        }

        #[inline(always)]
        unsafe fn tile(self, a: &[[f32; 6]], b: &[[f32; 16]], tile: &mut [[f32; 16]; 6]) {
            // SAFETY: the caller vouches for the instructions; every load and store is of a whole array.
            unsafe {
                let mut sums = [[_mm256_setzero_ps(); 2]; 6];
                for (a, b) in a.iter().zip(b) {
                    _mm_prefetch::<_MM_HINT_T0>(b.as_ptr().wrapping_add(16 * AHEAD).cast());
                    let columns = [_mm256_loadu_ps(b.as_ptr()), _mm256_loadu_ps(b.as_ptr().add(8))];
                    for (row, &x) in sums.iter_mut().zip(a) {
                        let x = _mm256_set1_ps(x);
                        row[0] = _mm256_fmadd_ps(x, columns[0], row[0]);
                        row[1] = _mm256_fmadd_ps(x, columns[1], row[1]);
                    }
                }
                for (to, row) in tile.iter_mut().zip(sums) {
                    _mm256_storeu_ps(to.as_mut_ptr(), row[0]);
                    _mm256_storeu_ps(to.as_mut_ptr().add(8), row[1]);
                }
            }
        }
    }

    impl Kernel<12, 32> for Avx512 {
        #[inline(always)]
        fn soon(self, numbers: &[f32]) {
            for line in numbers.chunks(16) {
                // SAFETY: a hint; it reads nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
            }
        }

        #[inline(always)]
        unsafe fn tile(self, a: &[[f32; 12]], b: &[[f32; 32]], tile: &mut [[f32; 32]; 12]) {
            // SAFETY: as above.
            unsafe {
                let mut sums = [[_mm512_setzero_ps(); 2]; 12];
                for (a, b) in a.iter().zip(b) {
                    let ahead = b.as_ptr().wrapping_add(32 * AHEAD);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(16).cast());
                    let columns = [_mm512_loadu_ps(b.as_ptr()), _mm512_loadu_ps(b.as_ptr().add(16))];
                    for (row, &x) in sums.iter_mut().zip(a) {
                        let x = _mm512_set1_ps(x);
                        row[0] = _mm512_fmadd_ps(x, columns[0], row[0]);
                        row[1] = _mm512_fmadd_ps(x, columns[1], row[1]);
                    }
                }
                for (to, row) in tile.iter_mut().zip(sums) {
                    _mm512_storeu_ps(to.as_mut_ptr(), row[0]);
                    _mm512_storeu_ps(to.as_mut_ptr().add(16), row[1]);
                }
            }
        }
    }
}
