//! Taking pending chunks out again.

use super::{Queue, QueueError, window::Place};

/// What [`Queue::cancel`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cancelled {
    /// A version was waiting and is gone.
    pub waiting: bool,
    /// A version is being worked on.
    pub out: bool,
}

impl Cancelled {
    /// Whether there was anything.
    pub fn any(self) -> bool {
        self.waiting || self.out
    }
}

impl Queue {
    /// Removes what is pending under a key because its document no longer has it; what is being worked on goes
    /// when it comes back.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn cancel(&self, key: &crate::chunk::ChunkKey) -> Result<Cancelled, QueueError> {
        self.cancel_hash(key.short_hash())
    }

    /// As [`Queue::cancel`], by the key's short hash.
    pub(super) fn cancel_hash(&self, hash: u128) -> Result<Cancelled, QueueError> {
        let mut state = self.shared.state();
        let waiting = state.window.by_key(hash).filter(|(_, slot)| !matches!(slot.place, Place::Leased(_)));
        let waiting = waiting.map(|(seq, _)| seq);
        if let Some(seq) = waiting {
            state.remove(seq);
        }
        // An older version may be out at the same time.
        let out = state.window.out(hash);
        out.iter().for_each(|seq| state.window.cancel(*seq));
        let cancelled = Cancelled { waiting: waiting.is_some(), out: !out.is_empty() };
        if cancelled.any() {
            self.shared.apply_if_large(&mut state)?;
            drop(state);
            self.shared.told();
        }
        Ok(cancelled)
    }
}
