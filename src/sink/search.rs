//! Exact search: every row of the identity is read, one at a time, and the best stay in a heap of fixed size.

use std::{cmp::Ordering, collections::BinaryHeap};

use rusqlite::Connection;

use super::{Hit, Query, score};
use crate::chunk::Embedding;

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

/// A query with what is needed of it, and what of a row.
struct Search<'a> {
    query: &'a Query,
    norm: f32,
    sparse: &'a [(u32, f32)],
    multi: &'a [f32],
}

impl<'a> Search<'a> {
    /// `None` when nothing can be like it: an output that counts is wanting in it.
    fn new(query: &'a Query) -> Option<Self> {
        let Embedding { dense, sparse, multi, .. } = &query.embedding;
        let (sparse, multi) = (sparse.as_deref().unwrap_or_default(), multi.as_deref().unwrap_or_default());
        let search = Self { query, norm: score::norm(dense), sparse, multi };
        let wanting = (query.dense != 0.0 && search.norm.partial_cmp(&0.0) != Some(Ordering::Greater))
            || (search.by_words_alone() && sparse.is_empty())
            || (query.multi != 0.0 && multi.is_empty());
        let none = query.dense == 0.0 && query.sparse == 0.0 && query.multi == 0.0;
        (!wanting && !none).then_some(search)
    }

    fn by_words_alone(&self) -> bool {
        self.query.dense == 0.0 && self.query.sparse != 0.0 && self.query.multi == 0.0
    }

    /// The columns that count: what is not selected is not read, and a multi-vector output is long.
    fn columns(&self) -> String {
        let column = |weight: f32, name: &'static str| if weight == 0.0 { "NULL" } else { name };
        let Query { dense, sparse, multi, .. } = *self.query;
        [column(dense, "dense"), column(sparse, "sparse"), column(multi, "multi")].join(", ")
    }

    /// The score of the blobs in columns 1 to 3; `None`: no answer.
    fn score(&self, row: &rusqlite::Row<'_>) -> Option<f32> {
        let blob = |column: usize| row.get_ref(column).ok()?.as_blob().ok();
        let query = &self.query.embedding.dense;
        let mut sum = 0.0;
        if self.query.dense != 0.0 {
            sum += self.query.dense * score::cosine(query, self.norm, blob(1)?)?;
        }
        if self.query.sparse != 0.0 {
            sum += self.query.sparse * score::lexical(self.sparse, blob(2)?)?;
        }
        if self.query.multi != 0.0 {
            sum += self.query.multi * score::max_sim(self.multi, query.len(), blob(3)?)?;
        }
        (sum.is_finite() && !(self.by_words_alone() && sum == 0.0)).then_some(sum)
    }
}

/// The `limit` rows of `identity` (its stored form) that are most like the query, best first; equal scores by document
/// and index. Rows of another dimension than the query's, or without an output that counts, are passed over.
///
/// # Errors
/// SQLite's.
pub fn nearest(
    conn: &mut Connection,
    identity: &str,
    query: &Query,
    limit: usize,
) -> rusqlite::Result<Vec<Hit>> {
    let Some(search) = Search::new(query).filter(|_| limit > 0) else { return Ok(Vec::new()) };
    // One read transaction: the texts belong to the vectors that were compared.
    let tx = conn.transaction()?;
    let mut best = BinaryHeap::with_capacity(limit.min(10_000) + 1);
    {
        let columns = search.columns();
        let mut statement =
            tx.prepare(&format!("SELECT rowid, {columns} FROM vectors WHERE identity = ?1"))?;
        let mut rows = statement.query([identity])?;
        while let Some(row) = rows.next()? {
            let Some(score) = search.score(row) else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_drops_the_worst_first() {
        let of = |score, rowid| Candidate { score, rowid };
        let heap = BinaryHeap::from([of(0.5, 1), of(-0.5, 2), of(0.9, 3), of(-0.5, 4)]);
        assert_eq!(heap.peek(), Some(&of(-0.5, 4)));
        assert_eq!(heap.into_sorted_vec().first(), Some(&of(0.9, 3)));
    }
}
