//! Numbers in the pieces that AMX multiplies: see `amx.rs`.
#![expect(unsafe_code, reason = "instructions that not every processor has, and loads of whole vectors")]

use std::arch::x86_64::{
    __m512i, _mm_setr_epi8, _mm512_add_epi8, _mm512_and_si512, _mm512_broadcast_i32x4, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_loadu_si512, _mm512_or_si512, _mm512_packs_epi16, _mm512_set1_epi16,
    _mm512_set1_epi32, _mm512_setzero_si512, _mm512_shuffle_epi8, _mm512_srai_epi16, _mm512_srli_epi32,
    _mm512_store_si512, _mm512_sub_ps,
};

use super::{kernel::Pair, step::nearest};

/// The numbers of a row in a step, as three pieces of 64 bytes. Sixteen of them are a register of each piece; so are sixteen
/// pairs (fours) of steps of sixteen columns.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Pieces<T, const N: usize>([[T; N]; 3]);

impl<T: Copy + Default, const N: usize> Default for Pieces<T, N> {
    fn default() -> Self {
        Self([[T::default(); N]; 3])
    }
}

/// f32 in bf16.
pub type Halves = Pieces<u16, 32>;

/// 12 bits in bytes.
pub type Bytes = Pieces<i8, 64>;

/// The three pieces of each number: its upper half, that of what is left, and what is left then. What is not finite stays
/// so in the first or in the second.
#[inline(always)]
pub fn halves(numbers: &[f32; 32]) -> Halves {
    let upper = |number: f32| f32::from_bits(number.to_bits() & 0xffff_0000);
    let second = numbers.map(|number| number - upper(number));
    let third = second.map(|number| number - upper(number));
    Pieces([*numbers, second, third].map(|numbers| numbers.map(|number| (number.to_bits() >> 16) as u16)))
}

/// Panels of columns in pieces: row `r` of a register holds the steps 2r and 2r + 1 of sixteen columns side by side.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub fn halves_of(packed: &[[f32; 32]], each: usize, room: &mut Vec<[Halves; 32]>) {
    let steps = each.div_ceil(32);
    room.resize(packed.len() / each * steps, [Halves::default(); 32]);
    let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    for (panel, to) in packed.chunks_exact(each).zip(room.chunks_exact_mut(steps)) {
        for (numbers, to) in panel.chunks(32).zip(to) {
            for r in 0..16 {
                for half in 0..2 {
                    let mut pair = [2 * r, 2 * r + 1].map(|step| line(numbers, step, half));
                    let mut pieces = [_mm512_setzero_si512(); 3];
                    for piece in &mut pieces {
                        let tops = pair.map(|numbers| _mm512_and_si512(numbers, upper));
                        *piece = _mm512_or_si512(_mm512_srli_epi32::<16>(tops[0]), tops[1]);
                        for (numbers, tops) in pair.iter_mut().zip(tops) {
                            let rest =
                                _mm512_sub_ps(_mm512_castsi512_ps(*numbers), _mm512_castsi512_ps(tops));
                            *numbers = _mm512_castps_si512(rest);
                        }
                    }
                    put(&mut to[16 * half + r], pieces);
                }
            }
        }
    }
}

/// Sixteen columns of a step, or zeros where there is no such step.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn line<T>(steps: &[[T; 32]], step: usize, half: usize) -> __m512i {
    const { assert!(size_of::<T>() == 4) };
    steps.get(step).map_or_else(
        || _mm512_setzero_si512(),
        // SAFETY: sixteen of thirty-two fours of bytes.
        |columns| unsafe { _mm512_loadu_si512(columns.as_ptr().add(16 * half).cast()) },
    )
}

/// Three lines into the pieces.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
fn put<T, const N: usize>(to: &mut Pieces<T, N>, pieces: [__m512i; 3]) {
    const { assert!(size_of::<[T; N]>() == 64) };
    for (to, piece) in to.0.iter_mut().zip(pieces) {
        // SAFETY: 64 bytes, where a line begins.
        unsafe { _mm512_store_si512(to.as_mut_ptr().cast(), piece) };
    }
}

/// The integer of each number as high, low and their sum.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "12 bits, shifted down or masked")]
pub fn bytes(numbers: &[f32; 64], factor: f32) -> Bytes {
    let integers = numbers.map(|number| nearest(number * factor));
    let high = integers.map(|integer| (integer >> 6) as i8);
    let low = integers.map(|integer| (integer & 63) as i8);
    let mut both = high;
    both.iter_mut().zip(low).for_each(|(both, low)| *both = both.wrapping_add(low));
    Pieces([high, low, both])
}

/// Panels of columns in bytes: row `r` of a register holds the steps 2r and 2r + 1, four numbers, of sixteen columns side by
/// side.
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
pub fn bytes_of(packed: &[[Pair; 32]], each: usize, room: &mut Vec<[Bytes; 32]>) {
    let steps = each.div_ceil(32);
    room.resize(packed.len() / each * steps, [Bytes::default(); 32]);
    let low = _mm512_set1_epi16(63);
    // Packing leaves the first step's numbers in the lower half of each 16 bytes.
    let order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    for (panel, to) in packed.chunks_exact(each).zip(room.chunks_exact_mut(steps)) {
        for (pairs, to) in panel.chunks(32).zip(to) {
            for r in 0..16 {
                for half in 0..2 {
                    let four = [2 * r, 2 * r + 1].map(|step| line(pairs, step, half));
                    let side_by_side =
                        |[a, b]: [__m512i; 2]| _mm512_shuffle_epi8(_mm512_packs_epi16(a, b), order);
                    let highs = side_by_side(four.map(|pairs| _mm512_srai_epi16::<6>(pairs)));
                    let lows = side_by_side(four.map(|pairs| _mm512_and_si512(pairs, low)));
                    put(&mut to[16 * half + r], [highs, lows, _mm512_add_epi8(highs, lows)]);
                }
            }
        }
    }
}
