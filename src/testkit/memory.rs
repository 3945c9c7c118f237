//! A sink in memory, for tests that must see what a line wrote. It keeps what it confirmed when the run is over.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    chunk::{ChunkKey, Embedding},
    identity::Identity,
    sink::{Confirmed, Hit, Query, Row, Sink, SinkError, Stored},
};

/// See the module.
#[derive(Debug, Default)]
pub struct Memory {
    /// Whether rows are confirmed only by a later `confirm`.
    later: bool,
    /// Whether writing a key again adds a row.
    appends: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    session: (String, String),
    accepted: Vec<Row>,
    times: BTreeMap<ChunkKey, u32>,
    rows: BTreeMap<ChunkKey, (Row, String, String)>,
}

impl Memory {
    /// One that confirms at once, or (`later`) when it is asked to.
    pub fn new(later: bool) -> Self {
        Self { later, ..Self::default() }
    }

    /// One that adds a row whenever a key is written.
    pub fn appending() -> Self {
        Self { appends: true, ..Self::default() }
    }

    /// How often each key was written.
    pub fn times(&self) -> BTreeMap<ChunkKey, u32> {
        self.state().times.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is confirmed under a key.
    pub fn row(&self, key: &ChunkKey) -> Option<Row> {
        self.state().rows.get(key).map(|(row, ..)| row.clone())
    }
}

impl Sink for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn is_idempotent(&self) -> bool {
        !self.appends
    }

    fn preflight(&self, identity: &Identity, _: usize, store: &str, _: bool) -> Result<(), SinkError> {
        let mut state = self.state();
        state.session = (identity.stored(), store.to_owned());
        // What was not confirmed died with the last run.
        state.accepted.clear();
        Ok(())
    }

    fn accept(&self, rows: &[Row]) -> Result<Confirmed, SinkError> {
        self.state().accepted.extend_from_slice(rows);
        if self.later {
            return Ok(Confirmed::Later);
        }
        self.confirm().map(|()| Confirmed::Now)
    }

    fn confirm(&self) -> Result<(), SinkError> {
        let mut state = self.state();
        let (identity, store) = state.session.clone();
        for row in std::mem::take(&mut state.accepted) {
            *state.times.entry(row.key.clone()).or_default() += 1;
            state.rows.insert(row.key.clone(), (row, identity.clone(), store.clone()));
        }
        Ok(())
    }

    fn delete(&self, keys: &[ChunkKey]) -> Result<(), SinkError> {
        let mut state = self.state();
        keys.iter().for_each(|key| _ = state.rows.remove(key));
        Ok(())
    }

    fn probe(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn scan(
        &self,
        store: Option<&str>,
        each: &mut dyn FnMut(Stored) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        let rows = self.state().rows.clone();
        for (key, (row, identity, wrote)) in rows {
            if store.is_none_or(|store| store == wrote) {
                let Row { chunk_id, source_hash, content_hash, .. } = row;
                let embedded_at = String::new();
                each(Stored {
                    key,
                    chunk_id,
                    source_hash,
                    content_hash,
                    identity,
                    store: wrote,
                    embedded_at,
                })?;
            }
        }
        Ok(())
    }

    fn embeddings(&self, keys: &[ChunkKey]) -> Result<Vec<Option<Embedding>>, SinkError> {
        let state = self.state();
        Ok(keys.iter().map(|key| Some(state.rows.get(key)?.0.embedding.clone())).collect())
    }

    fn search(&self, _: &Identity, _: &Query, _: usize) -> Result<Vec<Hit>, SinkError> {
        Err(SinkError::Unusable("the sink `memory` is not searched".to_owned()))
    }
}
