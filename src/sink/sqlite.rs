//! The default sink: one SQLite file, readable from any language.
//!
//! One connection writes, behind a lock; every write is one `BEGIN IMMEDIATE`, durable when it returns (WAL,
//! synchronous FULL). Readers open their own connection, so a search never waits for a write.

use std::{
    fs::OpenOptions,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior, params};

use super::{
    Confirmed, Hit, Query, Row, Settings, Sink, SinkError, Stored, forget, insert, native, rows, schema,
    search,
};
use crate::{
    chunk::{ChunkKey, Embedding},
    error::Fault,
    identity::Identity,
};

/// Bytes of a page of a new file: a vector of 1,024 numbers fits beside others, where SQLite's 4,096 would hold one
/// of 384 and waste the rest.
const PAGE_BYTES: i64 = 16_384;

/// What this run writes, fixed by the preflight.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) identity: Identity,
    pub(super) dim: usize,
    pub(super) store: String,
}

/// The writing side: opened when first needed, and again after a failure that may have spoilt the connection.
#[derive(Debug, Default)]
struct Writer {
    session: Option<Session>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    conn: Connection,
    /// Device and inode, to notice that the file was moved away under us.
    file: (u64, u64),
}

/// See the module.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    store_text: bool,
    busy_timeout: Duration,
    writer: Mutex<Writer>,
}

impl Sqlite {
    /// A sink at `settings.path`, or at `vectors.db` in the data folder. Nothing is opened yet.
    pub fn new(settings: &Settings, data_dir: &Path) -> Self {
        let path = if settings.path.is_empty() {
            data_dir.join("vectors.db")
        } else {
            PathBuf::from(&settings.path)
        };
        Self {
            path,
            store_text: settings.store_text,
            busy_timeout: Duration::from_millis(settings.busy_timeout_ms),
            writer: Mutex::default(),
        }
    }

