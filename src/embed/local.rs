//! A model that runs on this machine, from its folder: [`LocalModel`].

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use super::{
    Capacity, Embed, EmbedError, Settings, Tokens,
    encoder::{self, Encoder},
    expect::{Expect, OpenError},
    heads::{Encoded, Heads},
    layout::ModelFiles,
    machine::Machine,
    memory::Memory,
    outputs::Outputs,
    tokens::TextTokenizer,
};
use crate::{
    chunk::{Digest, Embedding},
    error::{Class, Fault},
    identity::{Identity, IdentityParts},
};

/// An ordinary sentence: what fails on it is not the text's fault.
pub const GOLDEN_TEXT: &str = "A forebay holds the water and evens the flow before it reaches the turbine.";

/// Threads at most, so that a slip of the finger does not exhaust the system.
const THREADS_MAX: usize = 1_024;

/// A loaded model with its tokenizer.
pub struct LocalModel {
    identity: Identity,
    max_length: usize,
    capacity: Capacity,
    memory: Memory,
    bury_long: bool,
    document_prefix: String,
    query_prefix: String,
    vocab_size: usize,
    tokenizer: TextTokenizer,
    pub(super) encoder: Box<dyn Encoder>,
    heads: Option<Heads>,
}

impl std::fmt::Debug for LocalModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalModel").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl LocalModel {
    /// Opens the model in `folder`, which must be the one `expect` describes.
    ///
    /// # Errors
    /// A file is missing or damaged, folder and entry disagree, or a setting asks for what is not there.
    pub fn open(folder: &Path, expect: &Expect, settings: &Settings) -> Result<Self, OpenError> {
        check_settings(settings)?;
        let max_length = max_length_of(expect, settings)?;
        let outputs = Outputs::of(&settings.outputs, expect)?;
        let files = ModelFiles::read(folder, expect)?;
        let tokenizer =
            TextTokenizer::open(&expect.name, &files.tokenizer, files.config.vocab_size, max_length)?;
        // Before the layers, which take their time.
        let heads = Heads::load(folder, expect, outputs, &tokenizer)?;
        let encoder = encoder::choose(&files, expect, settings)?;
        let (device, (rows, inner)) = (encoder.device(), encoder.rows_a_token());
        let numbers = rows * files.config.hidden_size + inner * files.config.intermediate_size;
        let memory = Memory::new((device == "cpu").then(Machine::here), numbers * size_of::<f32>());
        let model = Self {
            identity: identity_of(expect, settings, outputs, max_length, encoder.dim()),
            max_length,
            capacity: memory.capacity(device, settings.pass_tokens, settings.memory_mb),
            memory,
            bury_long: settings.truncation == "bury",
            document_prefix: expect.document_prefix.clone(),
            query_prefix: expect.query_prefix.clone(),
            vocab_size: files.config.vocab_size,
            tokenizer,
            encoder,
            heads,
        };
        model
            .tokenizer
            .tokenize("", GOLDEN_TEXT)
            .map_err(|what| OpenError::damaged(&expect.name, &files.tokenizer, what))?;
        Ok(model)
    }

    fn ids(&self, prefix: &str, text: &str) -> Result<Tokens, Fault> {
        let failed = |what| Fault::new(Class::TokenizerFailed, what);
        let tokens = self.tokenizer.tokenize(prefix, text).map_err(failed)?;
        if tokens.truncated && self.bury_long {
            let (length, all) = self.tokenizer.length(prefix, text).map_err(failed)?;
            return Err(too_long(length, all, self.max_length));
        }
        Ok(tokens)
    }

    /// What must hold before ids are given to the encoder.
    fn check_ids(&self, ids: &[u32]) -> Result<u32, Fault> {
        let n = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if ids.is_empty() || ids.len() > self.max_length {
            let what =
                format!("a text of {n} tokens reached the model, which takes 1 to {}", self.max_length);
            return Err(Fault::new(Class::TooLong, what));
        }
        match ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            Some(id) => {
                let what = format!("token id {id} is past the vocabulary of {}", self.vocab_size);
                Err(Fault::new(Class::TokenizerFailed, what))
            }
            None => Ok(n),
        }
    }

    /// By the model's encoder, or by another one of the same model.
    fn encode(&self, encoder: &dyn Encoder, batch: &[&[u32]]) -> Result<Vec<Encoded>, EmbedError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let tokens = batch.iter().map(|ids| ids.len()).sum();
        let full = |message| EmbedError::OutOfMemory { texts: batch.len(), message };
        self.memory.has_room_for(tokens).map_err(full)?;
        let encoded = catch_unwind(AssertUnwindSafe(|| encoder.encode(batch, self.heads.as_ref())))
            .map_err(|panic| EmbedError::Panicked(panic_message(panic.as_ref())))??;
        self.memory.was_enough_for(tokens);
        if encoded.len() != batch.len() {
            return Err(EmbedError::Failed(format!("{} vectors for {} texts", encoded.len(), batch.len())));
        }
        Ok(encoded)
    }

    /// The embedding if it is sound; else what a second try alone gives.
    fn sound(&self, encoded: Encoded, tokens: &Tokens, n_tokens: u32) -> Result<Embedding, Fault> {
        let checked = |encoded: Encoded| {
            let Encoded { dense, sparse, multi } = encoded;
            let embedding = Embedding { dense, sparse, multi, n_tokens, truncated: tokens.truncated };
            embedding.check(self.dim()).map(|()| embedding)
        };
        let first = match checked(encoded) {
            Ok(embedding) => return Ok(embedding),
            Err(first) => first,
        };
        tracing::warn!(tokens = n_tokens, reason = first, "an output is not sound; trying its text alone");
        let alone = || {
            let exact = self.encoder.exact()?;
            self.encode(exact.as_deref().unwrap_or(&*self.encoder), &[&tokens.ids])
        };
        let again = alone().map_err(|error| Fault::new(error.class(), error.to_string()))?.remove(0);
        checked(again).map_err(|what| {
            let what = format!("{what}, in a batch and alone ({n_tokens} tokens)");
            Fault::new(Class::NonFiniteVector, what)
        })
    }
}

