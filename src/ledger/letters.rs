//! Dead letters as SQL tables in a file of their own, for people and other programs: `letters`, and `audit` with what
//! was done to each.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};

use super::{LedgerError, signed, wrap};

const TABLES: &str = "
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
CREATE TABLE letters(
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, doc_id TEXT, chunk_index INTEGER, chunk_id TEXT, identity TEXT,
  state TEXT NOT NULL, stage TEXT NOT NULL, class TEXT NOT NULL, native_code TEXT, message TEXT NOT NULL,
  attempts INTEGER NOT NULL, redrives INTEGER NOT NULL, first_failed_at TEXT NOT NULL, last_failed_at TEXT NOT NULL,
  quarantined_at TEXT, resolved_at TEXT, resolved_how TEXT, source TEXT NOT NULL, source_id INTEGER NOT NULL,
  line INTEGER NOT NULL, byte_offset INTEGER NOT NULL, text TEXT, meta TEXT, raw BLOB, raw_bytes INTEGER);
CREATE TABLE audit(
  letter TEXT NOT NULL REFERENCES letters(id), step INTEGER NOT NULL, at TEXT NOT NULL, what TEXT NOT NULL,
  who TEXT NOT NULL, why TEXT, PRIMARY KEY (letter, step));
-- One row a letter that somebody still has to see to, or whose vector was written since: one that was given up, or
-- made way for a newer text, has no vector of its own. Times are as SQLite's datetime() gives them, to compare with it.
CREATE VIEW embedding_dlq AS SELECT id,
  json_object('doc_id', doc_id, 'chunk_index', chunk_index, 'text', text) AS payload, attempts,
  message AS last_error, class AS error_class,
  strftime('%Y-%m-%d %H:%M:%f', first_failed_at) AS first_failed_at,
  strftime('%Y-%m-%d %H:%M:%f', last_failed_at) AS last_failed_at,
  strftime('%Y-%m-%d %H:%M:%f', resolved_at) AS resolved_at
  FROM letters WHERE state <> 'discarded' AND (state <> 'resolved' OR resolved_how <> 'superseded');
CREATE INDEX letters_class ON letters(class, state);
CREATE INDEX letters_doc ON letters(doc_id, chunk_index);
PRAGMA user_version = 1;
BEGIN;";

/// A letter, a field a column. Times are RFC 3339 UTC.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names are those of the form forebay-dead-letter-v1")]
pub struct Row<'a> {
    pub id: String,
    /// `chunk` or `record`.
    pub kind: &'static str,
    pub doc_id: Option<&'a str>,
    pub chunk_index: Option<u64>,
    pub chunk_id: Option<String>,
    pub identity: Option<&'a str>,
    pub state: &'static str,
    pub stage: Option<String>,
    pub class: &'static str,
    pub native_code: Option<&'a str>,
    pub message: &'a str,
    pub attempts: u32,
    pub redrives: u32,
    pub first_failed_at: &'a str,
    pub last_failed_at: &'a str,
    pub quarantined_at: Option<&'a str>,
    pub resolved_at: Option<&'a str>,
    pub resolved_how: Option<&'a str>,
    pub source: &'a str,
    pub source_id: i64,
    pub line: u64,
    pub byte_offset: u64,
    /// Text and metadata of a chunk.
    pub text: Option<&'a str>,
    pub meta: Option<&'a str>,
    /// First bytes of a record, and its length.
    pub raw: Option<Vec<u8>>,
    pub raw_bytes: Option<u64>,
    pub audit: Vec<Step<'a>>,
}

/// One thing that was done to a letter.
#[derive(Debug)]
#[expect(missing_docs, reason = "the names are those of the form forebay-dead-letter-v1")]
pub struct Step<'a> {
    pub at: &'a str,
    pub what: &'a str,
    pub who: &'a str,
    pub why: Option<&'a str>,
}

/// The tables, being filled in one transaction.
#[derive(Debug)]
pub struct LetterTables {
    path: PathBuf,
    connection: Connection,
}

impl LetterTables {
    /// Whether a file holds such tables.
    pub fn is_one(path: &Path) -> bool {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let count = Connection::open_with_flags(path, flags).and_then(|file| {
            let sql =
                "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN ('letters', 'audit')";
            file.query_row(sql, [], |row| row.get::<_, i64>(0))
        });
        count.is_ok_and(|count| count == 2)
    }

    /// Makes them in an empty file.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn create(path: &Path) -> Result<Self, LedgerError> {
        let work = || {
            let connection = Connection::open(path)?;
            connection.execute_batch(TABLES)?;
            Ok(connection)
        };
        let connection = work().map_err(|error| wrap(path, error))?;
        Ok(Self { path: path.to_owned(), connection })
    }

    /// Adds one letter.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn add(&self, row: &Row<'_>) -> Result<(), LedgerError> {
        let work = || -> rusqlite::Result<()> {
            let mut insert = self.connection.prepare_cached(
                "INSERT INTO letters VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,\
                 ?22,?23,?24,?25,?26)",
            )?;
            insert.execute(params![
                row.id,
                row.kind,
                row.doc_id,
                row.chunk_index.map(signed),
                row.chunk_id,
                row.identity,
                row.state,
                row.stage,
                row.class,
                row.native_code,
                row.message,
                row.attempts,
                row.redrives,
                row.first_failed_at,
                row.last_failed_at,
                row.quarantined_at,
                row.resolved_at,
                row.resolved_how,
                row.source,
                row.source_id,
                signed(row.line),
                signed(row.byte_offset),
                row.text,
                row.meta,
                row.raw,
                row.raw_bytes.map(signed),
            ])?;
            let mut insert =
                self.connection.prepare_cached("INSERT INTO audit VALUES (?1,?2,?3,?4,?5,?6)")?;
            for (step, done) in (1_i64..).zip(&row.audit) {
                insert.execute(params![row.id, step, done.at, done.what, done.who, done.why])?;
            }
            Ok(())
        };
        work().map_err(|error| wrap(&self.path, error))
    }

    /// Commits and closes.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn finish(self) -> Result<(), LedgerError> {
        let done = self.connection.execute_batch("COMMIT");
        done.and_then(|()| self.connection.close().map_err(|(_, error)| error))
            .map_err(|error| wrap(&self.path, error))
    }
}