    /// Runs `work` in one `BEGIN IMMEDIATE` and commits it. A failure that is not a row's closes the
    /// connection, so that the next call starts from a fresh one.
    fn write<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&Transaction<'_>, Option<&Session>) -> Result<T, SinkError>,
    ) -> Result<T, SinkError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Writer { session, open } = &mut *writer;
        let result = self.attempt(session.as_ref(), open, doing, work);
        if matches!(result, Err(SinkError::Unavailable(_) | SinkError::Unusable(_) | SinkError::Batch(_))) {
            *open = None;
        }
        result
    }

    fn attempt<T>(
        &self,
        session: Option<&Session>,
        open: &mut Option<Open>,
        doing: &str,
        work: impl FnOnce(&Transaction<'_>, Option<&Session>) -> Result<T, SinkError>,
    ) -> Result<T, SinkError> {
        let sql = |error| native::fault(&self.path, doing, error);
        let opened = match open {
            Some(opened) => opened,
            None => {
                let opened = self.open_writer()?;
                schema::readable(&opened.conn, &self.path)?;
                if let Some(session) = session {
                    schema::check(&opened.conn, &self.path, &session.identity, session.dim)?;
                }
                open.insert(opened)
            }
        };
        self.still_there(opened.file)?;
        let tx = opened.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql)?;
        let value = work(&tx, session)?;
        tx.commit().map_err(sql)?;
        Ok(value)
    }

    /// SQLite would go on writing into a file that has no name any more.
    fn still_there(&self, file: (u64, u64)) -> Result<(), SinkError> {
        match std::fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) == file => Ok(()),
            _ => Err(SinkError::Unusable(format!(
                "{} was moved or replaced while it was written to; put it back, or run `forebay rebuild`",
                self.path.display()
            ))),
        }
    }

    fn open_writer(&self) -> Result<Open, SinkError> {
        let sql = |error| native::fault(&self.path, "opening the sink", error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags).map_err(sql)?;
        conn.busy_timeout(self.busy_timeout).map_err(sql)?;
        // Before anything is set: switching a stranger's file to WAL would already change it.
        schema::admit(&conn, &self.path)?;
        // No effect on a file that exists.
        conn.pragma_update(None, "page_size", PAGE_BYTES).map_err(sql)?;
        let mode = to_wal(&conn, self.busy_timeout).map_err(sql)?;
        if mode != "wal" {
            return Err(SinkError::Unusable(format!(
                "{} is on a file system without write-ahead logging (journal mode {mode}); set sink.path to a file \
                 on a local disk",
                self.path.display()
            )));
        }
        // FULL: durable when COMMIT returns. secure_delete: what was removed is not left in free pages.
        conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA secure_delete = ON;").map_err(sql)?;
        conn.set_prepared_statement_cache_capacity(16);
        let meta = std::fs::metadata(&self.path).map_err(|error| self.cannot("open", &error))?;
        Ok(Open { conn, file: (meta.dev(), meta.ino()) })
    }

    /// Creates the file with mode 0600 before SQLite would create it with another one (-wal and -shm follow).
    fn create_file(&self) -> Result<(), SinkError> {
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !parent.is_dir() {
            return Err(SinkError::Unusable(format!(
                "the folder {} of the sink does not exist; create it, or set sink.path",
                parent.display()
            )));
        }
        if self.path.is_dir() {
            return Err(SinkError::Unusable(format!(
                "{} is a folder; move it aside, or set sink.path to a file",
                self.path.display()
            )));
        }
        match OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)
        {
            Ok(_) => Ok(()),
            Err(error) => Err(self.cannot("write", &error)),
        }
    }

    fn cannot(&self, verb: &str, error: &std::io::Error) -> SinkError {
        let name = self.path.display();
        if native::is_full(error) {
            return SinkError::Unavailable(native::full(&self.path, error));
        }
        SinkError::Unusable(format!("cannot {verb} {name}: {error}; check its rights, or set sink.path"))
    }

    fn reader(&self) -> Result<Connection, SinkError> {
        if !self.path.exists() {
            return Err(SinkError::Unusable(format!(
                "there is no {}; run `forebay run PATH` first",
                self.path.display()
            )));
        }
        let sql = |error| native::fault(&self.path, "opening the sink", error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags).map_err(sql)?;
        conn.busy_timeout(self.busy_timeout).map_err(sql)?;
        schema::readable(&conn, &self.path)?;
        Ok(conn)
    }
}

/// Now, RFC 3339 UTC with milliseconds.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

impl Sink for Sqlite {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn is_absent(&self) -> bool {
        !self.path.exists()
    }

