//! What a GPU would be given, on the processor: half precision and streamed passes go through the same calls there.
#![cfg(feature = "testkit")]

use super::*;
use crate::{
    embed::{
        Embed as _, Settings, Tokens,
        expect::Family,
        local::{LocalModel, tests::settings},
    },
    testkit::tiny,
};

/// `FOREBAY_TEST_DEVICE=cuda` runs these tests on a GPU (`benches/gpu.sh`); the reference stays on the processor.
fn device() -> Device {
    match std::env::var("FOREBAY_TEST_DEVICE").as_deref() {
        Ok("cuda") => Device::new_cuda(0).unwrap(),
        _ => Device::Cpu,
    }
}

struct Tiny {
    folder: tempfile::TempDir,
    expect: Expect,
}

impl Tiny {
    fn new(family: Family) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let expect = tiny::write(folder.path(), family, 7).unwrap();
        Self { folder, expect }
    }

    /// As it is loaded for a GPU: no lanes.
    fn streamed(&self, dtype: DType) -> CandleEncoder {
        let files = ModelFiles::read(self.folder.path(), &self.expect).unwrap();
        CandleEncoder::with_lanes(&files, &self.expect, &device(), dtype, None).unwrap()
    }

    fn reference(&self) -> LocalModel {
        let settings = Settings { kernel: "candle".into(), ..settings() };
        LocalModel::open(self.folder.path(), &self.expect, &settings).unwrap()
    }

    /// Makes the numbers after the first normalisation larger than f16 holds; in f32 the second brings them back.
    fn overflow(&self) {
        let path = self.folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let header_len = usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
        let offsets = &header["embeddings.LayerNorm.weight"]["data_offsets"];
        let at = |end: usize| 8 + header_len + usize::try_from(offsets[end].as_u64().unwrap()).unwrap();
        for number in bytes[at(0)..at(1)].as_chunks_mut().0 {
            *number = (f32::from_le_bytes(*number) * 1e5).to_le_bytes();
        }
        std::fs::write(path, bytes).unwrap();
    }
}

fn texts(lengths: &[u32]) -> Vec<Vec<u32>> {
    let text = |(seed, &n): (usize, &u32)| (0..n).map(|i| 5 + (i * 31 + seed as u32 * 7) % 60).collect();
    lengths.iter().enumerate().map(text).collect()
}

fn cosine_min(ours: &[Vec<f32>], reference: &[Vec<f32>]) -> f32 {
    assert_eq!(ours.len(), reference.len());
    let dot = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    ours.iter().zip(reference).map(dot).fold(f32::INFINITY, f32::min)
}

fn encode(encoder: &dyn Encoder, texts: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let batch: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
    encoder.encode(&batch, None).unwrap().into_iter().map(|encoded| encoded.dense).collect()
}

#[test]
fn a_streamed_pass_gives_what_lanes_give_in_each_precision() {
    for family in [Family::Bert, Family::XlmRoberta] {
        let tiny = Tiny::new(family);
        let texts = texts(&[290, 260, 200, 64, 60, 60, 41, 7, 5, 2, 1, 33]);
        let reference = encode(&*tiny.reference().encoder, &texts);
        for (dtype, at_least) in [(DType::F32, 0.99999), (DType::F16, 0.9999), (DType::BF16, 0.999)] {
            let encoder = tiny.streamed(dtype);
            let cosine = cosine_min(&encode(&encoder, &texts), &reference);
            assert!(cosine >= at_least, "{family:?} {dtype:?}: {cosine}");
            assert_eq!(encoder.exact().unwrap().is_some(), dtype != DType::F32);
        }
    }
}

#[test]
fn a_pass_of_many_parts_comes_back_in_order() {
    let tiny = Tiny::new(Family::XlmRoberta);
    // Three parts of at most 8,192 tokens.
    let texts = texts(&[4_000, 3_900, 3_900, 3_900, 300, 3, 2_000]);
    let ours = encode(&tiny.streamed(DType::F32), &texts);
    assert!(cosine_min(&ours, &encode(&*tiny.reference().encoder, &texts)) >= 0.99999);
}

#[test]
fn a05_a_text_that_half_precision_cannot_hold_is_computed_in_f32() {
    let tiny = Tiny::new(Family::XlmRoberta);
    tiny.overflow();
    let reference = tiny.reference();
    let texts = texts(&[12, 30]);
    let half = tiny.streamed(DType::F16);
    assert!(encode(&half, &texts).concat().iter().any(|value| value.is_nan()), "f16 cannot hold it");
    let mut model = tiny.reference();
    model.encoder = Box::new(half);
    let tokens: Vec<Tokens> = texts.iter().map(|ids| Tokens { ids: ids.clone(), truncated: false }).collect();
    let results = model.embed(&tokens.iter().collect::<Vec<_>>()).unwrap();
    let ours: Vec<Vec<f32>> = results.into_iter().map(|result| result.unwrap().dense).collect();
    assert!(cosine_min(&ours, &encode(&*reference.encoder, &texts)) >= 0.99999);
}

#[test]
fn a_text_that_cannot_be_computed_exactly_says_why() {
    let tiny = Tiny::new(Family::XlmRoberta);
    tiny.overflow();
    let mut model = tiny.reference();
    model.encoder = Box::new(tiny.streamed(DType::F16));
    std::fs::remove_file(tiny.folder.path().join("model.safetensors")).unwrap();
    let fault = model.embed(&[&model.golden()]).unwrap().remove(0).unwrap_err();
    assert!(fault.to_string().contains("model.safetensors is missing"), "{fault}");
}
