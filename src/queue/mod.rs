//! The durable work queue and the dead-letter queue: the only room that knows sled.
//!
//! ```text
//! enqueue ──> ready ──lease──> leased ──settle──> written (gone)
//!               ^                 ├──drop───> ready
//!               └──(its time)── delayed <──retry──┤
//!                                 bury ──> dead letter (dlq)
//! ```
//!
//! One tree, one batch per move. Leasing flushes: it makes the started marks durable and, with them, every
//! settlement before it. What a power cut can undo is the latest settlements, and the ledger knows those.

mod book;
mod burial;
mod cancel;
mod clock;
pub mod dead;
pub mod dlq;
pub mod durable;
pub mod entry;
mod error;
mod forget;
pub mod import;
mod index;
pub mod journal;
mod lease;
mod letters;
mod look;
mod open;
mod orphans;
pub mod policy;
pub mod quarantine;
pub mod redrive;
mod redriven;
pub mod renew;
mod shared;
mod store;
mod transition;
pub mod window;

use std::{
    sync::{Arc, PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

pub use cancel::Cancelled;
pub(crate) use clock::{now_ms, now_text};
use entry::{Mark, Pending, Record};
pub use error::QueueError;
pub use lease::Lease;
pub use look::PendingChunk;
pub use open::{Expect, OpenReport};
use shared::{Shared, State, prefix, slot_of};
pub use store::is_stuck;
use window::{Pick, Place};

use crate::chunk::{Chunk, Digest};

/// `queue.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Chunks pending at most.
    pub window_chunks: usize,
    /// Cache of the store.
    pub cache_mb: u64,
}

/// Numbers of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Depth {
    /// Pending chunks, those in flight included.
    pub pending: usize,
    /// Chunks being worked on.
    pub in_flight: usize,
    /// Chunks that wait for their next attempt.
    pub delayed: usize,
}

/// What the window holds under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldPending {
    /// Whether it is the very same chunk (key and content).
    pub same: bool,
    /// Where it was read.
    pub source_id: i64,
    /// Place in that source.
    pub ordinal: u64,
}

/// What [`Queue::lease`] found.
#[derive(Debug)]
pub enum Leased {
    /// Work.
    Chunks(Vec<(Lease, Chunk)>),
    /// Nothing now; look again when something changes, or at this time.
    Wait(Option<Instant>),
    /// Nothing is pending.
    Empty,
}

/// How one lease ends, dead letters apart.
#[derive(Debug)]
pub enum Settlement {
    /// Its vector is confirmed by the sink and recorded in the ledger.
    Written(Lease),
    /// It failed and is tried again.
    Retry {
        /// The receipt.
        lease: Lease,
        /// Attempts charged in all, this failure included (or not, when it is nobody's fault).
        attempts: u32,
        /// Wait before it may be leased again.
        after: Duration,
    },
}

/// What came of settling.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Keys written although their document no longer has them: to be deleted from sink and ledger.
    pub stale: Vec<crate::chunk::ChunkKey>,
    /// Chunks not tried again because a newer version of them is pending.
    pub superseded: u64,
}

/// The queue. Clones share one store.
#[derive(Clone, Debug)]
pub struct Queue {
    shared: Arc<Shared>,
}

impl Queue {
    /// Numbers of this moment.
    pub fn depth(&self) -> Depth {
        let state = self.shared.state();
        Depth {
            pending: state.window.len(),
            in_flight: state.window.leased(),
            delayed: state.window.delayed(),
        }
    }