    fn preflight(
        &self,
        identity: &Identity,
        dim: usize,
        store: &str,
        reembed: bool,
    ) -> Result<(), SinkError> {
        self.create_file()?;
        let sql = |error| native::fault(&self.path, "preparing the sink", error);
        let mut opened = self.open_writer()?;
        let tx = opened.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql)?;
        schema::prepare(&tx, &self.path, identity, dim, reembed, &now())?;
        tx.commit().map_err(sql)?;
        {
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            let session = Session { identity: identity.clone(), dim, store: store.to_owned() };
            *writer = Writer { session: Some(session), open: Some(opened) };
        }
        self.probe()
    }

    fn accept(&self, batch: &[Row]) -> Result<Confirmed, SinkError> {
        self.write("writing a batch", |tx, session| {
            let session = session.ok_or_else(|| {
                SinkError::Unusable("the sink was not prepared; run `forebay check`".to_owned())
            })?;
            for (index, row) in batch.iter().enumerate() {
                rows::check(row, session.dim).map_err(|fault: Fault| SinkError::Row { index, fault })?;
            }
            insert::insert(tx, &self.path, self.store_text, session, batch, &now())
        })?;
        Ok(Confirmed::Now)
    }

    fn confirm(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn delete(&self, keys: &[ChunkKey]) -> Result<(), SinkError> {
        if keys.is_empty() || !self.path.exists() {
            return Ok(());
        }
        self.write("deleting rows", |tx, _| {
            let sql = |error| native::fault(&self.path, "deleting rows", error);
            let mut statement = tx
                .prepare_cached("DELETE FROM vectors WHERE doc_id = ?1 AND chunk_index = ?2")
                .map_err(sql)?;
            for key in keys {
                statement.execute(params![key.doc_id, key.chunk_index.cast_signed()]).map_err(sql)?;
            }
            Ok(())
        })
    }

    fn rows_of(&self, doc_id: &str) -> Result<Vec<Stored>, SinkError> {
        if self.path.exists() { forget::rows_of(&self.reader()?, &self.path, doc_id) } else { Ok(Vec::new()) }
    }

    fn scrub(&self) -> Result<bool, SinkError> {
        forget::scrub(&self.path, self.busy_timeout)
    }

    fn probe(&self) -> Result<(), SinkError> {
        let undone = self.write("probing the sink", |tx, _| {
            let sql = |error| native::fault(&self.path, "probing the sink", error);
            // The write needs the lock and the rights; the savepoint takes it back, whatever comes after.
            tx.execute_batch("SAVEPOINT probe").map_err(sql)?;
            tx.execute("INSERT OR REPLACE INTO forebay_meta(key, value) VALUES ('probe', ?1)", [now()])
                .map_err(sql)?;
            tx.execute_batch("ROLLBACK TO probe; RELEASE probe").map_err(sql)
        });
        undone?;
        // What is rolled back never reaches the disk, so space is tried for by itself.
        match native::space(&self.path) {
            Err(error) if native::is_full(&error) => {
                Err(SinkError::Unavailable(native::full(&self.path, &error)))
            }
            _ => Ok(()),
        }
    }

    fn scan(
        &self,
        store: Option<&str>,
        each: &mut dyn FnMut(Stored) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let sql = |error| native::fault(&self.path, "reading the sink", error);
        let conn = self.reader()?;
        let columns = rows::STORED;
        let text = format!(
            "SELECT {columns} FROM vectors WHERE ?1 IS NULL OR store = ?1 ORDER BY doc_id, chunk_index"
        );
        let mut statement = conn.prepare(&text).map_err(sql)?;
        let mut found = statement.query([store]).map_err(sql)?;
        while let Some(row) = found.next().map_err(sql)? {
            each(rows::stored(row).map_err(sql)?)?;
        }
        Ok(())
    }

    fn held(&self) -> Result<Option<String>, SinkError> {
        schema::label(&self.reader()?, &self.path)
    }

    fn embeddings(&self, keys: &[ChunkKey]) -> Result<Vec<Option<Embedding>>, SinkError> {
        let sql = |error| native::fault(&self.path, "reading vectors", error);
        let conn = self.reader()?;
        let columns = rows::EMBEDDING;
        let text = format!("SELECT {columns} FROM vectors WHERE doc_id = ?1 AND chunk_index = ?2");
        let mut statement = conn.prepare(&text).map_err(sql)?;
        let mut read = |key: &ChunkKey| {
            let key = params![key.doc_id, key.chunk_index.cast_signed()];
            statement.query_row(key, rows::embedding).optional().map_err(sql)
        };
        keys.iter().map(&mut read).collect()
    }

    fn search(&self, identity: &Identity, query: &Query, limit: usize) -> Result<Vec<Hit>, SinkError> {
        let mut conn = self.reader()?;
        search::nearest(&mut conn, &identity.stored(), query, limit)
            .map_err(|error| native::fault(&self.path, "searching", error))
    }
}

/// Switches to write-ahead logging; gives the mode that holds now. When two open a new file at once, SQLite tells one of
/// them that it is busy without waiting for its timeout, so the wait is ours.
fn to_wal(conn: &Connection, patience: Duration) -> rusqlite::Result<String> {
    let start = Instant::now();
    loop {
        match conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)) {
            Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                    && start.elapsed() < patience =>
            {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}
