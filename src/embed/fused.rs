//! What stands between the matrix products, done in place and in one go on the processor. Candle's own
//! element-wise operations allocate and walk memory once each, and hand work to a pool of spinning threads
//! whose number nobody can set. On another device the plain operations are used.

use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, Tensor, bail};
use rayon::{
    iter::{IndexedParallelIterator as _, ParallelIterator as _},
    slice::ParallelSliceMut as _,
};

/// Numbers a thread takes at a time.
const BLOCK: usize = 1 << 15;

/// A vector added to or multiplied with every row, on the device and on the host.
pub struct Row {
    tensor: Tensor,
    host: Vec<f32>,
}

impl Row {
    /// Of a tensor of one dimension.
    ///
    /// # Errors
    /// It has another number of dimensions.
    pub fn new(tensor: Tensor) -> Result<Self> {
        Ok(Self { host: tensor.to_vec1()?, tensor })
    }
}

/// Scale and shift to mean 0 and variance 1.
pub struct Norm {
    /// Scale.
    pub weight: Row,
    /// Shift.
    pub bias: Row,
    /// Added to the variance.
    pub eps: f32,
}

/// `rows + bias`.
///
/// # Errors
/// Candle's: shapes do not fit.
pub fn add(rows: Tensor, bias: &Row) -> Result<Tensor> {
    if !rows.device().is_cpu() {
        return rows.broadcast_add(&bias.tensor);
    }
    let bias = &bias.host;
    rows.inplace_op1(&Rows("add", bias.len(), |row: &mut [f32]| {
        row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }))?;
    Ok(rows)
}

/// `gelu(rows + bias)`, in the erf form.
///
/// # Errors
/// Candle's: shapes do not fit.
pub fn add_gelu(rows: Tensor, bias: &Row) -> Result<Tensor> {
    if !rows.device().is_cpu() {
        return rows.broadcast_add(&bias.tensor)?.gelu_erf();
    }
    let bias = &bias.host;
    rows.inplace_op1(&Rows("add_gelu", bias.len(), |row: &mut [f32]| {
        for (value, bias) in row.iter_mut().zip(bias) {
            let x = *value + bias;
            *value = 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
        }
    }))?;
    Ok(rows)
}

/// Softmax of every row of the last dimension.
///
/// # Errors
/// Candle's.
pub fn softmax(scores: Tensor) -> Result<Tensor> {
    if !scores.device().is_cpu() {
        return candle_nn::ops::softmax_last_dim(&scores);
    }
    let n = scores.dim(candle_core::D::Minus1)?;
    scores.inplace_op1(&Rows("softmax", n, softmax_row))?;
    Ok(scores)
}

/// `norm(rows + bias + residual)`; no bias is zero.
///
/// # Errors
/// Candle's: shapes do not fit.
pub fn add_norm(rows: Tensor, bias: Option<&Row>, residual: &Tensor, norm: &Norm) -> Result<Tensor> {
    if !rows.device().is_cpu() {
        let rows = match bias {
            Some(bias) => rows.broadcast_add(&bias.tensor)?,
            None => rows,
        };
        return candle_nn::ops::layer_norm(
            &(rows + residual)?,
            &norm.weight.tensor,
            &norm.bias.tensor,
            norm.eps,
        );
    }
    let bias = bias.map_or(&[][..], |bias| &bias.host);
    rows.inplace_op2(residual, &AddNorm { bias, norm })?;
    Ok(rows)
}

/// Something done to every row of a length: name, length, deed.
struct Rows<F>(&'static str, usize, F);

impl<F: Fn(&mut [f32]) + Sync> InplaceOp1 for Rows<F> {
    fn name(&self) -> &'static str {
        self.0
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Self(name, width, each) = self;
        let values = numbers(storage, layout, *width, name)?;
        let block = width * (BLOCK / width).max(1);
        values.par_chunks_mut(block).for_each(|rows| rows.chunks_exact_mut(*width).for_each(each));
        Ok(())
    }
}

struct AddNorm<'a> {
    bias: &'a [f32],
    norm: &'a Norm,
}

impl InplaceOp2 for AddNorm<'_> {
    fn name(&self) -> &'static str {
        "add_norm"
    }

    fn cpu_fwd(
        &self,
        rows: &mut CpuStorage,
        layout: &Layout,
        other: &CpuStorage,
        other_layout: &Layout,
    ) -> Result<()> {
        let width = self.norm.weight.host.len();
        let values = numbers(rows, layout, width, self.name())?;
        let (CpuStorage::F32(other), Some((start, end))) = (other, other_layout.contiguous_offsets()) else {
            bail!("add_norm wants contiguous f32");
        };
        let other = &other[start..end];
        if other.len() != values.len() {
            bail!("add_norm of {} and {} numbers", values.len(), other.len());
        }
        let block = width * (BLOCK / width).max(1);
        let (scale, shift, eps) = (&self.norm.weight.host, &self.norm.bias.host, self.norm.eps);
        values.par_chunks_mut(block).enumerate().for_each(|(i, rows)| {
            let other = other[i * block..].chunks_exact(width);
            for (row, other) in rows.chunks_exact_mut(width).zip(other) {
                row.iter_mut().zip(other).for_each(|(value, other)| *value += other);
                row.iter_mut().zip(self.bias).for_each(|(value, bias)| *value += bias);
                norm_row(row, scale, shift, eps);
            }
        });
        Ok(())
    }
}

