//! What a run has done so far: plain counters that anyone may read at any time, and the metrics they feed.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Counters of one run.
#[derive(Debug)]
pub struct Tally {
    start: Instant,
    /// Records read as documents or chunks.
    pub documents: Count,
    /// Chunks taken up: read in this run, or found pending at its start.
    pub produced: Count,
    /// Chunks put into the queue by reading.
    pub enqueued: Count,
    /// Records that could not be read.
    pub unreadable: Count,
    /// Chunks that made way for a later one of the same key, or were read twice.
    pub duplicates: Count,
    /// Chunks newly written.
    pub chunks: Count,
    /// Chunks already written before this run, or given up by a person.
    pub skipped: Count,
    /// Chunks and records that lie in the DLQ.
    pub dead: Count,
    /// Dead letters written by this run.
    pub buried: Count,
    /// Failures that were charged to a chunk and are tried again.
    pub retried: Count,
    /// Tokens of written chunks.
    pub tokens: Count,
    /// Written chunks whose text was cut.
    pub truncated: Count,
    /// Chunks buried because their text was over the limit.
    pub too_long: Count,
    /// Texts that went through the model; more than `chunks` when a pass was repeated.
    pub embedded: Count,
    /// Forward passes.
    pub passes: Count,
    /// Tokens that went through the model.
    passed_tokens: AtomicU64,
    /// Microseconds the model was busy.
    busy_us: AtomicU64,
    /// Microseconds from the start at which the first batch reached the model, plus one; 0: not yet.
    first_us: AtomicU64,
    /// Bytes of input read, as stored.
    pub bytes_read: AtomicU64,
    /// Bytes of all inputs, as stored; 0: unknown.
    pub bytes_total: AtomicU64,
}

/// A counter with a name: read by status, fed to the metrics recorder, if there is one.
#[derive(Debug)]
pub struct Count {
    value: AtomicU64,
    metric: &'static str,
}

impl Count {
    const fn new(metric: &'static str) -> Self {
        Self { value: AtomicU64::new(0), metric }
    }

    /// Adds.
    pub fn add(&self, n: u64) {
        self.value.fetch_add(n, Relaxed);
        metrics::counter!(self.metric).increment(n);
    }

    /// Reads.
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            documents: Count::new("forebay_documents_total"),
            produced: Count::new("forebay_chunks_produced_total"),
            enqueued: Count::new("forebay_chunks_enqueued_total"),
            unreadable: Count::new("forebay_records_unreadable_total"),
            duplicates: Count::new("forebay_chunks_duplicate_total"),
            chunks: Count::new("forebay_chunks_written_total"),
            skipped: Count::new("forebay_chunks_skipped_total"),
            dead: Count::new("forebay_chunks_dead_total"),
            buried: Count::new("forebay_dead_letters_total"),
            retried: Count::new("forebay_chunks_retried_total"),
            tokens: Count::new("forebay_tokens_total"),
            truncated: Count::new("forebay_chunks_truncated_total"),
            too_long: Count::new("forebay_chunks_too_long_total"),
            embedded: Count::new("forebay_texts_embedded_total"),
            passes: Count::new("forebay_forward_passes_total"),
            passed_tokens: AtomicU64::new(0),
            busy_us: AtomicU64::new(0),
            first_us: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
        }
    }
}

impl Tally {
    /// Time since the run began.
    pub fn wall(&self) -> Duration {
        self.start.elapsed()
    }

    /// A forward pass of `texts` texts with `tokens` tokens in all, which began then, has ended.
    pub fn passed(&self, texts: usize, tokens: usize, began: Instant) {
        self.passed_tokens.fetch_add(tokens as u64, Relaxed);
        let first = micros(began.saturating_duration_since(self.start)) + 1;
        let _ = self.first_us.compare_exchange(0, first, Relaxed, Relaxed);
        self.busy_us.fetch_add(micros(began.elapsed()), Relaxed);
        self.passes.add(1);
        self.embedded.add(texts as u64);
    }

    /// A pass over the text that is known to work has ended: no text of the run's, but the model was busy.
    pub fn tried(&self, tokens: usize, began: Instant) {
        self.passed_tokens.fetch_add(tokens as u64, Relaxed);
        self.busy_us.fetch_add(micros(began.elapsed()), Relaxed);
    }

    /// Tokens that the model takes in `how_long`, judged by its passes so far; `None` before the first one.
    pub fn tokens_in(&self, how_long: Duration) -> Option<usize> {
        let (tokens, busy) = (self.passed_tokens.load(Relaxed), self.busy_us.load(Relaxed));
        let tokens = u128::from(tokens) * how_long.as_micros() / u128::from(busy.max(1));
        (busy > 0).then(|| usize::try_from(tokens).unwrap_or(usize::MAX))
    }

    /// Share of the time since the first forward pass in which the model had nothing to do, in percent.
    pub fn idle_pct(&self) -> f64 {
        idle(self.first_us.load(Relaxed), self.busy_us.load(Relaxed), micros(self.wall()))
    }
}

/// Percent of the time from the first pass (`first_us`, plus one; 0: there was none) to now that was not busy.
fn idle(first_us: u64, busy_us: u64, now_us: u64) -> f64 {
    let span = now_us.saturating_sub(first_us.saturating_sub(1));
    if first_us == 0 || span == 0 {
        return 0.0;
    }
    (100.0 * (1.0 - busy_us as f64 / span as f64)).clamp(0.0, 100.0)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_is_not_busy_since_the_first_pass() {
        assert_eq!(idle(0, 0, 500), 0.0, "before the first pass nobody waits for the model");
        assert_eq!(idle(101, 300, 500), 25.0);
        assert_eq!(idle(1, 500, 500), 0.0);
        assert_eq!((idle(1, 900, 500), idle(501, 0, 500)), (0.0, 0.0), "clocks that differ do no harm");
        let tally = Tally::default();
        tally.passed(2, 20, tally.start - Duration::from_millis(10));
        tally.passed(1, 10, Instant::now());
        let busy = tally.busy_us.load(Relaxed);
        tally.tried(5, tally.start - Duration::from_millis(20));
        assert!(tally.busy_us.load(Relaxed) >= busy + 20_000, "the golden text keeps the model busy, too");
        assert_eq!((tally.passes.get(), tally.embedded.get()), (2, 3), "and is none of the run's");
        assert!(
            (0.0..=100.0).contains(&tally.idle_pct()) && tally.tokens_in(Duration::from_secs(1)) > Some(30)
        );
    }
}
