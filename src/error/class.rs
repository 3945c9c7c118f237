//! The closed table of classes: where each is met, what it means, whom it charges, and what a person can do.
//!
//! Stages never choose. They say what happened and where; the table, read by the policy and by triage, decides.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What an error means for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It may pass: try again later.
    Retry,
    /// This chunk will never work as it is.
    Bury,
    /// Nothing will work until someone acts.
    Halt,
}

/// Who pays for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whom {
    /// The chunk (or record): an attempt is counted.
    Chunk,
    /// The sink, device or server behind it: its breaker is told, and no attempt is counted.
    Dependency,
    /// No part of the line: a setting or an answer that was lost. No attempt is counted.
    Nobody,
}

/// Where on the line an error was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Decoding and validating input.
    Source,
    /// Leasing and tokenising.
    Reader,
    /// The forward pass.
    Embedder,
    /// Writing to the sink.
    Writer,
}

/// One row of the table: the class, its text form, the stages that meet it, its fate (with the attempts it is worth,
/// where that is less than `retry.max_attempts`), whom it charges, what to do.
macro_rules! classes {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal, [$($stage:ident)+], $fate:ident $(($attempts:literal))?,
       $whom:ident, $remedy:literal;)*) => {
        /// The closed list of error classes. A new one does not compile until all of its row is decided.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Class {
            $($(#[doc = $doc])* #[serde(rename = $text)] $name,)*
        }

        impl Class {
            /// Every class, in table order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The text form, used in logs, metrics, commands and stored forms.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What it is, in a sentence or two.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),*),)* }
            }

            /// The stages that may meet it, at least one.
            pub const fn stages(self) -> &'static [Stage] {
                match self { $(Self::$name => &[$(Stage::$stage),+],)* }
            }

            /// The first stage on the line that may meet it.
            pub const fn stage(self) -> Stage {
                self.stages()[0]
            }

            /// What it means, before attempts are counted.
            pub const fn fate(self) -> Fate {
                match self { $(Self::$name => Fate::$fate,)* }
            }

            /// Attempts it is worth at most, where that is less than any other failure's.
            pub const fn attempts_max(self) -> Option<u32> {
                match self { $(Self::$name => { const MAX: &[u32] = &[$($attempts)?]; MAX.first().copied() })* }
            }

            /// Who pays for it.
            pub const fn whom(self) -> Whom {
                match self { $(Self::$name => Whom::$whom,)* }
            }

            /// What a person can do about it, with the command to type.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)* }
            }
        }

        impl std::str::FromStr for Class {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$name),)*
                    _ => Err(format!("unknown class {text:?}; known: {}", [$($text),*].join(", "))),
                }
            }
        }
    };
}

