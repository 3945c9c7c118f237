//! What a model must be: the facts its folder is checked against, and what can be wrong with a folder.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::chunk::Digest;

/// Architecture of the encoder; the layers are the same, embeddings and tensor names differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// BERT: positions from 0.
    Bert,
    /// XLM-RoBERTa: positions from `pad_token_id + 1`.
    XlmRoberta,
}

impl Family {
    /// As `config.json` and the entries in `models/` write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::XlmRoberta => "xlm-roberta",
        }
    }
}

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The first token's.
    Cls,
    /// Their mean, specials included.
    Mean,
}

impl Pooling {
    /// As identities and the entries in `models/` write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cls => "cls",
            Self::Mean => "mean",
        }
    }
}

/// What the registry says of a model. The folder must agree, or it is not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Name in `models/`.
    pub name: String,
    /// Pinned revision.
    pub revision: String,
    /// Architecture.
    pub family: Family,
    /// Pooling.
    pub pooling: Pooling,
    /// Whether vectors are scaled to norm 1.
    pub normalize: bool,
    /// Tokens at most, specials included.
    pub max_length: usize,
    /// Numbers in a dense vector.
    pub dim: usize,
    /// Put before each document; empty for none.
    pub document_prefix: String,
    /// Put before each query; empty for none.
    pub query_prefix: String,
    /// SHA-256 of the weights file, for the identity; whether the file has it is the registry's to check.
    pub weights_sha256: Digest,
    /// SHA-256 of `tokenizer.json`, for the identity; likewise.
    pub tokenizer_sha256: Digest,
    /// SHA-256 of the head of the sparse output; `None`: the model has none.
    pub sparse_head: Option<Digest>,
    /// SHA-256 of the head of the multi-vector output; `None`: the model has none.
    pub multi_head: Option<Digest>,
}

/// A model cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of the model is not there.
    #[error("model {model}: {} is missing; get it with: forebay model pull {model}", path.display())]
    Missing {
        /// Name of the model.
        model: String,
        /// The file.
        path: PathBuf,
    },
    /// A file of the model cannot be read or is not what it should be.
    #[error("model {model}: {}: {what}; check the files with: forebay model verify {model}", path.display())]
    Damaged {
        /// Name of the model.
        model: String,
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The folder and the entry in `models/` say different things.
    #[error(
        "model {model}: {what} is {found} in {} but {expected} in models/{model}.toml: they belong to different \
         models; check with: forebay model verify {model}", path.display()
    )]
    Disagree {
        /// Name of the model.
        model: String,
        /// The file.
        path: PathBuf,
        /// The fact in question.
        what: &'static str,
        /// What the file says.
        found: String,
        /// What the entry says.
        expected: String,
    },
    /// The model asks for something this version cannot compute.
    #[error("model {model}: {what} is not supported yet; choose another with: forebay model list")]
    Unsupported {
        /// Name of the model.
        model: String,
        /// What.
        what: String,
    },
    /// A setting has a value that cannot be.
    #[error("{key} = {value}: {what}")]
    Setting {
        /// For example `model.compute`.
        key: &'static str,
        /// As set.
        value: String,
        /// Why not, and what to set instead.
        what: String,
    },
}

impl OpenError {
    /// [`OpenError::Missing`] or [`OpenError::Damaged`], from what the file system said.
    pub fn io(model: &str, path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound {
            Self::Missing { model: model.into(), path: path.into() }
        } else {
            Self::damaged(model, path, format!("cannot be read: {error}"))
        }
    }

    /// [`OpenError::Damaged`].
    pub fn damaged(model: &str, path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { model: model.into(), path: path.into(), what: what.into() }
    }
}
