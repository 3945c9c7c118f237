//! The seam: what turns token ids into outputs. One implementation a kind of processor; [`choose`] picks it.

use candle_core::Device;

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

    /// What each text comes to, in order: its dense vector, and what `heads` make of the same final rows. Each text has at
    /// least one id, no id is past the vocabulary, and no text is longer than the model takes: the caller has checked.
    ///
    /// # Errors
    /// The pass failed as a whole.
    fn encode(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Result<Vec<Encoded>, EmbedError>;
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
    if device.is_cpu() && settings.kernel != "candle" {
        return cpu::load(files, expect, settings, threads);
    }
    if settings.compute == "i16" {
        return Err(OpenError::Setting {
            key: "model.compute",
            value: "\"i16\"".into(),
            what: "i16 is there on the CPU only; set model.device = \"cpu\" or model.compute = \"f32\""
                .into(),
        });
    }
    Ok(Box::new(CandleEncoder::load(files, expect, &device, threads)?))
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
