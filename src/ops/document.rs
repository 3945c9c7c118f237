//! Where each chunk of one document is, and why.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::Context;
use crate::{
    error::Class,
    ledger::Written,
    queue::{
        PendingChunk,
        dead::{DeadLetter, State, Subject},
        dlq::Filter,
    },
};

/// What is known of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Document {
    /// Its id.
    pub doc_id: String,
    /// Whether anything is.
    pub known: bool,
    /// The identity that the settings (or the run) ask for, as stored; `None` when the model is not here.
    pub identity: Option<String>,
    /// Its chunks, in order.
    pub chunks: Vec<ChunkStatus>,
    /// Letters of records with this id that could not be read.
    pub records: Vec<Letter>,
}

/// What is known of a chunk. It may be in several places: an older version written, a newer one pending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChunkStatus {
    /// Its place in the document.
    pub chunk_index: u64,
    /// Its row in the ledger.
    pub written: Option<Row>,
    /// Its versions in the queue, oldest first.
    pub pending: Vec<PendingChunk>,
    /// Its letters, oldest first.
    pub dead: Vec<Letter>,
}

/// A written chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// When, RFC 3339 UTC.
    pub at: String,
    /// By which run.
    pub run: String,
    /// The vector's identity, as stored.
    pub identity: String,
    /// Whether it is the one asked for; another is not found by a search. `None` when that is not known.
    pub current: Option<bool>,
    /// Where it was read.
    pub source: Option<String>,
}

/// A dead letter, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Letter {
    /// Its id.
    pub id: Uuid,
    /// Where it stands.
    pub state: State,
    /// Why it was buried.
    pub class: Class,
    /// In words.
    pub message: String,
    /// Attempts charged.
    pub attempts: u32,
    /// Latest failure, RFC 3339 UTC.
    pub failed_at: String,
    /// How it was closed.
    pub resolved_how: Option<String>,
}

/// Looks; `identity` is what the settings ask for, when that is known.
///
/// # Errors
/// A sentence, when a store cannot be read.
pub fn document(context: Context<'_>, doc_id: &str, identity: Option<&str>) -> Result<Document, String> {
    let folder = context.folder;
    let identity = context.line.map_or(identity, |line| Some(line.identity.as_str()));
    let mut chunks: BTreeMap<u64, ChunkStatus> = BTreeMap::new();
    // In the order in which a chunk moves on: what leaves one place meanwhile is found at the next.
    for pending in folder.queue.pending_of(doc_id).map_err(|error| error.to_string())? {
        at(&mut chunks, pending.chunk_index).pending.push(pending);
    }
    let filter = Filter { doc_id: Some(doc_id.to_owned()), closed_too: true, ..Filter::default() };
    let mut records = Vec::new();
    for letter in folder.queue.letters(&filter, usize::MAX).map_err(|error| error.to_string())? {
        match &letter.subject {
            Subject::Chunk(key) => at(&mut chunks, key.chunk_index).dead.push(short(&letter)),
            Subject::Record { .. } => records.push(short(&letter)),
        }
    }
    let text = |error: crate::ledger::LedgerError| error.to_string();
    for written in folder.ledger.document(doc_id).map_err(text)? {
        let source = folder.ledger.source_uri(written.source_id).map_err(text)?;
        let index = written.key.chunk_index;
        at(&mut chunks, index).written = Some(row(written, identity, source));
    }
    let chunks: Vec<ChunkStatus> = chunks.into_values().collect();
    Ok(Document {
        doc_id: doc_id.to_owned(),
        known: !chunks.is_empty() || !records.is_empty(),
        identity: identity.map(str::to_owned),
        chunks,
        records,
    })
}

fn at(chunks: &mut BTreeMap<u64, ChunkStatus>, chunk_index: u64) -> &mut ChunkStatus {
    chunks.entry(chunk_index).or_insert_with(|| ChunkStatus { chunk_index, ..ChunkStatus::default() })
}

fn row(written: Written, identity: Option<&str>, source: Option<String>) -> Row {
    Row {
        current: identity.map(|identity| identity == written.identity),
        at: written.embedded_at,
        run: written.run,
        identity: written.identity,
        source,
    }
}

fn short(letter: &DeadLetter) -> Letter {
    Letter {
        id: letter.id,
        state: letter.state,
        class: letter.class,
        message: letter.message.clone(),
        attempts: letter.attempts,
        failed_at: letter.last_failed_at.clone(),
        resolved_how: letter.resolved_how.clone(),
    }
}
