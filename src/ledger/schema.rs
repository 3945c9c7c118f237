//! Tables of `ledger.db` and how a connection is set up.

use std::path::Path;

use rusqlite::{Connection, config::DbConfig};

use super::{LedgerError, wrap};

/// `PRAGMA user_version` of the ledger.
const FORMAT: i64 = 2;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS chunks(
  doc_id TEXT NOT NULL, chunk_index INTEGER NOT NULL, chunk_id TEXT NOT NULL, source_hash BLOB NOT NULL,
  content_hash BLOB NOT NULL, identity TEXT NOT NULL, source_id INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  run TEXT NOT NULL, embedded_at TEXT NOT NULL, PRIMARY KEY (doc_id, chunk_index)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sources(
  source_id INTEGER PRIMARY KEY AUTOINCREMENT, uri TEXT NOT NULL, fingerprint TEXT NOT NULL, registered_at TEXT NOT NULL,
  read_to INTEGER NOT NULL DEFAULT 0, done_at TEXT, incomplete TEXT, dropped_at TEXT);
CREATE INDEX IF NOT EXISTS sources_uri ON sources(uri, source_id);
CREATE TABLE IF NOT EXISTS runs(run TEXT PRIMARY KEY, report TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS latest(one INTEGER PRIMARY KEY CHECK (one = 1), doc_id TEXT NOT NULL, chunk_index INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS resolved(letter TEXT PRIMARY KEY, how TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS forgetting(doc_id TEXT PRIMARY KEY);
";

/// busy_timeout first: even the switch to WAL can meet a lock.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(30))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -16_000)?;
    // Without it SQLite plans a statement anew for each value bound to a range, and reading input asks by the million.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // A document's id may be personal: what was removed is not left in free pages.
    connection.query_row("PRAGMA secure_delete = ON", [], |_| Ok(()))?;
    Ok(connection)
}

/// What format 2 adds: when a spooled input was dropped, because all of it had been done.
const FROM_1: &str = "ALTER TABLE sources ADD COLUMN dropped_at TEXT;";

/// A file up to this is looked through at each open, about a tenth of a second; of a larger one SQLite itself notices
/// what it comes across.
const LOOKED_THROUGH_BYTES: u64 = 32 * 1024 * 1024;

/// Refuses a small file whose pages or rows are not whole.
fn look_through(path: &Path, connection: &Connection) -> Result<(), LedgerError> {
    if std::fs::metadata(path).is_ok_and(|meta| meta.len() > LOOKED_THROUGH_BYTES) {
        return Ok(());
    }
    let said: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|e| wrap(path, e))?;
    match said.as_str() {
        "ok" => Ok(()),
        _ => Err(LedgerError::Damaged { path: path.display().to_string() }),
    }
}

/// Creates the tables, or brings an older format up to ours; refuses a newer one.
pub(super) fn migrate(path: &Path, connection: &Connection) -> Result<(), LedgerError> {
    let wrap = |error| wrap(path, error);
    look_through(path, connection)?;
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(wrap)?;
    if found > FORMAT {
        return Err(LedgerError::Newer { path: path.display().to_string(), found, known: FORMAT });
    }
    let older = if found == 1 { FROM_1 } else { "" };
    let sql = format!("BEGIN IMMEDIATE;{older}{TABLES}PRAGMA user_version = {FORMAT};COMMIT;");
    connection.execute_batch(&sql).map_err(wrap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Ledger, SourceState};

    /// As version 0.1.0 made it.
    const FORMAT_1: &str = "
        CREATE TABLE sources(
          source_id INTEGER PRIMARY KEY AUTOINCREMENT, uri TEXT NOT NULL, fingerprint TEXT NOT NULL,
          registered_at TEXT NOT NULL, read_to INTEGER NOT NULL DEFAULT 0, done_at TEXT, incomplete TEXT);
        INSERT INTO sources(uri, fingerprint, registered_at, done_at) VALUES ('/a', 'f', 'T', 'T');
        INSERT INTO sources(uri, fingerprint, registered_at) VALUES ('/b', 'g', 'T');
        PRAGMA user_version = 1;";

    #[test]
    fn a_ledger_of_format_1_is_brought_up_with_all_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        Connection::open(&path).unwrap().execute_batch(FORMAT_1).unwrap();
        for _ in 0..2 {
            let ledger = Ledger::open(&path).unwrap();
            assert_eq!(ledger.unread_sources().unwrap(), ["/b"]);
            let known = ledger.register("/a", "f", "T").unwrap();
            assert_eq!(known.source_id, 1, "known sources keep their numbers");
            ledger.source_read(&known, &SourceState::Done, 1, "T").unwrap();
        }
        let ledger = Ledger::open(&path).unwrap();
        ledger.drop_source("/a", "T").unwrap();
        let version: i64 =
            Connection::open(&path).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        assert_eq!(version, FORMAT);
    }
}
