//! From settings to a loaded model.

use std::{path::PathBuf, sync::Arc};

use super::{
    Embed, Settings,
    cache::{self, CacheError},
    entry::{Entry, UnknownModel},
    expect::{Expect, OpenError},
    hash::Instant,
    heads,
    local::{LocalModel, identity_before_loading},
};
use crate::identity::Identity;

/// The model of the settings cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// Nobody knows the name.
    #[error(transparent)]
    Unknown(#[from] UnknownModel),
    /// It is known, but not here. Nothing is downloaded unless asked for.
    #[error("the model {name} is not installed. Type `forebay model pull {name}`")]
    NotInstalled {
        /// Name of the model.
        name: String,
    },
    /// Its files are not what they should be.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// It cannot be loaded.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Loads `model.name`: an installed model, or `instant`.
///
/// # Errors
/// See [`ModelError`].
pub fn open(settings: &Settings) -> Result<Arc<dyn Embed>, ModelError> {
    if settings.name == "instant" {
        return Ok(Arc::new(Instant::new(settings)?));
    }
    let (folder, expect) = find(settings)?;
    Ok(Arc::new(LocalModel::open(&folder, &expect, settings)?))
}

/// The identity of `model.name`, without loading its weights.
///
/// # Errors
/// See [`ModelError`].
pub fn identity(settings: &Settings) -> Result<Identity, ModelError> {
    if settings.name == "instant" {
        return Ok(Instant::new(settings)?.identity().clone());
    }
    Ok(identity_before_loading(&find(settings)?.1, settings)?)
}

/// The folder of an installed model, and what it must be.
fn find(settings: &Settings) -> Result<(PathBuf, Expect), ModelError> {
    let entry = Entry::find(&settings.name)?;
    let dir = cache::models_dir(&settings.dir)?;
    let installed = cache::installed(&dir, entry)?;
    let installed = installed.ok_or_else(|| ModelError::NotInstalled { name: entry.name.clone() })?;
    let expect = Expect {
        name: entry.name.clone(),
        revision: entry.revision.clone(),
        family: entry.family,
        pooling: entry.pooling,
        normalize: entry.normalize,
        max_length: entry.max_length,
        dim: entry.dim,
        document_prefix: entry.document_prefix.clone(),
        query_prefix: entry.query_prefix.clone(),
        weights_sha256: installed.weights_sha256(),
        tokenizer_sha256: installed.tokenizer_sha256(),
        sparse_head: installed.sha256_of(heads::SPARSE_FILE),
        multi_head: installed.sha256_of(heads::MULTI_FILE),
    };
    Ok((installed.folder, expect))
}
