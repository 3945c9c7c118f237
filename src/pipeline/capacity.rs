//! What a pass may hold: the model's capacity, less what this device was found not to hold, in this run or before.

use std::sync::{Mutex, PoisonError};

use super::line::Line;
use crate::{
    embed::{Capacity, EmbedError, budget::Budget},
    folder::budgets,
    identity::Identity,
};

/// The budget of a line's device and model.
#[derive(Debug)]
pub struct Learning {
    budget: Mutex<Budget>,
    key: String,
}

impl Learning {
    /// Goes on from what the data folder remembers.
    pub fn new(dir: &std::path::Path, capacity: Capacity, identity: &Identity) -> Self {
        let key = format!("{} {}", capacity.device, identity.label);
        let remembered = budgets::read(dir, &key);
        let budget = Budget::new(capacity.tokens, remembered);
        Self { budget: Mutex::new(budget), key }
    }

    /// Tokens that the next pass may hold; `None`: as many as the model's capacity is.
    pub fn learned(&self) -> Option<usize> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).learned()
    }

    /// Tokens that the next pass may hold.
    pub fn tokens(&self) -> usize {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).tokens()
    }
}

impl Line {
    /// Learns from a pass that ended. Blocks when there is something to remember.
    pub(super) fn learn<T>(&self, texts: usize, tokens: usize, result: &Result<T, EmbedError>) {
        let mut budget = self.learning.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match result {
            Ok(_) => budget.fitted(tokens),
            Err(EmbedError::OutOfMemory { .. }) => budget.did_not_fit(texts, tokens),
            Err(_) => false,
        };
        if !changed {
            return;
        }
        tracing::info!(
            tokens = budget.tokens(),
            fitted = result.is_ok(),
            "tokens of the next passes at most"
        );
        if let Err(error) = budgets::write(&self.folder.dir, &self.learning.key, budget.learned()) {
            tracing::warn!(%error, "what fits into a pass could not be remembered; the next run learns it again");
        }
    }
}
