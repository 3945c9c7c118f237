//! What each setting takes. Pure: a value in, what was expected out.

use std::ops::RangeInclusive;

use toml::Value;

use super::{layer::Given, origin::may_hold_secret};

/// What a setting takes beyond the type of its default.
pub(super) enum Rule {
    /// An integer in a range.
    Whole(RangeInclusive<i64>),
    /// A number from 0 to 1.
    Share,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// At least one of these words.
    SomeOf(&'static [&'static str]),
    /// A list with at least one text, none of them empty.
    FilledList,
    /// A list of globs as in a `.gitignore`, perhaps empty.
    Globs,
    /// A text that is not empty.
    Filled,
    /// A name or a path of this machine; never an address.
    Local {
        /// It may be empty.
        empty: bool,
    },
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    Device,
    /// Any text, any bool.
    Any,
}

/// Years of seconds would overflow sums of times.
const YEAR_S: i64 = 31_536_000;
const DAY_MS: i64 = 86_400_000;
const PIB_MB: i64 = 1_073_741_824;

/// The rule of a key. A key that is not in the table takes any value of its default's type.
pub(super) fn rule(key: &str) -> Rule {
    use Rule::{Device, Filled, FilledList, Globs, Local, OneOf, Share, SomeOf, Whole};
    match key {
        "data.dir" | "model.name" => Local { empty: false },
        "model.dir" | "sink.path" => Local { empty: true },
        "model.device" => Device,
        "model.kernel" => OneOf(&["auto", "amx", "avx512", "avx2", "portable", "candle"]),
        "model.compute" => OneOf(&["f32", "i16", "f16", "bf16"]),
        "model.outputs" => SomeOf(&["dense", "sparse", "multi"]),
        "model.truncation" => OneOf(&["truncate", "bury"]),
        "model.max_length" => Whole(0..=1_048_576),
        "model.pass_tokens" => Whole(16..=16_777_216),
        "model.threads" => Whole(0..=1_024),
        "source.id_fields" => FilledList,
        "source.text_field" | "source.chunk_index_field" | "source.meta_field" => Filled,
        "source.chunk_tokens" | "source.overlap_tokens" => Whole(0..=1_048_576),
        "source.include" | "source.exclude" => Globs,
        "source.on_missing" => OneOf(&["keep"]),
        "queue.window_chunks" => Whole(1..=10_000_000),
        "queue.cache_mb" => Whole(1..=65_536),
        "pipeline.batches_in_flight" => Whole(1..=64),
        "pipeline.batch_tokens" => Whole(16..=16_777_216),
        "pipeline.batch_chunks" => Whole(1..=65_536),
        "pipeline.restarts_max" => Whole(0..=1_000),
        "retry.max_attempts" => Whole(1..=100),
        "retry.base_ms" | "retry.cap_ms" => Whole(1..=DAY_MS),
        "breaker.threshold" => Whole(1..=1_000),
        "breaker.window_s" | "breaker.probe_timeout_s" | "pipeline.watchdog_s" => Whole(1..=YEAR_S),
        "dlq.alert_depth" => Whole(1..=1_000_000_000),
        "dlq.max_redrives" => Whole(1..=1_000),
        "retry.retry_after_max_s" => Whole(0..=YEAR_S),
        "dlq.alert_age_h" => Whole(0..=876_000),
        "dlq.retain_days" => Whole(0..=36_500),
        "dlq.payload" => OneOf(&["full", "reference"]),
        "sink.kind" => OneOf(&["sqlite", "null"]),
        "limits.line_bytes" => Whole(1_024..=2_147_483_647),
        "limits.max_dead_fraction" => Share,
        _ if key.ends_with("_s") => Whole(0..=YEAR_S),
        _ if key.ends_with("_ms") => Whole(0..=DAY_MS),
        _ if key.ends_with("_mb") => Whole(0..=PIB_MB),
        _ => Rule::Any,
    }
}

