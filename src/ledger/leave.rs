//! Chunks that their documents no longer have, on their way out of sink and ledger.

use rusqlite::{Connection, TransactionBehavior, params};

use super::{Ledger, LedgerError, signed};
use crate::chunk::ChunkKey;

impl Ledger {
    /// Notes that these keys are about to be deleted from the sink: until they are removed here, none of them counts as
    /// written, so that a text that comes back after a kill in between is embedded again. Durable on return.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn leaving(&self, keys: &[ChunkKey]) -> Result<(), LedgerError> {
        // No text has this hash.
        self.each(keys, "UPDATE chunks SET source_hash = zeroblob(32) WHERE doc_id = ?1 AND chunk_index = ?2")
    }

    /// Removes keys. Durable on return.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn remove(&self, keys: &[ChunkKey]) -> Result<(), LedgerError> {
        self.each(keys, "DELETE FROM chunks WHERE doc_id = ?1 AND chunk_index = ?2")
    }

    fn each(&self, keys: &[ChunkKey], sql: &str) -> Result<(), LedgerError> {
        let work = |writer: &mut Connection| -> rusqlite::Result<()> {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for key in keys {
                transaction.prepare_cached(sql)?.execute(params![key.doc_id, signed(key.chunk_index)])?;
            }
            transaction.commit()
        };
        if keys.is_empty() { Ok(()) } else { work(&mut self.writer()).map_err(|e| self.wrap(e)) }
    }
}
