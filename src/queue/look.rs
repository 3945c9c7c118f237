//! Looking at what is pending, without touching it.

use std::{collections::HashSet, time::Instant};

use serde::Serialize;

use super::{
    Queue, QueueError,
    entry::{self, Pending},
    window::Place,
};

/// A pending chunk, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingChunk {
    /// Place in its document.
    pub chunk_index: u64,
    /// `ready`, `delayed` (until its next attempt) or `in_flight`.
    pub place: &'static str,
    /// Attempts charged so far.
    pub attempts: u32,
    /// Milliseconds until it may be tried again; 0 when it need not wait.
    pub wait_ms: u64,
    /// Number of the source it was read from.
    pub source_id: i64,
    /// Line it was read at, from 1.
    pub line: u64,
    /// Whether a newer version of it is pending too.
    pub outdated: bool,
}

impl Queue {
    /// Numbers of the sources of which something is pending.
    pub fn pending_sources(&self) -> HashSet<i64> {
        let state = self.shared.state();
        state.window.seqs().into_iter().filter_map(|seq| Some(state.window.slot(seq)?.source_id)).collect()
    }

    /// What is pending of a document, in the order it was taken up. Reads every pending chunk: their number is bounded.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn pending_of(&self, doc_id: &str) -> Result<Vec<PendingChunk>, QueueError> {
        let mut state = self.shared.state();
        self.shared.apply(&mut state)?;
        let mut found = Vec::new();
        for seq in state.window.seqs() {
            let Some(slot) = state.window.slot(seq) else { continue };
            let bytes = self.shared.db.get(entry::numbered(entry::PENDING, seq))?;
            let Some(Pending { chunk, record }) = bytes.and_then(|bytes| Pending::decode(&bytes)) else {
                continue;
            };
            if chunk.key.doc_id != doc_id {
                continue;
            }
            let (place, wait) = match slot.place {
                Place::Ready => ("ready", None),
                Place::Delayed(at) => ("delayed", at.checked_duration_since(Instant::now())),
                Place::Leased(_) => ("in_flight", None),
            };
            found.push(PendingChunk {
                chunk_index: chunk.key.chunk_index,
                place,
                attempts: record.attempts,
                wait_ms: wait.map_or(0, |wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
                source_id: chunk.source_id,
                line: chunk.line,
                outdated: slot.outdated || state.window.superseded(seq),
            });
        }
        Ok(found)
    }
}
