//! The seam: what turns token ids into outputs. One implementation a kind of processor; [`choose`] picks it.

use std::sync::Arc;

use candle_core::{DType, Device};

use super::{
    EmbedError, Settings,
    candle::CandleEncoder,
    cpu,
    expect::{Expect, OpenError},
    heads::{Encoded, Heads},
    layout::ModelFiles,
    threads::threads_of,
};

/// Token ids to outputs, in one pass. Implementations compute every text as if it were alone.
pub trait Encoder: Send + Sync {
    /// Numbers in a vector.
    fn dim(&self) -> usize;

    /// The device: `cpu`, `cuda:0`.
    fn device(&self) -> String {
        "cpu".into()
    }

    /// Rows of numbers that a pass holds for each token at most: of the model's width, and of its inner part's. The
    /// kernels hold what goes from layer to layer, queries with keys and values, what attention mixed, and what the
    /// heads make of it; the inner part in pieces, counted here in full.
    fn rows_a_token(&self) -> (usize, usize) {
        (6, 1)
    }

    /// What each text comes to, in order: its dense vector, and what `heads` make of the same final rows. Each text has at
    /// least one id, no id is past the vocabulary, and no text is longer than the model takes: the caller has checked.
    ///
    /// # Errors
    /// The pass failed as a whole.
    fn encode(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Result<Vec<Encoded>, EmbedError>;

    /// The same model with more room in its numbers, for a text whose outputs are not sound. `None`: this is it.
    ///
    /// # Errors
    /// It cannot be loaded.
    fn exact(&self) -> Result<Option<Arc<dyn Encoder>>, EmbedError> {
        Ok(None)
    }
}

/// The encoder for these settings, with its weights loaded.
///
/// # Errors
/// A setting names what is not there, or the weights do not load.
pub fn choose(
    files: &ModelFiles,
    expect: &Expect,
    settings: &Settings,
) -> Result<Box<dyn Encoder>, OpenError> {
    let device = device_of(&settings.device)?;
    let (threads, source) = threads_of(settings.threads);
    let place = if device.is_cpu() { "cpu" } else { "cuda" };
    tracing::info!(device = place, threads, source, model = expect.name, "loading the model");
    let dtype = dtype_of(&settings.compute, device.is_cpu())?;
    if device.is_cpu() && settings.kernel != "candle" {
        return cpu::load(files, expect, settings, threads);
    }
    Ok(Box::new(CandleEncoder::load(files, expect, &device, dtype, threads)?))
}

/// Refuses a `model.compute` that the device has not, where `model.device` names one.
///
/// # Errors
/// [`OpenError::Setting`].
pub fn check_compute(settings: &Settings) -> Result<(), OpenError> {
    match settings.device.as_str() {
        "auto" => Ok(()),
        device => dtype_of(&settings.compute, device == "cpu").map(drop),
    }
}

/// What candle computes with for `model.compute`, where the device has it. (i16, which candle has not, is `F32` on the
/// processor, whose kernels look at the setting themselves.)
fn dtype_of(compute: &str, on_cpu: bool) -> Result<DType, OpenError> {
    let refuse = |what: &str| {
        Err(OpenError::Setting { key: "model.compute", value: format!("{compute:?}"), what: what.into() })
    };
    match compute {
        "i16" if !on_cpu => {
            refuse("i16 is there on the CPU only; set model.device = \"cpu\" or model.compute = \"f32\"")
        }
        "f16" | "bf16" if on_cpu => refuse(
            "half precision is there on a GPU only (on a CPU it is slower and less exact); set model.compute = \"f32\" or \
             \"i16\", or model.device = \"cuda\"",
        ),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Ok(DType::F32),
    }
}

/// `auto`, `cpu`, `cuda` or `cuda:N` to a device.
fn device_of(setting: &str) -> Result<Device, OpenError> {
    let wrong =
        |what: String| OpenError::Setting { key: "model.device", value: format!("{setting:?}"), what };
    let cuda = |ordinal: usize| {
        if !candle_core::utils::cuda_is_available() {
            return Err(wrong(
                "this program was built without CUDA; set model.device = \"cpu\", or build it with: \
                 cargo build --release --features cuda"
                    .into(),
            ));
        }
        Device::new_cuda(ordinal)
            .map_err(|error| wrong(format!("the GPU does not answer: {error}; set model.device = \"cpu\"")))
    };
    match setting {
        "cpu" => Ok(Device::Cpu),
        "auto" => Ok(cuda(0).unwrap_or(Device::Cpu)),
        "cuda" => cuda(0),
        other => match other.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()) {
            Some(ordinal) => cuda(ordinal),
            None => Err(wrong("expected auto, cpu, cuda or cuda:N".into())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_cannot_compute_is_refused_with_what_to_set() {
        assert_eq!(dtype_of("f16", false).unwrap(), DType::F16);
        assert_eq!(dtype_of("bf16", false).unwrap(), DType::BF16);
        for (compute, on_cpu) in [("f32", true), ("f32", false), ("i16", true)] {
            assert_eq!(dtype_of(compute, on_cpu).unwrap(), DType::F32);
        }
        for (compute, on_cpu, set) in [("f16", true, "cuda"), ("bf16", true, "i16"), ("i16", false, "cpu")] {
            let message = dtype_of(compute, on_cpu).unwrap_err().to_string();
            assert!(
                message.contains(&format!("model.compute = {compute:?}")) && message.contains(set),
                "{message}"
            );
        }
    }

    #[test]
    fn devices_are_read_or_refused_with_what_to_set() {
        assert!(device_of("cpu").unwrap().is_cpu());
        assert!(device_of("auto").is_ok());
        assert!(device_of("gpu").unwrap_err().to_string().contains("cuda:N"));
        #[cfg(not(feature = "cuda"))]
        for setting in ["cuda", "cuda:1"] {
            let message = device_of(setting).unwrap_err().to_string();
            assert!(message.contains("model.device") && message.contains("--features cuda"), "{message}");
        }
    }
}
