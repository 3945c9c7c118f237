//! What has been written: `ledger.db`, SQLite in WAL mode, every commit durable. People and DuckDB can read it.
//!
//! One connection writes, another reads, so that reading input never waits for a commit.

mod forget;
mod leave;
pub mod letters;
mod noted;
mod runs;
mod schema;
mod sources;

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

pub use noted::Noted;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
pub use sources::{KnownSource, RegisteredSource, SourceState};
use uuid::Uuid;

use crate::chunk::{ChunkKey, Digest};

/// What can go wrong with the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// No space is left.
    #[error("the disk is full: {path} could not be written; free some space and run again")]
    DiskFull {
        /// The file.
        path: String,
    },
    /// Made by a newer version.
    #[error("{path} has format {found}, this version knows {known}; use the newer forebay")]
    Newer {
        /// The file.
        path: String,
        /// Its format.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// Its pages or rows are not whole.
    #[error("{path} is damaged; move it aside and type `forebay rebuild`: it is made again from the sink")]
    Damaged {
        /// The file.
        path: String,
    },
    /// Another file, or none, stands where it was opened: what is written to it now would be lost.
    #[error(
        "{path} was removed or replaced while it was written to; put it back, or type `forebay rebuild`: it is made \
         again from the sink"
    )]
    Moved {
        /// The file.
        path: String,
    },
    /// Anything else SQLite says; messages of SQLite quote no stored text.
    #[error("{path}: {error}; if the file is damaged, move it aside and run `forebay rebuild`")]
    Sqlite {
        /// The file.
        path: String,
        /// Why.
        error: rusqlite::Error,
    },
}

/// What is recorded of a written chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The logical job.
    pub key: ChunkKey,
    /// Chunk id.
    pub chunk_id: Digest,
    /// SHA-256 of the text as read.
    pub source_hash: Digest,
    /// SHA-256 of the text as embedded.
    pub content_hash: Digest,
    /// [`crate::identity::Identity::stored`].
    pub identity: String,
    /// Source it was read from; 0 when rebuilt from the sink.
    pub source_id: i64,
    /// Place in that source.
    pub ordinal: u64,
    /// Run that wrote it.
    pub run: String,
    /// When, RFC 3339 UTC.
    pub embedded_at: String,
}

/// The ledger.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    /// Device and inode.
    file: Option<(u64, u64)>,
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
}

