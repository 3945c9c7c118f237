//! The same model once more in f32, for texts that half precision cannot hold: bge-m3 gives NaN for some ordinary
//! sentences in f16. Loaded when the first such text comes, and kept.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device};

use super::{
    candle::CandleEncoder,
    encoder::Encoder,
    expect::{Expect, OpenError},
    layout::ModelFiles,
};

/// Where the model comes from, and the model once it was needed.
pub struct Exact {
    files: ModelFiles,
    expect: Expect,
    device: Device,
    kept: Mutex<Option<Arc<dyn Encoder>>>,
}

impl Exact {
    /// Of these files, for this device.
    pub fn new(files: &ModelFiles, expect: &Expect, device: &Device) -> Self {
        Self { files: files.clone(), expect: expect.clone(), device: device.clone(), kept: Mutex::default() }
    }

    /// The model in f32.
    ///
    /// # Errors
    /// It cannot be loaded a second time: the files are gone, or the memory of the device is full.
    pub fn get(&self) -> Result<Arc<dyn Encoder>, OpenError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(encoder) = &*kept {
            return Ok(Arc::clone(encoder));
        }
        tracing::info!(model = self.expect.name, "loading the model in f32 too, for texts that overflow");
        // One thread: on a GPU, the only place where this happens, there are no lanes.
        let encoder = CandleEncoder::load(&self.files, &self.expect, &self.device, DType::F32, 1)?;
        Ok(Arc::clone(kept.insert(Arc::new(encoder))))
    }
}
