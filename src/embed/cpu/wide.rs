//! A tile's sums into the output by AVX-512: its 32 columns are two registers. What `finish.rs` does in plain Rust, which
//! compilers make too much of to be left to.
#![expect(unsafe_code, reason = "instructions that not every processor has, and loads of whole vectors")]

use std::{
    arch::x86_64::{
        __m512, __mmask16, _mm512_add_ps, _mm512_cvtepi32_ps, _mm512_loadu_ps, _mm512_loadu_si512,
        _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    },
    ops::Range,
};

use super::finish::{Place, Then};
use crate::embed::math;

/// What follows the sums of a tile, in a kernel of 32 columns.
macro_rules! finish_wide {
    (f32, $mr:literal, 32) => {
        #[inline(always)]
        fn scaled(
            self,
            sums: &[[f32; 32]; $mr],
            _: &[f32; $mr],
            _: &[f32; 32],
            is_first: bool,
            values: &mut [[f32; 32]; $mr],
        ) {
            // SAFETY: `self` exists only where the processor has what is needed.
            unsafe { wide::added(sums, is_first, values) };
        }

        finish_wide!($mr);
    };
    (Pair, $mr:literal, 32) => {
        #[inline(always)]
        fn scaled(
            self,
            sums: &[[i32; 32]; $mr],
            row_scales: &[f32; $mr],
            column_scales: &[f32; 32],
            is_first: bool,
            values: &mut [[f32; 32]; $mr],
        ) {
            // SAFETY: as above.
            unsafe { wide::scaled(sums, row_scales, column_scales, is_first, values) };
        }

        finish_wide!($mr);
    };
    ($mr:literal) => {
        #[inline(always)]
        fn before(self, out: &[f32], wide: usize, columns: &Range<usize>, values: &mut [[f32; 32]; $mr]) {
            // SAFETY: as above.
            unsafe { wide::before(out, wide, columns, values) };
        }

        #[inline(always)]
        fn finish(self, place: Place<'_, 32>, values: &mut [[f32; 32]; $mr]) {
            // SAFETY: as above.
            unsafe { wide::finish(place, values) };
        }
    };
}
pub(super) use finish_wide;

/// A row of a tile in two registers.
type Row = [__m512; 2];

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn row(numbers: &[f32; 32]) -> Row {
    // SAFETY: thirty-two numbers.
    unsafe { [_mm512_loadu_ps(numbers.as_ptr()), _mm512_loadu_ps(numbers.as_ptr().add(16))] }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn keep(row: Row, numbers: &mut [f32; 32]) {
    // SAFETY: thirty-two numbers.
    unsafe {
        _mm512_storeu_ps(numbers.as_mut_ptr(), row[0]);
        _mm512_storeu_ps(numbers.as_mut_ptr().add(16), row[1]);
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn add(a: Row, b: Row) -> Row {
    [_mm512_add_ps(a[0], b[0]), _mm512_add_ps(a[1], b[1])]
}

/// See [`super::finish::before`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub fn before(out: &[f32], wide: usize, columns: &Range<usize>, values: &mut [[f32; 32]]) {
    let masks = masks(columns.len());
    for (out, values) in out.chunks_exact(wide).zip(values) {
        keep(some(&out[columns.clone()], masks), values);
    }
}

/// See [`super::finish::scaled`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub fn scaled(
    sums: &[[i32; 32]],
    row_scales: &[f32],
    column_scales: &[f32; 32],
    is_first: bool,
    values: &mut [[f32; 32]],
) {
    let columns = row(column_scales);
    for ((sums, scale), values) in sums.iter().zip(row_scales).zip(values) {
        let scale = _mm512_set1_ps(*scale);
        let before = if is_first { [_mm512_setzero_ps(); 2] } else { row(values) };
        let mut now = [_mm512_setzero_ps(); 2];
        for half in 0..2 {
            // SAFETY: sixteen of thirty-two numbers.
            let sums = unsafe { _mm512_loadu_si512(sums.as_ptr().add(16 * half).cast()) };
            now[half] = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_mul_ps(scale, columns[half]));
        }
        keep(add(now, before), values);
    }
}

/// See [`super::finish::scaled`], for sums that are the numbers.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub fn added(sums: &[[f32; 32]], is_first: bool, values: &mut [[f32; 32]]) {
    for (sums, values) in sums.iter().zip(values) {
        let before = if is_first { [_mm512_setzero_ps(); 2] } else { row(values) };
        keep(add(row(sums), before), values);
    }
}

/// See [`super::finish::finish`].
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub fn finish(place: Place<'_, 32>, values: &mut [[f32; 32]]) {
    let Place { out, wide, columns, bias, then } = place;
    let values = &mut values[..out.len() / wide];
    let (masks, bias) = (masks(columns.len()), row(bias));
    if matches!(then, Then::Gelu) {
        values.iter_mut().for_each(|values| keep(add(row(values), bias), values));
        values.as_flattened_mut().iter_mut().for_each(|value| *value = math::gelu(*value));
        for (out, values) in out.chunks_exact_mut(wide).zip(values) {
            keep_some(row(values), masks, &mut out[columns.clone()]);
        }
        return;
    }
    let mut others = if let Then::Add(other) = then { other } else { &[] }.chunks_exact(wide);
    for (out, values) in out.chunks_exact_mut(wide).zip(values) {
        let mut sums = add(row(values), bias);
        if let Some(other) = others.next() {
            sums = add(sums, some(&other[columns.clone()], masks));
        }
        keep_some(sums, masks, &mut out[columns.clone()]);
    }
}

/// Which of 32 columns are there.
fn masks(columns: usize) -> [__mmask16; 2] {
    let all = u32::MAX.unbounded_shr(32 - u32::try_from(columns).unwrap_or(32).min(32)).to_le_bytes();
    [u16::from_le_bytes([all[0], all[1]]), u16::from_le_bytes([all[2], all[3]])]
}

/// As many numbers as there are, and zeros.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn some(numbers: &[f32], masks: [__mmask16; 2]) -> Row {
    // SAFETY: the masks are of as many numbers as there are; what they hide is not read.
    unsafe {
        let second = numbers.as_ptr().wrapping_add(16);
        [_mm512_maskz_loadu_ps(masks[0], numbers.as_ptr()), _mm512_maskz_loadu_ps(masks[1], second)]
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn keep_some(row: Row, masks: [__mmask16; 2], numbers: &mut [f32]) {
    // SAFETY: as above; what they hide is not written.
    unsafe {
        let second = numbers.as_mut_ptr().wrapping_add(16);
        _mm512_mask_storeu_ps(numbers.as_mut_ptr(), masks[0], row[0]);
        _mm512_mask_storeu_ps(second, masks[1], row[1]);
    }
}
