//! What a line that ran into a full disk hands to the one that goes on with its work once there is space.

use std::{sync::Arc, time::Instant};

use super::line::{Line, Stop};
use crate::{folder::FolderError, queue::now_text};

/// Since when the disk has been full.
#[derive(Clone, Debug)]
pub struct Full {
    /// By the clock that does not jump.
    pub since: Instant,
    /// For people.
    pub at: String,
}

impl Full {
    pub(super) fn now() -> Self {
        Self { since: Instant::now(), at: now_text() }
    }
}

/// The part of a run that came before a full disk. What was written is in the ledger, under the run's id; all else is
/// read again.
#[derive(Clone, Debug)]
pub struct Before {
    pub(super) run: String,
    pub(super) began: Instant,
    pub(super) chunks: u64,
    pub(super) tokens: u64,
    pub(super) truncated: u64,
    pub(super) too_long: u64,
    pub(super) embedded: u64,
    pub(super) passes: u64,
}

impl Line {
    /// Why the disk ended it; `None` when something else did, or nothing yet.
    pub fn found_full(&self) -> Option<String> {
        match self.stopped() {
            Some(Stop::Full(why)) => Some(why),
            _ => None,
        }
    }

    /// A store failed: in words. A full disk ends the line so that it can go on later; what comes after that in the
    /// wake of it changes nothing.
    pub fn told(&self, error: impl Into<FolderError>) -> String {
        let error = error.into();
        let why = error.to_string();
        if error.is_full() {
            self.stop(Stop::Full(why.clone()));
        }
        why
    }

    /// What the next line of this run must know.
    pub fn before(&self) -> Before {
        let (tally, none) = (&self.tally, Before::of(&self.run, Instant::now()));
        let before = self.before.as_ref().unwrap_or(&none);
        Before {
            run: self.run.clone(),
            began: before.began.min(Instant::now() - tally.wall()),
            chunks: before.chunks + tally.chunks.get(),
            tokens: before.tokens + tally.tokens.get(),
            truncated: before.truncated + tally.truncated.get(),
            too_long: before.too_long + tally.too_long.get(),
            embedded: before.embedded + tally.embedded.get(),
            passes: before.passes + tally.passes.get(),
        }
    }

    /// Chunks newly written by this run.
    pub(super) fn written(&self) -> u64 {
        self.tally.chunks.get() + self.before.as_ref().map_or(0, |before| before.chunks)
    }

    /// Since when the disk has been full; `None` while it is not.
    pub fn full_since(&self) -> Option<Full> {
        self.full.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Notes that the disk is full; gives since when.
    pub fn note_full(&self) -> Full {
        self.set_full(true).unwrap_or_else(Full::now)
    }

    /// Notes that the disk is full, or is not any more.
    pub(super) fn set_full(&self, full: bool) -> Option<Full> {
        let mut state = self.full.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if full {
            state.get_or_insert_with(Full::now);
        } else {
            *state = None;
        }
        state.clone()
    }
}

impl Before {
    fn of(run: &str, began: Instant) -> Self {
        let run = run.to_owned();
        Self { run, began, chunks: 0, tokens: 0, truncated: 0, too_long: 0, embedded: 0, passes: 0 }
    }
}

/// Takes the line apart: its threads end, its stores are closed. False when something still holds it after that long.
pub fn close(line: Arc<Line>, patience: std::time::Duration) -> bool {
    let (start, mut line) = (Instant::now(), line);
    loop {
        match Arc::try_unwrap(line) {
            Ok(_) => return true,
            Err(shared) => line = shared,
        }
        if start.elapsed() > patience {
            return false;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
}
