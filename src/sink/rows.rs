//! Rows to columns and back: pure mapping, and the last check before a vector is stored.

use super::{Row, Stored};
use crate::{
    chunk::{ChunkKey, Digest},
    error::{Class, Fault},
};

/// How far the norm of a stored vector may be from 1.
pub const NORM_TOLERANCE: f32 = 1e-3;

/// The last line of defence: whatever came through the pipeline, no placeholder and no spoilt vector is stored.
///
/// # Errors
/// `non_finite_vector` for the vector, `sink_rejected_row` for an index no store can hold.
pub fn check(row: &Row, dim: usize) -> Result<(), Fault> {
    let bad = |what: String| Err(Fault::new(Class::NonFiniteVector, what));
    let dense = &row.embedding.dense;
    if i64::try_from(row.key.chunk_index).is_err() {
        let message = format!("chunk_index is over {}", i64::MAX);
        return Err(Fault::new(Class::SinkRejectedRow, message));
    }
    if dense.len() != dim {
        return bad(format!("the vector has {} numbers, the model makes {dim}", dense.len()));
    }
    if let Some(at) = dense.iter().position(|x| !x.is_finite()) {
        return bad(format!("number {at} of the vector is not finite"));
    }
    let norm = dense.iter().map(|x| x * x).sum::<f32>().sqrt();
    if (norm - 1.0).abs() > NORM_TOLERANCE {
        return bad(format!("the norm of the vector is {norm}, not 1"));
    }
    Ok(())
}

/// Numbers as little-endian f32, into a buffer that is reused.
pub fn encode(dense: &[f32], into: &mut Vec<u8>) {
    into.clear();
    into.extend(dense.iter().flat_map(|x| x.to_le_bytes()));
}

/// Little-endian f32 to numbers; `None` when the length does not fit.
pub fn decode(blob: &[u8]) -> Option<Vec<f32>> {
    let (numbers, rest) = blob.as_chunks::<4>();
    rest.is_empty().then(|| numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Columns that [`stored`] reads, in its order.
pub const STORED: &str =
    "doc_id, chunk_index, chunk_id, source_hash, content_hash, identity, store, embedded_at";

/// A row of [`STORED`] columns.
///
/// # Errors
/// A column that holds what we never write.
pub fn stored(row: &rusqlite::Row<'_>) -> rusqlite::Result<Stored> {
    let hash = |column: usize| row.get(column).map(Digest);
    let hex = row.get_ref(2)?.as_str()?;
    let chunk_id = hex.parse().map_err(|why: String| {
        rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, why.into())
    })?;
    Ok(Stored {
        key: ChunkKey::new(row.get::<_, String>(0)?, row.get::<_, i64>(1)?.cast_unsigned()),
        chunk_id,
        source_hash: hash(3)?,
        content_hash: hash(4)?,
        identity: row.get(5)?,
        store: row.get(6)?,
        embedded_at: row.get(7)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Embedding;

    fn row(dense: Vec<f32>) -> Row {
        Row {
            key: ChunkKey::new("a", 0),
            chunk_id: Digest::of(b"i"),
            source_hash: Digest::of(b"s"),
            content_hash: Digest::of(b"c"),
            text: "t".into(),
            meta: None,
            embedding: Embedding { dense, n_tokens: 1, truncated: false },
        }
    }

    #[test]
    fn a01_e08_no_spoilt_vector_passes() {
        assert!(check(&row(vec![0.6, 0.8]), 2).is_ok());
        for spoilt in
            [vec![0.0, 0.0], vec![f32::NAN, 1.0], vec![f32::INFINITY, 0.0], vec![1.0], vec![0.61, 0.81]]
        {
            assert_eq!(check(&row(spoilt), 2).unwrap_err().class, Class::NonFiniteVector);
        }
        let mut far = row(vec![1.0]);
        far.key.chunk_index = u64::MAX;
        assert_eq!(check(&far, 1).unwrap_err().class, Class::SinkRejectedRow);
    }

    #[test]
    fn numbers_survive_the_blob() {
        let mut blob = Vec::new();
        encode(&[1.0, -2.5, f32::MIN_POSITIVE], &mut blob);
        assert_eq!(blob[..4], [0, 0, 0x80, 0x3f]);
        assert_eq!(decode(&blob).unwrap(), [1.0, -2.5, f32::MIN_POSITIVE]);
        assert!(decode(&blob[1..]).is_none());
    }
}
