//! What a failure means for a chunk: attempts and time to a verdict. Pure.

use std::time::Duration;

use crate::error::Fate;

/// `retry.*` of the configuration.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Attempts in all before a retryable failure is buried.
    pub max_attempts: u32,
    /// Base of the wait.
    pub base_ms: u64,
    /// Longest wait.
    pub cap_ms: u64,
    /// A chunk whose first failure is older than this is buried instead of tried again.
    pub max_elapsed_s: u64,
}

/// What to do with a chunk that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after this wait.
    Retry(Duration),
    /// Make it a dead letter.
    Bury,
    /// Stop the line; the chunk stays queued, uncharged.
    Halt,
}

/// Longest wait before attempt `attempts + 1`: `min(cap, base · 2^(attempts − 1))`.
pub fn wait_max(settings: &Settings, attempts: u32) -> Duration {
    let factor = 1_u64.checked_shl(attempts.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_millis(settings.base_ms.saturating_mul(factor).min(settings.cap_ms))
}

/// The verdict after attempt number `attempts` failed. `dice` in 0..1 is the jitter: full jitter spreads
/// those that failed together (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).
pub fn verdict(settings: &Settings, fate: Fate, attempts: u32, elapsed: Duration, dice: f64) -> Verdict {
    match fate {
        Fate::Halt => Verdict::Halt,
        Fate::Bury => Verdict::Bury,
        Fate::Retry if attempts >= settings.max_attempts => Verdict::Bury,
        Fate::Retry if elapsed >= Duration::from_secs(settings.max_elapsed_s) => Verdict::Bury,
        Fate::Retry => Verdict::Retry(wait_max(settings, attempts).mul_f64(dice.clamp(0.0, 1.0))),
    }
}

/// Waits at most that a chunk spends between its first failure and its burial.
pub fn recovery_worst(settings: &Settings) -> Duration {
    (1..settings.max_attempts).map(|n| wait_max(settings, n)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: Settings = Settings { max_attempts: 3, base_ms: 500, cap_ms: 30_000, max_elapsed_s: 900 };

    #[test]
    fn waits_double_up_to_the_cap() {
        let waits: Vec<_> = [1, 2, 3, 8, 64, 200].map(|n| wait_max(&SETTINGS, n).as_millis()).to_vec();
        assert_eq!(waits, [500, 1_000, 2_000, 30_000, 30_000, 30_000]);
        assert_eq!(recovery_worst(&SETTINGS), Duration::from_millis(1_500));
    }

    #[test]
    fn the_last_attempt_is_buried() {
        let at =
            |attempts, elapsed| verdict(&SETTINGS, Fate::Retry, attempts, Duration::from_secs(elapsed), 0.5);
        assert_eq!(at(1, 0), Verdict::Retry(Duration::from_millis(250)));
        assert_eq!(at(2, 0), Verdict::Retry(Duration::from_millis(500)));
        assert_eq!(at(3, 0), Verdict::Bury);
        assert_eq!(at(1, 900), Verdict::Bury);
    }

    proptest! {
        #[test]
        fn a_wait_is_never_over_the_cap_and_fates_are_kept(
            attempts in 1_u32..500, elapsed in 0_u64..2_000, dice in -1.0_f64..2.0,
        ) {
            let elapsed = Duration::from_secs(elapsed);
            if let Verdict::Retry(wait) = verdict(&SETTINGS, Fate::Retry, attempts, elapsed, dice) {
                prop_assert!(wait <= Duration::from_millis(SETTINGS.cap_ms));
                prop_assert!(attempts < SETTINGS.max_attempts);
            }
            prop_assert_eq!(verdict(&SETTINGS, Fate::Bury, attempts, elapsed, dice), Verdict::Bury);
            prop_assert_eq!(verdict(&SETTINGS, Fate::Halt, attempts, elapsed, dice), Verdict::Halt);
        }
    }
}
