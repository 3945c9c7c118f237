//! What the SQLite sink holds of one document, and how its bytes leave the write-ahead log.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags};

use super::{SinkError, Stored, native, rows};

/// All rows of a document.
pub(super) fn rows_of(conn: &Connection, path: &Path, doc_id: &str) -> Result<Vec<Stored>, SinkError> {
    let sql = |error| native::fault(path, "reading the sink", error);
    let columns = rows::STORED;
    let text = format!("SELECT {columns} FROM vectors WHERE doc_id = ?1 ORDER BY chunk_index");
    let mut statement = conn.prepare(&text).map_err(sql)?;
    let found = statement.query_map([doc_id], rows::stored).map_err(sql)?;
    found.collect::<rusqlite::Result<_>>().map_err(sql)
}

/// Moves the write-ahead log into the file and empties it. False when another program reads it.
pub(super) fn scrub(path: &Path, busy_timeout: Duration) -> Result<bool, SinkError> {
    let work = || -> rusqlite::Result<i64> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags)?;
        conn.busy_timeout(busy_timeout)?;
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
    };
    if !path.exists() {
        return Ok(true);
    }
    work().map(|busy| busy == 0).map_err(|error| native::fault(path, "emptying the sink's log", error))
}