impl Rule {
    /// Whether a value of the right type is taken.
    pub(super) fn takes(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Whole(range), Value::Integer(n)) => range.contains(n),
            (Self::Share, Value::Float(x)) => (0.0..=1.0).contains(x),
            (Self::OneOf(words), Value::String(text)) => words.contains(&text.as_str()),
            (Self::Filled, Value::String(text)) => !text.trim().is_empty(),
            // Messages about a path show it, so that what may hold a password is refused first.
            (Self::Local { empty }, Value::String(text)) => {
                (*empty || !text.trim().is_empty()) && !may_hold_secret(text)
            }
            (Self::Device, Value::String(text)) => is_device(text),
            (Self::SomeOf(words), Value::Array(items)) => {
                !items.is_empty()
                    && items.iter().all(|item| item.as_str().is_some_and(|word| words.contains(&word)))
            }
            (Self::FilledList, Value::Array(items)) => {
                !items.is_empty()
                    && items.iter().all(|item| item.as_str().is_some_and(|text| !text.is_empty()))
            }
            (Self::Globs, Value::Array(items)) => {
                items.iter().all(|item| item.as_str().is_some_and(crate::source::is_glob))
            }
            (Self::Any, Value::Integer(n)) => *n >= 0,
            (Self::Any, _) => true,
            _ => false,
        }
    }

    /// What is taken, in words; `like` is the default.
    pub(super) fn expectation(&self, like: &Value) -> String {
        let words = |words: &[&str]| words.iter().map(|w| format!("\"{w}\"")).collect::<Vec<_>>().join(", ");
        match (self, like) {
            (Self::Whole(range), _) => format!("an integer from {} to {}", range.start(), range.end()),
            (Self::Share, _) => "a number from 0 to 1".into(),
            (Self::OneOf([word]), _) => format!("\"{word}\""),
            (Self::OneOf(list), _) => format!("one of {}", words(list)),
            (Self::SomeOf(list), _) => format!("a list of at least one of {}", words(list)),
            (Self::FilledList, _) => "a list of at least one text, none of them empty".into(),
            (Self::Globs, _) => {
                "a list of globs as in a .gitignore, for example [\"*.md\", \"docs/\"]".into()
            }
            (Self::Filled, _) => "a text that is not empty".into(),
            (Self::Local { empty: true }, _) => "a path of this machine, not an address".into(),
            (Self::Local { .. }, _) => "a name or a path of this machine, not an address".into(),
            (Self::Device, _) => "\"auto\", \"cpu\", \"cuda\" or \"cuda:N\" (N the number of the GPU)".into(),
            (Self::Any, Value::Boolean(_)) => "true or false".into(),
            (Self::Any, Value::Integer(_)) => "an integer of 0 or more".into(),
            (Self::Any, Value::Float(_)) => "a number".into(),
            (Self::Any, Value::Array(_)) => "a list of texts".into(),
            (Self::Any, _) => "a text".into(),
        }
    }
}

fn is_device(text: &str) -> bool {
    let number = text.strip_prefix("cuda:");
    ["auto", "cpu", "cuda"].contains(&text)
        || number
            .is_some_and(|n| !n.is_empty() && n.len() <= 3 && n.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `given` as a value of the type of `like`, the default; `None` when it is of another type.
pub(super) fn typed(given: &Given, like: &Value) -> Option<Value> {
    let value = match (given, like) {
        (Given::NotText, _) => return None,
        (Given::Typed(value), _) => value.clone(),
        (Given::Text(text), Value::String(_)) => Value::String(text.clone()),
        (Given::Text(text), Value::Array(_)) if !text.trim_start().starts_with('[') => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        }
        (Given::Text(text), _) => text.trim().parse().ok()?,
    };
    match (value, like) {
        (Value::Integer(n), Value::Float(_)) =>
        {
            #[expect(clippy::cast_precision_loss, reason = "shares and costs are small numbers")]
            Some(Value::Float(n as f64))
        }
        (Value::Array(items), Value::Array(_)) => {
            items.iter().all(Value::is_str).then_some(Value::Array(items))
        }
        (value, like) => value.same_type(like).then_some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, like: &str) -> Option<String> {
        typed(&Given::Text(text.into()), &like.parse().unwrap()).map(|value| value.to_string())
    }

    #[test]
    fn text_is_read_as_the_type_of_the_default() {
        assert_eq!(text("20_000", "1").unwrap(), "20000");
        assert_eq!(text(" true ", "false").unwrap(), "true");
        assert_eq!(text("1", "0.5").unwrap(), "1.0");
        assert_eq!(text("1e-2", "0.5").unwrap(), "0.01");
        assert_eq!(text("12", "\"a\"").unwrap(), "\"12\"");
        assert_eq!(text("a, b,", "[]").unwrap(), "[\"a\", \"b\"]");
        assert_eq!(text("[\"a,b\", 'c']", "[]").unwrap(), "[\"a,b\", \"c\"]");
        for (value, like) in [("1.5", "1"), ("yes", "false"), ("", "1"), ("[1]", "[]"), ("1\nx = 2", "1")] {
            assert_eq!(text(value, like), None, "{value:?} as {like}");
        }
    }

    #[test]
    fn devices() {
        assert!(["auto", "cpu", "cuda", "cuda:0", "cuda:12"].iter().all(|d| is_device(d)));
        assert!(
            ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "cuda:99999999999"]
                .iter()
                .all(|d| !is_device(d))
        );
    }

    #[test]
    fn not_a_number_is_no_share() {
        for x in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
            assert!(!Rule::Share.takes(&Value::Float(x)));
        }
    }
}
