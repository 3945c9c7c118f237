//! `model.safetensors` to f32 tensors, read tensor by tensor: never mapped, never more than one copy, and a
//! tensor that is not there or has another shape is an error, never a random or a zero one.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use candle_core::{DType, Device, Tensor};
use rayon::{
    iter::{IndexedParallelIterator as _, ParallelIterator as _},
    slice::ParallelSliceMut as _,
};
use safetensors::{Dtype, tensor::Metadata};

use super::{expect::OpenError, words::Words};

/// Longest header of a safetensors file, in bytes; the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Numbers that a thread reads at a time: below the size from which the heap maps a block anew each time.
const BLOCK: usize = 1 << 16;

/// An open weights file.
pub struct Weights {
    model: String,
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
    prefix: &'static str,
}

impl Weights {
    /// Reads the header of `path` and checks that the file is as long as it says.
    ///
    /// # Errors
    /// The file cannot be read, is cut short, or is not safetensors.
    pub fn open(model: &str, path: &Path) -> Result<Self, OpenError> {
        let io = |error: io::Error| OpenError::io(model, path, &error);
        let damaged = |what: String| OpenError::damaged(model, path, what);
        let mut file = File::open(path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let mut length = [0_u8; 8];
        file.read_exact(&mut length).map_err(|_| damaged("too short for a safetensors file".into()))?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > HEADER_BYTES_MAX || 8 + header_bytes > file_bytes {
            return Err(damaged("not a safetensors file, or cut short".into()));
        }
        let mut header = vec![0; usize::try_from(header_bytes).unwrap_or(usize::MAX)];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("bad header: {error}")))?;
        let data_start = 8 + header_bytes;
        let wanted = data_start + metadata.data_len() as u64;
        if file_bytes != wanted {
            return Err(damaged(format!(
                "{file_bytes} bytes long, but its header says {wanted}: a cut download?"
            )));
        }
        let mut weights =
            Self { model: model.into(), path: path.into(), file, metadata, data_start, prefix: "" };
        weights.prefix = weights.find_prefix();
        Ok(weights)
    }

    /// Some files name their tensors `bert.…` or `roberta.…`, as saved from a model with a head.
    fn find_prefix(&self) -> &'static str {
        let has = |prefix: &&str| {
            self.metadata.info(&format!("{prefix}embeddings.word_embeddings.weight")).is_some()
        };
        ["", "bert.", "roberta.", "model."].into_iter().find(has).unwrap_or("")
    }

    /// The tensor `name` as f32 on `device`. Half precision is widened.
    ///
    /// # Errors
    /// The tensor is not in the file, or is of another shape or of a type that is no float.
    pub fn tensor(&self, name: &str, shape: &[usize], device: &Device) -> Result<Tensor, OpenError> {
        let (dtype, start) = self.float(name, shape)?;
        let tensor = match dtype {
            Dtype::F32 => self.read_f32(start, shape).map(|values| Tensor::from_vec(values, shape, device)),
            Dtype::F16 => self.read_wide(start, DType::F16, shape, device),
            Dtype::BF16 => self.read_wide(start, DType::BF16, shape, device),
            _ => self.read_wide(start, DType::F64, shape, device),
        };
        tensor
            .map_err(|error| OpenError::io(&self.model, &self.path, &error))?
            .map_err(|error| self.damaged(format!("the tensor {name}: {error}")))
    }

    /// The numbers of a tensor as f32, row-major, held once; read by all threads of the pool that this runs in, if it does.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, OpenError> {
        let (dtype, start) = self.float(name, shape)?;
        if dtype != Dtype::F32 {
            let tensor = self.tensor(name, shape, &Device::Cpu)?;
            let numbers = tensor.flatten_all().and_then(|flat| flat.to_vec1());
            return numbers.map_err(|error| self.unusable(&error));
        }
        self.read_f32(start, shape).map_err(|error| OpenError::io(&self.model, &self.path, &error))
    }

    /// A table of rows that stay in the file.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn words(&self, name: &str, shape: [usize; 2]) -> Result<Words, OpenError> {
        let (dtype, start) = self.float(name, &shape)?;
        let file = self.file.try_clone().map_err(|error| OpenError::io(&self.model, &self.path, &error))?;
        Ok(Words::new(file, start, shape[1], dtype))
    }

    /// Type and place in the file of a tensor of floats.
    fn float(&self, name: &str, shape: &[usize]) -> Result<(Dtype, u64), OpenError> {
        let full = format!("{}{name}", self.prefix);
        let Some(info) = self.metadata.info(&full) else {
            return Err(self.damaged(format!("the tensor {full} is missing")));
        };
        if info.shape != shape {
            return Err(self.damaged(format!("the tensor {full} is {:?}, not {shape:?}", info.shape)));
        }
        if ![Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64].contains(&info.dtype) {
            return Err(self.damaged(format!("the tensor {full} is of type {:?}", info.dtype)));
        }
        Ok((info.dtype, self.data_start + info.data_offsets.0 as u64))
    }

    fn read_f32(&self, start: u64, shape: &[usize]) -> io::Result<Vec<f32>> {
        let mut values = vec![0.0; shape.iter().product()];
        let read = |bytes: &mut Vec<u8>, (at, part): (usize, &mut [f32])| {
            bytes.resize(4 * part.len(), 0);
            self.file.read_exact_at(bytes, start + 4 * (at * BLOCK) as u64)?;
            let numbers = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            part.iter_mut().zip(numbers).for_each(|(value, number)| *value = number);
            io::Result::Ok(())
        };
        if rayon::current_thread_index().is_some() {
            values.par_chunks_mut(BLOCK).enumerate().try_for_each_init(Vec::new, read)?;
        } else {
            // Not by the library's own pool, whose threads nobody set.
            let mut bytes = Vec::new();
            values.chunks_mut(BLOCK).enumerate().try_for_each(|part| read(&mut bytes, part))?;
        }
        Ok(values)
    }

    fn read_wide(
        &self,
        start: u64,
        dtype: DType,
        shape: &[usize],
        device: &Device,
    ) -> io::Result<candle_core::Result<Tensor>> {
        let mut bytes = vec![0_u8; shape.iter().product::<usize>() * dtype.size_in_bytes()];
        self.file.read_exact_at(&mut bytes, start)?;
        let tensor = Tensor::from_raw_buffer(&bytes, dtype, shape, &Device::Cpu);
        Ok(tensor.and_then(|tensor| tensor.to_dtype(DType::F32)).and_then(|tensor| tensor.to_device(device)))
    }

    /// An operation on loaded tensors failed.
    pub fn unusable(&self, error: &candle_core::Error) -> OpenError {
        self.damaged(error.to_string())
    }

    fn damaged(&self, what: String) -> OpenError {
        OpenError::damaged(&self.model, &self.path, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn half_precision_is_widened_and_prefixes_are_found() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "roberta.embeddings.word_embeddings.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
            "roberta.a":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},
            "roberta.b":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]},
            "roberta.c":{"dtype":"I64","shape":[1],"data_offsets":[16,24]}}"#;
        let floats = [0.5_f32, -3.0].map(f32::to_le_bytes).concat();
        // 1.5 and −2 in the two half formats.
        let halves = [0x3e00_u16, 0xc000, 0x3fc0, 0xc000].map(u16::to_le_bytes).concat();
        let file = file(header, &[floats, halves, vec![0; 8]].concat());
        let weights = Weights::open("m", file.path()).unwrap();
        let read = |name: &str, shape: &[usize]| {
            let tensor = weights.tensor(name, shape, &Device::Cpu)?;
            Ok::<_, OpenError>(tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap())
        };
        assert_eq!(read("embeddings.word_embeddings.weight", &[2, 1]).unwrap(), [0.5, -3.0]);
        assert_eq!(read("a", &[2]).unwrap(), [1.5, -2.0]);
        assert_eq!(read("b", &[2]).unwrap(), [1.5, -2.0]);
        let message = read("c", &[1]).unwrap_err().to_string();
        assert!(message.contains("roberta.c is of type I64"), "{message}");
        let message = read("a", &[3]).unwrap_err().to_string();
        assert!(message.contains("roberta.a is [2], not [3]"), "{message}");
        assert!(read("d", &[3]).unwrap_err().to_string().contains("roberta.d is missing"));
    }

    #[test]
    fn a_large_tensor_is_the_same_read_alone_and_by_several_threads() {
        let numbers: Vec<f32> = (0..3 * BLOCK + 7).map(|at| at as f32 * 0.5).collect();
        let bytes: Vec<u8> = numbers.iter().copied().flat_map(f32::to_le_bytes).collect();
        let header = |ends: [usize; 2]| {
            let about = serde_json::json!({"dtype": "F32", "shape": [numbers.len()], "data_offsets": ends});
            serde_json::json!({ "a": about }).to_string()
        };
        let file = file(&header([0, bytes.len()]), &bytes);
        let weights = Weights::open("m", file.path()).unwrap();
        let read = || weights.numbers("a", &[numbers.len()]).unwrap();
        assert_eq!(read(), numbers);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.install(read), numbers);
        // Cut under us, it is an error.
        std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(100_000).unwrap();
        assert!(pool.install(|| weights.numbers("a", &[numbers.len()])).is_err());
    }

    #[test]
    fn a_header_that_lies_is_refused() {
        let entry =
            |offsets: &str| format!(r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}}}"#);
        for header in [entry("[0,12]"), entry("[8,16]"), entry("[0,18446744073709551615]"), "{".into()] {
            let error = Weights::open("m", file(&header, &[0; 8]).path()).err().expect(&header);
            assert!(error.to_string().contains("forebay model verify m"), "{error}");
        }
        let file = file(&entry("[0,8]"), &[0; 8]);
        std::fs::write(file.path(), u64::MAX.to_le_bytes()).unwrap();
        assert!(Weights::open("m", file.path()).err().unwrap().to_string().contains("cut short"));
    }
}
