//! Where a value came from, in the words a user can act on.

use std::{fmt, path::PathBuf};

/// The layer (and the place in it) that a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `config.toml` as compiled in.
    Default,
    /// A configuration file.
    File {
        /// As it was named.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// An environment variable, by name.
    Env(String),
    /// A flag as typed, for example `--data-dir` or `--set model.name`.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

impl serde::Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What is shown instead of a secret.
pub const MASK: &str = "***";

/// Whether the values of this key are never shown. Whole words count: `max_tokens` is no secret.
pub fn is_secret(key: &str) -> bool {
    key.split(['.', '_']).any(|word| ["password", "passwd", "token", "secret"].contains(&word))
}

/// Whether a text looks like an address or a connection string, in which a password may stand anywhere and in any
/// spelling: then none of it is shown.
pub fn may_hold_secret(text: &str) -> bool {
    let lower = text.to_lowercase();
    let words = ["password=", "passwd=", "pwd=", "token=", "secret=", "api_key=", "apikey="];
    let alnum = |text: &str| text.len() >= 16 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let token = lower.strip_prefix("hf_").is_some_and(alnum);
    token || lower.contains("://") || words.iter().any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_told_by_whole_words() {
        for key in ["sink.password", "sink.auth_token", "hub.client_secret", "token"] {
            assert!(is_secret(key), "{key}");
        }
        for text in ["http://h?k=v", "host=h password='p'", "hf_abcdefghijklmnopqrstuv", "a?API_KEY=k"] {
            assert!(may_hold_secret(text), "{text}");
        }
        for text in ["/srv/secrets/vectors.db", "all-MiniLM-L6-v2", "hf_models"] {
            assert!(!may_hold_secret(text), "{text}");
        }
        for key in ["model.pass_tokens", "source.chunk_tokens", "pipeline.batch_tokens", "data.dir"] {
            assert!(!is_secret(key), "{key}");
        }
    }
}
