//! The file of the SQLite sink: its tables, who they belong to, and whether they may be written to.
//!
//! Everything here runs inside one `BEGIN IMMEDIATE`, so two processes cannot both create a sink.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, Transaction};

use super::{SinkError, native};
use crate::identity::Identity;

/// `PRAGMA user_version` of files this program writes.
pub const FORMAT: i64 = 1;

/// Columns of `vectors`, in order.
const COLUMNS: [&str; 16] = [
    "doc_id",
    "chunk_index",
    "chunk_id",
    "identity",
    "store",
    "source_hash",
    "content_hash",
    "text",
    "meta",
    "n_tokens",
    "truncated",
    "dim",
    "dense",
    "sparse",
    "multi",
    "embedded_at",
];

const CREATE: &str = "
CREATE TABLE vectors(
  doc_id TEXT, chunk_index INTEGER, chunk_id TEXT, identity TEXT, store TEXT,
  source_hash BLOB, content_hash BLOB, text TEXT, meta TEXT,
  n_tokens INTEGER, truncated INTEGER, dim INTEGER,
  dense BLOB, sparse BLOB, multi BLOB, embedded_at TEXT,
  PRIMARY KEY (doc_id, chunk_index));
CREATE TABLE forebay_meta(key TEXT PRIMARY KEY, value TEXT);
PRAGMA user_version = 1;";

/// What the file is, before anything is changed in it.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// No table of ours, and none in our way.
    Absent,
    /// Ours, in this format.
    Ours,
}

/// Creates the tables or checks that they are ours and hold this identity; with `reembed` another identity is
/// replaced in the meta table (its rows stay until each is overwritten; searches filter by identity).
///
/// # Errors
/// [`SinkError::Unusable`] with both labels when the identities differ; a foreign, newer or damaged file.
pub fn prepare(
    tx: &Transaction<'_>,
    path: &Path,
    identity: &Identity,
    dim: usize,
    reembed: bool,
    now: &str,
) -> Result<(), SinkError> {
    let sql = |error| native::fault(path, "preparing the sink", error);
    match state(tx, path)? {
        State::Absent => {
            tx.execute_batch(CREATE).map_err(sql)?;
            put(tx, "created_at", now).map_err(sql)?;
        }
        State::Ours => match check(tx, path, identity, dim) {
            Ok(()) => return Ok(()),
            Err(SinkError::Unusable(why)) if !reembed => return Err(SinkError::Unusable(why)),
            Err(SinkError::Unusable(_)) => {}
            Err(other) => return Err(other),
        },
    }
    put(tx, "format", &FORMAT.to_string()).map_err(sql)?;
    put(tx, "identity", &identity.label).map_err(sql)?;
    put(tx, "identity_digest", &identity.digest.to_string()).map_err(sql)?;
    put(tx, "dim", &dim.to_string()).map_err(sql)
}

/// Whether a file that is ours holds this identity and dimension.
///
/// # Errors
/// [`SinkError::Unusable`] that names both and says `--reembed`.
pub fn check(conn: &Connection, path: &Path, identity: &Identity, dim: usize) -> Result<(), SinkError> {
    let read = |key| get(conn, key).map_err(|error| native::fault(path, "reading the sink's meta", error));
    let label = read("identity")?.unwrap_or_default();
    let digest = read("identity_digest")?.unwrap_or_default();
    let held_dim = read("dim")?.unwrap_or_default();
    if digest == identity.digest.to_string() && held_dim == dim.to_string() {
        return Ok(());
    }
    Err(SinkError::Unusable(format!(
        "{} holds vectors of {label} ({held_dim} numbers, digest {}), and this run makes {identity} ({dim} numbers, \
         digest {}): vectors of two spaces cannot be compared; use the model it was made with, another sink.path, \
         or `--reembed` to embed everything again into it",
        path.display(),
        digest.get(..16).unwrap_or(&digest),
        identity.digest.short(16),
    )))
}

/// The label of the identity that a file of ours holds.
///
/// # Errors
/// SQLite's.
pub fn label(conn: &Connection, path: &Path) -> Result<Option<String>, SinkError> {
    get(conn, "identity").map_err(|error| native::fault(path, "reading the sink's meta", error))
}

fn state(conn: &Connection, path: &Path) -> Result<State, SinkError> {
    let sql = |error| native::fault(path, "reading the sink's schema", error);
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(sql)?;
    let vectors = columns(conn, "vectors").map_err(sql)?;
    let meta = columns(conn, "forebay_meta").map_err(sql)?;
    let refuse = |why: String| {
        let name = path.display();
        Err(SinkError::Unusable(format!("{name} {why}; set sink.path to another file")))
    };
    match (meta.is_empty(), vectors.is_empty()) {
        (true, true) if version == 0 => Ok(State::Absent),
        (true, true) => refuse(format!("belongs to another program (its user_version is {version})")),
        (true, false) => refuse("has a table `vectors` that is not ours".to_owned()),
        (false, _) if version > FORMAT => refuse(format!(
            "was written by a newer forebay (format {version}, this one knows {FORMAT}): use that one"
        )),
        (false, _) if version != FORMAT || vectors != COLUMNS => {
            refuse(format!("has tables that are not those of format {FORMAT}"))
        }
        (false, _) => Ok(State::Ours),
    }
}

/// As [`state`], of one moment: another opener may be creating the tables meanwhile.
fn steady_state(conn: &Connection, path: &Path) -> Result<State, SinkError> {
    let tx = conn
        .unchecked_transaction()
        .map_err(|error| native::fault(path, "reading the sink's schema", error))?;
    state(&tx, path)
}

/// Refuses a file that is neither ours nor free for us, without changing it.
///
/// # Errors
/// [`SinkError::Unusable`].
pub fn admit(conn: &Connection, path: &Path) -> Result<(), SinkError> {
    steady_state(conn, path).map(drop)
}

/// Refuses a file that is not a sink of ours, for reading.
///
/// # Errors
/// [`SinkError::Unusable`].
pub fn readable(conn: &Connection, path: &Path) -> Result<(), SinkError> {
    match steady_state(conn, path)? {
        State::Ours => Ok(()),
        State::Absent => Err(SinkError::Unusable(format!(
            "{} holds no vectors yet; run `forebay run PATH` first",
            path.display()
        ))),
    }
}

fn columns(conn: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut query = conn.prepare("SELECT name FROM pragma_table_info(?1) ORDER BY cid")?;
    query.query_map([table], |row| row.get(0))?.collect()
}

fn get(conn: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    conn.query_row("SELECT value FROM forebay_meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

fn put(conn: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    conn.execute("INSERT OR REPLACE INTO forebay_meta(key, value) VALUES (?1, ?2)", [key, value])?;
    Ok(())
}
