//! Vector stores. A sink accepts rows and confirms them, now or later; only what is confirmed counts.

mod forget;
mod insert;
mod native;
mod null;
mod rows;
mod schema;
mod score;
mod search;
mod sqlite;

use std::path::Path;

pub use null::Null;
pub use sqlite::Sqlite;

use crate::{
    chunk::{ChunkKey, Digest, Embedding},
    error::{Class, Fault},
    identity::Identity,
};

/// A vector with all that is stored beside it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The logical job; the store's primary key.
    pub key: ChunkKey,
    /// Changes when the text changes.
    pub chunk_id: Digest,
    /// SHA-256 of the text as read.
    pub source_hash: Digest,
    /// SHA-256 of the text as embedded.
    pub content_hash: Digest,
    /// The text as embedded.
    pub text: String,
    /// The record's `meta` as compact JSON.
    pub meta: Option<String>,
    /// The vectors.
    pub embedding: Embedding,
}

/// What `verify` and `rebuild` need to know of a stored row.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// Primary key.
    pub key: ChunkKey,
    /// Chunk id.
    pub chunk_id: Digest,
    /// SHA-256 of the text as read.
    pub source_hash: Digest,
    /// SHA-256 of the text as embedded.
    pub content_hash: Digest,
    /// [`Identity::stored`].
    pub identity: String,
    /// Store id of the data folder that wrote the row.
    pub store: String,
    /// When, RFC 3339 UTC.
    pub embedded_at: String,
}

/// What is looked for. The score of a row is the sum, over the outputs whose weight is not 0, of weight times likeness;
/// a row without one of them is no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// The outputs of the query's text.
    pub embedding: Embedding,
    /// Weight of the cosine of the dense vectors.
    pub dense: f32,
    /// Weight of the sum, over the tokens that both have, of the products of their weights. When this alone counts, a row
    /// that shares no token is no answer.
    pub sparse: f32,
    /// Weight of the mean, over the rows of the query's multi-vector output, of the largest dot product with a row of the
    /// other (`MaxSim`).
    pub multi: f32,
}

impl Query {
    /// By the dense vector alone.
    pub fn dense(vector: Vec<f32>) -> Self {
        let embedding = Embedding { dense: vector, ..Embedding::default() };
        Self { embedding, dense: 1.0, sparse: 0.0, multi: 0.0 }
    }
}

/// One answer to a search.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Hit {
    /// Id of the document.
    pub doc_id: String,
    /// Place of the chunk in it.
    pub chunk_index: u64,
    /// See [`Query`]; for the dense vector alone the cosine, −1 to 1.
    pub score: f32,
    /// The text, when the sink stores it.
    pub text: Option<String>,
    /// The record's `meta`.
    pub meta: Option<String>,
}

/// Whether accepted rows are already safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmed {
    /// The accepted rows are durable.
    Now,
    /// They will be confirmed by a later [`Sink::confirm`]; their leases are parked until then.
    Later,
}

/// A vector store. Writing the same key again replaces the row, but for one that says otherwise. Calls block and come from one thread of
/// their own, except `search`.
pub trait Sink: Send + Sync {
    /// Name of the kind, for messages and metrics.
    fn kind(&self) -> &'static str;

    /// Where it is, for messages.
    fn place(&self) -> String {
        format!("the sink `{}`", self.kind())
    }

    /// Whether there is nothing there at all, not even an empty store.
    fn is_absent(&self) -> bool {
        false
    }

    /// Whether rows can be found again: not so for one that only counts them.
    fn keeps_rows(&self) -> bool {
        true
    }

    /// Whether writing the same key again replaces the row, so that an answer that was lost costs one more write. One
    /// that appends says false: what becomes of a batch without an answer is then for a person to say.
    fn is_idempotent(&self) -> bool {
        true
    }

    /// Creates what is absent and refuses what does not fit, before any input is read.
    ///
    /// # Errors
    /// `model_mismatch` when the sink holds another identity and `reembed` is false, and anything that would
    /// fail later: rights, dimension, format version.
    fn preflight(&self, identity: &Identity, dim: usize, store: &str, reembed: bool)
    -> Result<(), SinkError>;

