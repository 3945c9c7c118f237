//! Forgetting documents: what is being forgotten, so that one cut short is finished, and the rows themselves.

use rusqlite::{Connection, TransactionBehavior};

use super::{Ledger, LedgerError};

impl Ledger {
    /// Notes that these documents are being forgotten. Durable on return.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn forgetting_begins(&self, docs: &[String]) -> Result<(), LedgerError> {
        let work = |writer: &mut Connection| -> rusqlite::Result<()> {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for doc in docs {
                transaction.execute("INSERT OR IGNORE INTO forgetting(doc_id) VALUES (?1)", [doc])?;
            }
            transaction.commit()
        };
        work(&mut self.writer()).map_err(|e| self.wrap(e))
    }

    /// Documents that are being forgotten.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn forgetting(&self) -> Result<Vec<String>, LedgerError> {
        let work = |reader: &Connection| -> rusqlite::Result<Vec<String>> {
            let mut statement = reader.prepare_cached("SELECT doc_id FROM forgetting ORDER BY 1")?;
            statement.query_map([], |row| row.get(0))?.collect()
        };
        work(&self.reader()).map_err(|e| self.wrap(e))
    }

    /// All of them are forgotten.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn forgetting_ends(&self) -> Result<(), LedgerError> {
        self.writer().execute("DELETE FROM forgetting", []).map(drop).map_err(|e| self.wrap(e))
    }

    /// Removes every row of a document. Durable on return; gives the number of chunks.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn forget(&self, doc: &str) -> Result<u64, LedgerError> {
        let work = |writer: &mut Connection| -> rusqlite::Result<usize> {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let rows = transaction.execute("DELETE FROM chunks WHERE doc_id = ?1", [doc])?;
            transaction.execute("DELETE FROM latest WHERE doc_id = ?1", [doc])?;
            transaction.commit()?;
            Ok(rows)
        };
        work(&mut self.writer()).map(|rows| rows as u64).map_err(|e| self.wrap(e))
    }

    /// Empties the write-ahead log, where pages of removed rows still lie. False when another program reads it.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn scrub(&self) -> Result<bool, LedgerError> {
        let busy = self.writer().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        busy.map(|busy| busy == 0).map_err(|e| self.wrap(e))
    }
}
