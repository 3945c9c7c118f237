//! Tables of `ledger.db` and how a connection is set up.

use std::path::Path;

use rusqlite::{Connection, config::DbConfig};

use super::{LedgerError, wrap};

/// `PRAGMA user_version` of the ledger.
const FORMAT: i64 = 1;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS chunks(
  doc_id TEXT NOT NULL, chunk_index INTEGER NOT NULL, chunk_id TEXT NOT NULL, source_hash BLOB NOT NULL,
  content_hash BLOB NOT NULL, identity TEXT NOT NULL, source_id INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  run TEXT NOT NULL, embedded_at TEXT NOT NULL, PRIMARY KEY (doc_id, chunk_index)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sources(
  source_id INTEGER PRIMARY KEY AUTOINCREMENT, uri TEXT NOT NULL, fingerprint TEXT NOT NULL, registered_at TEXT NOT NULL,
  read_to INTEGER NOT NULL DEFAULT 0, done_at TEXT, incomplete TEXT);
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

/// Creates the tables; refuses a newer format.
pub(super) fn migrate(path: &Path, connection: &Connection) -> Result<(), LedgerError> {
    let wrap = |error| wrap(path, error);
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(wrap)?;
    if found > FORMAT {
        return Err(LedgerError::Newer { path: path.display().to_string(), found, known: FORMAT });
    }
    let sql = format!("BEGIN IMMEDIATE;{TABLES}PRAGMA user_version = {FORMAT};COMMIT;");
    connection.execute_batch(&sql).map_err(wrap)
}
