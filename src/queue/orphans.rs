//! Chunks that came back from the line after their document had lost them.

use super::{Queue, entry};
use crate::chunk::ChunkKey;

impl Queue {
    /// Keys that came back after their document had lost them: the sink may have them although the ledger does not. They
    /// stay in the store until [`Queue::orphans_gone`], so that a crash forgets none.
    pub fn orphans(&self) -> Vec<ChunkKey> {
        self.shared.state().orphans.iter().map(|(_, key)| key.clone()).collect()
    }

    /// The sink is rid of them.
    pub fn orphans_gone(&self) {
        let mut state = self.shared.state();
        for (seq, _) in std::mem::take(&mut state.orphans) {
            state.take(&entry::numbered(entry::PENDING, seq));
        }
    }
}
