//! One `Status` for the command line, the page and the log.

use std::{collections::BTreeMap, time::Instant};

use serde::Serialize;

use super::Context;
use crate::{
    error::Class,
    pipeline::{Gate, Line, dependency::Dependency},
    queue::{Depth, dead::State},
};

/// A moment of a data folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Id of the data folder.
    pub store: String,
    /// Pending chunks.
    pub queue: Depth,
    /// Chunks in the ledger.
    pub written: u64,
    /// Letters that are open or quarantined.
    pub dead_open: u64,
    /// Letters sent back and not yet written.
    pub dead_redriven: u64,
    /// Open letters by class.
    pub dead_by_class: BTreeMap<Class, u64>,
    /// First failure of the oldest open letter, RFC 3339 UTC.
    pub dead_oldest_at: Option<String>,
    /// Sources registered and not yet read to their end.
    pub unread_sources: Vec<String>,
    /// The run that holds the folder.
    pub run: Option<RunStatus>,
    /// The latest reports, newest first.
    pub last_runs: Vec<serde_json::Value>,
}

/// A moment of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunStatus {
    /// Its id.
    pub run: String,
    /// Process.
    pub pid: u32,
    /// The identity's label.
    pub identity: String,
    /// Seconds since it began.
    pub wall_s: f64,
    /// Chunks taken up.
    pub produced: u64,
    /// Chunks newly written.
    pub chunks: u64,
    /// Chunks already written before.
    pub skipped: u64,
    /// Chunks and records that lie in the DLQ.
    pub dead: u64,
    /// Tokens of the chunks newly written.
    pub tokens: u64,
    /// Chunks newly written whose text was cut.
    pub truncated: u64,
    /// Chunks buried because their text was over the limit.
    pub too_long: u64,
    /// Tokens that the next forward pass may hold.
    pub pass_tokens: usize,
    /// Mean since the run began.
    pub tokens_per_s: f64,
    /// Breaker of the sink.
    pub sink_gate: Gate,
    /// Breaker of the device.
    pub device_gate: Gate,
    /// Since when the disk has been full, RFC 3339 UTC; `None` while it is not.
    pub disk_full_since: Option<String>,
    /// The same breaker, closer.
    pub sink_breaker: BreakerStatus,
    /// The same breaker, closer.
    pub device_breaker: BreakerStatus,
    /// Whether it takes up no more work.
    pub draining: bool,
}

/// A moment of a breaker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BreakerStatus {
    /// Failures that count now: `breaker.threshold` of them shut the gate.
    pub failures: usize,
    /// Seconds since work last flowed; null while the gate is closed.
    pub shut_for_s: Option<f64>,
    /// Seconds until the next probe; null when none is due.
    pub next_probe_s: Option<f64>,
}

impl BreakerStatus {
    fn of(dependency: &Dependency) -> Self {
        let (seen, now) = (dependency.last_seen(), Instant::now());
        Self {
            failures: seen.failures,
            shut_for_s: seen.shut_since.map(|at| now.saturating_duration_since(at).as_secs_f64()),
            next_probe_s: seen.next_probe.map(|at| at.saturating_duration_since(now).as_secs_f64()),
        }
    }
}

/// Looks.
///
/// # Errors
/// A sentence, when a store cannot be read.
pub fn status(context: Context<'_>) -> Result<Status, String> {
    let folder = context.folder;
    let counts = folder.queue.letter_counts();
    let stats = folder.queue.letter_stats().map_err(|error| error.to_string())?;
    let text = |error: crate::ledger::LedgerError| error.to_string();
    Ok(Status {
        store: folder.store.clone(),
        queue: folder.queue.depth(),
        written: folder.ledger.count().map_err(text)?,
        dead_open: counts.sum(|_, state| matches!(state, State::Open | State::Quarantined)),
        dead_redriven: counts.sum(|_, state| state == State::Redriven),
        dead_by_class: counts.by_class(),
        dead_oldest_at: stats.into_iter().map(|class| class.oldest_at).min(),
        unread_sources: folder.ledger.unread_sources().map_err(text)?,
        run: context.line.map(run_status),
        last_runs: folder.ledger.last_runs(3).map_err(text)?,
    })
}

fn run_status(line: &Line) -> RunStatus {
    let tally = &line.tally;
    let wall_s = tally.wall().as_secs_f64();
    RunStatus {
        run: line.run.clone(),
        pid: std::process::id(),
        identity: line.model.identity().label.clone(),
        wall_s,
        produced: tally.produced.get(),
        chunks: tally.chunks.get(),
        skipped: tally.skipped.get(),
        dead: tally.dead.get(),
        tokens: tally.tokens.get(),
        truncated: tally.truncated.get(),
        too_long: tally.too_long.get(),
        pass_tokens: line.learning.tokens(),
        tokens_per_s: tally.tokens.get() as f64 / wall_s.max(1e-9),
        sink_gate: *line.sink_state.gate.borrow(),
        device_gate: *line.device_state.gate.borrow(),
        disk_full_since: line.full_since().map(|full| full.at),
        sink_breaker: BreakerStatus::of(&line.sink_state),
        device_breaker: BreakerStatus::of(&line.device_state),
        draining: line.draining(),
    }
}
