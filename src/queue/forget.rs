//! What the queue holds of a document: its pending chunks and its dead letters.

use std::collections::HashSet;

use uuid::Uuid;

use super::{
    Queue, QueueError,
    dead::{DeadLetter, Subject},
    dlq::Filter,
    entry::{self, Pending},
};
use crate::chunk::ChunkKey;

impl Queue {
    /// Keys of pending chunks of these documents, those being worked on included.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn pending_of(&self, docs: &HashSet<String>) -> Result<Vec<ChunkKey>, QueueError> {
        self.shared.apply(&mut self.shared.state())?;
        let mut keys = Vec::new();
        for item in self.shared.db.scan_prefix([entry::PENDING]) {
            if let Some(pending) = Pending::decode(&item?.1)
                && docs.contains(&pending.chunk.key.doc_id)
            {
                keys.push(pending.chunk.key);
            }
        }
        Ok(keys)
    }

    /// All letters about these documents, whatever their state: id and document.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letters_of(&self, docs: &HashSet<String>) -> Result<Vec<(Uuid, String)>, QueueError> {
        let mut ids = Vec::new();
        let about = |letter: DeadLetter| match letter.subject {
            Subject::Chunk(key) => Some(key.doc_id),
            Subject::Record { .. } => letter.doc_id,
        };
        self.each_letter(&Filter { closed_too: true, ..Filter::default() }, &mut |letter| {
            let id = letter.id;
            ids.extend(about(letter).filter(|doc| docs.contains(doc)).map(|doc| (id, doc)));
            true
        })?;
        Ok(ids)
    }
}
