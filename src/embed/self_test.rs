//! Whether a loaded model computes what it should, before it is given anybody's texts: each golden text alone, with the
//! others, and against the reference where there is one.

use super::{
    Embed, EmbedError, Settings, Tokens,
    golden::{self, Golden},
};
use crate::{
    error::{Class, Fault},
    identity::Identity,
};

/// Texts where the reference has none: short, so that the test costs little, of several scripts, and of unequal lengths,
/// so that together they do not lie as they do alone.
const TEXTS: [&str; 5] = [
    "The gate of the forebay closes when the turbine trips.",
    "水",
    "Der Müller öffnete die Schleuse, bevor die Straße überflutet war, und ging dann langsam nach Hause.",
    "Плотина удерживает воду.",
    "يتدفق الماء ببطء نحو التوربين في الصباح.",
];

/// What a model that works was found to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfTest {
    /// Lowest cosine of a text to itself in company, and to the reference.
    pub cosine: f64,
    /// Texts embedded.
    pub texts: usize,
    /// Of those: held against the reference.
    pub golden: usize,
}

/// A model does not compute what it should.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the self-test of {model} failed: {what}. Nothing was embedded. {remedy}")]
pub struct Refused {
    /// Name of the model.
    pub model: String,
    /// What was found.
    pub what: String,
    /// What to type.
    pub remedy: String,
}

/// Cosine that a text must have to itself, and less than which two texts must have to each other. i16 rounds what a
/// token activates to 12 bits, which neighbours do not change, but the reference does not round.
pub fn cosine_min(compute: &str) -> f64 {
    if compute == "i16" { 0.999 } else { 0.9999 }
}

/// Tests the model of these settings; `None`: `instant` has nothing to test.
///
/// # Errors
/// [`Refused`], with what to type.
pub fn self_test(model: &dyn Embed, settings: &Settings) -> Result<Option<SelfTest>, Refused> {
    if settings.name == "instant" {
        return Ok(None);
    }
    let limit = cosine_min(&settings.compute);
    test(model, golden::of(&settings.name), limit).map(Some).map_err(|found| Refused {
        model: settings.name.clone(),
        remedy: remedy(&found, settings, model.identity()),
        what: found.to_string(),
    })
}

/// The vectors of the model's self-test texts, alone, in order.
///
/// # Errors
/// A sentence.
pub fn vectors(model: &dyn Embed, settings: &Settings) -> Result<Vec<Vec<f32>>, String> {
    let texts = tokens(model, golden::of(&settings.name)).map_err(|found| found.to_string())?;
    let alone = |(tokens, _): &(Tokens, _)| embed(model, &[tokens]).map(|mut vectors| vectors.remove(0));
    texts.iter().map(alone).collect::<Result<_, _>>().map_err(|found| found.to_string())
}

