//! What a run did: one line for people, one object for machines. Field names are a contract.

use std::fmt;

use serde::Serialize;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All is written (exit 0).
    Complete,
    /// Finished, with dead letters or incomplete input (exit 1).
    Partial,
    /// Halted (exit 3).
    Halted,
    /// Interrupted and drained (exit 130).
    Interrupted,
    /// As much was written as `--limit` allows, and there is more (exit 0).
    Limited,
}

/// The report of a run. `chunks + skipped + dead + duplicates = produced + unreadable`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Id of the run, UUIDv7.
    pub run: String,
    /// Documents (or chunk records) read.
    pub documents: u64,
    /// Chunks that were taken up and whose outcome is known.
    pub produced: u64,
    /// Records that could not be read.
    pub unreadable: u64,
    /// Chunks that made way for a later one of the same key, or were read twice.
    pub duplicates: u64,
    /// Chunks newly written.
    pub chunks: u64,
    /// Chunks written before this run, or given up by a person.
    pub skipped: u64,
    /// Chunks and records that lie in the DLQ.
    pub dead: u64,
    /// Chunks still pending when it ended: 0 unless it was halted, interrupted or limited.
    pub pending: u64,
    /// Tokens of the chunks newly written, specials included.
    pub tokens: u64,
    /// Chunks newly written whose text was cut.
    pub truncated: u64,
    /// Chunks buried because their text was over the limit (`model.truncation = "bury"`).
    pub too_long: u64,
    /// Texts that went through the model; 0 when everything was written before.
    pub embedded: u64,
    /// Forward passes.
    pub passes: u64,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// `tokens` per second of `wall_s`.
    pub tokens_per_s: f64,
    /// Share of the time since the first pass in which the model had nothing to do.
    pub idle_pct: f64,
    /// Currency units spent; 0 for a local model.
    pub cost: f64,
    /// Lowest cosine of the model's self-test at the start, alone against together and against the reference where there
    /// is one; null for `instant`.
    pub self_test: Option<f64>,
    /// The identity's label.
    pub identity: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why, when it was halted; else null.
    pub halted: Option<String>,
    /// What was missing in the input, a sentence each.
    pub incomplete: Vec<String>,
}

impl Report {
    /// Whether every unit read has exactly one outcome.
    pub fn adds_up(&self) -> bool {
        self.chunks + self.skipped + self.dead + self.duplicates == self.produced + self.unreadable
    }

    /// Share of dead letters in percent.
    pub fn dead_pct(&self) -> f64 {
        let all = self.produced + self.unreadable;
        if all == 0 { 0.0 } else { 100.0 * self.dead as f64 / all as f64 }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "run={} chunks={} skipped={} duplicates={} tokens={} truncated={} wall={} rate={} tok/s \
             dlq={} ({:.2}%) cost=${:.2} identity={}",
            self.run,
            grouped(self.chunks),
            grouped(self.skipped),
            grouped(self.duplicates),
            short(self.tokens as f64),
            grouped(self.truncated),
            duration(self.wall_s),
            short(self.tokens_per_s),
            grouped(self.dead),
            self.dead_pct(),
            self.cost,
            self.identity
        )
    }
}

/// `1_204_331`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('_');
        }
        out.push(digit);
    }
    out
}

/// `402M`, `34.9k`, `12`.
pub fn short(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.1}G", n / 1e9),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e3 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// `3h12m`, `4m05s`, `7.3s`.
pub fn duration(seconds: f64) -> String {
    // Saturates; a run of more than 2⁶⁴ seconds does not end.
    let whole = std::time::Duration::try_from_secs_f64(seconds).map_or(0, |time| time.as_secs());
    match whole {
        0..60 => format!("{seconds:.1}s"),
        60..3_600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3_600, whole % 3_600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_promised() {
        assert_eq!([grouped(0), grouped(999), grouped(1_204_331)], ["0", "999", "1_204_331"]);
        assert_eq!([short(12.0), short(34_900.0), short(402e6)], ["12", "34.9k", "402.0M"]);
        assert_eq!([duration(7.31), duration(245.0), duration(11_520.0)], ["7.3s", "4m05s", "3h12m"]);
    }
}
