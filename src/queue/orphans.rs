//! Chunks that came back from the line after their document had lost them.

use super::Queue;
use crate::chunk::ChunkKey;

impl Queue {
    /// Keys that came back after their document had lost them: the sink may have them although the ledger does not. (In
    /// a process that dies they are still pending, and their source is read again.)
    pub fn orphans(&self) -> Vec<ChunkKey> {
        self.shared.state().orphans.clone()
    }

    /// The sink is rid of them.
    pub fn orphans_gone(&self) {
        self.shared.state().orphans.clear();
    }
}