impl Embed for LocalModel {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn dim(&self) -> usize {
        self.encoder.dim()
    }

    fn max_length(&self) -> usize {
        self.max_length
    }

    fn count(&self, text: &str) -> usize {
        // A text the tokenizer refuses is refused again, with its reason, when it is to be embedded.
        self.tokenizer.count(text).unwrap_or(0)
    }

    fn tokenize(&self, text: &str) -> Result<Tokens, Fault> {
        self.ids(&self.document_prefix, text)
    }

    fn tokenize_query(&self, text: &str) -> Result<Tokens, Fault> {
        self.ids(&self.query_prefix, text)
    }

    fn capacity(&self) -> Capacity {
        self.capacity.clone()
    }

    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError> {
        let checked: Vec<Result<u32, Fault>> =
            batch.iter().map(|tokens| self.check_ids(&tokens.ids)).collect();
        let good = batch.iter().zip(&checked).filter(|(_, checked)| checked.is_ok());
        let ids: Vec<&[u32]> = good.map(|(tokens, _)| tokens.ids.as_slice()).collect();
        let mut encoded = self.encode(&*self.encoder, &ids)?.into_iter();
        let embeddings = batch.iter().zip(checked).map(|(tokens, checked)| {
            let n_tokens = checked?;
            // There is one for each: `encode` counted.
            let encoded = encoded.next().unwrap_or(Encoded::dense(Vec::new()));
            self.sound(encoded, tokens, n_tokens)
        });
        Ok(embeddings.collect())
    }

    fn golden(&self) -> Tokens {
        self.tokenizer.tokenize("", GOLDEN_TEXT).expect("tokenised at open")
    }
}

