//! Arithmetic on rows of numbers, without branches or calls, so that the compiler takes as many at once as the processor
//! has room for: whoever calls it decides for which processor.

/// Sum in eight parts: quicker, and closer to the true sum than one after another.
#[inline(always)]
fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let (eights, rest) = values.as_chunks::<8>();
    let mut parts = [0.0_f32; 8];
    for eight in eights {
        parts.iter_mut().zip(eight).for_each(|(part, &value)| *part += term(value));
    }
    parts.iter().sum::<f32>() + rest.iter().map(|&value| term(value)).sum::<f32>()
}

/// Scales and shifts a row to mean 0 and variance 1, then by its weights.
#[inline(always)]
pub fn norm(row: &mut [f32], scale: &[f32], shift: &[f32], eps: f32) {
    let n = row.len() as f32;
    let mean = sum(row, |value| value) / n;
    let variance = sum(row, |value| (value - mean) * (value - mean)) / n;
    let factor = 1.0 / (variance + eps).sqrt();
    for ((value, scale), shift) in row.iter_mut().zip(scale).zip(shift) {
        *value = (*value - mean) * factor * scale + shift;
    }
}

/// Softmax of a row.
#[inline(always)]
pub fn softmax(row: &mut [f32]) {
    let mut tops = [f32::NEG_INFINITY; 8];
    let (eights, rest) = row.as_chunks::<8>();
    for eight in eights {
        tops.iter_mut().zip(eight).for_each(|(top, &value)| *top = if value > *top { value } else { *top });
    }
    let top = tops.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|value| *value = exp(*value - top));
    let factor = 1.0 / sum(row, |value| value);
    row.iter_mut().for_each(|value| *value *= factor);
}

/// The greater of each; a number that is none is passed over.
#[inline(always)]
pub fn tops<const N: usize>(tops: &mut [f32; N], row: &[f32; N]) {
    let mut now = *tops;
    now.iter_mut().zip(row).for_each(|(top, &value)| *top = if value > *top { value } else { *top });
    *tops = now;
}

/// `e^(x − top)` of each, and that to the sums: softmax but for the division by them.
#[inline(always)]
pub fn powers<const N: usize>(row: &mut [f32; N], tops: &[f32; N], sums: &mut [f32; N]) {
    let (mut now, mut sum) = (*row, *sums);
    now.iter_mut().zip(tops).for_each(|(value, top)| *value = exp(*value - top));
    sum.iter_mut().zip(&now).for_each(|(sum, value)| *sum += value);
    (*row, *sums) = (now, sum);
}

/// The activation, in the erf form.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// `e^x` for x ≤ 0 to 2 units in the last place, without a branch or a call, so that the compiler takes many
/// numbers at once: `x = n·ln 2 + r`, a polynomial for `e^r`, and `n` into the exponent. NaN stays NaN.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to an integer, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    (p * r * r + r + 1.0) * scale
}

/// The error function to 5·10⁻⁷, as a quotient of polynomials, likewise without a branch or a call.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let x = x.clamp(-4.0, 4.0);
    let square = x * x;
    let mut p = -2.726_142_3e-10;
    for c in [2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_6e-3, -1.609_603_3e-2] {
        p = p * square + c;
    }
    let mut q = -1.456_607_2e-5;
    for c in [-2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2] {
        q = q * square + c;
    }
    x * p / q
}

/// Scales to norm 1, in f64. A vector of norm 0 becomes NaN, which the check behind the encoder finds.
#[expect(clippy::cast_possible_truncation, reason = "f32 is the model's precision")]
pub fn scale_to_1(vector: &mut [f32]) {
    let norm = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(from: f32, to: f32) -> impl Iterator<Item = f32> {
        let steps = if cfg!(miri) { 100 } else { 100_000 };
        (0..=steps).map(move |i| from + (to - from) * i as f32 / steps as f32)
    }

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        for x in grid(-86.9, 0.0) {
            let reference = f64::from(x).exp();
            assert!((f64::from(exp(x)) - reference).abs() <= 2.5e-7 * reference, "exp({x}) = {}", exp(x));
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(-1e30) < 1e-37);
        assert!(exp(f32::NAN).is_nan());
    }
}
