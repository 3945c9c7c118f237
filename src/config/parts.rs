//! Settings of the parts that have no room of their own yet. Each is read by exactly one part.

use std::path::PathBuf;

use serde::Deserialize;

/// `data.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// The data folder: queue, ledger, dead letters, run reports and the default sink.
    pub dir: PathBuf,
}

/// `queue.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Chunks pending at most (the high-water mark).
    pub window_chunks: usize,
    /// Cache of the queue's store, in MiB.
    pub cache_mb: u64,
}

/// `pipeline.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Batches on the whole line at most.
    pub batches_in_flight: usize,
    /// Tokens in a batch, about.
    pub batch_tokens: usize,
    /// Chunks in a batch at most.
    pub batch_chunks: usize,
    /// Seconds that work in flight may take to finish once a stop was asked for.
    pub grace_s: u64,
    /// Seconds after which a forward pass is taken for hung.
    pub watchdog_s: u64,
    /// Restarts of a crashed stage at most, within ten minutes.
    pub restarts_max: u32,
}

/// `retry.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Attempts in all, the first included.
    pub max_attempts: u32,
    /// Base of the exponential wait, in milliseconds.
    pub base_ms: u64,
    /// Longest wait, in milliseconds.
    pub cap_ms: u64,
    /// Seconds since the first failure after which a chunk is buried instead of tried again.
    pub max_elapsed_s: u64,
}

/// `breaker.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breaker {
    /// Dependency failures within the window that shut the gate.
    pub threshold: u32,
    /// The window, in seconds.
    pub window_s: u64,
    /// Seconds the gate stays shut before a probe.
    pub open_s: u64,
    /// Seconds after which a probe has failed.
    pub probe_timeout_s: u64,
    /// Seconds shut in one go after which the run halts.
    pub give_up_after_s: u64,
}

/// `dlq.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dlq {
    /// `full`: a dead letter keeps all that is needed to rebuild its chunk.
    pub payload: String,
    /// Open dead letters from which a warning is logged.
    pub alert_depth: u64,
}

/// `limits.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes in a line of input at most.
    pub line_bytes: u64,
    /// Free space below which no new chunk is taken up, in MiB.
    pub min_free_mb: u64,
    /// Seconds a full disk is waited for before the run halts.
    pub disk_full_wait_s: u64,
    /// Share of dead letters (0 to 1) that halts a run after its first 1,000 chunks; 1: never.
    pub max_dead_fraction: f64,
}
