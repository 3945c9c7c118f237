//! What runs wrote, and their reports.

use rusqlite::{Connection, params};
use serde::Serialize;

use super::{Ledger, LedgerError};

impl Ledger {
    /// Number of written chunks that a run wrote. Looks at all of them.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn count_of(&self, run: &str) -> Result<u64, LedgerError> {
        let sql = "SELECT count(*) FROM chunks WHERE run = ?1";
        let count = self.reader().query_row(sql, [run], |row| row.get::<_, i64>(0));
        count.map(i64::cast_unsigned).map_err(|e| self.wrap(e))
    }

    /// The latest run reports, newest first.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn last_runs(&self, limit: u32) -> Result<Vec<serde_json::Value>, LedgerError> {
        let work = |reader: &Connection| -> rusqlite::Result<Vec<String>> {
            let mut statement =
                reader.prepare_cached("SELECT report FROM runs ORDER BY run DESC LIMIT ?1")?;
            statement.query_map([limit], |row| row.get(0))?.collect()
        };
        let reports = work(&self.reader()).map_err(|e| self.wrap(e))?;
        Ok(reports.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    /// Stores the report of a run.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn record_run<R: Serialize>(&self, run: &str, report: &R) -> Result<(), LedgerError> {
        let text = serde_json::to_string(report).expect("plain data");
        let sql = "INSERT OR REPLACE INTO runs(run, report) VALUES (?1, ?2)";
        self.writer().execute(sql, params![run, text]).map(drop).map_err(|e| self.wrap(e))
    }
}
