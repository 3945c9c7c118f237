//! What was registered as input, and whether it was read to its end.

use rusqlite::{Connection, params};

use super::{Ledger, LedgerError};

/// A registered source. A file whose content changed is another source under the same uri, with a higher number;
/// so is one whose content changed back. What stands in a source of a higher number is newer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredSource {
    /// Number.
    pub source_id: i64,
    /// Where it is: an absolute path.
    pub uri: String,
}

/// What is known of one uri.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownSource {
    /// Its numbers, one a content.
    pub numbers: Vec<i64>,
    /// Whether all of them were read to their ends.
    pub done: bool,
    /// Whether it is no longer kept.
    pub dropped: bool,
}

/// How far a source was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// To its end, and all of it is durable in queue, ledger or DLQ.
    Done,
    /// To its end, but something was missing there: a cut stream, say.
    Incomplete(String),
}

impl Ledger {
    /// Registers a source, or finds it when it is known. Durable on return.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn register(&self, uri: &str, fingerprint: &str, at: &str) -> Result<RegisteredSource, LedgerError> {
        let work = |writer: &Connection| -> rusqlite::Result<i64> {
            let sql =
                "SELECT source_id, fingerprint FROM sources WHERE uri = ?1 ORDER BY source_id DESC LIMIT 1";
            let latest = writer.query_row(sql, [uri], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)));
            match rusqlite::OptionalExtension::optional(latest)? {
                Some((source_id, known)) if known == fingerprint => {
                    writer.execute(
                        "UPDATE sources SET done_at = NULL, dropped_at = NULL WHERE source_id = ?1",
                        [source_id],
                    )?;
                    Ok(source_id)
                }
                _ => {
                    let sql = "INSERT INTO sources(uri, fingerprint, registered_at) VALUES (?1, ?2, ?3)";
                    writer.execute(sql, params![uri, fingerprint, at])?;
                    Ok(writer.last_insert_rowid())
                }
            }
        };
        let source_id = work(&self.writer()).map_err(|e| self.wrap(e))?;
        Ok(RegisteredSource { source_id, uri: uri.to_owned() })
    }

    /// Records that a source was read to its end; older contents under the same uri are done with, too.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn source_read(
        &self,
        source: &RegisteredSource,
        state: &SourceState,
        bytes: u64,
        at: &str,
    ) -> Result<(), LedgerError> {
        // One that misses something stays unread: the next run without a path tries it again.
        let (done_at, incomplete) = match state {
            SourceState::Done => (Some(at), None),
            SourceState::Incomplete(why) => (None, Some(why)),
        };
        let work = |writer: &Connection| -> rusqlite::Result<()> {
            let sql = "UPDATE sources SET done_at = ?2, incomplete = ?3, read_to = ?4 WHERE source_id = ?1";
            writer.execute(sql, params![source.source_id, done_at, incomplete, super::signed(bytes)])?;
            let sql =
                "UPDATE sources SET done_at = ?2 WHERE uri = ?1 AND done_at IS NULL AND source_id <> ?3";
            writer.execute(sql, params![source.uri, at, source.source_id]).map(drop)
        };
        work(&self.writer()).map_err(|e| self.wrap(e))
    }

    /// Uris that were registered and not read to their end, oldest first.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn unread_sources(&self) -> Result<Vec<String>, LedgerError> {
        let work = |reader: &Connection| -> rusqlite::Result<Vec<String>> {
            let sql = "SELECT uri FROM sources WHERE done_at IS NULL AND dropped_at IS NULL
                       GROUP BY uri ORDER BY min(source_id)";
            let mut statement = reader.prepare_cached(sql)?;
            statement.query_map([], |row| row.get(0))?.collect()
        };
        work(&self.reader()).map_err(|e| self.wrap(e))
    }

    /// The uri of a source.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn source_uri(&self, source_id: i64) -> Result<Option<String>, LedgerError> {
        let sql = "SELECT uri FROM sources WHERE source_id = ?1";
        let uri = self.reader().query_row(sql, [source_id], |row| row.get(0));
        rusqlite::OptionalExtension::optional(uri).map_err(|e| self.wrap(e))
    }

    /// Makes every source unread: the queue was lost, and what was pending in it must be found again. Gives
    /// their number. A dropped one stays done: nothing of it was pending when it was dropped.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn read_all_again(&self) -> Result<usize, LedgerError> {
        let sql = "UPDATE sources SET done_at = NULL WHERE dropped_at IS NULL";
        self.writer().execute(sql, []).map_err(|e| self.wrap(e))
    }

    /// What is known of one uri; `None` when it was never registered.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn source(&self, uri: &str) -> Result<Option<KnownSource>, LedgerError> {
        let work = |reader: &Connection| -> rusqlite::Result<Vec<(i64, bool, bool)>> {
            let sql =
                "SELECT source_id, done_at IS NOT NULL, dropped_at IS NOT NULL FROM sources WHERE uri = ?1";
            let mut statement = reader.prepare_cached(sql)?;
            statement.query_map([uri], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
        };
        let rows = work(&self.reader()).map_err(|e| self.wrap(e))?;
        Ok((!rows.is_empty()).then(|| KnownSource {
            done: rows.iter().all(|(_, done, _)| *done),
            dropped: rows.iter().all(|(.., dropped)| *dropped),
            numbers: rows.iter().map(|(number, ..)| *number).collect(),
        }))
    }

    /// Records that an input which cannot be read again is no longer kept, because all of it is done. Durable on
    /// return: the file goes after this.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn drop_source(&self, uri: &str, at: &str) -> Result<(), LedgerError> {
        let sql = "UPDATE sources SET dropped_at = ?2 WHERE uri = ?1";
        self.writer().execute(sql, [uri, at]).map(drop).map_err(|e| self.wrap(e))
    }

    /// Inputs that were dropped: what was written of them cannot be read again.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn dropped_sources(&self) -> Result<u64, LedgerError> {
        let sql = "SELECT count(DISTINCT uri) FROM sources WHERE dropped_at IS NOT NULL";
        let count = self.reader().query_row(sql, [], |row| row.get::<_, i64>(0));
        count.map(i64::cast_unsigned).map_err(|e| self.wrap(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_unread_until_its_end_was_reached() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
        let first = ledger.register("/a", "f1", "T").unwrap();
        assert_eq!(ledger.register("/a", "f1", "T").unwrap(), first);
        let changed = ledger.register("/a", "f2", "T").unwrap();
        assert_ne!(changed.source_id, first.source_id);
        let back = ledger.register("/a", "f1", "T").unwrap();
        assert!(back.source_id > changed.source_id, "content that changed back is the newest");
        ledger.register("/b", "f", "T").unwrap();
        assert_eq!(ledger.unread_sources().unwrap(), ["/a", "/b"]);
        ledger.source_read(&changed, &SourceState::Done, 7, "T").unwrap();
        assert_eq!(ledger.unread_sources().unwrap(), ["/b"]);
        assert_eq!(ledger.read_all_again().unwrap(), 4);
        assert_eq!(ledger.unread_sources().unwrap(), ["/a", "/b"]);
    }

    #[test]
    fn a_dropped_source_is_never_asked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
        assert_eq!(ledger.source("/a").unwrap(), None);
        let a = ledger.register("/a", "f", "T").unwrap();
        ledger.register("/b", "f", "T").unwrap();
        assert!(!ledger.source("/a").unwrap().unwrap().done);
        ledger.source_read(&a, &SourceState::Done, 7, "T").unwrap();
        ledger.drop_source("/a", "T").unwrap();
        assert_eq!(ledger.read_all_again().unwrap(), 1);
        assert_eq!(ledger.unread_sources().unwrap(), ["/b"]);
        let known = KnownSource { numbers: vec![a.source_id], done: true, dropped: true };
        assert_eq!(ledger.source("/a").unwrap(), Some(known));
        assert_eq!(ledger.dropped_sources().unwrap(), 1);
    }
}
