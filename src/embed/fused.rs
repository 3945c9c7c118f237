//! What stands between the matrix products, done in place and in one go on the processor. Candle's own
//! element-wise operations allocate and walk memory once each, and hand work to a pool of spinning threads
//! whose number nobody can set. On another device the plain operations are used.

use super::math;
use candle_core::{CpuStorage, DType, InplaceOp1, InplaceOp2, Layout, Result, Tensor, bail};
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
    /// Of a tensor of one dimension in f32, to be added to rows of `dtype`.
    ///
    /// # Errors
    /// It has another number of dimensions.
    pub fn new(tensor: &Tensor, dtype: DType) -> Result<Self> {
        Ok(Self { host: tensor.to_vec1()?, tensor: tensor.to_dtype(dtype)? })
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

/// Whether the ways of this file apply; they are for f32 on the processor.
fn here(rows: &Tensor) -> bool {
    rows.device().is_cpu() && rows.dtype() == DType::F32
}

/// `rows + bias`.
///
/// # Errors
/// Candle's: shapes do not fit.
pub fn add(rows: Tensor, bias: &Row) -> Result<Tensor> {
    if !here(&rows) {
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
    if !here(&rows) {
        return rows.broadcast_add(&bias.tensor)?.gelu_erf();
    }
    let bias = &bias.host;
    rows.inplace_op1(&Rows("add_gelu", bias.len(), |row: &mut [f32]| {
        for (value, bias) in row.iter_mut().zip(bias) {
            *value = math::gelu(*value + bias);
        }
    }))?;
    Ok(rows)
}

/// Softmax of every row of the last dimension.
///
/// # Errors
/// Candle's.
pub fn softmax(scores: Tensor) -> Result<Tensor> {
    if !here(&scores) {
        return candle_nn::ops::softmax_last_dim(&scores);
    }
    let n = scores.dim(candle_core::D::Minus1)?;
    scores.inplace_op1(&Rows("softmax", n, math::softmax))?;
    Ok(scores)
}

/// `norm(rows + bias + residual)`; no bias is zero.
///
/// # Errors
/// Candle's: shapes do not fit.
pub fn add_norm(rows: Tensor, bias: Option<&Row>, residual: &Tensor, norm: &Norm) -> Result<Tensor> {
    if !here(&rows) {
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
                math::norm(row, scale, shift, eps);
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

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
    fn gelu_is_candles_and_keeps_nan() {
        let values = grid(-9.0, 9.0);
        let x = Tensor::from_vec(values, (11, 9_091), &Device::Cpu).unwrap();
        let zero = Row::new(&Tensor::zeros(9_091, DType::F32, &Device::Cpu).unwrap(), DType::F32).unwrap();
        let reference = x.to_dtype(DType::F64).unwrap().gelu_erf().unwrap();
        assert!(distance(&add_gelu(x.copy().unwrap(), &zero).unwrap(), &reference) < 2e-6);
        assert!(math::gelu(f32::NAN).is_nan());
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
            let row = || Row::new(&Tensor::randn(1_f32, 0.5, n, &device).unwrap(), DType::F32).unwrap();
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
        let row = Row::new(&Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap(), DType::F32).unwrap();
        assert!(add(Tensor::zeros((2, 4), DType::F32, &Device::Cpu).unwrap(), &row).is_err());
    }
}
