//! The word table, left in its file: a row is read when a token needs it, and the system's page cache keeps what is used.
//! For bge-m3 that is a gigabyte that the process does not hold. Reading, unlike mapping, ends in an error and not in a
//! signal when the file is cut under us.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;

/// A table `[words, width]` in a weights file.
pub struct Words {
    file: File,
    start: u64,
    width: usize,
    dtype: Dtype,
}

impl Words {
    /// The table at `start` of `file`; `dtype` is a float.
    pub(super) fn new(file: File, start: u64, width: usize, dtype: Dtype) -> Self {
        Self { file, start, width, dtype }
    }

    /// Appends the row of word `id` to `rows`, as f32.
    ///
    /// # Errors
    /// The file cannot be read any more.
    #[inline]
    pub fn push(&self, id: u32, bytes: &mut Vec<u8>, rows: &mut Vec<f32>) -> io::Result<()> {
        let size = self.width * self.dtype.bitsize() / 8;
        bytes.resize(size, 0);
        self.file.read_exact_at(bytes, self.start + u64::from(id) * size as u64)?;
        let half = |dtype| {
            Tensor::from_raw_buffer(bytes, dtype, &[self.width], &Device::Cpu)
                .and_then(|row| row.to_dtype(DType::F32)?.to_vec1::<f32>())
                .map_err(io::Error::other)
        };
        match self.dtype {
            Dtype::F16 => rows.extend(half(DType::F16)?),
            Dtype::BF16 => rows.extend(half(DType::BF16)?),
            Dtype::F64 => rows.extend(half(DType::F64)?),
            _ => rows.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
        }
        Ok(())
    }
}