classes! {
    /// The record is not valid UTF-8.
    InvalidUtf8 = "invalid_utf8", [Source], Bury, Chunk,
        "write the file anew as UTF-8 (`iconv -f latin1 -t utf-8`) and type `forebay run PATH`, or put U+FFFD for each wrong byte: `forebay dlq redrive --class invalid_utf8 --repair utf8_lossy`";
    /// The record is not valid JSON.
    JsonSyntax = "json_syntax", [Source], Bury, Chunk,
        "mend the line that `forebay dlq show ID` names and type `forebay run PATH`, or for raw control characters `forebay dlq redrive --class json_syntax --repair strip_control`";
    /// A `\uD800`-style escape without its other half.
    JsonLoneSurrogate = "json_lone_surrogate", [Source], Bury, Chunk,
        "type `forebay dlq redrive --class json_lone_surrogate --repair fix_surrogates`, or mend the line and run again";
    /// The last line ends inside its record.
    JsonTruncated = "json_truncated", [Source], Bury, Chunk,
        "bring the whole file and type `forebay run PATH`";
    /// A needed field is not there.
    MissingField = "missing_field", [Source], Bury, Chunk,
        "name your fields in `source.id_fields` and `source.text_field`, then `forebay dlq redrive --class missing_field`";
    /// A field has another type than it must have.
    WrongType = "wrong_type", [Source], Bury, Chunk,
        "mend the record that `forebay dlq show ID` names and type `forebay run PATH`";
    /// The id is empty or too long.
    BadId = "bad_id", [Source], Bury, Chunk,
        "give the record an id of 1 to 1,024 bytes and type `forebay run PATH`";
    /// The line is longer than `limits.line_bytes`.
    LineTooLong = "line_too_long", [Source], Bury, Chunk,
        "raise `limits.line_bytes` and type `forebay run PATH`";
    /// The text is empty or only white space.
    BlankText = "blank_text", [Source], Bury, Chunk,
        "there is nothing to embed: `forebay dlq discard --class blank_text --reason TEXT`";
    /// The text is longer than the model takes and `model.truncation = "bury"`.
    TooLong = "too_long", [Reader], Bury, Chunk,
        "type `forebay dlq redrive --class too_long --repair truncate`, or split the text in its source and run again";
    /// The tokenizer refused the text.
    TokenizerFailed = "tokenizer_failed", [Reader Source], Bury, Chunk,
        "look at the text with `forebay dlq show ID`, mend it in its source and type `forebay run PATH`";
    /// The vector is not finite, has the wrong dimension or is not of norm 1.
    NonFiniteVector = "non_finite_vector", [Embedder Writer], Bury, Chunk,
        "type `forebay check`: if its golden texts pass, look at the text with `forebay dlq show ID`";
    /// The batch did not fit into memory, and this text not even alone. A third try would cost the longest pass there
    /// is once more, beside the risk that the system kills the process.
    OutOfMemory = "out_of_memory", [Embedder], Retry(2), Chunk,
        "lower `model.max_length` or free memory, then `forebay dlq redrive --class out_of_memory`";
    /// The device went away.
    DeviceLost = "device_lost", [Embedder], Halt, Dependency,
        "look at the device (`forebay check`), then type `forebay run`, with `--set model.device=cpu` to go on without it";
    /// The model failed on this text, while it works on others.
    ModelFailed = "model_failed", [Embedder], Retry, Chunk,
        "type `forebay check`, look at the text with `forebay dlq show ID`, then `forebay dlq redrive --class model_failed`";
    /// A panic was caught while this chunk was worked on. Code that panics on a text does so again: one more try is for
    /// a race, and no further one.
    InternalPanic = "internal_panic", [Embedder Writer], Retry(2), Chunk,
        "this is our mistake: report it with the letter's message, then `forebay dlq redrive --class internal_panic`";
    /// The process died, more than once, while this chunk alone was worked on.
    SuspectedCrash = "suspected_crash", [Embedder], Bury, Chunk,
        "look for an abort or an out-of-memory kill in the system's log, then `forebay dlq redrive --class suspected_crash`";
    /// The sink holds vectors of another identity.
    ModelMismatch = "model_mismatch", [Writer], Halt, Nobody,
        "set `model.*` as it was, name another sink, or type `forebay run --reembed`";
    /// The sink cannot be reached or is locked.
    SinkUnavailable = "sink_unavailable", [Writer], Retry, Dependency,
        "bring the sink back (`forebay check` tries it); the line goes on by itself, or type `forebay run`";
    /// The sink refused this row.
    SinkRejectedRow = "sink_rejected_row", [Writer], Bury, Chunk,
        "look at the native code with `forebay dlq show ID`, mend the sink, then `forebay dlq redrive --class sink_rejected_row`";
    /// Somebody else wrote the same rows at the same time: a deadlock, a serialization failure.
    SinkConflict = "sink_conflict", [Writer], Retry, Dependency,
        "find out who else writes to the sink; the line goes on by itself, or type `forebay run`";
    /// Too many requests, says a server.
    RateLimited = "rate_limited", [Embedder Writer], Retry, Dependency,
        "nothing, or a higher quota; the line goes on by itself, or type `forebay run`";
    /// A server failed at its own work (HTTP 5xx and its like).
    ServerError = "server_error", [Embedder Writer], Retry, Dependency,
        "look at the server; the line goes on by itself, or type `forebay run`";
    /// No answer came in time, and nothing had been sent that could have been carried out.
    Timeout = "timeout", [Embedder Writer], Retry, Dependency,
        "look at the server and the way to it; the line goes on by itself, or type `forebay run`";
    /// Credentials were refused.
    AuthFailed = "auth_failed", [Embedder Writer], Halt, Nobody,
        "renew the credentials in the environment, then type `forebay check` and `forebay run`";
    /// The row was sent, and no answer came: a sink that cannot take it twice may hold it or not.
    UnknownOutcome = "unknown_outcome", [Writer], Bury, Nobody,
        "look whether the sink holds the row: if not, `forebay dlq redrive --approve ID`, else `forebay dlq discard ID --reason TEXT`";
    /// No space is left on the device.
    DiskFull = "disk_full", [Writer], Retry, Dependency,
        "free some space; the line goes on by itself, or type `forebay run`";
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_reads_back_from_its_text() {
        for class in Class::ALL {
            assert_eq!(class.as_str().parse::<Class>(), Ok(*class));
            assert_eq!(serde_json::to_value(class).unwrap(), class.as_str());
        }
        assert!("nope".parse::<Class>().unwrap_err().contains("json_syntax"));
    }

    #[test]
    fn every_row_makes_sense() {
        for class in Class::ALL.iter().copied() {
            let (fate, whom) = (class.fate(), class.whom());
            // An input that cannot be read is the record's; what is tried again is paid for by whoever failed.
            assert!(
                class.stages()[0] != Stage::Source || (fate, whom) == (Fate::Bury, Whom::Chunk),
                "{class}"
            );
            assert!(fate != Fate::Halt || whom != Whom::Chunk, "{class}: a halt charges no chunk");
            assert!(fate != Fate::Retry || whom != Whom::Nobody, "{class}: else it is tried for ever");
            assert!(fate != Fate::Bury || whom != Whom::Dependency, "{class}: an outage fills no DLQ");
            let budget = class.attempts_max();
            assert!(
                budget.is_none() || (fate, whom) == (Fate::Retry, Whom::Chunk),
                "{class}: nothing is counted"
            );
            let (remedy, meaning) = (class.remedy(), class.meaning());
            assert!(!remedy.ends_with('.') && meaning.trim_end().ends_with('.'), "{class}");
        }
    }
}
