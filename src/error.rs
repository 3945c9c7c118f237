//! What can go wrong with a chunk, and what each kind of wrong means for it.

mod class;
mod page;

use std::{fmt, time::Duration};

pub use class::{Class, Fate, Stage, Whom};
pub use page::table;

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
    /// How long the part that failed asked not to be tried (`Retry-After` and its like).
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A fault without a native code; the message is cut to its limit.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self {
            class,
            message: message.chars().take(MESSAGE_CHARS_MAX).collect(),
            native_code: None,
            retry_after: None,
        }
    }

    /// The same with the code of the part that failed.
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.native_code = Some(code.into());
        self
    }

    /// The same with the wait that was asked for.
    pub fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
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
    fn a_long_message_is_cut_by_characters() {
        let fault = Fault::new(Class::JsonSyntax, "é".repeat(900));
        assert_eq!(fault.message.chars().count(), MESSAGE_CHARS_MAX);
    }
}
