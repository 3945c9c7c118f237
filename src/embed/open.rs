//! From settings to a loaded model.

use std::sync::Arc;

use super::{
    Embed, Settings,
    cache::{self, CacheError},
    entry::{Entry, UnknownModel},
    expect::{Expect, OpenError},
    hash::Instant,
    local::LocalModel,
};

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
    };
    Ok(Arc::new(LocalModel::open(&installed.folder, &expect, settings)?))
}
