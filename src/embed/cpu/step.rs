//! One step of the common dimension as a kernel takes it: a number in f32, or two neighbours as 12-bit integers.
//!
//! Integers: every row of tokens and every column of weights has a scale a block, so that one outlier coarsens only its
//! own block. `2,047² · 512 < 2³¹`: the sum of a block is exact in 32 bits.

use super::kernel::Pair;

/// The greatest integer that a number becomes.
const TOP: f32 = 2_047.0;

/// A number, or several, in the form a kernel takes.
pub trait Step: Copy + Default + Send + Sync {
    /// Numbers in a step.
    const NUMBERS: usize;

    /// Steps of the common dimension in a block, after which sums are put away.
    const BLOCK: usize;

    /// Whether sums are to be scaled.
    const IS_SCALED: bool;

    /// A sum of products.
    type Sum: Copy + Default;

    /// What sums of these numbers are to be multiplied with, and what the numbers are multiplied with before.
    fn scale(numbers: &[f32]) -> (f32, f32);

    /// Puts the numbers of a row, times `factor`, beside those of other rows: into place `at` of each step.
    fn spread<const N: usize>(numbers: &[f32], factor: f32, at: usize, steps: &mut [[Self; N]]);

    /// A sum as the number it stands for.
    fn value(sum: Self::Sum, scale: f32) -> f32;
}

impl Step for f32 {
    type Sum = f32;
    const NUMBERS: usize = 1;
    const BLOCK: usize = 512;
    const IS_SCALED: bool = false;

    #[inline(always)]
    fn scale(_: &[f32]) -> (f32, f32) {
        (1.0, 1.0)
    }

    #[inline(always)]
    fn spread<const N: usize>(numbers: &[f32], _: f32, at: usize, steps: &mut [[Self; N]]) {
        steps.iter_mut().zip(numbers).for_each(|(step, number)| step[at] = *number);
    }

    #[inline(always)]
    fn value(sum: f32, _: f32) -> f32 {
        sum
    }
}

impl Step for Pair {
    type Sum = i32;
    const NUMBERS: usize = 2;
    const BLOCK: usize = 256;
    const IS_SCALED: bool = true;

    /// A number that is not finite makes the scale so, and with it every sum: it is never lost in an integer.
    #[inline(always)]
    fn scale(numbers: &[f32]) -> (f32, f32) {
        // As integers the bits of numbers without sign are in the order of the numbers, then infinity, then NaN.
        let mut tops = [0_u32; 16];
        let (parts, rest) = numbers.as_chunks::<16>();
        for part in parts {
            tops.iter_mut().zip(part).for_each(|(top, value)| *top = (*top).max(value.abs().to_bits()));
        }
        let top = tops.into_iter().chain(rest.iter().map(|value| value.abs().to_bits())).fold(0, u32::max);
        // Below this the factor would overflow; such numbers add nothing to a sum.
        let top = f32::from_bits(top.max(1e-30_f32.to_bits()));
        (top / TOP, TOP / top)
    }

    #[inline(always)]
    fn spread<const N: usize>(numbers: &[f32], factor: f32, at: usize, steps: &mut [[Self; N]]) {
        let (parts, rest) = numbers.as_chunks::<32>();
        let (blocks, last) = steps.split_at_mut(16 * parts.len());
        for (numbers, steps) in parts.iter().zip(blocks.as_chunks_mut::<16>().0) {
            let integers = numbers.map(|number| nearest(number * factor));
            steps.iter_mut().zip(integers.as_chunks::<2>().0).for_each(|(step, pair)| step[at] = *pair);
        }
        for (step, numbers) in last.iter_mut().zip(rest.chunks(2)) {
            let second = numbers.get(1).map_or(0, |number| nearest(number * factor));
            step[at] = [nearest(numbers[0] * factor), second];
        }
    }

    #[inline(always)]
    fn value(sum: i32, scale: f32) -> f32 {
        sum as f32 * scale
    }
}

/// The nearest integer, for numbers up to [`TOP`]: adding 1.5 · 2²³ leaves it in the lowest bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lowest bits are what is wanted")]
pub fn nearest(number: f32) -> i16 {
    (number + 12_582_912.0).to_bits() as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_the_nearest_and_what_is_not_finite_shows() {
        for number in [0.0_f32, 0.49, 0.51, -0.49, -0.51, 1.5, 2.5, 2_047.0, -2_047.0, 1_000.499] {
            assert_eq!(f32::from(nearest(number)), number.round_ties_even(), "{number}");
        }
        let (scale, factor) = Pair::scale(&[0.5, -4.094]);
        assert!((scale - 0.002).abs() < 1e-9 && (factor - 500.0).abs() < 1e-3);
        let mut steps = [[[9; 2]; 3]; 2];
        Pair::spread(&[0.5, -4.094, 0.002], factor, 1, &mut steps);
        assert_eq!(steps, [[[9; 2], [250, -2_047], [9; 2]], [[9; 2], [1, 0], [9; 2]]]);
        assert!(Pair::scale(&[1.0, f32::NAN, 2.0]).0.is_nan());
        assert!(Pair::scale(&[1.0, f32::NEG_INFINITY]).0.is_infinite());
        let (scale, factor) = Pair::scale(&[0.0; 40]);
        assert!(scale.is_finite() && factor.is_finite());
    }
}
