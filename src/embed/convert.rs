//! Torch pickles to safetensors, once, when a model is pulled: no pickle is ever read at start.

use std::{borrow::Cow, cell::RefCell, path::Path};

use candle_core::{DType, pickle::PthTensors};
use safetensors::{Dtype, View, serialize_to_file};

/// Writes the tensors of a torch file as safetensors. Same tensors, same bytes: names are sorted, and each keeps
/// its type, half ones too. One tensor at a time is in memory. `seen` hears bytes done and bytes in all.
///
/// # Errors
/// A sentence: what is wrong with the file, or with writing.
pub(super) fn to_safetensors(from: &Path, to: &Path, seen: &dyn Fn(u64, u64)) -> Result<(), String> {
    let pickle = PthTensors::new(from, None).map_err(|error| root(&error))?;
    let trouble = RefCell::new(None);
    let counted = RefCell::new(0);
    let mut tensors = Vec::new();
    let total =
        pickle.tensor_infos().values().map(|info| bytes(info.layout.shape().elem_count(), info.dtype)).sum();
    for (name, info) in pickle.tensor_infos() {
        let shape = info.layout.dims().to_vec();
        let count = |n: usize| {
            *counted.borrow_mut() += n as u64;
            seen(*counted.borrow(), total);
        };
        let size = usize::try_from(bytes(info.layout.shape().elem_count(), info.dtype)).unwrap_or(usize::MAX);
        tensors.push((
            name,
            Lazy { pickle: &pickle, name, dtype: info.dtype, shape, size, count, trouble: &trouble },
        ));
    }
    if tensors.is_empty() {
        return Err("it holds no tensors".into());
    }
    serialize_to_file(tensors, None, to).map_err(|error| error.to_string())?;
    trouble.into_inner().map_or(Ok(()), Err)
}

/// A tensor that is read when it is written.
struct Lazy<'a, C: Fn(usize)> {
    pickle: &'a PthTensors,
    name: &'a str,
    dtype: DType,
    shape: Vec<usize>,
    size: usize,
    count: C,
    trouble: &'a RefCell<Option<String>>,
}

impl<C: Fn(usize)> View for Lazy<'_, C> {
    fn dtype(&self) -> Dtype {
        self.dtype.into()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        (self.count)(self.size);
        let read = match self.pickle.get(self.name) {
            Ok(Some(tensor)) => Ok(tensor.data().into_owned()),
            Ok(None) => Err("not there".to_owned()),
            Err(error) => Err(root(&error)),
        };
        // `View` cannot fail: the trouble is kept for the caller, who throws the file away.
        Cow::Owned(read.unwrap_or_else(|why| {
            self.trouble.borrow_mut().get_or_insert(format!("tensor {}: {why}", self.name));
            Vec::new()
        }))
    }

    fn data_len(&self) -> usize {
        self.size
    }
}

fn bytes(elements: usize, dtype: DType) -> u64 {
    (elements as u64).saturating_mul(dtype.size_in_bytes() as u64)
}

/// The first line of a candle error: the rest is a backtrace.
fn root(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or("unknown").to_owned()
}
