//! Every path on which this processor computes vectors, and how far apart two embeddings of one text are.
#![allow(dead_code, reason = "each file of tests uses its part")]

use std::{collections::BTreeMap, path::Path};

use forebay::{
    chunk::Embedding,
    embed::{Embed, Settings, Tokens, cpu, expect::Expect, local::LocalModel},
};

/// A path: `model.kernel` and `model.compute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) kernel: &'static str,
    pub(crate) compute: &'static str,
}

/// What every other path is held against.
pub(crate) const REFERENCE: Way = Way { kernel: "candle", compute: "f32" };

/// The reference, then each kernel of this processor in each arithmetic. With `FOREBAY_TEST_DEVICE=cuda`, whose path the
/// kernels are not, only that.
pub(crate) fn ways() -> Vec<Way> {
    if std::env::var_os("FOREBAY_TEST_DEVICE").is_some_and(|device| device != "cpu") {
        return vec![Way { kernel: "auto", compute: "f32" }];
    }
    let kernels = cpu::kernels().into_iter();
    let ours = kernels.flat_map(|kernel| ["f32", "i16"].map(|compute| Way { kernel, compute }));
    std::iter::once(REFERENCE).chain(ours).collect()
}

impl Way {
    pub(crate) fn open(self, folder: &Path, expect: &Expect, settings: &Settings) -> LocalModel {
        LocalModel::open(folder, expect, &self.settings(settings)).unwrap()
    }

    pub(crate) fn settings(self, settings: &Settings) -> Settings {
        Settings { kernel: self.kernel.into(), compute: self.compute.into(), ..settings.clone() }
    }

    pub(crate) fn is_exact(self) -> bool {
        self.compute == "f32"
    }

    /// Cosine to the reference at least, as the page of settings says.
    pub(crate) fn cosine_min(self) -> f64 {
        if self.is_exact() { 0.99999 } else { 0.9999 }
    }
}

/// `n` tokens as the template has them, the first and the last a special of this family.
pub(crate) fn text_of(ends: [u32; 2], n: usize, random: &mut fastrand::Rng) -> Tokens {
    let inner = (0..n.saturating_sub(2)).map(|_| random.u32(5..100)).collect::<Vec<_>>();
    let ids = std::iter::once(ends[0]).chain(inner).chain((n > 1).then_some(ends[1])).collect();
    Tokens { ids, truncated: false }
}

/// What one pass makes of these texts.
pub(crate) fn together(model: &LocalModel, texts: &[&Tokens]) -> Vec<Embedding> {
    model.embed(texts).unwrap().into_iter().map(Result::unwrap).collect()
}

/// How far two embeddings of one text are apart. Vectors have norm 1, so that `1 - off² / 2` is their cosine; it is the
/// distance that is looked at, as a cosine near 1 hides half of the digits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Off {
    /// Distance of the dense vectors.
    pub(crate) dense: f64,
    /// Largest distance of two weights, as a part of the largest weight if that is over 1; an id that is wanting
    /// weighs nothing.
    pub(crate) sparse: f64,
    /// Largest distance of two rows.
    pub(crate) multi: f64,
}

impl Off {
    pub(crate) fn of(a: &Embedding, b: &Embedding) -> Self {
        let (dim, none) = (a.dense.len(), Vec::new());
        assert!(a.multi.is_some() == b.multi.is_some() && a.sparse.is_some() == b.sparse.is_some());
        let mut weights: BTreeMap<u32, f64> = BTreeMap::new();
        for (sign, pairs) in [(1.0, &a.sparse), (-1.0, &b.sparse)] {
            pairs
                .iter()
                .flatten()
                .for_each(|(id, weight)| *weights.entry(*id).or_default() += sign * f64::from(*weight));
        }
        let largest = b.sparse.iter().flatten().map(|(_, weight)| f64::from(*weight)).fold(1.0, f64::max);
        let (rows, others) = (a.multi.as_ref().unwrap_or(&none), b.multi.as_ref().unwrap_or(&none));
        assert_eq!(rows.len(), others.len());
        let rows = rows.chunks_exact(dim).zip(others.chunks_exact(dim));
        Self {
            dense: distance(&a.dense, &b.dense),
            sparse: weights.values().fold(0.0_f64, |off, weight| off.max(weight.abs())) / largest,
            multi: rows.map(|(a, b)| distance(a, b)).fold(0.0, f64::max),
        }
    }

    /// The larger of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            dense: self.dense.max(other.dense),
            sparse: self.sparse.max(other.sparse),
            multi: self.multi.max(other.multi),
        }
    }

    pub(crate) fn is_within(self, most: Self) -> bool {
        self.dense <= most.dense && self.sparse <= most.sparse && self.multi <= most.multi
    }
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt()
}
