//! Rows to columns and back: pure mapping, and the last check before a vector is stored.

use super::{Row, Stored};
use crate::{
    chunk::{ChunkKey, Digest, Embedding},
    error::{Class, Fault},
};

/// The last line of defence: whatever came through the pipeline, no placeholder and no spoilt vector is stored.
///
/// # Errors
/// `non_finite_vector` for an output, `sink_rejected_row` for an index no store can hold.
pub fn check(row: &Row, dim: usize) -> Result<(), Fault> {
    if i64::try_from(row.key.chunk_index).is_err() {
        let message = format!("chunk_index is over {}", i64::MAX);
        return Err(Fault::new(Class::SinkRejectedRow, message));
    }
    row.embedding.check(dim).map_err(|what| Fault::new(Class::NonFiniteVector, what))
}

/// Numbers as little-endian f32.
pub fn encode(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Little-endian f32 to numbers; `None` when the length does not fit.
pub fn decode(blob: &[u8]) -> Option<Vec<f32>> {
    let (numbers, rest) = blob.as_chunks::<4>();
    rest.is_empty().then(|| numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Pairs as little-endian u32 and f32.
pub fn encode_pairs(pairs: &[(u32, f32)]) -> Vec<u8> {
    let bytes = |(id, weight): &(u32, f32)| [id.to_le_bytes(), weight.to_le_bytes()].concat();
    pairs.iter().flat_map(bytes).collect()
}

/// Little-endian u32 and f32 to pairs; `None` when the length does not fit.
pub fn decode_pairs(blob: &[u8]) -> Option<Vec<(u32, f32)>> {
    let (pairs, rest) = blob.as_chunks::<8>();
    let pair = |[a, b, c, d, e, f, g, h]: &[u8; 8]| {
        (u32::from_le_bytes([*a, *b, *c, *d]), f32::from_le_bytes([*e, *f, *g, *h]))
    };
    rest.is_empty().then(|| pairs.iter().map(pair).collect())
}

/// Columns that [`embedding`] reads, in its order.
pub const EMBEDDING: &str = "dense, sparse, multi, n_tokens, truncated";

/// A row of [`EMBEDDING`] columns. An output that is no such thing comes out as one that no check passes.
///
/// # Errors
/// A column that holds what we never write.
pub fn embedding(row: &rusqlite::Row<'_>) -> rusqlite::Result<Embedding> {
    let blob = |column: usize| row.get::<_, Option<Vec<u8>>>(column);
    let pairs = |blob: Vec<u8>| decode_pairs(&blob).unwrap_or_else(|| vec![(0, f32::NAN)]);
    Ok(Embedding {
        dense: blob(0)?.and_then(|blob| decode(&blob)).unwrap_or_default(),
        sparse: blob(1)?.map(pairs),
        multi: blob(2)?.map(|blob| decode(&blob).unwrap_or_else(|| vec![f32::NAN])),
        n_tokens: row.get(3)?,
        truncated: row.get(4)?,
    })
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

    fn row(dense: Vec<f32>) -> Row {
        Row {
            key: ChunkKey::new("a", 0),
            chunk_id: Digest::of(b"i"),
            source_hash: Digest::of(b"s"),
            content_hash: Digest::of(b"c"),
            text: "t".into(),
            meta: None,
            embedding: Embedding { dense, n_tokens: 2, ..Embedding::default() },
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
        let mut sparse = row(vec![0.6, 0.8]);
        sparse.embedding.sparse = Some(vec![(7, f32::NAN)]);
        assert!(check(&sparse, 2).unwrap_err().to_string().contains("sparse: weight 0 is NaN"));
        let mut multi = row(vec![0.6, 0.8]);
        multi.embedding.multi = Some(vec![1.0, 1.0]);
        assert!(check(&multi, 2).unwrap_err().to_string().contains("multi, row 0: norm"));
        let mut far = row(vec![1.0]);
        far.key.chunk_index = u64::MAX;
        assert_eq!(check(&far, 1).unwrap_err().class, Class::SinkRejectedRow);
    }

    #[test]
    fn numbers_survive_the_blob() {
        let blob = encode(&[1.0, -2.5, f32::MIN_POSITIVE]);
        assert_eq!(blob[..4], [0, 0, 0x80, 0x3f]);
        assert_eq!(decode(&blob).unwrap(), [1.0, -2.5, f32::MIN_POSITIVE]);
        assert!(decode(&blob[1..]).is_none());
        let blob = encode_pairs(&[(5, 1.0), (u32::MAX, 0.25)]);
        assert_eq!(blob[..8], [5, 0, 0, 0, 0, 0, 0x80, 0x3f]);
        assert_eq!(decode_pairs(&blob).unwrap(), [(5, 1.0), (u32::MAX, 0.25)]);
        assert!(decode_pairs(&blob[4..]).is_none());
        assert_eq!((decode_pairs(&[]), decode(&[])), (Some(vec![]), Some(vec![])));
    }
}