    /// Wakes whoever waits whenever something is enqueued, given back or settled.
    pub fn changed(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Wakes whoever waits for the queue although nothing in it changed.
    pub fn nudge(&self) {
        self.shared.told();
    }

    /// Chunks that came back since the queue was opened, and made way because a newer version of them was pending
    /// or their document no longer had them.
    pub fn made_way(&self) -> u64 {
        self.shared.made_way.load(Relaxed)
    }

    /// Short hashes of the keys of all pending chunks.
    pub fn pending_keys(&self) -> Vec<u128> {
        let state = self.shared.state();
        state.window.seqs().into_iter().filter_map(|seq| Some(state.window.slot(seq)?.key)).collect()
    }

    /// What is pending under this key, compared with a chunk id.
    pub fn held(&self, key: &crate::chunk::ChunkKey, chunk_id: &Digest) -> Option<HeldPending> {
        let state = self.shared.state();
        let (_, slot) = state.window.by_key(key.short_hash())?;
        Some(HeldPending {
            same: slot.chunk == prefix(chunk_id),
            source_id: slot.source_id,
            ordinal: slot.ordinal,
        })
    }

    /// Takes a chunk in as the newest of its key. An older version that is not yet leased makes way; one that
    /// is leased finishes first. Durable after the next [`Queue::flush`] or lease. True when an older version
    /// made way.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn enqueue(&self, chunk: Chunk) -> Result<bool, QueueError> {
        self.enqueue_with(chunk, Record::default())
    }

    fn enqueue_with(&self, chunk: Chunk, record: Record) -> Result<bool, QueueError> {
        let made_way = {
            let mut state = self.shared.state();
            let older = state.window.by_key(chunk.key.short_hash());
            let older = older.filter(|(_, slot)| !matches!(slot.place, Place::Leased(_))).map(|(seq, _)| seq);
            let made_way = older.is_some_and(|seq| state.remove(seq).is_some());
            state.insert(&Pending { chunk, record }, Place::Ready);
            self.shared.apply_if_large(&mut state)?;
            made_way
        };
        self.shared.told();
        Ok(made_way)
    }

    /// Waits until fewer than `limit` chunks are pending, at most `patience`. True when there is room.
    pub fn wait_for_room(&self, limit: usize, patience: Duration) -> bool {
        let state = self.shared.state();
        let waited = self.shared.room.wait_timeout_while(state, patience, |s| s.window.len() >= limit);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.window.len() < limit
    }

    /// Hands out the oldest chunks, durably marked as started: at most `chunks`, and (but for the first) `bytes`
    /// of stored form.
    ///
    /// # Errors
    /// See [`QueueError`]; the chunks are then back in the queue.
    pub fn lease(&self, chunks: usize, bytes: usize) -> Result<Leased, QueueError> {
        let (seqs, mark) = {
            let mut state = self.shared.state();
            let seqs = match state.window.pick(Instant::now(), chunks, bytes) {
                Pick::Chunks(seqs) => seqs,
                Pick::Wait(at) => return Ok(Leased::Wait(at)),
                Pick::Empty => return Ok(Leased::Empty),
            };
            let mark = state.seq_next;
            state.seq_next += 1;
            state.window.lease(&seqs, mark);
            state.marks.insert(mark, seqs.iter().copied().collect());
            let value = Mark { boot: self.shared.boot, seqs: seqs.clone() }.encode();
            state.put(&entry::numbered(entry::MARK, mark), value);
            (seqs, mark)
        };
        let leased = self.flush().and_then(|()| self.read(&seqs));
        if leased.is_err() {
            seqs.iter().for_each(|seq| self.shared.give_back(*seq, None));
            tracing::debug!(mark, "a lease was taken back");
        }
        leased.map(Leased::Chunks)
    }

