//! What the ledger knows of the data folder it lies in: a copy from elsewhere or from yesterday is told by it.

use rusqlite::params;

use super::{Ledger, LedgerError};

/// What the ledger knows of its data folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Id of the data folder.
    pub store: Option<String>,
    /// Opens so far; `None` in one that is new, or that an older version made.
    pub generation: Option<u64>,
    /// Whether nothing at all stands in it.
    pub is_empty: bool,
}

impl Ledger {
    /// What was noted of the data folder at earlier opens.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn noted(&self) -> Result<Noted, LedgerError> {
        let sql = "SELECT (SELECT value FROM meta WHERE key = 'store'),
                   (SELECT value FROM meta WHERE key = 'generation'),
                   NOT EXISTS (SELECT 1 FROM chunks) AND NOT EXISTS (SELECT 1 FROM sources)";
        let noted = self.reader().query_row(sql, [], |row| {
            let (store, generation): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
            let generation = generation.and_then(|text| text.parse().ok());
            Ok(Noted { is_empty: store.is_none() && row.get(2)?, store, generation })
        });
        noted.map_err(|e| self.wrap(e))
    }

    /// Notes the id of the data folder and that it is opened for the `generation`th time. Durable on return.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn note(&self, store: &str, generation: u64) -> Result<(), LedgerError> {
        let sql = "INSERT OR REPLACE INTO meta(key, value) VALUES ('store', ?1), ('generation', ?2)";
        self.writer().execute(sql, params![store, generation.to_string()]).map(drop).map_err(|e| self.wrap(e))
    }
}
