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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `bytes` behind three others.
    fn words(bytes: &[u8], width: usize, dtype: Dtype) -> (tempfile::TempDir, Words) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        std::fs::write(&path, [b"abc", bytes].concat()).unwrap();
        (folder, Words::new(File::open(path).unwrap(), 3, width, dtype))
    }

    #[test]
    fn every_float_is_read_from_its_own_row() {
        let numbers = [0.0_f32, -1.5, 2.0, 0.25, -64.0, 1.0];
        let as_bytes = |dtype| match dtype {
            Dtype::F16 => [0x0000_u16, 0xbe00, 0x4000, 0x3400, 0xd400, 0x3c00].map(u16::to_le_bytes).concat(),
            Dtype::BF16 => numbers.map(|number| number.to_bits().to_le_bytes()[2..].to_vec()).concat(),
            Dtype::F64 => numbers.map(|number| f64::from(number).to_le_bytes()).concat(),
            _ => numbers.map(f32::to_le_bytes).concat(),
        };
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64] {
            let (_folder, words) = words(&as_bytes(dtype), 2, dtype);
            let (mut bytes, mut rows) = (Vec::new(), vec![9.0]);
            for id in [2, 0, 1, 0] {
                words.push(id, &mut bytes, &mut rows).unwrap();
            }
            assert_eq!(rows, [9.0, -64.0, 1.0, 0.0, -1.5, 2.0, 0.25, 0.0, -1.5], "{dtype:?}");
        }
    }

    #[test]
    fn a_file_that_was_cut_is_an_error() {
        let (_folder, words) = words(&[0; 15], 2, Dtype::F32);
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        assert!(words.push(0, &mut bytes, &mut rows).is_ok());
        assert_eq!(words.push(1, &mut bytes, &mut rows).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(rows, [0.0; 2], "nothing of it");
    }
}
