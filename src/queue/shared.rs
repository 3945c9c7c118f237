//! The store, and what is known of it in memory: one lock over the window, the marks and the gathered changes.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    QueueError, dlq, durable,
    entry::{self, Mark, Pending},
    journal,
    redriven::Redriven,
    window::{Place, SUSPECT_AFTER, Slot, Window},
};
use crate::chunk::Digest;

/// The store and what is known of it in memory.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) db: super::store::Store,
    pub(super) sync: durable::Sync,
    pub(super) boot: u128,
    pub(super) state: Mutex<State>,
    pub(super) room: Condvar,
    pub(super) changed: tokio::sync::watch::Sender<u64>,
    pub(super) made_way: AtomicU64,
    /// `dlq.max_redrives`.
    pub(super) max_redrives: AtomicU32,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) window: Window,
    pub(super) marks: HashMap<u64, HashSet<u64>>,
    pub(super) seq_next: u64,
    pub(super) batch: sled::Batch,
    pub(super) batched: usize,
    pub(super) journal: journal::Journal,
    pub(super) letters: dlq::Counts,
    pub(super) redriven: Redriven,
    /// Chunks that came back cancelled.
    pub(super) orphans: Vec<crate::chunk::ChunkKey>,
}

/// Changes gathered before they are applied as one batch: bounds the epoch garbage of one batch.
const BATCH_MAX: usize = 512;

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves the window as consistent as a crash does: the tree decides at open.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn apply(&self, state: &mut State) -> Result<(), QueueError> {
        if state.batched > 0 {
            state.batched = 0;
            self.db.apply_batch(std::mem::take(&mut state.batch))?;
            durable::drain_epochs();
        }
        Ok(())
    }

    pub(super) fn apply_if_large(&self, state: &mut State) -> Result<(), QueueError> {
        if state.batched >= BATCH_MAX { self.apply(state) } else { Ok(()) }
    }

    pub(super) fn told(&self) {
        self.room.notify_all();
        self.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    pub(super) fn give_back(&self, seq: u64, key: Option<&crate::chunk::ChunkKey>) {
        {
            let mut state = self.state();
            let Some(slot) = state.window.slot(seq) else { return };
            let (place, cancelled) = (slot.place, slot.cancelled);
            if let Place::Leased(mark) = place {
                if cancelled || state.window.superseded(seq) {
                    // It may have reached the sink: see `Queue::orphans`.
                    let orphan = key.filter(|_| !state.window.superseded(seq));
                    state.orphans.extend(orphan.cloned());
                    state.remove(seq);
                    self.made_way.fetch_add(1, Relaxed);
                } else {
                    state.window.give_back(seq);
                }
                state.unmark(mark, seq, self.boot, true);
            }
        }
        self.told();
    }
}

impl Drop for Shared {
    /// A clean end leaves nothing to catch up with. A failure here costs just that.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        super::renew::note_alive(state);
        if self.db.apply_batch(std::mem::take(&mut state.batch)).is_ok() {
            let _ = super::book::note_sums(&self.db, state);
            let _ = self.db.flush();
        }
    }
}

impl State {
    pub(super) fn put(&mut self, key: &[u8], value: Vec<u8>) {
        self.batch.insert(key, value);
        self.batched += 1;
    }

    pub(super) fn take(&mut self, key: &[u8]) {
        self.batch.remove(key);
        self.batched += 1;
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Slot> {
        let slot = self.window.remove(seq)?;
        self.redriven.remove(seq);
        self.take(&entry::numbered(entry::PENDING, seq));
        Some(slot)
    }

    pub(super) fn insert(&mut self, pending: &Pending, place: Place) {
        let seq = self.seq_next;
        self.seq_next += 1;
        let bytes = pending.encode();
        let slot = slot_of(pending, place, bytes.len());
        self.put(&entry::numbered(entry::PENDING, seq), bytes);
        self.window.insert(seq, slot);
        self.redriven.insert(seq, pending.record.redriven_from);
    }

    /// A chunk leaves its mark. When it stays pending under its number (`stays`) the mark is written anew,
    /// so that a later crash is not laid at its door.
    pub(super) fn unmark(&mut self, mark: u64, seq: u64, boot: u128, stays: bool) {
        let Some(seqs) = self.marks.get_mut(&mark) else { return };
        seqs.remove(&seq);
        let key = entry::numbered(entry::MARK, mark);
        if seqs.is_empty() {
            self.marks.remove(&mark);
            self.take(&key);
        } else if stays {
            let value = Mark { boot, seqs: seqs.iter().copied().collect() }.encode();
            self.put(&key, value);
        }
    }
}

pub(super) fn slot_of(pending: &Pending, place: Place, bytes: usize) -> Slot {
    Slot {
        key: pending.chunk.key.short_hash(),
        chunk: prefix(&pending.chunk.id()),
        source_id: pending.chunk.source_id,
        ordinal: pending.chunk.ordinal,
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        place,
        suspect: (pending.record.unclean >= SUSPECT_AFTER).then_some(pending.record.unclean_alone),
        cancelled: false,
        outdated: false,
    }
}

pub(super) fn prefix(digest: &Digest) -> u128 {
    u128::from_be_bytes(digest.0[..16].try_into().expect("16 of 32 bytes"))
}