/// Cosine of two vectors, in f64.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// What is not a number is less than anything.
const fn is_less(cosine: f64, limit: f64) -> bool {
    cosine.is_nan() || cosine < limit
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
enum Wrong {
    #[error("{0}")]
    Pass(EmbedError),
    #[error("golden text {at} cannot be embedded: {fault}")]
    Text { at: usize, fault: Fault },
    #[error("golden text {at} has other token ids than the reference")]
    Ids { at: usize },
    #[error("golden text {at} has a vector of norm {norm:.6}")]
    Norm { at: usize, norm: f64 },
    #[error("golden text {at} alone and together with others differ (cosine {cosine:.6}, {limit} is needed)")]
    Company { at: usize, cosine: f64, limit: f64 },
    #[error("golden text {at} has another vector than the reference (cosine {cosine:.6}, {limit} is needed)")]
    Reference { at: usize, cosine: f64, limit: f64 },
    #[error("golden texts {0} and {1} differ and have the same vector (cosine {2:.6})")]
    Collapsed(usize, usize, f64),
}

/// What to type: a tokenizer is a file of the model's; what computes can be exchanged.
fn remedy(wrong: &Wrong, settings: &Settings, identity: &Identity) -> String {
    let verify = format!("check its files with `forebay model verify {}`", settings.name);
    match wrong {
        Wrong::Ids { .. } => format!("Its tokenizer is at fault: {verify}"),
        Wrong::Pass(error) if error.class() == Class::OutOfMemory => {
            "Free memory, or set model.name to a smaller model".into()
        }
        _ if settings.device != "cpu" && settings.kernel == "candle" => {
            format!("Go on without the GPU: `--set model.device=cpu`; or {verify}")
        }
        _ if settings.kernel != "candle" => format!(
            "Type `forebay check --deep`: it tells the files of the model from what computes. `--set \
             model.kernel=candle` computes without the fast kernels ({})",
            identity.label
        ),
        _ => format!("First {verify}, then report this"),
    }
}

fn test(model: &dyn Embed, golden: &[Golden], limit: f64) -> Result<SelfTest, Wrong> {
    let texts = tokens(model, golden)?;
    let all: Vec<&Tokens> = texts.iter().map(|(tokens, _)| tokens).collect();
    let together = embed(model, &all)?;
    let (mut lowest, mut held) = (1.0_f64, 0);
    for (at, ((tokens, golden), vector)) in texts.iter().zip(&together).enumerate() {
        let norm = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        if norm.is_nan() || (norm - 1.0).abs() > 1e-3 {
            return Err(Wrong::Norm { at, norm });
        }
        let company = cosine(&embed(model, &[tokens])?[0], vector);
        lowest = lowest.min(company);
        if is_less(company, limit) {
            return Err(Wrong::Company { at, cosine: company, limit });
        }
        if let Some(golden) = golden {
            let reference = cosine(&golden.dense, vector);
            (lowest, held) = (lowest.min(reference), held + 1);
            if is_less(reference, limit) {
                return Err(Wrong::Reference { at, cosine: reference, limit });
            }
        }
        let others = texts.iter().zip(&together).take(at).enumerate();
        for (before, ((other, _), other_vector)) in others {
            let same = cosine(other_vector, vector);
            if other.ids != tokens.ids && same >= limit {
                return Err(Wrong::Collapsed(before, at, same));
            }
        }
    }
    Ok(SelfTest { cosine: lowest, texts: texts.len(), golden: held })
}

/// Texts as ids, each with its reference if that holds for what is left of it under `model.max_length`.
fn tokens<'g>(model: &dyn Embed, golden: &'g [Golden]) -> Result<Vec<(Tokens, Option<&'g Golden>)>, Wrong> {
    let mut found = Vec::new();
    let fixed = TEXTS.iter().filter(|_| golden.is_empty()).map(|text| (*text, None));
    let texts = golden.iter().map(|golden| (golden.text.as_str(), Some(golden))).chain(fixed);
    for (at, (text, golden)) in texts.enumerate() {
        match model.tokenize(text) {
            Ok(tokens) if golden.is_some_and(|golden| !tokens.truncated && golden.ids != tokens.ids) => {
                return Err(Wrong::Ids { at });
            }
            Ok(tokens) => {
                let golden = golden.filter(|_| !tokens.truncated);
                found.push((tokens, golden));
            }
            // Longer than `model.max_length`, and such texts are buried.
            Err(fault) if fault.class == Class::TooLong => {}
            Err(fault) => return Err(Wrong::Text { at, fault }),
        }
    }
    if found.is_empty() {
        found.push((model.golden(), None));
    }
    Ok(found)
}

fn embed(model: &dyn Embed, texts: &[&Tokens]) -> Result<Vec<Vec<f32>>, Wrong> {
    let results = model.embed(texts).map_err(Wrong::Pass)?;
    let one = |(at, result): (usize, Result<crate::chunk::Embedding, Fault>)| {
        result.map(|embedding| embedding.dense).map_err(|fault| Wrong::Text { at, fault })
    };
    results.into_iter().enumerate().map(one).collect()
}

#[cfg(test)]
#[cfg(feature = "testkit")]
#[path = "self_test_tests.rs"]
mod tests;
