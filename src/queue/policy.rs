//! What a failure means for a chunk: class and history to a verdict. Pure, and without a clock.
//!
//! How long a chunk has been failing is the sum of the waits it was given, which is stored with it. So neither a clock
//! that jumps, nor an outage, nor the time between two runs can bury a chunk.

use std::time::Duration;

use crate::error::{Class, Fate, Fault, Whom};

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
    /// A chunk that has waited longer than this between its attempts is buried instead of tried again.
    pub max_elapsed_s: u64,
    /// Longest wait that a sink or server may ask for.
    pub retry_after_max_s: u64,
}

/// What was charged to a chunk before this failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Attempts.
    pub attempts: u32,
    /// Waits between them.
    pub waited: Duration,
}

/// What to do with a chunk that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after this wait.
    Retry {
        /// Attempts charged by then. As many as before: it is merely put off.
        attempts: u32,
        /// The wait.
        after: Duration,
    },
    /// Make it a dead letter.
    Bury {
        /// Attempts charged by then.
        attempts: u32,
    },
    /// Stop the line; the chunk stays queued, uncharged.
    Halt,
}

/// Longest wait before attempt `attempts + 1`: `min(cap, base · 2^(attempts − 1))`.
pub fn wait_max(settings: &Settings, attempts: u32) -> Duration {
    let factor = 1_u64.checked_shl(attempts.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_millis(settings.base_ms.saturating_mul(factor).min(settings.cap_ms))
}

/// The wait before attempt `attempts + 1`. `dice` in 0..1 is the jitter: full jitter spreads those that failed together
/// (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>). What was asked for is a floor, as long
/// as it is within its own cap.
pub fn wait(settings: &Settings, attempts: u32, asked: Option<Duration>, dice: f64) -> Duration {
    let drawn = wait_max(settings, attempts).mul_f64(dice.clamp(0.0, 1.0));
    drawn.max(asked.unwrap_or_default().min(Duration::from_secs(settings.retry_after_max_s)))
}

/// The verdict on a chunk that failed by `fault`.
pub fn verdict(settings: &Settings, fault: &Fault, history: History, dice: f64) -> Verdict {
    let Fault { class, retry_after, .. } = fault;
    let attempts = history.attempts.saturating_add(1);
    match (class.fate(), class.whom()) {
        (Fate::Halt, _) => Verdict::Halt,
        (Fate::Bury, Whom::Chunk) => Verdict::Bury { attempts },
        (Fate::Bury, Whom::Dependency | Whom::Nobody) => Verdict::Bury { attempts: history.attempts },
        (Fate::Retry, Whom::Dependency | Whom::Nobody) => {
            // Nothing is counted, so nothing grows: between half of the cap and all of it.
            let after = wait(settings, u32::MAX, *retry_after, 0.5 + dice.clamp(0.0, 1.0) / 2.0);
            Verdict::Retry { attempts: history.attempts, after }
        }
        (Fate::Retry, Whom::Chunk) => {
            let spent = attempts >= budget(settings, *class)
                || history.waited >= Duration::from_secs(settings.max_elapsed_s);
            if spent {
                Verdict::Bury { attempts }
            } else {
                Verdict::Retry { attempts, after: wait(settings, attempts, *retry_after, dice) }
            }
        }
    }
}

/// Attempts that a failure of this class is worth.
pub fn budget(settings: &Settings, class: Class) -> u32 {
    class.attempts_max().map_or(settings.max_attempts, |most| most.min(settings.max_attempts))
}

/// Waits at most that a chunk spends between its first failure and its burial, when nobody asks for a longer one.
pub fn recovery_worst(settings: &Settings) -> Duration {
    let limit = Duration::from_secs(settings.max_elapsed_s);
    if limit.is_zero() {
        return limit;
    }
    // The last wait may begin just before the limit.
    let last = wait_max(settings, settings.max_attempts.saturating_sub(1));
    (1..settings.max_attempts)
        .map(|attempts| wait_max(settings, attempts))
        .sum::<Duration>()
        .min(limit + last)
}

/// The longest wait there is, in milliseconds: what a clock that jumped can cost at the next open.
pub fn wait_longest_ms(settings: &Settings) -> u64 {
    settings.cap_ms.max(settings.retry_after_max_s.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: Settings = Settings {
        max_attempts: 3,
        base_ms: 500,
        cap_ms: 30_000,
        max_elapsed_s: 900,
        retry_after_max_s: 300,
    };

    fn fault(class: Class) -> Fault {
        Fault::new(class, "planted")
    }

    fn history(attempts: u32, waited_s: u64) -> History {
        History { attempts, waited: Duration::from_secs(waited_s) }
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        let waits: Vec<_> = [1, 2, 3, 8, 64, 200].map(|n| wait_max(&SETTINGS, n).as_millis()).to_vec();
        assert_eq!(waits, [500, 1_000, 2_000, 30_000, 30_000, 30_000]);
        assert_eq!(recovery_worst(&SETTINGS), Duration::from_millis(1_500));
        let many = Settings { max_attempts: 100, ..SETTINGS };
        let worst = recovery_worst(&many).as_secs();
        assert!((900..=930).contains(&worst), "max_elapsed_s and one wait more: {worst}");
    }

    #[test]
    fn the_last_attempt_is_buried_and_some_classes_have_fewer() {
        let at = |class, attempts, waited| verdict(&SETTINGS, &fault(class), history(attempts, waited), 0.5);
        let retry = |attempts, ms| Verdict::Retry { attempts, after: Duration::from_millis(ms) };
        assert_eq!(at(Class::ModelFailed, 0, 0), retry(1, 250));
        assert_eq!(at(Class::ModelFailed, 1, 0), retry(2, 500));
        assert_eq!(at(Class::ModelFailed, 2, 0), Verdict::Bury { attempts: 3 });
        assert_eq!(at(Class::ModelFailed, 1, 900), Verdict::Bury { attempts: 2 });
        assert_eq!(at(Class::InternalPanic, 1, 0), Verdict::Bury { attempts: 2 });
        let once = Settings { max_attempts: 1, ..SETTINGS };
        assert_eq!(budget(&once, Class::OutOfMemory), 1, "a setting is never exceeded");
    }

    #[test]
    fn every_class_has_its_verdict() {
        for class in Class::ALL.iter().copied() {
            let first = verdict(&SETTINGS, &fault(class), History::default(), 0.5);
            match (class.fate(), class.whom()) {
                (Fate::Halt, _) => assert_eq!(first, Verdict::Halt, "{class}"),
                (Fate::Bury, Whom::Chunk) => assert_eq!(first, Verdict::Bury { attempts: 1 }, "{class}"),
                (Fate::Bury, _) => assert_eq!(first, Verdict::Bury { attempts: 0 }, "{class}"),
                (Fate::Retry, whom) => {
                    let Verdict::Retry { attempts, .. } = first else { panic!("{class}: {first:?}") };
                    assert_eq!(attempts, u32::from(whom == Whom::Chunk), "{class}");
                }
            }
        }
    }

    #[test]
    fn what_a_server_asks_for_is_a_floor_within_its_own_cap() {
        let asked = |s| Some(Duration::from_secs(s));
        assert_eq!(wait(&SETTINGS, 1, asked(7), 0.5), Duration::from_secs(7));
        assert_eq!(wait(&SETTINGS, 1, asked(86_400), 0.5), Duration::from_secs(300));
        assert_eq!(wait(&SETTINGS, 1, asked(0), 1.0), Duration::from_millis(500));
        let limited = fault(Class::RateLimited).with_retry_after(Duration::from_secs(60));
        let put_off = Verdict::Retry { attempts: 2, after: Duration::from_secs(60) };
        assert_eq!(verdict(&SETTINGS, &limited, history(2, 899), 0.5), put_off, "and nothing is charged");
    }

    proptest! {
        #[test]
        fn no_wait_is_over_its_cap_and_no_attempt_over_the_budget(
            class in 0..Class::ALL.len(), attempts in 0_u32..500, waited in 0_u64..2_000, dice in -1.0_f64..2.0,
            asked in proptest::option::of(0_u64..10_000),
        ) {
            let class = Class::ALL[class];
            let fault = Fault { retry_after: asked.map(Duration::from_secs), ..fault(class) };
            let verdict = verdict(&SETTINGS, &fault, history(attempts, waited), dice);
            if let Verdict::Retry { attempts: charged, after } = verdict {
                prop_assert_eq!(class.fate(), Fate::Retry);
                prop_assert!(after.as_millis() <= u128::from(wait_longest_ms(&SETTINGS)));
                let within = charged == attempts + 1 && charged < budget(&SETTINGS, class);
                prop_assert!(within || (charged == attempts && class.whom() != Whom::Chunk));
            }
        }

        /// Whatever clocks do meanwhile, a chunk ends within its budget of attempts and of waiting.
        #[test]
        fn a_chunk_that_keeps_failing_is_buried_in_time(
            max_attempts in 1_u32..60, cap_ms in 500_u64..100_000, max_elapsed_s in 0_u64..500, dice in 0.0_f64..1.0,
        ) {
            let settings = Settings { max_attempts, cap_ms, max_elapsed_s, ..SETTINGS };
            let mut history = History::default();
            while let Verdict::Retry { attempts, after } =
                verdict(&settings, &fault(Class::ModelFailed), history, dice)
            {
                history = History { attempts, waited: history.waited + after };
                prop_assert!(attempts < max_attempts);
                prop_assert!(history.waited <= Duration::from_secs(max_elapsed_s) + Duration::from_millis(cap_ms));
            }
            prop_assert!(history.waited <= recovery_worst(&settings));
        }
    }
}
