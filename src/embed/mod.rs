//! Texts to vectors: the only room that knows candle, tokenizers and the hub.
//!
//! The line sees [`Embed`] and nothing else. Behind it: `tokens` (text to ids), `plan` (which texts share a
//! forward pass), `encoder` (the seam: ids to outputs; one implementation a device and processor), `heads` (the sparse and
//! the multi-vector output, from the same pass).

mod attention;
pub mod budget;
pub mod bundle;
pub mod cache;
pub mod candle;
mod convert;
pub mod cpu;
mod cuda;
mod download;
pub mod encoder;
pub mod entry;
mod exact;
pub mod expect;
pub mod fail;
mod folder;
mod fused;
mod golden;
pub mod hash;
pub mod heads;
pub mod heap;
pub mod hub;
mod hub_cache;
mod lanes;
pub mod layout;
mod linear;
pub mod local;
pub mod machine;
pub mod manifest;
mod math;
mod memory;
mod open;
pub mod outputs;
pub mod plan;
pub mod pull;
pub mod self_test;
mod stage;
pub mod threads;
pub mod tokens;
pub mod verify;
pub mod weights;
mod wheel;
mod words;

pub use open::{ModelError, identity, open};

use crate::{
    chunk::Embedding,
    error::{Class, Fault},
    identity::Identity,
};

/// A text as token ids, ready for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Ids with the specials of the template, at most `max_length`.
    pub ids: Vec<u32>,
    /// Whether ids were cut off to fit.
    pub truncated: bool,
}

/// A loaded model.
///
/// Calls block and are made from threads of their own, never from the async runtime.
pub trait Embed: Send + Sync {
    /// The space its vectors belong to.
    fn identity(&self) -> &Identity;

    /// Numbers in a dense vector.
    fn dim(&self) -> usize;

    /// Tokens at most in one text, specials included.
    fn max_length(&self) -> usize;

    /// Tokens of `text` without the specials: the measure documents are split by.
    fn count(&self, text: &str) -> usize;

    /// Ids of a document's text (with the model's document prefix, if it has one).
    ///
    /// # Errors
    /// `too_long` when `model.truncation = "bury"` and the text does not fit, `tokenizer_failed`.
    fn tokenize(&self, text: &str) -> Result<Tokens, Fault>;

    /// Ids of a search query (with the model's query prefix, if it has one).
    ///
    /// # Errors
    /// As [`Embed::tokenize`].
    fn tokenize_query(&self, text: &str) -> Result<Tokens, Fault>;

    /// What a forward pass may hold here.
    fn capacity(&self) -> Capacity;

    /// Groups texts of these lengths (in tokens) into forward passes: indices, longest first, each group
    /// within the capacity or a single text.
    fn plan(&self, lengths: &[usize]) -> Vec<Vec<usize>> {
        self.plan_within(lengths, self.capacity().tokens)
    }

    /// The same within fewer tokens than the capacity.
    fn plan_within(&self, lengths: &[usize], tokens: usize) -> Vec<Vec<usize>> {
        plan::plan(lengths, tokens)
    }

    /// One forward pass: one result per text, in order, with all outputs that were asked for. One that is not sound (see
    /// [`Embedding::check`]) is a fault of its text alone (after it was tried alone once more).
    ///
    /// # Errors
    /// A failure of the pass as a whole, whose culprit (a text, or the device) is unknown.
    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError>;

    /// A text that is known to work, to tell a bad text from a broken device.
    fn golden(&self) -> Tokens;
}

/// What a forward pass may hold, and on what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The device: `cpu`, `cuda:0`.
    pub device: String,
    /// Tokens of all texts of a pass, in sum; a longer text runs alone.
    pub tokens: usize,
    /// Where that number is from: a setting, or the free memory.
    pub source: &'static str,
    /// Bytes that a pass holds for each token at most, reckoned from the model's shape; 0: next to nothing.
    pub token_bytes: usize,
    /// Bytes that were free when the model was loaded, where the device says so.
    pub free: Option<u64>,
}

impl Capacity {
    /// A sentence without its end: so many tokens, by this source, and the memory that they take by our estimate.
    pub fn says(&self, tokens: usize, source: &str) -> String {
        const MIB: u64 = 1 << 20;
        let mut says = format!("{tokens} tokens in a pass at most on {} ({source})", self.device);
        if self.token_bytes > 0 {
            let bytes = (tokens as u64).saturating_mul(self.token_bytes as u64);
            let each = self.token_bytes.div_ceil(1024);
            says +=
                &format!(", at most {} MiB by the model's shape, {each} KiB a token", bytes.div_ceil(MIB));
        }
        if let Some(free) = self.free {
            says += &format!("; {} MiB were free", free / MIB);
        }
        says
    }
}

/// A forward pass failed as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The pass did not fit into memory; a smaller one may.
    #[error("the forward pass of {texts} texts ran out of memory: {message}")]
    OutOfMemory {
        /// Texts in the pass.
        texts: usize,
        /// What the device said.
        message: String,
    },
    /// The model refused.
    #[error("the forward pass failed: {0}")]
    Failed(String),
    /// The device or the server behind it failed: no text is to blame.
    #[error("{0}")]
    Unavailable(Fault),
    /// A panic was caught.
    #[error("the forward pass panicked: {0}")]
    Panicked(String),
}

impl EmbedError {
    /// The same of a pass of so many texts, where it was said of a part of it.
    #[must_use]
    fn of(self, texts: usize) -> Self {
        match self {
            Self::OutOfMemory { message, .. } => Self::OutOfMemory { texts, message },
            other => other,
        }
    }

    /// Kind, for triage.
    pub const fn class(&self) -> Class {
        match self {
            Self::OutOfMemory { .. } => Class::OutOfMemory,
            Self::Failed(_) => Class::ModelFailed,
            Self::Unavailable(fault) => fault.class,
            Self::Panicked(_) => Class::InternalPanic,
        }
    }
}

/// `model.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name of an entry in `models/`, or `instant`.
    pub name: String,
    /// Folder of models; empty: `$XDG_CACHE_HOME/forebay/models`.
    pub dir: String,
    /// `auto`, `cpu`, `cuda`, `cuda:N`.
    pub device: String,
    /// `auto`, `amx`, `avx512`, `avx2`, `portable` or `candle`: what computes on the CPU.
    pub kernel: String,
    /// `f32`, on the CPU `i16` too, on a GPU `f16` and `bf16` too.
    pub compute: String,
    /// Tokens at most, specials included; 0: the model's own limit.
    pub max_length: usize,
    /// Some of `dense`, `sparse`, `multi`; `dense` among them.
    pub outputs: Vec<String>,
    /// `truncate` or `bury`.
    pub truncation: String,
    /// Tokens in one forward pass at most; a longer text runs alone.
    pub pass_tokens: usize,
    /// Memory of a forward pass at most, in MiB; 0: half of what is free when the model is loaded.
    pub memory_mb: u64,
    /// Threads of the forward pass; 0: as many as the process may use.
    pub threads: usize,
}
