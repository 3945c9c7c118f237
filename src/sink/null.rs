//! A sink that counts rows and drops them: for measuring the line without a store.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::{Confirmed, Hit, Query, Row, Sink, SinkError, Stored, rows};
use crate::{
    chunk::{ChunkKey, Embedding},
    identity::Identity,
};

/// See the module.
#[derive(Debug, Default)]
pub struct Null {
    rows: AtomicU64,
    dim: AtomicUsize,
}

impl Null {
    /// Rows taken in so far.
    pub fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }
}

impl Sink for Null {
    fn keeps_rows(&self) -> bool {
        false
    }

    fn kind(&self) -> &'static str {
        "null"
    }

    fn preflight(&self, _: &Identity, dim: usize, _: &str, _: bool) -> Result<(), SinkError> {
        self.dim.store(dim, Relaxed);
        Ok(())
    }

    fn accept(&self, batch: &[Row]) -> Result<Confirmed, SinkError> {
        let dim = self.dim.load(Relaxed);
        for (index, row) in batch.iter().enumerate() {
            rows::check(row, dim).map_err(|fault| SinkError::Row { index, fault })?;
        }
        self.rows.fetch_add(batch.len() as u64, Relaxed);
        Ok(Confirmed::Now)
    }

    fn confirm(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn delete(&self, _: &[ChunkKey]) -> Result<(), SinkError> {
        Ok(())
    }

    fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn scan(
        &self,
        _: Option<&str>,
        _: &mut dyn FnMut(Stored) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        Ok(())
    }

    fn embeddings(&self, keys: &[ChunkKey]) -> Result<Vec<Option<Embedding>>, SinkError> {
        Ok(vec![None; keys.len()])
    }

    fn search(&self, _: &Identity, _: &Query, _: usize) -> Result<Vec<Hit>, SinkError> {
        Err(SinkError::Unusable(
            "the sink `null` keeps nothing to search; set sink.kind = \"sqlite\"".to_owned(),
        ))
    }
}