impl Ledger {
    /// Opens or creates `path`.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let wrap = |error| wrap(path, error);
        let writer = schema::connect(path).map_err(wrap)?;
        schema::migrate(path, &writer)?;
        let reader = schema::connect(path).map_err(wrap)?;
        let (path, file) = (path.to_owned(), file_at(path));
        Ok(Self { path, file, writer: Mutex::new(writer), reader: Mutex::new(reader) })
    }

    /// SQLite goes on writing to a file that has lost its name.
    fn in_place(&self) -> Result<(), LedgerError> {
        if file_at(&self.path) == self.file {
            return Ok(());
        }
        Err(LedgerError::Moved { path: self.path.display().to_string() })
    }

    fn wrap(&self, error: rusqlite::Error) -> LedgerError {
        wrap(&self.path, error)
    }

    fn writer(&self) -> MutexGuard<'_, Connection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> MutexGuard<'_, Connection> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is recorded under a key.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn held(&self, key: &ChunkKey) -> Result<Option<Written>, LedgerError> {
        let reader = self.reader();
        let sql = "SELECT chunk_id, source_hash, content_hash, identity, source_id, ordinal, run, embedded_at
                   FROM chunks WHERE doc_id = ?1 AND chunk_index = ?2";
        let mut statement = reader.prepare_cached(sql).map_err(|e| self.wrap(e))?;
        let row = statement.query_row(params![key.doc_id, signed(key.chunk_index)], |row| {
            Ok(Written {
                key: key.clone(),
                chunk_id: hex_at(row, 0)?,
                source_hash: bytes_at(row, 1)?,
                content_hash: bytes_at(row, 2)?,
                identity: row.get(3)?,
                source_id: row.get(4)?,
                ordinal: row.get::<_, i64>(5)?.cast_unsigned(),
                run: row.get(6)?,
                embedded_at: row.get(7)?,
            })
        });
        row.optional().map_err(|e| self.wrap(e))
    }

    /// All that is recorded of a document, in the order of its chunks.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn document(&self, doc_id: &str) -> Result<Vec<Written>, LedgerError> {
        let found = self.tail(doc_id, 0)?.into_iter().map(|index| self.held(&ChunkKey::new(doc_id, index)));
        found.filter_map(Result::transpose).collect()
    }

    /// The key that was recorded last, if it is still held: a sink that lacks it is not the one that was written.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn latest(&self) -> Result<Option<Written>, LedgerError> {
        let key = self.reader().query_row("SELECT doc_id, chunk_index FROM latest", [], |row| {
            Ok(ChunkKey { doc_id: row.get(0)?, chunk_index: row.get::<_, i64>(1)?.cast_unsigned() })
        });
        match key.optional().map_err(|e| self.wrap(e))? {
            Some(key) => self.held(&key),
            None => Ok(None),
        }
    }

    /// Records what the sink has confirmed, with the dead letters this resolves. Durable on return.
    ///
    /// # Errors
    /// See [`LedgerError`]; then nothing is recorded.
    pub fn commit(&self, rows: &[Written], resolves: &[(Uuid, String)]) -> Result<(), LedgerError> {
        let work = |writer: &mut Connection| -> rusqlite::Result<()> {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            {
                let mut insert = transaction.prepare_cached(
                    "INSERT OR REPLACE INTO chunks(doc_id, chunk_index, chunk_id, source_hash, content_hash,
                     identity, source_id, ordinal, run, embedded_at) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)",
                )?;
                for row in rows {
                    insert.execute(params![
                        row.key.doc_id,
                        signed(row.key.chunk_index),
                        row.chunk_id.to_string(),
                        row.source_hash.0,
                        row.content_hash.0,
                        row.identity,
                        row.source_id,
                        row.ordinal.cast_signed(),
                        row.run,
                        row.embedded_at
                    ])?;
                }
                if let Some(row) = rows.last() {
                    let sql = "INSERT OR REPLACE INTO latest(one, doc_id, chunk_index) VALUES (1, ?1, ?2)";
                    let mut latest = transaction.prepare_cached(sql)?;
                    latest.execute(params![row.key.doc_id, signed(row.key.chunk_index)])?;
                }
                let mut resolve = transaction
                    .prepare_cached("INSERT OR REPLACE INTO resolved(letter, how) VALUES (?1, ?2)")?;
                for (id, how) in resolves {
                    resolve.execute(params![id.to_string(), how])?;
                }
            }
            transaction.commit()
        };
        self.in_place()?;
        work(&mut self.writer()).map_err(|e| self.wrap(e))?;
        self.in_place()
    }

    /// Dead letters resolved by a commit whose resolution may not have reached the queue.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn resolved(&self) -> Result<Vec<(Uuid, String)>, LedgerError> {
        let work = |reader: &Connection| -> rusqlite::Result<Vec<(Uuid, String)>> {
            let mut statement = reader.prepare_cached("SELECT letter, how FROM resolved")?;
            let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))?;
            let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(rows.into_iter().filter_map(|(id, how)| Some((id.parse().ok()?, how))).collect())
        };
        work(&self.reader()).map_err(|e| self.wrap(e))
    }

    /// Forgets resolutions that the queue knows by now.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn resolved_known(&self, ids: &[Uuid]) -> Result<(), LedgerError> {
        let work = |writer: &mut Connection| -> rusqlite::Result<()> {
            let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for id in ids {
                transaction.execute("DELETE FROM resolved WHERE letter = ?1", [id.to_string()])?;
            }
            transaction.commit()
        };
        if ids.is_empty() { Ok(()) } else { work(&mut self.writer()).map_err(|e| self.wrap(e)) }
    }

    /// Indices of a document's written chunks from `from` on, ascending.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn tail(&self, doc_id: &str, from: u64) -> Result<Vec<u64>, LedgerError> {
        let work = |reader: &Connection| -> rusqlite::Result<Vec<u64>> {
            let sql = "SELECT chunk_index FROM chunks WHERE doc_id = ?1 AND chunk_index >= ?2 ORDER BY 1";
            let mut statement = reader.prepare_cached(sql)?;
            let rows = statement.query_map(params![doc_id, signed(from)], |row| row.get::<_, i64>(0))?;
            rows.map(|index| index.map(i64::cast_unsigned)).collect()
        };
        work(&self.reader()).map_err(|e| self.wrap(e))
    }

    /// Number of written chunks.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn count(&self) -> Result<u64, LedgerError> {
        let count = self.reader().query_row("SELECT count(*) FROM chunks", [], |row| row.get::<_, i64>(0));
        count.map(i64::cast_unsigned).map_err(|e| self.wrap(e))
    }

    /// The next `limit` written chunks after a key in byte order of (doc_id, chunk_index): key, chunk id,
    /// identity. `after = None` starts.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn page(
        &self,
        after: Option<&ChunkKey>,
        limit: usize,
    ) -> Result<Vec<(ChunkKey, Digest, String)>, LedgerError> {
        let work = |reader: &Connection| -> rusqlite::Result<Vec<(ChunkKey, Digest, String)>> {
            let sql = "SELECT doc_id, chunk_index, chunk_id, identity FROM chunks
                       WHERE (doc_id, chunk_index) > (?1, ?2) ORDER BY doc_id, chunk_index LIMIT ?3";
            let mut statement = reader.prepare_cached(sql)?;
            // Before the first key: no id is empty, and no index is negative.
            let (doc, index) = after.map_or(("", -1), |key| (key.doc_id.as_str(), signed(key.chunk_index)));
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![doc, index, limit], |row| {
                let key =
                    ChunkKey { doc_id: row.get(0)?, chunk_index: row.get::<_, i64>(1)?.cast_unsigned() };
                Ok((key, hex_at(row, 2)?, row.get(3)?))
            })?;
            rows.collect()
        };
        work(&self.reader()).map_err(|e| self.wrap(e))
    }

    /// Forgets every written chunk, to be recorded anew from the sink.
    ///
    /// # Errors
    /// See [`LedgerError`].
    pub fn clear_chunks(&self) -> Result<(), LedgerError> {
        self.writer().execute("DELETE FROM chunks", []).map(drop).map_err(|e| self.wrap(e))
    }
}

/// SQLite's integers are signed; an index or offset keeps its bits, and real ones stay below 2⁶³.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

fn hex_at(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Digest> {
    let text: String = row.get(at)?;
    text.parse().map_err(|why: String| {
        rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, why.into())
    })
}

fn bytes_at(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Digest> {
    row.get::<_, [u8; 32]>(at).map(Digest)
}

fn wrap(path: &Path, error: rusqlite::Error) -> LedgerError {
    let path = path.display().to_string();
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => LedgerError::DiskFull { path },
        _ => LedgerError::Sqlite { path, error },
    }
}

#[cfg(test)]
mod tests;
