//! Texts to vectors: the only room that knows candle, tokenizers and the hub.
//!
//! The line sees [`Embed`] and nothing else. Behind it: `tokens` (text to ids), `plan` (which texts share a
//! forward pass), `encoder` (the seam: ids to outputs; one implementation a device and processor), `heads` (the sparse and
//! the multi-vector output, from the same pass).

pub mod bundle;
pub mod cache;
pub mod candle;
mod convert;
pub mod cpu;
mod download;
pub mod encoder;
pub mod entry;
pub mod expect;
pub mod fail;
mod folder;
mod fused;
pub mod hash;
pub mod heads;
pub mod heap;
pub mod hub;
mod hub_cache;
mod lanes;
pub mod layout;
mod linear;
pub mod local;
pub mod manifest;
mod math;
mod open;
pub mod outputs;
pub mod plan;
pub mod pull;
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

    /// Groups texts of these lengths (in tokens) into forward passes: indices, longest first, each group
    /// within the token budget or a single text.
    fn plan(&self, lengths: &[usize]) -> Vec<Vec<usize>>;

    /// One forward pass: one result per text, in order, with all outputs that were asked for. One that is not sound (see
    /// [`Embedding::check`]) is a fault of its text alone (after it was tried alone once more).
    ///
    /// # Errors
    /// A failure of the pass as a whole, whose culprit (a text, or the device) is unknown.
    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError>;

    /// A text that is known to work, to tell a bad text from a broken device.
    fn golden(&self) -> Tokens;
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
    /// `auto`, `avx512`, `avx2`, `portable` or `candle`: what computes on the CPU.
    pub kernel: String,
    /// `f32` (`i16` comes with the fast path).
    pub compute: String,
    /// Tokens at most, specials included; 0: the model's own limit.
    pub max_length: usize,
    /// Some of `dense`, `sparse`, `multi`; `dense` among them.
    pub outputs: Vec<String>,
    /// `truncate` or `bury`.
    pub truncation: String,
    /// Tokens in one forward pass at most; a longer text runs alone.
    pub pass_tokens: usize,
    /// Threads of the forward pass; 0: as many as the process may use.
    pub threads: usize,
}