/// The identity that a model will have once it is loaded, from its entry and the digests of its files.
///
/// # Errors
/// A setting asks for what is not there.
pub fn identity_before_loading(expect: &Expect, settings: &Settings) -> Result<Identity, OpenError> {
    check_settings(settings)?;
    let outputs = Outputs::of(&settings.outputs, expect)?;
    Ok(identity_of(expect, settings, outputs, max_length_of(expect, settings)?, expect.dim))
}

/// The digest of the weights file; with heads, of the digests of all files whose numbers take part, one after another.
fn weights_of(expect: &Expect, outputs: Outputs) -> Digest {
    let heads = [(outputs.sparse, expect.sparse_head), (outputs.multi, expect.multi_head)];
    let heads: Vec<Digest> = heads.into_iter().filter_map(|(asked, head)| head.filter(|_| asked)).collect();
    if heads.is_empty() {
        return expect.weights_sha256;
    }
    let all: Vec<[u8; 32]> = std::iter::once(expect.weights_sha256).chain(heads).map(|head| head.0).collect();
    Digest::of(all.as_flattened())
}

fn identity_of(
    expect: &Expect,
    settings: &Settings,
    outputs: Outputs,
    max_length: usize,
    dim: usize,
) -> Identity {
    Identity::of(&IdentityParts {
        name: expect.name.clone(),
        revision: expect.revision.clone(),
        weights: weights_of(expect, outputs),
        tokenizer: expect.tokenizer_sha256,
        pooling: expect.pooling.as_str().into(),
        normalize: expect.normalize,
        max_length,
        outputs: outputs.names(),
        dim,
        compute: settings.compute.clone(),
        document_prefix: expect.document_prefix.clone(),
        text_normalization: "none".into(),
    })
}

/// Refuses settings of `model.*` that no model of this version can honour.
///
/// # Errors
/// [`OpenError::Setting`], with what to set instead.
pub fn check_settings(settings: &Settings) -> Result<(), OpenError> {
    let refuse = |key, value: String, what: &str| Err(OpenError::Setting { key, value, what: what.into() });
    if !["f32", "i16", "f16", "bf16"].contains(&settings.compute.as_str()) {
        let what = "expected f32, i16, f16 or bf16; set model.compute = \"f32\"";
        return refuse("model.compute", format!("{:?}", settings.compute), what);
    }
    encoder::check_compute(settings)?;
    if settings.compute == "i16" && settings.kernel == "candle" {
        let what = "i16 is there on our own kernels only; set model.kernel = \"auto\"";
        return refuse("model.kernel", format!("{:?}", settings.kernel), what);
    }
    Outputs::read(&settings.outputs)?;
    if !["truncate", "bury"].contains(&settings.truncation.as_str()) {
        return refuse("model.truncation", format!("{:?}", settings.truncation), "expected truncate or bury");
    }
    if settings.pass_tokens == 0 {
        return refuse("model.pass_tokens", "0".into(), "must be at least 1; 4096 is the default");
    }
    if settings.threads > THREADS_MAX {
        let what = format!("must be at most {THREADS_MAX}; 0 takes as many as the process may use");
        return refuse("model.threads", settings.threads.to_string(), &what);
    }
    Ok(())
}

fn max_length_of(expect: &Expect, settings: &Settings) -> Result<usize, OpenError> {
    match settings.max_length {
        0 => Ok(expect.max_length),
        set if set > expect.max_length => Err(OpenError::Setting {
            key: "model.max_length",
            value: set.to_string(),
            what: format!(
                "{} takes at most {}; 0 takes the model's own limit",
                expect.name, expect.max_length
            ),
        }),
        set => Ok(set),
    }
}

/// The fault of a text of `length` tokens (`all` of it, or so much of it as was counted) that does not fit while
/// `model.truncation = "bury"`.
pub(super) fn too_long(length: usize, all: bool, max_length: usize) -> Fault {
    let least = if all { "" } else { "at least " };
    let what = format!(
        "it has {least}{length} tokens, and {max_length} are taken (model.max_length); set model.truncation = \
         \"truncate\" or split the text"
    );
    Fault::new(Class::TooLong, what)
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
#[path = "local_tests.rs"]
pub(super) mod tests;