/// The contiguous numbers of a tensor, which must come in rows of `width`.
fn numbers<'a>(
    storage: &'a mut CpuStorage,
    layout: &Layout,
    width: usize,
    name: &str,
) -> Result<&'a mut [f32]> {
    let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
        bail!("{name} wants contiguous f32");
    };
    if width == 0 || layout.dims().last() != Some(&width) {
        bail!("{name} of rows of {width} does not fit {:?}", layout.dims());
    }
    Ok(&mut values[start..end])
}

/// Sum in eight parts: quicker, and closer to the true sum than one after another.
fn sum(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let (eights, rest) = values.as_chunks::<8>();
    let mut parts = [0.0_f32; 8];
    for eight in eights {
        parts.iter_mut().zip(eight).for_each(|(part, &value)| *part += term(value));
    }
    parts.iter().sum::<f32>() + rest.iter().map(|&value| term(value)).sum::<f32>()
}

fn norm_row(row: &mut [f32], scale: &[f32], shift: &[f32], eps: f32) {
    let n = row.len() as f32;
    let mean = sum(row, |value| value) / n;
    let variance = sum(row, |value| (value - mean) * (value - mean)) / n;
    let factor = 1.0 / (variance + eps).sqrt();
    for ((value, scale), shift) in row.iter_mut().zip(scale).zip(shift) {
        *value = (*value - mean) * factor * scale + shift;
    }
}

fn softmax_row(row: &mut [f32]) {
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

/// `e^x` for x ≤ 0 to 2 units in the last place, without a branch or a call, so that the compiler takes many
/// numbers at once: `x = n·ln 2 + r`, a polynomial for `e^r`, and `n` into the exponent. NaN stays NaN.
#[inline]
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
#[inline]
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

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn grid(from: f32, to: f32) -> Vec<f32> {
        (0..=100_000).map(|i| from + (to - from) * i as f32 / 100_000.0).collect()
    }

    /// Largest distance between two tensors.
    fn distance(a: &Tensor, b: &Tensor) -> f64 {
        let (a, b) = (a.to_dtype(DType::F64).unwrap(), b.to_dtype(DType::F64).unwrap());
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
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

    #[test]
    fn gelu_is_candles_and_keeps_nan() {
        let values = grid(-9.0, 9.0);
        let x = Tensor::from_vec(values, (11, 9_091), &Device::Cpu).unwrap();
        let zero = Row::new(Tensor::zeros(9_091, DType::F32, &Device::Cpu).unwrap()).unwrap();
        let reference = x.to_dtype(DType::F64).unwrap().gelu_erf().unwrap();
        assert!(distance(&add_gelu(x.copy().unwrap(), &zero).unwrap(), &reference) < 2e-6);
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn softmax_and_norm_are_candles() {
        let device = Device::Cpu;
        for n in [1, 7, 8, 33, 1_000] {
            let x = Tensor::randn(0_f32, 3.0, (5, 4, n), &device).unwrap();
            let reference = candle_nn::ops::softmax(&x.to_dtype(DType::F64).unwrap(), 2).unwrap();
            assert!(distance(&softmax(x.copy().unwrap()).unwrap(), &reference) < 1e-6);

            let x = Tensor::randn(0_f32, 3.0, (5, n), &device).unwrap();
            let residual = Tensor::randn(1_f32, 3.0, (5, n), &device).unwrap();
            let row = || Row::new(Tensor::randn(1_f32, 0.5, n, &device).unwrap()).unwrap();
            let (bias, norm) = (row(), Norm { weight: row(), bias: row(), eps: 1e-5 });
            let sum = (x.broadcast_add(&bias.tensor).unwrap() + &residual).unwrap();
            let reference =
                candle_nn::ops::layer_norm(&sum, &norm.weight.tensor, &norm.bias.tensor, 1e-5).unwrap();
            let ours = add_norm(x.copy().unwrap(), Some(&bias), &residual, &norm).unwrap();
            assert!(distance(&ours, &reference) < 2e-5, "{n}: {}", distance(&ours, &reference));
            let plain = x.broadcast_add(&bias.tensor).unwrap();
            assert!(distance(&add(x.copy().unwrap(), &bias).unwrap(), &plain) < 1e-6);
        }
    }

    #[test]
    fn rows_of_another_length_are_refused() {
        let row = Row::new(Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap()).unwrap();
        assert!(add(Tensor::zeros((2, 4), DType::F32, &Device::Cpu).unwrap(), &row).is_err());
    }
}
