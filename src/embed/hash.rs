//! `model.name = "instant"`: vectors from a hash, for trying the line without a model. Texts that share words
//! come out near each other, and nothing more is promised.

use super::{Capacity, Embed, EmbedError, Settings, Tokens, expect::OpenError, outputs::Outputs};
use crate::{
    chunk::{Digest, Embedding},
    error::{Class, Fault},
    identity::{Identity, IdentityParts},
};

/// One dimension for each bit of a word's hash.
const DIM: usize = 64;
/// Words at most in one text, when nothing is set.
const MAX_LENGTH: usize = 8_192;

/// The stand-in for a model: a word is a token, a text is the sum of its words' signs.
pub struct Instant {
    identity: Identity,
    max_length: usize,
    pass_tokens: usize,
    bury_long: bool,
}

impl Instant {
    /// The stand-in under these settings.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for outputs or a class of arithmetic it does not have.
    pub fn new(settings: &Settings) -> Result<Self, OpenError> {
        super::local::check_settings(settings)?;
        Outputs::read(&settings.outputs)?.within(Outputs::default(), &settings.outputs, "instant")?;
        let max_length = if settings.max_length == 0 { MAX_LENGTH } else { settings.max_length };
        let identity = Identity::of(&IdentityParts {
            name: "instant".into(),
            revision: "1".into(),
            weights: Digest::of(b"forebay instant 1"),
            tokenizer: Digest::of(b"forebay instant 1: white space"),
            pooling: "mean".into(),
            normalize: true,
            max_length,
            outputs: vec!["dense".into()],
            dim: DIM,
            compute: "f32".into(),
            document_prefix: String::new(),
            text_normalization: "none".into(),
        });
        Ok(Self {
            identity,
            max_length,
            pass_tokens: settings.pass_tokens,
            bury_long: settings.truncation == "bury",
        })
    }
}

impl Embed for Instant {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn dim(&self) -> usize {
        DIM
    }

    fn max_length(&self) -> usize {
        self.max_length
    }

    fn count(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn tokenize(&self, text: &str) -> Result<Tokens, Fault> {
        let mut words = text.split_whitespace().map(word_id);
        let ids: Vec<u32> = words.by_ref().take(self.max_length).collect();
        let more = words.count();
        if more > 0 && self.bury_long {
            return Err(super::local::too_long(ids.len() + more, true, self.max_length));
        }
        Ok(Tokens { ids, truncated: more > 0 })
    }

    fn tokenize_query(&self, text: &str) -> Result<Tokens, Fault> {
        self.tokenize(text)
    }

    fn capacity(&self) -> Capacity {
        let (tokens, source) = (self.pass_tokens, "model.pass_tokens");
        Capacity { device: "cpu".into(), tokens, source, token_bytes: 0, free: None }
    }

    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError> {
        let one = |tokens: &&Tokens| {
            let n_tokens = u32::try_from(tokens.ids.len())
                .map_err(|_| Fault::new(Class::TooLong, "more than 2^32 words"))?;
            let (dense, truncated) = (vector(&tokens.ids), tokens.truncated);
            Ok(Embedding { dense, n_tokens, truncated, ..Embedding::default() })
        };
        Ok(batch.iter().map(one).collect())
    }

    fn golden(&self) -> Tokens {
        Tokens { ids: super::local::GOLDEN_TEXT.split_whitespace().map(word_id).collect(), truncated: false }
    }
}

/// FNV-1a: the id of a word.
fn word_id(word: &str) -> u32 {
    word.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Each word's hash votes for or against each dimension. The sum starts off the integers, so that no text,
/// whatever its words, ends at zero.
fn vector(ids: &[u32]) -> Vec<f32> {
    let mut sum = [0.5_f32; DIM];
    for &id in ids {
        let bits = mix(u64::from(id));
        for (i, sum) in sum.iter_mut().enumerate() {
            *sum += if bits >> i & 1 == 1 { 1.0 } else { -1.0 };
        }
    }
    let norm = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
    sum.iter().map(|value| value / norm).collect()
}

/// The finaliser of splitmix64: every bit of the result depends on every bit of the input.
const fn mix(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::embed::local::tests::settings;

    fn model() -> Instant {
        Instant::new(&settings()).unwrap()
    }

    fn embed(text: &str) -> Embedding {
        let tokens = model().tokenize(text).unwrap();
        model().embed(&[&tokens]).unwrap().remove(0).unwrap()
    }

    #[test]
    fn the_vectors_never_change() {
        assert_eq!(model().identity().label, "instant@1/dense-64/f32/8192");
        let bytes: Vec<u8> =
            embed("the gate of the forebay").dense.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(Digest::of(&bytes).short(16), "ef7c7858dea18552");
    }

    #[test]
    fn shared_words_bring_texts_near() {
        let cosine = |a: &str, b: &str| -> f32 {
            embed(a).dense.iter().zip(&embed(b).dense).map(|(a, b)| a * b).sum()
        };
        assert!(cosine("water in the gate", "water at the gate") > 0.5);
        assert!(cosine("water in the gate", "quite another matter here") < 0.5);
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        let short = Instant::new(&Settings { max_length: 3, ..settings() }).unwrap();
        assert!(!short.tokenize("a b c").unwrap().truncated);
        let cut = short.tokenize("a b c d").unwrap();
        assert!(cut.truncated && cut.ids == short.tokenize("a b c").unwrap().ids);
        let strict = Settings { max_length: 3, truncation: "bury".into(), ..settings() };
        let fault = Instant::new(&strict).unwrap().tokenize("a b c d").unwrap_err();
        assert_eq!(fault.class, Class::TooLong);
        assert!(fault.message.starts_with("it has 4 tokens, and 3 are taken"), "{fault}");
    }

    proptest! {
        #[test]
        fn every_text_has_a_vector_of_norm_1(text in "\\PC{0,200}") {
            let norm: f32 = embed(&text).dense.iter().map(|v| v * v).sum::<f32>().sqrt();
            prop_assert!((norm - 1.0).abs() < 1e-3);
        }
    }
}
