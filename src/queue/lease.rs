//! The receipt for one chunk being worked on. It travels with the text and is spent once, by value, by
//! [`super::Queue::settle`] or [`super::Queue::bury`]; one that is merely dropped puts its chunk back.

use std::sync::Arc;

use super::{Shared, entry::Record};
use crate::chunk::{ChunkKey, Digest};

/// A receipt.
#[derive(Debug)]
pub struct Lease {
    pub(super) shared: Arc<Shared>,
    pub(super) seq: u64,
    pub(super) spent: bool,
    pub(super) key: ChunkKey,
    pub(super) chunk_id: Digest,
    pub(super) record: Record,
}

impl Lease {
    /// The chunk's key.
    pub fn key(&self) -> &ChunkKey {
        &self.key
    }

    /// The chunk's id.
    pub fn chunk_id(&self) -> &Digest {
        &self.chunk_id
    }

    /// Its history.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Leaves the started mark standing and the chunk out: for work that hangs and takes the process with it,
    /// so that the next open counts an unclean end.
    pub fn abandon(mut self) {
        self.spent = true;
    }

    pub(super) fn spend(mut self) -> (u64, Record) {
        self.spent = true;
        (self.seq, std::mem::take(&mut self.record))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.spent {
            self.shared.give_back(self.seq, Some(&self.key));
        }
    }
}
