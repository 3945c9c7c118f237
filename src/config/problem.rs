//! What can be wrong with a configuration, said so that it can be repaired at once.

use std::{fmt, path::PathBuf};

use super::origin::Origin;

/// One thing to repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A file could not be read.
    Unreadable {
        /// As it was named.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// A file is not TOML.
    Syntax {
        /// File and line.
        origin: Origin,
        /// What the parser said, without quoting the line.
        why: String,
    },
    /// No setting has this name.
    Unknown {
        /// As it was written.
        key: String,
        /// Where.
        origin: Origin,
        /// What to write instead, when something is near.
        nearest: Option<String>,
    },
    /// A value that the setting cannot take.
    Value {
        /// The setting.
        key: String,
        /// What it takes.
        expected: String,
        /// What it got (masked when the setting is a secret).
        received: String,
        /// Where.
        origin: Origin,
    },
    /// One setting under two spellings in the environment, with different values.
    Twice {
        /// The setting.
        key: String,
        /// Both names.
        names: [String; 2],
    },
    /// `config.toml` and the settings structs disagree: a fault of the build, not of the user.
    Build(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, why } => {
                write!(f, "cannot read {}: {why}; check the path given to --config", path.display())
            }
            Self::Syntax { origin, why } => write!(f, "{origin} is not valid TOML: {why}"),
            Self::Unknown { key, origin, nearest } => {
                write!(f, "unknown key `{}` in {origin}; ", key.escape_debug())?;
                match nearest {
                    Some(nearest) => write!(f, "did you mean `{nearest}`?"),
                    None => write!(f, "`forebay check` lists every key"),
                }
            }
            Self::Value { key, expected, received, origin } => {
                write!(f, "`{key}`: expected {expected}, received {received} (from {origin})")
            }
            Self::Twice { key, names: [first, second] } => {
                write!(f, "`{key}` is given twice, by {first} and {second}; unset one of them")
            }
            Self::Build(why) => write!(f, "the compiled-in settings do not fit: {why}; please report this"),
        }
    }
}

/// The configuration cannot be used. Everything that is wrong is in it, not only the first thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// What to repair, in the order of the layers.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => write!(f, "configuration: {one}")?,
            many => {
                write!(f, "configuration: {} things to repair:", many.len())?;
                many.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))?;
            }
        }
        write!(f, "\nrepair it, then run `forebay check`")
    }
}