    fn read(&self, seqs: &[u64]) -> Result<Vec<(Lease, Chunk)>, QueueError> {
        let mut out = Vec::with_capacity(seqs.len());
        let mut stored = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let bytes = self.shared.db.get(entry::numbered(entry::PENDING, *seq))?;
            let pending = bytes.and_then(|bytes| Pending::decode(&bytes));
            stored.push(
                pending.ok_or_else(|| QueueError::Damaged(format!("pending chunk {seq} is unreadable")))?,
            );
        }
        for (seq, Pending { chunk, record }) in seqs.iter().zip(stored) {
            let lease = Lease {
                shared: Arc::clone(&self.shared),
                seq: *seq,
                spent: false,
                key: chunk.key.clone(),
                chunk_id: chunk.id(),
                record,
            };
            out.push((lease, chunk));
        }
        Ok(out)
    }

    /// Ends leases. Rides the next flush: after a crash the ledger says what was written.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, QueueError> {
        let mut settled = Settled::default();
        // Outlives the lock: a lease that is dropped takes it, to put its chunk back.
        let mut settlements = settlements.into_iter();
        {
            let mut state = self.shared.state();
            for settlement in settlements.by_ref() {
                self.settle_one(&mut state, settlement, &mut settled)?;
            }
            self.shared.apply_if_large(&mut state)?;
        }
        self.shared.told();
        Ok(settled)
    }

    fn settle_one(
        &self,
        state: &mut State,
        settlement: Settlement,
        settled: &mut Settled,
    ) -> Result<(), QueueError> {
        match settlement {
            Settlement::Written(lease) => {
                let key = lease.key.clone();
                let (seq, _) = lease.spend();
                self.release(state, seq);
                if state.remove(seq).is_some_and(|slot| slot.cancelled) {
                    settled.stale.push(key);
                }
            }
            Settlement::Retry { lease, attempts, after } => {
                let (seq, mut record) = lease.spend();
                self.release(state, seq);
                let superseded = state.window.superseded(seq);
                let stored = match state.window.slot(seq) {
                    Some(slot) if !slot.cancelled && !superseded => self.pending(state, seq)?,
                    _ => None,
                };
                state.remove(seq);
                let Some(stored) = stored else {
                    settled.superseded += 1;
                    return Ok(());
                };
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(0);
                // A chunk that is merely put off pays with neither attempts nor time.
                if attempts > record.attempts {
                    record.waited_ms = record.waited_ms.saturating_add(after_ms);
                }
                record.attempts = attempts;
                record.not_before_ms = now_ms().saturating_add(after_ms);
                let pending = Pending { chunk: stored.chunk, record };
                state.insert(&pending, Place::Delayed(Instant::now() + after));
            }
        }
        Ok(())
    }

    /// The stored form of a pending chunk, gathered changes included.
    fn pending(&self, state: &mut State, seq: u64) -> Result<Option<Pending>, QueueError> {
        self.shared.apply(state)?;
        let bytes = self.shared.db.get(entry::numbered(entry::PENDING, seq))?;
        Ok(bytes.and_then(|bytes| Pending::decode(&bytes)))
    }

    fn release(&self, state: &mut State, seq: u64) {
        if let Some(Place::Leased(mark)) = state.window.slot(seq).map(|slot| slot.place) {
            state.unmark(mark, seq, self.shared.boot, false);
        }
    }

    /// Settles pending chunks for which `done` says that the ledger holds them: what a crash between ledger and
    /// queue left behind. Gives their number.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn catch_up(&self, done: &mut dyn FnMut(&Chunk) -> bool) -> Result<usize, QueueError> {
        let mut count = 0;
        let mut state = self.shared.state();
        self.shared.apply(&mut state)?;
        for seq in state.window.seqs() {
            let bytes = self.shared.db.get(entry::numbered(entry::PENDING, seq))?;
            let Some(pending) = bytes.and_then(|bytes| Pending::decode(&bytes)) else { continue };
            if done(&pending.chunk) {
                state.remove(seq);
                count += 1;
            }
            self.shared.apply_if_large(&mut state)?;
        }
        Ok(count)
    }

    /// Makes everything so far durable.
    ///
    /// # Errors
    /// `DiskFull`, or damage that ends the run.
    pub fn flush(&self) -> Result<(), QueueError> {
        self.shared.apply(&mut self.shared.state())?;
        self.shared.db.flush()?;
        self.shared.sync.after_flush().map_err(QueueError::NotDurable)
    }
}
