//! Exact search by cosine: every vector of the identity is read, the best stay in a heap of fixed size.

use std::{cmp::Ordering, collections::BinaryHeap};

use rusqlite::Connection;

use super::Hit;

/// A candidate. Greater is worse, so that the heap's top is the first to go.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    score: f32,
    rowid: i64,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.rowid.cmp(&other.rowid))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The `limit` nearest rows of `identity` (its stored form), best first; equal scores by document and index.
/// Rows of another dimension than `query` are passed over.
///
/// # Errors
/// SQLite's.
pub fn nearest(
    conn: &mut Connection,
    identity: &str,
    query: &[f32],
    limit: usize,
) -> rusqlite::Result<Vec<Hit>> {
    let query_norm = query.iter().map(|x| x * x).sum::<f32>().sqrt();
    if limit == 0 || query_norm.partial_cmp(&0.0) != Some(Ordering::Greater) {
        return Ok(Vec::new());
    }
    // One read transaction: the texts belong to the vectors that were compared.
    let tx = conn.transaction()?;
    let mut best = BinaryHeap::with_capacity(limit.min(10_000) + 1);
    {
        let mut statement = tx.prepare("SELECT rowid, dense FROM vectors WHERE identity = ?1")?;
        let mut rows = statement.query([identity])?;
        while let Some(row) = rows.next()? {
            let Some(score) = row.get_ref(1)?.as_blob().ok().and_then(|blob| cosine(query, query_norm, blob))
            else {
                continue;
            };
            let candidate = Candidate { score, rowid: row.get(0)? };
            if best.len() < limit {
                best.push(candidate);
            } else if best.peek().is_some_and(|worst| candidate < *worst) {
                best.pop();
                best.push(candidate);
            }
        }
    }
    let mut fetch = tx.prepare("SELECT doc_id, chunk_index, text, meta FROM vectors WHERE rowid = ?1")?;
    let mut hits = best
        .into_sorted_vec()
        .into_iter()
        .map(|Candidate { score, rowid }| {
            fetch.query_row([rowid], |row| {
                Ok(Hit {
                    doc_id: row.get(0)?,
                    chunk_index: row.get::<_, i64>(1)?.cast_unsigned(),
                    score,
                    text: row.get(2)?,
                    meta: row.get(3)?,
                })
            })
        })
        .collect::<rusqlite::Result<Vec<_>>>()?;
    hits.sort_by(|a, b| {
        b.score.total_cmp(&a.score).then_with(|| (&a.doc_id, a.chunk_index).cmp(&(&b.doc_id, b.chunk_index)))
    });
    Ok(hits)
}

/// Lanes that are summed apart, so that the compiler may use wide registers without changing any sum.
const LANES: usize = 16;

/// Cosine of `query` and the little-endian f32 in `blob`; `None` when it is not a vector of this dimension.
fn cosine(query: &[f32], query_norm: f32, blob: &[u8]) -> Option<f32> {
    let (numbers, rest) = blob.as_chunks::<4>();
    if !rest.is_empty() || numbers.len() != query.len() {
        return None;
    }
    let (mut dot, mut square) = ([0.0_f32; LANES], [0.0_f32; LANES]);
    let (wide_q, tail_q) = query.as_chunks::<LANES>();
    let (wide_x, tail_x) = numbers.as_chunks::<LANES>();
    for (q, x) in wide_q.iter().zip(wide_x) {
        for lane in 0..LANES {
            let x = f32::from_le_bytes(x[lane]);
            dot[lane] += q[lane] * x;
            square[lane] += x * x;
        }
    }
    for (lane, (q, x)) in tail_q.iter().zip(tail_x).enumerate() {
        let x = f32::from_le_bytes(*x);
        dot[lane] += q * x;
        square[lane] += x * x;
    }
    let score = dot.iter().sum::<f32>() / (query_norm * square.iter().sum::<f32>().sqrt());
    score.is_finite().then_some(score.clamp(-1.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cosine_is_the_cosine_at_every_length() {
        for n in [1_usize, 3, 15, 16, 17, 384] {
            let a: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).sin() + 0.1).collect();
            let b: Vec<f32> = (0..n).map(|i| (i as f32 * 1.3).cos()).collect();
            let mut blob = Vec::new();
            super::super::rows::encode(&b, &mut blob);
            let norm = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let dot: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let got = cosine(&a, a.iter().map(|x| x * x).sum::<f32>().sqrt(), &blob).unwrap();
            assert!((f64::from(got) - dot / (norm(&a) * norm(&b))).abs() < 1e-5, "{n}");
            assert!(cosine(&a, 1.0, &blob[..4 * n - 1]).is_none());
        }
    }

    #[test]
    fn the_heap_drops_the_worst_first() {
        let of = |score, rowid| Candidate { score, rowid };
        let heap = BinaryHeap::from([of(0.5, 1), of(-0.5, 2), of(0.9, 3), of(-0.5, 4)]);
        assert_eq!(heap.peek(), Some(&of(-0.5, 4)));
        assert_eq!(heap.into_sorted_vec().first(), Some(&of(0.9, 3)));
    }
}