    /// Takes a batch in: all of it or, on an error, none of it. Rows carry distinct keys.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn accept(&self, rows: &[Row]) -> Result<Confirmed, SinkError>;

    /// Makes all that was accepted durable. A sink that answers `Now` has nothing to do.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn confirm(&self) -> Result<(), SinkError>;

    /// Removes these keys; absent ones are fine. Durable on return.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn delete(&self, keys: &[ChunkKey]) -> Result<(), SinkError>;

    /// All rows of a document, whichever data folder wrote them.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn rows_of(&self, doc_id: &str) -> Result<Vec<Stored>, SinkError> {
        let mut rows = Vec::new();
        self.scan(None, &mut |row| {
            if row.key.doc_id == doc_id {
                rows.push(row);
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// Leaves no byte of deleted rows in files of the sink's own. False when another program keeps it from that.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn scrub(&self) -> Result<bool, SinkError> {
        Ok(true)
    }

    /// Whether a row could be written now: tried on a probe row that leaves no trace.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn probe(&self) -> Result<(), SinkError>;

    /// Calls `each` for every row this data folder (`store`) wrote, or for all with `None`, ordered by
    /// (doc_id, chunk_index) in byte order.
    ///
    /// # Errors
    /// See [`SinkError`]; stops at the first error of `each`.
    fn scan(
        &self,
        store: Option<&str>,
        each: &mut dyn FnMut(Stored) -> Result<(), SinkError>,
    ) -> Result<(), SinkError>;

    /// The label of the identity that it was last prepared for, where it keeps one.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn held(&self) -> Result<Option<String>, SinkError> {
        Ok(None)
    }

    /// Embeddings of these keys, in order; `None` where the key is absent. Nobody has checked them: an output that does not
    /// hold what it should is handed on as one that no check passes.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn embeddings(&self, keys: &[ChunkKey]) -> Result<Vec<Option<Embedding>>, SinkError>;

    /// The `limit` rows of this identity that are most like the query, exact, best first.
    ///
    /// # Errors
    /// See [`SinkError`].
    fn search(&self, identity: &Identity, query: &Query, limit: usize) -> Result<Vec<Hit>, SinkError>;
}

/// What can go wrong with a sink.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A dependency failure: locked, unreachable, full. No row is to blame.
    #[error("{0}")]
    Unavailable(Fault),
    /// It was sent, and no answer came: nobody knows whether the rows are written. At an idempotent sink they are
    /// written again by key; at another one their chunks are dead letters, `unknown_outcome`.
    #[error("{0}")]
    Unknown(Fault),
    /// The sink refused one row, and says which.
    #[error("row {index}: {fault}")]
    Row {
        /// Index in the batch.
        index: usize,
        /// Why.
        fault: Fault,
    },
    /// The batch was refused and nobody knows for which row.
    #[error("{0}")]
    Batch(Fault),
    /// Nothing will work until someone acts: wrong identity, newer format, damaged file.
    #[error("{0}")]
    Unusable(String),
}

impl SinkError {
    /// Kind, for triage.
    pub const fn class(&self) -> Class {
        match self {
            Self::Unavailable(fault)
            | Self::Unknown(fault)
            | Self::Batch(fault)
            | Self::Row { fault, .. } => fault.class,
            Self::Unusable(_) => Class::ModelMismatch,
        }
    }
}

/// `sink.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `sqlite` or `null` (rows are counted and dropped: for measuring the line).
    pub kind: String,
    /// File of the SQLite sink; empty: `vectors.db` in the data folder.
    pub path: String,
    /// Whether the text is stored beside its vector.
    pub store_text: bool,
    /// How long one statement waits for a lock that another process holds.
    pub busy_timeout_ms: u64,
}

/// The sink that the settings name. Nothing is created or opened before its preflight.
///
/// # Errors
/// An unknown `sink.kind`.
pub fn open(settings: &Settings, data_dir: &Path) -> Result<Box<dyn Sink>, SinkError> {
    match settings.kind.as_str() {
        "sqlite" => Ok(Box::new(Sqlite::new(settings, data_dir))),
        "null" => Ok(Box::new(Null::default())),
        other => Err(SinkError::Unusable(format!(
            "sink.kind is {other:?}, which is not known; set it to \"sqlite\" or \"null\""
        ))),
    }
}
