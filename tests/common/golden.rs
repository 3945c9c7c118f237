//! Golden files of the Python reference (see `tests/golden/make.py`), and how a model is held against one.

use std::path::Path;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use forebay::{
    chunk::Digest,
    embed::{Embed, Tokens, local::LocalModel},
};
use serde::Deserialize;

/// Cosine to the reference at least, in f32.
pub(crate) const COSINE_MIN: f64 = 0.99999;

pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    assert_eq!(a.len(), b.len());
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Vectors of all texts, in order, by the passes the model itself plans.
pub(crate) fn vectors(model: &LocalModel, texts: &[Tokens]) -> Vec<Vec<f32>> {
    let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
    let mut vectors = vec![Vec::new(); texts.len()];
    for group in model.plan(&lengths) {
        let batch: Vec<&Tokens> = group.iter().map(|&index| &texts[index]).collect();
        for (&index, result) in group.iter().zip(model.embed(&batch).unwrap()) {
            vectors[index] = result.unwrap().dense;
        }
    }
    vectors
}

pub(crate) fn alone(model: &LocalModel, text: &Tokens) -> Vec<f32> {
    model.embed(&[text]).unwrap().remove(0).unwrap().dense
}

#[derive(Deserialize)]
pub(crate) struct Head {
    pub(crate) weights_sha256: Digest,
    pub(crate) texts: usize,
}

#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) vector: String,
}

pub(crate) fn golden(name: &str) -> (Head, Vec<Golden>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.jsonl"));
    let file = std::fs::read_to_string(path).unwrap();
    let (head, lines) = file.split_once('\n').unwrap();
    let head: Head = serde_json::from_str(head).unwrap();
    let records: Vec<Golden> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), head.texts);
    (head, records)
}

/// Ids are those of the reference, and so are vectors, by a cosine of at least `cosine_min`; gives the lowest.
pub(crate) fn agrees_with_golden(model: &LocalModel, records: &[Golden], cosine_min: f64) -> f64 {
    let mut lowest = 1.0_f64;
    let tokens: Vec<Tokens> = records.iter().map(|record| model.tokenize(&record.text).unwrap()).collect();
    for (record, tokens) in records.iter().zip(&tokens) {
        let head: String = record.text.chars().take(60).collect();
        assert_eq!(tokens.ids, record.ids, "ids of {head:?}");
    }
    for (record, vector) in records.iter().zip(vectors(model, &tokens)) {
        let bytes = BASE64_STANDARD.decode(&record.vector).unwrap();
        let reference: Vec<f32> =
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let cosine = cosine(&vector, &reference);
        let head: String = record.text.chars().take(60).collect();
        assert!(cosine >= cosine_min, "{cosine} for {head:?} of {} tokens", record.ids.len());
        lowest = lowest.min(cosine);
    }
    lowest
}
