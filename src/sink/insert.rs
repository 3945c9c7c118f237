//! A batch of rows into the SQLite sink's table.

use std::path::Path;

use rusqlite::{Transaction, params};

use super::{Row, SinkError, native, rows, sqlite::Session};

const UPSERT: &str = "
INSERT INTO vectors(doc_id, chunk_index, chunk_id, identity, store, source_hash, content_hash, text, meta,
                    n_tokens, truncated, dim, dense, sparse, multi, embedded_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
ON CONFLICT(doc_id, chunk_index) DO UPDATE SET
  chunk_id = excluded.chunk_id, identity = excluded.identity, store = excluded.store,
  source_hash = excluded.source_hash, content_hash = excluded.content_hash,
  text = excluded.text, meta = excluded.meta, n_tokens = excluded.n_tokens, truncated = excluded.truncated,
  dim = excluded.dim, dense = excluded.dense, sparse = excluded.sparse, multi = excluded.multi,
  embedded_at = excluded.embedded_at";

/// Writes the rows; the transaction is the caller's. `now` is RFC 3339 UTC.
///
/// # Errors
/// [`SinkError::Row`] for what SQLite refuses of one row; see [`native::fault`] for the rest.
pub(super) fn insert(
    tx: &Transaction<'_>,
    path: &Path,
    store_text: bool,
    session: &Session,
    batch: &[Row],
    now: &str,
) -> Result<(), SinkError> {
    let sql = |error| native::fault(path, "writing a batch", error);
    let identity = session.identity.stored();
    let mut statement = tx.prepare_cached(UPSERT).map_err(sql)?;
    for (index, row) in batch.iter().enumerate() {
        let embedding = &row.embedding;
        // One statement a row: what it refuses is this row, and the transaction takes the others back.
        statement
            .execute(params![
                row.key.doc_id,
                row.key.chunk_index.cast_signed(),
                row.chunk_id.to_string(),
                identity,
                session.store,
                row.source_hash.0,
                row.content_hash.0,
                store_text.then_some(&row.text),
                row.meta,
                embedding.n_tokens,
                embedding.truncated,
                session.dim as i64,
                rows::encode(&embedding.dense),
                embedding.sparse.as_deref().map(rows::encode_pairs),
                embedding.multi.as_deref().map(rows::encode),
                now,
            ])
            .map_err(|error| native::row_fault(path, index, error))?;
    }
    Ok(())
}
