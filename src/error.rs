//! What can go wrong with a chunk, and what each kind of wrong means for it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What an error means for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Not this chunk's fault, or it may pass: try again later.
    Retry,
    /// This chunk will never work as it is.
    Bury,
    /// Nothing will work until someone acts.
    Halt,
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

/// One row of the table of classes: the class, its text form, the stage that meets it, its fate.
macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $stage:ident, $fate:ident;)*) => {
        /// The closed list of error classes. A new one does not compile until stage and fate are decided.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Class {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl Class {
            /// Every class, in table order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The text form, used in logs, metrics, commands and stored forms.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The stage that meets it.
            pub const fn stage(self) -> Stage {
                match self { $(Self::$name => Stage::$stage,)* }
            }

            /// What it means for the chunk, before attempts are counted.
            pub const fn fate(self) -> Fate {
                match self { $(Self::$name => Fate::$fate,)* }
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
    InvalidUtf8 = "invalid_utf8", Source, Bury;
    /// The record is not valid JSON.
    JsonSyntax = "json_syntax", Source, Bury;
    /// A `\uD800`-style escape without its other half.
    JsonLoneSurrogate = "json_lone_surrogate", Source, Bury;
    /// The last line ends inside its record.
    JsonTruncated = "json_truncated", Source, Bury;
    /// A needed field is not there.
    MissingField = "missing_field", Source, Bury;
    /// A field has another type than it must have.
    WrongType = "wrong_type", Source, Bury;
    /// The id is empty or too long.
    BadId = "bad_id", Source, Bury;
    /// The line is longer than `limits.line_bytes`.
    LineTooLong = "line_too_long", Source, Bury;
    /// The text is empty or only white space.
    BlankText = "blank_text", Source, Bury;
    /// The text is longer than the model takes and `model.truncation = "bury"`.
    TooLong = "too_long", Reader, Bury;
    /// The tokenizer refused the text.
    TokenizerFailed = "tokenizer_failed", Reader, Bury;
    /// The vector is not finite, has the wrong dimension or is not of norm 1.
    NonFiniteVector = "non_finite_vector", Embedder, Bury;
    /// The batch did not fit into memory.
    OutOfMemory = "out_of_memory", Embedder, Retry;
    /// The device went away.
    DeviceLost = "device_lost", Embedder, Halt;
    /// The model failed on this text.
    ModelFailed = "model_failed", Embedder, Retry;
    /// A panic was caught while this chunk was worked on.
    InternalPanic = "internal_panic", Embedder, Retry;
    /// The process died, more than once, while this chunk alone was worked on.
    SuspectedCrash = "suspected_crash", Embedder, Bury;
    /// The sink holds vectors of another identity.
    ModelMismatch = "model_mismatch", Writer, Halt;
    /// The sink cannot be reached or is locked.
    SinkUnavailable = "sink_unavailable", Writer, Retry;
    /// The sink refused this row.
    SinkRejectedRow = "sink_rejected_row", Writer, Bury;
    /// Somebody else wrote the same rows at the same time: a deadlock, a serialization failure.
    SinkConflict = "sink_conflict", Writer, Retry;
    /// Too many requests, says a server.
    RateLimited = "rate_limited", Writer, Retry;
    /// A server failed at its own work (HTTP 5xx and its like).
    ServerError = "server_error", Writer, Retry;
    /// No answer came in time, and nothing had been sent that could have been carried out.
    Timeout = "timeout", Writer, Retry;
    /// Credentials were refused.
    AuthFailed = "auth_failed", Writer, Halt;
    /// The row was sent, and no answer came: a sink that cannot take it twice may hold it or not.
    UnknownOutcome = "unknown_outcome", Writer, Bury;
    /// No space is left on the device.
    DiskFull = "disk_full", Writer, Retry;
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Longest message kept with a dead letter, in characters.
pub const MESSAGE_CHARS_MAX: usize = 500;

/// What went wrong with one chunk or record. The message never quotes the document and never a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Kind.
    pub class: Class,
    /// One sentence for a person, at most [`MESSAGE_CHARS_MAX`] characters.
    pub message: String,
    /// The code of the part that failed, where it has one: errno, SQLite's extended code, HTTP status.
    pub native_code: Option<String>,
}

impl Fault {
    /// A fault without a native code; the message is cut to its limit.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self { class, message: message.chars().take(MESSAGE_CHARS_MAX).collect(), native_code: None }
    }

    /// The same with the code of the part that failed.
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.native_code = Some(code.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
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
    fn a_long_message_is_cut_by_characters() {
        let fault = Fault::new(Class::JsonSyntax, "é".repeat(900));
        assert_eq!(fault.message.chars().count(), MESSAGE_CHARS_MAX);
    }
}
